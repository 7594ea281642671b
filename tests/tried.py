"""Tries workq on other servers, and writes down what it met into docs/reference/tried-with.md: `make test-newer`.

    python -m tests.tried --suite trixie --only RabbitMQ,Redis --minutes 3
    python -m tests.tried --kafka 4.0.2,4.2.2

No test is written for it: each trial runs tests that exist, in a pytest of its own, whose private servers are started
from the folder of the suite, or from the jars of that Kafka (workq/lab/servers/programs.py). `--suite here` takes the
servers of this machine. A row of the table stays until its server is tried again. What is red ends with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from workq.lab.servers import start_postgres, start_rabbitmq, start_redis
from workq.lab.servers.programs import KAFKA_VERSION, PRODUCTS, ROOT

REPOSITORY: Final = Path(__file__).parents[1]
FOLDERS: Final = REPOSITORY / ".newer"
PAGE: Final = REPOSITORY / "docs" / "reference" / "tried-with.md"
HERE: Final = "here"
CERTIFY: Final = "certify"
CLUSTER: Final = "cluster"
_BEGIN: Final = "| Server | Of | What was run | Passed | Failed | Day |\n| --- | --- | --- | --- | --- | --- |\n"
_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class Trial:
    """One server, and the tests that show what workq needs of it."""

    server: str
    shows: str
    tests: tuple[str, ...]
    """Words for pytest."""
    products: str = ""


_REDIS: Final = (
    *("tests/contract/test_inflight_contract.py", "tests/contract/test_kinds_contract.py"),
    *("tests/faults/test_redis_faults.py", "tests/faults/test_redis_loss.py", "tests/system/test_private_servers.py"),
    *("tests/faults/test_redis_cluster_faults.py", "tests/faults/test_redis_sentinel_faults.py"),
    *("tests/faults/test_misconfigured_stores.py", "-k", "redis"),
)
_MYSQL: Final = (
    *("tests/contract", "tests/faults/test_ledger_faults.py", "tests/faults/test_misconfigured_stores.py"),
    *("tests/system/test_private_servers.py", "-k", "mariadb or mysql"),
)
TRIALS: Final = (
    Trial(
        "RabbitMQ",
        "broker contract (quorum, classic, levels), messages out and in, faults",
        (
            *("tests/contract/test_broker_contract.py", "tests/contract/test_kinds_contract.py"),
            *("tests/contract/test_ways_in_contract.py", "tests/faults/test_rabbitmq_faults.py"),
            *("tests/faults/test_broker_loss.py", "tests/faults/test_misconfigured_rabbitmq.py"),
            *("tests/faults/test_intake_amqp.py", "tests/system/test_private_servers.py"),
            *("-k", "rabbitmq or amqp or broker_loss"),
        ),
    ),
    Trial("Redis", "in-flight contract (one node, cluster), Sentinels, messages out, faults", _REDIS),
    Trial("Valkey", "in-flight contract (one node, cluster), Sentinels, messages out, faults", _REDIS, "valkey"),
    Trial(
        "PostgreSQL",
        "ledger, embedded broker and embedded in-flight contracts, faults",
        (
            *("tests/contract", "tests/faults/test_ledger_faults.py", "tests/faults/test_misconfigured_stores.py"),
            *("tests/system/test_private_servers.py", "-k", "postgres"),
        ),
    ),
    Trial("MariaDB", "ledger, embedded broker and embedded in-flight contracts, faults", _MYSQL),
    Trial("MySQL", "ledger, embedded broker and embedded in-flight contracts, faults", _MYSQL, "mysql"),
)
OF_SUITE: Final = {"sid": ("MySQL",)}
"""What a suite has alone. The others have all but MySQL."""
KAFKA_TRIALS: Final = (
    Trial(
        "Kafka",
        "broker contract, messages out and in, faults, fleets, doctor; three nodes",
        (
            *("tests/contract/test_broker_contract.py", "tests/contract/test_kinds_contract.py"),
            *("tests/contract/test_ways_in_contract.py", "tests/faults/test_kafka_broker.py"),
            *("tests/faults/test_kafka_cluster.py", "tests/faults/test_kafka_doctor.py"),
            *("tests/faults/test_intake_kafka.py", "tests/faults/test_tls.py"),
            *("tests/system/test_kafka.py", "tests/system/test_move_between_brokers.py"),
            *("tests/system/test_java_servers.py", "-k", "kafka or move_between"),
        ),
    ),
    Trial(
        "Kafka",
        "`protocol=classic`: broker contract, a fleet",
        ("--classic", "tests/contract/test_broker_contract.py", "tests/system/test_kafka.py", "-k", "kafka"),
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    server: str
    of: str
    """Where it was from."""
    shows: str
    passed: int
    failed: int
    day: str

    def __str__(self) -> str:
        words = (self.server, self.of, self.shows, self.passed, self.failed, self.day)
        return f"| {' | '.join(map(str, words))} |"

    @property
    def place(self) -> tuple[str, str, bool]:
        """Where it stands in the table: one row for each server of a suite, and each combination that was certified."""
        return re.sub(r" [\d.]+", "", self.server), self.of, "+" in self.server


def run(trial: Trial, of: str, environment: Mapping[str, str], words: Sequence[str]) -> Row:
    """Run its tests in a pytest of their own; what they print goes on to ours."""
    command = [sys.executable, "-m", "pytest", "--require=all", "-q", *words, *trial.tests]
    print(f"tried: {trial.server} of {of}: {' '.join(command[2:])}", flush=True)
    ran = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)
    used = line = ""
    assert ran.stdout is not None
    for line in ran.stdout:
        print(line, end="", flush=True)
        used = line if line.startswith("used: ") else used
    ran.wait()
    counts = {name.rstrip("s"): int(number) for number, name in re.findall(r"(\d+) (passed|failed|errors?)\b", line)}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    found = re.search(rf"{trial.server} [\w.]+", used)
    if found is None or ran.returncode not in (0, 1):
        raise SystemExit(f"tried: pytest ended with {ran.returncode}, and met no {trial.server}")
    return _row(found[0], of, trial.shows, counts.get("passed", 0), failed)


def certify(suite: str, minutes: float) -> Row:
    """`workq certify` on private servers of the suite."""
    os.environ.update(_environment(suite))
    with ExitStack() as servers:
        broker = servers.enter_context(start_rabbitmq())
        inflight = servers.enter_context(start_redis())
        ledger = servers.enter_context(start_postgres())
        urls = {"WORKQ_LEDGER_URL": ledger.url, "WORKQ_BROKER_URL": broker.url, "WORKQ_INFLIGHT_URL": inflight.url}
        versions = " + ".join(f"{one.name} {one.version}" for one in (broker, inflight, ledger))
        print(f"tried: workq certify --minutes {minutes:g} on {versions} of {suite}", flush=True)
        ran = subprocess.run(
            [sys.executable, "-m", "workq", "certify", "--minutes", f"{minutes:g}", "-o", "json"],
            cwd=servers.enter_context(tempfile.TemporaryDirectory()),
            env=os.environ | urls,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    if ran.returncode not in (0, 3):
        raise SystemExit(f"tried: workq certify ended with {ran.returncode}")
    told = json.loads(ran.stdout)
    print(json.dumps(told, indent=1), flush=True)
    shows = f"`workq certify`, {minutes:g} minutes, {told['faults']['struck']} faults: tasks settled, tasks lost"
    lost = int(told["tasks"]["lost"])
    return _row(
        versions, _debian(suite), shows, int(told["tasks"]["acknowledged"]) - lost, max(lost, len(told["findings"]))
    )


def cluster(suite: str, minutes: float) -> Row:
    """Tasks through three nodes of RabbitMQ that die, stand still, restart and lose each other."""
    recorded = succeeded = unexplained = steps = 0
    version = ""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "figures"
        for words in (["rabbitmq_trial", "--minutes", f"{minutes:g}"], ["rabbitmq_cuts"]):
            command = [sys.executable, "-m", f"tests.faults.{words[0]}", *words[1:], "--output", str(output)]
            print(f"tried: {' '.join(command[2:])} of {suite}", flush=True)
            ran = subprocess.run(command, cwd=REPOSITORY, env=_environment(suite, ""), timeout=_SECONDS, check=False)
            if ran.returncode not in (0, 3) or not output.exists():
                raise SystemExit(f"tried: {words[0]} ended with {ran.returncode}")
            told = json.loads(output.read_text())
            output.unlink()
            version = told["version"]
            for one in told["found"].values():
                recorded, succeeded = recorded + one["recorded"], succeeded + one["succeeded"]
                unexplained, steps = unexplained + len(one["unexplained"]), steps + len(one["steps"])
    shows = f"`make cluster-rabbitmq`, {steps} faults and cuts: tasks done; lost, or started without a reason"
    return _row(
        f"RabbitMQ {version}, three nodes", _debian(suite), shows, succeeded, recorded - succeeded + unexplained
    )


def _row(server: str, of: str, shows: str, passed: int, failed: int) -> Row:
    return Row(server, of, shows, passed, failed, f"{datetime.now(UTC):%Y-%m-%d}")


def _debian(suite: str) -> str:
    """The name of a suite, also of the machine's own."""
    name = platform.freedesktop_os_release().get("VERSION_CODENAME", HERE) if suite == HERE else suite
    return f"Debian {name}"


def _environment(suite: str, products: str = "", kafka: str = "") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKQ_")}
    where = "" if suite == HERE else str(FOLDERS / suite)
    return kept | {ROOT: where, PRODUCTS: products, KAFKA_VERSION: kafka}


def jars_of(version: str, trial: Trial) -> str:
    """Where a Kafka was from, in the table: of each line of versions the last that was tried stays."""
    line = ".".join(version.split(".")[:2])
    return f"jars, {line}" + (" classic" if "--classic" in trial.tests else "")


def with_row(page: str, row: Row) -> str:
    """The page with this row in the place of an older one."""
    head, _, rest = page.partition(_BEGIN)
    rows = [_read(line) for line in rest.splitlines() if line.startswith("| ")]
    tail = "\n".join(line for line in rest.splitlines() if not line.startswith("| "))
    kept = [one for one in rows if one.place != row.place]
    lines = [str(one) for one in sorted([*kept, row], key=lambda one: (one.place[2], one.place))]
    return f"{head}{_BEGIN}" + "\n".join(lines) + "\n" + (f"{tail.rstrip()}\n" if tail.strip() else "")


def _read(line: str) -> Row:
    server, of, shows, passed, failed, day = (word.strip() for word in line.strip("| ").split(" | "))
    return Row(server, of, shows, int(passed), int(failed), day)


def chosen(suite: str, only: Sequence[str]) -> Iterator[Trial]:
    """The trials of a suite, in their order."""
    has = OF_SUITE.get(suite, tuple(one.server for one in TRIALS if one.products != "mysql"))
    yield from (one for one in TRIALS if one.server in has and (not only or one.server in only))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="trixie", help=f"a folder of .newer, or {HERE!r}")
    names = ",".join([*(one.server for one in TRIALS), CERTIFY, CLUSTER])
    parser.add_argument("--only", default="", help=f"some of {names}")
    parser.add_argument("--kafka", default="", help="these versions of Kafka alone, on servers of this machine")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long workq certify or faults run")
    parser.add_argument("words", nargs="*", help="more words for pytest, after --")
    given = parser.parse_args()
    only = [*filter(None, given.only.split(","))]
    if unknown := set(only).difference(names.split(",")):
        parser.error(f"--only: unknown: {', '.join(sorted(unknown))}; known: {names}")
    failed = 0
    if given.kafka:
        for version in given.kafka.split(","):
            for one in KAFKA_TRIALS:
                failed += written(run(one, jars_of(version, one), _environment(HERE, kafka=version), given.words))
        sys.exit(failed > 0)
    for one in chosen(given.suite, only):
        failed += written(run(one, _debian(given.suite), _environment(given.suite, one.products), given.words))
    if given.suite not in OF_SUITE and (not only or CERTIFY in only):
        failed += written(certify(given.suite, given.minutes))
    if CLUSTER in only:  # only where it is asked for: it takes a quarter of an hour
        failed += written(cluster(given.suite, given.minutes))
    sys.exit(failed > 0)


def written(row: Row) -> int:
    """How much has failed. The row is in the table, whatever becomes of the trials that follow."""
    PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), row), encoding="utf-8")
    print(row, flush=True)
    return row.failed


if __name__ == "__main__":
    main()
