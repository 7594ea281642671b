"""What an attempt means for its delivery: arrived, again and when, or never; and what is no attempt at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

import pytest
from msgspec.structs import replace
from standardwebhooks import Webhook

from tests.unit.test_attempt import Nobody
from workq import Cancel, Snooze
from workq.errors import LedgerUnavailable
from workq.handlers import context
from workq.outbound.backoff import JITTER, STEPS_S
from workq.outbound.post import Answer, ErrorClass
from workq.outbound.target import TargetPolicy
from workq.outbound.vault import Content, Secret, Vault
from workq.values.task import Claim, Dead, Delivered, Done, Failed
from workq.webhooks import carry, new_secret
from workq.webhooks.carry import NO_PROXY_S, Carrier, Read
from workq.webhooks.values import EndpointOptions, OnGone, Parcel

SECRET = new_secret()
BODY = '{"type":"invoice.paid","data":{"name":"Zoë"}}'
PARCEL = Parcel(
    delivery_id="d1",
    task_id="t1",
    webhook_id="msg_1",
    endpoint_id="acme",
    cause="scheduled",
    attempts=2,
    body=BODY,
    url="https://example.org/hooks",
    sealed=Vault().seal(Content((Secret(SECRET),), {"x-team": "blue"})),
    options=EndpointOptions(connect_s=1.0, total_s=3.0),
    state="enabled",
    age_s=1.0,
)
OK = Answer(200, None, "", 12.0, b"thanks")


class Told:
    """In the place of a sender: answers what it is told to, and keeps what it was given."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.sent: list[tuple[str, bytes, Mapping[str, str], dict[str, Any]]] = []

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], **deadlines: Any) -> Answer:
        self.sent.append((url, body, headers, deadlines))
        await asyncio.sleep(0)
        return self.answer

    async def close(self) -> None:
        return


def claim_of(number: int = 1, *, failures: int = 0) -> Claim:
    return Claim(f"t{number}", "workq.webhook", "webhooks", "{}", 1, "token", failures, 0, 1000, 3, None)


def carried(
    parcel: Parcel | None = PARCEL,
    answer: Answer = OK,
    *,
    failures: int = 0,
    read: Read | None = None,
    **options: Any,
) -> tuple[Delivered, Told]:
    """One attempt."""
    told = Told(answer)
    read = read or (lambda _: {} if parcel is None else {"d1": parcel})
    make = cast(Any, lambda _: told)
    carrier = Carrier(read, vault=Vault(), policy=TargetPolicy.of(), rng=Random(1), make=make, **options)

    async def run() -> Delivered:
        context.enter(claim_of(failures=failures), Nobody())
        try:
            return await carrier.carry("d1")
        finally:
            context.leave()
            await carrier.close()

    return asyncio.run(run()), told


def test_an_alias_says_its_headers_again_whatever_the_endpoints_own_ones_say() -> None:
    sealed = Vault().seal(Content((Secret(SECRET),), {"svix-id": "mine"}))

    _, told = carried(replace(PARCEL, sealed=sealed, options=EndpointOptions(header_alias="svix")))

    [(_, body, headers, _)] = told.sent
    theirs = {f"webhook-{part}": headers[f"svix-{part}"] for part in ("id", "timestamp", "signature")}
    assert theirs.items() <= headers.items()
    assert Webhook(SECRET).verify(body, theirs)["type"] == "invoice.paid"


def test_it_is_sent_as_it_was_written_and_signed_for_this_very_attempt() -> None:
    delivered, told = carried()

    [(url, body, headers, deadlines)] = told.sent
    assert (url, body.decode()) == (PARCEL.url, BODY)
    assert Webhook(SECRET).verify(body, dict(headers)) == {"type": "invoice.paid", "data": {"name": "Zoë"}}
    assert (headers["webhook-id"], headers["x-team"]) == ("msg_1", "blue")
    assert deadlines == {"connect_s": 1.0, "total_s": 3.0}
    assert delivered.then == Done()
    sent = delivered.sent
    assert (sent.delivery_id, sent.endpoint_id, sent.number, sent.url) == ("d1", "acme", 3, PARCEL.url)
    assert (sent.status, sent.error_class, sent.error, sent.answer, sent.duration_ms) == (200, None, None, "thanks", 12)


@pytest.mark.parametrize("kind", [one for one in ErrorClass if one is not ErrorClass.GONE])
@pytest.mark.parametrize("failures", [0, 3, len(STEPS_S) - 1])
def test_a_failure_is_tried_again_as_its_schedule_says(kind: ErrorClass, failures: int) -> None:
    delivered, _ = carried(answer=Answer(None, kind, "no luck", 3.0), failures=failures)

    then = delivered.then
    assert isinstance(then, Failed)
    least = STEPS_S[failures]
    if kind in ("throttled", "connect_timeout", "answer_timeout", "body_timeout"):
        least = max(least, 60.0)
    assert least <= then.delay_s <= least * (1.0 + JITTER)
    assert then.error == f"{kind}: no luck"
    assert (delivered.sent.error_class, delivered.sent.error) == (kind, "no luck")


def test_behind_the_last_step_it_is_exhausted_and_a_schedule_of_its_own_counts() -> None:
    answer = Answer(500, ErrorClass.SERVER_ERROR, "500", 3.0)
    own = replace(PARCEL, options=EndpointOptions(steps_s=(2.0,)))

    last, first, second = (
        carried(answer=answer, failures=len(STEPS_S))[0].then,
        carried(own, answer)[0].then,
        carried(own, answer, failures=1)[0].then,
    )

    assert last == second == Dead("exhausted: server_error", "server_error: 500")
    assert isinstance(first, Failed)
    assert 2.0 <= first.delay_s <= 2.4


@pytest.mark.parametrize(("value", "least"), [("3600", 3600.0), ("1", 5.0), ("garbage", 5.0), ("999999999", 86_400.0)])
def test_a_receiver_may_ask_for_more_time_with_any_failure(value: str, least: float) -> None:
    delivered, _ = carried(answer=Answer(503, ErrorClass.SERVER_ERROR, "503", 3.0, retry_after=value))

    assert isinstance(delivered.then, Failed)
    assert least <= delivered.then.delay_s <= max(least, 5.0 * (1.0 + JITTER))


def test_who_is_gone_is_not_tried_again() -> None:
    delivered, _ = carried(answer=Answer(410, ErrorClass.GONE, "410 Gone", 3.0))

    assert isinstance(delivered.then, Dead)
    assert delivered.sent.is_gone


def test_where_a_410_is_to_be_confirmed_it_is_asked_once_more_an_hour_later() -> None:
    gone = Answer(410, ErrorClass.GONE, "410 Gone", 3.0)
    own = replace(PARCEL, options=EndpointOptions(steps_s=(2.0,), on_410=OnGone.CONFIRM))

    first, _ = carried(own, gone, failures=1)
    longer, _ = carried(own, replace(gone, retry_after="7200"))
    after_another, _ = carried(replace(own, last_class="server_error"), gone)
    second, _ = carried(replace(own, last_class="gone"), gone)

    assert [one.then.delay_s for one in (first, longer, after_another) if isinstance(one.then, Failed)] == [
        *(3600.0, 7200.0, 3600.0)
    ]
    assert [one.sent.is_gone for one in (first, longer, after_another)] == [False] * 3
    assert first.sent.error_class == "gone"
    assert isinstance(second.then, Dead)
    assert second.sent.is_gone


def test_how_long_who_wants_less_is_left_alone_can_be_said() -> None:
    busy = Answer(429, ErrorClass.THROTTLED, "429", 3.0)
    own = replace(PARCEL, options=EndpointOptions(steps_s=(2.0,)))

    delivered, _ = carried(own, busy, throttled_min_s=3.0)

    assert isinstance(delivered.then, Failed)
    assert 3.0 <= delivered.then.delay_s <= 3.6
    assert delivered.sent.rest_s == delivered.then.delay_s


def unavailable(_: Sequence[str]) -> dict[str, Parcel]:
    raise LedgerUnavailable("away")


@pytest.mark.parametrize(
    ("parcel", "error", "said"),
    [
        (None, Cancel, "was removed"),
        (replace(PARCEL, body=None), Cancel, "kept no longer"),
        (replace(PARCEL, task_id="t2"), Cancel, "another task sends"),
        (replace(PARCEL, state="disabled"), Snooze, "is disabled"),
        (replace(PARCEL, age_s=61.0, options=EndpointOptions(max_age_s=60.0)), Cancel, "max_age_s is 60"),
        (replace(PARCEL, sealed="fernet:abc"), Snooze, "set WORKQ_SECRET_KEY"),
    ],
    ids=["removed", "pruned", "other", "disabled", "too-old", "no-key"],
)
def test_where_nothing_can_be_sent_nothing_has_failed(parcel: Parcel | None, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        carried(parcel)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "facts", [{"age_s": 59.0}, {"age_s": 61.0, "cause": "replay"}, {"age_s": 61.0, "cause": "manual"}]
)
def test_what_is_young_enough_or_wanted_by_a_person_is_sent(facts: dict[str, Any]) -> None:
    delivered, told = carried(replace(PARCEL, options=EndpointOptions(max_age_s=60.0), **facts))

    assert len(told.sent) == 1
    assert delivered.then == Done()


def test_while_our_own_proxy_is_away_nothing_has_failed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("by itself")  # workq's own leads elsewhere, once a command has run in this process
    log.propagate = False
    log.addHandler(caplog.handler)
    monkeypatch.setattr(carry, "log", log)
    said = "the proxy http://proxy:3128: nothing listens there"

    with pytest.raises(Snooze, match=said) as caught:
        carried(answer=Answer(None, ErrorClass.PROXY, said, 3.0, is_proxy_away=True), failures=len(STEPS_S))

    assert caught.value.in_s == NO_PROXY_S
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"webhook.no_proxy: {said}")
    ]


def test_while_the_ledger_is_away_nothing_has_failed() -> None:
    with pytest.raises(Snooze, match="did not answer"):
        carried(read=unavailable)


def test_many_at_once_share_questions_to_the_ledger_and_an_error_is_everybodys() -> None:
    asked: list[list[str]] = []

    def read(ids: Sequence[str]) -> dict[str, Parcel]:
        asked.append(list(ids))
        if "d99" in ids:
            raise LedgerUnavailable("away")
        return {one: replace(PARCEL, delivery_id=one, task_id=f"t{one[1:]}") for one in ids}

    carrier = Carrier(read, vault=Vault(), policy=TargetPolicy.of(), make=cast(Any, lambda _: Told(OK)))

    async def one(number: int) -> Delivered:
        context.enter(claim_of(number), Nobody())
        return await carrier.carry(f"d{number}")

    async def run() -> tuple[list[Delivered], list[Any]]:
        done = await asyncio.gather(*(asyncio.create_task(one(number)) for number in range(50)))
        failed = await asyncio.gather(
            *(asyncio.create_task(one(number)) for number in (98, 99, 97)), return_exceptions=True
        )
        await carrier.close()
        return done, failed

    done, failed = asyncio.run(run())

    assert [one.sent.delivery_id for one in done] == [f"d{number}" for number in range(50)]
    assert len(asked) <= 4
    assert sum(isinstance(one, Snooze) for one in failed) == sum(len(ids) for ids in asked if "d99" in ids)


class Ledger:
    """In the place of a ledger that knows deliveries from 0 to 9, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def read(self, ids: Sequence[str]) -> dict[str, Parcel]:
        self.asked.append(list(ids))
        return {one: replace(PARCEL, delivery_id=one, task_id=f"t{one[1:]}") for one in ids if len(one) == 2}


def carried_ahead(read: Read, calls: list[Any]) -> list[Any]:
    """What becomes of calls that were claimed together."""
    carrier = Carrier(read, vault=Vault(), policy=TargetPolicy.of(), make=cast(Any, lambda _: Told(OK)))

    async def one(number: int, call: Any) -> Any:
        context.enter(claim_of(number), Nobody())
        return await carrier.carry(*call["a"], **call["k"])

    async def run() -> list[Any]:
        tasks = [asyncio.create_task(one(number, call)) for number, call in enumerate(carrier.ahead(calls))]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await carrier.close()
        return ended

    return asyncio.run(run())


def call_of(*args: Any) -> dict[str, Any]:
    return {"a": args, "k": {}}


def test_what_was_claimed_together_is_read_in_one_question_before_it_starts() -> None:
    ledger = Ledger()

    done = carried_ahead(ledger.read, [call_of(f"d{number}") for number in range(10)])

    assert [one.sent.delivery_id for one in done] == [f"d{number}" for number in range(10)]
    assert ledger.asked == [[f"d{number}" for number in range(10)]]


def test_what_was_read_ahead_and_starts_late_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "AHEAD_S", 0.0)
    ledger = Ledger()

    done = carried_ahead(ledger.read, [call_of("d0"), call_of("d1")])

    assert [one.then for one in done] == [Done(), Done()]
    assert ledger.asked == [["d0", "d1"], ["d0", "d1"]]


def test_what_cannot_be_read_ahead_says_so_when_it_starts() -> None:
    ledger = Ledger()

    known, removed = carried_ahead(ledger.read, [call_of("d0"), call_of("d11")])

    assert known.then == Done()
    assert isinstance(removed, Cancel)
    assert ledger.asked == [["d0", "d11"], ["d11"]]


def test_what_is_no_delivery_is_not_read_ahead() -> None:
    ledger = Ledger()
    carrier = Carrier(ledger.read, vault=Vault(), policy=TargetPolicy.of())
    strange = [call_of(), call_of(17), call_of(["d0"]), {"a": ("d0", "d1"), "k": {}}]

    assert carrier.ahead([*strange, call_of("d0")])[:-1] == strange
    assert ledger.asked == [["d0"]]


def test_while_the_ledger_is_away_nothing_is_read_ahead_and_each_of_them_says_so() -> None:
    ended = carried_ahead(unavailable, [call_of("d0"), call_of("d1")])

    assert [type(one) for one in ended] == [Snooze, Snooze]
