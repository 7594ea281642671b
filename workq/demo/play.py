"""The run of the demo: a job builds a new version of an index, with what goes wrong on the way; then it is counted.

The job runs on a real worker. One of its processes is killed with SIGKILL, the job is paused, goes on slowly, and then
as fast as it can; some documents cannot be read and fail, so that the alias stays where it was; they are mended, and
only they are run again. Then what follows a success moves the alias.

Everything is private to one run (stage.py). Who decides: the index, at the end. The job's own counts only feed the
progress and say when to stop waiting.

What happens on each failure: nothing ends for two minutes, or the worker leaves by itself: the run stops there and
counts what is in the index, and the report says what was seen last. Whatever ends the run, Ctrl-C included: the worker,
its processes, the servers and the folder are gone when `play` has returned or raised.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from workq.demo.corpus import DebianPackages, open_corpus, package_stanzas
from workq.demo.index import (
    CHUNK,
    NEW,
    OLD,
    UNREADABLE,
    Count,
    Hit,
    alias,
    count,
    create_index,
    make_unreadable,
    mend,
    open_index,
    point,
)
from workq.demo.stage import (
    STALL_S,
    GaveUp,
    Killed,
    WorkerNarrator,
    WorkWatch,
    folder_for,
    kill_one,
    private_servers,
    working,
    write_settings,
)
from workq.errors import Refused
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import JOB_ENDED, SPLIT, JobRow, JobState
from workq.lab.fleet import only_workq_variables
from workq.ledger.engine.migrate import migrate
from workq.operations import jobs
from workq.values.incarnation import this_person
from workq.values.task import State, Task

if TYPE_CHECKING:
    from workq.app import WorkQueue

KILL_AT: Final = 0.3
"""The part of the items that is done when a process is killed."""
PAUSE_AT: Final = 0.6
"""And when the job is paused."""
PAUSE_S: Final = 0.5
RATE: Final = 5_000.0
"""Documents a second, when it goes on."""
RATE_S: Final = 1.0
"""For so long."""
HITS: Final = 5
_WHO: Final[dict[str, Any]] = {"who": "the demo", "why": "to show it"}
_APP: Final = "workq.demo.reindex:wq"


@dataclass(frozen=True, slots=True)
class ReindexWishes:
    """What was asked for. `keep` is a folder that stays; `servers` means RabbitMQ, Redis and PostgreSQL of our own.

    `kafka`: the same, with Kafka in the place of RabbitMQ.
    """

    engine: str = "fts5"
    corpus: str = "unicode"
    servers: bool = False
    kafka: bool = False
    processes: int = 2
    threads: int = 2
    keep: Path | None = None
    kill: bool = True
    stall_s: float = STALL_S


@dataclass(frozen=True, slots=True)
class Scene:
    """What is about to happen."""

    what: str
    documents: int
    chunk: int
    index: str
    processes: int
    threads: int
    kill: bool
    folder: Path


@dataclass(frozen=True, slots=True)
class SubtaskRecovery:
    """What became of a killed process's subtasks.

    `subtasks`: others ran so many again. `had_ended`: the kill came too late for so many, they were only to be settled.
    `seconds`: from the kill until others had settled the last one.
    """

    subtasks: int
    had_ended: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Throttled:
    """While the job was throttled, so many documents were done in so many seconds."""

    documents: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Failures:
    """How the job ended at first: so many documents had failed, of this; and what was searched then."""

    count: int
    sample: str
    error: str
    alias: str


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome. `seconds` and `documents_per_s` count from the start of the worker to the last subtask.

    `failures` None: the job did not come so far. `mended`: documents that were run again after that. `alias`: what is
    searched at the end.
    """

    scene: Scene
    stores: str
    count: Count
    subtasks: int
    run_again: int
    killed: Killed | None
    recovery: SubtaskRecovery | None
    throttled: Throttled | None
    failures: Failures | None
    mended: int
    alias: str
    seconds: float
    trouble: str | None
    """Why the run was given up, or what failed; None when it went as it should."""
    question: str
    hits: tuple[Hit, ...]

    @property
    def is_proved(self) -> bool:
        """Whether the index has every document once, is the one that is searched, and nothing went wrong on the way."""
        failures = self.failures
        is_told = failures is not None and (failures.count, failures.alias) == (UNREADABLE, OLD)
        is_swapped = (self.mended, self.alias) == (UNREADABLE, NEW)
        return self.count.is_complete and self.trouble is None and is_told and is_swapped

    @property
    def documents_per_s(self) -> float:
        """How fast it was, workers' start included."""
        return self.count.found / self.seconds if self.seconds > 0.0 else 0.0


class Narrator(WorkerNarrator, Protocol):
    """Who tells the user what happens. Called from one thread."""

    def begins(self, scene: Scene) -> None:
        """What is about to happen. Nothing runs yet."""
        ...

    def recovered(self, recovery: SubtaskRecovery) -> None:
        """All its subtasks were settled by others."""
        ...

    def paused(self, done: int) -> None:
        """The job was paused for a while, in which nothing was done; it goes on."""
        ...

    def throttled(self, throttled: Throttled) -> None:
        """It has gone on, throttled for a while, and goes on as fast as it can."""
        ...

    def failed(self, failures: Failures) -> None:
        """The job has ended, with failures."""
        ...

    def mended(self, documents: int) -> None:
        """They were run again, and nothing else."""
        ...


@dataclass(slots=True)
class _Seen:
    """What has happened so far."""

    ended_at: float = 0.0
    killed: Killed | None = None
    recovery: SubtaskRecovery | None = None
    has_paused: bool = False
    throttled: Throttled | None = None
    failures: Failures | None = None
    mended: int = 0


def play(wishes: ReindexWishes, narrator: Narrator) -> Report:
    """Run the demo from start to end; nothing is left behind but what `wishes.keep` names.

    Once in the life of a process: the application reads its settings when it is imported.

    Raises:
        ConfigError: something that was asked for is not there: an engine, a corpus, the binaries of the servers.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(folder_for(wishes.keep))
        corpus = open_corpus(wishes.corpus, folder)
        if isinstance(corpus, DebianPackages):
            corpus.write(package_stanzas())
        for version in (OLD, NEW):
            (folder / version).mkdir()
            create_index(wishes.engine, folder / version)
        point(folder, OLD)
        make_unreadable(folder, [item for item, _ in corpus.items(None)])
        index = stack.enter_context(closing(open_index(wishes.engine, folder / NEW)))
        expected = list(corpus.numbers())
        scene = Scene(
            what=corpus.what,
            documents=len(expected),
            chunk=CHUNK,
            index=index.engine,
            processes=wishes.processes,
            threads=wishes.threads,
            kill=wishes.kill,
            folder=folder,
        )
        narrator.begins(scene)
        stores, urls = "SQLite: ledger, hints and leases in one file", {"ledger": f"sqlite:///{folder / 'workq.db'}"}
        if wishes.servers or wishes.kafka:
            narrator.starts_servers()
            stores, urls = stack.enter_context(private_servers(kafka=wishes.kafka))
        variables = {
            "WORKQ_CONFIG": str(write_settings(folder, urls)),
            "WORKQ_DEMO_FOLDER": str(folder),
            "WORKQ_DEMO_ENGINE": wishes.engine,
            "WORKQ_DEMO_CORPUS": wishes.corpus,
        }
        stack.enter_context(only_workq_variables(variables))
        from workq.demo import reindex as application  # not before: it reads its settings now

        wq = stack.enter_context(application.wq)
        with closing(wq.database()) as database:
            migrate(database)
        narrator.starts_worker(stores)
        seen, began, trouble = _Seen(), time.monotonic(), None
        with working(
            folder, app=_APP, queues=application.QUEUE, processes=wishes.processes, threads=wishes.threads
        ) as worker:
            watch = WorkWatch(worker, folder, len(expected), "documents are done", wishes.stall_s)
            run = _Run(wq, watch, seen, wishes, narrator)
            try:
                run.job(application.reindex.run(version=NEW).id)
                run.failed_ones()
            except GaveUp as error:
                trouble = str(error)
        narrator.counting()
        tasks = [task for task in _all_tasks(wq, application.QUEUE) if task.name == application.reindex.name]
        return Report(
            scene=scene,
            stores=stores,
            count=count(index, expected),
            subtasks=len(tasks),
            run_again=sum(task.attempt > 1 for task in tasks),
            killed=seen.killed,
            recovery=seen.recovery,
            throttled=seen.throttled,
            failures=seen.failures,
            mended=seen.mended,
            alias=alias(folder),
            seconds=(seen.ended_at or time.monotonic()) - began,
            trouble=trouble,
            question=corpus.question,
            hits=tuple(index.search(corpus.question, limit=HITS)),
        )


# -- watching


class _Run:
    """One run of the job, watched, and steered."""

    def __init__(self, wq: WorkQueue, watch: WorkWatch, seen: _Seen, wishes: ReindexWishes, narrator: Narrator) -> None:
        self._wq = wq
        self._watch = watch
        self._seen = seen
        self._wishes = wishes
        self._narrator = narrator
        self._job_id = ""

    def job(self, job_id: str) -> None:
        """Until the job has ended, with its failures.

        Raises:
            GaveUp: it does not, or otherwise.
        """
        self._job_id = job_id
        watch, seen, ledger = self._watch, self._seen, self._wq.stores.ledger
        watch.until(self._look)
        seen.ended_at = watch.moved_at
        found = self._row()
        groups = ledger.part(JobLedger).questions.failed_groups(job_id, limit=1)
        if found.state is not JobState.COMPLETED_WITH_FAILURES or not groups:
            raise GaveUp(f"the job is {found.state}: {found.error or found.why or 'no document has failed'}")
        seen.failures = Failures(found.failed, groups[0].item, groups[0].error, alias(watch.folder))
        self._narrator.failed(seen.failures)

    def failed_ones(self) -> None:
        """What has failed is mended, and run again, until the new version is searched.

        Raises:
            GaveUp: it does not come so far.
        """
        watch = self._watch
        mend(watch.folder)
        watch.moved()
        again = jobs.retry(
            self._wq.stores, self._job_id, who=this_person(), why="mended", announce=self._wq.producer.relay.offer
        )
        self._job_id = again.id
        watch.until(lambda: self._row().state in JOB_ENDED)
        found = self._row()
        self._seen.mended = found.succeeded
        if found.state is not JobState.SUCCEEDED:
            raise GaveUp(f"the job over what had failed is {found.state}: {found.error or found.why}")
        watch.until(lambda: alias(watch.folder) == NEW or self._swap_is_dead())
        if self._swap_is_dead():
            raise GaveUp("the alias was not moved: the new version is not complete")
        self._narrator.mended(found.succeeded)

    def _look(self) -> bool:
        """Whether the job has ended; and what is to be done about it now."""
        watch, seen, wishes, narrator = self._watch, self._seen, self._wishes, self._narrator
        found = self._row()
        watch.saw(found.done)
        narrator.progress(watch.done, watch.total)
        part = watch.done / watch.total
        if wishes.kill and seen.killed is None and part >= KILL_AT and found.state not in JOB_ENDED:
            seen.killed = kill_one(self._wq, watch.worker, watch.folder, counts=_is_subtask)
            if seen.killed is not None:
                narrator.killed(seen.killed)
        elif seen.killed is not None and seen.recovery is None:
            seen.recovery = _recovery(self._wq, seen.killed)
            if seen.recovery is not None:
                narrator.recovered(seen.recovery)
        if not seen.has_paused and part >= PAUSE_AT and found.state is JobState.RUNNING:
            seen.has_paused = True
            try:
                self._pause()
            except Refused:  # on a machine that is very busy it may have ended before
                if self._row().state not in JOB_ENDED:
                    raise
        is_back = seen.killed is None or seen.recovery is not None
        return found.state in JOB_ENDED and is_back

    def _pause(self) -> None:
        """For a moment, in which nothing may be done."""
        ledger, watch = self._wq.stores.ledger, self._watch
        ledger.part(JobLedger).decisions.pause_job(self._job_id, **_WHO)
        watch.until(lambda: self._row().state is not JobState.PAUSING)
        before = self._row().done
        time.sleep(PAUSE_S)
        after = self._row()
        if after.state is JobState.PAUSED and after.done != before:
            raise GaveUp(f"while the job was paused, {after.done - before} documents were done")
        self._narrator.paused(after.done)
        self._go_on_slowly(after.done)

    def _go_on_slowly(self, before: int) -> None:
        """For a moment, in which no more may be done than its rate allows; then as fast as it can."""
        ledger, offer, watch = self._wq.stores.ledger, self._wq.producer.relay.offer, self._watch
        offer(ledger.part(JobLedger).decisions.throttle_job(self._job_id, rate_max=RATE, **_WHO)[1])
        began = watch.moved_at = time.monotonic()
        offer(ledger.part(JobLedger).decisions.resume_job(self._job_id, **_WHO)[1])
        watch.until(lambda: time.monotonic() >= began + RATE_S)
        found, seconds = self._row().done - before, time.monotonic() - began
        if found > RATE * seconds + 2 * CHUNK:
            raise GaveUp(f"while the job was throttled to {RATE:g} a second, {found} were done in {seconds:.1f} s")
        offer(ledger.part(JobLedger).decisions.throttle_job(self._job_id, rate_max=None, **_WHO)[1])
        watch.moved()
        self._seen.throttled = Throttled(found, seconds)
        self._narrator.throttled(self._seen.throttled)

    def _row(self) -> JobRow:
        found = self._wq.stores.ledger.part(JobLedger).questions.job(self._job_id)
        if found is None:
            raise GaveUp(f"job {self._job_id} is gone")
        return found

    def _swap_is_dead(self) -> bool:
        return bool(self._wq.stores.ledger.questions.tasks(name="demo.swap", state=State.DEAD, limit=1))


def _is_subtask(task: Task) -> bool:
    return not task.name.endswith(SPLIT)


def _recovery(wq: WorkQueue, killed: Killed) -> SubtaskRecovery | None:
    """None while some of its subtasks are not settled yet.

    What had ended when the process was stopped is settled in its place, if it did not do so itself: such a subtask
    needed no recovery, and is not counted as one.
    """
    again: list[Task] = []
    for task_id, attempt in killed.attempts.items():
        task = wq.get(task_id)
        if task is None or task.settled_at is None:
            return None
        if task.attempt > attempt:
            again.append(task)
    settled = [task.settled_at for task in again if task.settled_at is not None]
    seconds = (max(settled) - killed.at).total_seconds() if settled else None
    return SubtaskRecovery(len(again), len(killed.attempts) - len(again), seconds)


def _all_tasks(wq: WorkQueue, queue: str) -> list[Task]:
    found: list[Task] = []
    while page := wq.stores.ledger.questions.tasks(queue=queue, limit=1000, after=found[-1].id if found else None):
        found += page
    return found
