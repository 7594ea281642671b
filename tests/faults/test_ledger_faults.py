"""The ledger when its database breaks: nothing is lost, nothing is settled twice, and no call waits for ever."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import sqlite3
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, create_engine, event, select, text

from tests.conftest import Private
from tests.contract.given import LONG_S, incarnation, new, new_job
from tests.system.fleet import REPOSITORY
from tests.zygote import FORKED_WITH, Forked
from workq.broker import Hint
from workq.broker.embedded import EmbeddedBroker
from workq.broker.embedded.claiming_consumer import DirectConsumer
from workq.errors import CommitUnknown, LedgerUnavailable, SchemaMismatch
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import JobOptions, NewStep, Stepped
from workq.lab.servers import MariaDB, PostgreSQL, Server, start_mariadb, start_postgres
from workq.ledger import Evidence
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.slices import SLICES, every_table
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Done, Failed, NewSubtask, Settlement, State

T = TypeVar("T")
CANARY = "canary-5f1e"


def opened(url: str, *, namespace: str = "workq", statement_timeout_s: float = 10.0) -> Ledger:
    database = Database(url, namespace=namespace, statement_timeout_s=statement_timeout_s)
    return Ledger(database, SLICES)


def live_worker(ledger: Ledger) -> Incarnation:
    worker = incarnation()
    ledger.workers.join(worker, queues=["default"], threads=1)
    return worker


def patiently(call: Callable[[], T]) -> T:
    """What a worker does: the same call again until the ledger answers."""
    deadline = time.monotonic() + LONG_S
    while True:
        try:
            return call()
        except LedgerUnavailable:
            assert time.monotonic() < deadline, "the ledger did not come back"
            threading.Event().wait(0.02)


_COMMIT = re.compile(rb"COMMIT(?!TED)")  # not: ISOLATION LEVEL READ COMMITTED
_COMMIT_OR_SINGLE = re.compile(_COMMIT.pattern + rb"|attempt=\(workq_task\.attempt|unnest\(")


class Relay:
    """A TCP relay that cuts a connection at a COMMIT: before it reaches the server, or before its answer reaches us."""

    def __init__(self, port: int, *, commits: re.Pattern[bytes]) -> None:
        self._commits = commits
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._cuts: list[str] = []
        self.cut = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut_next(self, *where: str) -> None:
        """What to do at the next commits: cut "before" the server sees it, "after" the server has done it, or "pass".

        A new connection sends a commit of its own, when it has made its settings.
        """
        with self._lock:
            self._cuts = list(where)

    def close(self) -> None:
        self._listener.close()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads[1:]:
            thread.join(LONG_S)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [client, server]
            commits = threading.Event()
            for source, sink, is_request in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._carry, args=(source, sink, commits, is_request), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket, commits: threading.Event, is_request: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_request and self._commits.search(data):
                    with self._lock:
                        where = self._cuts.pop(0) if self._cuts else ""
                    if where == "before":
                        self.cut += 1
                        break
                    if where == "after":
                        commits.set()
                elif not is_request and commits.is_set():
                    self.cut += 1
                    break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def server_url(request: pytest.FixtureRequest) -> str:
    """A database on the run's servers, for faults between us and the server."""
    server: PostgreSQL | MariaDB = request.getfixturevalue(
        "postgres_server" if request.param == "postgresql" else "mariadb_server"
    )
    url = server.create_database()
    ledger = opened(url)
    every_table(ledger.database.tables).create_all(ledger.database.engine)
    ledger.close()
    return url


def with_schema(started: Server) -> Iterator[Server]:
    with started as server:
        ledger = opened(server.url)
        every_table(ledger.database.tables).create_all(ledger.database.engine)
        ledger.close()
        yield server


@pytest.fixture(scope="module")
def postgres(private: Private) -> Iterator[Server]:
    """A PostgreSQL of this file alone: it is killed and stopped."""
    yield from with_schema(private(start_postgres))


@pytest.fixture(scope="module")
def mariadb(private: Private) -> Iterator[Server]:
    """A MariaDB of this file alone."""
    yield from with_schema(private(start_mariadb))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'workq.db'}"
    ledger = opened(url)
    every_table(ledger.database.tables).create_all(ledger.database.engine)
    ledger.close()
    return url


class TestAnswersThatAreLost:
    """F58: the connection breaks in COMMIT; nobody can see whether it stands."""

    @pytest.fixture
    def relay(self, server_url: str) -> Iterator[Relay]:
        database = Database(server_url)
        # on PostgreSQL a claim, or the record of many alike, is one statement, which commits itself
        commits = _COMMIT_OR_SINGLE if database.dialect == "postgresql" else _COMMIT
        relay = Relay(database.url.port or 0, commits=commits)
        yield relay
        relay.close()

    @pytest.fixture
    def ledger(self, server_url: str, relay: Relay) -> Iterator[Ledger]:
        found = Database(server_url).url.set(port=relay.port)
        if found.get_backend_name() == "mysql":  # the relay reads along, and MariaDB 11.4 encrypts where nobody asks
            found = found.update_query_dict({"ssl_disabled": "true"})
        url = found.render_as_string(hide_password=False)
        ledger = opened(url)
        for engine in ledger.database.engines:  # connecting ends in a COMMIT, too
            engine.connect().close()
        yield ledger
        ledger.close()

    @pytest.fixture
    def worker(self, ledger: Ledger) -> Incarnation:
        return live_worker(ledger)

    def some(self, ledger: Ledger, count: int, **facts: Any) -> list[str]:
        return [one.id for one in ledger.tasks.record(new(count, **facts))]

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_a_settlement_is_repeated_and_reported_as_won(
        self, ledger: Ledger, relay: Relay, worker: Incarnation, where: str
    ) -> None:
        claims = ledger.claims.claim(self.some(ledger, 6), by=worker.id)
        batch = [Settlement(claim, Done("1")) for claim in claims[:3]]
        batch += [Settlement(claim, Failed(60.0, "boom")) for claim in claims[3:]]
        relay.cut_next(where)

        settled = ledger.outcomes.settle(batch)

        assert relay.cut == 1
        assert [one.state for one in settled] == [State.SUCCEEDED] * 3 + [State.WAITING] * 3
        assert [one.delay_s for one in settled] == [0.0] * 3 + [60.0] * 3
        for claim in claims[3:]:
            assert [one.kind for one in ledger.questions.history(claim.task_id)] == ["failed"]
            task = ledger.questions.get(claim.task_id)
            assert task is not None
            assert task.failures == 1

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_a_claim_is_repeated_and_its_rows_are_granted_once(
        self, ledger: Ledger, relay: Relay, worker: Incarnation, where: str
    ) -> None:
        ids = self.some(ledger, 5)
        relay.cut_next(where)

        claims = ledger.claims.claim(ids, by=worker.id)

        assert relay.cut == 1
        assert [(claim.task_id, claim.attempt) for claim in claims] == [(task_id, 1) for task_id in ids]
        assert ledger.claims.claim(ids, by=worker.id) == []
        assert {one.state for one in ledger.outcomes.settle([Settlement(claim, Done()) for claim in claims])} == {
            State.SUCCEEDED
        }

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_a_claim_of_hints_is_repeated_and_grants_each_once(
        self, ledger: Ledger, relay: Relay, worker: Incarnation, where: str
    ) -> None:
        broker = EmbeddedBroker(ledger.database)
        ids = self.some(ledger, 5)
        broker.publish([Hint("default", tuple(ids))], deadline_s=LONG_S)
        consumer = DirectConsumer(broker, ledger, ["default"], name=worker.id)
        # on PostgreSQL the claim's own statement is seen first: it passes, and the transaction's COMMIT is cut
        relay.cut_next(*(["pass"] if ledger.database.dialect == "postgresql" else []), where)

        taken = consumer.claim(lambda _missed, _looks: (), ids_max=10, wait_s=0.0)

        assert relay.cut == 1
        assert taken is not None
        assert sorted((claim.task_id, claim.attempt) for claim in taken.claims) == sorted((one, 1) for one in ids)
        assert consumer.claim(lambda _missed, _looks: (), ids_max=10, wait_s=0.0) is None, "the hint is gone, too"
        settled = ledger.outcomes.settle([Settlement(claim, Done()) for claim in taken.claims])
        assert {one.state for one in settled} == {State.SUCCEEDED}
        consumer.close()

    @pytest.mark.parametrize("then", ["no_new_connection", "lost_again"])
    def test_what_a_claim_got_without_ever_knowing_is_claimed_again(
        self, ledger: Ledger, relay: Relay, worker: Incarnation, then: str
    ) -> None:
        ids = self.some(ledger, 6)
        # a new connection commits first, unless every statement on it commits itself
        passes = ["pass"] if then == "lost_again" and ledger.database.dialect != "postgresql" else []
        relay.cut_next("after", *passes, "after")
        with pytest.raises(CommitUnknown):
            ledger.claims.claim(ids, by=worker.id)
        stuck = {ledger.claims.look([task_id])[task_id].state for task_id in ids}

        claims = ledger.claims.claim(ids[:4], by=worker.id)

        assert relay.cut == 2
        assert stuck == {State.RUNNING}
        assert [(claim.task_id, claim.attempt) for claim in claims] == [(task_id, 2) for task_id in ids[:4]]
        assert {look.state for look in ledger.claims.look(ids[4:]).values()} == {State.READY}
        assert {one.task_id for one in ledger.hints.take_unpublished(limit=1000, grace_s=-1.0, horizon_s=0.0)} >= set(
            ids[4:]
        )
        assert {one.state for one in ledger.outcomes.settle([Settlement(claim, Done()) for claim in claims])} == {
            State.SUCCEEDED
        }

    def test_what_a_claim_got_without_ever_knowing_is_handed_back_though_no_other_claim_is_made(
        self, ledger: Ledger, relay: Relay, worker: Incarnation
    ) -> None:
        ids = self.some(ledger, 3)
        passes = ["pass"] if ledger.database.dialect != "postgresql" else []
        relay.cut_next("after", *passes, "after")
        with pytest.raises(CommitUnknown):
            ledger.claims.claim(ids, by=worker.id)
        stuck = {look.state for look in ledger.claims.look(ids).values()}

        returned = [ledger.claims.return_doubtful(by=worker.id) for _ in range(2)]

        assert (stuck, returned) == ({State.RUNNING}, [3, 0])
        told = [[(one.kind, one.attempt) for one in ledger.questions.history(task_id)] for task_id in ids]
        assert told == [[("handed_back", 1)]] * 3
        assert {look.state for look in ledger.claims.look(ids).values()} == {State.READY}

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_a_batch_is_recorded_once(self, ledger: Ledger, relay: Relay, where: str) -> None:
        batch = [*new(4), *new(key=f"lost {where}")]
        relay.cut_next(where)

        answers = ledger.tasks.record(batch)

        assert relay.cut == 1
        assert [one.id for one in answers] == [one.id for one in batch]
        assert all(one.created for one in answers)
        assert all(ledger.questions.get(one.id) is not None for one in batch)

    def test_a_commit_that_stays_unknown_says_so_and_may_be_repeated(self, ledger: Ledger, relay: Relay) -> None:
        batch = new(3)
        relay.cut_next("after", "after")
        with pytest.raises(CommitUnknown, match="repeat with the same ids"):
            ledger.tasks.record(batch)

        answers = ledger.tasks.record(batch)

        assert [(one.id, one.created) for one in answers] == [(one.id, True) for one in batch]

    @staticmethod
    def connect(ledger: Ledger) -> None:
        """A new connection commits its settings: let that be over."""
        ledger.database.run(lambda tx: tx.execute(select(1)).all())

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_a_handlers_transaction_knows_how_its_lost_commit_ended(
        self, ledger: Ledger, relay: Relay, worker: Incarnation, where: str
    ) -> None:
        [claim] = ledger.claims.claim(self.some(ledger, 1), by=worker.id)
        [beside] = new(1, key=f"beside {where}")  # not with those that commit themselves
        self.connect(ledger)
        relay.cut_next(where)

        def act() -> None:
            with ledger.transactions.transaction(claim) as connection:
                ledger.tasks.record([beside], connection=connection)

        if where == "before":
            with pytest.raises(LedgerUnavailable, match="nothing of it stands"):
                act()
        else:
            act()

        assert relay.cut == 1
        stands = where == "after"
        assert ledger.claims.look([claim.task_id])[claim.task_id].state == (
            State.SUCCEEDED if stands else State.RUNNING
        )
        assert (ledger.questions.get(beside.id) is not None) == stands

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_a_step_of_a_partition_knows_how_its_lost_commit_ended(
        self, ledger: Ledger, relay: Relay, worker: Incarnation, where: str
    ) -> None:
        job = new_job(JobOptions(queue="default", chunk=1, is_partitioned=True), key=f"lost {where}")
        ledger.part(JobLedger).jobs.begin_job(job)
        partition = NewSubtask(codec.new_task_id(), '{"a":["eu",null],"k":{}}', 1)
        ledger.part(JobLedger).jobs.split_job(job.id, [partition], after=0, cursor=1, is_last=True)
        [claim] = ledger.claims.claim([partition.task_id], by=worker.id)
        self.connect(ledger)
        stood: list[Stepped] = []
        relay.cut_next(where)

        def act() -> None:
            with ledger.part(JobLedger).steps.step(claim, NewStep(0, '"page 2"', 10), on_stood=stood.append):
                pass

        if where == "before":
            with pytest.raises(LedgerUnavailable, match="nothing of it stands"):
                act()
        else:
            act()

        row = ledger.part(JobLedger).questions.job(job.id)
        assert row is not None
        assert relay.cut == 1
        stands = where == "after"
        assert (ledger.part(JobLedger).steps.bookmark(claim).steps, row.succeeded, len(stood)) == (
            (1, 10, 1) if stands else (0, 0, 0)
        )

    def test_a_handlers_transaction_says_so_when_nobody_knows_how_it_ended(
        self, ledger: Ledger, relay: Relay, worker: Incarnation
    ) -> None:
        [claim] = ledger.claims.claim(self.some(ledger, 1), by=worker.id)
        self.connect(ledger)
        relay.cut_next("after", "after", "after")
        with pytest.raises(CommitUnknown), ledger.transactions.transaction(claim):
            pass
        assert relay.cut >= 2
        relay.cut_next()

        assert [one.state for one in ledger.outcomes.settle([Settlement(claim, Failed(0.0, "unknown"))])] == [None], (
            "it stood"
        )
        assert ledger.claims.look([claim.task_id])[claim.task_id].state is State.SUCCEEDED

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_a_reaping_charges_once(self, ledger: Ledger, relay: Relay, worker: Incarnation, where: str) -> None:
        ran, *waited = ids = self.some(ledger, 3)
        ledger.claims.claim(ids, by=worker.id)
        relay.cut_next(where)

        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={ran: 1}))

        assert [task.crashes for task in map(ledger.questions.get, (ran, *waited)) if task is not None] == [1, 0, 0]
        assert all(len(ledger.questions.history(task_id)) == 1 for task_id in ids)

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_people_may_not_notice(self, ledger: Ledger, relay: Relay, where: str) -> None:
        [task_id] = self.some(ledger, 1)
        relay.cut_next(where)
        ledger.decisions.cancel(task_id, who="ada", why="?")
        relay.cut_next(where)
        hint = ledger.decisions.revive(task_id, who="ada", why="?")

        assert relay.cut == 2
        assert hint.task_id == task_id
        assert [one.kind for one in ledger.questions.history(task_id)] == ["cancelled", "revived"]


class TestAServerThatDies:
    """F57: restarts under load."""

    def test_restarts_under_load_lose_nothing_and_settle_nothing_twice(self, postgres: Server) -> None:
        ledger = opened(postgres.url)
        recorded: list[str] = []
        won: list[str] = []
        is_over = threading.Event()

        def produce() -> None:
            for _ in range(60):
                batch = new(5, queue="load")
                patiently(partial(ledger.tasks.record, batch))
                recorded.extend(one.id for one in batch)

        def work(number: int) -> None:
            me, rng = patiently(lambda: live_worker(ledger)), Random(number)
            while not is_over.is_set():
                known = list(recorded)
                ids = rng.sample(known, min(len(known), 25))
                claims = patiently(partial(ledger.claims.claim, ids, by=me.id))
                batch = [Settlement(claim, Done("1")) for claim in claims]
                settled = patiently(partial(ledger.outcomes.settle, batch))
                won.extend(one.task_id for one in settled if one.state is State.SUCCEEDED)
                if len(won) >= 300:
                    is_over.set()

        with ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(produce), *(pool.submit(work, number) for number in range(4))]
            for wanted in (30, 120):
                deadline = time.monotonic() + LONG_S
                while len(won) < wanted:
                    assert time.monotonic() < deadline
                    threading.Event().wait(0.01)
                os.kill(postgres.pid, signal.SIGQUIT)  # what `pg_ctl restart -m immediate` does
                wait_until(lambda: not postgres.is_running)
                postgres.kill()
                postgres.start()
            for job in jobs:
                job.result(2 * LONG_S)

        assert Counter(won) == Counter(recorded)
        t = ledger.database.tables.task
        with ledger.database.engine.connect() as connection:
            states = connection.execute(select(t.c.state).where(t.c.queue == "load")).scalars()
            assert Counter(states) == {"succeeded": 300}
        ledger.close()

    def test_connections_that_the_server_has_closed_are_not_noticed(self, postgres: Server) -> None:
        ledger = opened(postgres.url)
        worker = live_worker(ledger)
        with ThreadPoolExecutor(4) as pool:  # several pooled connections
            list(pool.map(lambda _: ledger.questions.counts(), range(8)))
        postgres.restart()

        assert ledger.questions.clock() is not None
        [claim] = ledger.claims.claim([ledger.tasks.record(new())[0].id], by=worker.id)
        assert ledger.outcomes.settle([Settlement(claim, Done())])[0].state is State.SUCCEEDED
        ledger.close()

    def test_while_the_server_is_down_every_call_says_so(self, postgres: Server) -> None:
        ledger = opened(postgres.url)
        worker = live_worker(ledger)
        given = new(2)
        postgres.kill()
        try:
            for call in calls(ledger, worker, given[0].id):
                with pytest.raises(LedgerUnavailable, match="cannot use the ledger"):
                    call()
            with pytest.raises(LedgerUnavailable):
                ledger.tasks.record(given)
        finally:
            postgres.start()

        assert [one.created for one in ledger.tasks.record(given)] == [True, True]
        ledger.close()

    @pytest.mark.parametrize(("sorts", "setting"), [(True, "on"), (False, "off")])
    def test_a_question_whose_connection_ends_in_its_middle_is_asked_again(
        self, postgres: Server, sorts: bool, setting: str
    ) -> None:
        ledger = opened(postgres.url)
        asked: list[Connection] = []

        def ask(tx: Connection) -> str:
            asked.append(tx)
            if len(asked) == 1:
                tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
            return str(tx.execute(text("SHOW enable_sort")).scalar_one())

        assert ledger.database.ask(ask, sorts=sorts) == setting
        assert len(asked) == 2
        assert ledger.database.ask(ask) == "on", "it holds for that question alone"
        ledger.close()

    def test_settling_survives_backends_that_are_terminated_all_the_time(self, postgres: Server) -> None:
        ledger = opened(postgres.url)
        worker = live_worker(ledger)
        claims = ledger.claims.claim([one.id for one in ledger.tasks.record(new(400))], by=worker.id)
        admin = create_engine(ledger.database.url, isolation_level="AUTOCOMMIT")
        is_over = threading.Event()

        def terminate() -> int:
            ended, pause_s = 0, 0.05
            with admin.connect() as connection:
                while not is_over.wait(pause_s):
                    pause_s = min(1.0, 1.1 * pause_s)  # a busy machine may need longer than that for one statement
                    ended += len(
                        connection.execute(
                            text(
                                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                            )
                        ).all()
                    )
            return ended

        def settle(batch: list[Settlement]) -> list[State | None]:
            return [one.state for one in patiently(lambda: ledger.outcomes.settle(batch))]

        batches = [[Settlement(claim, Failed(3600.0, "x")) for claim in claims[at : at + 5]] for at in range(0, 400, 5)]
        with ThreadPoolExecutor(4) as pool:
            ending = pool.submit(terminate)
            try:
                answers = [state for answer in pool.map(settle, batches) for state in answer]
            finally:
                is_over.set()
            assert ending.result(LONG_S) > 0

        assert answers == [State.WAITING] * 400
        for claim in claims:
            task = ledger.questions.get(claim.task_id)
            assert task is not None
            assert task.failures == 1
        assert all([one.kind for one in ledger.questions.history(claim.task_id)] == ["failed"] for claim in claims)
        admin.dispose()
        ledger.close()


class TestAServerThatIsSilent:
    """F59: everything is stopped; the kernel still acknowledges."""

    @pytest.mark.parametrize("name", ["postgres", "mariadb"])
    def test_a_stopped_server_is_an_error_in_time_and_no_hang(self, request: pytest.FixtureRequest, name: str) -> None:
        server: Server = request.getfixturevalue(name)
        ledger, hasty = opened(server.url), opened(server.url, statement_timeout_s=1.0)
        worker = live_worker(ledger)
        given = new()
        [claim] = ledger.claims.claim([ledger.tasks.record(new())[0].id], by=worker.id)
        took: list[float] = []
        server.pause()
        try:
            needs = calls(hasty, worker, claim.task_id)[:4]
            needs.append(lambda: hasty.tasks.record(given))
            for call in needs:
                begun = time.monotonic()
                with pytest.raises(LedgerUnavailable):
                    call()
                took.append(time.monotonic() - begun)
        finally:
            server.resume()

        assert max(took) < LONG_S / 2  # the limit is 1.5 s for an answer, or 3 s for a new connection
        assert patiently(lambda: hasty.tasks.record(given))[0].created
        assert patiently(lambda: hasty.outcomes.settle([Settlement(claim, Done())]))[0].state is State.SUCCEEDED
        hasty.close()
        ledger.close()


class TestLocks:
    """F62: somebody else holds locks."""

    def test_a_row_that_is_locked_delays_itself_and_nobody_else(self, server_url: str) -> None:
        ledger, hasty = opened(server_url), opened(server_url, statement_timeout_s=2.0)
        worker = live_worker(ledger)
        ids = [one.id for one in ledger.tasks.record(new(10))]
        claims = ledger.claims.claim(ids, by=worker.id)
        other = create_engine(ledger.database.url)
        with other.begin() as connection:
            lock(connection, ledger, ids[0])
            began = time.monotonic()
            with pytest.raises(LedgerUnavailable):
                hasty.outcomes.settle([Settlement(claims[0], Done())])
            took_s = time.monotonic() - began
            others = ledger.outcomes.settle([Settlement(claim, Done()) for claim in claims[1:]])

        assert {one.state for one in others} == {State.SUCCEEDED}
        assert took_s < LONG_S / 2
        assert ledger.outcomes.settle([Settlement(claims[0], Done())])[0].state is State.SUCCEEDED
        other.dispose()
        hasty.close()
        ledger.close()

    def test_sweeps_step_over_rows_that_are_locked(self, server_url: str) -> None:
        ledger = opened(server_url)
        worker = live_worker(ledger)
        waiting = [one.id for one in ledger.tasks.record(new(4))]
        running = [one.id for one in ledger.tasks.record(new(4))]
        ledger.claims.claim(running, by=worker.id)
        ledger.workers.leave(worker.id)
        other = create_engine(ledger.database.url)
        with other.begin() as connection:
            lock(connection, ledger, waiting[0])
            lock(connection, ledger, running[0])
            taken = {one.task_id for one in ledger.hints.take_unpublished(limit=1000, grace_s=-1.0, horizon_s=0.0)}
            orphans = {one.task_id for one in ledger.workers.orphans(limit=1000)}

        assert taken & {*waiting} == {*waiting[1:]}
        assert orphans & {*running} == {*running[1:]}
        assert {one.task_id for one in ledger.workers.orphans(limit=1000)} == {running[0]}
        other.dispose()
        ledger.close()

    def test_a_table_that_is_locked_is_an_error_in_time(self, postgres: Server) -> None:
        ledger, hasty = opened(postgres.url), opened(postgres.url, statement_timeout_s=1.0)
        worker = live_worker(ledger)
        [task_id] = [one.id for one in ledger.tasks.record(new())]
        other = create_engine(ledger.database.url)
        with other.begin() as connection:
            connection.execute(text("LOCK TABLE workq_task IN ACCESS EXCLUSIVE MODE"))
            for call in (lambda: hasty.claims.claim([task_id], by=worker.id), lambda: hasty.questions.get(task_id)):
                began = time.monotonic()
                with pytest.raises(LedgerUnavailable):
                    call()
                assert time.monotonic() - began < LONG_S / 2

        assert len(ledger.claims.claim([task_id], by=worker.id)) == 1
        other.dispose()
        hasty.close()
        ledger.close()

    def test_a_deadlock_under_a_savepoint_of_ours_says_that_it_is_one(self, mariadb_server: MariaDB) -> None:
        """MariaDB ends the lighter of the two, and with it the savepoint, whose end is not what went wrong."""
        ledger = opened(mariadb_server.create_database())
        every_table(ledger.database.tables).create_all(ledger.database.engine)
        is_heavy = threading.Event()

        def weigh() -> None:
            with ledger.database.engine.begin() as heavy:
                ledger.tasks.record([*new(300), *new(key="theirs")], connection=heavy)
                is_heavy.set()
                ledger.tasks.record(new(key="mine"), connection=heavy)

        with ThreadPoolExecutor(1) as pool, ledger.database.engine.connect() as light:
            ledger.tasks.record(new(key="mine"), connection=light)
            other = pool.submit(weigh)
            assert is_heavy.wait(LONG_S)
            with pytest.raises(LedgerUnavailable) as caught:
                ledger.tasks.record(new(key="theirs"), connection=light)
            other.result(LONG_S)

        assert "Deadlock found" in str(caught.value)
        assert "roll yours back, and do all of it again" in str(caught.value)
        assert len(ledger.questions.tasks(limit=1000)) == 302, "the other one stands whole"
        ledger.close()


class TestOneFile:
    """F60, F64: SQLite."""

    def test_a_locked_database_is_waited_for(self, sqlite_url: str) -> None:
        ledger = opened(sqlite_url)
        other = sqlite3.connect(ledger.database.url.database or "", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as pool:
            recording = pool.submit(ledger.tasks.record, new(3))
            reading = ledger.questions.counts()  # readers do not wait
            threading.Event().wait(0.2)
            was_done = recording.done()
            other.execute("COMMIT")
            answers = recording.result(LONG_S)
        other.close()

        assert not was_done
        assert reading.oldest_ready_s is None
        assert all(one.created for one in answers)
        ledger.close()

    def test_a_database_that_stays_locked_is_an_error_in_time(self, sqlite_url: str) -> None:
        ledger = opened(sqlite_url, statement_timeout_s=0.5)
        other = sqlite3.connect(ledger.database.url.database or "", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable, match=r"locked.*Another transaction keeps it for too long.*connection="):
            ledger.tasks.record(new())
        took_s = time.monotonic() - began
        other.execute("COMMIT")
        other.close()

        assert took_s < LONG_S / 2
        assert ledger.tasks.record(new())[0].created
        ledger.close()

    def test_a_writer_that_is_killed_leaves_nothing_half_written(self, sqlite_url: str) -> None:
        ledger = opened(sqlite_url)
        for _ in range(3):
            before = ledger.questions.counts().states[State.READY]
            doomed, other = (
                Forked([sys.executable, "-c", WRITING, sqlite_url, name], cwd=REPOSITORY, env=os.environ | FORKED_WITH)
                for name in ("doomed", "other")
            )
            wait_until(lambda before=before: ledger.questions.counts().states[State.READY] > before + 200)  # type: ignore[misc]  # a lambda's default has no type
            doomed.kill()
            assert doomed.wait(LONG_S) == -signal.SIGKILL
            alone = ledger.questions.counts().states[State.READY]
            wait_until(lambda alone=alone: ledger.questions.counts().states[State.READY] > alone + 100)  # type: ignore[misc]  # a lambda's default has no type
            other.kill()
            assert other.wait(LONG_S) == -signal.SIGKILL

            t = ledger.database.tables.task
            with ledger.database.engine.connect() as connection:
                integrity = connection.exec_driver_sql("PRAGMA integrity_check").scalar_one()
                batches = Counter(connection.execute(select(t.c.name)).scalars())
            assert integrity == "ok"
            assert set(batches.values()) == {10}
        ledger.close()

    def test_a_full_disk_is_an_error_and_leaves_nothing_half_written(self, sqlite_url: str) -> None:
        ledger = opened(sqlite_url)
        limit = [1_000_000]

        @event.listens_for(ledger.database.engine, "begin")
        def _limit(connection: Connection) -> None:
            connection.exec_driver_sql(f"PRAGMA max_page_count={limit[0]}")

        ledger.tasks.record(new(10))
        limit[0] = 60
        with pytest.raises(LedgerUnavailable, match=r"full.*make room"):
            ledger.tasks.record(new(50, payload='{"a":["' + "x" * 10_000 + '"],"k":{}}'))
        count = ledger.questions.counts().states[State.READY]
        limit[0] = 1_000_000

        assert count == 10
        assert len(ledger.tasks.record(new(50, payload='{"a":["' + "x" * 10_000 + '"],"k":{}}'))) == 50
        ledger.close()


class TestProcesses:
    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
    def test_a_forked_child_has_connections_of_its_own(self, server_url: str) -> None:
        self.check(server_url)

    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
    def test_a_forked_child_writes_to_the_same_file(self, sqlite_url: str) -> None:
        self.check(sqlite_url)

    @staticmethod
    def check(url: str) -> None:
        ledger = opened(url)
        ledger.tasks.record(new(2, name="fork"))
        with ledger.database.writer.turn(is_short=True):  # another thread of the parent may be writing at that moment
            child = multiprocessing.get_context("fork").Process(target=ledger.tasks.record, args=(new(3, name="fork"),))
            child.start()
            child.join(LONG_S)

        assert child.exitcode == 0
        ledger.tasks.record(new(2, name="fork"))
        assert len(ledger.questions.tasks(name="fork")) == 7
        ledger.close()


class TestWhatErrorsSay:
    def test_a_password_is_never_shown(self, server_url: str, unused_port: int) -> None:
        real = Database(server_url).url
        urls = [
            real.set(password=CANARY, username="nobody").render_as_string(hide_password=False),
            real.set(password=CANARY, port=unused_port).render_as_string(hide_password=False),
            real.set(password=CANARY, host="no-such-host.invalid").render_as_string(hide_password=False),
            real.set(password=CANARY, database="no_such_database").render_as_string(hide_password=False),
            real.set(query={"password": CANARY}, port=unused_port).render_as_string(hide_password=False),
        ]
        for url in urls:
            said = self.what_is_said(lambda url=url: opened(url).questions.clock())  # type: ignore[misc]  # a lambda's default has no type
            assert "LedgerUnavailable" in said or "SchemaMismatch" in said or "TypeError" in said, said
            assert CANARY not in said

    def test_a_login_or_a_database_that_is_not_there_is_told_with_its_cure(self, server_url: str) -> None:
        real = Database(server_url).url
        cures = {
            "user or the password is wrong": real.set(password=CANARY, username="nobody"),
            "no such database: create it": real.set(database="no_such_database"),
        }
        for cure, url in cures.items():
            with pytest.raises(LedgerUnavailable, match=cure):
                opened(url.render_as_string(hide_password=False)).questions.clock()

    def test_a_file_that_is_no_database_is_told_with_its_cure(self, tmp_path: Path) -> None:
        (tmp_path / "workq.db").write_bytes(b"a letter" * 1000)

        with pytest.raises(LedgerUnavailable, match="Another file is there"):
            opened(f"sqlite:///{tmp_path / 'workq.db'}").questions.clock()

    @pytest.mark.parametrize(
        "url",
        [
            CANARY,
            f"http://user:{CANARY}@host/db",
            f"postgresql://user:p@ss:{CANARY}@host/db",
            f"postgresql://user:{CANARY}@host:port/db",
            f"postgresql://user:{CANARY}@[::1/db",
            f"sqlite://user:{CANARY}@/",
        ],
    )
    def test_a_wrong_url_does_not_show_its_password(self, url: str) -> None:
        said = self.what_is_said(lambda: opened(url).questions.clock())

        assert "ConfigError" in said
        assert CANARY not in said

    def test_a_payload_is_never_shown(self, server_url: str) -> None:
        ledger = opened(server_url)
        wrong = [*new(name="n" * 300, payload=f'"{CANARY}"'), *new(name=None, payload=f'"{CANARY}"')]
        ledger.tasks.record(new(key="said", payload=f'"{CANARY}"'))

        for given in (*wrong, *new(key="said", payload=f'"{CANARY} 2"')):
            assert CANARY not in self.what_is_said(partial(ledger.tasks.record, [given]))
        ledger.close()

    def test_missing_tables_are_told_from_a_server_that_is_away(self, server_url: str) -> None:
        self.check_missing_tables(server_url)

    def test_missing_tables_are_told_from_a_file_that_is_not_there(self, sqlite_url: str) -> None:
        self.check_missing_tables(sqlite_url)

    @staticmethod
    def check_missing_tables(url: str) -> None:
        ledger = opened(url, namespace="nothere")

        for call in calls(ledger, incarnation(), new()[0].id):
            with pytest.raises(SchemaMismatch, match="workq db migrate"):
                call()
        ledger.close()

    @staticmethod
    def what_is_said(call: Callable[[], object]) -> str:
        """Everything that a crash would print, causes included."""
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
            call()
        return "".join(traceback.format_exception(caught.value))

    @pytest.fixture
    def unused_port(self) -> int:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
        return port


def calls(ledger: Ledger, worker: Incarnation, task_id: str) -> list[Callable[[], object]]:
    """Every way to need the ledger."""
    claim = Claim(task_id, "n", "q", "{}", 1, "t", 0, 0, 5, 3, None)
    return [
        lambda: ledger.claims.claim([task_id], by=worker.id),
        lambda: ledger.outcomes.settle([Settlement(claim, Done())]),
        lambda: ledger.claims.look([task_id]),
        lambda: ledger.workers.beat(worker.id),
        lambda: ledger.hints.take_unpublished(limit=1, grace_s=0.0, horizon_s=0.0),
        lambda: ledger.questions.get(task_id),
    ]


def lock(connection: Connection, ledger: Ledger, task_id: str) -> None:
    t = ledger.database.tables.task
    connection.execute(select(t.c.id).where(t.c.id == task_id).with_for_update()).one()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {LONG_S} s"
        threading.Event().wait(0.01)


WRITING = """
import itertools, os, sys
from tests.contract.given import new
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.slices import SLICES
url, name = sys.argv[1:]
ledger = Ledger(Database(url), SLICES)
for number in itertools.count():
    ledger.tasks.record(new(10, name=f"{name}.{os.getpid()}.{number}"))
"""
"""Batches of ten, until it is killed."""
