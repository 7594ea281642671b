"""The recorder: what really happened, and the invariants, seen from outside.

It reads the ledger's rows with plain SQL after every change, looks into the broker and the in-flight store, and is told
by the world's own actors what a user would see: which enqueue was acknowledged, which handler was entered, which cancel
was answered. It never asks the code under test. The names of the invariants are those of the project's fault list:

I1 every acknowledged id has one row; terminal is final · I2 when the faults have stopped, everything becomes terminal ·
I3 one settlement per life, by the newest attempt and its token · I4 two attempts overlap only after a lost lease ·
I5 starts are bounded by the budgets · I6 nothing runs without a row · I7 nothing starts before it is due ·
I8 nothing is claimed after its cancel was answered, nor while its queue is paused · I9 attempts strictly increase ·
I10 hints are for rows that exist, are marked only when confirmed, are never lost by workq itself, and are not repaired
where nothing was lost · I11 at rest nothing is left over · I12 each tick of a schedule is one task, and none is left
out · I13 of an order key nothing starts before what was committed before it has ended · I14 of those that share a limit
no more run at once than it says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tests.simulation import broker, inflight
from tests.simulation.ledger import BEGAN, SimDatabase, instant
from tests.simulation.world import Process, World
from workq.broker import Hint
from workq.order.ledger.tables import order_tables
from workq.schedules.ledger import schedule_tables
from workq.values.task import (
    Cancelled,
    Claim,
    Dead,
    Delivered,
    Done,
    Failed,
    HandedBack,
    Outcome,
    Settlement,
    Snoozed,
    Unhandled,
    Worked,
)

TERMINAL = frozenset({"succeeded", "dead", "cancelled"})
AT_ONCE = 2
"""Of those that share the limit."""
CLAIMABLE = frozenset({"ready", "waiting"})
CLAIMS = ("claim", "admit_and_claim")
HOLD_OPS = frozenset({"release", "leave", "forget", "hold", "beat"})


class Row(NamedTuple):
    """One task, as it stands in the table."""

    id: str
    queue: str
    state: str
    attempt: int
    token: str | None
    worker: str | None
    due_at: str
    published_at: str | None
    failures: int
    crashes: int
    failures_max: int
    crashes_max: int
    settled_at: str | None
    expires_at: str | None
    order_key: str | None
    limit_key: str | None


class WorkerRow(NamedTuple):
    """One incarnation, as it stands in the table."""

    id: str
    state: str
    beat_at: str


@dataclass(frozen=True)
class Start:
    """One entry into a handler."""

    task_id: str
    attempt: int
    token: str
    process: Process


class Recorder:
    """Knows what happened in one world."""

    HANDED_BACK: ClassVar[tuple[str, ...]] = ("ready", "cancelled")
    """What becomes of what a worker hands back that it was granted unknowingly."""

    def __init__(self, world: World, database: SimDatabase, messages: broker.Server, held: inflight.Server) -> None:
        self.world = world
        self.rows: dict[str, Row] = {}
        self.workers: dict[str, WorkerRow] = {}
        self.processes: dict[str, Process] = {}
        """Worker processes by incarnation."""
        self.tasks: list[str] = []
        """What a person may do something about."""
        self.acknowledged: set[str] = set()
        self.tried: set[str] = set()
        self.rolled_back: set[str] = set()
        self.cancelled: set[str] = set()
        self.paused: set[str] = set()
        """Queues whose pause was answered, and whose resuming was not begun."""
        self.forged: set[str] = set()
        self.rescheduled: set[str] = set()
        self.starts: Counter[str] = Counter()
        self.snoozes: Counter[str] = Counter()
        self._relayed: set[str] = set()
        """What the sweep has sent in the place of a producer."""
        self.started: dict[tuple[str, str | None], Start] = {}
        """By task and token: a ledger that became older counts the same attempts again."""
        self.running: dict[tuple[str, str | None], Start] = {}
        self.outcomes: dict[tuple[str, str | None], Outcome] = {}
        self._settled: set[tuple[str, str | None]] = set()
        self._returned: set[tuple[str, str | None]] = set()
        """What its worker has given back because it knew nothing of it."""
        self._undone: set[str] = set()
        """Tokens of claims that the ledger has forgotten with all that came after it was copied."""
        self._gone: set[str] = set()
        """Tasks that it has forgotten so."""
        self.destroyed: Counter[str] = Counter()
        """How often a fault has destroyed a hint, or a hold, of an id."""
        self._repairs: Counter[str] = Counter()
        self.repaired = 0
        self.audits = 0
        self.duplicate_starts = 0
        self.late_results = 0
        self.revived: Counter[str] = Counter()
        self._database = database
        self._messages = messages
        self._held = held
        self._seen = -1
        self._tokens: set[str] = set()
        self._granted: list[tuple[object, str, int]] = []
        """What each claim has written: (the call, id, attempt)."""
        self._confirmed_at: dict[str, float] = {}
        self._unpublished_since: dict[str, float] = {}
        self._not_before: dict[str, str] = {}
        self._promised: dict[str, float] = {}
        self._unleased_since: dict[str, float] = {}
        self._missed_since: dict[str, float] = {}
        """Since when each was without a lease at every look of a sweep."""
        self._rolled_back_at = float("-inf")
        self._forgotten: set[str] = set()
        self._epoch: object = held.state
        self._lives: defaultdict[str, int] = defaultdict(int)
        table = database.tables.task.name
        self._select = f"SELECT {', '.join(Row._fields)} FROM {table}"
        self._select_workers = f"SELECT {', '.join(WorkerRow._fields)} FROM {database.tables.worker.name}"
        database.on_change = self.look
        world.on_claimed = self.claimed
        messages.on_lost = self.lose

    # -- told by the actors

    def trying(self, task_ids: Iterable[str], delay_s: dict[str, float]) -> None:
        """An enqueue is called with these ids."""
        self.tried.update(task_ids)
        self._promised.update(delay_s)

    def begins(self, claim: Claim, process: Process) -> None:
        """A handler is entered."""
        key = (claim.task_id, claim.token)
        row = self.rows.get(claim.task_id)
        if row is None:
            if claim.task_id not in self._gone:
                self.world.violated("I6", f"{claim.task_id} runs without a row")
            return
        if key in self._returned:
            self.world.violated("I3", f"attempt {claim.attempt} of {claim.task_id} starts, and was given back before")
        if key in self.started:
            self.world.violated("I3", f"attempt {claim.attempt} of {claim.task_id} was started twice")
        for other in self.running.values():
            if other.task_id == claim.task_id and not other.process.is_dead:
                self._overlaps(other, claim, process)
        self.starts[claim.task_id] += 1
        start = Start(claim.task_id, claim.attempt, claim.token, process)
        self.started[key] = self.running[key] = start
        charged = self.starts[claim.task_id] - self.snoozes[claim.task_id]
        if charged > (row.failures_max + row.crashes_max + 1) * (1 + self.revived[claim.task_id]):
            self.world.violated("I5", f"{claim.task_id} was started {self.starts[claim.task_id]} times")

    def ends(self, claim: Claim, outcome: Outcome) -> None:
        """A handler has ended."""
        self.running.pop((claim.task_id, claim.token), None)
        self.outcomes[claim.task_id, claim.token] = outcome
        if isinstance(outcome, Snoozed):
            self.snoozes[claim.task_id] += 1

    def died(self, process: Process) -> None:
        """A process is gone, and what it ran."""
        for key in [key for key, start in self.running.items() if start.process is process]:
            del self.running[key]

    def confirmed(self, hints: Sequence[Hint]) -> None:
        """The broker has answered that it has these."""
        for hint in hints:
            for task_id in hint.task_ids:
                self._confirmed_at[task_id] = self.world.now

    def accepted(self, hint: Hint) -> None:
        """The broker has got this."""
        for task_id in hint.task_ids:
            if task_id not in self.rows and task_id not in self.forged:
                self.world.violated("I10", f"a hint of {task_id}, which the ledger does not have, was published")
                continue
            self._judge_turn(task_id, hint.delay_s)
            # where a part has an owner, a hint comes to it that others have done without
            if self.world.plan.kind == "healthy" and not self.world.plan.is_owned:
                self._judge_need(task_id)

    def _judge_turn(self, task_id: str, delay_s: float) -> None:
        """The hint of a retry follows its settlement: before, it could come while the attempt still runs.

        It is told by its delay. One without any is of something else: of an earlier attempt, moved when it was due.
        """
        row = self.rows.get(task_id)
        if delay_s == 0.0 or row is None or row.state != "running":
            return
        outcome = self.outcomes.get((task_id, row.token))
        if isinstance(outcome, Failed) and outcome.delay_s > 0.0 and abs(outcome.delay_s - delay_s) < 0.01:
            self.world.violated("I10", f"the hint of a retry of {task_id} was sent before the ledger knew of it")

    def _judge_need(self, task_id: str) -> None:
        """Where nothing fails, what is settled gets no hint, unless its producer was so slow that a sweep sent one.

        Then there are two hints of the task, and whoever has the second in hand may hand it back.
        """
        acting = self.world.acting
        if acting is not None and acting.process.name.startswith("sweeper"):
            self._relayed.add(task_id)
        has_had_two = task_id in self._relayed | self.rescheduled or self.revived[task_id]
        if self.rows[task_id].state in ("succeeded", "dead") and not has_had_two:
            self.world.violated("I10", f"a hint of {task_id}, which was settled, was published")

    def lose(self, task_ids: Iterable[str]) -> None:
        """A fault has destroyed these hints or holds."""
        self.destroyed.update(task_ids)

    def lose_holds(self) -> None:
        """The in-flight store is about to forget everything, or to become older."""
        self.lose([where[1] for where in self._held.state.holds])
        self._rolled_back_at = self.world.now

    def lose_what_came_after(self) -> None:
        """The ledger has become older: what it says now is where everything begins again."""
        self.lose_holds()
        known = set(self.rows)
        running = {row.id: row.token for row in self._read() if row.state == "running"}
        self._undone = {token for token in self._tokens if token not in running.values()}
        self._undone |= {one.token for one in self.running.values() if running.get(one.task_id) != one.token}
        self.rows = {row.id: row for row in self._read()}
        self.workers = self._read_workers()
        self._seen = self._database.raw.total_changes
        self._tokens.update(row.token for row in self.rows.values() if row.token is not None)
        self._gone |= known - set(self.rows)
        self.forged |= self._gone  # their hints go on coming
        self.tasks[:] = [one for one in self.tasks if one in self.rows]
        self.cancelled = {one for one in self.cancelled if one in self.rows and self.rows[one].state == "cancelled"}
        self.paused.clear()
        self._granted.clear()
        self.lose(list(self.rows))
        for task_id in self.rows:
            self.revived[task_id] += 1
            self._not_before[task_id] = ""
            self._unpublished_since[task_id] = 0.0
        self._forgotten = set(self._held.state.lost)

    # -- the ledger's rows

    def _read(self) -> list[Row]:
        return [Row(*row) for row in self._database.raw.execute(self._select)]

    def _read_workers(self) -> dict[str, WorkerRow]:
        return {row[0]: WorkerRow(*row) for row in self._database.raw.execute(self._select_workers)}

    def look(self) -> None:
        """Read what changed, and judge it by the call that changed it."""
        if self._database.raw.total_changes == self._seen:
            return
        self._seen = self._database.raw.total_changes
        workers = self._read_workers()
        rows = {row.id: row for row in self._read()}
        for worker, now in workers.items():
            before = self.workers.get(worker)
            if before is not None and before.state != now.state:
                self._judge_worker(before, now)
        self.workers = workers
        for task_id in self.rows:
            if task_id not in rows:
                self.world.violated("I1", f"the row of {task_id} is gone")
        for task_id, row in rows.items():
            old = self.rows.get(task_id)
            if old != row:
                self._judge(old, row)
        self.rows = rows
        self._judge_limits()
        self._tokens.update(row.token for row in rows.values() if row.token is not None)

    def _judge_limits(self) -> None:
        running = Counter(row.limit_key for row in self.rows.values() if row.state == "running" and row.limit_key)
        for key, count in running.items():
            if count > AT_ONCE:
                self.world.violated("I14", f"{count} of limit {key} run at once")

    def _judge(self, old: Row | None, new: Row) -> None:
        op, args = self._op()
        short = f"{new.id} in {op}"
        if old is None and op == "tick":
            at = next((at for at, task in args[1] if task.id == new.id), None)
            if at is None:
                self.world.violated("I12", f"{short}: recorded, and no tick is its")
                return
            self._not_before[new.id] = instant((at - BEGAN).total_seconds())
            self._unpublished_since[new.id] = self.world.now
            return
        if old is None:
            if new.id not in self.tried or new.id in self.rolled_back or op not in ("record", "transaction"):
                self.world.violated("I1", f"{short}: recorded without being asked")
            if new.attempt != 0 or new.state not in CLAIMABLE:
                self.world.violated("I1", f"{short}: begins as {new.state}, attempt {new.attempt}")
            self._not_before[new.id] = instant(self.world.now + self._promised.get(new.id, 0.0))
            self._unpublished_since[new.id] = self.world.now
            if new.order_key is not None:
                self._take_position(new)
            return
        if new.attempt < old.attempt or (new.attempt > old.attempt and op not in CLAIMS):
            self.world.violated("I9", f"{short}: attempt {old.attempt} became {new.attempt}")
        if op == "settle" and old.state != "running":
            self.world.violated("I3", f"{short}: a settlement changed what was {old.state}")
        if old.state != new.state:
            self._judge_state(old, new, op, args)
        elif old.state == "running" and (old.token, old.worker, old.attempt) != (new.token, new.worker, new.attempt):
            if op not in CLAIMS or old.worker != new.worker or (old.id, old.token) in self.started:
                self.world.violated("I3", f"{short}: claimed while it was running")
        elif old.state in TERMINAL and (old.attempt, old.settled_at) != (new.attempt, new.settled_at):
            self.world.violated("I1", f"{short}: terminal, and changed")
        if op == "reschedule" and old.due_at != new.due_at and new.state in CLAIMABLE:
            if old.state not in CLAIMABLE or new.published_at is not None:
                self.world.violated("I7", f"{short}: {old.state}, and its hint is of {new.published_at}")
            self._not_before[new.id] = new.due_at
        self._judge_hint(old, new, op)

    def _judge_state(self, old: Row, new: Row, op: str, args: tuple[Any, ...]) -> None:
        where = f"{new.id}: {old.state} became {new.state} in {op}"
        if old.state in TERMINAL:
            if op != "revive" or (new.state != "ready" and new.order_key is None):
                self.world.violated("I1", f"{where}, though terminal is final")
            self._not_before[new.id] = instant(self.world.now)
            return
        if old.state == "running":
            self._judge_end(old, new, op, args, where)
            return
        match new.state:
            case "running":
                self._judge_claim(old, new, op, where)
            case "ready" | "waiting" if op == "reschedule":
                pass  # `_judge_due` looks at when it is due
            case "waiting" if op in CLAIMS and new.limit_key is not None:
                pass  # it waits for its turn
            case "ready":
                if op not in ("promote", "advance", "admit", "admit_and_claim") or new.due_at > instant(self.world.now):
                    self.world.violated("I7", f"{where}, due at {new.due_at}")
            case "cancelled":
                is_expired = op == "expire" and new.expires_at is not None and new.expires_at <= instant(self.world.now)
                if op != "cancel" and not is_expired:
                    self.world.violated("I8", where)
            case _:
                self.world.violated("I1", where)

    def _judge_claim(self, old: Row, new: Row, op: str, where: str) -> None:
        if op not in CLAIMS:
            self.world.violated("I3", where)
            return
        if new.attempt != old.attempt + 1:
            self.world.violated("I9", f"{where}: attempt {old.attempt} became {new.attempt}")
        if new.token is None or new.token in self._tokens:
            self.world.violated("I3", f"{where}: the token is not new")
        now = instant(self.world.now)
        if old.expires_at is not None and old.expires_at <= now:
            self.world.violated("I7", f"{where} at {now}, expired at {old.expires_at}")
        is_parked = op == "admit_and_claim"  # due never: it was due when it was parked
        if max("" if is_parked else old.due_at, self._not_before[new.id]) > now:
            self.world.violated("I7", f"{where} at {now}, due at {old.due_at}, promised {self._not_before[new.id]}")
        if new.id in self.cancelled:
            self.world.violated("I8", f"{where}, though its cancel was answered")
        if new.queue in self.paused:
            self.world.violated("I8", f"{where}, though queue {new.queue} is paused")
        if new.order_key is not None:
            self._judge_order(new, where)
        worker = self.workers.get(new.worker or "")
        if worker is None or worker.state != "live":
            self.world.violated("I6", f"{where} by {new.worker}, which is not live")
        self._granted.append((self.world.op, new.id, new.attempt))

    def _judge_order(self, new: Row, where: str) -> None:
        """By the ledger's positions, which must grow as the tasks are committed (see `_take_position`)."""
        for task_id in self._line(new.order_key):
            if task_id == new.id:
                return
            before = self.rows.get(task_id)
            if before is not None and before.state not in TERMINAL:
                self.world.violated("I13", f"{where}, though {task_id} is {before.state} and was committed before")
        self.world.violated("I13", f"{where}, and has no position in line {new.order_key}")

    def _take_position(self, new: Row) -> None:
        """Whoever is committed later stands behind all that were there."""
        line = self._line(new.order_key)
        ahead = line[: line.index(new.id)] if new.id in line else line
        if late := [one for one in line if one in self.rows and one not in ahead]:
            self.world.violated("I13", f"{new.id} was committed after {late[0]}, and stands before it")

    def _line(self, order_key: str | None) -> list[str]:
        table = order_tables(self._database).position.name
        query = f"SELECT task_id FROM {table} WHERE order_key = ? ORDER BY position"
        return [task_id for (task_id,) in self._database.raw.execute(query, (order_key,))]

    def in_line(self) -> int:
        """How many tasks with an order key are not settled."""
        return sum(row.order_key is not None and row.state not in TERMINAL for row in self.rows.values())

    def limited(self) -> int:
        """How many tasks that share a limit are not settled."""
        return sum(row.limit_key is not None and row.state not in TERMINAL for row in self.rows.values())

    def subtasks(self) -> int:
        """How many subtasks are still to be made or settled."""
        return 0

    def claimed(self, claims: Sequence[Claim], in_doubt: Collection[str]) -> None:
        """A claim has answered: whatever it granted, also by an earlier try, is in the answer, or it runs nowhere.

        Or it is in doubt, where a part of the call has answered and the commit of the other stayed unknown.
        """
        answered = {(claim.task_id, claim.attempt) for claim in claims}
        for call, task_id, attempt in self._granted:
            if call is self.world.op and (task_id, attempt) not in answered and task_id not in in_doubt:
                self.world.violated("I3", f"{task_id}: attempt {attempt} was granted, and nobody was told")
        self._granted = [one for one in self._granted if one[0] is not self.world.op]

    def _judge_end(self, old: Row, new: Row, op: str, args: tuple[Any, ...], where: str) -> None:
        key = (old.id, old.token)
        if op == "settle":
            mine: list[Settlement] = [one for one in args[0] if one.claim.task_id == old.id]
            fits = [one for one in mine if (one.claim.attempt, one.claim.token) == (old.attempt, old.token)]
            if not fits:
                self.world.violated("I3", f"{where} by a settlement whose fence is not {old.attempt}, {old.token}")
                return
            outcome = fits[0].outcome
            self._settled.add(key)
            if new.state not in _led_to(outcome):
                self.world.violated("I3", f"{where} by {outcome}")
            if isinstance(outcome, Done) and not isinstance(self.outcomes.get(key), Done):
                self.world.violated("I6", f"{where}, though no handler of that attempt has returned")
            if new.state == "waiting" and isinstance(outcome, Failed | Snoozed):
                self._not_before[new.id] = instant(self.world.now + outcome.delay_s)
        elif op in (*CLAIMS, "return_doubtful", "return_forgotten"):  # its own, granted to it unknowingly
            process = self.world.acting.process if self.world.acting is not None else None
            owner = self.processes.get(old.worker or "")
            # what has started and was settled, the ledger has forgotten, and its worker cannot settle again
            is_in_hand = key in self.started and (op != "return_forgotten" or key not in self._settled)
            if process is not owner or is_in_hand or new.state not in self.HANDED_BACK:
                self.world.violated("I3", where)
            self._returned.add(key)
        elif op in ("reap", "orphans"):
            worker = self.workers.get(old.worker or "")
            if worker is not None and worker.state == "live":
                self.world.violated("I4", f"{where}, though {old.worker} is live")
            if new.state in CLAIMABLE:
                self._not_before[new.id] = instant(self.world.now) if new.state == "ready" else new.due_at
            if op == "orphans" and self.world.plan.kind != "any":
                self.world.violated("I10", f"{where}, though nobody has died")
        else:
            self.world.violated("I3", where)

    def _judge_hint(self, old: Row, new: Row, op: str) -> None:
        if old.published_at is None and new.published_at is not None:
            # attempts are counted again in a ledger that became older: a mark may be late by a whole life there
            is_early = self._confirmed_at.get(new.id, -1.0) < self._unpublished_since.get(new.id, 0.0)
            if is_early and not self._undone:
                self.world.violated("I10", f"{new.id} was marked as published in {op} without a confirm")
        elif new.published_at is None and (
            old.published_at is not None or (old.state != new.state and old.state not in CLAIMABLE)
        ):
            self._unpublished_since[new.id] = self.world.now
        if op == "lost" and old.published_at is not None and new.published_at is None:
            self._judge_repair(new.id)

    def _judge_repair(self, task_id: str) -> None:
        self.repaired += 1
        self._repairs[task_id] += 1
        # of a queue that was damaged positions may prove too much: then a hint is there twice
        is_strict = self.world.plan.kind != "any" and not (self.world.plan.is_owned and self.destroyed)
        if task_id in self.destroyed:
            if is_strict and self._repairs[task_id] > self.destroyed[task_id]:
                self.world.violated("I10", f"the hint of {task_id} was repaired more often than it was lost")
            return
        if is_strict:
            self.world.violated("I10", f"the hint of {task_id} was repaired, though it was never lost")
        elif not self._has_hint(task_id):
            self.world.violated("I10", f"the hint of {task_id} was lost by workq itself")

    def _has_hint(self, task_id: str) -> bool:
        return task_id in self._messages.ids() or any(where[1] == task_id for where in self._held.state.holds)

    def _judge_worker(self, old: WorkerRow, new: WorkerRow) -> None:
        if new.state != "reaped":
            return
        process = self.processes.get(new.id)
        if process is None or process.is_dead:
            return
        if self.world.plan.kind != "any":
            self.world.violated("I4", f"{new.id} was reaped, though nothing has failed")
        now, times = self.world.now, self.world.plan.times
        if old.beat_at > instant(now - times.lease_s):
            self.world.violated("I4", f"{new.id} lives, has beaten in the ledger at {old.beat_at}, and was reaped")
        # where all three stores are one database, nobody tells of the looks
        since = self._missed_since.get(new.id, self._unleased_since.get(new.id))
        is_recent_rollback = now - self._rolled_back_at < 2 * times.beat_s + times.sweep_s
        if since is None or (now - since < 0.75 * times.beat_s and not is_recent_rollback):
            self.world.violated("I4", f"{new.id} lives, and was reaped without two looks a beat apart")

    def _op(self) -> tuple[str, tuple[Any, ...]]:
        if self.world.op is None:
            return "-", ()
        name, arguments, _ = self.world.op
        return ("claim" if name == "claim_hinted" else name), arguments

    def _overlaps(self, other: Start, claim: Claim, process: Process) -> None:
        """Whoever has the older attempt must have lost its lease, be it in the handler or just before it."""
        self.duplicate_starts += 1
        if {other.token, claim.token} & self._undone:
            return  # the ledger does not know of it any more
        owner = other.process if other.attempt < claim.attempt else process
        incarnation = next((name for name, one in self.processes.items() if one is owner), "")
        row = self.workers.get(incarnation)
        if row is None or row.state == "live":
            text = f"{claim.task_id}: attempt {claim.attempt} starts while {other.attempt} runs under a live worker"
            self.world.violated("I4", text)

    # -- the in-flight store

    def before_call(self, _: str) -> dict[inflight.Where, tuple[str, int | None, float]]:
        """What is held, before a call changes it."""
        return dict(self._held.state.holds)

    def after_call(
        self, call: str, by: str | None, before: dict[inflight.Where, tuple[str, int | None, float]]
    ) -> None:
        """Entries vanish only by their owner, by its reaping, or to somebody who takes them over from the dead."""
        now = self._held.state.holds
        for where, (owner, _, _) in before.items():
            kept = now.get(where)
            if kept is None and owner != by:
                self.world.violated("I4", f"{call} by {by} dropped the hold of {owner} on {where[1]}")
            if kept is not None and kept[0] != owner and self._held.is_live(owner):
                self.world.violated("I4", f"{call} by {by} took {where[1]} from {owner}, whose lease is live")
        if call == "forget" and by is not None:
            self._forgotten.add(by)

    def looks_at_leases(self) -> None:
        """A sweep reads them. A lease that came back between two such looks, or after them, was seen by nobody."""
        self.look_at_leases()
        self._missed_since = {one: self._missed_since.get(one, self.world.now) for one in self._unleased_since}

    def look_at_leases(self) -> None:
        """Since when each live incarnation has been without a lease; and no lease comes back from the dead."""
        state = self._held.state
        if state is not self._epoch:  # wiped or rolled back
            self._epoch = state
            self._forgotten = set(state.lost)
        for worker in self._forgotten:
            if worker in state.leases:
                self.world.violated("I11", f"{worker} was forgotten, and has a lease again")
        for worker in self.workers:
            until = state.leases.get(worker)
            if until is None:
                self._unleased_since.setdefault(worker, self.world.now)
            elif until > self.world.now:
                self._unleased_since.pop(worker, None)
            else:
                self._unleased_since[worker] = min(until, self._unleased_since.get(worker, until))

    # -- the end

    def unsettled(self) -> list[Row]:
        """What is not terminal yet."""
        return [row for row in self.rows.values() if row.state not in TERMINAL]

    def gone(self) -> int:
        """How many incarnations are live by the ledger, and dead."""
        live = [worker.id for worker in self.workers.values() if worker.state == "live"]
        return sum(one not in self.processes or self.processes[one].is_dead for one in live)

    def is_quiet(self) -> bool:
        """Everything has come to an end, and nothing is left over."""
        return not self.unsettled() and not self.leftovers()

    def leftovers(self) -> list[str]:
        """What I11 forbids at rest."""
        found = [f"held: {where[1]} by {hold[0]}" for where, hold in self._held.state.holds.items()]
        live = {worker.id for worker in self.workers.values() if worker.state == "live"}
        found += [f"lease of {worker}" for worker in self._held.state.leases if worker not in live]
        found += [f"message {message.body!r}" for message in self._messages.messages()]
        found += [
            f"live in the ledger, but gone: {worker}"
            for worker in sorted(live)
            if worker not in self.processes or self.processes[worker].is_dead
        ]
        return found

    def check_end(self) -> None:
        """After the faults have stopped and everything is quiet."""
        for task_id in self.acknowledged:
            if task_id not in self.rows and task_id not in self._gone:
                self.world.violated("I1", f"{task_id} was acknowledged, and has no row")
        for task_id in self.rolled_back:
            if task_id in self.rows:
                self.world.violated("I1", f"{task_id} was rolled back, and has a row")
        for row in self.rows.values():
            if row.state == "succeeded" and not isinstance(self.outcomes.get((row.id, row.token)), Done):
                self.world.violated("I3", f"{row.id} succeeded by attempt {row.attempt}, which has not")
        if self.world.plan.every_s is not None:
            self._check_ticks(self.world.plan.every_s)

    def _check_ticks(self, every_s: float) -> None:
        """From the first instant to that of the next tick, each is there, and each is a task."""
        ticks_of, schedule = self._database.tables.tick.name, schedule_tables(self._database).schedule.name
        [(next_at,)] = self._database.raw.execute(f"SELECT next_at FROM {schedule}")
        ticks = list(self._database.raw.execute(f"SELECT at, task_id FROM {ticks_of} ORDER BY at"))
        expected: list[str] = []
        while (at := instant(every_s * (len(expected) + 1))) < next_at:
            expected.append(at)
        if [at for at, _ in ticks] != expected:
            self.world.violated("I12", f"it ticked at {[at for at, _ in ticks]}, and should have at {expected}")
        made = {task_id for _, task_id in ticks}
        others = set(self.rows) - self.tried
        if made != others or len(made) != len(ticks):
            self.world.violated("I12", f"{len(ticks)} ticks are {len(made)} tasks, and {len(others)} are there")


def _led_to(outcome: Outcome) -> tuple[str, ...]:
    match outcome:
        case Worked(again=None, failed=()):
            return ("succeeded",)
        case Worked(again=None):
            return ("dead", "cancelled")
        case Worked():
            return ("waiting", "cancelled")
        case Delivered():
            return _led_to(outcome.then)
        case Done():
            return ("succeeded",)
        case Failed():
            return ("waiting", "cancelled")
        case Dead():
            return ("dead", "cancelled")
        case Cancelled():
            return ("cancelled",)
        case Snoozed():
            return ("waiting", "cancelled")
        case Unhandled():
            return ("waiting", "dead", "cancelled")
        case HandedBack():
            return ("ready", "cancelled")
