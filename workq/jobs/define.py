"""A job as the user writes it: a handler that gets a list of items, and where the items come from.

    @wq.job(name="shop.reindex", chunk=500)
    def reindex(ids: list[int], *, index: str) -> None: ...

    @reindex.source
    def ids(index: str) -> workq.Keyset: ...

    reindex.run(index="v2")

Two handlers come of it: one of that name for the subtasks, and `shop.reindex.split` for the task that reads the source.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, update_wrapper
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from workq.errors import ConfigError, NotFound, Refused
from workq.handlers import answer, context
from workq.handlers.handler import Handler
from workq.handlers.said import describe
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.options import check_items_per_s, check_spread_s
from workq.jobs.partition import SLICE_S, Partition, iterate, iterate_async
from workq.jobs.sources import Items, Source, Steps
from workq.jobs.split import FailedItems, Splitting, Unfit, begin_job, chunks
from workq.jobs.values import (
    JOB_ENDED,
    JOB_STARTS,
    JOB_UNWANTED,
    Begun,
    IfRunning,
    JobOptions,
    JobRow,
    NewJob,
    nested_id,
    splitter,
)
from workq.jobs.verdict import WrongVerdict
from workq.jobs.work import Additions, Chunk, as_json, work, work_async
from workq.values import codec
from workq.values.fingerprint import fingerprint
from workq.values.names import check_choice, check_key
from workq.values.task import FailedItem, NewSubtask, Worked

if TYPE_CHECKING:
    from workq.app import WorkQueue
    from workq.ledger.sql import Ledger

ROOM_S: Final = 0.2
"""How often who feeds a job looks for room."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How one run of a job is begun."""

    key: str | None = None
    if_running: IfRunning = IfRunning.REFUSE
    rate: float | None = None
    is_nested: bool = False
    spread_s: float | None = None
    is_fed: bool = False


class Job(answer.Work):
    """A registered job. Calling it calls its function, with a list of items; `run` begins it."""

    def __init__(
        self, function: Callable[..., Any], handler: Handler[..., Any], options: JobOptions, app: WorkQueue
    ) -> None:
        update_wrapper(self, function)
        self.name = handler.name
        self.function = function
        self.handler = handler
        self.job_options = options
        self._app = app
        self._signature = inspect.signature(function)
        self._source: Callable[..., Any] | Source | Iterable[Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<workq job {self.name} on queue {self.job_options.queue}>"

    def source(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Say where the items come from: a function of those of the job's parameters that it names.

        It answers a source (`Range`, `Keyset`, `CsvFile`, `JsonLines`, or anything that can be iterated again from its
        beginning). With a parameter `cursor` it is a generator that begins behind it (None: from the beginning) and
        yields pairs: an item, and the cursor behind it.
        """
        self.taken(function)
        return function

    def taken(self, source: Callable[..., Any] | Source | Iterable[Any] | None) -> Job:
        """The same, with a source that was given beside the function."""
        if answer.is_coroutine_function(source) or inspect.isasyncgenfunction(answer.called(source)):
            raise ConfigError(f"the source of job {self.name!r} is read in a thread: no async def")
        if isinstance(source, Iterator | set | frozenset) and not hasattr(source, "pages"):
            raise _once(source)
        self._source = source
        return self

    def items(self, params: Mapping[str, Any]) -> Source:
        """The source of one run.

        Raises:
            ConfigError: it has none.
        """
        given = self._source
        if given is None:
            raise ConfigError(f"job {self.name!r} has no source: write one with @{self.name.rsplit('.', 1)[-1]}.source")
        if not callable(given):
            return _as_source(given)
        names = inspect.signature(given).parameters
        wanted = {name: value for name, value in params.items() if name in names}
        if "cursor" in names:
            return Steps(partial(_from, given, wanted))
        return _as_source(given(**wanted))

    def options(
        self,
        *,
        key: str | None = None,
        if_running: str = "refuse",
        rate: float | None = None,
        spread_s: float | None = None,
        nested: bool = False,
    ) -> JobCall:
        """How one run is begun.

        Args:
            key: two runs with other keys do not know of each other; by default a job runs once at a time.
            if_running: what becomes of this run while another of its name and key has not ended: `refuse` it, `join`
                the other, `queue` behind it, or `replace` it.
            rate: at most so many items a second start; changed by `workq job throttle`.
            spread_s: its items start evenly over so many seconds, which needs a source that knows how many they are.
            nested: in a handler of a job: that job ends only after this one, and takes it along when it is paused,
                resumed or cancelled. In one job, nested runs of the same name, key and parameters are one run: a
                handler that is called again begins no second one.

        Raises:
            ConfigError: one of them is out of range.
        """
        if rate is not None and spread_s is not None:
            raise ConfigError("rate and spread_s: give one of them")
        if spread_s is not None and self.job_options.is_partitioned:
            raise ConfigError("spread_s: nobody knows how many items partitions have; give a rate")
        return JobCall(
            self,
            RunOptions(
                key=None if key is None else check_key(key),
                if_running=check_choice(if_running, IfRunning, "if_running"),
                rate=None if rate is None else check_items_per_s(rate),
                is_nested=nested,
                spread_s=None if spread_s is None else check_spread_s(spread_s),
            ),
        )

    def check(self, params: Mapping[str, Any]) -> None:
        """Whether its function takes these parameters.

        Raises:
            TypeError: it does not.
        """
        self._signature.bind(*self._given, **params)

    @property
    def _given(self) -> tuple[Any, ...]:
        """What its function gets beside the parameters."""
        return (None, None) if self.job_options.is_partitioned else ([],)

    def run(self, **params: Any) -> Begun:
        """Begin it. See `JobCall.run`."""
        return JobCall(self, RunOptions()).run(**params)

    def new_job(self, options: RunOptions, params: dict[str, Any]) -> NewJob:
        """Check and encode one run.

        Raises:
            TypeError: the parameters do not fit the handler; PayloadError: JSON cannot carry them.
            ConfigError: it is to be nested, and this is no job's handler; or its name is not certain.
        """
        self.handler.check_name()
        self.check(params)
        encoded = codec.encode({"a": [], "k": params}, path="params")
        job_id, key, parent_id = codec.new_task_id(), options.key, None
        if options.is_nested:
            here = context.current()
            if here.job is None:
                raise ConfigError(f"nested: {here.name} is no job's handler; run {self.name} without it")
            parent_id = here.job
            job_id = nested_id(parent_id, self.name, key, encoded)
            key = key or job_id  # it is in nobody's way
        return NewJob(
            id=job_id,
            name=self.name,
            params=encoded,
            options=msgspec.structs.replace(
                self.job_options,
                limit=self.handler.limit_of(self.handler.defaults.limit, self._given, params),
                spread_s=options.spread_s,
                is_fed=options.is_fed,
            ),
            splitter=splitter(codec.new_task_id(), self.name, self.job_options.queue, job_id),
            key=key,
            rate_max=options.rate,
            parent_id=parent_id,
            if_running=options.if_running,
        )

    def begin(self, options: RunOptions, params: dict[str, Any]) -> Begun:
        """Record a run."""
        new = self.new_job(options, params)  # before anything is opened
        return begin_job(new, self._app.producer, self._app.stores.ledger.part(JobLedger))

    def feed(self, items: Iterable[Any] | Source, **params: Any) -> Begun:
        """Begin it over items that this process has. See `JobCall.feed`."""
        return JobCall(self, RunOptions()).feed(items, **params)

    def feed_into(self, job_id: str, items: Iterable[Any] | Source) -> JobRow:
        """Hand a run that was begun by `feed` the items behind those that it has; answers how it stands.

        Raises:
            NotFound: there is no such job. Refused: it was not begun by `feed`, or takes no more items.
        """
        stores = self._app.existing
        row = stores.ledger.part(JobLedger).questions.job(job_id)
        if row is None or row.name != self.name:
            raise NotFound(f"no job {job_id[:100]} of the name {self.name}")
        if not row.options.is_fed or row.is_split:
            raise Refused(f"job {job_id} takes no items: " + ("it has all" if row.is_split else "it has a source"))
        splitting = Splitting(
            row,
            _as_source(items),
            stores,
            self._app.producer,
            payload_max_bytes=self._app.settings.payload_max_bytes,
            stops=lambda: False,
            waits=partial(_room_of, stores.ledger, job_id),
        )
        splitting.run()
        fed = stores.ledger.part(JobLedger).questions.job(job_id)
        if fed is None or not fed.is_split:
            state = "gone" if fed is None else fed.state.value
            raise Refused(f"job {job_id} is {state}: it has taken {0 if fed is None else fed.split} items, and no more")
        return fed

    # -- what runs in a worker

    def split(self, job_id: str) -> None:
        """The handler of its splitter."""
        stores = self._app.existing
        row = stores.ledger.part(JobLedger).questions.job(job_id)
        if row is None or row.options.is_fed:
            return  # somebody has removed it, or splits it elsewhere
        here = context.current()
        failed_of = row.options.failed_of
        Splitting(
            row,
            self.items(codec.decode(row.params)["k"]) if failed_of is None else FailedItems(stores.ledger, failed_of),
            stores,
            self._app.producer,
            payload_max_bytes=self._app.settings.payload_max_bytes,
            stops=here.cancelled,
        ).run()

    def work(self, items: list[Any], **params: Any) -> Worked:
        """The handler of its subtasks, of a plain function."""
        chunk, here = self._chunk(items, params), context.current()
        additions = self._additions(chunk)

        def call(part: list[Any]) -> object:
            additions.begin()
            found = answer.call(self.function, context.desk().wait_for, part, **chunk.params)
            additions.keep()
            return found

        try:
            work(call, chunk, stops=here.cancelled, is_whole=lambda: here.has_begun_transaction)
        except WrongVerdict as error:
            return self._all_failed(chunk, error)
        return msgspec.structs.replace(chunk.outcome(Random()), added=tuple(additions.kept))

    async def work_async(self, items: list[Any], **params: Any) -> Worked:
        """The handler of its subtasks, of a coroutine function."""
        chunk, here = self._chunk(items, params), context.current()
        additions = self._additions(chunk)

        async def call(part: list[Any]) -> object:
            additions.begin()
            found = await answer.call_async(self.function, part, **chunk.params)
            additions.keep()
            return found

        try:
            await work_async(call, chunk, stops=here.cancelled, is_whole=lambda: here.has_begun_transaction)
        except WrongVerdict as error:
            return self._all_failed(chunk, error)
        return msgspec.structs.replace(chunk.outcome(Random()), added=tuple(additions.kept))

    def iterate(self, partition: Any, _beginning: None, **params: Any) -> None:
        """The handler of its subtasks, of a plain function of partitions."""
        given, wait = _each_anew(partition, params), context.desk().wait_for

        def call(cursor: Any) -> object:
            item, its_params = next(given)
            return answer.call(self.function, wait, item, cursor, **its_params)

        iterate(call, self._partition(), context.current())

    async def iterate_async(self, partition: Any, _beginning: None, **params: Any) -> None:
        """The handler of its subtasks, of a coroutine function of partitions."""
        given = _each_anew(partition, params)

        async def call(cursor: Any) -> object:
            item, its_params = next(given)
            return await answer.call_async(self.function, item, cursor, **its_params)

        await iterate_async(call, self._partition(), context.current())

    def _partition(self) -> Partition:
        limit_s = self.handler.time_limit_s
        slice_s = SLICE_S if limit_s is None else min(SLICE_S, limit_s / 2)
        found = Partition(context.running(), context.desk(), self.handler.retries, slice_s=slice_s)
        context.current().steps = found
        return found

    def _chunk(self, items: list[Any], params: Mapping[str, Any]) -> Chunk:
        return Chunk(context.running(), items, params, self.handler.retries, collect=self.job_options.collect)

    def _additions(self, chunk: Chunk) -> Additions:
        def cut(items: Iterable[Any]) -> list[NewSubtask]:
            found: list[NewSubtask] = []
            rest = iter(items)
            while part := list(islice(rest, self.job_options.chunk)):
                for one in chunks(part, chunk.recorded_params, payload_max_bytes=self._app.settings.payload_max_bytes):
                    if isinstance(one, Unfit):
                        raise one.error
                    found.append(one)
            return found

        context.current().additions = additions = Additions(cut)
        return additions

    def _all_failed(self, chunk: Chunk, error: WrongVerdict) -> Worked:
        text = describe(error)
        alike = fingerprint(self.name, "", text)
        failures = context.running().failures + 1
        items = map(as_json, chunk.recorded_items)
        return Worked(0, 0, tuple(FailedItem(item, failures, text, alike) for item in items), error=text)


class JobCall:
    """A job with options, ready to be run."""

    def __init__(self, job: Job, options: RunOptions) -> None:
        self._job = job
        self._options = options

    def run(self, **params: Any) -> Begun:
        """Begin it: record the job and the task that reads its source. Returns when the ledger has committed both.

        Raises:
            TypeError: the parameters do not fit the handler; PayloadError: JSON cannot carry them.
            Refused: another of its name and key has not ended.
            LedgerUnavailable: nothing was recorded, or as CommitUnknown perhaps.
        """
        return self._job.begin(self._options, params)

    def feed(self, items: Iterable[Any] | Source, **params: Any) -> Begun:
        """Begin it over items that this process has, and hand them over; returns when the last is recorded.

        Where `run` reads a source in a worker, this process reads here: an iterator that nobody can begin again, its
        standard input. No more than `window` subtasks are open meanwhile. If it dies, the job waits for the rest:
        `feed_into` goes on behind what was recorded, `workq job cancel` ends it.

        Raises:
            Refused: another of its name and key has not ended, or this one was cancelled meanwhile.
            Otherwise as `run`; and what the items raise.
        """
        begun = self.open_feed(**params)
        if begun.created:
            self._job.feed_into(begun.id, items)
        return begun

    def open_feed(self, **params: Any) -> Begun:
        """Begin it without items: `feed_into` hands them over. Raises as `run`."""
        return self._job.begin(dataclasses.replace(self._options, is_fed=True), params)


def _each_anew(partition: Any, params: Mapping[str, Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """What each call for a partition is given beside the cursor: a handler may change it in place."""
    yield partition, params
    while True:
        arguments = codec.decode(context.running().payload)
        yield arguments["a"][0], arguments["k"]


def _room_of(ledger: Ledger, job_id: str) -> int:
    """Wait until more subtasks may be open; answers how many. Paused, it waits for the end of that."""
    while True:
        row = ledger.part(JobLedger).questions.job(job_id)
        if row is None or row.state in JOB_UNWANTED | JOB_ENDED:
            return 1  # whoever records it will see
        room = row.options.window - row.open_subtasks
        if room > row.options.window // 2 and row.state in JOB_STARTS:
            return room
        time.sleep(ROOM_S)


def _once(given: object) -> ConfigError:
    return ConfigError(
        "a source is read again from its beginning, in the same order, which "
        f"{type(given).__name__} cannot be; give a list, or a function that begins anew each time"
    )


def _as_source(given: Any) -> Source:
    if hasattr(given, "pages"):
        source: Source = given
        return source
    if isinstance(given, set | frozenset):  # each process has an order of its own for it
        raise _once(given)
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return Items(given)
    raise ConfigError(f"a source is a Range, a Keyset, a file, or anything that can be iterated; got {given!r:.200}")


def _from(function: Callable[..., Any], params: Mapping[str, Any], cursor: Any) -> Any:
    return function(cursor=cursor, **params)
