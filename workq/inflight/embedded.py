"""The in-flight store in the ledger's own database: a row of `hold` for each entry, a row of `lease` for each worker.

Nothing here can be wiped apart from the ledger, but the promises are those of Redis, and the same contract tests
them. A reaped incarnation keeps its row of `lease`, with `reaped_at`, so that a late beat of it is refused. The epoch
is the row `inflight_epoch` of `meta`.

Who decides: the ledger's claims; here, each statement for itself. One call is one transaction, which `Database.run`
may repeat. Locks are taken in one order (lease, then holds by id), so calls that meet wait for each other. On failure:

- The database does not answer: InFlightUnavailable, and nothing was changed (or, if it broke off in COMMIT, nobody
  knows; each call may simply be made again).
- A lease that is granted in the very moment in which another incarnation looks at it may be overlooked, and an entry
  taken from its holder: the claim decides between them.

Where the worker also takes its hints from this database (`ClaimsInFlight`), a claim is the hold: it takes a hint and
claims the tasks in one transaction (worker/fetch/one_database.py), so it has nothing in hand that no row tells of. What
it holds are the tasks that run under its name. Nothing is written for a hold, and leases are all that a beat keeps.
Rows of `hold` are shown beside the claims and obeyed: a worker of an older version writes them, in a rolling upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Table, and_, any_, case, delete, func, select, update
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.sql.elements import ColumnElement

from workq.errors import InFlightUnavailable, LeaseLost, LedgerUnavailable
from workq.inflight import Beat, Entry, Hold, Lease
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import found
from workq.values.task import State

REAPED_KEPT_S: Final = 7 * 24 * 3600.0
"""How long a reaped incarnation is remembered. Longer than anybody's laptop sleeps and then beats again."""
_EPOCH: Final = "inflight_epoch"
_PAGE: Final = 1000

T = TypeVar("T")


class EmbeddedInFlight:
    """Holds and leases as rows beside the ledger. Thread-safe. The database belongs to the caller."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._hold = database.tables.hold
        self._lease = database.tables.lease
        self._meta = database.tables.meta
        self._insert: Any = import_module(f"sqlalchemy.dialects.{database.dialect}").insert
        """This database's own: see `_Text` in workq/ledger/columns.py."""

    def join(self, worker: str, *, lease_s: float) -> None:
        """See the port. An incarnation that was reaped never comes back: LeaseLost."""
        self._run(lambda tx: self._renew(tx, worker, lease_s))

    def hold(self, entries: Sequence[Entry], *, by: str) -> set[str]:
        """See the port."""
        return self._run(lambda tx: self._take(tx, self._joined_at(tx, by), entries, by=by, exact=False))

    def beat(self, worker: str, *, lease_s: float, entries: Sequence[Entry]) -> Beat:
        """See the port. Only entries that are missing or have another attempt are written."""

        def change(tx: Connection) -> Beat:
            self._renew(tx, worker, lease_s)
            if not entries:
                return Beat(0)
            own = select(self._hold.c.task_id, self._hold.c.attempt).where(self._hold.c.worker == worker)
            known: dict[str, int | None] = {row.task_id: row.attempt for row in tx.execute(own)}
            changed = [entry for entry in entries if known.get(entry.task_id, _MISSING) != entry.attempt]
            mine = self._take(tx, self._clock(tx), changed, by=worker, exact=True) if changed else set()
            return Beat(len(mine.difference(known)))

        return self._run(change)

    def extend(self, worker: str, *, lease_s: float) -> bool:
        """See the port."""
        return self._run(lambda tx: self._extend(tx, worker, lease_s))

    def release(self, task_ids: Sequence[tuple[str, str]], *, by: str) -> int:
        """See the port."""
        queues: dict[str, list[str]] = {}
        for task_id, queue in sorted(task_ids):
            queues.setdefault(queue, []).append(task_id)
        h = self._hold

        def change(tx: Connection) -> int:
            return sum(
                tx.execute(
                    delete(h).where(self._in_order(h.c.worker == by, h.c.queue == queue, h.c.task_id.in_(page)))
                ).rowcount
                for queue, ids in queues.items()
                for page in _pages(ids)
            )

        return self._run(change) if queues else 0

    def leave(self, worker: str) -> None:
        """See the port."""

        def change(tx: Connection) -> None:
            tx.execute(delete(self._lease).where(self._lease.c.worker == worker, self._lease.c.reaped_at.is_(None)))
            tx.execute(delete(self._hold).where(self._in_order(self._hold.c.worker == worker)))

        self._run(change)

    def leases(self) -> Mapping[str, Lease]:
        """See the port."""
        self.epoch_age_s()  # whoever sees no leases shall also see a young epoch
        lease = self._lease
        rows = self._read(
            select(lease.c.worker, lease.c.expires_at, self._now().label("now")).where(lease.c.reaped_at.is_(None))
        )
        return {row.worker: Lease(row.worker, (row.expires_at - row.now).total_seconds()) for row in rows}

    def held_by(self, worker: str) -> list[Hold]:
        """See the port."""
        return self._holds(self._hold.c.worker == worker)

    def holds(self, queue: str, *, claimed: bool = True) -> list[Hold]:  # noqa: ARG002 - a row says both
        """See the port."""
        return self._holds(self._hold.c.queue == queue)

    def forget(self, worker: str) -> int:
        """See the port. Remembered for seven days."""
        lease = self._lease

        def change(tx: Connection) -> int:
            live = update(lease).where(lease.c.worker == worker, lease.c.reaped_at.is_(None))
            if not tx.execute(live.values(reaped_at=self._now())).rowcount:
                now = self._clock(tx)
                self._insert_missing(tx, lease, {"worker": worker, "expires_at": now, "reaped_at": now})
            dropped = tx.execute(delete(self._hold).where(self._in_order(self._hold.c.worker == worker))).rowcount
            tx.execute(delete(lease).where(lease.c.reaped_at < self._now(-REAPED_KEPT_S)))
            return dropped

        return self._run(change)

    def epoch_age_s(self) -> float:
        """See the port."""
        began = select(self._meta.c.at, self._now().label("now")).where(self._meta.c.name == _EPOCH)
        rows = self._read(began)
        if not rows:
            self._run(self._begin)
            rows = self._read(began)
        return max(0.0, (rows[0].now - rows[0].at).total_seconds()) if rows else 0.0

    def check(self) -> str:
        """See the port. Says SQLite, PostgreSQL, MySQL or MariaDB, with its version."""
        asked: ColumnElement[Any]
        match self._database.dialect:
            case "sqlite":
                asked = func.sqlite_version()
            case "postgresql":
                asked = func.current_setting("server_version")
            case _:
                asked = func.version()
        version = str(self._read(select(asked))[0][0])
        self._read(select(self._lease.c.worker, self._lease.c.reaped_at).limit(1))
        name = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}.get(
            self._database.dialect, "MariaDB" if "mariadb" in version.lower() else "MySQL"
        )
        return f"{name} {version.split()[0].partition('-')[0]}"

    def close(self) -> None:
        """See the port. Nothing to close: the connections are the database's."""

    # The steps of a transaction.

    def _renew(self, tx: Connection, worker: str, lease_s: float) -> None:
        """Move the end of a lease, or grant it, to whoever was not reaped."""
        if self._extend(tx, worker, lease_s):
            return
        self._insert_missing(
            tx, self._lease, {"worker": worker, "expires_at": self._clock(tx, lease_s), "reaped_at": None}
        )
        self._begin(tx)
        if not self._extend(tx, worker, lease_s):
            raise LeaseLost(f"{worker} was reaped; stop claiming and let running handlers end, as late results")

    def _extend(self, tx: Connection, worker: str, lease_s: float) -> bool:
        lease = self._lease
        own = update(lease).where(lease.c.worker == worker, lease.c.reaped_at.is_(None))
        return bool(tx.execute(own.values(expires_at=self._now(lease_s))).rowcount)

    def _begin(self, tx: Connection) -> None:
        """The epoch begins now, unless it began before."""
        self._insert_missing(tx, self._meta, {"name": _EPOCH, "value": "1", "at": self._clock(tx)})

    def _joined_at(self, tx: Connection, worker: str) -> datetime:
        """The clock, if the worker's lease is live. Locks the lease: nobody is reaped while it takes a hold."""
        lease = self._lease
        row = tx.execute(
            select(self._now().label("now")).where(lease.c.worker == worker, self._is_live()).with_for_update(read=True)
        ).first()
        if row is None:
            raise LeaseLost(
                f"{worker} has no live lease in {self._database.where}; beat first, and stop if that says the same"
            )
        now: datetime = row.now
        return now

    def _take(self, tx: Connection, since: datetime, entries: Sequence[Entry], *, by: str, exact: bool) -> set[str]:
        """Write entries that nobody live holds; answers those that are now the worker's own.

        With `exact`, an own entry gets the attempt that is given; else only one that is known. All entries are written
        in one pass in the order of their ids, so that calls which meet on some of them wait for each other.
        """
        wanted = {entry.task_id: entry for entry in sorted(entries, key=lambda entry: entry.task_id)}
        rows = [
            {"task_id": one.task_id, "queue": one.queue, "worker": by, "attempt": one.attempt, "since": since}
            for one in wanted.values()
        ]
        if not rows:
            return set()
        match self._database.dialect:
            case "sqlite":
                if tx.execute(self._upsert(self._insert(self._hold), exact=exact), rows).rowcount == len(rows):
                    return set(wanted)
                return set(self._attempts(tx, list(wanted), of=by))
            case "postgresql":
                # RETURNING also makes SQLAlchemy send the rows by the thousand; without it they go one by one
                upsert = self._upsert(self._insert(self._hold), exact=exact).returning(self._hold.c.task_id)
                return set(tx.execute(upsert, rows).scalars().all())
            case _:
                return self._take_in_steps(tx, rows, by=by, exact=exact)

    def _upsert(self, statement: Any, *, exact: bool) -> Any:
        """One statement decides."""
        h = self._hold
        new, is_own = statement.excluded, h.c.worker == statement.excluded.worker
        attempt = new.attempt if exact else case((is_own, func.coalesce(new.attempt, h.c.attempt)), else_=new.attempt)
        return statement.on_conflict_do_update(
            index_elements=[h.c.task_id],
            set_={
                "queue": new.queue,
                "worker": new.worker,
                "attempt": attempt,
                "since": case((is_own, h.c.since), else_=new.since),
            },
            where=is_own | self._is_of_the_dead(),
        )

    def _attempts(self, tx: Connection, task_ids: Sequence[str], *, of: str) -> dict[str, int | None]:
        """Those of the ids that a worker holds, and their attempts."""
        h = self._hold
        own = select(h.c.task_id, h.c.attempt).where(h.c.worker == of)
        return {
            row.task_id: row.attempt
            for page in _pages(task_ids)
            for row in tx.execute(own.where(h.c.task_id.in_(page)))
        }

    def _take_in_steps(self, tx: Connection, rows: Sequence[Mapping[str, Any]], *, by: str, exact: bool) -> set[str]:
        """For MySQL, whose upsert takes no condition: lock what is there, drop what the dead hold, insert, and look."""
        h = self._hold
        given = {row["task_id"]: row["attempt"] for row in rows}
        for page in _pages(list(given)):
            there = select(h.c.task_id).where(h.c.task_id.in_(page)).order_by(h.c.task_id)
            if tx.execute(there.with_for_update()).all():
                tx.execute(delete(h).where(h.c.task_id.in_(page), h.c.worker != by, self._is_of_the_dead()))
        self._insert_missing(tx, h, *rows)
        mine = self._attempts(tx, list(given), of=by)
        by_attempt: dict[int | None, list[str]] = {}
        for task_id, attempt in mine.items():
            if given[task_id] != attempt and (exact or given[task_id] is not None):
                by_attempt.setdefault(given[task_id], []).append(task_id)
        for attempt, task_ids in by_attempt.items():  # most tasks are in their first
            for page in _pages(task_ids):
                tx.execute(update(h).where(h.c.worker == by, h.c.task_id.in_(page)).values(attempt=attempt))
        return set(mine)

    def _in_order(self, *conditions: ColumnElement[bool]) -> ColumnElement[bool]:
        """Holds that meet the conditions; on PostgreSQL they are locked in the order of their ids first.

        Two calls that meet on the same entries then wait for each other. Else one of them would be undone as a
        deadlock, after the second that PostgreSQL takes to notice; MySQL notices at once, SQLite has one writer.
        An array, because it is made once, whatever the statistics say: of `IN (SELECT ...)` the planner makes a join,
        which takes twice as long for 9,000 entries where these are stale. One took longer than a statement may, once.
        """
        h = self._hold
        if self._database.dialect != "postgresql":
            return and_(*conditions)
        locked = select(h.c.task_id).where(*conditions).order_by(h.c.task_id).with_for_update().correlate(None)
        return h.c.task_id == any_(func.array(locked.scalar_subquery()))

    def _is_of_the_dead(self) -> ColumnElement[bool]:
        """Of a hold: its holder has no live lease."""
        return self._hold.c.worker.not_in(select(self._lease.c.worker).where(self._is_live()))

    def _insert_missing(self, tx: Connection, table: Table, *rows: Mapping[str, Any]) -> None:
        """Insert rows whose key is free; leave the others as they are.

        The rows are plain values without expressions: then PyMySQL sends all in one statement.
        """
        match self._database.dialect:
            case "sqlite" | "postgresql":
                tx.execute(self._insert(table).on_conflict_do_nothing(), rows)
            case _:
                key = table.primary_key.columns.values()[0]
                tx.execute(self._insert(table).on_duplicate_key_update({key.name: key}), rows)

    def _clock(self, tx: Connection, plus_s: float = 0.0) -> datetime:
        """The database's clock as a value."""
        now: datetime = tx.execute(select(self._now(plus_s))).scalar_one()
        return now

    def _is_live(self) -> ColumnElement[bool]:
        lease = self._lease
        return (lease.c.expires_at > self._now()) & lease.c.reaped_at.is_(None)

    def _now(self, plus_s: float = 0.0) -> ColumnElement[Any]:
        return self._database.now(plus_s)

    def _holds(self, which: ColumnElement[bool]) -> list[Hold]:
        return [
            Hold(row.task_id, row.queue, row.worker, row.attempt, max(0.0, (row.now - row.since).total_seconds()))
            for row in self._read(select(self._hold, self._now().label("now")).where(which))
        ]

    # The database, its failures in our words.

    def _run(self, change: Callable[[Connection], T]) -> T:
        try:
            return self._database.run(change)
        except (LedgerUnavailable, PoolTimeout) as error:
            raise self._unavailable(error) from error

    def _read(self, question: Any) -> Sequence[Any]:
        try:
            with self._database.read() as connection:
                return connection.execute(question).all()
        except (LedgerUnavailable, PoolTimeout) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> InFlightUnavailable:
        if isinstance(error, PoolTimeout):
            return InFlightUnavailable(
                f"no connection to {self._database.where} became free in time; use fewer threads, or a faster database"
            )
        return InFlightUnavailable(f"the in-flight store is in the ledger's database: {error}")


_MISSING: Final = object()


class ClaimsInFlight(EmbeddedInFlight):
    """Leases as rows; what is held are the rows of running tasks. Thread-safe. The database belongs to the caller."""

    def held_by(self, worker: str) -> list[Hold]:
        """See the port. What has a row of `hold` as well is told once, by that row."""
        rows = super().held_by(worker)
        return rows + self._claimed(self._database.tables.task.c.worker == worker, rows)

    def holds(self, queue: str, *, claimed: bool = True) -> list[Hold]:
        """See the port. What has a row of `hold` as well is told once, by that row."""
        rows = super().holds(queue)
        if not claimed:  # all that run: where a transaction stays open, the versions of all that ever ran
            return rows
        return rows + self._claimed(self._database.tables.task.c.queue == queue, rows)

    def _claimed(self, which: ColumnElement[bool], told: list[Hold]) -> list[Hold]:
        c = self._database.tables.task.c
        query = select(c.id, c.queue, c.worker, c.attempt, c.started_at, self._now().label("now"))
        known = {hold.task_id for hold in told}
        return [
            Hold(row.id, row.queue, row.worker, row.attempt, max(0.0, (row.now - row.started_at).total_seconds()))
            for row in self._read(query.where(found(c.state, State.RUNNING), which, c.worker.is_not(None)))
            if row.id not in known
        ]


def _pages(items: Sequence[str]) -> Iterator[Sequence[str]]:
    return (items[first : first + _PAGE] for first in range(0, len(items), _PAGE))
