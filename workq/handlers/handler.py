"""Handlers: the user's functions, registered under a name, and the calls that enqueue them.

A name is looked up in a dictionary, never imported. A handler is still an ordinary function when it is called.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from msgspec.structs import replace

from workq.errors import ConfigError, PayloadError
from workq.handlers import answer
from workq.handlers.naming import innermost, place_of
from workq.handlers.options import Batch, Options, seconds_until
from workq.handlers.retry import Retries
from workq.values import codec
from workq.values.lane import check_priority, physical
from workq.values.limit_rule import LimitRule
from workq.values.names import check_delay_s, check_key, check_queue
from workq.values.options import CallKeywords, GivenTo, checked, documented
from workq.values.task import Enqueued, Limit, NewTask

if TYPE_CHECKING:
    from workq.enqueue.producer import Producer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


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
        self.batch_by: Callable[[Any], str] | None = None
        """With `batch`: only tasks of whose items this answers the same share a call. None: any of the handler's."""
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

    @documented(GivenTo.CALL)
    def options(
        self,
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        key: str | None = None,
        key_for_s: float | None = None,
        queue: str | None = None,
        priority: str | None = None,
        limit: str | None = None,
        rate: str | None = None,
        concurrency: int | None = None,
        connection: Any = None,
        **options: Unpack[CallKeywords],
    ) -> Call[P]:
        """The same handler with other options for one call.

        Args:
            delay_s: seconds from now, up to ten years; or
            at: an aware instant. In the past means now.
            key: at most one live task of this name has it; the live one is answered instead.
            key_for_s: seconds from now for which it has the key in any case, also when it is settled earlier; at most
                as long as settled tasks are kept (`retention_s`).
            queue: another queue than the handler's own.
            priority: `high`, `normal` or `low`, instead of the handler's own.
            **options: those of the table in values/options.py that belong to a call.
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
            chosen = replace(chosen, delay_s=seconds_until(at), at=at)
        if key is not None:
            chosen = replace(chosen, key=check_key(key))
        if key_for_s is not None:
            chosen = replace(chosen, key_for_s=self._check_key_for_s(key_for_s, key))
        if queue is not None:
            chosen = replace(chosen, queue=check_queue(queue))
        if priority is not None:
            chosen = replace(chosen, priority=check_priority(priority))
        chosen = checked(chosen, options, GivenTo.CALL)
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
        limit = self.limit_of(options.limit, args, kwargs)
        return replace(options.blank, id=codec.new_task_id(), name=self.name, payload=payload, limit=limit)

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
                f"{place_of(function)}: with batch= a function takes a list, and nothing else without a default: "
                f"{error}"
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


def check_function(function: Callable[..., Any]) -> None:
    """Refuse what cannot be a handler.

    Raises:
        ConfigError: it is a class, a generator, or not callable.
    """
    inner = innermost(function)
    if inspect.isclass(inner) or not callable(inner):
        raise ConfigError(f"{function!r}: a task is a function, not {type(inner).__name__}")
    if answer.is_generator_function(inner):
        raise ConfigError(f"{place_of(inner)}: a generator cannot be a task; nobody would consume it")
