"""Webhooks arrive: signed, the same in each attempt, past slow receivers and killed workers, and none is lost."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from functools import partial

import pytest

from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.inbox import Inbox, Letter
from tests.system.legs import Leg
from tests.system.postman import APP, NOTICES
from workq.order.ledger.order import Order
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.outbox import Outbox
from workq.webhooks.values import DeliveryState, WhichDeliveries

ALL = WhichDeliveries()
OFTEN = [0.1] * 30
BOUND_S = 90.0


@pytest.fixture(params=["sqlite", "servers"])
def leg(request: pytest.FixtureRequest, open_leg: OpenLeg, monkeypatch: pytest.MonkeyPatch) -> Leg:
    """Each leg, with a tenth of the default times; webhooks may go to this machine."""
    monkeypatch.setenv("WORKQ_WEBHOOK_ALLOW", "loopback")
    return open_leg(request.param, divide=10.0)


@pytest.fixture
def outbox(leg: Leg) -> Outbox:
    return Outbox(leg.app)


def counts(leg: Leg) -> dict[DeliveryState, int]:
    return leg.app.stores.ledger.part(WebhookLedger).deliveries.delivery_counts(ALL)


def _has(inbox: Inbox, count: int) -> bool:
    return len(inbox.letters) >= count


def wait_delivered(leg: Leg, count: int, *, timeout_s: float = BOUND_S) -> None:
    wait_until(
        lambda: counts(leg).get(DeliveryState.SUCCEEDED) == count, timeout_s=timeout_s, what=f"{count} are delivered"
    )


def test_it_arrives_signed_and_the_same_in_each_attempt_and_every_attempt_is_recorded(leg: Leg, outbox: Outbox) -> None:
    async def answer(letter: Letter) -> int:
        return 200 if sum(one.id == letter.id and one.path == letter.path for one in inbox.letters) > 2 else 503

    with Inbox(answer) as inbox:
        made = {
            name: outbox.endpoints.add(
                inbox.url(name), endpoint_id=name, types=types, retry_schedule=OFTEN, headers={"x-to": name}
            )
            for name, types in (("all", ["*"]), ("paid", ["invoice.paid"]), ("users", ["user.*"]))
        }
        sent = [outbox.send("invoice.paid", {"number": number, "name": "Zoë"}) for number in range(4)]
        with leg.fleet(processes=1, threads=16, app=APP) as fleet:
            wait_delivered(leg, 8)
            fleet.terminate()
            assert fleet.wait(30) == 0, fleet.text()

    by_delivery: defaultdict[tuple[str, str], list[Letter]] = defaultdict(list)
    for letter in inbox.letters:
        secret = made[letter.path].secret
        assert secret is not None
        assert letter.is_signed_with(secret)
        assert (letter.headers["x-to"], letter.headers["content-type"]) == (letter.path, "application/json")
        by_delivery[letter.path, letter.id].append(letter)
    assert set(by_delivery) == {(path, one.id) for path in ("all", "paid") for one in sent}
    for letters in by_delivery.values():
        assert len(letters) == 3
        assert len({letter.body for letter in letters}) == 1
        stamps = [int(letter.headers["webhook-timestamp"]) for letter in letters]
        assert stamps == sorted(stamps)
    for row in leg.app.stores.ledger.part(WebhookLedger).deliveries.all(ALL):
        log = leg.app.stores.ledger.part(WebhookLedger).deliveries.attempts(row.id)
        assert [(one.number, one.status) for one in log] == [(1, 503), (2, 503), (3, 200)]
        assert (row.attempts, row.status) == (3, 200)


def test_a_receiver_that_does_not_answer_holds_nobody_else_up(leg: Leg, outbox: Outbox) -> None:
    stuck = asyncio.Event()

    async def answer(letter: Letter) -> int:
        if letter.path == "stuck":
            await stuck.wait()
        return 200

    with Inbox(answer) as inbox:
        outbox.endpoints.add(inbox.url("stuck"), endpoint_id="stuck", types=["slow"], concurrency=3)
        outbox.endpoints.add(inbox.url("quick"), endpoint_id="quick", types=["quick"])
        for number in range(20):
            outbox.send("slow", {"number": number})
        with leg.fleet(processes=1, threads=8, app=APP) as fleet:
            wait_until(
                lambda: sum(one.path == "stuck" for one in inbox.letters) == 3, timeout_s=BOUND_S, what="three hang"
            )
            for number in range(60):
                outbox.send("quick", {"number": number})
            wait_delivered(leg, 60)
            hung = Counter(one.path for one in inbox.letters)
            inbox.call(stuck.set)
            wait_delivered(leg, 80)
            fleet.terminate()
            assert fleet.wait(30) == 0, fleet.text()

    assert hung == {"stuck": 3, "quick": 60}
    assert all(count == 1 for count in inbox.counts().values())


def test_no_more_are_sent_in_a_time_than_an_endpoint_takes(leg: Leg, outbox: Outbox) -> None:
    came: defaultdict[str, list[float]] = defaultdict(list)

    async def answer(letter: Letter) -> int:
        came[letter.path].append(time.monotonic())
        return 200

    with Inbox(answer) as inbox:
        outbox.endpoints.add(inbox.url("limited"), endpoint_id="limited", rate="10/s", concurrency=30)
        outbox.endpoints.add(inbox.url("free"), endpoint_id="free")
        for number in range(30):
            outbox.send("invoice.paid", {"number": number})
        with leg.fleet(processes=1, threads=16, app=APP) as fleet:
            wait_delivered(leg, 60)
            fleet.terminate()
            assert fleet.wait(30) == 0, fleet.text()

    assert {path: len(at) for path, at in came.items()} == {"limited": 30, "free": 30}
    assert came["limited"][-1] - came["limited"][0] > 1.5, "thirty at ten a second take two; some room for what is late"


@pytest.mark.one_leg
def test_while_workers_are_killed_nothing_is_lost_and_a_repetition_has_the_same_id(
    leg: Leg, outbox: Outbox, long_run: bool
) -> None:
    count, kills = (5_000, 12) if long_run else (250, 3)
    rng = random.Random(7)

    async def answer(_: Letter) -> int:
        await asyncio.sleep(rng.uniform(0.0, 0.02))
        return 503 if rng.random() < 0.1 else 200

    with Inbox(answer) as inbox:
        made = outbox.endpoints.add(inbox.url(), retry_schedule=OFTEN, concurrency=16)
        sent = {outbox.send("invoice.paid", {"number": number}).id for number in range(count)}
        with leg.fleet(processes=2, threads=16, app=APP) as fleet:
            for number in range(kills):
                goal = len(inbox.letters) + rng.randint(5, 40)
                wait_until(partial(_has, inbox, goal), timeout_s=BOUND_S, what="they deliver")
                fleet.kill_one(number)
            wait_delivered(leg, count, timeout_s=900.0 if long_run else BOUND_S)
            fleet.wait_whole(2, timeout_s=BOUND_S)
            fleet.terminate()
            assert fleet.wait(30) == 0, fleet.text()

    came = inbox.counts()
    recorded = sum(row.attempts for row in leg.app.stores.ledger.part(WebhookLedger).deliveries.all(ALL, limit=10_000))
    print(f"{leg.name}: {count} webhooks, {kills} kills: {came.total()} requests, {recorded} of them recorded")
    assert made.secret is not None
    assert all(letter.is_signed_with(made.secret) for letter in inbox.letters)
    assert set(came) == sent
    assert count <= recorded <= came.total()
    assert counts(leg) == {DeliveryState.SUCCEEDED: count}


def test_the_order_of_each_key_is_kept_past_failures_and_a_killed_worker(leg: Leg, outbox: Outbox) -> None:
    keys, each = ("x", "y", "z"), 6
    tries: Counter[tuple[str, int]] = Counter()
    came: list[tuple[str, int, int]] = []

    async def answer(letter: Letter) -> int:
        data = json.loads(letter.body)["data"]
        one = data["key"], data["number"]
        tries[one] += 1
        status = 503 if one[1] % 2 == 0 and tries[one] == 1 else 200
        came.append((*one, status))
        await asyncio.sleep(0.02)
        return status

    with Inbox(answer) as inbox:
        outbox.endpoints.add(inbox.url(), ordered="key", concurrency=2, retry_schedule=OFTEN)
        for number in range(each):
            for key in keys:
                outbox.send("stock.changed", {"key": key, "number": number}, order_key=key)
        with leg.fleet(processes=2, threads=4, app=APP) as fleet:
            wait_until(lambda: len(came) > len(keys) * each // 2, timeout_s=BOUND_S, what="half of them came")
            fleet.kill_one()
            wait_delivered(leg, len(keys) * each)
            fleet.wait_whole(2, timeout_s=BOUND_S)
            fleet.terminate()
            assert fleet.wait(30) == 0, fleet.text()

    for key in keys:
        mine = [(number, status) for name, number, status in came if name == key]
        first = {number: place for place, (number, _) in reversed([*enumerate(mine)])}
        arrived = {number: place for place, (number, status) in reversed([*enumerate(mine)]) if status == 200}
        assert sorted(arrived, key=lambda number: arrived[number]) == list(range(each))
        assert all(arrived[number] < first[number + 1] for number in range(each - 1)), mine
    assert leg.app.stores.ledger.part(Order).sequences() == []


def test_operators_are_told_once_of_what_goes_wrong_and_of_what_arrives_after_all(leg: Leg, outbox: Outbox) -> None:
    is_up = False
    heard = leg.folder / "notices.jsonl"

    async def answer(letter: Letter) -> int:
        return {"gone": 410, "down": 200 if is_up else 500}.get(letter.path, 200)

    def kinds() -> list[tuple[str, str]]:
        lines = heard.read_text().splitlines() if heard.exists() else []
        return sorted((one["kind"], one["endpoint"]) for one in map(json.loads, lines))

    with Inbox(answer) as inbox:
        for name in ("gone", "down"):
            outbox.endpoints.add(inbox.url(name), endpoint_id=name, types=[name], retry_schedule=[0.1])
        operators = outbox.endpoints.add(inbox.url("ops"), endpoint_id="ops", topic="workq").secret
        with leg.fleet(processes=1, threads=8, app=APP, environ={NOTICES: str(heard)}) as fleet:
            for number in range(3):
                outbox.send("down", {"number": number})
            outbox.send("gone", {})
            expected = [("delivery.exhausted", "down"), ("endpoint.disabled", "gone")]
            wait_until(lambda: kinds() == expected, timeout_s=BOUND_S, what="both are told")
            wait_until(
                lambda: counts(leg).get(DeliveryState.EXHAUSTED) == 3, timeout_s=BOUND_S, what="all three are exhausted"
            )
            is_up = True
            assert outbox.recover("down", since_s=3600.0) == 3
            expected = [("delivery.exhausted", "down"), ("delivery.recovered", "down"), ("endpoint.disabled", "gone")]
            wait_until(lambda: kinds() == expected, timeout_s=BOUND_S, what="it is told that it has recovered")
            wait_delivered(leg, 3 + 3)
            fleet.terminate()
            assert fleet.wait(30) == 0, fleet.text()

    assert kinds() == expected
    assert operators is not None
    told = [letter for letter in inbox.letters if letter.path == "ops"]
    assert all(letter.is_signed_with(operators) for letter in told)
    types = {json.loads(letter.body)["type"] for letter in told}
    assert types == {f"workq.{kind}" for kind, _ in expected}
    data = {one["kind"]: one for one in (json.loads(letter.body)["data"] for letter in told)}
    assert data["delivery.exhausted"]["event_type"] == "down"
    assert data["delivery.exhausted"]["error_class"] == "server_error"
    assert len(inbox.counts()) == len({letter.id for letter in inbox.letters})


def test_while_a_secret_is_rotated_both_verify_and_the_new_one_alone_afterwards(
    open_leg: OpenLeg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKQ_WEBHOOK_ALLOW", "loopback")
    leg = open_leg("sqlite")
    outbox = Outbox(leg.app)

    async def answer(_: Letter) -> int:
        return 200

    with Inbox(answer) as inbox, leg.fleet(processes=1, threads=2, app=APP) as fleet:
        first = outbox.endpoints.add(inbox.url(), endpoint_id="acme").secret
        outbox.send("invoice.paid", {})
        wait_delivered(leg, 1)
        second = outbox.endpoints.rotate("acme", grace_s=60.0).secret
        outbox.send("invoice.paid", {})
        wait_delivered(leg, 2)
        outbox.endpoints.rotate("acme", secret=second, grace_s=0.0)
        outbox.send("invoice.paid", {})
        wait_delivered(leg, 3)
        fleet.terminate()
        assert fleet.wait(30) == 0, fleet.text()

    assert first is not None
    assert second is not None
    assert [(one.is_signed_with(first), one.is_signed_with(second)) for one in inbox.letters] == [
        (True, False),
        (True, True),
        (False, True),
    ]
