"""A pooler between workq and PostgreSQL: sessions are shared, and either side of it may be killed or restarted.

The contracts of the ledger, the broker and the in-flight store run through it with `--pooled`: see `make long`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import psycopg
import pytest

from tests.conftest import Private
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import CommitUnknown, LedgerUnavailable, State, WorkQueue
from workq.config import Settings
from workq.diagnose.doctor import ledger as doctor
from workq.lab.servers import PgBouncer, PostgreSQL, start_pgbouncer, start_postgres
from workq.ledger.engine import migrate
from workq.ledger.signs import Signs
from workq.recovery.absence import watch_of
from workq.worker.signs import given_signs


@pytest.fixture(scope="module")
def server(private: Private) -> Iterator[PostgreSQL]:
    with private(start_postgres) as server:
        yield server


@pytest.fixture(scope="module", params=["transaction", "session"])
def pooler(request: pytest.FixtureRequest, private: Private, server: PostgreSQL) -> Iterator[PgBouncer]:
    with private(start_pgbouncer, server=server, options=[f"pool_mode={request.param}"]) as pooler:
        yield pooler


def queue_on(url: str) -> WorkQueue:
    wq = WorkQueue(ledger=url)
    database = wq.database()
    migrate.migrate(database)
    database.close()
    return wq


def test_through_a_pooler_each_of_300_enqueues_is_recorded_and_its_sessions_stay_as_they_were(
    pooler: PgBouncer,
) -> None:
    url = pooler.create_database()
    wq = queue_on(url)

    @wq.task(name="note")
    def note(number: int) -> None:
        del number

    with ThreadPoolExecutor(6) as threads:
        recorded = list(threads.map(lambda number: note.enqueue(number).id, range(300)))
    counts = wq.stores.ledger.questions.counts()
    wq.close()

    assert len(set(recorded)) == counts.states[State.READY] == 300
    with psycopg.connect(url, prepare_threshold=None) as theirs:  # the next client of a session that workq has used
        for name, default in (("enable_seqscan", "on"), ("statement_timeout", "0"), ("lock_timeout", "0")):
            assert theirs.execute(f"SHOW {name}").fetchall() == [(default,)]
        assert theirs.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [(0,)]


def test_through_a_pooler_the_limits_hold_in_every_kind_of_transaction(pooler: PgBouncer) -> None:
    wq = WorkQueue(ledger=pooler.create_database())
    database = wq.database()

    def limits(tx: object) -> list[str]:
        names = ("statement_timeout", "lock_timeout", "enable_seqscan", "jit", "idle_in_transaction_session_timeout")
        return [str(tx.exec_driver_sql(f"SHOW {name}").scalar()) for name in names]  # type: ignore[attr-defined]

    kinds: list[Callable[[], list[str]]] = [
        lambda: database.ask(limits),
        lambda: database.ask(limits, sorts=False),
        lambda: database.run(limits),
        lambda: database.run(limits, is_single=True),
    ]
    found = [kind() for kind in kinds for _ in range(3)]
    with database.read() as tx:
        found.append(limits(tx))
    database.close()

    assert found == [["10s", "5s", "off", "off", "10s"]] * 13


def test_what_enqueue_said_stands_while_the_server_and_the_pooler_are_killed_and_restarted(
    server: PostgreSQL, pooler: PgBouncer
) -> None:
    wq = queue_on(pooler.create_database())
    recorded: set[str] = set()
    others: Counter[str] = Counter()
    is_over = Event()

    @wq.task(name="note")
    def note(number: int) -> None:
        del number

    def produce(_: int) -> None:
        while not is_over.is_set():
            try:
                recorded.add(note.enqueue(1).id)
            except LedgerUnavailable as error:
                others["unknown" if isinstance(error, CommitUnknown) else "refused"] += 1

    def goes_on() -> None:
        before = len(recorded)
        wait_until(lambda: len(recorded) > before + 50, timeout_s=60, what="producers record again")

    with ThreadPoolExecutor(4) as threads:
        producing = [threads.submit(produce, number) for number in range(4)]
        try:
            goes_on()
            for side in (server, pooler):
                side.kill()
                side.start()
                goes_on()
                side.restart()
                goes_on()
        finally:
            is_over.set()
    for one in producing:
        one.result()
    stored = {task.id for task in wq.stores.ledger.questions.tasks(limit=1_000_000)}
    wq.close()

    assert recorded <= stored
    assert len(stored) - len(recorded) <= others["unknown"], "what was refused was not recorded"


def test_a_fleet_behind_a_pooler_outlives_a_kill_of_the_pooler_of_the_server_and_of_a_worker(
    private: Private, server: PostgreSQL, tmp_path: Path
) -> None:
    with private(start_pgbouncer, server=server) as pooler:
        leg = Leg.open("pgbouncer", tmp_path, ledger=pooler.create_database(), divide=5.0)
        with leg.fleet(processes=2, threads=2) as fleet:
            leg["note"].enqueue_many({"number": number, "seconds": 0.05} for number in range(120))

            def has_started(count: int) -> None:
                wait_until(lambda: len(leg.starts()) >= count, timeout_s=60, what=f"{count} have started")

            has_started(20)
            pooler.kill()
            pooler.start()
            has_started(50)
            server.kill()
            server.start()
            has_started(80)
            fleet.kill_one()
            leg.wait_settled(timeout_s=90)
            states = leg.states()
        leg.close()
    assert states[State.SUCCEEDED] == 120


def test_a_pooler_that_ends_transactions_after_each_statement_is_refused_in_words(
    private: Private, server: PostgreSQL
) -> None:
    with private(start_pgbouncer, server=server, options=["pool_mode=statement"]) as pooler:
        wq = WorkQueue(ledger=pooler.url)
        with pytest.raises(LedgerUnavailable, match="set pool_mode to transaction, or to session"):
            _ = wq.stores


def test_through_a_pooler_nobody_gives_a_sign_of_life_and_nobody_is_watched(pooler: PgBouncer) -> None:
    wq = queue_on(pooler.create_database())
    database = wq.database()
    signs = Signs(database)
    session = signs.give("one", heard_s=4.0)
    assert signs.are_given, "no session was opened: nobody knows of the pooler"

    session.keep()
    locks = database.ask(
        lambda tx: tx.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").scalar()
    )
    session.close()
    database.close()

    assert (signs.are_given, locks) == (False, 0)
    assert given_signs(wq.stores, wq.settings, by="one") is None
    assert watch_of(wq.stores, wq.settings) is None
    wq.close()


def test_doctor_tells_of_the_pooler(pooler: PgBouncer, server: PostgreSQL) -> None:
    url = pooler.create_database()
    queue_on(url).close()
    direct = url.replace(f":{pooler.port}/", f":{server.port}/")

    def told(url: str) -> str:
        return " ".join(check.message for check in doctor.look(Settings.load(ledger=url)))

    assert "a pooler" in told(url)
    assert "a pooler" not in told(direct)
