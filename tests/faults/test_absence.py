"""The watch for workers that are gone from every store: whom it ends, and whom not. On PostgreSQL."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest
from msgspec.structs import replace
from sqlalchemy import select, update

from tests.system.fleet import REPOSITORY, wait_until
from tests.system.legs import Leg
from workq import State, Times
from workq.broker.rabbitmq.signs import RabbitMQSigns
from workq.config import Settings
from workq.diagnose.doctor import examine
from workq.errors import InFlightUnavailable
from workq.lab.servers import PostgreSQL, RabbitMQ
from workq.ledger.engine.database import Database
from workq.ledger.engine.postgresql import SIGN_KEY, SIGN_RIGHTS
from workq.ledger.signs import NONE, Signs, SignSession
from workq.recovery.absence import AbsenceWatch, watch_of
from workq.stores import Stores
from workq.values.certificate import ProofOfEnd
from workq.values.incarnation import Incarnation
from workq.worker.signs import SignsOfLife, given_signs

LOOKS = 8
"""More than are needed: a machine that is busy lets the moment pass in which one may end a worker."""


def watching(leg: Leg) -> Settings:
    return dataclasses.replace(leg.app.settings, times=Times(absence_s=8.0))


@dataclass
class Scene:
    """A ledger, workers in it, and a watch that has been connected for long enough."""

    leg: Leg
    stack: ExitStack
    now: float = 0.0
    workers: list[str] = field(default_factory=list)

    @property
    def stores(self) -> Stores:
        return self.leg.app.stores

    @property
    def settings(self) -> Settings:
        return watching(self.leg)

    def watch(self, *, is_new: bool = False) -> AbsenceWatch:
        watch = AbsenceWatch(self.stores, self.settings, clock=lambda: self.now)
        self.stack.callback(watch.close)
        if not is_new:
            watch.end_absent()
            self.now += 60.0
        return watch

    def worker(
        self, name: str, *, signs: SignsOfLife | None, silent_s: float = 20.0, lease_silent_s: float = 20.0
    ) -> str:
        """It lives, and has been silent for so long in the ledger and in the in-flight store."""
        text = None if signs is None else signs.written()
        ledger, times = self.stores.ledger, self.settings.times
        ledger.workers.join(Incarnation(name, "far", 1), queues=["witness"], threads=1, signs=text)
        w, database = ledger.database.tables.worker, ledger.database
        database.written(update(w).where(w.c.id == name).values(beat_at=database.now(-silent_s)))
        self.stores.inflight.join(name, lease_s=times.lease_s - lease_silent_s)
        self.workers.append(name)
        return name

    def session(self, worker: str) -> SignSession:
        """It has a connection."""
        settings = self.settings
        database = Database(settings.ledger, namespace=settings.namespace)
        self.stack.callback(database.close)
        session = Signs(database).give(worker, heard_s=4.0)
        session.keep()
        self.stack.callback(session.close)
        return session

    def looks(self, watch: AbsenceWatch, times: int = LOOKS, *, every_s: float = 1.0) -> None:
        for _ in range(times):
            watch.end_absent()
            self.now += every_s

    def silent_s(self, worker: str) -> float:
        """Since its session has sent anything, by the ledger; below 0: it has none."""
        database = self.stores.ledger.database
        asked = (
            "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change))::float, -1.0) "
            "FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE locktype = 'advisory' AND mode = 'ShareLock' "
            f"AND (classid::bigint << 32) | objid::bigint = {SIGN_KEY.format('%s')}"
        )
        return float(database.ask(lambda tx: tx.exec_driver_sql(asked, (worker,)).scalar_one()))

    def signs(self) -> dict[str, str | None]:
        """What the ledger says of the signs of each."""
        w = self.stores.ledger.database.tables.worker
        return dict(self.stores.ledger.database.ask(lambda tx: tx.execute(select(w.c.id, w.c.signs)).all()))

    def state(self, task_id: str) -> State | None:
        task = self.stores.ledger.questions.get(task_id)
        return None if task is None else task.state

    def live(self) -> set[str]:
        return {row.id for row in self.stores.ledger.questions.workers()}


def refused(*_: object) -> NoReturn:
    raise InFlightUnavailable("in-flight: away")


@pytest.fixture
def scene(postgres_server: PostgreSQL, tmp_path: Path) -> Iterator[Scene]:
    leg = Leg.open("postgresql", tmp_path, ledger=postgres_server.create_database())
    with ExitStack() as stack:
        stack.callback(leg.close)
        scene = Scene(leg, stack)
        # the in-flight store is not young any more
        database = leg.app.stores.ledger.database
        scene.stores.inflight.epoch_age_s()
        database.written(update(database.tables.meta).values(at=database.now(-3600.0)))
        yield scene


def test_who_is_gone_from_every_store_is_ended_and_nobody_else(scene: Scene) -> None:
    signs = SignsOfLife.of(scene.settings)
    gone = scene.worker("gone", signs=signs)
    scene.worker("connected", signs=signs)
    scene.session("connected")
    scene.worker("beats in the ledger", signs=signs, silent_s=-900.0)
    scene.worker("beats in flight", signs=signs, lease_silent_s=-900.0)
    scene.worker("gives no signs", signs=None)
    scene.worker("of other stores", signs=replace(signs, stores="x"))
    scene.worker("is patient", signs=replace(signs, absence_s=900.0))
    scene.worker("has a shorter lease", signs=replace(signs, lease_s=-900.0))
    for number in range(4):
        scene.worker(f"is well {number}", signs=signs, silent_s=-900.0)
    task = scene.leg["note"].enqueue(1)
    [claim] = scene.stores.ledger.claims.claim([task.id], by=gone)

    scene.looks(scene.watch())

    assert scene.live() == set(scene.workers) - {gone}
    row = next(row for row in scene.stores.ledger.questions.workers(live_only=False) if row.id == gone)
    assert row.certificate is not None
    assert (row.certificate.kind, row.certificate.pid) == (ProofOfEnd.ABSENCE, 1)
    assert scene.state(task.id) is State.READY
    assert claim.attempt == 1


def test_one_look_ends_nobody_and_a_series_with_a_gap_begins_anew(scene: Scene) -> None:
    scene.worker("gone", signs=SignsOfLife.of(scene.settings))
    watch = scene.watch()

    scene.looks(watch, every_s=4.0)
    assert scene.live() == {"gone"}

    scene.looks(watch, 2)
    assert scene.live() == {"gone"}

    scene.looks(watch)
    assert scene.live() == set()


def test_who_was_seen_between_two_looks_is_not_ended(scene: Scene) -> None:
    scene.worker("gone", signs=SignsOfLife.of(scene.settings))
    watch = scene.watch()
    for _ in range(LOOKS):
        scene.looks(watch, 2)
        session = scene.session("gone")
        scene.looks(watch, 1)
        session.close()

    assert scene.live() == {"gone"}


def test_a_watch_that_has_just_been_connected_ends_nobody(scene: Scene) -> None:
    scene.worker("gone", signs=SignsOfLife.of(scene.settings))

    watch = scene.watch(is_new=True)
    scene.looks(watch, 15)
    assert scene.live() == {"gone"}

    scene.looks(watch, 12)
    assert scene.live() == set()


def test_sessions_of_a_dead_supervisor_end_soon_too(scene: Scene) -> None:
    scene.watch()

    told = scene.stores.ledger.database.ask(lambda tx: tx.exec_driver_sql("SHOW tcp_user_timeout").scalar())
    assert told == "4000"


def test_most_of_a_fleet_is_left_to_its_leases(scene: Scene) -> None:
    for name in ("one", "two", "three", "four"):
        scene.worker(name, signs=SignsOfLife.of(scene.settings))
    scene.session("four")
    watch = scene.watch()

    scene.looks(watch)
    assert len(scene.live()) == 4

    scene.session("three")
    scene.looks(watch)
    assert scene.live() == {"three", "four"}


def test_a_young_in_flight_store_says_nothing(scene: Scene) -> None:
    scene.worker("gone", signs=SignsOfLife.of(scene.settings))
    database = scene.stores.ledger.database
    database.written(update(database.tables.meta).values(at=database.now(-5.0)))

    scene.looks(scene.watch())

    assert scene.live() == {"gone"}


def test_a_process_that_stands_still_keeps_its_sessions_and_is_not_ended_until_it_is_gone(scene: Scene) -> None:
    scene.worker("stopped", signs=SignsOfLife.of(scene.settings))
    watch = scene.watch()
    heard_s = 1.0
    program = (
        "import time\n"
        "from workq.app import WorkQueue\n"
        f"session = WorkQueue().stores.ledger.signs.give('stopped', heard_s={heard_s})\n"
        "session.keep()\n"
        "print('given', flush=True)\n"
        "time.sleep(600)\n"
    )
    environ = {**os.environ, **scene.leg.environ}
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        scene.stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "given\n"
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: scene.silent_s("stopped") > 5.0 * heard_s, timeout_s=60.0, what="nothing is heard of it")

        scene.looks(watch)
        assert scene.live() == {"stopped"}

        process.kill()
    wait_until(lambda: scene.silent_s("stopped") < 0.0, timeout_s=60.0, what="its session has ended")
    scene.looks(watch)
    assert scene.live() == set()


def test_a_ledger_that_ends_all_sessions_ends_no_worker(scene: Scene) -> None:
    signs = SignsOfLife.of(scene.settings)
    for name in ("one", "two", "three"):
        scene.worker(name, signs=signs)
        scene.session(name)
    scene.worker("is well", signs=signs, silent_s=-900.0)
    watch = scene.watch()
    scene.looks(watch)
    scene.session("two")

    with psycopg.connect(scene.settings.ledger, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    scene.session("two")
    scene.session("three")  # "one" takes longer to come back
    scene.looks(watch, 14)
    assert len(scene.live()) == 4

    scene.looks(watch, 12)
    assert scene.live() == {"two", "three", "is well"}


def test_a_watch_that_has_missed_the_in_flight_store_says_so_once_and_begins_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    signs = SignsOfLife.of(scene.settings)
    watch = scene.watch()

    with monkeypatch.context() as away:
        away.setattr(type(scene.stores.inflight), "_read", refused)
        for _ in range(2):
            with pytest.raises(InFlightUnavailable):
                watch.end_absent()
    assert [one.getMessage() for one in caplog.records if "watch." in one.message] == ["watch.waits: in-flight: away"]
    scene.worker("beats soon", signs=signs)
    scene.looks(watch, 14)
    assert scene.live() == {"beats soon"}

    scene.looks(watch, 12)
    assert scene.live() == set()


def test_leases_of_a_clock_that_was_set_forward_say_nothing(scene: Scene) -> None:
    scene.worker("has beaten just now", signs=SignsOfLife.of(scene.settings), lease_silent_s=0.0)
    watch = scene.watch()
    scene.looks(watch)

    scene.stores.ledger.database.clock_offset_s = 300.0
    scene.looks(watch, 14)
    assert scene.live() == {"has beaten just now"}

    scene.looks(watch, 12)
    assert scene.live() == set()


def test_a_worker_that_cannot_give_its_sign_any_more_says_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = scene.stores.ledger
    scene.worker("behind a pooler now", signs=None)
    giver = given_signs(scene.stores, scene.settings, by="behind a pooler now")
    assert giver is not None
    scene.stack.callback(giver.close)

    wait_until(lambda: bool(giver.told()), timeout_s=60.0, what="it gives its sign")
    assert ledger.workers.beat("behind a pooler now", signs=giver.told())
    assert scene.signs() == {"behind a pooler now": SignsOfLife.of(scene.settings).written()}
    monkeypatch.setattr(ledger.database, "is_pooled", True)
    assert ledger.workers.beat("behind a pooler now")
    assert scene.signs() == {"behind a pooler now": SignsOfLife.of(scene.settings).written()}
    assert ledger.workers.beat("behind a pooler now", signs=giver.told())
    assert scene.signs() == {"behind a pooler now": None}


def test_a_watch_that_finds_a_pooler_before_the_ledger_ends_nobody(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.worker("gone", signs=SignsOfLife.of(scene.settings))
    watch = scene.watch()

    monkeypatch.setattr(scene.stores.ledger.database, "is_pooled", True)
    scene.looks(watch)

    assert scene.live() == {"gone"}


def test_a_watch_that_dies_before_it_ends_a_worker_leaves_it_to_others(scene: Scene) -> None:
    scene.worker("gone", signs=SignsOfLife.of(scene.settings))
    task = scene.leg["note"].enqueue(1)
    scene.stores.ledger.claims.claim([task.id], by="gone")
    program = (
        "from workq import Times, WorkQueue\n"
        "from workq.recovery.absence import AbsenceWatch\n"
        "now = 0.0\n"
        "app = WorkQueue(times=Times(absence_s=8.0))\n"
        "watch = AbsenceWatch(app.stores, app.settings, clock=lambda: now)\n"
        "watch.end_absent()\n"
        "now = 60.0\n"
        "for _ in range(9):\n"
        "    watch.end_absent()\n"
        "    now += 1.0\n"
    )
    armed = {**os.environ, **scene.leg.environ, "WORKQ_FAILPOINT": "watch.before_reap:exit137"}
    died = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=armed, capture_output=True, timeout=120, check=False
    )
    assert died.returncode == 137, died.stderr
    assert scene.live() == {"gone"}

    scene.looks(scene.watch())

    assert scene.live() == set()
    assert scene.state(task.id) is State.READY


def test_nobody_watches_where_a_store_cannot_tell(tmp_path: Path, scene: Scene) -> None:
    sqlite = Leg.open("sqlite", tmp_path, ledger=f"sqlite:///{tmp_path / 'workq.db'}")
    scene.stack.callback(sqlite.close)

    assert watch_of(sqlite.app.stores, watching(sqlite)) is None
    assert watch_of(scene.stores, scene.leg.app.settings) is None, "it is off by default"


def test_who_may_not_give_a_sign_in_the_ledger_works_on_and_says_so(scene: Scene) -> None:
    url = scene.settings.ledger
    role = f"signless_{url.rpartition('/')[2]}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f'CREATE ROLE "{role}" LOGIN')
        admin.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA public TO "{role}"')
        admin.execute(f"REVOKE EXECUTE ON FUNCTION {SIGN_RIGHTS[0]} FROM PUBLIC")
    settings = dataclasses.replace(scene.settings, ledger=url.replace("//workq@", f"//{role}@"))
    database = Database(settings.ledger, namespace=settings.namespace)
    scene.stack.callback(database.close)
    signs = Signs(database)

    session = signs.give("three", heard_s=4.0)
    scene.stack.callback(session.close)
    session.keep()

    w = database.tables.worker
    assert database.ask(lambda tx: tx.execute(select(w.c.id)).all()) == []
    assert not signs.are_given
    assert signs.refusal is not None
    assert f"Grant this user EXECUTE on {SIGN_RIGHTS[0]}" in signs.refusal
    [told] = [one.message for one in examine(settings) if f"may not call {SIGN_RIGHTS[0]}:" in one.message]
    assert f"GRANT EXECUTE ON FUNCTION {SIGN_RIGHTS[0]} TO {role}" in told


def test_doctor_counts_those_whose_absence_is_seen(scene: Scene) -> None:
    scene.worker("one", signs=SignsOfLife.of(scene.settings))
    scene.worker("of other stores", signs=SignsOfLife("x", 30.0, 8.0))
    scene.worker("of an older version", signs=None)

    (said,) = [one.message for one in examine(scene.settings) if "signs of life" in one.message]

    assert said.startswith("1 of 3 live workers give signs of life in these stores: the others have other settings")


def test_who_may_not_give_a_sign_in_rabbitmq_says_so_with_what_to_grant(
    scene: Scene, rabbitmq_server: RabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    user, theirs = "without-signs", r"^signs\.(q|turn|due|quarantine)\b"
    rabbitmq_server.operator.add_user(user, "password")
    rabbitmq_server.operator.set_permissions(user, theirs, ".*", ".*")
    url = rabbitmq_server.url.replace("guest:guest", f"{user}:password")
    grant = rf"rabbitmqctl set_permissions -p / {user} '^signs\."
    settings = dataclasses.replace(scene.settings, broker=url, namespace="signs")
    stores = dataclasses.replace(scene.stores, signs=RabbitMQSigns(url, namespace="signs"))

    giver = given_signs(stores, settings, by="three")
    assert giver is not None
    try:
        wait_until(lambda: grant in caplog.text, timeout_s=60.0, what="it says what to grant")
        assert giver.told() == NONE
        (found,) = [one.message for one in examine(settings) if "sign of life" in one.message]
        assert grant in found
        rabbitmq_server.operator.set_permissions(user, ".*", ".*", ".*")
        wait_until(lambda: bool(giver.told()), timeout_s=60.0, what="it is given")
        assert not [one for one in examine(settings) if "sign of life" in one.message]
    finally:
        giver.close()


def test_a_sign_in_rabbitmq_ends_with_its_connection(mortal_rabbitmq: RabbitMQ) -> None:
    signs = RabbitMQSigns(mortal_rabbitmq.url, namespace="signs")
    with ExitStack() as stack:
        reader = signs.reader(heard_s=4.0)
        stack.callback(reader.close)
        given = [signs.give(name, heard_s=4.0) for name in ("one", "two")]
        for one in given:
            stack.callback(one.close)
        wait_until(lambda: all(one.is_given() for one in given), timeout_s=60.0, what="both are given")
        wait_until(lambda: reader.lasts_s > 0.0, timeout_s=60.0, what="the reader is connected")

        before = reader.absent(["one", "two", "three"], deadline_s=60.0)
        given[0].close()
        wait_until(
            lambda: "one" in reader.absent(["one", "two"], deadline_s=60.0), timeout_s=60.0, what="the first is gone"
        )

        assert before == {"three"}
        assert reader.absent(["two"], deadline_s=60.0) == set()

        closed_at = time.monotonic()
        mortal_rabbitmq.operator.close_connections("maintenance")
        wait_until(
            lambda: 0.0 < reader.lasts_s < time.monotonic() - closed_at,
            timeout_s=60.0,
            what="the reader is connected anew",
        )
        wait_until(
            lambda: given[1].is_given() and not reader.absent(["two"], deadline_s=60.0),
            timeout_s=60.0,
            what="the sign is given anew",
        )
