"""Task options: the one table of what is stored with a task, and the checks of what users give.

A line of `TASK_OPTIONS` says all that is the same wherever an option goes: its default, its check, its columns and its
text. From the table come the keywords that `WorkQueue.task`, `WorkQueue.job` and `Handler.options` take, the columns
that the ledger writes and reads, what a job gives to its subtasks and a schedule to its ticks, and what the command
line shows.

What an option does is elsewhere: where it acts. What cannot be checked without the handler is checked there: a limit,
which names parameters of the function, and a key with its window.

To add one: CONTRIBUTING.md, "Add a task option".
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypedDict, TypeVar

from msgspec.structs import replace

from workq.errors import ConfigError
from workq.values.names import check_choice, check_delay_s, check_key
from workq.values.task import AfterDeath, Limit, OnCrash, Task, TaskOptions

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=TaskOptions)
BUDGET_MAX: Final = 1_000_000


class GivenTo(StrEnum):
    """The functions that take options. The value is what Python calls the function in an error."""

    TASK = "WorkQueue.task"
    JOB = "WorkQueue.job"
    CALL = "Handler.options"


class OptionKeywords(TypedDict, total=False):
    """What `WorkQueue.task` and `WorkQueue.job` take of the table, for type checkers."""

    failures_max: int
    crashes_max: int
    on_crash: str


class CallKeywords(TypedDict, total=False):
    """What `Handler.options` takes of the table, for type checkers. None: as the handler has it."""

    failures_max: int | None
    on_crash: str | None
    expires_s: float | None
    order_key: str | None
    after_death: str | None


# -- checks: what a user gave, and what was chosen before it


def check_failures_max(value: object, _chosen: object) -> int:
    """A whole number of failures, at least 1."""
    return _budget(value, "failures_max")


def check_crashes_max(value: object, _chosen: object) -> int:
    """A whole number of crashes, at least 1."""
    return _budget(value, "crashes_max")


def _budget(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= BUDGET_MAX:
        raise ConfigError(f"{what}: need a whole number from 1 to {BUDGET_MAX}, got {value!r}")
    return value


def check_on_crash(value: object, _chosen: object) -> OnCrash:
    """A recovery policy: what becomes of a task whose worker died while it ran."""
    return check_choice(value, OnCrash, "on_crash")


def check_expires_s(value: object, chosen: Any) -> float:
    """Seconds above 0 and above the delay, up to what a delay may be."""
    expires_s = check_delay_s(value, "expires_s")
    if expires_s <= chosen.delay_s:
        raise ConfigError(
            f"expires_s: {expires_s:g} s from now is not after it is due, {chosen.delay_s:g} s from now: "
            "it would never start"
        )
    return expires_s


def check_order_key(value: object, _chosen: object) -> str:
    """A key as any other."""
    return check_key(value, "order_key")


def check_after_death(value: object, chosen: Any) -> AfterDeath:
    """What becomes of the others of an order key, which has to be given, too."""
    if chosen.order_key is None or value not in tuple(AfterDeath):
        raise ConfigError(f"after_death: need one of {', '.join(AfterDeath)}, with an order_key, got {value!r}")
    return AfterDeath(str(value))


# -- the table


def _as_it_is(value: Any) -> tuple[Any, ...]:
    return (value,)


def _only(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A field of `NewTask` that is written into columns of the task's row."""

    name: str
    default: Any = None
    columns: tuple[str, ...]
    """Of the table `task`. An option that handlers have stands in the table `schedule`, too."""
    write: Callable[[Any], tuple[Any, ...]] = _as_it_is
    """What is written into the columns; the default is NULL in each."""
    read: Callable[..., Any] = _only
    """The value again, of what stands in the columns."""
    is_always_written: bool = False
    """Its column is never NULL: the default is written as any other value."""
    is_from_now: bool = False
    """It is seconds from the insert, and its column is the instant to which they lead."""
    is_apart: bool = False
    """Its tasks are never inserted as tasks that are alike: each has its own, or an entry rule looks at each."""

    def written(self, value: Any) -> tuple[Any, ...]:
        """What stands in its columns for this value."""
        return (
            (None,) * len(self.columns) if value == self.default and not self.is_always_written else self.write(value)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Stored):
    """One option that a user gives, and that is stored with the task."""

    given_to: tuple[GivenTo, ...]
    """What `WorkQueue.task` takes, a job and a schedule give to their tasks: it is a field of `TaskOptions`."""
    check: Callable[[Any, Any], Any]
    """Gets the value, and what was chosen before it; answers the field's value, or raises ConfigError."""
    says: str
    """Its line in the docstrings."""


TASK_OPTIONS: Final = (
    Option(
        name="failures_max",
        default=5,
        columns=("failures_max",),
        is_always_written=True,
        given_to=(GivenTo.TASK, GivenTo.JOB, GivenTo.CALL),
        check=check_failures_max,
        says="after so many failures it is dead. 1 means no retry.",
    ),
    Option(
        name="crashes_max",
        default=3,
        columns=("crashes_max",),
        is_always_written=True,
        given_to=(GivenTo.TASK, GivenTo.JOB),
        check=check_crashes_max,
        says="after so many deaths of its worker process while it ran, it is dead.",
    ),
    Option(
        name="on_crash",
        default=OnCrash.AGAIN,
        columns=("on_crash",),
        write=lambda value: (value.value,),
        read=OnCrash,
        given_to=(GivenTo.TASK, GivenTo.JOB, GivenTo.CALL),
        check=check_on_crash,
        says="what becomes of a task that had started when its process died, was killed, or was not heard of any more: "
        "it runs `again` (until `crashes_max`); it has to `fail` (as if it had raised, until `failures_max`); or it is "
        "dead at once, and workq has to `ask` a person: `workq task retry`.",
    ),
    Option(
        name="expires_s",
        columns=("expires_at",),
        is_from_now=True,
        given_to=(GivenTo.CALL,),
        check=check_expires_s,
        says="seconds from now, more than its delay; from then on no attempt is started any more, be it the first or a "
        "retry: the task is cancelled, for the reason `expired`. What runs then runs on.",
    ),
    Option(
        name="order_key",
        columns=("order_key",),
        is_apart=True,
        given_to=(GivenTo.CALL,),
        check=check_order_key,
        says="tasks with the same one, whatever their names and queues, run one at a time, in the order in which they "
        "were committed.",
    ),
    Option(
        name="after_death",
        default=AfterDeath.BLOCK,
        columns=("after_death",),
        write=lambda value: (value.value,),
        read=AfterDeath,
        is_apart=True,
        given_to=(GivenTo.CALL,),
        check=check_after_death,
        says="when it is dead, the others of its order key `block` until a person revives or discards it, as by "
        "default, or `skip` it.",
    ),
)

LIMIT: Final = Stored(
    name="limit",
    columns=("limit_key", "limit_most", "limit_rate"),
    write=lambda limit: (limit.key, limit.concurrency, limit.rate),
    read=Limit,
    is_apart=True,
)
"""What `limit`, `rate` and `concurrency` come to for one call; checked by `LimitRule.of`."""

OF_EACH_TASK: Final = tuple(one for one in TASK_OPTIONS if one.name in TaskOptions.__struct_fields__)
"""What a handler's tasks have wherever they come from: a call, a job, a schedule."""

SHOWN: Final = tuple(
    one for one in (*TASK_OPTIONS, LIMIT) if one.name in Task.__dataclass_fields__ and not one.is_always_written
)
"""What a `Task` shows beside its budgets."""


def in_columns(given: object, fields: Iterable[Stored]) -> dict[str, Any]:
    """These fields of a value, in the columns of a row."""
    return {
        column: value
        for one in fields
        for column, value in zip(one.columns, one.written(getattr(given, one.name)), strict=True)
    }


def of_row(row: Any, fields: Iterable[Stored]) -> dict[str, Any]:
    """What `in_columns` has written, by the names of the fields."""
    found = ((one, [getattr(row, column) for column in one.columns]) for one in fields)
    return {one.name: one.default if values[0] is None else one.read(*values) for one, values in found}


def checked(chosen: C, given: Mapping[str, Any], to: GivenTo) -> C:
    """`chosen` with what was given of the table, each by its check.

    None says nothing of a call, which has the handler's own then, and where it is the default.

    Raises:
        ConfigError: one of them is out of range. TypeError: this function takes no such option.
    """
    taken = [one for one in TASK_OPTIONS if to in one.given_to]
    for name in given.keys() - {one.name for one in taken}:
        raise TypeError(f"{to}() got an unexpected keyword argument {name!r}")
    for one in taken:
        value = given.get(one.name)
        if value is not None or (one.name in given and to is not GivenTo.CALL and one.default is not None):
            chosen = replace(chosen, **{one.name: one.check(value, chosen)})
    return chosen


def documented(to: GivenTo) -> Callable[[F], F]:
    """Puts the table's options into a docstring, in the place of its line `**options`, unless it has them already."""

    def document(function: F) -> F:
        text = function.__doc__ or ""  # python -OO has none
        line = re.search(r"^( *)\*\*options:.*\n", text, re.MULTILINE)
        if line is not None:
            indent = line[1]
            said = [
                textwrap.fill(_said(one, to), 120, initial_indent=indent, subsequent_indent=indent + "    ") + "\n"
                for one in TASK_OPTIONS
                if to in one.given_to and f"\n{indent}{one.name}: " not in text
            ]
            function.__doc__ = text[: line.start()] + "".join(said) + text[line.end() :]
        return function

    return document


def _said(one: Option, to: GivenTo) -> str:
    """What is left out of a call is the handler's own."""
    default = "" if to is GivenTo.CALL or one.default is None else f" ({one.default} by default)"
    return f"{one.name}{default}: {one.says}"
