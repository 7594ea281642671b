"""The mover's contract, in each kind of database: what is due leaves the ledger when it is confirmed, not before."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy import delete, func, insert, select

from workq.broker import Broker, Hint
from workq.broker.embedded import EmbeddedBroker
from workq.broker.later import LedgerDelays
from workq.broker.later.due_rows import RESERVED_S, DueRows
from workq.broker.later.mover import AHEAD_S, BATCH, PAUSE_MIN_S, Mover
from workq.broker.later.resting import BRIEF_S, REFUSED_S, REST_S
from workq.errors import ConfigError
from workq.lab.servers import MariaDB, PostgreSQL
from workq.ledger.engine.database import Database
from workq.slices import every_table
from workq.values.codec import new_task_id


class Server(EmbeddedBroker):
    """A broker that only remembers. `refuses`: queues that exist otherwise than they should; `is_away`: no confirms;
    `full`: queues that take nothing."""

    is_transactional = False

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.got: list[Hint] = []
        self.refuses: set[str] = set()
        self.full: set[str] = set()
        self.is_away = False
        self.tried: list[Hint] = []
        self.waited: set[tuple[str, float]] = set()
        """For which queues, and how long a confirm would have been waited for."""

    def publish(self, hints: Sequence[Hint], *, deadline_s: float) -> list[bool]:
        assert not hints or 0.0 < deadline_s < RESERVED_S
        self.tried += hints
        self.waited |= {(one.queue, deadline_s) for one in hints}
        if any(one.queue in self.refuses for one in hints):
            raise ConfigError("broker: queue exists with different arguments")
        answers = [not self.is_away and one.queue not in self.full for one in hints]
        self.got += [one for one, is_confirmed in zip(hints, answers, strict=True) if is_confirmed]
        return answers

    def ids(self) -> list[str]:
        return [task_id for one in self.got for task_id in one.task_ids]


class Clock:
    """The mover's own clock stands still: a look costs no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class MoverContract:
    """What a mover promises on every ledger."""

    @pytest.fixture(scope="class")
    @classmethod
    def tables(cls, url: str) -> Iterator[Database]:
        database = Database(url, namespace=f"t{secrets.token_hex(4)}")
        every_table(database.tables).create_all(database.engine)
        yield database
        database.close()

    @pytest.fixture
    def database(self, tables: Database) -> Database:
        tables.clock_offset_s = 0.0
        for table in (tables.tables.hint, tables.tables.event):
            tables.written(delete(table))
        return tables

    @pytest.fixture
    def server(self, database: Database) -> Server:
        return Server(database)

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def mover(self, database: Database, server: Server, clock: Clock) -> Mover:
        return Mover(database, server, look_s=0.5, confirm_s=10.0, clock=clock)

    @pytest.fixture
    def broker(self, database: Database, server: Server) -> Broker:
        return LedgerDelays(server, database)

    def test_what_is_due_in_a_moment_is_published_with_what_is_left_and_its_row_is_gone(
        self, database: Database, broker: Broker, server: Server, mover: Mover
    ) -> None:
        soon, late, never = (tuple(new_task_id() for _ in range(2)) for _ in range(3))
        written = [Hint("mail", soon, 30.0), Hint("mail", late, 20.0, looks=1), Hint("index", never, 3600.0)]
        assert broker.publish(written, deadline_s=20.0) == [True] * 3
        assert mover.step() == 0.5, "nothing is due"

        database.clock_offset_s += 30.0 - AHEAD_S / 2
        mover.step()

        late_hint, soon_hint = server.got
        assert (late_hint.task_ids, late_hint.looks, late_hint.waits_s) == (late, 1, ())
        assert soon_hint.task_ids == soon
        assert all(0.0 <= wait_s <= AHEAD_S for wait_s in soon_hint.waits_s)
        assert remaining(database) == 1
        assert mover.step() == 0.5
        assert len(server.got) == 2

    def test_hints_of_one_queue_share_pages_and_a_burst_is_moved_without_a_pause(
        self, database: Database, broker: Broker, server: Server, mover: Mover
    ) -> None:
        ids = [new_task_id() for _ in range(1100)]
        assert all(broker.publish([Hint("mail", (one,), 5.0) for one in ids], deadline_s=20.0))
        database.clock_offset_s += 6.0

        assert mover.step() == 0.0, "there is more: it does not rest"
        mover.step()

        assert sorted(server.ids()) == sorted(ids)
        assert len(server.got) == 11
        assert remaining(database) == 0

    def test_what_is_not_confirmed_stays_and_is_published_when_the_broker_is_back(
        self, database: Database, broker: Broker, server: Server, mover: Mover, clock: Clock
    ) -> None:
        queues = ("mail", "index")
        broker.publish([Hint(queue, (new_task_id(),), 5.0) for queue in queues for _ in range(3)], deadline_s=20.0)
        database.clock_offset_s += 6.0
        server.is_away = True

        for _ in range(3):
            assert mover.step() == PAUSE_MIN_S
            assert mover.step() == 0.5, "it rests"
            clock.now += REST_S
        assert len(server.tried[0].task_ids) == 3
        assert all(len(one.task_ids) == 1 for one in server.tried[2:]), "one row is enough to see that it is away"
        assert remaining(database) == 6
        server.is_away = False
        mover.step()
        mover.step()

        assert len(server.ids()) == 6, "no queue was taken for refused"
        assert remaining(database) == 0

    def test_two_movers_share_the_rows_and_those_of_a_dead_one_are_free_in_time(
        self, database: Database, broker: Broker, server: Server, mover: Mover
    ) -> None:
        ids = [new_task_id() for _ in range(3)]
        broker.publish([Hint("mail", (one,), 5.0) for one in ids], deadline_s=20.0)
        database.clock_offset_s += 6.0
        dead = DueRows(database)
        assert list(dead.first(within_s=1.0)) == ["mail"]
        assert len(dead.take(["mail"], ahead_s=0.0, limit=2)) == 2

        mover.step()
        assert server.ids() == ids[2:], "what another has reserved is left to it"
        database.clock_offset_s += RESERVED_S + 0.1
        mover.step()

        assert sorted(server.ids()) == sorted(ids)
        assert remaining(database) == 0

    @pytest.mark.parametrize("how", ["refuses", "full"])
    def test_a_queue_that_takes_nothing_holds_up_no_other_however_much_is_due_in_it(
        self,
        database: Database,
        broker: Broker,
        server: Server,
        mover: Mover,
        clock: Clock,
        how: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        bad, good = [new_task_id() for _ in range(BATCH + 1)], [new_task_id() for _ in range(2)]
        broker.publish([Hint("bad", (one,), 4.0) for one in bad], deadline_s=20.0)
        broker.publish([Hint("good", (one,), 5.0) for one in good[:1]], deadline_s=20.0)
        broker.publish([Hint("good", (one,), 10.0) for one in good[1:]], deadline_s=20.0)
        setattr(server, how, {"bad"})
        database.clock_offset_s += 4.5

        mover.step()
        assert {one.queue for one in server.tried} == {"bad"}, "alone: the broker may be away"
        database.clock_offset_s += 1.5
        clock.now += REST_S / 2
        mover.step()
        assert server.ids() == good[:1]
        clock.now += REST_S
        tried = len(server.tried)
        for _ in range(2):
            mover.step()
        is_seen_now = how == "full"
        assert len(server.tried) == tried + is_seen_now, "it is left alone"
        clock.now += REST_S
        database.clock_offset_s += 5.0
        mover.step()
        assert server.ids() == good
        assert [one.queue for one in server.tried[tried + is_seen_now :]] == ["good"]
        told = [one for one in caplog.records if one.msg == "mover.refused"]
        assert [vars(one)["queue"] for one in told] == ["bad"], "once a minute, with its name"

        setattr(server, how, set())
        assert all(wait_s > BRIEF_S for _, wait_s in server.waited)
        clock.now += REFUSED_S
        while mover.step() < 0.5:
            pass
        assert ("bad", BRIEF_S) in server.waited, "the others do not wait for it once more"
        assert server.ids() == good + bad

    def test_what_is_no_hint_is_put_aside_and_holds_up_nothing(
        self, database: Database, broker: Broker, server: Server, mover: Mover
    ) -> None:
        hint, event = database.tables.hint, database.tables.event
        foreign = insert(hint).values(queue="mail", due_at=database.now(), body="[]", size=1)
        database.run(lambda tx: tx.execute(foreign))
        broker.publish([ours := Hint("mail", (new_task_id(),), 5.0)], deadline_s=20.0)
        database.clock_offset_s += 6.0

        mover.step()

        assert server.ids() == list(ours.task_ids)
        assert remaining(database) == 0
        told = database.ask(lambda tx: tx.execute(select(event.c.kind, event.c.detail)).all())
        assert [one.kind for one in told] == ["quarantined"]
        assert "bad_envelope" in told[0].detail


def remaining(database: Database) -> int:
    query = select(func.count()).select_from(database.tables.hint)
    return database.ask(lambda tx: int(tx.execute(query).scalar_one()))


class TestMoverInSQLite(MoverContract):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        return f"sqlite:///{tmp_path_factory.mktemp('mover') / 'workq.db'}"


class TestMoverInPostgreSQL(MoverContract):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, postgres_server: PostgreSQL) -> str:
        return postgres_server.create_database()


class TestMoverInMariaDB(MoverContract):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, mariadb_server: MariaDB) -> str:
        return mariadb_server.create_database()
