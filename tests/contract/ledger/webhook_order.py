"""Webhooks in order: an endpoint gets them one after the other, all of them, or those of each key."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from tests.contract.given import Clock, at_once
from tests.contract.ledger.webhook_steps import BY, URL, WebhookSteps, failed, sent, webhook
from workq.ledger import Evidence
from workq.ledger.sql import Ledger
from workq.limits.ledger.limits import Limits
from workq.order.ledger.order import Order
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Dead, Delivered, Done, Outcome, State
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import (
    ORDER_KEY_MAX,
    Cause,
    DeliveryState,
    EndpointChange,
    EndpointOptions,
    Ordered,
    limit_key,
)

BY_ENDPOINT = EndpointOptions(ordered=Ordered.ENDPOINT)
BY_KEY = EndpointOptions(ordered=Ordered.KEY)
LINE = "webhook:a"


class WebhookOrderContract(WebhookSteps):
    def send_one(self, ledger: Ledger, **facts: Any) -> str:
        """To the only endpoint; the id of its delivery."""
        [one] = self.send(ledger, **facts)
        return one.delivery_id

    def their_turn(self, ledger: Ledger, worker: Incarnation, ids: list[str]) -> list[Claim]:
        """Those of these deliveries whose turn it is, claimed."""
        claims = ledger.claims.claim([self.delivery(ledger, one).task_id for one in ids], by=worker.id)
        return sorted(claims, key=lambda claim: ids.index(self.carries(claim)))

    def carries(self, claim: Claim) -> str:
        """The delivery that a claimed task sends."""
        return sent(claim).delivery_id

    def ended(self, ledger: Ledger, claim: Claim, outcome: Outcome | None = None) -> None:
        """It has arrived, unless it ended otherwise; who comes next follows."""
        self.settle(ledger, claim, outcome or Delivered(sent(claim), Done()))
        assert claim.order_key is not None
        ledger.part(Order).advance([claim.order_key])

    def arrivals(self, ledger: Ledger, worker: Incarnation, ids: list[str]) -> list[str]:
        """The order in which these arrive, when each is sent as soon as its turn has come, and never two at once."""
        arrived = []
        while claims := self.their_turn(ledger, worker, ids):
            [claim] = claims
            arrived.append(self.carries(claim))
            self.ended(ledger, claim)
        return arrived

    # -- the order

    def test_an_endpoint_gets_one_after_the_other_and_others_do_not_wait_for_it(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger, "a", options=BY_ENDPOINT)
        self.endpoint(ledger, "b")
        both = [ledger.part(WebhookLedger).sent.send(webhook()) for _ in range(3)]
        to = {
            name: [one.delivery_id for sent_to, _ in both for one in sent_to if one.endpoint_id == name]
            for name in ("a", "b")
        }
        hinted = [{hint.task_id for hint in hints} for _, hints in both]

        free = self.their_turn(ledger, worker, to["b"])

        assert hinted == [{to["a"][0], to["b"][0]}, {to["b"][1]}, {to["b"][2]}]
        assert len(free) == 3
        assert self.arrivals(ledger, worker, to["a"]) == to["a"]
        assert ledger.part(Order).sequences() == []

    def test_the_order_is_that_of_each_key_and_what_has_none_waits_for_nobody(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger, options=BY_KEY)
        x = [self.send_one(ledger, order_key="x") for _ in range(2)]
        y = [self.send_one(ledger, order_key="y") for _ in range(2)]
        free = [self.send_one(ledger) for _ in range(2)]

        claims = self.their_turn(ledger, worker, [*x, *y, *free])

        assert [self.carries(claim) for claim in claims] == [x[0], y[0], *free]
        assert [claim.order_key for claim in claims] == [f"{LINE}:x", f"{LINE}:y", None, None]
        self.ended(ledger, claims[1])
        assert [self.carries(claim) for claim in self.their_turn(ledger, worker, [*x, *y])] == [y[1]]
        assert [self.delivery(ledger, one).order_key for one in (x[0], free[0])] == ["x", None]

    def test_an_endpoint_that_keeps_no_order_does_not_mind_a_key(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger)
        ids = [self.send_one(ledger, order_key="x") for _ in range(2)]

        assert len(self.their_turn(ledger, worker, ids)) == 2

    def test_the_longest_names_have_room_and_endpoints_do_not_share_a_line(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        names = ["e" * 63 + end for end in "12"]
        for name in names:
            self.endpoint(ledger, name, options=BY_KEY)
        key = "ü" * ORDER_KEY_MAX
        ids = [one.delivery_id for _ in range(2) for one in self.send(ledger, order_key=key)]

        first = self.their_turn(ledger, worker, ids)

        assert [self.carries(claim) for claim in first] == ids[:2]
        self.ended(ledger, first[0])
        assert [self.carries(claim) for claim in self.their_turn(ledger, worker, ids)] == [ids[2]]

    def test_one_that_is_sent_again_keeps_the_key_that_it_had_first(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger, options=BY_KEY)
        self.send(ledger, id="paid-17", order_key="x")
        self.endpoint(ledger, "b", options=BY_KEY)

        old, new = self.send(ledger, id="paid-17", order_key="y")

        assert (old.created, new.created) == (False, True)
        assert sorted(row.key for row in ledger.part(Order).sequences()) == [f"{LINE}:x", "webhook:b:x"]

    def test_another_order_holds_for_what_is_sent_from_then_on(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger)
        before = [self.send_one(ledger) for _ in range(2)]
        ledger.part(WebhookLedger).endpoints.change_endpoint(
            "a", EndpointChange(options=BY_ENDPOINT), what="edited", **BY
        )
        after = [self.send_one(ledger) for _ in range(2)]

        turns = [self.carries(claim) for claim in self.their_turn(ledger, worker, [*before, *after])]

        assert turns == [*before, after[0]]

    def test_what_is_rolled_back_takes_no_place(self, ledger: Ledger, worker: Incarnation, theirs: Engine) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        with theirs.connect() as connection:
            ledger.part(WebhookLedger).sent.send(webhook(), connection=connection)
            connection.rollback()

        assert ledger.part(Order).sequences() == []
        assert len(self.their_turn(ledger, worker, [self.send_one(ledger)])) == 1

    # -- what blocks, and what does not

    def test_one_that_waits_for_its_retry_blocks_those_behind_it(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        ids = [self.send_one(ledger) for _ in range(2)]
        [claim] = self.their_turn(ledger, worker, ids)
        self.ended(ledger, claim, failed(claim, delay_s=300.0))

        meanwhile = self.their_turn(ledger, worker, ids)
        clock.forward(301.0)

        assert meanwhile == []
        assert self.arrivals(ledger, worker, ids) == ids

    @pytest.mark.parametrize(
        ("facts", "state"),
        [
            ({"error_class": "tls", "status": None}, DeliveryState.EXHAUSTED),
            ({"error_class": "gone", "is_gone": True}, DeliveryState.GONE),
        ],
    )
    def test_one_that_has_failed_for_good_lets_the_next_one_go(
        self, ledger: Ledger, worker: Incarnation, facts: dict[str, Any], state: DeliveryState
    ) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        ids = [self.send_one(ledger) for _ in range(3)]
        [claim] = self.their_turn(ledger, worker, ids)
        self.ended(ledger, claim, Delivered(sent(claim, **facts), Dead("no", "no")))
        if state is DeliveryState.GONE:  # and its endpoint was disabled
            ledger.part(WebhookLedger).decisions.enable_endpoint("a", who="eve", why="mended")
            ledger.part(WebhookLedger).decisions.release_held("a", who="ada", why="seen")

        assert self.delivery(ledger, ids[0]).state is state
        assert self.arrivals(ledger, worker, ids) == ids[1:]

    def test_those_that_are_cancelled_are_passed_over_by_the_sweep(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        ids = [self.send_one(ledger) for _ in range(4)]
        for one in ids[:2]:
            ledger.decisions.cancel(one, who="ada", why="not wanted")

        blocked = self.their_turn(ledger, worker, ids)
        hints = ledger.part(Order).advance(ledger.part(Order).ended_heads(limit=9))

        assert blocked == []
        assert [hint.task_id for hint in hints] == [ids[2]]
        assert ledger.part(WebhookLedger).counter.tend_deliveries(limit=9) == 2
        assert self.arrivals(ledger, worker, ids) == ids[2:]

    def test_one_whose_worker_was_killed_is_sent_again_before_the_next(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger, options=EndpointOptions(ordered=Ordered.ENDPOINT, concurrency=1))
        ids = [self.send_one(ledger) for _ in range(3)]
        [killed] = self.claim_elsewhere(ledger, ids)
        holder = self.task(ledger, killed.task_id).worker
        assert holder is not None
        ledger.workers.reap(holder, Evidence("SIGKILL", started={killed.task_id: 1}))

        assert ledger.part(Order).advance([LINE]) == []
        assert self.arrivals(ledger, worker, ids) == ids

    # -- with the limit of the endpoint

    def test_a_limit_parks_the_first_of_a_line_and_nobody_overtakes_it_there(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger, options=EndpointOptions(ordered=Ordered.KEY, concurrency=1))
        x = [self.send_one(ledger, order_key="x") for _ in range(2)]
        y = [self.send_one(ledger, order_key="y") for _ in range(2)]

        [running] = self.their_turn(ledger, worker, [*x, *y])
        self.ended(ledger, running)
        none = self.their_turn(ledger, worker, [*x, *y])
        order = []
        while hints := ledger.part(Limits).admit([limit_key("a")]):
            [claim] = ledger.claims.claim([hint.task_id for hint in hints], by=worker.id)
            order.append(self.carries(claim))
            self.ended(ledger, claim)
            self.their_turn(ledger, worker, [*x, *y])  # who has come to the front asks for a permit, and is parked

        assert self.carries(running) == x[0]
        assert none == [], "y was there first: x has its turn in its own order only"
        assert [one for one in order if one in x] == x[1:]
        assert [one for one in order if one in y] == y
        assert ledger.part(Order).sequences() == []

    def test_an_endpoint_that_rests_goes_on_where_it_was(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        ids = [self.send_one(ledger) for _ in range(3)]
        [claim] = self.their_turn(ledger, worker, ids)
        self.ended(
            ledger,
            claim,
            failed(claim, delay_s=60.0, rest_s=120.0, status=429, error_class="throttled"),
        )
        clock.forward(61.0)
        resting = self.their_turn(ledger, worker, ids)
        [line] = ledger.part(Order).sequences()
        clock.forward(60.0)
        [hint] = ledger.part(Limits).admit([limit_key("a")])

        assert resting == []
        assert (line.head, line.behind) == (ids[0], 2)
        assert hint.task_id == ids[0]
        assert self.arrivals(ledger, worker, ids) == ids

    # -- held, and sent again

    def test_what_is_held_keeps_its_place_and_what_is_sent_later_waits_behind_it(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        ids = [self.send_one(ledger) for _ in range(4)]
        [running] = self.their_turn(ledger, worker, ids)
        ledger.part(WebhookLedger).decisions.disable_endpoint("a", who="eve", why="moving")
        self.ended(ledger, running)
        ledger.part(WebhookLedger).decisions.enable_endpoint("a", who="eve", why="moved")
        later = self.send_one(ledger)

        held = self.their_turn(ledger, worker, [*ids, later])
        first, hints = ledger.part(WebhookLedger).decisions.release_held("a", who="ada", why="seen", limit=1)
        is_marked = self.marked(ledger, hints)
        second, none = ledger.part(WebhookLedger).decisions.release_held("a", who="ada", why="seen", limit=1)
        front = self.their_turn(ledger, worker, [*ids, later])
        self.ended(ledger, front[0])
        [claim] = self.their_turn(ledger, worker, [*ids, later])
        self.ended(ledger, claim)
        still_held = self.their_turn(ledger, worker, [*ids, later])
        ledger.part(WebhookLedger).decisions.release_held("a", who="ada", why="seen")

        assert held == []
        assert (first, is_marked) == (1, [ids[1]])
        assert (second, none) == (1, [])
        assert [self.carries(one) for one in (*front, claim)] == ids[1:3]
        assert still_held == []
        assert self.arrivals(ledger, worker, [*ids, later]) == [ids[3], later]

    def test_what_is_discarded_lets_those_behind_it_go(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        ids = [self.send_one(ledger) for _ in range(2)]
        ledger.part(WebhookLedger).decisions.disable_endpoint("a", who="eve", why="moving")
        ledger.part(WebhookLedger).decisions.enable_endpoint("a", who="eve", why="moved")
        later = self.send_one(ledger)

        assert ledger.part(WebhookLedger).decisions.discard_held("a", who="ada", why="old") == 2
        assert [hint.task_id for hint in ledger.part(Order).advance(ledger.part(Order).ended_heads(limit=9))] == [later]
        assert self.arrivals(ledger, worker, [*ids, later]) == [later]

    def test_who_releases_and_who_moves_the_line_up_at_once_forget_nobody(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        for _ in range(8):
            ids = [self.send_one(ledger) for _ in range(2)]
            [running] = self.their_turn(ledger, worker, ids)
            ledger.part(WebhookLedger).decisions.disable_endpoint("a", who="eve", why="moving")
            ledger.part(WebhookLedger).decisions.enable_endpoint("a", who="eve", why="moved")
            self.settle(ledger, running, Delivered(sent(running), Done()))

            at_once(
                2,
                lambda who: (
                    ledger.part(WebhookLedger).decisions.release_held("a", who="ada", why="seen")
                    if who
                    else ledger.part(Order).advance([LINE])
                ),
            )

            assert self.arrivals(ledger, worker, ids) == ids[1:]

    def test_who_disables_and_who_moves_the_line_up_at_once_send_nothing_that_is_held(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        for _ in range(8):
            ids = [self.send_one(ledger) for _ in range(2)]
            [running] = self.their_turn(ledger, worker, ids)
            self.settle(ledger, running, Delivered(sent(running), Done()))

            def act(who: int) -> None:
                if who:
                    ledger.part(WebhookLedger).decisions.disable_endpoint("a", who="eve", why="moving")
                else:
                    ledger.part(Order).advance([LINE])

            at_once(2, act)
            ledger.part(WebhookLedger).decisions.enable_endpoint("a", who="eve", why="moved")

            assert self.delivery(ledger, ids[1]).state is DeliveryState.HELD
            assert self.their_turn(ledger, worker, ids) == []
            ledger.part(WebhookLedger).decisions.release_held("a", who="ada", why="seen")
            assert self.arrivals(ledger, worker, ids) == ids[1:]

    def test_what_is_sent_again_comes_last_in_the_order_in_which_it_was_sent(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        ids = [self.send_one(ledger) for _ in range(4)]
        for _ in range(2):
            [claim] = self.their_turn(ledger, worker, ids)
            self.ended(ledger, claim, Delivered(sent(claim, error_class="tls", status=None), Dead("no", "no")))

        again, hints = ledger.part(WebhookLedger).decisions.resend(
            [ids[1], ids[0]], cause=Cause.MANUAL, who="ada", why="seen"
        )

        assert (again, hints) == (ids[:2], [])
        assert self.arrivals(ledger, worker, ids) == [*ids[2:], *ids[:2]]
        assert {self.delivery(ledger, one).state for one in ids} == {DeliveryState.SUCCEEDED}
        [alone] = ledger.part(WebhookLedger).decisions.resend([ids[3]], cause=Cause.REPLAY, who="ada", why="seen")[1]
        assert self.state(ledger, alone.task_id) is State.READY
        assert self.arrivals(ledger, worker, ids) == [ids[3]]

    def test_the_url_may_change_while_they_wait(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger, options=BY_ENDPOINT)
        ids = [self.send_one(ledger) for _ in range(2)]
        ledger.part(WebhookLedger).endpoints.change_endpoint("a", EndpointChange(url=f"{URL}/v2"), what="edited", **BY)

        assert {one.url for one in ledger.part(WebhookLedger).deliveries.parcels(ids).values()} == {f"{URL}/v2"}
        assert self.arrivals(ledger, worker, ids) == ids
