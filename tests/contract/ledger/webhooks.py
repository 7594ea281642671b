"""Webhooks: recorded once for everybody who wants them, with the caller's transaction, and followed to their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tests.contract.given import HOUR_S, Clock, at_once
from tests.contract.ledger.steps import Steps
from workq import codec
from workq.delivery import (
    Cause,
    DeliveryRow,
    DeliveryState,
    EndpointChange,
    EndpointOptions,
    EndpointRow,
    EndpointState,
    NewEndpoint,
    NewWebhook,
    SentTo,
    WhichDeliveries,
    limit_key,
)
from workq.errors import ConfigError, KeyConflict, NotFound, Refused
from workq.incarnation import Incarnation
from workq.ledger import Evidence, Ledger
from workq.task import Claim, Dead, Delivered, Done, Failed, Limit, Sent, Settlement, State

ALL = WhichDeliveries()
URL = "https://example.org/hooks"
BODY = '{"type":"invoice.paid","timestamp":"2026-11-23T12:00:00+00:00","data":{"id":17}}'


def webhook(event_type: str = "invoice.paid", **facts: Any) -> NewWebhook:
    """One to send, to the topic `acme`."""
    given: dict[str, Any] = {"topic": "acme", "data_hash": "0" * 64, "body": BODY} | facts
    return NewWebhook(id=given.pop("id", f"msg_{codec.new_task_id()}"), type=event_type, **given)


def sent(claim: Claim, *, endpoint_id: str = "a", number: int = 1, **facts: Any) -> Sent:
    """A try that has arrived, unless the facts say otherwise."""
    given: dict[str, Any] = {"status": 200, "error_class": None, "error": None} | facts
    return Sent(
        delivery_id=codec.decode(claim.payload)["a"][0],
        endpoint_id=endpoint_id,
        number=number,
        cause="scheduled",
        url=URL,
        duration_ms=12.5,
        **given,
    )


def failed(claim: Claim, *, delay_s: float = 5.0, **facts: Any) -> Delivered:
    """A try that has failed, and is tried again."""
    given: dict[str, Any] = {"status": 503, "error_class": "server_error", "error": "503", "answer": "sorry"} | facts
    return Delivered(sent(claim, **given), Failed(delay_s, "server_error: 503"))


class WebhooksContract(Steps):
    @staticmethod
    def endpoint(ledger: Ledger, endpoint_id: str = "a", **facts: Any) -> EndpointRow:
        given: dict[str, Any] = {"topic": "acme", "url": URL, "types": ("*",), "sealed": "{}"} | facts
        return ledger.add_endpoint(NewEndpoint(endpoint_id, options=given.pop("options", EndpointOptions()), **given))

    def send(self, ledger: Ledger, **facts: Any) -> list[SentTo]:
        return ledger.send(webhook(**facts))[0]

    def delivery(self, ledger: Ledger, delivery_id: str) -> DeliveryRow:
        found = ledger.delivery(delivery_id)
        assert found is not None
        return found

    def carried(self, ledger: Ledger, worker: Incarnation, to: Sequence[SentTo]) -> list[Claim]:
        """Their tasks, claimed."""
        return ledger.claim([self.delivery(ledger, one.delivery_id).task_id for one in to], by=worker.id)

    # -- endpoints

    def test_an_endpoint_reads_as_it_was_added_and_adding_it_again_is_the_same(self, ledger: Ledger) -> None:
        options = EndpointOptions(steps_s=(1.0, 2.5), max_age_s=60.0, concurrency=3, rate="5/s", total_s=7.0)
        added = self.endpoint(ledger, types=("invoice.*", "user.added"), options=options)

        assert (
            ledger.endpoint("a") == added == self.endpoint(ledger, types=("invoice.*", "user.added"), options=options)
        )
        assert (added.options, added.types) == (options, ("invoice.*", "user.added"))
        assert (added.state, added.failures, added.failing_since) == (EndpointState.ENABLED, 0, None)
        with pytest.raises(Refused, match="there already"):
            self.endpoint(ledger, url="https://example.org/other")
        assert ledger.endpoint("b") is None

    def test_endpoints_are_listed_by_their_names_a_page_at_a_time(self, ledger: Ledger) -> None:
        for name in ("c", "a", "b"):
            self.endpoint(ledger, name, topic="other" if name == "b" else "acme")

        assert [one.id for one in ledger.endpoints()] == ["a", "b", "c"]
        assert [one.id for one in ledger.endpoints(topic="acme")] == ["a", "c"]
        assert [one.id for one in ledger.endpoints(limit=1, after="a")] == ["b"]
        assert ledger.endpoints(state=EndpointState.DISABLED) == []

    def test_a_change_holds_for_what_was_sent_before(self, ledger: Ledger) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)

        ledger.change_endpoint(
            "a", EndpointChange(url="https://example.org/v2", options=EndpointOptions(concurrency=1, rate="1/s"))
        )

        parcel = ledger.parcels([one.delivery_id])[one.delivery_id]
        assert (parcel.url, parcel.options.concurrency) == ("https://example.org/v2", 1)
        task = self.task(ledger, self.delivery(ledger, one.delivery_id).task_id)
        assert task.limit == Limit(limit_key("a"), 1, "1/s")
        with pytest.raises(NotFound, match="no endpoint 'b'"):
            ledger.change_endpoint("b", EndpointChange(url=URL))

    def test_of_two_who_replace_what_is_sealed_one_is_refused(self, ledger: Ledger) -> None:
        self.endpoint(ledger)

        def replaced(number: int) -> str:
            try:
                ledger.change_endpoint("a", EndpointChange(sealed=f"{number}"), sealed_before="{}")
            except Refused:
                return "refused"
            return f"{number}"

        answers = at_once(4, replaced)

        assert answers.count("refused") == 3
        [winner] = set(answers) - {"refused"}
        found = ledger.endpoint("a")
        assert found is not None
        assert found.sealed == winner

    def test_an_endpoint_goes_with_its_deliveries_when_nothing_is_open(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        with pytest.raises(Refused, match="1 deliveries to 'a' are open"):
            ledger.remove_endpoint("a")
        [claim] = self.carried(ledger, worker, [one])
        self.settle(ledger, claim, Delivered(sent(claim), Done()))

        ledger.remove_endpoint("a")

        assert (ledger.endpoint("a"), ledger.delivery(one.delivery_id)) == (None, None)
        assert ledger.attempts(one.delivery_id) == []
        with pytest.raises(NotFound):
            ledger.remove_endpoint("a")

    # -- send

    def test_everybody_of_the_topic_who_wants_the_type_gets_it(self, ledger: Ledger) -> None:
        self.endpoint(ledger, "all")
        self.endpoint(ledger, "exact", types=("user.added", "invoice.paid"))
        self.endpoint(ledger, "prefix", types=("invoice.*",))
        self.endpoint(ledger, "longer", types=("invoice.paid.late", "invoice", "invoices.*"))
        self.endpoint(ledger, "other", topic="other")

        sent_to, hints = ledger.send(webhook())

        assert [one.endpoint_id for one in sent_to] == ["all", "exact", "prefix"]
        tasks = [self.task(ledger, hint.task_id) for hint in hints]
        assert {(task.name, task.queue, task.state) for task in tasks} == {("workq.webhook", "webhooks", State.READY)}
        rows = ledger.deliveries(ALL)
        assert {row.task_id for row in rows} == {task.id for task in tasks}
        assert {(row.state, row.cause, row.attempts, row.type) for row in rows} == {
            (DeliveryState.PENDING, Cause.SCHEDULED, 0, "invoice.paid")
        }

    def test_one_endpoint_gets_what_is_sent_to_it_whatever_it_wants(self, ledger: Ledger) -> None:
        self.endpoint(ledger, "a", types=("user.*",))
        self.endpoint(ledger, "b")

        assert [one.endpoint_id for one in self.send(ledger, topic=None, endpoint_id="a")] == ["a"]
        with pytest.raises(NotFound, match="no endpoint 'c'"):
            self.send(ledger, topic=None, endpoint_id="c")
        assert len(ledger.deliveries(ALL)) == 1

    def test_who_sends_the_same_again_gets_the_deliveries_that_stand_and_a_new_endpoint_its_own(
        self, ledger: Ledger
    ) -> None:
        self.endpoint(ledger, "a")
        [first] = self.send(ledger, id="paid-17")
        self.endpoint(ledger, "b")

        again, hints = ledger.send(webhook(id="paid-17", body=BODY.replace("12:00", "13:00")))

        assert again[0] == SentTo(first.delivery_id, "a", created=False)
        assert (again[1].endpoint_id, again[1].created) == ("b", True)
        assert len(hints) == 1
        assert ledger.webhook_body("paid-17") == BODY
        for other in (webhook("invoice.late", id="paid-17"), webhook(id="paid-17", data_hash="1" * 64)):
            with pytest.raises(KeyConflict, match="was sent before"):
                ledger.send(other)

    def test_of_many_who_send_the_same_at_once_one_delivery_is_made(self, ledger: Ledger) -> None:
        self.endpoint(ledger)

        answers = at_once(6, lambda _: self.send(ledger, id="paid-17"))

        assert len({one.delivery_id for [one] in answers}) == 1
        assert [one.created for [one] in answers].count(True) == 1
        assert len(ledger.tasks()) == len(ledger.deliveries(ALL)) == 1

    def test_it_is_sent_with_the_callers_transaction_or_not_at_all(self, ledger: Ledger, theirs: Engine) -> None:
        self.endpoint(ledger)
        with Session(theirs) as session:
            ledger.send(webhook(id="dropped"), connection=session)
            session.rollback()
            [kept], _ = ledger.send(webhook(id="kept"), connection=session)
            before = ledger.delivery(kept.delivery_id)
            session.commit()

        assert before is None
        assert [row.webhook_id for row in ledger.deliveries(ALL)] == ["kept"]
        assert (len(ledger.tasks()), ledger.webhook_body("dropped")) == (1, None)

    def test_the_callers_transaction_goes_on_after_an_error(self, ledger: Ledger, theirs: Engine) -> None:
        self.endpoint(ledger)
        self.send(ledger, id="paid-17")
        with theirs.begin() as connection:
            with pytest.raises(KeyConflict):
                ledger.send(webhook("other", id="paid-17"), connection=connection)
            with pytest.raises(NotFound):
                ledger.send(webhook(topic=None, endpoint_id="nobody"), connection=connection)
            [again], _ = ledger.send(webhook(id="paid-17"), connection=connection)
            ledger.send(webhook(id="kept"), connection=connection)

        assert not again.created
        assert {row.webhook_id for row in ledger.deliveries(ALL)} == {"paid-17", "kept"}
        assert ledger.webhook_body("kept") == BODY
        with pytest.raises(ConfigError, match="need an SQLAlchemy Connection"):
            ledger.send(webhook(), connection=object())

    # -- deliver

    def test_what_is_needed_to_send_is_read_at_once_and_what_is_gone_is_missing(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        self.endpoint(ledger, sealed="sealed")
        [one] = self.send(ledger, id="paid-17")
        clock.forward(10.0)

        parcels = ledger.parcels([one.delivery_id, codec.new_task_id()])

        assert set(parcels) == {one.delivery_id}
        parcel = parcels[one.delivery_id]
        assert (parcel.webhook_id, parcel.body, parcel.url, parcel.sealed) == ("paid-17", BODY, URL, "sealed")
        assert (parcel.attempts, parcel.state, parcel.cause) == (0, "enabled", "scheduled")
        assert 10.0 <= parcel.age_s < 70.0

    def test_each_attempt_is_recorded_with_the_settlement_of_its_task_and_once(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        [claim] = self.carried(ledger, worker, [one])
        first = Settlement(claim, failed(claim, is_cut=True))

        settled = [ledger.settle([first]), ledger.settle([first])]

        assert [result.state for [result] in settled] == [State.WAITING] * 2
        row = self.delivery(ledger, one.delivery_id)
        assert (row.state, row.attempts, row.status, row.error_class) == (
            *(DeliveryState.PENDING, 1),
            *(503, "server_error"),
        )
        assert row.ended_at is None
        assert row.next_at is not None
        clock.forward(6.0)
        [claim] = self.carried(ledger, worker, [one])
        self.settle(ledger, claim, Delivered(sent(claim, number=2, answer="ok\x00"), Done()))

        row = self.delivery(ledger, one.delivery_id)
        log = ledger.attempts(one.delivery_id)
        assert (row.state, row.attempts, row.error_class, row.next_at) == (DeliveryState.SUCCEEDED, 2, None, None)
        assert row.ended_at is not None
        assert [(a.number, a.status, a.error_class, a.answer, a.is_cut) for a in log] == [
            (1, 503, "server_error", "sorry", True),
            (2, 200, None, "ok\\x00", False),
        ]
        assert [(a.url, a.cause, a.duration_ms, a.next_at is None) for a in log] == [
            (URL, Cause.SCHEDULED, 12.5, False),
            (URL, Cause.SCHEDULED, 12.5, True),
        ]

    @pytest.mark.parametrize(
        ("facts", "state"),
        [({"error_class": "tls", "status": None}, "exhausted"), ({"error_class": "gone", "is_gone": True}, "gone")],
    )
    def test_one_that_is_not_tried_again_is_exhausted_or_gone(
        self, ledger: Ledger, worker: Incarnation, facts: dict[str, Any], state: str
    ) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        [claim] = self.carried(ledger, worker, [one])

        self.settle(ledger, claim, Delivered(sent(claim, **facts), Dead("exhausted: tls", "tls: no")))

        row = self.delivery(ledger, one.delivery_id)
        assert (row.state.value, row.error_class) == (state, facts["error_class"])
        assert row.ended_at is not None
        assert self.state(ledger, claim.task_id) is State.DEAD

    def test_an_attempt_that_comes_late_is_recorded_and_decides_nothing(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        [late] = self.carried(ledger, worker, [one])
        ledger.reap(worker.id, Evidence("killed", started={late.task_id: 1}))
        [claim] = self.claim_elsewhere(ledger, [late.task_id])
        self.settle(ledger, claim, Delivered(sent(claim), Done()))

        assert self.settle(ledger, late, failed(late)).state is None

        row = self.delivery(ledger, one.delivery_id)
        assert (row.state, row.status) == (DeliveryState.SUCCEEDED, 200)
        assert sorted(a.error_class or "-" for a in ledger.attempts(one.delivery_id)) == ["-", "server_error"]
        found = ledger.endpoint("a")
        assert found is not None
        assert found.failures == 0

    def test_one_whose_task_ended_without_its_handler_is_ended_by_a_sweep(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        crashed, cancelled, open_one = [self.send(ledger)[0] for _ in range(3)]
        for _ in range(4):
            for claim in self.claim_elsewhere(ledger, [crashed.delivery_id]):
                reaper = self.task(ledger, claim.task_id).worker
                assert reaper is not None
                ledger.reap(reaper, Evidence("SIGSEGV", started={claim.task_id: claim.attempt}))
        ledger.cancel(cancelled.delivery_id, reason="not wanted")

        counts = [ledger.tend_deliveries(limit=9, dry_run=True), *(ledger.tend_deliveries(limit=9) for _ in range(2))]

        assert counts == [2, 2, 0]
        dead, gone = self.delivery(ledger, crashed.delivery_id), self.delivery(ledger, cancelled.delivery_id)
        assert (dead.state, dead.error_class) == (DeliveryState.EXHAUSTED, "worker_lost")
        assert (gone.state, gone.error_class) == (DeliveryState.CANCELLED, None)
        assert dead.ended_at == self.task(ledger, crashed.delivery_id).settled_at
        assert self.delivery(ledger, open_one.delivery_id).state is DeliveryState.PENDING

    def test_what_was_sent_is_kept_for_some_time_and_longer_while_a_delivery_is_open(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        ended, open_one = (self.send(ledger, id=name)[0] for name in ("ended", "open"))
        [claim] = self.carried(ledger, worker, [ended])
        self.settle(ledger, claim, Delivered(sent(claim), Done()))
        assert ledger.prune_webhooks(limit=9, retention_s=HOUR_S) == 0
        clock.forward(2 * HOUR_S)

        first = [ledger.prune_webhooks(limit=9, retention_s=HOUR_S, dry_run=dry) for dry in (True, False, False)]
        bodies = [ledger.webhook_body(name) for name in ("ended", "open")]
        kept = self.delivery(ledger, ended.delivery_id)
        clock.forward(31 * 86_400.0)
        second = [ledger.prune_webhooks(limit=9, retention_s=HOUR_S) for _ in range(2)]

        assert (first, second, bodies) == ([1, 1, 0], [1, 0], [None, BODY])
        assert (kept.state, kept.type) == (DeliveryState.SUCCEEDED, "invoice.paid")
        assert ledger.delivery(ended.delivery_id) is None
        assert ledger.attempts(ended.delivery_id) == []
        assert self.delivery(ledger, open_one.delivery_id).state is DeliveryState.PENDING
        assert ledger.webhook_body("open") == BODY

    def test_failures_in_a_row_are_counted_until_one_arrives(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        self.endpoint(ledger, "b")
        both = self.send(ledger)
        claims = self.carried(ledger, worker, both)
        by_endpoint = {one.endpoint_id: claim for one in both for claim in claims if claim.task_id == one.delivery_id}
        a, b = by_endpoint["a"], by_endpoint["b"]
        ledger.settle([Settlement(a, failed(a)), Settlement(b, Delivered(sent(b, endpoint_id="b"), Done()))])
        first = ledger.endpoint("a")
        clock.forward(6.0)
        [claim] = self.carried(ledger, worker, [both[0]])
        self.settle(ledger, claim, failed(claim, number=2))

        second, other = ledger.endpoint("a"), ledger.endpoint("b")
        assert first is not None
        assert second is not None
        assert other is not None
        assert (first.failures, second.failures, other.failures) == (1, 2, 0)
        assert first.failing_since == second.failing_since
        assert first.failing_since is not None
        clock.forward(6.0)
        [claim] = self.carried(ledger, worker, [both[0]])
        self.settle(ledger, claim, Delivered(sent(claim, number=3), Done()))
        healed = ledger.endpoint("a")
        assert healed is not None
        assert (healed.failures, healed.failing_since) == (0, None)

    # -- rest, disable, hold

    def all_fail(self, ledger: Ledger, claims: Sequence[Claim], **facts: Any) -> None:
        ledger.settle([Settlement(claim, failed(claim, **facts)) for claim in claims])

    def test_an_endpoint_that_fails_again_and_again_rests_and_one_probe_at_a_time_opens_it(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger, options=EndpointOptions(concurrency=10))
        claims = self.carried(ledger, worker, [self.send(ledger)[0] for _ in range(10)])
        others = [self.send(ledger)[0] for _ in range(3)]
        self.all_fail(ledger, claims, delay_s=86_400.0)

        assert self.carried(ledger, worker, others) == []
        [row] = ledger.limits(key=limit_key("a"))
        assert (row.parked, row.closed_until is not None) == (3, True)
        assert not ledger.has_due(["webhooks"])
        assert ledger.admit([limit_key("a")]) == []
        clock.forward(6.0)
        [probe] = [hint.task_id for hint in ledger.admit([limit_key("a")])]
        [claim] = ledger.claim([probe, *(one.delivery_id for one in others)], by=worker.id)
        self.all_fail(ledger, [claim], delay_s=86_400.0)
        assert ledger.admit([limit_key("a")]) == []
        clock.forward(6.0)
        [second] = [hint.task_id for hint in ledger.admit([limit_key("a")])]
        [claim] = ledger.claim([second], by=worker.id)
        self.settle(ledger, claim, Delivered(sent(claim), Done()))

        assert len(ledger.admit([limit_key("a")])) == 1
        [row] = ledger.limits(key=limit_key("a"))
        assert row.closed_until is None

    def test_who_asks_for_less_is_left_alone_for_so_long(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        [claim] = self.carried(ledger, worker, self.send(ledger))
        self.all_fail(ledger, [claim], rest_s=60.0, status=429, error_class="throttled")
        others = self.send(ledger)

        assert self.carried(ledger, worker, others) == []
        clock.forward(59.0)
        assert ledger.admit([limit_key("a")]) == []
        clock.forward(2.0)
        assert [hint.task_id for hint in ledger.admit([limit_key("a")])] == [others[0].delivery_id]

    def test_what_waits_for_a_disabled_endpoint_is_held_until_a_person_releases_or_discards_it(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        before = [self.send(ledger)[0] for _ in range(3)]
        [running] = self.carried(ledger, worker, before[:1])
        ledger.disable_endpoint("a", who="eve", why="moving")
        at_once_held = ledger.delivery_counts(ALL)
        ledger.disable_endpoint("a", who="eve", why="again")
        during = self.send(ledger)
        assert self.carried(ledger, worker, [*before[1:], *during]) == []
        self.settle(ledger, running, Delivered(sent(running), Done()))
        [limit] = ledger.limits(key=limit_key("a"))
        assert limit.closed_until is not None, "what was under way has arrived, and a person has disabled it"

        held = [ledger.hold_deliveries(limit=9, dry_run=True), *(ledger.hold_deliveries(limit=9) for _ in range(2))]
        with pytest.raises(Refused, match="is disabled; first: workq webhook endpoint enable a"):
            ledger.release_held("a")
        count = ledger.enable_endpoint("a", who="eve", why="moved")
        after = self.send(ledger)

        assert at_once_held == {DeliveryState.PENDING: 1, DeliveryState.HELD: 2}
        assert held == [1, 1, 0]
        assert count == 3
        assert ledger.admit([limit_key("a")]) == []
        assert {self.delivery(ledger, one.delivery_id).state for one in [*before[1:], *during]} == {DeliveryState.HELD}
        assert len(self.carried(ledger, worker, after)) == 1
        released = [hint.task_id for hint in ledger.release_held("a", limit=2)]
        assert released == [one.delivery_id for one in before[1:]]
        assert [ledger.discard_held("a", why="old", limit=1) for _ in range(2)] == [1, 0]
        assert ledger.release_held("a") == []
        assert len(self.carried(ledger, worker, before[1:])) == 2
        gone = self.delivery(ledger, during[0].delivery_id)
        assert (gone.state, gone.ended_at is None) == (DeliveryState.CANCELLED, False)
        assert self.state(ledger, during[0].delivery_id) is State.CANCELLED
        row = ledger.endpoint("a")
        assert row is not None
        assert (row.state, row.who, row.why) == (EndpointState.ENABLED, "eve", "moved")
        for call in (ledger.disable_endpoint, ledger.enable_endpoint):
            with pytest.raises(NotFound):
                call("nobody", who="eve", why="")
        with pytest.raises(NotFound):
            ledger.release_held("nobody")

    def test_enabling_holds_first_what_no_sweep_has_held_yet(self, ledger: Ledger) -> None:
        self.endpoint(ledger)
        ledger.disable_endpoint("a", who="eve", why="moving")
        sent_to = self.send(ledger)

        assert ledger.enable_endpoint("a", who="eve", why="moved") == 1
        assert self.delivery(ledger, sent_to[0].delivery_id).state is DeliveryState.HELD

    def test_who_is_gone_is_disabled_at_once(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger)
        sent_to = [self.send(ledger)[0] for _ in range(2)]
        [claim] = self.carried(ledger, worker, sent_to[:1])
        self.settle(ledger, claim, Delivered(sent(claim, error_class="gone", is_gone=True), Dead("gone", "410")))

        row = ledger.endpoint("a")
        assert row is not None
        assert (row.state, row.who, row.why) == (EndpointState.DISABLED, "workq", "the receiver has answered 410 Gone")
        assert ledger.hold_deliveries(limit=9) == 1
        assert self.delivery(ledger, sent_to[1].delivery_id).state is DeliveryState.HELD

    def test_an_endpoint_where_nothing_arrives_for_days_is_disabled(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger, options=EndpointOptions(concurrency=30))
        claims = self.carried(ledger, worker, [self.send(ledger)[0] for _ in range(22)])
        states, whys = [], []
        for days, count in ((0.0, 1), (5.1, 17), (0.0, 1), (0.1, 1)):
            clock.forward(days * 86_400.0)
            self.all_fail(ledger, [claims.pop() for _ in range(count)])
            row = ledger.endpoint("a")
            assert row is not None
            states.append((row.failures, row.state.value))
            whys.append(row.why or "")

        assert states == [(1, "enabled"), (18, "enabled"), (19, "enabled"), (20, "disabled")]
        assert "nothing has arrived for 12" in whys[-1]

    # -- again

    def test_what_has_ended_is_sent_again_by_a_task_of_its_own_and_goes_on_counting(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        ended, arrived, open_one = [self.send(ledger)[0] for _ in range(3)]
        claims = self.carried(ledger, worker, [ended, arrived])
        by_id = {claim.task_id: claim for claim in claims}
        self.settle(
            ledger,
            by_id[ended.delivery_id],
            Delivered(sent(by_id[ended.delivery_id], error_class="tls", status=None), Dead("exhausted: tls", "tls")),
        )
        self.settle(ledger, by_id[arrived.delivery_id], Delivered(sent(by_id[arrived.delivery_id]), Done()))
        ids = [one.delivery_id for one in (ended, arrived, open_one)]

        found = ledger.resendable(ALL)
        again, hints = ledger.resend(ids, cause=Cause.REPLAY)
        twice, none = ledger.resend(ids, cause=Cause.REPLAY)

        assert sorted(again) == sorted(found) == sorted(ids[:2])
        assert (twice, none) == ([], [])
        assert ledger.resendable(ALL) == []
        rows = [self.delivery(ledger, one) for one in ids]
        assert [(row.state, row.cause.value, row.attempts) for row in rows] == [
            (DeliveryState.PENDING, "replay", 1),
            (DeliveryState.PENDING, "replay", 1),
            (DeliveryState.PENDING, "scheduled", 0),
        ]
        assert {hint.task_id for hint in hints} == {row.task_id for row in rows[:2]}
        assert not {row.task_id for row in rows[:2]} & set(ids)
        [claim] = self.carried(ledger, worker, [ended])
        self.settle(ledger, claim, Delivered(sent(claim, number=2), Done()))
        assert [one.number for one in ledger.attempts(ended.delivery_id)] == [1, 2]
        assert self.delivery(ledger, ended.delivery_id).state is DeliveryState.SUCCEEDED

    def test_what_cannot_be_sent_is_not_sent_again(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        self.endpoint(ledger)
        self.endpoint(ledger, "b")
        sent_to = self.send(ledger)
        claims = self.carried(ledger, worker, sent_to)
        endpoints = {one.delivery_id: one.endpoint_id for one in sent_to}
        for claim in claims:
            self.settle(ledger, claim, Delivered(sent(claim, endpoint_id=endpoints[claim.task_id]), Done()))
        ledger.disable_endpoint("b", who="eve", why="")

        assert [endpoints[one] for one in ledger.resendable(ALL)] == ["a"]
        clock.forward(2 * HOUR_S)
        ledger.prune_webhooks(limit=9, retention_s=HOUR_S)
        assert ledger.resend(list(endpoints), cause=Cause.MANUAL) == ([], [])

    def test_deliveries_are_found_by_what_became_of_them(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        self.endpoint(ledger, "b", types=("user.*",))
        paid = self.send(ledger, id="paid-17")
        clock.forward(3600.0)
        user = ledger.send(webhook("user.added"))[0]
        [claim] = self.carried(ledger, worker, paid)
        self.settle(ledger, claim, failed(claim, delay_s=86_400.0))

        def found(**facts: Any) -> set[str]:
            return {one.id for one in ledger.deliveries(WhichDeliveries(**facts))}

        of_paid, of_user = {one.delivery_id for one in paid}, {one.delivery_id for one in user}
        assert found() == of_paid | of_user
        assert found(endpoint_id="b") == {one.delivery_id for one in user if one.endpoint_id == "b"}
        assert found(webhook_id="paid-17") == found(type="invoice.*") == found(type="invoice.paid") == of_paid
        assert found(type="user.*") == found(since_s=1800.0) == of_user
        assert found(until_s=1800.0) == found(status=503) == found(error_class="server_error") == of_paid
        assert found(state=DeliveryState.SUCCEEDED) == found(type="invoice") == set()
        assert ledger.delivery_counts(ALL) == {DeliveryState.PENDING: 3}
        assert len(ledger.deliveries(ALL, limit=2)) == 2
        newest = ledger.deliveries(ALL, limit=1)[0].id
        assert newest == max(of_paid | of_user)
        assert {one.id for one in ledger.deliveries(ALL, after=newest)} == (of_paid | of_user) - {newest}
        assert ledger.delivery("nobody") is None
