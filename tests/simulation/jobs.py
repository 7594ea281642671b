"""Jobs in a simulated world: what a run is of, who begins and steers it, and the handlers of its tasks.

The splitter, the chunks, and all that the ledger does of a job are the code of production. Written here are the source,
a handler that refuses bad items, and the loops of whoever begins the job and steers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from workq.enqueue.producer import Producer
from workq.errors import NotFound, Refused, Unavailable
from workq.handlers.handler import Handler
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.sources import Steps
from workq.jobs.split import Splitting, begin_job
from workq.jobs.values import JOB_ENDED, JOB_PAUSES, Callback, Ending, IfRunning, JobOptions, JobRow, NewJob, splitter
from workq.jobs.work import Chunk, work
from workq.stores import Stores
from workq.values import codec
from workq.values.task import Claim, Outcome
from workq.worker.attempt import raised, returned

if TYPE_CHECKING:
    from tests.simulation.processes import Setting, SteppedPool, SteppedRelay

NAME: Final = "job"
SPLIT: Final = "job.split"
NAMES: Final = (NAME, SPLIT, *(f"on.{when}" for when in Ending))
_WHO: Final[dict[str, Any]] = {"who": "simulated", "why": "simulated"}


class Run:
    """What one job is of, so many numbers, some of which are bad; and what its actors have seen of it."""

    def __init__(self, rng: Random) -> None:
        self.items = rng.choice([0, 7, 20, 40])
        self.bad = {number for number in range(self.items) if rng.random() < 0.1}
        self.raises = rng.choice([0.0, 0.0, 0.1])
        """The chance that the source raises at an item, while there are faults."""
        self.options = JobOptions(
            queue="index",
            chunk=rng.choice([1, 2, 5]),
            window=rng.choice([1, 2, 4]),
            failures_max=rng.choice([1, 2]),
            failed_max=rng.choice([None, None, 1]),
            callbacks=tuple(Callback(when, f"on.{when}", "mail") for when in Ending),
        )
        self.rate = rng.choice([None, None, 5.0])
        self.steers = rng.random() < 0.7
        self.cancels = rng.random() < 0.2
        self.begun: set[str] = set()
        """Jobs whose begin was answered."""
        self.handled: set[int] = set()
        """Items that a handler has returned for."""

    def source(self, setting: Setting) -> Steps:
        """The numbers, from a cursor."""
        world = setting.world

        def read(cursor: int | None) -> Iterator[tuple[int, int]]:
            for number in range(cursor or 0, self.items):
                if world.is_faulty and world.rng.random() < self.raises:
                    raise OSError("the simulated source is away")
                yield number, number + 1

        return Steps(read)


class Boss:
    """Begins the job, and steers it while there are faults; then sees to it that it goes on."""

    def __init__(self, setting: Setting, relay: Callable[..., SteppedRelay], job: NewJob | None = None) -> None:
        self.setting = setting
        self.make_relay = relay
        world = setting.world
        self.process = setting.process("boss")
        self.stores = setting.stores(self.process)
        self.relay = relay(setting, self.process, self.stores)
        self.producer = Producer(
            self.stores, confirm_s=world.plan.times.confirm_s, relay=self.relay, follow=lambda rows: None
        )
        self.job = job or self._job()
        self.has_begun = False
        self.strand = self.process.strand("boss", self._act)
        self.process.on_death.append(self._died)
        self.strand.wake(world.rng.uniform(0.0, world.plan.phase_s / 4))

    def _died(self) -> None:
        if self.setting.world.rng.random() < 0.5:  # what it has left half done stays so
            self.setting.run.steers = False
        Boss(self.setting, self.make_relay, self.job)

    def _job(self) -> NewJob:
        run, new_id = self.setting.run, self.setting.world.new_id
        job_id = new_id()
        return NewJob(
            id=job_id,
            name=NAME,
            params='{"a":[],"k":{}}',
            options=run.options,
            splitter=splitter(new_id(), NAME, run.options.queue, job_id),
            rate_max=run.rate,
            if_running=IfRunning.REFUSE,
        )

    def _act(self) -> float | None:
        world = self.setting.world
        ledger = self.stores.ledger
        try:
            if not self.has_begun:
                begin_job(self.job, self.producer, ledger.part(JobLedger))
                self.has_begun = True
                self.setting.run.begun.add(self.job.id)
                world.note(f"begins job {self.job.id[-6:]}")
            elif world.is_faulty:
                self._steer(world.rng)
            else:
                found = ledger.part(JobLedger).questions.job(self.job.id)
                if found is None or found.state in JOB_ENDED:
                    return None
                if found.rate_max is not None:
                    self.relay.offer(
                        ledger.part(JobLedger).decisions.throttle_job(self.job.id, rate_max=None, **_WHO)[1]
                    )
                elif found.state in JOB_PAUSES:
                    self.relay.offer(ledger.part(JobLedger).decisions.resume_job(self.job.id, **_WHO)[1])
        except (Refused, NotFound) as error:
            world.note(f"boss: {error}")
        except Unavailable as error:
            self.setting.unavailable(error)
        return world.plan.times.beat_s * world.rng.choice([0.1, 0.5, 1.0]) if world.is_faulty else 1.0

    def _steer(self, rng: Random) -> None:
        """One decision about the job."""
        if not self.setting.run.steers:
            return
        ledger, job_id = self.stores.ledger, self.job.id
        chance = rng.random()
        if chance < 0.02 and self.setting.run.cancels:
            self.relay.offer(
                ledger.part(JobLedger).decisions.cancel_job(job_id, is_forced=rng.random() < 0.3, **_WHO)[1]
            )
        elif chance < 0.3:
            ledger.part(JobLedger).decisions.pause_job(job_id, is_forced=rng.random() < 0.3, **_WHO)
        elif chance < 0.7:
            self.relay.offer(ledger.part(JobLedger).decisions.resume_job(job_id, **_WHO)[1])
        elif chance < 0.85:
            self.relay.offer(
                ledger.part(JobLedger).decisions.throttle_job(job_id, rate_max=rng.choice([None, 0.5, 20.0]), **_WHO)[1]
            )


def outcome(pool: SteppedPool, claim: Claim, handler: Handler[..., Any]) -> Outcome:
    """What comes of a task of a job, in its handler."""
    setting = pool.setting
    rng = setting.world.rng
    try:
        if claim.name == SPLIT:
            _split(setting, pool.stores, pool.relay, claim, pool)
            return returned(None)
        if claim.name != NAME:  # what follows its end
            return returned(None)
        return _worked(setting, claim, handler, rng)
    except Exception as error:  # as in the pool: whatever a handler raises
        return raised(claim, handler, error, rng=rng)


def _split(setting: Setting, stores: Stores, relay: SteppedRelay, claim: Claim, pool: SteppedPool) -> None:
    job_id = codec.decode(claim.payload)["a"][0]
    row: JobRow | None = stores.ledger.part(JobLedger).questions.job(job_id)
    if row is None:
        return
    producer = Producer(stores, confirm_s=setting.world.plan.times.confirm_s, relay=relay, follow=lambda rows: None)
    Splitting(
        row,
        setting.run.source(setting),
        stores,
        producer,
        payload_max_bytes=10_000,
        stops=lambda: False,
        clock=pool.process.clock,
    ).run()


def _worked(setting: Setting, claim: Claim, handler: Handler[..., Any], rng: Random) -> Outcome:
    """The items, but for the bad ones, by a handler that raises for a list with one of those in it."""
    items = codec.decode(claim.payload)["a"][0]
    chunk = Chunk(claim, items, {}, handler.retries)
    work(partial(_handle, setting), chunk, stops=lambda: False, is_whole=lambda: False)
    return chunk.outcome(rng)


def _handle(setting: Setting, items: list[int]) -> None:
    if bad := setting.run.bad.intersection(items):
        raise ValueError(f"cannot do {min(bad)}")
    setting.run.handled.update(items)
