"""Pruning: what has ended long ago is removed, with what is its own, and counted beforehand by the same rule."""

from __future__ import annotations

from collections import Counter

from tests.contract.given import HOUR_S, Clock, at_once, new, new_job
from tests.contract.ledger.webhook_steps import BODY, WebhookSteps, failed, sent
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import JobOptions
from workq.ledger import Retention
from workq.ledger.sql import Ledger
from workq.recovery.retention import prunable_rows, prune
from workq.values.incarnation import Incarnation
from workq.values.task import Delivered, Done
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import Cause, DeliveryState, PrunedWebhooks

DAY_S = 86_400.0
HOURS = Retention(HOUR_S, 2 * HOUR_S, HOUR_S, 2 * HOUR_S)
NOTHING = PrunedWebhooks(0, 0, 0, 0)


class PruningContract(WebhookSteps):
    def prune_by(self, ledger: Ledger, hours: float, *, limit: int = 9, dry_run: bool = False) -> PrunedWebhooks:
        """Bodies after an hour, webhooks after so many."""
        return ledger.part(WebhookLedger).pruning.prune_webhooks(
            limit=limit, body_retention_s=HOUR_S, retention_s=hours * HOUR_S, dry_run=dry_run
        )

    def arrive(self, ledger: Ledger, worker: Incarnation, webhook_id: str) -> str:
        """One is sent, fails once, and arrives; the id of its delivery."""
        [one] = self.send(ledger, id=webhook_id)
        [claim] = self.carried(ledger, worker, [one])
        self.settle(ledger, claim, failed(claim, delay_s=0.0))
        [claim] = self.carried(ledger, worker, [one])
        self.settle(ledger, claim, Delivered(sent(claim, number=2), Done()))
        return one.delivery_id

    def test_what_was_sent_is_kept_for_some_time_and_longer_while_a_delivery_is_open(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        ended = self.arrive(ledger, worker, "ended")
        [open_one] = self.send(ledger, id="open")
        assert self.prune_by(ledger, 24.0) == NOTHING
        clock.forward(2 * HOUR_S)

        first = [self.prune_by(ledger, 24.0, dry_run=dry) for dry in (True, False, False)]
        bodies = [ledger.part(WebhookLedger).deliveries.webhook_body(name) for name in ("ended", "open")]
        kept = self.delivery(ledger, ended)
        clock.forward(DAY_S)
        second = [self.prune_by(ledger, 24.0, dry_run=dry) for dry in (True, False, False)]

        assert first == [PrunedWebhooks(0, 1, 0, 0), PrunedWebhooks(0, 1, 0, 0), NOTHING]
        assert bodies == [None, BODY]
        assert second == [PrunedWebhooks(1, 0, 0, 0), PrunedWebhooks(1, 0, 1, 2), NOTHING]
        assert (kept.state, kept.type) == (DeliveryState.SUCCEEDED, "invoice.paid")
        assert ledger.part(WebhookLedger).deliveries.delivery(ended) is None
        assert ledger.part(WebhookLedger).deliveries.attempts(ended) == []
        assert self.delivery(ledger, open_one.delivery_id).state is DeliveryState.PENDING
        assert ledger.part(WebhookLedger).deliveries.webhook_body("open") == BODY

    def test_one_that_is_sent_anew_when_its_body_is_gone_has_it_again_for_who_has_come_since(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        self.arrive(ledger, worker, "ended")
        clock.forward(2 * HOUR_S)
        self.prune_by(ledger, 24.0)
        later = BODY.replace("12:00", "14:00")
        standing = self.send(ledger, id="ended", body=later)
        nothing_new = ledger.part(WebhookLedger).deliveries.webhook_body("ended")
        self.endpoint(ledger, "b")

        sent_to = self.send(ledger, id="ended", body=later)

        assert [one.created for one in standing] == [False]
        assert nothing_new is None
        assert [(one.endpoint_id, one.created) for one in sent_to] == [("a", False), ("b", True)]
        parcel = ledger.part(WebhookLedger).deliveries.parcels([sent_to[1].delivery_id])[sent_to[1].delivery_id]
        assert parcel.body == later
        assert parcel.age_s < HOUR_S, "it is sent now, as far as its endpoint's max_age_s is asked"
        assert self.prune_by(ledger, 24.0) == NOTHING
        assert ledger.part(WebhookLedger).deliveries.webhook_body("ended") == later

    def test_one_that_is_sent_once_more_is_open_again_and_stays(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        ended = self.arrive(ledger, worker, "ended")
        clock.forward(2 * HOUR_S)
        ledger.part(WebhookLedger).decisions.resend([ended], cause=Cause.REPLAY, who="ada", why="seen")

        assert self.prune_by(ledger, 1.0) == NOTHING
        assert len(ledger.part(WebhookLedger).deliveries.attempts(ended)) == 2
        assert ledger.part(WebhookLedger).deliveries.webhook_body("ended") == BODY

    def test_who_prunes_and_who_sends_once_more_at_once_leave_it_whole_or_remove_it(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        for number in range(6):
            ended = self.arrive(ledger, worker, f"w{number}")
            clock.forward(2 * HOUR_S)

            def act(who: int, one: str = ended) -> list[str]:
                if who:
                    return ledger.part(WebhookLedger).decisions.resend(
                        [one], cause=Cause.REPLAY, who="ada", why="seen"
                    )[0]
                self.prune_by(ledger, 1.0)
                return []

            _, again = at_once(2, act)

            if again:
                assert self.delivery(ledger, ended).state is DeliveryState.PENDING
                parcel = ledger.part(WebhookLedger).deliveries.parcels([ended])[ended]
                assert (parcel.body, len(ledger.part(WebhookLedger).deliveries.attempts(ended))) == (BODY, 2)
            else:
                assert ledger.part(WebhookLedger).deliveries.delivery(ended) is None
            for claim in self.carried(ledger, worker, self.send(ledger, id=f"w{number}")):
                self.settle(ledger, claim, Delivered(sent(claim, number=3), Done()))
            clock.forward(2 * HOUR_S)
            self.prune_by(ledger, 1.0)

    def test_no_more_than_the_limit_are_removed_at_once(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        for number in range(3):
            self.arrive(ledger, worker, f"w{number}")
        clock.forward(2 * HOUR_S)

        counts = [self.prune_by(ledger, 1.0, limit=2) for _ in range(3)]

        assert counts == [PrunedWebhooks(2, 0, 2, 4), PrunedWebhooks(1, 0, 1, 2), NOTHING]

    def test_what_is_removed_was_counted_before_and_the_rest_is_not_touched(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        self.arrive(ledger, worker, "old")
        gone = self.run_one(ledger, worker)
        self.settle(ledger, gone, Done())
        job = new_job(JobOptions(queue="default", chunk=10, window=4))
        ledger.part(JobLedger).jobs.begin_job(job)
        ledger.part(JobLedger).decisions.cancel_job(job.id, who="eve", why="?")
        clock.forward(1.5 * HOUR_S)
        self.arrive(ledger, worker, "young")
        [open_one] = self.send(ledger, id="open")
        [waits] = [one.id for one in ledger.tasks.record(new())]

        early = prunable_rows(ledger, HOURS)
        clock.forward(HOUR_S)
        foreseen = prunable_rows(ledger, HOURS)
        removed: Counter[str] = Counter()
        prune(ledger, HOURS, removed=removed)
        again: Counter[str] = Counter()
        prune(ledger, HOURS, removed=again)

        assert (early["webhook"], early["webhook_body"], early["delivery"]) == (0, 1, 0)
        assert {name: foreseen[name] for name in ("webhook", "webhook_body", "delivery", "delivery_attempt")} == {
            "webhook": 1,
            "webhook_body": 1,
            "delivery": 1,
            "delivery_attempt": 2,
        }
        assert foreseen["task"] >= 2
        assert dict(removed) == foreseen
        assert not any(again.values())
        assert not any(prunable_rows(ledger, HOURS).values())
        assert ledger.questions.get(gone.task_id) is None
        assert ledger.questions.get(waits) is not None
        assert self.delivery(ledger, open_one.delivery_id).state is DeliveryState.PENDING
