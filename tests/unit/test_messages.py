"""What a message says, when it is due, and what each answer of a destination means for the task that sends it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from workq.config.addresses import Allowed
from workq.errors import Cancel, ConfigError, LedgerUnavailable, PayloadError, Snooze
from workq.handlers.verdict import Verdict
from workq.messages.bodies import check_message_headers, check_message_key, stored_body
from workq.messages.carry import DISABLED, HELD_S, MessageCarrier, NotConfirmed, NotTaken
from workq.messages.destinations import shown_options
from workq.messages.kinds import (
    Answer,
    Confirmed,
    DestinationAddress,
    DestinationLink,
    Kind,
    Posting,
    SendFault,
    Unsent,
)
from workq.messages.kinds.registry import kind_of
from workq.messages.levels import check_levels, on_levels, rounded_up, whole_ms
from workq.messages.links import LINKS_MAX, WAIT_S, Links, NoLinkFree
from workq.messages.rests import REST_MAX_S, rest_s
from workq.messages.values import (
    DestinationPolicy,
    Letter,
    check_destination_name,
    check_message_id,
    check_message_order_key,
    destination_in,
    item_of,
    parts_of,
)
from workq.outbound.vault import Vault


class TestBodies:
    def test_text_bytes_and_json_are_told_apart(self) -> None:
        assert stored_body("grüße") == ("grüße", False, "text/plain; charset=utf-8")
        assert stored_body(b"\x00\xff") == ("AP8=", True, "application/octet-stream")
        assert stored_body({"a": [1, None]}) == ('{"a":[1,null]}', False, "application/json")
        assert stored_body("a\x00b") == ("YQBi", True, "text/plain; charset=utf-8")

    @pytest.mark.parametrize("body", ["x" * 262_145, b"x" * 262_145, ["x" * 262_145], {1, 2}, "\ud800"])
    def test_what_is_too_large_or_nothing_of_these_is_refused(self, body: Any) -> None:
        with pytest.raises(PayloadError, match="body"):
            stored_body(body)

    def test_the_largest_is_taken(self) -> None:
        assert len(stored_body("x" * 262_144)[0]) == 262_144

    @pytest.mark.parametrize(
        "headers",
        [
            {"workq-id": "x"},
            {"a b": "x"},
            {"a": "x\n"},
            {"a": 1},
            {"a": "\ud800"},
            {f"h{n}": "" for n in range(51)},
            ["a"],
        ],
    )
    def test_headers_that_brokers_do_not_carry_or_that_are_ours_are_refused(self, headers: Any) -> None:
        with pytest.raises(ConfigError, match="header"):
            check_message_headers(headers)

    def test_headers_are_as_large_together_as_can_be_recorded(self) -> None:
        with pytest.raises(PayloadError, match="headers: 320171 bytes of JSON"):
            check_message_headers({f"h{n}": "\U0001f600" * 4000 for n in range(20)})

    @pytest.mark.parametrize(
        ("check", "good", "bad"),
        [
            (check_message_key, "customer 4", ["", "x" * 1025, "a\n", 7]),
            (check_message_id, "order-17:a", ["", "a b", "é", "x" * 101, 7]),
            (check_message_order_key, "k", ["", "x" * 121, "a\n", 7]),
            (check_destination_name, "orders.new-2", ["", "-a", ".a", "a b", "x" * 65, 7]),
        ],
    )
    def test_names_and_keys(self, check: Any, good: str, bad: list[Any]) -> None:
        assert check(good) == good
        for one in bad:
            with pytest.raises(ConfigError):
                check(one)

    def test_an_item_names_destination_sending_and_message(self) -> None:
        item = item_of("orders", 3, "order-17")

        assert (destination_in(item), parts_of(item)) == ("orders", ("orders", 3, "order-17"))
        assert [parts_of(one) for one in (7, "", "a b c", "a 1")] == [None] * 4
        assert destination_in(None) == ""


class TestTimes:
    def test_a_delay_is_rounded_up_and_never_shorter(self) -> None:
        levels = check_levels("5s, 30s,1m")

        assert levels == (5.0, 30.0, 60.0)
        assert [rounded_up(one, levels) for one in (0.0, 0.1, 5.0, 5.1, 60.0, 61.0)] == [
            0.0,
            5.0,
            5.0,
            30.0,
            60.0,
            120.0,
        ]
        assert rounded_up(7.5, ()) == 7.5

    def test_an_instant_moves_with_its_delay(self) -> None:
        at = datetime(2030, 1, 1, tzinfo=UTC)

        assert on_levels(7.0, at, (10.0,)) == (10.0, at + timedelta(seconds=3))
        assert on_levels(7.0, None, (10.0,)) == (10.0, None)

    @pytest.mark.parametrize("levels", ["", "5", "30s,5s", "5s,5s", "0s", ",", 7])
    def test_levels_that_are_none_are_refused(self, levels: Any) -> None:
        with pytest.raises(ConfigError, match="levels"):
            check_levels(levels)

    def test_an_instant_is_rounded_up_to_a_millisecond(self) -> None:
        at = datetime(2030, 1, 1, 0, 0, 0, 123_001, tzinfo=UTC)

        assert whole_ms(at).microsecond == 124_000
        assert whole_ms(at.replace(microsecond=123_000)).microsecond == 123_000

    def test_a_rest_grows_up_to_a_bound_and_is_as_long_as_was_asked(self) -> None:
        assert [rest_s(one) for one in (0, 1, 2, 3, 7, 1000)] == [1.0, 1.0, 2.0, 4.0, REST_MAX_S, REST_MAX_S]
        assert (rest_s(1, asked_s=30.0), rest_s(1, asked_s=1e9)) == (30.0, 3600.0)


class Scripted(DestinationLink):
    """Answers what it was told, or raises it."""

    def __init__(self, answers: Sequence[Answer] | Exception) -> None:
        self.answers = answers
        self.sent: list[Posting] = []
        self.is_closed = False

    def send(self, postings: Sequence[Posting], *, timeout_s: float) -> list[Answer]:
        self.sent += postings
        if isinstance(self.answers, Exception):
            raise self.answers
        return list(self.answers)

    def test(self, *, timeout_s: float) -> list[str]:
        return []

    def close(self) -> None:
        self.is_closed = True


class OfScript(Kind):
    name = "script"

    def __init__(self, *links: DestinationLink) -> None:
        self.links = list(links)
        self.addresses: list[DestinationAddress] = []

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return dict(options)

    def open(self, address: DestinationAddress, *, allowed: Allowed) -> DestinationLink:
        self.addresses.append(address)
        return self.links.pop(0)


class Noted:
    """How destinations fare, as it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def failed(self, name: str, *, fault: str, error: str, asked_s: float | None = None) -> float:
        self.told.append((name, fault, error, asked_s))
        return 8.0

    def arrived(self, name: str) -> bool:
        self.told.append((name,))
        return True

    def let_come(self, name: str) -> None:
        self.told.append((name, "come"))


LETTER = Letter(
    id="a",
    sending=1,
    body=b"hello",
    content_type="text/plain",
    key=None,
    headers={},
    destination="orders",
    kind="script",
    options={},
    sealed=None,
    policy=DestinationPolicy(),
    state="enabled",
    is_failing=False,
    rests_s=0.0,
    changed_at="1",
)


class Carrying:
    """A carrier, what it reads, and what it tells."""

    def __init__(self, *links: DestinationLink, letters: Mapping[str, Letter] | Exception | None = None) -> None:
        self.letters = letters if letters is not None else {}
        self.health = Noted()
        self.kind = OfScript(*links)
        self.carrier = MessageCarrier(
            self.read,
            lambda: self.health,
            kind_of=lambda _: self.kind,
            vault=Vault(),
            allowed=Allowed.of("*"),
            rng=Random(1),
        )

    def read(self, _ids: Sequence[str]) -> Mapping[str, Letter]:
        if isinstance(self.letters, Exception):
            raise self.letters
        return self.letters

    def carry(self, *items: str) -> tuple[dict[str, Any], dict[str, Any]]:
        verdict = self.carrier.carry(list(items))
        assert isinstance(verdict, Verdict)
        return dict(verdict.failed), dict(verdict.results)


def named(*ids: str, **facts: Any) -> dict[str, Letter]:
    return {one: replace(LETTER, id=one, **facts) for one in ids}


class TestCarry:
    def test_each_message_gets_what_its_own_answer_means(self) -> None:
        faults: list[Answer] = [Unsent(SendFault.MESSAGE, "too large"), Unsent(SendFault.LATE, "no confirm")]
        faults += [Confirmed("orders[3]@7"), Confirmed()]
        link = Scripted(faults)
        one = Carrying(link, letters=named("a", "b", "c", "d"))

        failed, results = one.carry("orders 1 a", "orders 1 b", "orders 1 c", "orders 1 d")

        assert {item: type(error) for item, error in failed.items()} == {
            "orders 1 a": NotTaken,
            "orders 1 b": NotConfirmed,
        }
        assert results == {"orders 1 c": "orders[3]@7"}
        assert [posting.id for posting in link.sent] == ["a", "b", "c", "d"]
        assert one.health.told == [], "something was confirmed, and it had not been failing"

    @pytest.mark.parametrize("fault", [SendFault.AWAY, SendFault.REFUSED, SendFault.NO_TARGET, SendFault.ASKED])
    def test_a_fault_of_the_destination_lets_it_rest_and_costs_the_message_nothing(self, fault: SendFault) -> None:
        one = Carrying(Scripted([Unsent(fault, "no", 30.0)] * 2), letters=named("a", "b"))

        failed, _ = one.carry("orders 1 a", "orders 1 b")

        assert one.health.told == [("orders", fault.value, "no", 30.0)]
        assert len(failed) == 2
        for error in failed.values():
            assert isinstance(error, Snooze)
            assert 8.0 <= error.in_s < 8.1

    def test_what_alone_has_no_target_fails_and_the_others_go_on(self) -> None:
        one = Carrying(Scripted([Confirmed(), Unsent(SendFault.NO_TARGET, "no queue")]), letters=named("a", "b"))

        failed, _ = one.carry("orders 1 a", "orders 1 b")

        assert {item: type(error) for item, error in failed.items()} == {"orders 1 b": NotConfirmed}
        assert one.health.told == [], "the destination takes what it can"

    def test_who_asks_for_less_rests_also_when_something_was_confirmed(self) -> None:
        one = Carrying(Scripted([Confirmed(), Unsent(SendFault.ASKED, "429", 30.0)]), letters=named("a", "b"))

        one.carry("orders 1 a", "orders 1 b")

        assert one.health.told == [("orders", "asked", "429", 30.0)]

    def test_where_nothing_was_confirmed_in_time_it_rests_too(self) -> None:
        one = Carrying(Scripted([Unsent(SendFault.LATE, "no confirm")]), letters=named("a"))

        failed, _ = one.carry("orders 1 a")

        assert isinstance(failed["orders 1 a"], NotConfirmed)
        assert one.health.told == [("orders", "late", "no confirm", None)]

    def test_the_first_confirm_ends_that_it_fails(self) -> None:
        one = Carrying(Scripted([Confirmed()]), letters=named("a", is_failing=True))

        assert one.carry("orders 1 a") == ({}, {})
        assert one.health.told == [("orders",), ("orders", "come")]

    def test_each_confirmed_call_lets_some_come_while_any_wait(self) -> None:
        one = Carrying(Scripted([Confirmed()]), letters=named("a", is_waited_for=True))

        one.carry("orders 1 a")

        assert one.health.told == [("orders", "come")]

    @pytest.mark.parametrize(
        ("facts", "in_s", "reason"),
        [({"state": "disabled"}, HELD_S, DISABLED), ({"rests_s": 5.0}, 5.0, "its destination rests")],
    )
    def test_while_it_rests_or_is_disabled_nothing_is_opened(self, facts: Any, in_s: float, reason: str) -> None:
        one = Carrying(letters=named("a", **facts))

        failed, _ = one.carry("orders 1 a")

        error = failed["orders 1 a"]
        assert isinstance(error, Snooze)
        assert (in_s <= error.in_s < in_s + 0.1, error.reason) == (True, reason)
        assert one.kind.addresses == []

    def test_what_another_task_sends_or_what_is_gone_is_cancelled(self) -> None:
        letters = named("old", sending=2) | named("removed", body=None)
        one = Carrying(letters=letters)

        failed, _ = one.carry("orders 1 old", "orders 1 removed", "nonsense")

        assert {type(error) for error in failed.values()} == {Cancel}
        assert len(failed) == 3

    def test_what_is_for_a_removed_destination_waits_for_it(self) -> None:
        """It may have been removed while the transaction that sent the message was open."""
        one = Carrying()

        failed, _ = one.carry("orders 1 a")

        error = failed["orders 1 a"]
        assert isinstance(error, Snooze)
        assert "'orders'" in error.reason

    def test_without_the_ledger_or_the_key_nothing_is_sent_and_nothing_has_failed(self) -> None:
        away = Carrying(letters=LedgerUnavailable("no answer"))
        sealed = Carrying(letters=named("a", sealed="fernet:x"))

        for one in (away, sealed):
            failed, _ = one.carry("orders 1 a")
            assert isinstance(failed["orders 1 a"], Snooze)

    def test_a_kind_that_raises_or_answers_for_others_has_not_confirmed(self) -> None:
        wrong: Any = [None, True]
        for answers in (RuntimeError("a mistake"), [Confirmed()], wrong):
            one = Carrying(Scripted(answers), letters=named("a", "b"))

            failed, _ = one.carry("orders 1 a", "orders 1 b")

            assert {type(error) for error in failed.values()} == {NotConfirmed}

    @pytest.mark.parametrize("is_proven", [False, True])
    def test_behind_connections_that_hang_nobody_waits_and_one_hangs_where_nothing_was_confirmed(
        self, is_proven: bool
    ) -> None:
        links, entered, let_go = Links(), threading.Semaphore(0), threading.Event()
        with links.to("orders", "1", lambda: Scripted([])):
            pass
        links.prove("orders", is_proven=is_proven)

        def hang() -> None:
            with links.to("orders", "1", lambda: Scripted([])):
                entered.release()
                let_go.wait(60.0)

        threads = [threading.Thread(target=hang) for _ in range(LINKS_MAX if is_proven else 1)]
        for thread in threads:
            thread.start()
            assert entered.acquire(timeout=60.0)
        for number in links._to["orders"].begun:
            links._to["orders"].begun[number] -= 2 * WAIT_S

        waited: list[object] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(links._lock, "wait_for", lambda *how, **_: waited.append(how))
            with pytest.raises(NoLinkFree), links.to("orders", "1", lambda: Scripted([])):
                pass

        assert waited == []
        let_go.set()
        for thread in threads:
            thread.join(60.0)

    def test_a_connection_is_kept_until_its_destination_changes(self) -> None:
        first, second = Scripted([Confirmed()]), Scripted([Confirmed()])
        one = Carrying(first, second, letters=named("a", sealed=Vault().seal_url("amqp://app:secret@host")))

        one.carry("orders 1 a")
        one.carry("orders 1 a")
        one.letters = named("a", changed_at="2")
        one.carry("orders 1 a")
        one.carrier.close()

        assert (len(first.sent), len(second.sent)) == (2, 1)
        assert (first.is_closed, second.is_closed) == (True, True)
        assert [address.url for address in one.kind.addresses] == ["amqp://app:secret@host", None]
        assert "secret" not in repr(one.kind.addresses)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("amqp", {"url": "amqp://app:pw@host/v", "exchange": "shop", "routing_key": "new"}),
        ("kafka", {"url": "kafka://app:pw@one:9092,two:9092", "topic": "t", "client": {"linger.ms": 5}}),
        ("stomp", {"url": "stomp://app:pw@host:61613", "address": "mail", "vhost": "v"}),
        ("redis", {"url": "redis://app:pw@host:6379/0", "stream": "feed"}),
        ("http", {"url": "https://app:pw@example.org/in?token=x"}),
        ("call", {"handler": "shop.mail.send"}),
    ],
)
def test_what_is_stored_of_a_destination_is_given_again_by_an_edit(kind: str, options: dict[str, Any]) -> None:
    stored = kind_of(kind).check(options)

    again = kind_of(kind).check(stored | ({"url": options["url"]} if "url" in options else {}))

    assert again == stored
    assert "pw" not in str(stored)


def test_of_an_http_url_only_the_host_is_shown_also_where_an_older_version_has_stored_its_path() -> None:
    stored = kind_of("http").check({"url": "https://app:pw@example.org:8443/services/T0/s3cret?token=x"})

    assert stored == {"url": "https://app:***@example.org:8443/***?***"}
    assert kind_of("http").check({"url": "http://example.org"})["url"] == "http://example.org"
    assert shown_options({"url": "https://example.org/services/s3cret", "ca_file": "/c"}) == {
        "url": "https://example.org/***",
        "ca_file": "/c",
    }
    assert shown_options({"url": "kafka://one:9092,two:9092"}) == {"url": "kafka://one:9092,two:9092"}


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="pigeon"):
        kind_of("pigeon")


def test_an_address_that_is_refused_names_the_setting_of_messages() -> None:
    allowed = Allowed.of("external", setting="WORKQ_MESSAGE_ALLOW")

    assert "set WORKQ_MESSAGE_ALLOW=external,host" in allowed.refusal("host")
