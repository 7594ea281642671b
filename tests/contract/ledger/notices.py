"""Notices: what operators should know is recorded when it comes to pass, each once."""

from __future__ import annotations

from typing import Any

from tests.contract.given import Clock
from tests.contract.ledger.webhook_steps import WebhookSteps, failed, sent
from workq.ledger import Evidence
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Dead, Delivered, Done, Settlement, State
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import NOTICE_NAME, Cause, DeliveryState, EndpointOptions

DAY_S = 86_400.0
Told = tuple[str, str, dict[str, Any]]


class NoticesContract(WebhookSteps):
    @staticmethod
    def told(ledger: Ledger) -> list[Told]:
        """Kind, endpoint and facts of each notice, in the order in which they came to pass."""
        tasks = ledger.questions.tasks(name=NOTICE_NAME)
        return [(task.args[0], task.args[1], task.args[2]) for task in reversed(tasks)]

    def exhaust(self, ledger: Ledger, claim: Claim, **facts: Any) -> None:
        given = {"error_class": "tls", "status": None} | facts
        self.settle(ledger, claim, Delivered(sent(claim, **given), Dead("exhausted: tls", "tls: no")))

    def test_an_endpoint_that_fails_is_told_of_at_half_the_way_and_twice_more_and_when_it_is_disabled(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger, options=EndpointOptions(concurrency=30))
        claims = self.carried(ledger, worker, [self.send(ledger)[0] for _ in range(25)])
        counts = []
        for days, count in ((0.0, 11), (2.6, 1), (0.0, 1), (1.0, 1), (1.0, 5), (0.5, 1)):
            clock.forward(days * DAY_S)
            self.all_fail(ledger, [claims.pop() for _ in range(count)])
            counts.append(len(self.told(ledger)))

        assert counts == [0, 1, 1, 2, 3, 4]
        kinds = [
            (kind, endpoint, facts.get("percent"), facts.get("failures")) for kind, endpoint, facts in self.told(ledger)
        ]
        assert kinds == [
            ("endpoint.failing", "a", 50, 12),
            ("endpoint.failing", "a", 70, 14),
            ("endpoint.failing", "a", 90, 19),
            ("endpoint.disabled", "a", None, None),
        ]
        disabled = self.told(ledger)[-1][2]
        assert disabled["who"] == "workq"
        assert "nothing has arrived for 122 hours, in 20 attempts" in disabled["why"]

    def test_what_arrives_ends_the_warnings_and_they_may_begin_anew(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger, options=EndpointOptions(concurrency=40))
        claims = self.carried(ledger, worker, [self.send(ledger)[0] for _ in range(30)])
        for _ in range(2):
            self.all_fail(ledger, [claims.pop() for _ in range(11)])
            clock.forward(2.6 * DAY_S)
            self.all_fail(ledger, [claims.pop()])
            claim = claims.pop()
            self.settle(ledger, claim, Delivered(sent(claim), Done()))

        assert [(kind, facts["percent"]) for kind, _, facts in self.told(ledger)] == [("endpoint.failing", 50)] * 2

    def test_an_exhausted_delivery_is_told_once_an_hour_for_each_endpoint(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        for name in ("a", "b"):
            self.endpoint(ledger, name)
        sent_to = [self.send(ledger) for _ in range(3)]
        by_id = {one.delivery_id: one for both in sent_to for one in both}
        claims = self.carried(ledger, worker, [one for both in sent_to for one in both])

        def endpoint_of(claim: Claim) -> str:
            return by_id[claim.task_id].endpoint_id

        first = [claim for claim in claims if claim.task_id not in {one.delivery_id for one in sent_to[2]}]
        for claim in first:
            self.exhaust(ledger, claim, endpoint_id=endpoint_of(claim), number=10)
        soon = self.told(ledger)
        for claim in ledger.claims.claim([task.id for task in ledger.questions.tasks(name=NOTICE_NAME)], by=worker.id):
            self.settle(ledger, claim, Done())
        clock.forward(3700.0)
        for claim in claims:
            if claim not in first:
                self.exhaust(ledger, claim, endpoint_id=endpoint_of(claim), number=10)

        assert sorted((kind, endpoint) for kind, endpoint, _ in soon) == [
            ("delivery.exhausted", "a"),
            ("delivery.exhausted", "b"),
        ]
        assert {(facts["error_class"], facts["attempts"], "status" in facts) for _, _, facts in soon} == {
            ("tls", 10, False)
        }
        assert all(by_id[facts["delivery"]].endpoint_id == endpoint for _, endpoint, facts in soon)
        assert len(self.told(ledger)) == 4

    def test_of_many_that_are_exhausted_together_the_first_is_told_and_all_are_settled(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger, options=EndpointOptions(concurrency=30))
        claims = self.carried(ledger, worker, [self.send(ledger)[0] for _ in range(20)])

        settled = ledger.outcomes.settle(
            [Settlement(one, Delivered(sent(one, error_class="tls"), Dead("exhausted: tls", "no"))) for one in claims]
        )

        assert [one.state for one in settled] == [State.DEAD] * 20
        [(kind, endpoint, facts)] = self.told(ledger)
        assert (kind, endpoint) == ("delivery.exhausted", "a")
        assert facts["delivery"] == min(one.task_id for one in claims)

    def test_one_that_a_person_has_sent_again_and_that_arrives_has_recovered(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        [dead], [fine], [slow] = (self.send(ledger) for _ in range(3))
        for one, outcome in ((dead, "tls"), (fine, None)):
            [claim] = self.carried(ledger, worker, [one])
            then = Done() if outcome is None else Dead("exhausted: tls", "tls: no")
            self.settle(ledger, claim, Delivered(sent(claim, error_class=outcome), then))
        [claim] = self.carried(ledger, worker, [slow])
        self.settle(ledger, claim, failed(claim, delay_s=0.0))
        [claim] = self.carried(ledger, worker, [slow])
        self.settle(ledger, claim, Delivered(sent(claim, number=2), Done()))
        before = [kind for kind, _, _ in self.told(ledger)]

        ledger.part(WebhookLedger).decisions.resend(
            [dead.delivery_id, fine.delivery_id], cause=Cause.MANUAL, who="ada", why="seen"
        )
        for one in (dead, fine):
            [claim] = self.carried(ledger, worker, [one])
            arrived = sent(claim, number=2, cause="manual")
            settled = [self.settle(ledger, claim, Delivered(arrived, Done())).state for _ in range(2)]
            assert settled == [State.SUCCEEDED] * 2

        assert before == ["delivery.exhausted"]
        kind, endpoint, facts = self.told(ledger)[-1]
        assert (kind, endpoint) == ("delivery.recovered", "a")
        assert facts == {"delivery": dead.delivery_id, "attempts": 2, "status": 200}
        assert len(self.told(ledger)) == 2

    def test_who_disables_an_endpoint_is_told_once(self, ledger: Ledger, worker: Incarnation) -> None:
        for name in ("a", "b"):
            self.endpoint(ledger, name)
        [one, _] = self.send(ledger)
        [claim] = self.carried(ledger, worker, [one])
        for _ in range(2):
            ledger.part(WebhookLedger).decisions.disable_endpoint("b", who="eve@host", why="they are moving")
        gone = sent(claim, error_class="gone", status=410, is_gone=True)
        for _ in range(2):
            self.settle(ledger, claim, Delivered(gone, Dead("gone", "410")))

        assert self.told(ledger) == [
            ("endpoint.disabled", "b", {"who": "eve@host", "why": "they are moving"}),
            ("endpoint.disabled", "a", {"who": "workq", "why": "the receiver has answered 410 Gone"}),
        ]

    def test_one_whose_workers_died_is_told_by_the_sweep_that_ends_it(self, ledger: Ledger) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        self.crash(ledger, one.delivery_id)

        counts = [
            ledger.part(WebhookLedger).counter.tend_deliveries(limit=9, dry_run=True),
            *(ledger.part(WebhookLedger).counter.tend_deliveries(limit=9) for _ in range(2)),
        ]

        assert counts == [1, 1, 0]
        [(kind, endpoint, facts)] = self.told(ledger)
        assert (kind, endpoint) == ("delivery.exhausted", "a")
        assert facts == {"delivery": one.delivery_id, "attempts": 0, "error_class": "worker_lost"}

    def test_what_comes_late_is_told_to_nobody(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        [late] = self.carried(ledger, worker, [one])
        ledger.workers.reap(worker.id, Evidence("killed", started={late.task_id: 1}))
        [claim] = self.claim_elsewhere(ledger, [late.task_id])
        self.settle(ledger, claim, Delivered(sent(claim), Done()))

        self.exhaust(ledger, late)

        assert self.delivery(ledger, one.delivery_id).state is DeliveryState.SUCCEEDED
        assert self.told(ledger) == []

    def test_a_notice_is_hinted_with_the_settlement_that_it_comes_of(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger)
        [claim] = self.carried(ledger, worker, self.send(ledger))

        settled = self.settle(ledger, claim, Delivered(sent(claim, error_class="tls"), Dead("exhausted: tls", "no")))

        [task] = ledger.questions.tasks(name=NOTICE_NAME)
        assert [(hint.task_id, hint.queue) for hint in settled.follows] == [(task.id, "webhooks")]
        assert ledger.claims.claim([task.id], by=worker.id)[0].task_id == task.id
