"""Handlers: the user's functions, registered under a name, and the calls that enqueue them.

A name is looked up in a dictionary, never imported. A handler is still an ordinary function when it is called.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from workq.errors import ConfigError, PayloadError
from workq.handlers import answer
from workq.handlers.naming import innermost
from workq.handlers.retry import Retries
from workq.limits.rule import LimitRule
from workq.schedules.timetable import MissedTicks
from workq.values import codec
from workq.values.lane import check_priority, physical
from workq.values.names import check_delay_s, check_key, check_queue, check_task_name
from workq.values.task import AfterDeath, Enqueued, Limit, NewTask, OnCrash, Priority

if TYPE_CHECKING:
    from workq.enqueue.producer import Producer
    from workq.jobs.define import Job
    from workq.ledger import NewSchedule
    from workq.schedules.timetable import Timetable

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

BUDGET_MAX = 1_000_000
TIME_LIMIT_MAX_S = 7 * 86400.0
BATCH_MAX = 1000
LINGER_MAX_S = 60.0
ALIKE_MAX = 3


def check_budget(value: object, what: str) -> int:
    """A whole number of failures or crashes, at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= BUDGET_MAX:
        raise ConfigError(f"{what}: need a whole number from 1 to {BUDGET_MAX}, got {value!r}")
    return value


def check_time_limit_s(value: object) -> float:
    """Seconds above 0, up to a week."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= TIME_LIMIT_MAX_S:
        raise ConfigError(f"time_limit_s: need seconds above 0, up to {TIME_LIMIT_MAX_S:.0f}, got {value!r}")
    return float(value)


def check_expires_s(value: object, *, delay_s: float) -> float:
    """Seconds above 0 and above the delay, up to what a delay may be."""
    expires_s = check_delay_s(value, "expires_s")
    if expires_s <= delay_s:
        raise ConfigError(
            f"expires_s: {expires_s:g} s from now is not after it is due, {delay_s:g} s from now: it would never start"
        )
    return expires_s


def check_on_crash(value: object) -> OnCrash:
    """A recovery policy: what becomes of a task whose worker died while it ran."""
    if not isinstance(value, str) or value not in tuple(OnCrash):
        raise ConfigError(f"on_crash: need one of {', '.join(OnCrash)}, got {value!r}")
    return OnCrash(value)


def seconds_until(at: object) -> float:
    """Seconds from now until an aware instant; 0 when it is past."""
    if not isinstance(at, datetime) or at.tzinfo is None or at.utcoffset() is None:
        raise ConfigError(f"at: need an aware datetime, such as datetime.now(UTC) + timedelta(hours=1), got {at!r}")
    try:
        ahead = at.astimezone(UTC) - datetime.now(UTC)
    except OverflowError as error:
        raise ConfigError(f"at: {at!r} is outside of the years 1 to 9999 in UTC") from error
    return check_delay_s(max(timedelta(0), ahead).total_seconds())


@dataclass(frozen=True, slots=True)
class Batch:
    """How many single tasks a worker gathers for one call, and for how long the first of them waits for others."""

    size: int
    linger_s: float


def check_batch(size: object, linger_s: object) -> Batch:
    """A whole number of tasks, and seconds from 0 to a minute: what waits has been claimed already."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= BATCH_MAX:
        raise ConfigError(f"batch: need a whole number from 1 to {BATCH_MAX}, got {size!r}")
    if isinstance(linger_s, bool) or not isinstance(linger_s, int | float) or not 0.0 <= linger_s <= LINGER_MAX_S:
        raise ConfigError(f"linger_s: need seconds from 0 to {LINGER_MAX_S:.0f}, got {linger_s!r}")
    return Batch(size, float(linger_s))


@dataclass(frozen=True, slots=True)
class Options:
    """How one call is recorded. `connection` is the caller's own SQLAlchemy connection or session."""

    queue: str
    failures_max: int
    crashes_max: int
    delay_s: float = 0.0
    at: datetime | None = None
    """The instant that `delay_s` leads to, if one was named that is not past."""
    key: str | None = None
    expires_s: float | None = None
    on_crash: OnCrash = OnCrash.AGAIN
    priority: Priority = Priority.NORMAL
    key_for_s: float | None = None
    order_key: str | None = None
    after_death: AfterDeath = AfterDeath.BLOCK
    limit: LimitRule | None = None
    connection: Any = field(default=None, repr=False)


class Call(answer.Work, Generic[P]):
    """A handler with options, ready to be enqueued."""

    def __init__(self, handler: Handler[P, Any], options: Options) -> None:
        self._handler = handler
        self._options = options

    def taken(self) -> Options:
        """The options that were given."""
        return self._options

    def new_task(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewTask:
        """Check and encode one call, without recording it."""
        return self._handler.new_task(self._options, args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Record the task. Returns when the ledger has committed it, or has it in the caller's transaction.

        Raises:
            TypeError: the arguments do not fit the handler; PayloadError: JSON cannot carry them. Nothing was recorded.
            LedgerUnavailable: nothing was recorded, or as CommitUnknown perhaps.
        """
        self._handler.check_name()
        task = self._handler.new_task(self._options, args, kwargs)
        return self._handler.producer().record([task], connection=self._options.connection)[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """`enqueue` without blocking the event loop."""
        if self._options.connection is not None:
            raise ConfigError(
                "aenqueue: a connection belongs to its thread; use `await session.run_sync(...)` and enqueue()"
            )
        return await asyncio.to_thread(self.enqueue, *args, **kwargs)

    def enqueue_many(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> int:
        """Record one task for each item: a mapping of keyword arguments or a tuple of positional ones.

        Streams in constant memory, in transactions of 500 (or all in the caller's). Answers how many were recorded.
        An item that does not fit raises; the transactions before its own stand, and the error's note says how many
        tasks that are.
        """
        if self._options.key is not None:
            raise ConfigError("enqueue_many: one key cannot belong to many tasks; enqueue them one by one")
        self._handler.check_name()
        return self._handler.producer().record_many(self._new_tasks(calls), connection=self._options.connection)

    def _new_tasks(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> Iterator[NewTask]:
        for index, call in enumerate(calls):
            if isinstance(call, Mapping):
                yield self._handler.new_task(self._options, (), dict(call))
            elif isinstance(call, tuple):
                yield self._handler.new_task(self._options, call, {})
            else:
                raise PayloadError(
                    f"item {index}: need a mapping of keyword arguments or a tuple of positional ones, "
                    f"got {type(call).__name__}"
                )


class Handler(answer.Work, Generic[P, R]):
    """A registered function. Calling it calls the function; `enqueue` records a task instead."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        options: Options,
        retries: Retries,
        time_limit_s: float | None,
        payload_max_bytes: int,
        kept_s: float,
        producer: Callable[[], Producer],
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = name
        self.defaults = options
        self.retries = retries
        self.time_limit_s = time_limit_s
        self.batch: Batch | None = None
        self.ahead: Callable[[Sequence[Any]], Sequence[Any]] | None = None
        """Gets the arguments of what was claimed together, and answers them, with what it has read for all at once."""
        self.is_async = answer.is_coroutine_function(function)
        self.doubt: str | None = None
        """Why its name is not certain, so that nothing can be enqueued (see naming.py)."""
        self.producer = producer
        self._payload_max_bytes = payload_max_bytes
        self._kept_s = kept_s
        self._signature = inspect.signature(function)
        self._positions = _positions(self._signature)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def check_name(self) -> None:
        """Whether a worker knows it by this name.

        Raises:
            ConfigError: that is not certain.
        """
        if self.doubt is not None:
            raise ConfigError(f"task {self.name!r} cannot be enqueued: {self.doubt}")

    def becomes(self, function: Callable[..., Any]) -> None:
        """From now on another function is called, with what the first would get (see jobs/define.py)."""
        self.function = function

    def __repr__(self) -> str:
        return f"<workq task {self.name} on queue {self.defaults.queue}>"

    def options(
        self,
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        key: str | None = None,
        key_for_s: float | None = None,
        order_key: str | None = None,
        after_death: str | None = None,
        queue: str | None = None,
        priority: str | None = None,
        failures_max: int | None = None,
        expires_s: float | None = None,
        on_crash: str | None = None,
        limit: str | None = None,
        rate: str | None = None,
        concurrency: int | None = None,
        connection: Any = None,
    ) -> Call[P]:
        """The same handler with other options for one call.

        Args:
            delay_s: seconds from now, up to ten years; or
            at: an aware instant. In the past means now.
            key: at most one live task of this name has it; the live one is answered instead.
            key_for_s: seconds from now for which it has the key in any case, also when it is settled earlier; at most
                as long as settled tasks are kept (`retention_s`).
            order_key: tasks with the same one, whatever their names and queues, run one at a time, in the order in
                which they were committed.
            after_death: when it is dead, the others of its order key `block` until a person revives or discards it, as
                by default, or `skip` it.
            queue: another queue than the handler's own.
            priority: `high`, `normal` or `low`, instead of the handler's own.
            failures_max: how often it may fail, 1 or more.
            expires_s: seconds from now, more than its delay; from then on no attempt is started any more, be it the
                first or a retry: the task is cancelled, for the reason `expired`. What runs then runs on.
            on_crash: what becomes of it when its worker dies while it runs, as for `WorkQueue.task`.
            limit: another limit than the handler's own, with its
            rate: and
            concurrency: as for `WorkQueue.task`.
            connection: the caller's SQLAlchemy connection or session; the task commits or rolls back with it.

        Raises:
            ConfigError: one of them is out of range. Nothing was recorded.
        """
        if delay_s is not None and at is not None:
            raise ConfigError("delay_s and at: give one of them")
        chosen = self.defaults
        if delay_s is not None:
            chosen = replace(chosen, delay_s=check_delay_s(delay_s))
        if at is not None:
            delay_s = seconds_until(at)
            chosen = replace(chosen, delay_s=delay_s, at=at if delay_s else None)
        if key is not None:
            chosen = replace(chosen, key=check_key(key))
        if key_for_s is not None:
            chosen = replace(chosen, key_for_s=self._check_key_for_s(key_for_s, key))
        if order_key is not None:
            chosen = replace(chosen, order_key=check_key(order_key, "order_key"))
        if after_death is not None:
            if chosen.order_key is None or after_death not in tuple(AfterDeath):
                raise ConfigError(
                    f"after_death: need one of {', '.join(AfterDeath)}, with an order_key, got {after_death!r}"
                )
            chosen = replace(chosen, after_death=AfterDeath(after_death))
        if queue is not None:
            chosen = replace(chosen, queue=check_queue(queue))
        if priority is not None:
            chosen = replace(chosen, priority=check_priority(priority))
        if failures_max is not None:
            chosen = replace(chosen, failures_max=check_budget(failures_max, "failures_max"))
        if expires_s is not None:
            chosen = replace(chosen, expires_s=check_expires_s(expires_s, delay_s=chosen.delay_s))
        if on_crash is not None:
            chosen = replace(chosen, on_crash=check_on_crash(on_crash))
        if limit is not None or rate is not None or concurrency is not None:
            chosen = replace(chosen, limit=self.limit_rule(limit, rate, concurrency))
        physical(chosen.queue, chosen.priority)
        return Call(self, replace(chosen, connection=connection))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Record a task with the handler's own options. See `Call.enqueue`."""
        return Call(self, self.defaults).enqueue(*args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """`enqueue` without blocking the event loop."""
        return await Call(self, self.defaults).aenqueue(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> int:
        """Record many tasks. See `Call.enqueue_many`."""
        return Call(self, self.defaults).enqueue_many(calls)

    def new_task(self, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewTask:
        """Check and encode one call. The same call spelled by position or by keyword gives the same payload."""
        by_position, by_name = args, kwargs
        if kwargs or len(args) not in self._positions:
            bound = self._signature.bind(*args, **kwargs)
            by_position, by_name = bound.args, bound.kwargs
        try:
            payload = codec.encode({"a": by_position, "k": by_name}, path="args", max_bytes=self._payload_max_bytes)
        except PayloadError:
            # again under the parameters' own names, for a message that a caller can read
            named = self._signature.bind(*args, **kwargs).arguments
            codec.encode(dict(named), path="args", max_bytes=self._payload_max_bytes)
            raise
        return NewTask(
            id=codec.new_task_id(),
            name=self.name,
            queue=physical(options.queue, options.priority),
            payload=payload,
            delay_s=options.delay_s,
            failures_max=options.failures_max,
            crashes_max=options.crashes_max,
            key=options.key,
            expires_s=options.expires_s,
            on_crash=options.on_crash,
            key_for_s=options.key_for_s,
            order_key=options.order_key,
            after_death=options.after_death,
            limit=self.limit_of(options.limit, args, kwargs),
            at=options.at,
        )

    def limit_rule(self, limit: str | None, rate: str | None, concurrency: int | None) -> LimitRule:
        """What is given of a limit, checked; its name is the task's, unless there is another."""
        return LimitRule.of(
            self.name if limit is None else limit, concurrency, rate, parameters=tuple(self._signature.parameters)
        )

    def limit_of(self, rule: LimitRule | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Limit | None:
        """What one call of the function counts for."""
        if rule is None:
            return None
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return Limit(check_key(rule.key(bound.arguments)), rule.concurrency, rule.rate)

    def _check_key_for_s(self, value: object, key: str | None) -> float:
        if key is None:
            raise ConfigError("key_for_s: it belongs to a key; give key=, too")
        key_for_s = check_delay_s(value, "key_for_s")
        if key_for_s > self._kept_s:
            raise ConfigError(
                f"key_for_s: {key_for_s:g} s is longer than settled tasks are kept, {self._kept_s:g} s; "
                "raise retention_s and dead_retention_s first"
            )
        return key_for_s

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """None when the function takes these arguments, otherwise why not."""
        if not kwargs and len(args) in self._positions:
            return None  # as nearly always: binding costs ten times as much
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return None


class BatchHandler(Handler[[T], R]):
    """A function that gets a list, and whose tasks are enqueued one by one, each with one item of such a list."""

    def __init__(self, function: Callable[[list[T]], R], *, batch: Batch, **others: Any) -> None:
        super().__init__(function, **others)  # type: ignore[arg-type]  # its tasks have another signature than itself
        try:
            self._signature.bind([])
        except TypeError as error:
            raise ConfigError(
                f"{_place(function)}: with batch= a function takes a list, and nothing else without a default: {error}"
            ) from error
        self.batch = batch
        self._signature = inspect.Signature([inspect.Parameter("item", inspect.Parameter.POSITIONAL_ONLY)])
        self._positions = _positions(self._signature)

    def __call__(self, items: list[T]) -> R:  # type: ignore[override]  # it stays the function that was registered
        return self.function(items)  # type: ignore[arg-type]

    def limit_rule(self, limit: str | None, rate: str | None, concurrency: int | None) -> LimitRule:
        """As of any handler; but so few at once that they never fill a batch would only wait for each other."""
        rule = super().limit_rule(limit, rate, concurrency)
        if self.batch is not None and rule.concurrency is not None and rule.concurrency < self.batch.size:
            raise ConfigError(
                f"concurrency: it counts tasks, not calls, and {rule.concurrency} at once are less than "
                f"batch={self.batch.size}: each call would wait for tasks that may not come"
            )
        return rule


def _positions(signature: inspect.Signature) -> range:
    """With how many arguments, all by position, a function can be called."""
    kinds = inspect.Parameter
    by_position = [
        one for one in signature.parameters.values() if one.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    others = [one for one in signature.parameters.values() if one not in by_position]
    if any(one.kind is kinds.KEYWORD_ONLY and one.default is kinds.empty for one in others):
        return range(0)
    least = sum(one.default is kinds.empty for one in by_position)
    has_rest = any(one.kind is kinds.VAR_POSITIONAL for one in others)
    return range(least, sys.maxsize if has_rest else len(by_position) + 1)


def new_schedule(
    name: str,
    timetable: Timetable,
    missed: str,
    what: Handler[..., Any] | Call[...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> NewSchedule:
    """What is to tick, checked and encoded as a call is.

    Raises:
        ConfigError: the name, the policy or an option cannot be; TypeError, PayloadError: as for an enqueue.
    """
    from workq.ledger import NewSchedule

    check_task_name(name)
    if missed not in tuple(MissedTicks):
        raise ConfigError(f"missed: need one of {', '.join(MissedTicks)}, got {missed!r}")
    if not isinstance(what, Call | Handler):
        raise ConfigError(f"schedule {name!r}: give the task itself, as @wq.task has made it, not {what!r:.100}")
    call = what if isinstance(what, Call) else what.options()
    options = call.taken()
    if options.delay_s or options.key or options.order_key or options.connection is not None:
        raise ConfigError(
            f"schedule {name!r}: a delay, a key, an order key or a connection cannot belong to each of its tasks"
        )
    task = call.new_task(args, kwargs)
    return NewSchedule(
        name=name,
        timetable=timetable,
        missed=MissedTicks(missed),
        task_name=task.name,
        queue=task.queue,
        payload=task.payload,
        failures_max=task.failures_max,
        crashes_max=task.crashes_max,
        expires_s=task.expires_s,
        on_crash=task.on_crash,
        limit=task.limit,
    )


class Registry:
    """The handlers of one application, by name, and what it schedules."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler[..., Any]] = {}
        self._schedules: dict[str, NewSchedule] = {}
        self.jobs: dict[str, Job] = {}
        self._is_frozen = False

    def add(self, handler: Handler[..., Any]) -> None:
        """Register. Raises ConfigError when the name is taken by another function, or a worker runs already."""
        if self._is_frozen:
            raise ConfigError(
                f"task {handler.name!r} is registered after the worker started; register at import time, "
                "in the module that WORKQ_APP names or one that it imports"
            )
        taken = self._handlers.get(handler.name)
        if taken is not None:
            raise ConfigError(
                f"task {handler.name!r} is registered twice: by {_place(taken.function)} "
                f"and {_place(handler.function)}; give one of them another name="
            )
        self._check_limit(handler)
        self._handlers[handler.name] = handler

    def _check_limit(self, handler: Handler[..., Any]) -> None:
        rule = handler.defaults.limit
        for other in self._handlers.values():
            theirs = other.defaults.limit
            if rule is not None and theirs is not None and theirs.name == rule.name and theirs != rule:
                raise ConfigError(
                    f"limit {rule.name!r}: task {handler.name!r} and task {other.name!r} give it other numbers; "
                    "what shares a limit has to agree on them"
                )

    def schedule(self, given: NewSchedule) -> None:
        """Let something tick. Raises ConfigError when the name is taken."""
        if given.name in self._schedules:
            raise ConfigError(f"schedule {given.name!r} is there twice; give one of them another name")
        self._schedules[given.name] = given

    def schedules(self) -> list[NewSchedule]:
        """All that is to tick, by name."""
        return [self._schedules[name] for name in sorted(self._schedules)]

    def get(self, name: str) -> Handler[..., Any] | None:
        """The handler of a name, or None."""
        return self._handlers.get(name)

    def alike(self, name: str) -> list[str]:
        """Names that end as one that is unknown, a few at most: of a function that was started, or moved, otherwise."""
        parts = name.split(".")[::-1]

        def shared(other: str) -> int:
            pairs = zip(parts, other.split(".")[::-1], strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        return sorted(filter(shared, self.names()), key=shared, reverse=True)[:ALIKE_MAX]

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._handlers)

    def batch_max(self) -> int:
        """The most tasks that a call of one of them takes; 0 when none takes several."""
        return max((handler.batch.size for handler in self._handlers.values() if handler.batch), default=0)

    def queues(self) -> list[str]:
        """The queues that the handlers use by default, sorted."""
        return sorted({handler.defaults.queue for handler in self._handlers.values()})

    def freeze(self) -> None:
        """From now on registering is an error: a running worker would not serve the new task's queue."""
        self._is_frozen = True


def check_function(function: Callable[..., Any]) -> None:
    """Refuse what cannot be a handler.

    Raises:
        ConfigError: it is a class, a generator, or not callable.
    """
    inner = innermost(function)
    if inspect.isclass(inner) or not callable(inner):
        raise ConfigError(f"{function!r}: a task is a function, not {type(inner).__name__}")
    if answer.is_generator_function(inner):
        raise ConfigError(f"{_place(inner)}: a generator cannot be a task; nobody would consume it")


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(innermost(function)), "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else repr(function)
