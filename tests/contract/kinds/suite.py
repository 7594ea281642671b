"""What every kind of destination promises. A subclass says only where its server is, and how to see what has arrived.

What only some have is a contract of its own, below: an address to reach, a login, a server that can be killed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from tests.faults.receivers import answering, closed, unknown
from workq.config.addresses import Allowed
from workq.errors import ConfigError
from workq.lab.proxy import FaultProxy
from workq.lab.proxy.link import Direction
from workq.lab.servers import Server
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
from workq.messages.kinds.registry import KINDS
from workq.values.codec import new_task_id

LONG_S = 30.0
"""How long a busy machine may take for what normally takes milliseconds."""
SHORT_S = 2.0
"""For what is away: nothing is waited for longer."""
CANARY = "c4nary-8d"
HERE = Allowed.of("loopback")
JSON = "application/json"


@dataclass(frozen=True)
class Arrived:
    """One copy of a message, as a client of our own has read it."""

    id: str
    body: bytes
    headers: Mapping[str, str]
    content_type: str | None = None


class KindStage(ABC):
    """One kind on a real server, with what the contract does behind its back."""

    name: ClassVar[str]
    carries_bytes: ClassVar[bool] = True

    @abstractmethod
    def options(self, *, host: str = "127.0.0.1", port: int = 0, password: str | None = None) -> dict[str, Any]:
        """Options of a destination that leads to this stage's target; to another host or port, as another user."""

    @abstractmethod
    def unknown(self) -> dict[str, Any]:
        """Options of one whose target is not there."""

    def refused(self) -> Posting:
        """A message that the destination will not take, however often. Only for `RefusingContract`."""
        raise NotImplementedError

    @abstractmethod
    def arrived(self) -> list[Arrived]:
        """All that has arrived at the target so far, in order. The same again when it is asked again."""

    @property
    def port(self) -> int:
        """Where the server listens."""
        raise NotImplementedError

    @property
    def server(self) -> Server:
        """To be killed. Only for `KilledContract`."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the server. What has no part in a promise, the target itself, is there again when it is started."""
        self.server.kill()

    @contextlib.contextmanager
    def proxy(self) -> Iterator[FaultProxy]:
        """What breaks the connection; clients come to its port."""
        with FaultProxy("127.0.0.1", self.port) as proxy:
            yield proxy

    def open(self, options: Mapping[str, Any], *, lookup: Any = None, allowed: Allowed = HERE) -> DestinationLink:
        """A link, as workq opens one."""
        kind = KINDS[self.name]() if lookup is None else self.kind(lookup)
        stored = kind.check(options)
        address = DestinationAddress(self.name, stored, url=options.get("url"))
        return kind.open(address, allowed=allowed)

    def kind(self, lookup: Any) -> Kind:
        """The kind with another server of names."""
        made: Any = type(KINDS[self.name]())
        return made(lookup=lookup)  # type: ignore[no-any-return]


def posting(body: bytes = b'{"n": 1}', *, content_type: str = JSON, **more: Any) -> Posting:
    """A message with an id of its own."""
    return Posting(id=str(new_task_id()), sending=1, body=body, content_type=content_type, **more)


def fault_of(answer: Answer) -> SendFault | None:
    return answer.fault if isinstance(answer, Unsent) else None


def text_of(answer: Answer) -> str:
    return answer.text if isinstance(answer, Unsent) else ""


def ids(arrived: Sequence[Arrived]) -> list[str]:
    return [one.id for one in arrived]


@contextlib.contextmanager
def opened(stage: KindStage, options: Mapping[str, Any] | None = None, **more: Any) -> Iterator[DestinationLink]:
    link = stage.open(stage.options() if options is None else options, **more)
    try:
        yield link
    finally:
        link.close()


class KindContract:
    """Every kind. A fixture `stage` has a target of its own."""

    def test_a_batch_arrives_once_in_order_with_ids_headers_and_bodies(self, stage: KindStage) -> None:
        large = bytes(range(256)) * 1024 if stage.carries_bytes else b"x" * 262_144
        batch = [
            posting(b'{"n": 1}', headers={"tenant": "ACME", "note": "a:b c"}),
            posting("grüße".encode(), content_type="text/plain; charset=utf-8"),
            posting(large, content_type="application/octet-stream", key="k1"),
            posting(b"", content_type="text/plain"),
            *(posting(str(number).encode(), content_type="text/plain") for number in range(20)),
        ]

        with opened(stage) as link:
            answers = link.send(batch, timeout_s=LONG_S)

        assert [one for one in answers if not isinstance(one, Confirmed)] == []
        found = stage.arrived()
        assert ids(found) == [one.id for one in batch]
        assert [one.body for one in found] == [one.body for one in batch]
        assert {"tenant": "ACME", "note": "a:b c"}.items() <= dict(found[0].headers).items()
        assert [one.content_type for one in found] == [one.content_type for one in batch]

    def test_a_link_is_used_again_also_by_another_thread(self, stage: KindStage) -> None:
        first, second = posting(), posting()
        with opened(stage) as link:
            answers = link.send([first], timeout_s=LONG_S)
            thread = threading.Thread(target=lambda: answers.extend(link.send([second], timeout_s=LONG_S)))
            thread.start()
            thread.join(2 * LONG_S)

        assert [type(one) for one in answers] == [Confirmed, Confirmed]
        assert ids(stage.arrived()) == [first.id, second.id]

    def test_the_same_message_sent_again_has_the_same_id(self, stage: KindStage) -> None:
        one = posting()
        with opened(stage) as link:
            for sending in (1, 2):
                again = Posting(one.id, sending, one.body, one.content_type)
                assert isinstance(link.send([again], timeout_s=LONG_S)[0], Confirmed)

        assert ids(stage.arrived()) == [one.id, one.id]

    def test_nothing_to_send_is_nothing_to_answer(self, stage: KindStage) -> None:
        with opened(stage) as link:
            assert link.send([], timeout_s=LONG_S) == []

    def test_a_target_that_is_not_there_is_said(self, stage: KindStage) -> None:
        with opened(stage, stage.unknown()) as link:
            answers = link.send([posting(), posting()], timeout_s=LONG_S)
            problems = link.test(timeout_s=LONG_S)

        assert [fault_of(one) for one in answers] == [SendFault.NO_TARGET, SendFault.NO_TARGET], answers
        assert self.is_known_by_test == bool(problems)

    is_known_by_test: ClassVar[bool] = True
    """Whether `test` can find out that a target is missing."""

    def test_a_test_finds_nothing_wrong_and_leaves_nothing(self, stage: KindStage) -> None:
        with opened(stage) as link:
            assert link.test(timeout_s=LONG_S) == []
            assert stage.arrived() == []
            assert isinstance(link.send([posting()], timeout_s=LONG_S)[0], Confirmed)
            assert link.test(timeout_s=LONG_S) == []

        assert len(stage.arrived()) == 1

    def test_closing_is_repeatable_and_a_link_that_was_never_used_closes(self, stage: KindStage) -> None:
        unused = stage.open(stage.options())
        unused.close()
        link = stage.open(stage.options())
        link.send([posting()], timeout_s=LONG_S)

        link.close()
        link.close()

    def test_options_are_checked_with_their_names(self, stage: KindStage) -> None:
        kind = KINDS[stage.name]()
        right = stage.options()

        kind.check(right)
        with pytest.raises(ConfigError, match=r"colour: is no option of the kind"):
            kind.check({**right, "colour": "blue"})
        for name in right:
            with pytest.raises(ConfigError, match=name):
                kind.check({key: value for key, value in right.items() if key != name})
            with pytest.raises(ConfigError, match=name):
                kind.check({**right, name: 7})


class RefusingContract:
    """Kinds that do not take every message."""

    def test_a_message_that_is_not_taken_keeps_no_other_back(self, stage: KindStage) -> None:
        before, bad, behind = posting(), stage.refused(), posting()

        with opened(stage) as link:
            answers = link.send([before, bad, behind], timeout_s=LONG_S)

        assert [fault_of(one) for one in answers] == [None, SendFault.MESSAGE, None], answers
        assert {before.id, behind.id} == set(ids(stage.arrived()))


class ReachedContract:
    """Kinds with a URL: an address that is reached, or not, or may not be."""

    def test_the_password_is_in_nothing_that_is_stored_or_shown(self, stage: KindStage) -> None:
        options = stage.options(password=CANARY)
        stored = KINDS[stage.name]().check(options)

        assert CANARY not in f"{stored} {DestinationAddress('orders', stored, url=options['url'])!r}"
        assert ":***@" in stored["url"]
        for broken in ("http:/" + options["url"], options["url"] + " ", "x" + options["url"]):
            with pytest.raises(ConfigError) as failed:
                KINDS[stage.name]().check({**options, "url": broken})
            assert CANARY not in str(failed.value)

    def test_a_server_that_is_not_there_is_away(self, stage: KindStage) -> None:
        with closed() as port, opened(stage, stage.options(port=port)) as link:
            answers = link.send([posting(), posting()], timeout_s=SHORT_S)
            problems = link.test(timeout_s=SHORT_S)

        assert [fault_of(one) for one in answers] == [SendFault.AWAY, SendFault.AWAY], answers
        assert problems

    def test_a_server_that_is_silent_is_away_in_time(self, stage: KindStage) -> None:
        with stage.proxy() as proxy, opened(stage, stage.options(port=proxy.port)) as link:
            proxy.drop_new()

            [answer] = link.send([posting()], timeout_s=SHORT_S)

            assert fault_of(answer) in (SendFault.AWAY, SendFault.LATE), answer

            proxy.heal()
            assert isinstance(link.send([posting()], timeout_s=LONG_S)[0], Confirmed)

    def test_a_connection_that_is_cut_before_the_confirm_leads_to_a_copy_with_the_same_id(
        self, stage: KindStage
    ) -> None:
        first, cut, last = posting(), posting(), posting()
        with stage.proxy() as proxy, opened(stage, stage.options(port=proxy.port)) as link:
            assert isinstance(link.send([first], timeout_s=LONG_S)[0], Confirmed)
            proxy.cut_after(0, Direction.TO_CLIENT)

            [answer] = link.send([cut], timeout_s=LONG_S)

            assert proxy.wait_cut(LONG_S)
            assert fault_of(answer) in (None, SendFault.LATE, SendFault.AWAY), answer
            deadline = time.monotonic() + LONG_S
            while not isinstance(answer, Confirmed):
                assert time.monotonic() < deadline, answer
                [answer] = link.send([cut], timeout_s=LONG_S)
            assert isinstance(link.send([last], timeout_s=LONG_S)[0], Confirmed)

        found = ids(stage.arrived())
        assert set(found) == {first.id, cut.id, last.id}
        assert (found.count(first.id), found.count(last.id)) == (1, 1)

    def test_a_name_is_looked_up_and_judged_and_what_was_judged_is_connected_to(self, stage: KindStage) -> None:
        asked: list[str] = []

        def lookup(host: str, port: int, **more: object) -> list[Any]:
            asked.append(host)
            return answering("127.0.0.1")(host, port, **more)

        with opened(stage, stage.options(host="broker.example"), lookup=lookup) as link:
            [answer] = link.send([posting()], timeout_s=LONG_S)

        assert isinstance(answer, Confirmed)
        assert asked == ["broker.example"]
        assert len(stage.arrived()) == 1

    def test_one_address_that_is_not_allowed_refuses_the_name_and_nothing_is_connected_to(
        self, stage: KindStage
    ) -> None:
        lookup = answering("127.0.0.1", "10.0.0.5")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            options = stage.options(host="broker.example", port=listener.getsockname()[1])
            with opened(stage, options, lookup=lookup) as link:
                [answer] = link.send([posting()], timeout_s=LONG_S)
                problems = link.test(timeout_s=LONG_S)
            with pytest.raises(BlockingIOError):
                listener.accept()

        assert fault_of(answer) is SendFault.REFUSED
        assert "10.0.0.5" in text_of(answer)
        assert "10.0.0.5" in problems[0]

    def test_an_address_in_the_url_is_judged_too(self, stage: KindStage) -> None:
        with opened(stage, allowed=Allowed.of("external")) as link:
            [answer] = link.send([posting()], timeout_s=LONG_S)

        assert (fault_of(answer), "127.0.0.1" in text_of(answer)) == (SendFault.REFUSED, True)

    def test_a_name_without_an_address_is_away(self, stage: KindStage) -> None:
        with opened(stage, stage.options(host="broker.example"), lookup=unknown) as link:
            [answer] = link.send([posting()], timeout_s=SHORT_S)

        assert fault_of(answer) is SendFault.AWAY

    def test_a_wrong_password_is_refused_and_shown_nowhere(self, stage: KindStage) -> None:
        with opened(stage, stage.options(password=CANARY)) as link:
            answers = link.send([posting(), posting()], timeout_s=LONG_S)
            problems = link.test(timeout_s=LONG_S)

        assert [fault_of(one) for one in answers] == [SendFault.REFUSED, SendFault.REFUSED], answers
        assert CANARY not in f"{answers} {problems} {link!r}"


class KilledContract:
    """Kinds whose server can be killed."""

    def test_what_was_confirmed_is_there_after_a_kill_and_the_rest_arrives_with_its_id(self, stage: KindStage) -> None:
        """Batches of five flow until some were confirmed behind the restart, too."""
        confirmed: dict[str, None] = {}
        faults: set[SendFault | None] = set()
        enough, is_back, over = threading.Event(), threading.Event(), threading.Event()

        def flow() -> None:
            waiting: list[Posting] = []
            behind = 0
            with opened(stage) as link:
                while (waiting or behind < 20) and not over.wait(0.005):
                    waiting += [posting() for _ in range(5 - len(waiting) if behind < 20 else 0)]
                    was_back = is_back.is_set()
                    answers = link.send(waiting, timeout_s=5.0)
                    faults.update(map(fault_of, answers))
                    done = [one.id for one, answer in zip(waiting, answers, strict=True) if fault_of(answer) is None]
                    confirmed.update(dict.fromkeys(done))
                    waiting = [one for one in waiting if one.id not in confirmed]
                    behind += len(done) if was_back else 0
                    if len(confirmed) >= 30:
                        enough.set()

        with ThreadPoolExecutor(1) as pool:
            flowing = pool.submit(flow)
            try:
                assert enough.wait(LONG_S)
                stage.kill()
                before = set(confirmed)
                stage.server.start()
                is_back.set()
                flowing.result(4 * LONG_S)
            finally:
                over.set()

        found = set(ids(stage.arrived()))
        assert len(before) < len(confirmed)
        assert set(confirmed) == found
        assert faults <= {None, SendFault.AWAY, SendFault.LATE}


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with a bound."""
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {LONG_S} s: {what}"
        time.sleep(0.01)
