"""The real Ledger, in-memory SQLite under it, a virtual clock, and a connection that breaks when the world says so.

What is replaced is `Database`: how a transaction is run. The statements are those of production.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, bindparam, create_engine, event
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import StaticPool
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Float

from tests.simulation.world import Act, Crash, World
from workq.errors import CommitUnknown, LedgerUnavailable
from workq.ledger.engine.database import Database
from workq.ledger.engine.instants import Instant
from workq.ledger.scan_floor import Floor
from workq.ledger.sql import Ledger
from workq.slices import SLICES, every_table

T = TypeVar("T")

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class _Now(FunctionElement[datetime]):
    type = Instant()
    inherit_cache = True
    name = "sim_now"


@compiles(_Now)
def _sim_now(element: _Now, compiler: Any, **kw: Any) -> str:
    return f"sim_now({compiler.process(element.clauses.clauses[0], **kw)})"


def instant(seconds: float) -> str:
    """A moment of the world as the ledger writes it."""
    at = BEGAN + timedelta(seconds=round(seconds, 3))
    return at.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")


class SimDatabase(Database):
    """One shared connection. `world` is exchanged between runs; the tables are emptied then."""

    world: World

    def __init__(self) -> None:
        self.offset_s: Callable[[], float] = lambda: 0.0
        """Added to the clock of every statement. Always 0, apart from a mutant."""
        self.on_change: Callable[[], None] = lambda: None
        self._nows: dict[float, ColumnElement[Any]] = {}
        super().__init__("sqlite:///simulated.db", namespace="sim")
        every_table(self.tables).create_all(self.engine)
        self._open_connection = self.engine.connect()
        self._wipes = [f"DELETE FROM {table.name}" for table in every_table(self.tables).tables.values()]

    def begin_run(self, world: World) -> None:
        """Empty, for the next seed."""
        self.world = world
        self._statements.clear()  # those of a mutant are not kept
        self._open_connection.close()  # a mutant may have left it in the middle of something
        self._open_connection = self.engine.connect()
        self.raw.execute("BEGIN")
        for statement in self._wipes:
            self.raw.execute(statement)
        self.raw.execute("COMMIT")

    def copy(self) -> bytes | None:
        """All rows as they are now; None in the middle of a transaction."""
        return None if self.raw.in_transaction else self.raw.serialize()

    def roll_back(self, backup: bytes) -> bool:
        """All rows as they were then; False in the middle of a transaction."""
        if self.raw.in_transaction:
            return False
        with closing(sqlite3.connect(":memory:")) as copy:
            copy.deserialize(backup)
            copy.backup(self.raw)
        return True

    def now(self, plus_s: ColumnElement[Any] | float = 0.0) -> ColumnElement[Any]:
        if isinstance(plus_s, ColumnElement):
            return _Now(plus_s)
        if plus_s not in self._nows:
            self._nows[plus_s] = _Now(bindparam(None, float(plus_s), type_=Float(), unique=True))
        return self._nows[plus_s]

    def ask(self, question: Callable[[Connection], T], *, sorts: bool = True) -> T:
        if self._befall("ask") is not Act.OK:
            raise LedgerUnavailable("the simulated ledger is away")
        try:
            return question(self._open_connection)
        finally:
            self._open_connection.rollback()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        if self._befall("ask") is not Act.OK:
            raise LedgerUnavailable("the simulated ledger is away")
        try:
            yield self._open_connection
        finally:
            self._open_connection.rollback()

    def run(self, change: Callable[[Connection], T], *, deadline_s: float | None = None, is_single: bool = False) -> T:
        act = self._befall("run")
        if act is Act.FAIL_BEFORE:
            if self.world.rng.random() < 0.3:  # it broke in COMMIT, and did not stand
                self._apply(change, stands=False)
                raise CommitUnknown("the simulated ledger broke off in COMMIT")
            raise LedgerUnavailable("the simulated ledger is away")
        if act is Act.REPEAT and self.world.rng.random() < 0.5:  # lost in COMMIT without standing: repeated at once
            self._apply(change, stands=False)
            return self._apply(change)
        answer = self._apply(change)
        if self.world.op is not None:
            self.world.answer(self.world.op[0])
        match act:
            case Act.FAIL_AFTER:
                raise CommitUnknown("the simulated ledger broke off in COMMIT")
            case Act.REPEAT:
                return self._apply(change)
            case Act.CRASH_AFTER:
                raise Crash
        return answer

    def _befall(self, kind: str) -> Act:
        op = self.world.op
        name = f"{op[0]}" if op is not None else kind
        act = self.world.befall("ledger", name)
        if act is Act.OK and self.world.trace is not None:
            self.world.note(f"ledger.{name} {_shown(op)}")
        return act

    def _apply(self, change: Callable[[Connection], T], *, stands: bool = True) -> T:
        connection = self._open_connection
        try:
            answer = change(connection)
        except BaseException:  # a simulated crash too: the connection is everybody's
            connection.rollback()
            raise
        if stands:
            connection.commit()
            self.on_change()
        else:
            connection.rollback()
        return answer

    def _open(self, *, commits_itself: bool = False) -> Engine:
        self.raw = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.raw.execute("PRAGMA journal_mode=MEMORY")
        self.raw.create_function("sim_now", 1, self._instant)
        engine = create_engine(self.url, creator=lambda: self.raw, poolclass=StaticPool)

        @event.listens_for(engine, "begin")
        def _began(connection: Connection) -> None:
            if not connection.get_execution_options().get("is_callers"):
                self.raw.execute("BEGIN")

        return engine

    def _instant(self, plus_s: float) -> str:
        return instant(self.world.now + plus_s + self.offset_s())


def _shown(op: tuple[str, tuple[object, ...], dict[str, object]] | None) -> str:
    if op is None:
        return ""
    return ", ".join([_short(one) for one in op[1]] + [f"{name}={_short(one)}" for name, one in op[2].items()])[:200]


def _short(value: object) -> str:
    if isinstance(value, str) and len(value) == 36:
        return value[-6:]
    if isinstance(value, list | tuple | set):
        return "[" + " ".join(_short(one) for one in value) + "]"
    fields = [getattr(value, name, None) for name in ("id", "task_id", "claim", "attempt", "outcome")]
    if any(one is not None for one in fields):
        return "(" + " ".join(_short(one) for one in fields if one is not None) + ")"
    return str(value)[:40]


class SimLedger(Ledger):
    """The ledger as one process uses it. The world is told which method of which part is called, with what."""

    def __init__(self, database: SimDatabase, *, reserved_s: float) -> None:
        floor = Floor(database, clock=lambda: 0.0)  # nothing takes long here, however busy the machine is
        self._real = Ledger(database, SLICES, reserved_s=reserved_s, floor=floor)
        self._world = database.world
        for name, part in vars(self._real).items():
            setattr(self, name, _Told(part, database.world) if _is_part(part) else part)

    def part(self, kind: Callable[[Ledger], T]) -> T:
        return cast(T, _Told(self._real.part(kind), self._world))


def _is_part(found: object) -> bool:
    """Whether it is a part of the ledger, or what a slice keeps in it."""
    return re.fullmatch(r"workq(\.\w+)?\.ledger(\.\w+)?", type(found).__module__) is not None


class _Told:
    """A part of the ledger. What parts ask of each other is not told."""

    def __init__(self, part: Any, world: World) -> None:
        self._part = part
        self._world = world

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if _is_part(found):
            return _Told(found, self._world)
        if not callable(found) or name.startswith("_"):
            return found
        world = self._world

        def called(*args: object, **kwargs: object) -> Any:
            if world.violations:
                raise Crash  # the run ends after this step, which a bug may have made endless
            before, world.op = world.op, (name, args, kwargs)
            try:
                answer = found(*args, **kwargs)
                if name in ("claim", "claim_hinted"):
                    world.on_claimed(answer, self._in_doubt())
                elif name == "admit_and_claim":
                    world.on_claimed(answer[0], ())
                return answer
            finally:
                world.op = before

        return called

    def _in_doubt(self) -> set[str]:
        """The tasks of calls whose commit stayed unknown: the next claim of their worker hands them back."""
        return {task_id for doubts in self._part._doubtful.values() for _, ids in doubts for task_id in ids}
