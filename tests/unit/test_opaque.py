"""Nothing that a handler raises or answers runs unguarded: it is an outcome with a text, and the thread goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

import pytest

import workq
from tests.unit.room import Room
from workq.values.task import Dead, Done, Failed, Outcome, Worked


class Trap(BaseException):
    """What the traps raise: no Exception, and nothing that can be looked at either."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise SystemExit(name)

    def __str__(self) -> NoReturn:
        raise SystemExit

    __repr__ = __str__


def trap(*_: Any, **__: Any) -> NoReturn:
    raise Trap


def of_class(**members: Any) -> type[Exception]:
    return type("Strange", (Exception,), members)


class Made:
    """Classes that pytest must not look at, as it does at what a module has."""

    nameless_type = type("NamelessType", (type,), {"__name__": property(trap), "__getattribute__": trap})
    untestable = type(
        "Untestable", (type,), dict.fromkeys(("__instancecheck__", "__subclasscheck__", "__eq__", "__hash__"), trap)
    )

    @classmethod
    def nameless(cls, *bases: type) -> Any:
        return cls.nameless_type("Nameless", bases, {})

    @classmethod
    def untestable_error(cls) -> Any:
        return cls.untestable("UntestableError", (Exception,), {})


def endless() -> BaseException:
    kind: Any = type("Endless", (ExceptionGroup,), {"exceptions": property(trap)})
    found: BaseException = kind("many", [ValueError()])
    return found


class Text(str):
    __slots__ = ()
    __getitem__ = __str__ = __repr__ = __iter__ = __len__ = encode = replace = __format__ = trap


def at_cause() -> BaseException:
    error = ValueError("plain")
    error.__cause__ = of_class(__getattribute__=trap)()
    return error


def waits(error: Any, name: str, value: object) -> BaseException:
    setattr(error, name, value)
    found: BaseException = error
    return found


ERRORS: dict[str, Callable[[], BaseException]] = {
    "__getattribute__": of_class(__getattribute__=trap),
    "__class__": of_class(__class__=property(trap)),
    "__str__": of_class(__str__=trap, __repr__=trap),
    "a text": of_class(__str__=lambda _: Text("x")),
    "args": of_class(args=property(trap)),
    "__cause__": of_class(__cause__=property(trap), __context__=property(trap)),
    "__traceback__": of_class(__traceback__=property(trap), __notes__=property(trap)),
    "__eq__": of_class(__eq__=trap, __hash__=trap, __bool__=trap, __len__=trap, __iter__=trap),
    "__name__ of its class": lambda: Made.nameless(Exception)(),
    "checks of its class": lambda: Made.untestable_error()(),
    "members of a group": endless,
    "its cause": at_cause,
    "a trap": Trap,
    "a name": type("N" * 100_000, (Exception,), {}),
    "reason of a Cancel": type("Strange", (workq.Cancel,), {"reason": property(trap, lambda *_: None)}),
    "in_s of a Snooze": lambda: waits(workq.Snooze(1.0), "in_s", of_class(__class__=property(trap))()),
    "in_s of a Retry": lambda: waits(workq.Retry("x"), "in_s", of_class(__class__=property(trap))()),
    "args of a SoftTimeLimit": type("Strange", (workq.SoftTimeLimit,), {"args": property(trap)}),
}


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    """One for all: its two threads and its loop outlive whatever comes."""
    room = Room()
    yield room
    room.end()


@pytest.fixture(autouse=True)
def _goes_on(room: Room) -> Iterator[None]:
    yield
    assert [room.run(lambda: 1) for _ in range(2)] == [Done("1"), Done("1")]
    assert not room.died.is_set()


def has_failed(outcome: Outcome) -> bool:
    text = outcome.error if isinstance(outcome, Failed | Dead) else ""
    text.encode()
    return bool(text) and "\x00" not in text


@pytest.mark.parametrize("kind", list(ERRORS))
def test_whatever_is_raised_is_a_failure_with_a_text(room: Room, kind: str) -> None:
    def raises(*_: Any) -> NoReturn:
        raise ERRORS[kind]()

    async def araises(*_: Any) -> NoReturn:
        raise ERRORS[kind]()

    for function in (raises, araises):
        assert has_failed(room.run(function, give_up_on=Made.untestable_error()))
        assert has_failed(room.run(function, retry_on=Made.untestable_error()))
        assert all(map(has_failed, room.run_together(function, 1, 2)))
        assert has_failed(room.run_job(function, "p", partitioned=True))
        outcome = room.run_job(function, 1, 2, give_up_on=Made.untestable_error())
        assert isinstance(outcome, Worked) or has_failed(outcome)


@pytest.mark.parametrize("kind", list(ERRORS))
def test_whatever_is_said_of_an_item_is_its_failure_with_a_text(room: Room, kind: str) -> None:
    def says(items: list[int]) -> workq.Verdict:
        return workq.Verdict(failed={items[0]: ERRORS[kind]()})

    failed, done = room.run_together(says, 1, 2)
    outcome = room.run_job(says, 1, 2)

    assert has_failed(failed) or kind.startswith(("reason", "in_s"))  # of itself: it may be cancelled, or snoozed
    assert done == Done()
    assert isinstance(outcome, Worked)
    assert (outcome.succeeded, outcome.again is not None) == (1, True)
    assert outcome.error


def strange() -> Any:
    """An answer that cannot be looked at."""
    names = ("__getattribute__", "__str__", "__repr__", "__eq__", "__hash__", "__bool__", "__len__", "__iter__")
    return type("Strange", (), {"__class__": property(trap)} | dict.fromkeys(names, trap))()


def strange_verdict() -> Any:
    return type("Strange", (workq.Verdict,), {"__getattribute__": trap})()


ANSWERS: dict[str, Callable[[], object]] = {
    "an object": strange,
    "a list of them": lambda: [strange(), 1],
    "of a nameless class": lambda: Made.nameless()(),
    "a class": lambda: Made.nameless(Exception),
    "an error": lambda: Made.nameless(Exception)(),
    "a text": lambda: Text("x"),
    "a number": type("Number", (int,), {"__index__": trap, "__repr__": trap, "__lt__": trap}),
    "a list": type("List", (list,), {"__iter__": trap, "__len__": trap, "__getitem__": trap}),
    "a mapping": type("Mapping", (dict,), {"items": trap, "__iter__": trap, "__len__": trap, "values": trap}),
}


@pytest.mark.parametrize("kind", list(ANSWERS))
def test_whatever_is_answered_is_a_success_with_a_note(room: Room, kind: str) -> None:
    async def answers() -> object:
        return ANSWERS[kind]()

    for outcome in (room.run(lambda: ANSWERS[kind]()), room.run(answers)):
        assert isinstance(outcome, Done)
        assert outcome.note is not None
        assert outcome.note.startswith("result_error: ")


def test_an_answer_for_a_list_that_cannot_be_read_is_no_verdict(room: Room) -> None:
    verdicts: list[Callable[[], object]] = [
        *ANSWERS.values(),
        strange_verdict,
        lambda: workq.Verdict(failed=strange()),
        lambda: workq.Verdict(skipped=[strange()]),
        lambda: workq.Verdict(results=cast(Any, [(1, 2, 3)])),
    ]
    for make in verdicts:
        [together] = room.run_together(lambda _, make=make: make(), 1)
        chunk = room.run_job(lambda _, make=make: make(), 1)
        assert isinstance(together, Dead)
        assert together.reason == "not retried: WrongVerdict"
        assert isinstance(chunk, Worked)
        assert chunk.failed[0].error


@pytest.mark.parametrize("kind", list(ANSWERS))
def test_a_result_of_an_item_that_cannot_be_kept_is_a_success_with_a_note(room: Room, kind: str) -> None:
    def answers(items: list[int]) -> workq.Verdict:
        return workq.Verdict(results={item: ANSWERS[kind]() for item in items})

    [together] = room.run_together(answers, 1)
    chunk = room.run_job(answers, 1, collect="all")

    assert isinstance(together, Done)
    assert together.note
    assert isinstance(chunk, Worked)
    assert (chunk.succeeded, chunk.results[0].note is not None) == (1, True)


class Policy:
    """A retry policy of the application's."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make

    def delay_s(self, failures: int, **_: Any) -> Any:
        return self.make()


def test_a_retry_policy_may_raise_or_answer_anything(room: Room) -> None:
    def fails(*_: Any) -> NoReturn:
        raise ValueError

    for make in [ANSWERS["an object"], ANSWERS["a text"], trap, lambda: float("nan"), lambda: -1.0, lambda: 1e300]:
        outcome = room.run(fails, retry=Policy(make))
        assert isinstance(outcome, Failed)
        assert 0.0 <= outcome.delay_s <= 3600.0
        assert "the default delay was taken" in outcome.error


def test_a_retry_function_may_raise_or_answer_anything(room: Room) -> None:
    def fails(*_: Any) -> NoReturn:
        raise ValueError

    for make in [*ANSWERS.values(), trap]:
        assert has_failed(room.run(fails, retry=lambda *_, make=make: make()))
        assert isinstance(room.run_job(lambda items: {items[0]: ValueError()}, 1, retry=lambda *_: strange()), Worked)
