"""A machine that runs out of something: room for the log, file descriptors, room for the database."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import Private
from tests.contract.given import incarnation, new
from tests.system.fleet import REPOSITORY, ROOM_S, wait_until
from tests.system.legs import Leg
from workq import State
from workq.errors import LedgerUnavailable
from workq.lab.servers import PostgreSQL, Redis, Server, start_postgres, start_rabbitmq
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.slices import SLICES, every_table
from workq.values.task import Done, Settlement

pytestmark = pytest.mark.one_leg


def worker(leg: Leg, *options: str) -> list[str]:
    return [sys.executable, "-m", "workq", "worker", "--app", "tests.system.witness:wq", "--processes", "1", *options]


def environ(leg: Leg) -> dict[str, str]:
    return {**os.environ, **leg.environ}


def test_a_full_disk_under_the_log_stops_no_work(fast_leg: Leg) -> None:
    """F23: every line of the log is refused, from the first to the last."""
    leg = fast_leg
    leg["note"].enqueue_many({"number": number} for number in range(30))
    failing = leg["fail"].options(failures_max=1).enqueue(1)
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(
            worker(leg), cwd=REPOSITORY, env=environ(leg), stdin=subprocess.DEVNULL, stdout=full, stderr=full
        )
    try:
        leg.wait_settled(timeout_s=40)
        (child,) = psutil.Process(process.pid).children()
        child.kill()  # its death is told in the log, too
        late = leg["note"].enqueue(99)
        leg.wait_settled(timeout_s=40)
        process.terminate()
        status = process.wait(30)
    finally:
        process.kill()
        process.wait()
    assert status == 0
    assert leg.states()[State.SUCCEEDED] == 31
    assert leg.states()[State.DEAD] == 1
    assert leg.starts()[late.id] == leg.starts()[failing.id] == 1


@pytest.mark.parametrize("descriptors", [8, 10, 14])
def test_too_few_file_descriptors_are_a_clear_error_and_no_busy_loop(
    descriptors: int, fast_leg: Leg, tmp_path: Path
) -> None:
    """F24: somewhere between its start and its connections it runs out of them; whatever it does, it does it calmly."""
    leg = fast_leg
    leg["note"].enqueue_many({"number": number} for number in range(10))
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            worker(leg, "--threads", "2"),
            cwd=REPOSITORY,
            env=environ(leg),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
        )
    spent: dict[int, float] = {}

    def look() -> None:
        """What everybody of it has used of the processor so far, those who are gone included."""
        try:
            root = psutil.Process(process.pid)
            for one in [root, *root.children(recursive=True)]:
                spent[one.pid] = sum(one.cpu_times()[:2])
        except psutil.Error:
            return

    def complains() -> bool:
        said = log.read_text(errors="replace")
        return "Too many open files" in said or "descriptor" in said

    try:
        began = time.monotonic()
        while process.poll() is None and leg.unsettled() and time.monotonic() - began < (12.0 if complains() else 90.0):
            look()
            time.sleep(0.1)
        took_s = time.monotonic() - began
        status = process.poll()
        alive = status is None
        process.terminate()
        process.wait(30)
    finally:
        process.kill()
        process.wait()
    said = log.read_text(errors="replace")
    worked = leg.unsettled() == 0
    lives = max(1, said.count("supervisor.started") + 1)
    print(f"{descriptors} descriptors: status {status}, worked: {worked}, {lives} processes in {took_s:.0f} s")
    if not worked:
        assert complains(), said[-2000:]
        assert alive or status != 0
        assert sum(spent.values()) < 1.5 * lives + 0.2 * took_s, "starting costs a second; waiting costs nothing"
        assert said.count("\n") < 400
    with leg.fleet(processes=1, threads=2):
        leg.wait_settled(timeout_s=40)
    assert leg.states()[State.SUCCEEDED] == 10


ON_A_TINY_DISK = """
import sys
from pathlib import Path
from subprocess import run
from tests.contract.given import incarnation, new
from workq.errors import LedgerUnavailable
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.slices import SLICES, every_table
from workq.values.task import Done, Settlement, State

disk = Path(sys.argv[1])
run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
ledger = Ledger(Database(f"sqlite:///{disk / 'workq.db'}", statement_timeout_s=2.0), SLICES)
every_table(ledger.database.tables).create_all(ledger.database.engine)
me = incarnation()
ledger.workers.join(me, queues=["default"], threads=1)
claims = ledger.claims.claim([one.id for one in ledger.tasks.record(new(5))], by=me.id)
acknowledged, refused = 5, []
body = '{"a":["' + "x" * 20_000 + '"],"k":{}}'
while len(refused) < 3:
    try:
        acknowledged += len(ledger.tasks.record(new(7, payload=body)))
    except LedgerUnavailable as error:
        refused.append(str(error))
assert all("full" in text for text in refused), refused
found = sum(ledger.questions.counts().states.values())
assert found == acknowledged, (found, acknowledged)
ballast = disk / "ballast"
try:
    with ballast.open("wb") as file:
        while file.write(b"0" * 4096):
            file.flush()
except OSError:
    pass
late = None
batch = [Settlement(claim, Done('"' + "y" * 100_000 + '"')) for claim in claims]
try:
    ledger.outcomes.settle(batch)
except LedgerUnavailable as error:
    late = str(error)
assert late is not None and ("full" in late or "disk" in late), late
ballast.unlink()
run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
settled = ledger.outcomes.settle(batch)
assert [one.state for one in settled] == [State.SUCCEEDED] * 5
acknowledged += len(ledger.tasks.record(new(7, payload=body)))
with ledger.database.engine.connect() as connection:
    assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
assert sum(ledger.questions.counts().states.values()) == acknowledged
ledger.close()
print("acknowledged", acknowledged, "refused", refused[0])
"""


def test_a_ledger_on_a_disk_that_is_really_full_says_so_and_settles_when_there_is_room(tmp_path: Path) -> None:
    """F60: a file on a tmpfs of 2 MiB, in a mount namespace of its own, which goes with the process."""
    disk = tmp_path / "disk"
    disk.mkdir()
    own = ["unshare", "--user", "--map-root-user", "--mount"] if os.geteuid() else ["unshare", "--mount"]
    done = subprocess.run(
        [*own, sys.executable, "-c", ON_A_TINY_DISK, str(disk)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A tmpfs of 200 MiB that any account may enter. Only root may mount one that a server can use."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk for a server; the same on SQLite needs no rights, and ran")
    folder = Path("/tmp") / f"workq-disk-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m,mode=0777", "tmpfs", str(folder)], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        folder.rmdir()


def test_a_postgresql_whose_disk_is_full_costs_nothing_that_was_recorded(small_disk: Path, private: Private) -> None:
    """F60: errors, and perhaps a PANIC and a restart; what was acknowledged is there, once, and settles afterwards."""
    with private(start_postgres, small_disk) as server:
        ledger = Ledger(Database(server.url, statement_timeout_s=3.0), SLICES)
        every_table(ledger.database.tables).create_all(ledger.database.engine)
        me = incarnation()
        ledger.workers.join(me, queues=["default"], threads=1)
        claims = ledger.claims.claim([one.id for one in ledger.tasks.record(new(20))], by=me.id)
        acknowledged = {claim.task_id for claim in claims}
        ballast = small_disk / "ballast"
        free = shutil.disk_usage(small_disk).free
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(0, free - 12 * 2**20))
        body = '{"a":["' + os.urandom(30_000).hex() + '"],"k":{}}'
        refused = ""
        attempted = 0
        while not refused:
            batch = new(20, payload=body)
            attempted += 20
            assert attempted < 20_000, "the disk does not fill up"
            try:
                acknowledged |= {one.id for one in ledger.tasks.record(batch)}
            except LedgerUnavailable as error:
                refused = str(error)
        print(f"PostgreSQL, disk full after {attempted} tasks: {refused}")
        ballast.unlink()
        settled = patiently_settled(server, ledger, [Settlement(claim, Done("1")) for claim in claims])
        more = {one.id for one in ledger.tasks.record(new(20, payload=body))}

        found = {task_id: look.state for task_id, look in ledger.claims.look([*acknowledged, *more]).items()}
        assert set(found) == acknowledged | more
        assert settled == [State.SUCCEEDED] * 20
        ledger.close()


def revive(server: Server) -> None:
    """Start it again if it has given up."""
    if not server.is_running:
        server.kill()
        server.start()


def patiently_settled(server: Server, ledger: Ledger, batch: list[Settlement]) -> list[State | None]:
    """What they are afterwards. A server that recovers just now may still give up, for it had no room as it began."""
    states: list[State | None] = []

    def settles() -> bool:
        revive(server)
        try:
            states[:] = [one.state for one in ledger.outcomes.settle(batch)]
        except LedgerUnavailable:
            return False
        return True

    wait_until(settles, timeout_s=30, what="it settles")
    return states


def test_a_rabbitmq_whose_disk_is_really_full_takes_nothing_and_costs_nothing(
    small_disk: Path, private: Private, postgres_server: PostgreSQL, redis_server: Redis, tmp_path: Path
) -> None:
    """F35, for real: its own measure raises the alarm, then nothing at all can be written; it may die of that."""
    with private(start_rabbitmq, small_disk, options=["disk_free_limit.absolute = 20MB"]) as server:
        server.evaluate("rabbit_disk_monitor:set_min_check_interval(100).")
        server.evaluate("rabbit_disk_monitor:set_max_check_interval(500).")
        leg = Leg.open(
            "servers", tmp_path, ledger=postgres_server.url, broker=server.url, inflight=redis_server.url, divide=10.0
        )
        try:
            with leg.fleet(processes=1, threads=2) as fleet:
                leg["note"].enqueue_many({"number": number} for number in range(20))
                leg.wait_settled(timeout_s=40)
                server.wait_registered(f"{leg.app.settings.namespace}.q.witness")
                ballast = small_disk / "ballast"
                fill(ballast)
                alarms = "rabbit_alarm:get_alarms()."
                wait_until(lambda: "disk" in server.evaluate(alarms), timeout_s=30, what="RabbitMQ has noticed")
                began = time.monotonic()
                leg["note"].enqueue_many({"number": number} for number in range(20, 40))
                enqueued_s = time.monotonic() - began
                was_taken = leg.app.producer.relay.flush(timeout_s=0.5)  # after its deadline it has nothing in hand
                started = len(leg.starts())
                ballast.unlink()
                revive(server)
                began = time.monotonic()
                leg.wait_settled(timeout_s=60)
                took_s = time.monotonic() - began
                assert "child_died" not in fleet.text()
            print(f"RabbitMQ, disk full: all settled {took_s:.1f} s after there was room")
            assert not was_taken, "the disk was not full"
            assert started == 20
            assert enqueued_s < 1.0 + ROOM_S
            assert leg.states()[State.SUCCEEDED] == 40
            assert set(leg.starts().values()) == {1}
        finally:
            leg.close()


def fill(ballast: Path) -> None:
    """Take every byte that is left."""
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        for size in (2**20, 4096):
            with suppress(OSError):
                while file.write(b"0" * size):
                    pass


def test_a_supervisor_without_room_for_its_files_says_so_and_tries_again(fast_leg: Leg, tmp_path: Path) -> None:
    """Its temporary files are on a tmpfs of 64 KiB: a board that is made there later would end who writes to it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    own = ["unshare", "--user", "--map-root-user", "--mount"] if os.geteuid() else ["unshare", "--mount"]
    mounted = ("sh", "-c", 'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"', str(disk))
    fast_leg["note"].enqueue(1)
    with fast_leg.fleet(processes=1, threads=1, prefix=(*own, *mounted), environ={"TMPDIR": str(disk)}) as fleet:
        wait_until(lambda: fleet.text().count("supervisor.cannot_start") >= 2, timeout_s=30, what="it tried twice")
        fleet.terminate()
        assert fleet.wait(20) == 0
        said = fleet.text()

    assert "supervisor.cannot_start: OSError: [Errno 28] No space left on device; trying again in 1 s" in said
    assert "Traceback" not in said
    assert list(disk.iterdir()) == []
    with fast_leg.fleet(processes=1, threads=1):
        fast_leg.wait_settled(timeout_s=30)
