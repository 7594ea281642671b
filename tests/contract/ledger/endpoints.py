"""Endpoints: kept as people say, and how they fare: failures are counted, they rest, and are disabled."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from tests.contract.given import Clock, at_once
from tests.contract.ledger.webhook_steps import BY, URL, WebhookSteps, failed, sent
from workq.errors import NotFound, Refused, WorkqError
from workq.ledger.sql import Ledger
from workq.limits.ledger.limits import Limits
from workq.values.incarnation import Incarnation
from workq.values.task import Dead, Delivered, Done, Limit, Settlement
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import (
    DeliveryState,
    EndpointChange,
    EndpointOptions,
    EndpointState,
    WhichDeliveries,
    limit_key,
)


class EndpointsContract(WebhookSteps):
    def test_an_endpoint_reads_as_it_was_added_and_adding_it_again_is_the_same(self, ledger: Ledger) -> None:
        options = EndpointOptions(steps_s=(1.0, 2.5), max_age_s=60.0, concurrency=3, rate="5/s", total_s=7.0)
        added = self.endpoint(ledger, types=("invoice.*", "user.added"), options=options)

        assert (
            ledger.part(WebhookLedger).endpoints.endpoint("a")
            == added
            == self.endpoint(ledger, types=("invoice.*", "user.added"), options=options)
        )
        assert (added.options, added.types) == (options, ("invoice.*", "user.added"))
        assert (added.state, added.failures, added.failing_since) == (EndpointState.ENABLED, 0, None)
        with pytest.raises(Refused, match="there already"):
            self.endpoint(ledger, url="https://example.org/other")
        assert ledger.part(WebhookLedger).endpoints.endpoint("b") is None

    def test_endpoints_are_listed_by_their_names_a_page_at_a_time(self, ledger: Ledger) -> None:
        for name in ("c", "a", "b"):
            self.endpoint(ledger, name, topic="other" if name == "b" else "acme")

        assert [one.id for one in ledger.part(WebhookLedger).endpoints.all()] == ["a", "b", "c"]
        assert [one.id for one in ledger.part(WebhookLedger).endpoints.all(topic="acme")] == ["a", "c"]
        assert [one.id for one in ledger.part(WebhookLedger).endpoints.all(limit=1, after="a")] == ["b"]
        assert ledger.part(WebhookLedger).endpoints.all(state=EndpointState.DISABLED) == []

    def test_a_change_holds_for_what_was_sent_before(self, ledger: Ledger) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)

        ledger.part(WebhookLedger).endpoints.change_endpoint(
            "a",
            EndpointChange(url="https://example.org/v2", options=EndpointOptions(concurrency=1, rate="1/s")),
            what="edited",
            **BY,
        )

        parcel = ledger.part(WebhookLedger).deliveries.parcels([one.delivery_id])[one.delivery_id]
        assert (parcel.url, parcel.options.concurrency) == ("https://example.org/v2", 1)
        task = self.task(ledger, self.delivery(ledger, one.delivery_id).task_id)
        assert task.limit == Limit(limit_key("a"), 1, "1/s")
        with pytest.raises(NotFound, match="no endpoint 'b'"):
            ledger.part(WebhookLedger).endpoints.change_endpoint("b", EndpointChange(url=URL), what="edited", **BY)

    def test_of_two_who_replace_what_is_sealed_one_is_refused(self, ledger: Ledger) -> None:
        self.endpoint(ledger)

        def replaced(number: int) -> str:
            try:
                ledger.part(WebhookLedger).endpoints.change_endpoint(
                    "a", EndpointChange(sealed=f"{number}"), sealed_before="{}", what="rotated", **BY
                )
            except Refused:
                return "refused"
            return f"{number}"

        answers = at_once(4, replaced)

        assert answers.count("refused") == 3
        assert [one[0] for one in self.decided(ledger)] == ["endpoint a added", "endpoint a rotated"]
        [winner] = set(answers) - {"refused"}
        found = ledger.part(WebhookLedger).endpoints.endpoint("a")
        assert found is not None
        assert found.sealed == winner

    def test_an_endpoint_goes_with_its_deliveries_when_nothing_is_open(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        with pytest.raises(Refused, match="1 delivery to 'a' is open"):
            ledger.part(WebhookLedger).endpoints.remove_endpoint("a", **BY)
        [claim] = self.carried(ledger, worker, [one])
        self.settle(ledger, claim, Delivered(sent(claim), Done()))

        ledger.part(WebhookLedger).endpoints.remove_endpoint("a", **BY)

        assert (
            ledger.part(WebhookLedger).endpoints.endpoint("a"),
            ledger.part(WebhookLedger).deliveries.delivery(one.delivery_id),
        ) == (None, None)
        assert ledger.part(WebhookLedger).deliveries.attempts(one.delivery_id) == []
        with pytest.raises(NotFound):
            ledger.part(WebhookLedger).endpoints.remove_endpoint("a", **BY)

    def test_what_a_person_has_decided_about_an_endpoint_outlives_it(self, ledger: Ledger) -> None:
        part = ledger.part(WebhookLedger)
        edit = EndpointChange(url=f"{URL}/v2", types=("invoice.*",), options=EndpointOptions(rate="1/s"))
        twice = range(2)  # again, as after a commit that was lost: nothing changes, and nothing is told

        for _ in twice:
            self.endpoint(ledger)
        for _ in twice:
            part.endpoints.change_endpoint("a", edit, what="edited", who="ann", why="they have moved")
        for _ in twice:
            part.endpoints.change_endpoint(
                "a", EndpointChange(sealed="{1}"), what="rotated", who="bob", why="a leak", sealed_before="{}"
            )
        for _ in twice:
            part.decisions.disable_endpoint("a", who="ann", why="they are away")
        for _ in twice:
            part.decisions.enable_endpoint("a", who="bob", why="they are back")
        part.endpoints.remove_endpoint("a", who="ann", why="they have left")

        assert part.endpoints.endpoint("a") is None
        assert self.decided(ledger) == [
            ("endpoint a added", "eve@host", "a test"),
            ("endpoint a edited", "ann", "they have moved"),
            ("endpoint a rotated", "bob", "a leak"),
            ("endpoint a disabled", "ann", "they are away"),
            ("endpoint a enabled", "bob", "they are back"),
            ("endpoint a removed", "ann", "they have left"),
        ]

    def test_a_refused_decision_about_an_endpoint_leaves_no_event(self, ledger: Ledger) -> None:
        part = ledger.part(WebhookLedger)
        self.endpoint(ledger)
        self.send(ledger)
        before = self.decided(ledger)
        change, stale = part.endpoints.change_endpoint, EndpointChange(sealed="{1}")
        calls: list[Callable[[], object]] = [
            partial(self.endpoint, ledger, url="https://example.org/other"),
            partial(change, "b", EndpointChange(url=URL), what="edited", **BY),
            partial(change, "a", stale, what="rotated", sealed_before="{2}", **BY),
            partial(part.decisions.disable_endpoint, "b", **BY),
            partial(part.decisions.enable_endpoint, "b", **BY),
            partial(part.endpoints.remove_endpoint, "a", **BY),
            partial(part.endpoints.remove_endpoint, "b", **BY),
        ]

        for call in calls:
            with pytest.raises((NotFound, Refused)):
                call()

        assert self.decided(ledger) == before == [("endpoint a added", "eve@host", "a test")]

    def test_a_decision_about_an_endpoint_stands_together_with_its_event_or_not_at_all(self, ledger: Ledger) -> None:
        part = ledger.part(WebhookLedger)
        for name in ("a", "b"):
            self.endpoint(ledger, name)
        part.decisions.disable_endpoint("b", **BY)
        before = self.everything(ledger.database)
        calls: list[Callable[[], object]] = [
            partial(self.endpoint, ledger, "c"),
            partial(part.endpoints.change_endpoint, "a", EndpointChange(topic="other"), what="edited", **BY),
            partial(part.decisions.disable_endpoint, "a", **BY),
            partial(part.decisions.enable_endpoint, "b", **BY),
            partial(part.endpoints.remove_endpoint, "a", **BY),
        ]

        with self.without_events(ledger.database):
            for call in calls:
                with pytest.raises(WorkqError, match=ledger.database.tables.event.name):
                    call()

        assert self.everything(ledger.database) == before

    def test_failures_in_a_row_are_counted_until_one_arrives(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        self.endpoint(ledger, "b")
        both = self.send(ledger)
        claims = self.carried(ledger, worker, both)
        by_endpoint = {one.endpoint_id: claim for one in both for claim in claims if claim.task_id == one.delivery_id}
        a, b = by_endpoint["a"], by_endpoint["b"]
        ledger.outcomes.settle([Settlement(a, failed(a)), Settlement(b, Delivered(sent(b, endpoint_id="b"), Done()))])
        first = ledger.part(WebhookLedger).endpoints.endpoint("a")
        clock.forward(6.0)
        [claim] = self.carried(ledger, worker, [both[0]])
        self.settle(ledger, claim, failed(claim, number=2))

        second, other = (
            ledger.part(WebhookLedger).endpoints.endpoint("a"),
            ledger.part(WebhookLedger).endpoints.endpoint("b"),
        )
        assert first is not None
        assert second is not None
        assert other is not None
        assert (first.failures, second.failures, other.failures) == (1, 2, 0)
        assert first.failing_since == second.failing_since
        assert first.failing_since is not None
        clock.forward(6.0)
        [claim] = self.carried(ledger, worker, [both[0]])
        self.settle(ledger, claim, Delivered(sent(claim, number=3), Done()))
        healed = ledger.part(WebhookLedger).endpoints.endpoint("a")
        assert healed is not None
        assert (healed.failures, healed.failing_since) == (0, None)

    def test_an_endpoint_that_fails_again_and_again_rests_and_one_probe_at_a_time_opens_it(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger, options=EndpointOptions(concurrency=10))
        claims = self.carried(ledger, worker, [self.send(ledger)[0] for _ in range(10)])
        others = [self.send(ledger)[0] for _ in range(3)]
        self.all_fail(ledger, claims, delay_s=86_400.0)

        assert self.carried(ledger, worker, others) == []
        [row] = ledger.part(Limits).all(key=limit_key("a"))
        assert (row.parked, row.closed_until is not None) == (3, True)
        assert not ledger.questions.has_due(["webhooks"])
        assert ledger.part(Limits).admit([limit_key("a")]) == []
        clock.forward(6.0)
        [probe] = [hint.task_id for hint in ledger.part(Limits).admit([limit_key("a")])]
        [claim] = ledger.claims.claim([probe, *(one.delivery_id for one in others)], by=worker.id)
        self.all_fail(ledger, [claim], delay_s=86_400.0)
        assert ledger.part(Limits).admit([limit_key("a")]) == []
        clock.forward(6.0)
        [second] = [hint.task_id for hint in ledger.part(Limits).admit([limit_key("a")])]
        [claim] = ledger.claims.claim([second], by=worker.id)
        self.settle(ledger, claim, Delivered(sent(claim), Done()))

        assert len(ledger.part(Limits).admit([limit_key("a")])) == 1
        [row] = ledger.part(Limits).all(key=limit_key("a"))
        assert row.closed_until is None

    def test_who_asks_for_less_is_left_alone_for_so_long(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        [claim] = self.carried(ledger, worker, self.send(ledger))
        self.all_fail(ledger, [claim], rest_s=60.0, status=429, error_class="throttled")
        others = self.send(ledger)

        assert self.carried(ledger, worker, others) == []
        clock.forward(30.0)
        assert ledger.part(Limits).admit([limit_key("a")]) == []
        clock.forward(31.0)
        assert [hint.task_id for hint in ledger.part(Limits).admit([limit_key("a")])] == [others[0].delivery_id]

    def test_until_when_an_endpoint_rests_is_told_and_nothing_of_it_is_said_to_come_earlier(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        self.endpoint(ledger, "other", topic="other")
        [elsewhere] = self.send(ledger, topic="other")
        [asking], [waiting], [last], [new] = (self.send(ledger) for _ in range(4))
        claims = self.carried(ledger, worker, [asking, waiting, last])
        self.all_fail(ledger, claims[1:2], delay_s=5.0)
        self.all_fail(ledger, claims[2:], delay_s=500.0)
        self.all_fail(ledger, claims[:1], delay_s=60.0, rest_s=60.0, status=429, error_class="throttled")

        (mine, other), now = ledger.part(WebhookLedger).endpoints.all(), ledger.questions.clock()

        assert mine == ledger.part(WebhookLedger).endpoints.endpoint("a")
        assert mine.rests_until is not None
        assert 50.0 < (mine.rests_until - now).total_seconds() <= 60.0
        assert other.rests_until is None
        coming = [self.delivery(ledger, one.delivery_id).next_at for one in (asking, waiting, last, new, elsewhere)]
        assert coming[1] == coming[3] == mine.rests_until
        assert [None if one is None else one >= mine.rests_until for one in coming] == [True, True, True, True, None]
        assert coming[2] is not None
        assert coming[2] > mine.rests_until + timedelta(seconds=300)
        listed = ledger.part(WebhookLedger).deliveries.all(WhichDeliveries())
        assert {one.id: one.next_at for one in listed} == {
            one.delivery_id: at for one, at in zip((asking, waiting, last, new, elsewhere), coming, strict=True)
        }
        clock.forward(61.0)
        rested = ledger.part(WebhookLedger).endpoints.endpoint("a")
        assert rested is not None
        assert rested.rests_until is None
        ledger.part(WebhookLedger).decisions.disable_endpoint("a", who="ann", why="they are moving")
        disabled = ledger.part(WebhookLedger).endpoints.endpoint("a")
        assert disabled is not None
        assert disabled.rests_until is None

    @pytest.mark.parametrize("is_together", [True, False])
    def test_who_asks_for_less_is_left_alone_whatever_arrives_of_what_was_under_way(
        self, ledger: Ledger, worker: Incarnation, clock: Clock, is_together: bool
    ) -> None:
        self.endpoint(ledger)
        asking, arriving = self.carried(ledger, worker, [self.send(ledger)[0] for _ in range(2)])
        asked = Settlement(asking, failed(asking, rest_s=60.0, status=429, error_class="throttled"))
        arrived = Settlement(arriving, Delivered(sent(arriving), Done()))
        for group in [[asked, arrived]] if is_together else [[asked], [arrived]]:
            ledger.outcomes.settle(group)
        others = [self.send(ledger)[0] for _ in range(2)]

        assert self.carried(ledger, worker, others) == []
        clock.forward(30.0)
        assert ledger.part(Limits).admit([limit_key("a")]) == []
        clock.forward(31.0)
        [probe] = ledger.part(Limits).admit([limit_key("a")])
        [claim] = ledger.claims.claim([probe.task_id], by=worker.id)
        self.settle(ledger, claim, Delivered(sent(claim), Done()))
        [limit] = ledger.part(Limits).all(key=limit_key("a"))
        assert limit.closed_until is None

    def test_who_is_gone_is_disabled_at_once(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger)
        sent_to = [self.send(ledger)[0] for _ in range(2)]
        [claim] = self.carried(ledger, worker, sent_to[:1])
        self.settle(ledger, claim, Delivered(sent(claim, error_class="gone", is_gone=True), Dead("gone", "410")))

        row = ledger.part(WebhookLedger).endpoints.endpoint("a")
        assert row is not None
        assert (row.state, row.who, row.why) == (EndpointState.DISABLED, "workq", "the receiver has answered 410 Gone")
        assert [one[0] for one in self.decided(ledger)] == ["endpoint a added"], "no person has disabled it"
        assert ledger.part(WebhookLedger).decisions.hold_deliveries(limit=9) == 1
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
            row = ledger.part(WebhookLedger).endpoints.endpoint("a")
            assert row is not None
            states.append((row.failures, row.state.value))
            whys.append(row.why or "")

        assert states == [(1, "enabled"), (18, "enabled"), (19, "enabled"), (20, "disabled")]
        assert "nothing has arrived for 12" in whys[-1]
        assert "endpoint a disabled" not in [one[0] for one in self.decided(ledger)]

    def test_many_failures_within_days_disable_nobody_yet(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger, options=EndpointOptions(concurrency=40))
        claims = self.carried(ledger, worker, [self.send(ledger)[0] for _ in range(32)])
        states = []
        for days, count in ((0.0, 1), (4.9, 30), (0.2, 1)):
            clock.forward(days * 86_400.0)
            self.all_fail(ledger, [claims.pop() for _ in range(count)])
            row = ledger.part(WebhookLedger).endpoints.endpoint("a")
            assert row is not None
            states.append((row.failures, row.state.value))

        assert states == [(1, "enabled"), (31, "enabled"), (32, "disabled")]
