"""One run: stores, workers, driver, fault after fault, the wait for the last task, and the verdict.

Rounds follow each other: faults strike, last, and are healed; then everything that was open when they struck must be
done, within what is promised. New work is enqueued all the while. The times of the application are divided, so that a
lease ends within the run; what is promised for those times is divided with them.

Whatever ends a run, Ctrl-C included: when `run` has returned or raised, its processes, its namespace and its folder
are gone, unless the caller wants to keep them.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from workq.app import WorkQueue
from workq.config import Settings
from workq.config.kafka import is_kafka
from workq.config.sources import temporary_folder
from workq.errors import ConfigError, Unavailable
from workq.lab import fleet
from workq.lab.certify import nemesis, witness
from workq.lab.certify.driver import AHEAD_S, Driver, EnqueueAnswer, Journal, TaskKind
from workq.lab.certify.faults import Fault
from workq.lab.certify.nemesis import Deck, Draw
from workq.lab.certify.report import CertifyReport, CertifyWishes
from workq.lab.certify.stage import Scratch, Stage, Wires
from workq.lab.certify.verdict import Round, RunEvidence, RunFinding, judge, timeline
from workq.lab.certify.witness import QUEUE, Testimony
from workq.lab.fleet import SERVER_UNREACHABLE, Host, last_words, logged_by_workers, only_workq_variables, startup_s
from workq.lab.namespace import new_name, settings_for, urls_of, versions_here, write_settings
from workq.ledger.questions import Questions
from workq.recovery.sweep import sweep
from workq.values.task import State

TURNS_S: Final = 5.0
"""How long suspects may take until the last had its turn."""
DELAYS: Final = 3
"""So often, at most, a task waits for a time: of its own, or of a retry."""
SESSION_S: Final = 45.0
"""How long Kafka takes a dead member for alive, if nobody has set it."""
HOSTS: Final = 2
SHOWN: Final = 5
"""So many findings are shown with the whole timeline of their task."""
_LOOK_EVERY_S: Final = 0.05
_START_LIMIT_S: Final = 60.0
_WATCHED_MAX: Final = 20_000
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


More = Callable[[Stage], Mapping[str, Draw]]
"""Faults that need control over the servers: whoever started them knows how."""


def run(
    settings: Settings, wishes: CertifyWishes, *, tell: Callable[[str], None] = lambda _: None, more: More | None = None
) -> CertifyReport:
    """Certify these stores.

    Raises:
        Unavailable: a server did not answer, at the start or later. SchemaMismatch: this user may not create tables.
        ConfigError: a fault in `wishes.only` does not exist here, or this user lacks a right on Kafka.
    """
    for library in ("workq", "pika", "psycopg"):  # what breaks on purpose is told by the report
        logging.getLogger(library).addHandler(logging.NullHandler())
    times = settings.times.divided_by(wishes.divided_by)
    scratch_settings = settings_for(settings, new_name("certify"), times)
    with ExitStack() as stack:
        stack.callback(_heed, {number: signal.getsignal(number) for number in _SIGNALS})
        folder = Path(tempfile.mkdtemp(prefix="workq-certify-", dir=temporary_folder())).absolute()
        not_removed: list[str] = []
        stack.callback(_remove_folder, folder, keep=wishes.keep)
        direct = write_settings(folder / "direct.toml", scratch_settings, urls_of(scratch_settings))
        stack.enter_context(only_workq_variables({"WORKQ_CONFIG": str(direct), fleet.FOLDER: str(folder)}))
        app = WorkQueue()
        scratch = Scratch(scratch_settings, app)
        stack.callback(scratch.close)
        if not wishes.keep:
            stack.callback(lambda: not_removed.extend(scratch.remove()))
        scratch.create()
        versions = versions_here() | scratch.versions()
        wires = stack.enter_context(Wires(scratch_settings))
        os.environ["WORKQ_CONFIG"] = str(write_settings(folder / "workers.toml", scratch_settings, wires.urls))
        tell(f"namespace {scratch_settings.namespace}; seed {wishes.seed}; times divided by {wishes.divided_by:g}")
        hosts = [
            Host(folder, n, app=witness.APP, processes=wishes.processes, threads=wishes.threads) for n in range(HOSTS)
        ]
        stage = Stage(folder, hosts, scratch, wires, times, Random(f"{wishes.seed} strike"), tell=tell)
        stack.enter_context(_ended(folder))
        trial = _CertifyTrial(stage, wishes, more)
        report = trial.play(versions)
        report.kept = folder if wishes.keep else None
        report.not_removed = not_removed  # filled when the stack unwinds
    return report


class _CertifyTrial:
    """The course of one run."""

    def __init__(self, stage: Stage, wishes: CertifyWishes, more: More | None) -> None:
        self.stage = stage
        self.wishes = wishes
        self.draws = nemesis.draws(stage) | dict(more(stage) if more else {})
        if unknown := sorted(wishes.only - set(self.draws)):
            raise ConfigError(f"no fault here is called {', '.join(unknown)}; there are {', '.join(self.draws)}")
        if wishes.only:
            self.draws = {name: draw for name, draw in self.draws.items() if name in wishes.only}
        self.testimony = Testimony(stage.folder / witness.FILE)
        self.journal = Journal(stage.folder / "journal")
        self.driver_app = WorkQueue()  # through the wires, as the workers
        self.driver = Driver(
            self.driver_app,
            self.journal,
            self.testimony,
            rate=wishes.rate,
            threads=HOSTS * wishes.processes * wishes.threads,
            seed=wishes.seed,
        )
        stage.pile_up = self.driver.pile_up
        self.rounds: list[Round] = []
        self.struck: Counter[str] = Counter()
        self.composed = 0
        self.watched: dict[str, tuple[str, int, object]] = {}
        self.start_s = 0.0
        self.late_s = _late_max_s(stage.scratch.settings)
        self._passed = 0
        """So many entries of the journal are finished for certain."""

    def play(self, versions: dict[str, str]) -> CertifyReport:
        began_at, began = datetime.now(UTC), time.monotonic()
        with _stalls() as stalls:
            try:
                self._start()
                self._strike_until(time.monotonic() + 60.0 * self.wishes.minutes)
                residue = self._finish()
            finally:
                self.driver.stop(timeout_s=2.0)
                self.driver_app.close()
        evidence = self._evidence(residue)
        verdict = judge(evidence)
        shown = [(one, self._timeline(evidence, one, began)) for one in verdict.findings[:SHOWN]]
        return CertifyReport(
            wishes=self.wishes,
            began_at=began_at,
            seconds=time.monotonic() - began,
            namespace=self.stage.scratch.settings.namespace,
            settings=self.stage.scratch.settings,
            versions=versions,
            start_s=self.start_s,
            stall_s=stalls[0],
            struck=dict(self.struck),
            left_out=nemesis.left_out(self.stage),
            rounds_composed=self.composed,
            verdict=verdict,
            logged=dict(logged_by_workers(self.stage.folder)[0]),
            shown=shown,
        )

    # -- the course

    def _start(self) -> None:
        """Start the workers, and learn how long that takes on this machine."""
        began = time.monotonic()
        for host in self.stage.hosts:
            host.start()
        wanted = HOSTS * self.wishes.processes
        while len(self.stage.scratch.app.stores.ledger.questions.workers()) < wanted:
            if (status := next((host.status for host in self.stage.hosts if not host.is_running), None)) is not None:
                raise ConfigError(f"a worker cannot start here: it ended with {status}{last_words(self.stage.hosts)}")
            if time.monotonic() - began > _START_LIMIT_S:
                raise ConfigError(f"no worker has started within {_START_LIMIT_S:.0f} s{last_words(self.stage.hosts)}")
            time.sleep(_LOOK_EVERY_S)
        self.start_s = time.monotonic() - began
        self.driver.start()

    def _strike_until(self, end_at: float) -> None:
        deck = Deck(self.draws, Random(f"{self.wishes.seed} deck"))
        rng = Random(f"{self.wishes.seed} pace")
        tries = 0
        self._wait(rng.uniform(0.5, 1.5))
        while time.monotonic() < end_at and tries < 50:
            faults = deck.next()
            if time.monotonic() + max(fault.lasts_s for fault in faults.values()) > end_at + 2.0:
                tries += 1
                continue
            self._round(faults, rng)
            self._wait(rng.uniform(0.1, 1.0))

    def _round(self, faults: Mapping[str, Fault], rng: Random) -> None:
        hits, heals, origins = [], [], []
        for name, fault in faults.items():
            at = time.monotonic()
            try:
                hits.append(f"{name}: {fault.strike(self.stage)}")
            except (Unavailable, SQLAlchemyError) as error:  # another fault is in its way
                self.stage.tell(f"{name}: could not strike: {str(error).splitlines()[0][:200]}")
                continue
            self.struck[name] += 1
            heals.append((at + fault.lasts_s, name))
            if not fault.is_timed_from_heal:
                origins.append(at)
            self._wait(rng.uniform(0.0, 0.2))
        struck_at = time.monotonic()  # what a strike has enqueued itself, to have something to lose, is waited for too
        for heal_at, name in sorted(heals, key=lambda one: (faults[one[1]].waits_to_heal, one)):
            self._wait(heal_at - time.monotonic())
            faults[name].heal(self.stage)
            if faults[name].is_timed_from_heal:
                origins.append(time.monotonic())
        if not hits:
            return
        struck = tuple(name for _, name in heals)
        self.composed += len(struck) > 1
        promised_s = sum(faults[name].bound_s(self.stage) for name in struck)
        allowed_s = self._allowed_s(promised_s)
        self.rounds.append(Round(struck, "; ".join(hits), struck_at, max(origins), promised_s, allowed_s))
        calm_s = self._wait_calm(struck_at, until=max(origins) + 3.0 * allowed_s)
        back = "not back yet" if calm_s is None else f"back after {max(0.0, calm_s - max(origins)):.1f} s"
        self.stage.tell(f"{'; '.join(hits)}: {back} (promised {promised_s:.1f} s)")
        if len(self.rounds) % 4 == 1 and len(self.watched) < _WATCHED_MAX:
            self.watched |= self.stage.scratch.settled(2000)

    def _allowed_s(self, promised_s: float) -> float:
        """What is promised, the work that waits, and the start of a supervisor and its processes on this machine.

        And the turns of suspects: what ran in company when its process died runs again alone, one after the other. And
        what a delay, and retries, are late by themselves where delays go by levels.
        """
        return promised_s + AHEAD_S + TURNS_S + 2.0 * self.start_s + DELAYS * self.late_s

    def _wait_calm(self, before: float, *, until: float) -> float | None:
        """Wait for everything that was acknowledged and due before; when that was, or None when the time is up."""
        while self._is_open(before):
            if time.monotonic() > until:
                return None
            self._wait(_LOOK_EVERY_S)
        return time.monotonic()

    def _is_open(self, before: float) -> bool:
        entries, finished = self.journal.entries, self.testimony.finished
        is_prefix = True
        for at in range(self._passed, len(entries)):
            entry = entries[at]
            if entry.called_at > before:
                return False
            is_done = (
                entry.kind in (TaskKind.DOOMED, TaskKind.CANCELLED)
                or entry.answer is not EnqueueAnswer.ACKNOWLEDGED
                or max(entry.answered_at, entry.called_at + entry.delay_s) > before
                or all(number in finished for number in entry.numbers)
            )
            if not is_done:
                return True
            is_prefix = (
                is_prefix and entry.answer is not EnqueueAnswer.NONE and entry.called_at + entry.delay_s < before
            )
            if is_prefix:
                self._passed = at + 1
        return False

    def _wait(self, seconds: float) -> None:
        """Pass the time, and read what the handlers write."""
        until = time.monotonic() + seconds
        while True:
            self.testimony.refresh()
            self._start_again()
            left_s = until - time.monotonic()
            if left_s <= 0.0:
                return
            time.sleep(min(_LOOK_EVERY_S, left_s))

    def _start_again(self) -> None:
        """A supervisor that finds a server away when it starts says so, and ends. As a service manager: try again."""
        for host in self.stage.hosts:
            if host.status == SERVER_UNREACHABLE:
                host.start()

    # -- the end

    def _finish(self) -> dict[str, int]:
        """No more faults: everything must be settled, and nothing may be left anywhere."""
        stage = self.stage
        stage.wires.heal()
        for host in stage.hosts:
            if not host.is_running:
                host.start()
        if not self.driver.stop(timeout_s=60.0):
            stage.trouble.append("an enqueue has not returned within 60 s of the last fault")
        limit_s = 30.0 + 3.0 * self.start_s + 2.0 * stage.bounds().everything_s
        if is_kafka(stage.scratch.settings.broker):  # what a dead process had not committed waits for another owner
            limit_s += SESSION_S
        stage.tell(f"no more faults; {self.journal.acknowledged} tasks were acknowledged")
        stores = stage.scratch.app.stores
        self._until(lambda: have_all_ended(stores.ledger.questions), limit_s)
        self._until(lambda: not any(self._left().values()), limit_s)
        residue = self._left()
        wanted = HOSTS * self.wishes.processes
        self._until(
            lambda: len(stores.ledger.questions.workers()) >= wanted, limit_s
        )  # who is still starting would be killed
        for host in stage.hosts:
            host.terminate()
        for host in stage.hosts:
            status = host.wait(stage.times.grace_s + 15.0)
            if status not in stage.good_ends():
                stage.trouble.append(f"the last SIGTERM: host {host.number} ended with {status}, not with 0")
                host.kill()
        self.testimony.refresh()
        self._until(self._is_everybody_gone, stage.bounds().dead_fleet_s + AHEAD_S)
        residue["leases of nobody"] = len(stores.inflight.leases())
        residue["live workers in the ledger"] = len(stores.ledger.questions.workers())
        residue["quarantined messages"] = stage.scratch.quarantined()
        return residue

    def _is_everybody_gone(self) -> bool:
        """Whether no worker is known any more; the sweep of those that are gone is ours now."""
        stores = self.stage.scratch.app.stores
        if not stores.inflight.leases() and not stores.ledger.questions.workers():
            return True
        sweep(stores, self.stage.scratch.settings)
        return False

    def _until(self, is_so: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            try:
                if is_so():
                    return
            except Unavailable:
                pass
            self._wait(4 * _LOOK_EVERY_S)

    def _left(self) -> dict[str, int]:
        stores = self.stage.scratch.app.stores
        depth = stores.broker.depths([QUEUE])[QUEUE]
        return {
            "holds": len(stores.inflight.holds(QUEUE)),
            "hints in the queue": depth.ready + (depth.unacked or 0),
        }

    def _evidence(self, residue: dict[str, int]) -> RunEvidence:
        stage = self.stage
        now = stage.scratch.settled_of(list(self.watched))
        self.start_s = max(self.start_s, startup_s(stage.folder))  # a machine may be busier later than at the start
        return RunEvidence(
            entries=self.journal.entries,
            lines=self.testimony.lines,
            rows=stage.scratch.rows(),
            harms=stage.harms,
            late_results=stage.scratch.events("late_result"),
            rewritten=[task_id for task_id, was in self.watched.items() if now.get(task_id) != was],
            residue=residue,
            trouble=[*stage.trouble, *self.journal.trouble, *logged_by_workers(stage.folder)[1]],
            rounds=[replace(one, allowed_s=self._allowed_s(one.promised_s)) for one in self.rounds],
            lease_s=stage.times.lease_s,
        )

    def _timeline(self, evidence: RunEvidence, finding: RunFinding, began: float) -> list[str]:
        events: list[str] = []
        if finding.task_id is not None:
            for event in self.stage.scratch.app.stores.ledger.questions.history(finding.task_id):
                events.append(f"{event.at:%H:%M:%S.%f} {event.kind} of attempt {event.attempt}: {event.detail}")
        return timeline(evidence, finding, events, zero_at=began)


_ENDED: Final = (State.SUCCEEDED, State.DEAD, State.CANCELLED)


def have_all_ended(questions: Questions) -> bool:
    """Whether no task is open. By one answer: what waits in the first may be ready in the next."""
    return not any(count for state, count in questions.counts().states.items() if state not in _ENDED)


def _late_max_s(settings: Settings) -> float:
    """How late a hint may come at most: where hints are rows, never."""
    if settings.broker is None or is_kafka(settings.broker):
        return 0.0
    from workq.broker.rabbitmq.delays import delays_of  # needs pika, which only RabbitMQ asks for

    return delays_of(settings.ladder).late_max_s


@contextmanager
def _stalls() -> Iterator[list[float]]:
    """The longest time for which a thread that was ready had to wait."""
    longest, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.is_set():
            asked = time.monotonic()
            ended.wait(_LOOK_EVERY_S)
            longest[0] = max(longest[0], time.monotonic() - asked - _LOOK_EVERY_S)

    thread = threading.Thread(target=watch, name="certify-stalls", daemon=True)
    thread.start()
    try:
        yield longest
    finally:
        ended.set()
        thread.join()


@contextmanager
def _ended(folder: Path) -> Iterator[None]:
    """At the end no process of this run is left. From then on nothing interrupts the removal of the rest."""
    try:
        yield
    finally:
        _heed(dict.fromkeys(_SIGNALS, signal.SIG_IGN))
        fleet.end_all(folder)


def _heed(handlers: Mapping[int, Any]) -> None:
    """Let signals be handled so, as far as this thread may decide it."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _remove_folder(folder: Path, *, keep: bool) -> None:
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
