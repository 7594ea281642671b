"""WorkQueue: what a user calls. Its stores are opened by opening.py, at the first enqueue or question."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from msgspec.structs import replace

from workq.config import Settings, Times
from workq.config.variables import log_unread
from workq.errors import ConfigError, UnknownTask
from workq.handlers.handler import BatchHandler, Call, Handler, check_function
from workq.handlers.keywords import JobKeywords, TaskKeywords
from workq.handlers.naming import default_name
from workq.handlers.options import Options, check_batch, check_time_limit_s
from workq.handlers.registry import Registry
from workq.handlers.retry import Compute, RetryPolicy, retries
from workq.opening import OpenedOnce, ledger_database, open_stores
from workq.schedules.define import new_schedule
from workq.schedules.timetable import Timetable
from workq.values.incarnation import this_person
from workq.values.lane import check_band, check_priority, physical
from workq.values.names import check_delay_s, check_queue, check_task_name
from workq.values.options import GivenTo, OptionKeywords, checked, documented
from workq.values.task import Task

if TYPE_CHECKING:
    from workq.enqueue.producer import Producer
    from workq.jobs.define import Job
    from workq.ledger import CancelAnswer, Pause
    from workq.ledger.engine.database import Database
    from workq.stores import Stores

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LINGER_S = 0.5


class WorkQueue:
    """A reliable work queue: an application's handlers, and the stores that its tasks live in.

    Args:
        ledger: `sqlite:///path`, `postgresql://...` or `mysql://...`.
        broker: `amqp://...`; without it, the ledger carries the hints too.
        inflight: `redis://...`; without it, the ledger keeps holds and leases too.
        namespace: separates applications that share servers.
        queue_type: `quorum` (default) or `classic`, for RabbitMQ.
        ladder: how hints wait until they are due: in rows of the ledger with `ledger` (default), in RabbitMQ with
            `binary` or `levels:5s,10s,30s,1m`.
        times: the periods and deadlines, in seconds.

    What is not given comes from the environment (WORKQ_LEDGER_URL, ...), then from workq.toml or [tool.workq], then
    from the default `sqlite:///workq.db`.

    Raises:
        ConfigError: a setting is wrong. Nothing was contacted.
    """

    def __init__(
        self,
        *,
        ledger: str | None = None,
        broker: str | None = None,
        inflight: str | None = None,
        namespace: str | None = None,
        queue_type: str | None = None,
        ladder: str | None = None,
        times: Times | None = None,
    ) -> None:
        self.settings = Settings.load(
            ledger=ledger,
            broker=broker,
            inflight=inflight,
            namespace=namespace,
            queue_type=queue_type,
            ladder=ladder,
            times=times,
        )
        log_unread()
        self.registry = Registry()
        self._opened = OpenedOnce(lambda makes: self._connect(makes=makes))

    # -- handlers

    @overload
    def task(self, function: Callable[P, R], /) -> Handler[P, R]: ...

    @overload
    def task(
        self, function: None = None, /, *, batch: int, linger_s: float = 0.5, **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[[list[T]], R]], BatchHandler[T, R]]: ...

    @overload
    def task(
        self, function: None = None, /, *, batch: None = None, linger_s: None = None, **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[P, R]], Handler[P, R]]: ...

    @documented(GivenTo.TASK)
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: str = "normal",
        limit: str | None = None,
        rate: str | None = None,
        concurrency: int | None = None,
        time_limit_s: float | None = None,
        retry: RetryPolicy | Compute | None = None,
        retry_on: type[BaseException] | Sequence[type[BaseException]] | None = None,
        give_up_on: type[BaseException] | Sequence[type[BaseException]] | None = None,
        batch: int | None = None,
        linger_s: float | None = None,
        **stored: Unpack[OptionKeywords],
    ) -> Any:
        """Register a function as a task, as `@wq.task` or `@wq.task(...)`. It stays an ordinary function when called.

        Args:
            name: what the ledger calls it; `module.function` by default. Never imported, only looked up.
            queue: the line that it waits in.
            priority: `high`, `normal` or `low`: which of the queue's three bands. Higher ones go first, by weight, and
                none starves (docs/how-to/priorities.md).
            **options: those of the table in values/options.py that belong to a handler.
            limit: the name of what it shares with all tasks that name the same; the task's own name by default. A
                parameter in braces stands for its value: `endpoint:{host}`.
            rate: at most so many of them start, in any second, minute, hour or day: `100/s`, `5/m`, `1000/h`, `1/d`.
            concurrency: at most so many of them run at once. What is over the limit waits in the ledger, in the order
                in which it came, and costs no worker anything.
            time_limit_s: SoftTimeLimit is raised in the handler after so many seconds; some seconds later its process
                is killed and the attempt counts as a failure.
            retry: the delays between attempts: `Exponential()` by default, `Fixed()`, `Schedule()`, or a function that
                answers seconds, of the number of failures so far and the last error.
            retry_on: only these errors are tried again; any other makes the task dead at once.
            give_up_on: these errors make the task dead at once.
            batch: the function takes a list: a worker gathers up to so many tasks, each enqueued with one argument, and
                calls it once for them. What it answers tells which have failed (docs/how-to/batches.md).
            linger_s: for so long the first of them waits for others, half a second by default; at most a minute.

        Raises:
            ConfigError: an option is out of range, the name is taken, or the function cannot be a task.
        """
        together = None if batch is None else check_batch(batch, LINGER_S if linger_s is None else linger_s)
        if linger_s is not None and batch is None:
            raise ConfigError("linger_s: it belongs to a batch; give batch=, too")
        options = checked(Options(queue=check_queue(queue), priority=check_priority(priority)), stored, GivenTo.TASK)
        physical(options.queue, options.priority)
        if time_limit_s is not None:
            time_limit_s = check_time_limit_s(time_limit_s)
        if name is not None:
            check_task_name(name)
        chosen = retries(retry, retry_on, give_up_on)

        def register(function: Callable[..., Any]) -> Handler[..., Any]:
            check_function(function)
            found, doubt = (name, None) if name is not None else default_name(function, self.settings.app)
            make = Handler if together is None else partial(BatchHandler, batch=together)
            handler: Handler[..., Any] = make(
                function,
                name=found,
                options=options,
                retries=chosen,
                time_limit_s=time_limit_s,
                payload_max_bytes=self.settings.payload_max_bytes,
                kept_s=min(self.settings.retention_s, self.settings.dead_retention_s),
                producer=lambda: self.producer,
            )
            handler.doubt = doubt
            if limit is not None or rate is not None or concurrency is not None:
                handler.defaults = replace(options, limit=handler.limit_rule(limit, rate, concurrency))
            self.registry.add(handler)
            return handler

        return register if function is None else register(function)

    @overload
    def job(self, function: Callable[..., Any], /) -> Job: ...

    @overload
    def job(self, function: None = None, /, **options: Unpack[JobKeywords]) -> Callable[[Callable[..., Any]], Job]: ...

    @documented(GivenTo.JOB)
    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        chunk: int | None = None,
        partitioned: bool = False,
        collect: str = "none",
        window: int = 1000,
        source: Callable[..., Any] | Iterable[Any] | None = None,
        queue: str = "default",
        max_failures: int | str | None = None,
        limit: str | None = None,
        concurrency: int | None = None,
        time_limit_s: float | None = None,
        retry: RetryPolicy | Compute | None = None,
        retry_on: type[BaseException] | Sequence[type[BaseException]] | None = None,
        give_up_on: type[BaseException] | Sequence[type[BaseException]] | None = None,
        on_complete: Handler[..., Any] | None = None,
        on_success: Handler[..., Any] | None = None,
        on_failure: Handler[..., Any] | None = None,
        on_cancel: Handler[..., Any] | None = None,
        **stored: Unpack[OptionKeywords],
    ) -> Any:
        """Register a job: a function that gets a list of items, as often as its source has items; or a partition.

        Args:
            name: what the ledger calls it; `module.function` by default.
            chunk: items of one subtask; 500 by default.
            partitioned: for work that cannot be listed in advance: the source yields partitions, and each is a subtask.
                The function gets a partition and a cursor, None at first, and is called again and again with the cursor
                of its last `workq.current().step()`, until a call makes none (docs/how-to/partitions.md).
            collect: what is kept of the results that the handler says of its items: `none`, `count` (how many there
                are), `sample` (the first hundred, too) or `all`.
            window: subtasks that are recorded and not ended, at most: more of the source is read when half are done.
            source: where the items come from, unless `@job.source` says so.
            queue: the line that its subtasks wait in.
            failures_max: after so many failures with it, 5 by default, an item has failed for good.
            **options: those of the table in values/options.py that belong to a handler, for its subtasks.
            max_failures: items that may fail for good, or their share (`"5%"`), before the job fails and what has not
                started of it is cancelled; by default it goes on, and ends as `completed_with_failures`.
            concurrency: so many of its subtasks at once, at most; with
            limit: a name that it shares with others, as for `task`.
            time_limit_s, retry, retry_on, give_up_on: of one attempt of a subtask, as for `task`.
            on_complete, on_success, on_failure, on_cancel: tasks that follow its end, once; each is called with a
                mapping of what became of it (`id`, `name`, `state`, `params`, `total`, `succeeded`, `failed`, ...).

        Raises:
            ConfigError: an option is out of range, the name is taken, or the function cannot be a task.
        """
        from workq.jobs.options import job_options
        from workq.jobs.register import register_job
        from workq.jobs.values import Ending

        callbacks = {
            Ending.COMPLETE: on_complete,
            Ending.SUCCESS: on_success,
            Ending.FAILURE: on_failure,
            Ending.CANCEL: on_cancel,
        }
        options = job_options(
            queue=check_queue(queue),
            chunk=chunk,
            partitioned=partitioned,
            collect=collect,
            window=window,
            max_failures=max_failures,
            callbacks=callbacks,
            stored=stored,
        )

        register = partial(
            register_job,
            self,
            options=options,
            source=source,
            name=name,
            limit=limit,
            concurrency=concurrency,
            time_limit_s=time_limit_s,
            retry=retry,
            retry_on=retry_on,
            give_up_on=give_up_on,
            **stored,
        )
        return register if function is None else register(function)

    def schedule(
        self,
        name: str,
        handler: Handler[..., Any] | Call[...],
        *,
        cron: str | None = None,
        tz: str = "UTC",
        every_s: float | None = None,
        at: datetime | None = None,
        missed: str = "once",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Let a handler run again and again, or once at a time. Each tick is one task, however many processes know it.

        Workers write it into the ledger when they start (`workq schedule sync` does it at once); from then on whoever
        sweeps makes the tasks. A schedule that the code does not name any more stays: `workq schedule rm NAME`.

        Args:
            name: its own, of the form of a task's name.
            handler: the task, perhaps with `.options(queue=..., failures_max=..., expires_s=...)`; `expires_s` counts
                from the tick.
            cron: five fields, such as `0 3 * * *`, in the time zone `tz`; or
            every_s: each so many seconds, from 1 to a year; or
            at: once, at an aware instant.
            missed: of ticks for which nobody was there within a minute: `skip` them, `once` for all, or `all`.
            args, kwargs: what the handler is called with.

        Raises:
            ConfigError: not one of `cron`, `every_s` and `at`, or something is out of range, or the name is taken.
            TypeError: the arguments do not fit the handler; PayloadError: JSON cannot carry them.
        """
        timetables = [
            *([] if cron is None else [Timetable.cron(cron, tz)]),
            *([] if every_s is None else [Timetable.every(every_s)]),
            *([] if at is None else [Timetable.at(at)]),
        ]
        if len(timetables) != 1:
            raise ConfigError(f"schedule {name!r}: cron, every_s and at: give one of them")
        self.registry.schedule(new_schedule(name, timetables[0], missed, handler, tuple(args), dict(kwargs or {})))

    def handler(self, name: str) -> Handler[..., Any]:
        """The registered handler of a name.

        Raises:
            UnknownTask: none is registered.
        """
        found = self.registry.get(name)
        if found is None:
            known = ", ".join(self.registry.names()[:20]) or "none"
            raise UnknownTask(f"no task is registered under the name {name!r}; registered: {known}")
        return found

    # -- questions

    def get(self, task_id: str) -> Task | None:
        """One task as the ledger knows it, or None."""
        return self.existing.ledger.questions.get(str(task_id))

    # -- decisions of a person

    def cancel(
        self,
        task_id: str,
        *,
        why: str = "cancelled by a person",
        who: str | None = None,
        kill: bool = False,
        reason: str | None = None,
    ) -> CancelAnswer:
        """Cancel a task at once if it does not run, or ask its handler to stop (`current().cancelled()`).

        Args:
            why: stored with the task, up to 200 characters.
            who: who decides this, for its history; by default the user of this process, as `user@host`.
            kill: end the process that runs it, within some seconds; what runs beside it there runs again, at no cost.
            reason: the former name of `why`; the next version does not know it any more.

        Raises:
            NotFound: no such task.
        """
        from workq.operations import tasks

        if reason is not None:
            warnings.warn("cancel(reason=) is why= now", DeprecationWarning, stacklevel=2)
            why = reason
        return tasks.cancel(self.existing, str(task_id), who=who or this_person(), why=why, kills=kill)

    def pause_queue(self, name: str, *, why: str, for_s: float | None = None, who: str | None = None) -> Pause:
        """Start nothing of a queue any more, for `for_s` seconds or until it is resumed. What runs goes on.

        Args:
            name: a queue, with all of its bands, or one band of it, such as `mail~low`.
            why: stored, and told to whoever asks why a task does not run.
            for_s: it ends by itself after so many seconds.
            who: who decides this; by default the user of this process, as `user@host`.

        Raises:
            ConfigError: no name of a queue or band, or `for_s` is no number from 0 to ten years.
        """
        from workq.operations import queues

        queue, ends_in_s = check_band(name), None if for_s is None else check_delay_s(for_s, "for_s")
        return queues.pause(self.existing, queue, who=who or this_person(), why=why, for_s=ends_in_s)

    def resume_queue(self, name: str, *, why: str = "resumed by a person", who: str | None = None) -> bool:
        """Let a paused queue go on, with all of its bands, or one band of it; False when it was not paused.

        Raises:
            ConfigError: no name of a queue or band.
        """
        from workq.operations import queues

        queue = check_band(name)
        return queues.resume(self.existing, queue, who=who or this_person(), why=why)

    def reschedule(
        self,
        task_id: str,
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        why: str = "rescheduled by a person",
        who: str | None = None,
    ) -> None:
        """Let a task that does not run be due in `delay_s` seconds, or `at` an aware instant; the past means now.

        Raises:
            ConfigError: not one of both, or out of range. NotFound: no such task.
            Refused: it runs, or is settled, or would expire before.
        """
        from workq.operations import tasks

        when, by = tasks.due(delay_s=delay_s, at=at), who or this_person()
        tasks.reschedule(self.existing, str(task_id), when, who=by, why=why, announce=self.producer.relay.offer)

    def revive(self, task_id: str, *, why: str = "revived by a person", who: str | None = None) -> None:
        """Send a dead or cancelled task back to ready, due now, whatever time it had, with fresh budgets.

        Raises:
            NotFound: no such task. Refused: it is neither dead nor cancelled, or a live task holds its key.
        """
        from workq.operations import tasks

        tasks.revive(self.existing, str(task_id), who=who or this_person(), why=why, announce=self.producer.relay.offer)

    # -- stores

    @property
    def stores(self) -> Stores:
        """The opened stores of this process, for what records something new: a SQLite file that is not there is made.

        Raises:
            LedgerUnavailable: the ledger did not answer. SchemaMismatch: it is older or newer.
        """
        return self._opened.get()[0]

    @property
    def existing(self) -> Stores:
        """The same stores for what reads, or changes what is there: nothing is made.

        Raises:
            NoLedger: the SQLite file is not there, or has no ledger. LedgerUnavailable, SchemaMismatch: as `stores`.
        """
        return self._opened.get(makes=False)[0]

    @property
    def producer(self) -> Producer:
        """What records tasks in this process. Makes a SQLite file, as `stores` does."""
        return self._opened.get()[1]

    def database(self, *, makes: bool = True) -> Database:
        """A new engine on the ledger, without looking at its schema. The caller closes it.

        `makes`: a SQLite file that is not there is made when something connects.
        """
        return ledger_database(self.settings, makes=makes)

    def close(self) -> None:
        """Publish what is behind, within a bound, and close every connection. The object may be used again.

        In a worker, of the application that it serves, it does nothing: the connections there are the worker's.
        """
        self._opened.close()

    @property
    def is_served(self) -> bool:
        """Whether a worker of this process serves it: no handler closes what the worker works with."""
        return self._opened.is_kept

    @is_served.setter
    def is_served(self, is_served: bool) -> None:
        self._opened.is_kept = is_served

    def __enter__(self) -> WorkQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, *, makes: bool) -> tuple[Stores, Producer]:
        return open_stores(self.settings, makes=makes)
