"""Who acts in a simulated world: producers, workers, sweepers, a supervisor, and a person.

Each is the production code of its duty, put together as `workq.app` and `workq.worker` do, and called step by step:
`ThreeStores.round`, `LeaseKeeper.beat`, `Settler.settle_once`, `Relay.relay_once`, `sweep`. What the simulation writes
itself is only the loops around them, and the handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.simulation import broker, inflight, jobs, partitions
from tests.simulation.embedded import HintRows, LeaseRows, SimEmbeddedBroker
from tests.simulation.jobwatch import JobRecorder
from tests.simulation.later import PartsAndRows, QueuesAndRows, SimLedgerDelays
from tests.simulation.ledger import SimDatabase, SimLedger
from tests.simulation.recorder import AT_ONCE, Recorder
from tests.simulation.world import Act, Crash, Process, Strand, World
from workq.broker import Broker, Hint
from workq.config import Settings
from workq.diagnose.audit import Audited, audit_in_steps
from workq.diagnose.where import Misplacement
from workq.enqueue.producer import _VISIBLE_AFTER_S, Producer
from workq.enqueue.relay import Relay
from workq.errors import (
    BrokerUnavailable,
    Cancel,
    InFlightUnavailable,
    LeaseLost,
    NotFound,
    Refused,
    Snooze,
    Unavailable,
)
from workq.handlers.handler import BatchHandler, Handler
from workq.handlers.options import Batch, Options
from workq.handlers.registry import Registry
from workq.handlers.retry import Exponential, Retries
from workq.inflight.embedded import ClaimsInFlight
from workq.ledger import CancelAnswer, Evidence, Unpublished
from workq.recovery.reap import end_worker
from workq.recovery.sweep import STEPS, sweep
from workq.recovery.swept import Swept
from workq.schedules.ledger import Schedules
from workq.schedules.timetable import MissedTicks, NewSchedule, Timetable
from workq.stores import Stores
from workq.values.incarnation import Incarnation
from workq.values.task import AfterDeath, Claim, HandedBack, Limit, NewTask, Outcome
from workq.worker.attempt import raised, returned
from workq.worker.crash_board import HEAD_BYTES, LINE_BYTES, CrashBoard
from workq.worker.fetch.intake import Parts
from workq.worker.holds import held_for
from workq.worker.lease import LeaseKeeper
from workq.worker.pool import Pool
from workq.worker.process import take_in
from workq.worker.run import Run
from workq.worker.settle import Settler

QUEUES = ("mail", "index")
TWO_AT_ONCE = Limit("two", concurrency=AT_ONCE)
LINES = 16
IDLE_S = 0.5
"""Where who is idle takes from the ledger, so often it looks."""


class Setting:
    """What all processes of one world share."""

    def __init__(self, world: World, database: SimDatabase) -> None:
        self.world = world
        self.database = database
        self.messages, self.held = _servers(world, database)
        self.run = jobs.Run(Random(world.seed * 179_424_673 + 29))
        """What the job is of, where there is one."""
        shared = world, database, self.messages, self.held
        self.recorder = JobRecorder(self.run, *shared) if world.plan.is_job else Recorder(*shared)
        self.settings = Settings(ledger="sqlite:///simulated.db", namespace="sim", times=world.plan.times)
        self.registry = Registry()
        for name in ("act", "act_twice", *(jobs.NAMES if world.plan.is_job else ())):
            is_gathered = world.plan.is_gathered and name == "act_twice"
            make: Any = partial(BatchHandler, batch=Batch(3, 2.0)) if is_gathered else Handler
            self.registry.add(
                make(
                    _act,
                    name=name,
                    options=Options(queue="mail", failures_max=3, crashes_max=3),
                    retries=Retries(Exponential(base_s=0.5, cap_s=6.0)),
                    time_limit_s=None,
                    payload_max_bytes=1024,
                    kept_s=60.0,
                    producer=_nobody,
                )
            )
        self.scripts: dict[str, list[str]] = {}
        """What the handler of a task does at each of its starts; the last for ever."""
        self.tasks: list[str] = self.recorder.tasks
        self.workers: list[Worker] = []
        self.supervisor: Supervisor
        self.names = 0
        world.after_step.append(self.recorder.look_at_leases)

    def name(self, of: str) -> str:
        """A name that nobody had before."""
        self.names += 1
        return f"{of}.{self.names}"

    def process(self, of: str) -> Process:
        """A new process, on a host whose clocks are not ours."""
        rng = self.world.rng
        wall_s = rng.choice([0.0, 0.0, 7200.0, -7200.0, 0.3])
        return Process(self.world, self.name(of), monotonic_s=rng.uniform(0.0, 1e5), wall_s=wall_s)

    def stores(self, process: Process) -> Stores:
        """The three stores, as this process reaches them."""
        ledger = SimLedger(self.database, reserved_s=1.5 * self.world.plan.times.confirm_s)
        if self.world.plan.is_direct:
            rows = SimEmbeddedBroker(self.database, clock=lambda: self.world.now)
            rows.on_written = self.recorder.confirmed
            return Stores(ledger, rows, ClaimsInFlight(self.database), direct=rows)
        messages: Broker = self.server_of(process)
        if self.world.plan.is_moved:
            later = messages = SimLedgerDelays(messages, self.database)
            later.on_stored = self.recorder.confirmed
        held = Recorded(self.recorder, self.held, partial(self._befall_inflight, process))
        return Stores(ledger, messages, held)

    def server_of(self, process: Process) -> broker.SimBroker:
        """The broker that is a server of its own, as this process reaches it."""
        ladder = self.world.plan.ladder
        kind = partitions.PartitionedBroker if self.world.plan.is_owned else broker.SimBroker
        messages = kind(self.messages, partial(self._befall_broker, process), ladder=ladder)
        messages.on_confirmed = self.recorder.confirmed
        messages.on_accepted = self._accepted
        return messages

    def _accepted(self, hint: Hint) -> None:
        self.recorder.accepted(hint)
        if self.world.trace is not None:
            what = hint.marker[-6:] if hint.marker else " ".join(one[-6:] for one in hint.task_ids)
            self.world.note(f"broker has {hint.queue} [{what}] in {hint.delay_s:.2f} s")

    def unavailable(self, error: Exception) -> None:
        """A store did not answer: where nothing fails, that is a fault of ours."""
        if self.world.plan.kind != "any":
            self.world.violated("I1", f"a store was away, though nothing has failed: {error!r}")

    def _befall_broker(self, _: Process, call: str) -> BaseException | None:
        match self.world.befall("broker", call):
            case Act.FAIL_BEFORE:
                raise BrokerUnavailable("the simulated broker is away")
            case Act.FAIL_AFTER:
                return BrokerUnavailable("the simulated broker did not answer in time")
            case Act.CRASH_AFTER:
                return Crash()
        return None

    def _befall_inflight(self, _: Process, call: str) -> BaseException | None:
        match self.world.befall("inflight", call, holds_lock=call in ("beat", "release")):
            case Act.FAIL_BEFORE:
                raise InFlightUnavailable("the simulated store is away")
            case Act.FAIL_AFTER:
                return InFlightUnavailable("the simulated store did not answer in time")
            case Act.CRASH_AFTER:
                return Crash()
        return None


def _servers(world: World, database: SimDatabase) -> tuple[broker.Server, inflight.Server]:
    if world.plan.is_direct:
        return HintRows(database), LeaseRows(database)
    if world.plan.is_moved:
        messages = PartsAndRows(database) if world.plan.is_owned else QueuesAndRows(database)
        return messages, inflight.Server(lambda: world.now)
    return broker.Server(lambda: world.now), inflight.Server(lambda: world.now)


def _act(number: int) -> int:
    return number


_ERRORS: Final = {
    "fail": RuntimeError("simulated failure"),
    "cancel": Cancel("by itself"),
    "snooze": Snooze(0.7, "not now"),
}
"""What a handler raises, by what its script says."""


TICKING: Final = "ticking"
"""The name of the schedule."""


def ticking(every_s: float) -> NewSchedule:
    """What ticks so often, each of its ticks."""
    timetable = Timetable.every(every_s)
    return NewSchedule(
        TICKING, timetable, MissedTicks.ALL, "act", "mail", '{"a":[1],"k":{}}', failures_max=3, crashes_max=3
    )


def _nobody() -> Any:
    raise AssertionError("no handler of the simulation enqueues")


class Recorded(inflight.SimInFlight):
    """The in-flight store of one process, watched by the recorder."""

    def __init__(self, recorder: Recorder, server: inflight.Server, befall: inflight.Befall) -> None:
        super().__init__(server, befall)
        self._recorder = recorder

    def hold(self, entries: Any, *, by: str) -> set[str]:
        self._watching = ("hold", by)
        return super().hold(entries, by=by)

    def beat(self, worker: str, *, lease_s: float, entries: Any) -> Any:
        self._watching = ("beat", worker)
        return super().beat(worker, lease_s=lease_s, entries=entries)

    def release(self, task_ids: Any, *, by: str) -> int:
        self._watching = ("release", by)
        return super().release(task_ids, by=by)

    def leave(self, worker: str) -> None:
        self._watching = ("leave", worker)
        super().leave(worker)

    def forget(self, worker: str) -> int:
        self._watching = ("forget", worker)
        return super().forget(worker)

    def leases(self) -> Any:
        found = super().leases()
        self._recorder.looks_at_leases()
        return found

    def _call(self, name: str) -> Any:
        is_watched = name in ("hold", "beat", "release", "leave", "forget")
        by = self._watching[1] if is_watched else ""
        inner = super()._call(name)  # others may act in there: what is held before is read after it
        return _Watch(self._recorder, inner, name, by) if is_watched else inner


class _Watch:
    """Compares what is held before and after one call."""

    def __init__(self, recorder: Recorder, inner: Any, call: str, by: str) -> None:
        self._recorder, self._inner, self._call, self._by = recorder, inner, call, by

    def __enter__(self) -> None:
        self._before = self._recorder.before_call(self._call)
        self._inner.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._recorder.after_call(self._call, self._by, self._before)
        self._recorder.world.note(f"inflight.{self._call} by {self._by}")
        self._inner.__exit__(kind, error, trace)


class SteppedRelay(Relay):
    """A relay whose steps are made by a strand of its process."""

    def __init__(self, setting: Setting, process: Process, stores: Stores) -> None:
        super().__init__(stores, confirm_s=setting.world.plan.times.confirm_s, has_thread=False, clock=process.clock)
        self._rng = setting.world.rng
        self.strand = process.strand("relay", self._step)

    def offer(self, rows: Iterable[Unpublished], *, since: float | None = None) -> None:
        super().offer(rows, since=since)
        if self.behind:
            self.strand.wake(self._rng.choice([0.0, 0.001, 0.01, 0.3]))

    def _step(self) -> float | None:
        self.relay_once()
        return 0.01 if self.behind else None


class SteppedPool(Pool):
    """A pool whose attempts are strands: one step to enter the handler, one to leave it."""

    setting: Setting
    process: Process
    stores: Stores
    relay: SteppedRelay
    unstarted: list[Run]

    def dispatch(self, run: Run) -> None:
        self.unstarted.append(run)
        SteppedRun(self, run).strand.wake(self.setting.world.rng.choice([0.0, 0.001, 0.05]))

    def hand_back_unstarted(self) -> None:
        while self.unstarted:
            run = self.unstarted.pop()
            self.finish(run, [HandedBack()] * len(run.attempts))


class SteppedRun:
    """One run on its way through a handler, which ends as each of its attempts has to."""

    def __init__(self, pool: SteppedPool, run: Run) -> None:
        self.pool, self.run = pool, run
        self.strand = pool.process.strand(f"run {run.attempts[0].claim.task_id[-6:]}", self._begin)

    def _begin(self) -> float | None:
        pool, run = self.pool, self.run
        if run not in pool.unstarted:
            return None  # handed back
        pool.unstarted.remove(run)
        world = pool.setting.world
        self.began = pool.begin(run)
        self.does = [self._enter(one.claim) for one in run.attempts]
        self.strand.act = self._end
        if "slow" in self.does:
            return world.plan.times.lease_s * world.rng.uniform(0.2, 1.2)
        return world.rng.choice([0.0, 0.01, 0.2, 1.5])

    def _enter(self, claim: Claim) -> str:
        """What its handler does this time."""
        world, recorder = self.pool.setting.world, self.pool.setting.recorder
        recorder.begins(claim, self.pool.process)
        script = self.pool.setting.scripts.get(claim.task_id, ["ok"])
        does = script[min(recorder.starts[claim.task_id], len(script)) - 1]
        world.note(f"attempt {claim.attempt} of {claim.task_id[-6:]} begins: {does}")
        return does

    def _end(self) -> float | None:
        pool, run = self.pool, self.run
        if "exit" in self.does:
            pool.setting.world.faults["handler_kills"] += 1
            raise Crash
        outcomes = [self._leave(one.claim, does) for one, does in zip(run.attempts, self.does, strict=True)]
        pool.finish(run, outcomes, began=self.began)
        return None

    def _leave(self, claim: Claim, does: str) -> Outcome:
        """How it ends."""
        world, handler = self.pool.setting.world, self.run.handler
        if claim.name in jobs.NAMES and handler is not None:
            outcome: Outcome = jobs.outcome(self.pool, claim, handler)
        elif does in ("ok", "slow") or handler is None:
            outcome = returned(claim.attempt)
        else:
            outcome = raised(claim, handler, _ERRORS[does], rng=world.rng)
        world.note(f"attempt {claim.attempt} of {claim.task_id[-6:]} ends: {type(outcome).__name__}")
        self.pool.setting.recorder.ends(claim, outcome)
        return outcome


class SimBoard(CrashBoard):
    """A board in the memory of the simulation."""

    def __init__(self, lines: int) -> None:
        self._map = bytearray(HEAD_BYTES + LINE_BYTES * lines)  # type: ignore[assignment]
        self.path = Path("simulated")
        self.lines = lines


class Worker:
    """One life of one consumer process: what `workq.worker.process.Worker` is, in steps."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        world, times = setting.world, setting.world.plan.times
        self.world = world
        self.process = process = setting.process("worker")
        self.me = Incarnation(process.name, "simulated", 1)
        self.stores = setting.stores(process)
        self.board = SimBoard(LINES)
        self.relay = SteppedRelay(setting, process, self.stores)
        self.held = held_for(self.stores, by=self.me.id, clock=lambda: 0.0)
        self.heart = LeaseKeeper(
            self.stores, self.held, me=self.me, times=times, offer=self.relay.offer, clock=process.clock
        )
        self.pool = SteppedPool(
            self.stores.ledger,
            self.board,
            threads=world.plan.threads,
            times=times,
            on_finished=self._finished,
            on_death=process.die,
            rng=world.rng,
            clock=process.clock,
        )
        self.pool.setting, self.pool.process, self.pool.unstarted = setting, process, []
        self.pool.stores, self.pool.relay = self.stores, self.relay
        self.settler = Settler(
            self.stores,
            self.relay,
            self.held,
            by=self.me.id,
            taker=lambda: self.intake,
            is_busy=lambda: self.pool.active > 0,
            on_settled=self.pool.settled,
            on_death=process.die,
            rng=world.rng,
        )
        self.serve = process.strand("serve", self._join)
        self.beat = process.strand("beat", self._beat)
        self.settle = process.strand("settle", self._settle)
        self._pause_s = 0.0
        self._leave_by = 0.0
        self._is_broken = False
        process.on_death.append(self._died)
        setting.recorder.processes[self.me.id] = process
        setting.workers.append(self)
        self.serve.wake(world.rng.uniform(0.0, 0.2))

    def _died(self) -> None:
        self.setting.recorder.died(self.process)
        self.setting.supervisor.strand.wake(self.world.rng.choice([0.0, 0.1, 1.0]))
        consumer = getattr(self, "consumer", None)
        if isinstance(consumer, broker.SimConsumer):  # of others nobody sees a connection end
            consumer.die()

    def _join(self) -> float | None:
        if self.process.is_stopping:
            self.process.die()
            return None
        try:
            self.heart.join(queues=QUEUES, threads=self.pool.threads)
        except Unavailable:
            return 0.5
        except LeaseLost:  # it was slow to join, and taken for dead before it began: the real process would crash
            self.process.die()
            return None
        self.board.introduce(self.me.id)
        self.consumer, self.intake = take_in(
            Parts(
                self.stores,
                me=self.me.id,
                queues=QUEUES,
                registry=self.setting.registry,
                settings=self.setting.settings,
                heart=self.heart,
                held=self.held,
                pool=self.pool,
                rng=self.world.rng,
                admit=lambda keys: self.settler.admit(keys),
                clock=self.process.clock,
                wall=self.process.wall,
            )
        )
        if isinstance(self.consumer, broker.SimConsumer):
            self.consumer.subscription.on_arrival = lambda: self.serve.wake(0.002)
        self.serve.act = self._serve
        self.beat.wake(self.world.plan.times.beat_s)
        return 0.0

    def _serve(self) -> float | None:
        if self.process.is_stopping or self.heart.lost.is_set():
            self.serve.act = self._leave
            return 0.0
        try:
            full_s = self.intake.round()
        except LeaseLost:
            self.heart.make_sure()
            if self.heart.lost.is_set():
                return 0.0
            return self._again()
        except Unavailable as error:
            self.setting.unavailable(error)
            return self._again()
        except Exception as error:  # as in process.py: whatever it is, the process breaks
            self._break(error)
            return 0.0
        self._pause_s = 0.0
        if full_s > 0.0:
            return self.world.rng.choice([0.05, 0.3, 1.0])
        if self.world.plan.is_direct:
            return self.world.rng.choice([0.01, 0.3])
        if not self.intake.is_empty:
            return 0.005
        return IDLE_S if self.world.plan.is_owned else self.world.plan.times.beat_s

    def _again(self) -> float:
        self._pause_s = min(2.0, max(0.1, self._pause_s * 2))
        return self._pause_s

    def _break(self, error: Exception) -> None:
        self.world.note(f"broken: {error!r}")
        self.world.violated("I1", f"{self.me.id} broke with an error that nobody expected: {error!r}")
        self._is_broken = True
        self.serve.act = self._leave

    def _leave(self) -> float | None:
        self.consumer.close()
        self._is_broken = not self.intake.give_back() or self._is_broken
        self.pool.hand_back()
        self._leave_by = self.process.clock() + self.world.plan.times.grace_s
        self.serve.act = self._leave_when_idle
        return 0.0

    def _leave_when_idle(self) -> float | None:
        is_done = self.pool.active == 0 and self.settler.unsettled == 0
        if not is_done and self.process.clock() < self._leave_by:
            return 0.2
        while self.relay.behind:
            self.relay.relay_once()
        if is_done and not self._is_broken and not self.heart.lost.is_set():
            try:
                self.heart.leave()
            except Unavailable:
                self.world.note("leaves without a goodbye")
            else:
                self.board.leave()
        self.process.die()
        return None

    def _beat(self) -> float | None:
        self.heart.beat()
        if self.heart.lost.is_set():
            self.serve.wake(0.0)
            return None
        return self.world.plan.times.beat_s

    def _finished(self, settlement: Any) -> None:
        self.settler.put(settlement)
        self.settle.wake(self.world.rng.choice([0.0, 0.003, 0.05]))

    def _settle(self) -> float | None:
        if not self.settler.unsettled:
            return None
        try:
            pause_s = self.settler.settle_once()
        except Exception as error:  # nothing may stop a settlement: it is a finding
            self.world.violated("I1", f"{self.me.id} cannot settle: {error!r}")
            self.process.die()
            return None
        self.serve.wake(0.01)  # a slot is free
        return max(0.001, pause_s) if self.settler.unsettled else None


class Supervisor:
    """Keeps as many workers as planned; with `is_supervised` it ends the claims of the dead at once, with evidence."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        setting.supervisor = self
        self.process = setting.process("supervisor")
        self.stores = setting.stores(self.process)
        self.deaths: list[tuple[Worker, Evidence]] = []
        self.buried: set[str] = set()
        self.next_at = 0.0
        self.strand = self.process.strand("look", self._look)
        self.strand.wake(0.0)

    def _look(self) -> float | None:
        world, plan = self.setting.world, self.setting.world.plan
        alive = [one for one in self.setting.workers if not one.process.is_dead]
        for one in self.setting.workers:
            if one.process.is_dead and one.me.id not in self.buried:
                self.buried.add(one.me.id)
                if one.board.incarnation() is not None and not one.board.has_left() and plan.is_supervised:
                    started = {line.task_id: line.attempt for line in one.board.started()}
                    self.deaths.append((one, Evidence("simulated death", started)))
        while self.deaths:
            dead, evidence = self.deaths[0]
            try:
                end_worker(
                    self.stores,
                    self.setting.settings,
                    dead.me.id,
                    evidence,
                    Swept(),
                    outcomes=dead.board.outcomes(),
                    is_known_dead=True,
                    point="supervisor.before_reap",
                )
            except Unavailable:
                break
            self.deaths.pop(0)
        while len(alive) < plan.workers and world.now >= self.next_at:
            alive.append(Worker(self.setting))
            if world.is_faulty and world.now > 0.0:
                self.next_at = world.now + world.rng.choice([0.0, 0.1, 1.0, plan.times.lease_s])
        if self.deaths:
            return 0.5
        return max(0.01, self.next_at - world.now) if len(alive) < plan.workers else None


class Sweeper:
    """`workq sweep` again and again, step by step."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.process = setting.process("sweeper")
        self.stores = setting.stores(self.process)
        self.strand = self.process.strand("sweep", self._step)
        plan = setting.world.plan
        needed = {"tick": plan.every_s is not None, "advance": plan.is_ordered, "admit": plan.is_limited}
        self.steps = [step for step in STEPS if needed.get(step, True)]
        self.at = 0
        self.process.on_death.append(self._died)
        self.strand.wake(setting.world.rng.uniform(0.0, setting.world.plan.times.sweep_s))

    def _died(self) -> None:
        Sweeper(self.setting)

    def _step(self) -> float | None:
        plan = self.setting.world.plan
        step = self.steps[self.at]
        self.at = (self.at + 1) % len(self.steps)
        if step == "prune" and self.setting.world.rng.random() < 0.9:  # nothing here is old
            return plan.times.sweep_s
        try:
            swept = sweep(self.stores, self.setting.settings, only=[step], limit=plan.limit)
            if away := getattr(swept, "away", ()):
                self.setting.unavailable(Exception(str(away)))
        except Unavailable as error:
            self.setting.unavailable(error)
            self.at = 0
            return plan.times.sweep_s
        return plan.times.sweep_s if self.at == 0 else 0.003


class Auditor:
    """`workq audit` again and again, while everything works: where nothing is lost, it must find nothing."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.process = setting.process("auditor")
        self.stores = setting.stores(self.process)
        self.strand = self.process.strand("audit", self._step)
        self.steps: Any = None
        self.strand.wake(setting.world.rng.uniform(0.0, setting.world.plan.phase_s / 2))

    def _step(self) -> float | None:
        world = self.setting.world
        if self.steps is None:
            if not world.is_faulty:
                return None
            self.steps = audit_in_steps(self.stores, self.setting.settings, clock=self.process.clock)
        try:
            wait_s: float = next(self.steps)
        except StopIteration as end:
            self.steps = None
            self._judge(end.value)
            return world.plan.times.beat_s
        except Unavailable as error:
            self.setting.unavailable(error)
            self.steps = None
            return world.plan.times.beat_s
        return wait_s / 0.9  # it is called again a little earlier or later, but not too early

    def _judge(self, audited: Audited) -> None:
        world = self.setting.world
        world.note(f"audited: {dict(audited.places)} {audited.findings}")
        self.setting.recorder.audits += 1
        for finding in audited.findings:
            if finding.kind is Misplacement.TWIN:
                continue  # true: two workers may each have sent a hint on, when one gives back what the other wants
            if finding.kind is not Misplacement.LOST or finding.task not in self.setting.recorder.destroyed:
                world.violated("audit", f"a false alarm: {finding}")


class Producing:
    """An application that enqueues: alone, many at once, in a transaction of its own."""

    def __init__(self, setting: Setting, count: int) -> None:
        self.setting = setting
        self.left = count
        self.process = setting.process("producer")
        self.stores = setting.stores(self.process)
        self.relay = SteppedRelay(setting, self.process, self.stores)
        self.producer = Producer(
            self.stores,
            confirm_s=setting.world.plan.times.confirm_s,
            relay=self.relay,
            follow=self._follow,
        )
        self.again: list[NewTask] | None = None
        self.strand = self.process.strand("enqueue", self._enqueue)
        self.process.on_death.append(self._died)
        self.strand.wake(setting.world.rng.uniform(0.0, setting.world.plan.phase_s / 4))

    def _died(self) -> None:
        if self.left > 0:
            Producing(self.setting, self.left)

    def _enqueue(self) -> float | None:
        world, recorder, rng = self.setting.world, self.setting.recorder, self.setting.world.rng
        if self.again is not None:
            tasks, self.again = self.again, None
        else:
            if self.left <= 0:
                return None
            many = min(self.left, rng.choice([1, 1, 1, 3]))
            self.left -= many
            tasks = [self._new() for _ in range(many)]
        recorder.trying([task.id for task in tasks], {task.id: task.delay_s for task in tasks})
        world.note(f"enqueues {' '.join(task.id[-6:] for task in tasks)}")
        try:
            if rng.random() < 0.2:
                self._within(tasks)
            else:
                recorder.acknowledged.update(one.id for one in self.producer.record(tasks) if one.created)
        except Unavailable as error:  # unknown to the caller, who may try again with the same ids
            self.setting.unavailable(error)
            if rng.random() < 0.5:
                self.again = tasks
        return rng.choice([0.0, 0.5, world.plan.phase_s / max(2, world.plan.tasks)])

    def _new(self) -> NewTask:
        rng = self.setting.world.rng
        task_id = self.setting.world.new_id()
        script = rng.choice(
            [
                ["ok"],
                ["ok"],
                ["fail", "ok"],
                ["fail"],
                ["slow"],
                ["slow"],
                ["fail", "slow", "ok"],
                ["cancel"],
                ["snooze", "snooze", "ok"],
                ["snooze", "fail"],
                ["exit", "ok"],
            ]
        )
        plan = self.setting.world.plan
        is_ordered = plan.is_ordered
        if self.setting.world.plan.kind != "any" and script[0] == "exit":
            script = ["ok"]
        self.setting.scripts[task_id] = script
        self.setting.tasks.append(task_id)
        name = rng.choice(["act", "act_twice"])
        return NewTask(
            task_id,
            "act_twice" if plan.is_gathered else name,
            rng.choice(QUEUES),
            '{"a":[1],"k":{}}',
            delay_s=rng.choice([0.0, 0.0, 0.0, 0.7, 5.0]),
            failures_max=rng.choice([1, 2, 3]),
            crashes_max=rng.choice([2, 3]),
            key=rng.choice([None, None, None, "key"]),
            expires_s=rng.choice([None, None, None, None, 6.0, 20.0]),
            order_key=rng.choice([None, "line"]) if is_ordered else None,
            after_death=AfterDeath.SKIP,
            limit=rng.choice([None, TWO_AT_ONCE]) if plan.is_limited else None,
        )

    def _within(self, tasks: list[NewTask]) -> None:
        """In the caller's own transaction, which commits, or not."""
        world, recorder = self.setting.world, self.setting.recorder
        if world.befall("ledger", "transaction") is Act.FAIL_BEFORE:
            return
        does_commit = world.rng.random() < 0.6
        with self.setting.database.engine.connect() as connection:
            connection.execution_options(
                is_callers=True
            )  # as the driver does it by itself: BEGIN comes with the first write
            recorded = self.producer.record(tasks, connection=connection)
            created = [one.id for one in recorded if one.created]
            if not does_commit:
                world.note("rolls back")
                connection.rollback()
                fresh = [task_id for task_id in created if task_id not in recorder.rows]  # else: of a try that stood
                recorder.rolled_back.update(fresh)
                for task_id in fresh:
                    self.setting.tasks.remove(task_id)
                return
            connection.commit()
        before, world.op = world.op, ("transaction", (), {})
        recorder.look()
        world.op = before
        recorder.acknowledged.update(created)
        if world.befall("ledger", "committed") is Act.CRASH_AFTER:
            raise Crash

    def _follow(self, rows: list[Unpublished]) -> None:
        Following(self, rows).strand.wake(0.0)


class Following:
    """Looks whether the caller's commit can be seen, as the thread in workq.enqueue.producer does."""

    def __init__(self, producing: Producing, rows: list[Unpublished]) -> None:
        self.producing, self.rows = producing, rows
        self.waits = list(_VISIBLE_AFTER_S[1:])
        self.strand = producing.process.strand("follow", self._look)

    def _look(self) -> float | None:
        try:
            self.rows = self.producing.producer.offer_visible(self.rows)
        except Unavailable:
            return None  # the thread ends, and the sweep relays
        return self.waits.pop(0) if self.rows and self.waits else None


class Person:
    """Cancels, reschedules and revives tasks; pauses and resumes queues."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.process = setting.process("person")
        self.stores = setting.stores(self.process)
        self.relay = SteppedRelay(setting, self.process, self.stores)

    def act(self) -> None:
        """One decision about one task."""
        world, recorder = self.setting.world, self.setting.recorder
        if not self.setting.tasks:
            return
        task_id = world.rng.choice(self.setting.tasks)
        try:
            chance = world.rng.random()
            if chance < 0.2:
                delay_s = world.rng.choice([0.0, 0.7, 5.0])
                recorder.rescheduled.add(task_id)
                self.relay.offer(
                    [self.stores.ledger.decisions.reschedule(task_id, delay_s=delay_s, who="ada", why="simulated")]
                )
                world.note(f"rescheduled {task_id[-6:]}")
            elif chance < 0.7:
                answer = self.stores.ledger.decisions.cancel(task_id, who="ada", why="simulated")
                world.note(f"cancel {task_id[-6:]}: {answer.value}")
                if answer in (CancelAnswer.CANCELLED, CancelAnswer.ALREADY_CANCELLED):
                    recorder.cancelled.add(task_id)
            else:
                recorder.revived[task_id] += 1
                recorder.cancelled.discard(task_id)
                self.relay.offer([self.stores.ledger.decisions.revive(task_id, who="ada", why="simulated")])
                world.note(f"revived {task_id[-6:]}")
        except (Unavailable, NotFound, Refused):
            return

    def pause(self, queue: str) -> None:
        """Pause a queue, or resume it if it was paused."""
        world, recorder = self.setting.world, self.setting.recorder
        if queue in recorder.paused:
            self.resume(queue)
            return
        for_s = world.rng.choice([None, world.plan.times.beat_s])
        try:
            self.stores.ledger.pauses.pause(queue, who="simulated", why="simulated", for_s=for_s)
        except Unavailable:
            return  # nobody knows: `resume` ends it
        if for_s is None:
            recorder.paused.add(queue)
        world.note(f"paused {queue}")

    def resume(self, queue: str) -> None:
        """Let it go on."""
        self.setting.recorder.paused.discard(queue)
        with suppress(Unavailable):
            self.stores.ledger.pauses.resume(queue, who="simulated", why="simulated")
            self.setting.world.note(f"resumed {queue}")


class Nemesis:
    """What befalls whole stores and processes in the first phase; and the broker's own clock."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.process = Process(setting.world, "nemesis")
        self.person = Person(setting)
        self.strand = self.process.strand("strike", self._strike)
        self.ticking = Strand(self.process, "ladder", self._tick)
        self.backup: tuple[broker.Backup, inflight.State] | None = None
        self.dump: bytes | None = None
        setting.messages.on_delay = lambda due_at: self.ticking.wake(due_at - setting.world.now)
        if setting.world.plan.nemeses:
            self.strand.wake(setting.world.plan.nemesis_s)

    def _tick(self) -> float | None:
        self.setting.messages.dispatch()
        delayed = self.setting.messages.delayed
        if delayed:
            self.ticking.wake(max(0.001, delayed[0][0] - self.setting.world.now))
        return None

    def _strike(self) -> float | None:
        world = self.setting.world
        if not world.is_faulty:
            return None
        which = world.rng.choice(world.plan.nemeses)
        self.strike(which, world.rng)
        return world.plan.nemesis_s * world.rng.choice([0.3, 1.0, 2.0])

    def strike(self, which: str, rng: Random) -> None:
        """One blow."""
        world, messages, held = self.setting.world, self.setting.messages, self.setting.held
        recorder = self.setting.recorder
        world.faults[which] += 1
        world.note(f"NEMESIS {which}")
        match which:
            case "purge":
                messages.purge(rng.choice(QUEUES))
            case "purge_ladder":
                messages.purge_ladder()
            case "delete_queue":
                messages.delete_queue(rng.choice(QUEUES))
            case "wipe_broker":
                messages.wipe()
            case "truncate" | "expire_offsets":
                if isinstance(messages, PartsAndRows):
                    getattr(messages, which)(rng.choice(QUEUES))
            case "cut":
                if messages.subscriptions:
                    messages.cut(rng.choice(messages.subscriptions))
            case "repeat_hint":
                if found := list(messages.messages()):
                    messages.repeat(rng.choice(found))
            case "forge":
                self._forge(rng)
            case "redis_wipe":
                recorder.lose_holds()
                held.wipe()
            case "redis_back" | "broker_back":
                self._roll_back(which)
            case "ledger_back":
                self._roll_back_the_ledger()
            case "stop":
                if working := [one for one in self.setting.workers if not one.process.is_dead]:
                    rng.choice(working).process.is_stopping = True
            case "person":
                self._have(self.person.act)
            case "pause_queue":
                self._have(lambda: self.person.pause(rng.choice(QUEUES)))
            case "unknown_claim":
                self._claim_unknowingly(rng)
            case "part":  # one worker cannot reach one store
                if working := [one for one in self.setting.workers if not one.process.is_dead]:
                    where = rng.choice(["ledger", "broker", "inflight", "inflight"]), rng.choice(working).process.name
                    world.down_until[where] = world.now + world.plan.times.lease_s * rng.choice([0.3, 1.5, 3.0])
            case "clock":
                if working := [one for one in self.setting.workers if not one.process.is_dead]:
                    rng.choice(working).process.wall_s += rng.choice([-7200.0, 7200.0])

    def heal(self) -> None:
        """Whoever has paused something resumes it, and nothing ticks any more."""
        if self.setting.world.plan.every_s is not None:
            self._have(
                lambda: self.person.stores.ledger.part(Schedules).pause_schedule(
                    TICKING, who="simulated", why="simulated"
                )
            )
        if self.setting.world.faults["pause_queue"]:
            for queue in QUEUES:
                self._have(partial(self.person.resume, queue))

    def _have(self, act: Callable[[], object]) -> None:
        """Let the person do something."""
        world = self.setting.world
        before, world.acting = world.acting, self.person.relay.strand
        try:
            act()
        finally:
            world.acting = before

    def _claim_unknowingly(self, rng: Random) -> None:
        """A worker was started again from a snapshot of its machine: the ledger knows of claims that it does not."""
        working = [one for one in self.setting.workers if not one.process.is_dead]
        open_tasks = [row.id for row in self.setting.recorder.rows.values() if row.state in ("ready", "waiting")]
        if not working or not open_tasks:
            return
        world, ledger = self.setting.world, self.person.stores.ledger
        before, world.acting = world.acting, self.person.relay.strand
        try:
            claims = ledger.claims.claim([rng.choice(open_tasks)], by=rng.choice(working).me.id)
            world.note(f"claimed unknowingly: {' '.join(one.task_id[-6:] for one in claims)}")
        except Unavailable:
            return
        finally:
            world.acting = before
            ledger.claims._doubtful.clear()  # what that machine knew is gone with it

    def _forge(self, rng: Random) -> None:
        """Somebody writes hints that are not true: of an unknown task, or in the wrong queue."""
        task_id = self.setting.world.new_id()
        if self.setting.tasks and rng.random() < 0.7:
            task_id = rng.choice(self.setting.tasks)
        self.setting.recorder.forged.add(task_id)
        from workq.values.codec import Envelope, encode_hint

        queue = rng.choice(QUEUES)
        self.setting.messages.put(queue, encode_hint(Envelope(queue, (task_id,))), delay_s=rng.choice([0.0, 1.0]))

    def _roll_back_the_ledger(self) -> None:
        """It is copied, and restored from the copy the next time, while everybody lives on."""
        database = self.setting.database
        if self.dump is None:
            self.dump = database.copy()
        elif database.roll_back(self.dump):
            self.dump = None
            self.setting.recorder.lose_what_came_after()

    def _roll_back(self, which: str) -> None:
        messages, held = self.setting.messages, self.setting.held
        if self.backup is None:
            self.backup = (messages.copy(), held.copy())
            return
        if which == "redis_back":
            self.setting.recorder.lose_holds()
            held.roll_back(self.backup[1])
        else:
            messages.roll_back(self.backup[0])
        self.backup = None
