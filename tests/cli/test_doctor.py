"""workq doctor: what it finds, on real servers."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.fernet import Fernet

from tests.cli.conftest import Cli
from tests.conftest import Private
from workq.app import WorkQueue
from workq.broker import Hint
from workq.config import Settings, Times
from workq.diagnose.bounds import Bounds
from workq.diagnose.doctor import examine
from workq.diagnose.doctor.absence import look
from workq.diagnose.doctor.check import Check, Level
from workq.diagnose.doctor.host import skew
from workq.lab.servers import MariaDB, PostgreSQL, RabbitMQ, Redis, start_redis
from workq.ledger.engine import migrate
from workq.ledger.engine.database import Database
from workq.values.task import State


def findings(checks: list[Check]) -> list[str]:
    return [check.message for check in checks if check.level not in (Level.OK, Level.UNCHECKED)]


def settings(tmp_path: Path, **stores: Any) -> Settings:
    return Settings(**({"ledger": f"sqlite:///{tmp_path}/shop.db"} | stores))


class TestOneFile:
    def test_a_healthy_ledger_has_no_findings_and_prints_the_bounds(self, cli: Cli) -> None:
        cli.record("shop.add", 1)

        ran, document = cli("doctor"), cli.look("doctor")

        assert ran.status == 0
        assert "a whole host dies:" in ran.out
        assert "45 s" in ran.out
        assert document["ok"] is True
        assert {check["level"] for check in document["checks"]} == {"ok"}
        assert document["recovery_s"]["dead_host_s"] == 45.0

    def test_looking_creates_nothing(self, tmp_path: Path) -> None:
        checks = examine(settings(tmp_path))

        assert findings(checks) == []
        assert list(tmp_path.iterdir()) == []

    def test_a_file_with_a_second_name_is_a_finding_by_either_and_a_symbolic_link_is_none(self, cli: Cli) -> None:
        cli.record("shop.add", 1)
        one, other, link = (cli.folder / name for name in ("shop.db", "two.db", "link.db"))
        link.symlink_to(one)
        by_link = findings(examine(Settings(ledger=f"sqlite:///{link}")))
        with WorkQueue(ledger=f"sqlite:///{link}") as wq:
            seen = wq.stores.ledger.questions.counts().states[State.READY]
        other.hardlink_to(one)

        twice = [findings(examine(Settings(ledger=f"sqlite:///{name}"))) for name in (one, other)]

        assert by_link == []
        assert seen == 1
        for (found,) in twice:
            assert "has 2 names (hard links)" in found
            assert "let each use the same name, and remove the others" in found

    def test_a_file_that_is_mounted_alone_is_a_finding(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        cli.record("shop.add", 1)
        mounts = [SimpleNamespace(mountpoint=str(cli.folder / "shop.db"), fstype="ext4")]
        monkeypatch.setattr("psutil.disk_partitions", lambda **_: mounts)

        (found,) = findings(examine(settings(cli.folder)))

        assert "is mounted alone" in found
        assert found.endswith("mount its folder")

    def test_a_missing_folder_and_a_missing_schema_are_findings(self, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "theirs.db") as file:
            file.execute("CREATE TABLE theirs (id INTEGER)")
        file.close()

        (missing,) = findings(examine(Settings(ledger=f"sqlite:///{tmp_path}/none/shop.db")))
        (schema,) = findings(examine(Settings(ledger=f"sqlite:///{tmp_path}/theirs.db")))

        assert "cannot be created" in missing
        assert "workq db migrate" in schema

    def test_an_application_that_cannot_be_imported_is_a_finding(self, cli: Cli) -> None:
        ran = cli("doctor", "--app", "nosuch:wq", "-o", "json")

        assert ran.status == 3
        assert [one["area"] for one in ran.json()["checks"] if one["level"] == "error"] == ["app"]

    def test_the_bounds_follow_the_times(self) -> None:
        assert Bounds.of(Times()) == Bounds(2.0, 45.0, 17.0, 45.0, 50.0, 25.0, 70.0, 80.0, 45.0)
        assert Bounds.of(Times(absence_s=8.0)).absent_host_s == 10.0
        fast = Bounds.of(Times().divided_by(10))
        assert fast.dead_host_s == pytest.approx(4.5)
        slow = Bounds.of(Times(beat_s=5.0, lease_s=60.0, sweep_s=3.0))
        assert slow.dead_host_s == 60.0 + 3.0 + 6.0 + 5.0

    def test_an_absence_without_an_effect_is_a_finding(self, tmp_path: Path) -> None:
        def told(absence_s: float, **stores: str) -> list[str]:
            looked = list(look(settings(tmp_path, times=Times(absence_s=absence_s), **stores)))
            return [one.message.partition("no effect: ")[2] for one in looked]

        there = {"ledger": "postgresql://db/shop"}
        assert told(0.0) == told(8.0, **there) == told(8.0, **there, broker="amqp://one") == []
        for useless in (4.0, 30.0):
            (message,) = told(useless, **there)
            assert message.startswith("it has one from 7.5 on, and below lease_s, which is 30, so a dead host")
        (message,) = told(8.0)
        assert "PostgreSQL alone tells" in message
        (message,) = told(8.0, **there, broker="kafka://one")
        assert "Kafka does not tell" in message

    def test_a_bound_that_these_stores_cannot_keep_is_not_told(self, cli: Cli) -> None:
        (cli.folder / "workq.toml").write_text("[times]\nabsence_s = 8\n")

        assert cli("doctor", "-o", "json").json()["recovery_s"]["absent_host_s"] == 45.0

    def test_clocks_that_differ_are_a_finding(self) -> None:
        asked = datetime(2026, 1, 1, tzinfo=UTC)
        told = asked + timedelta(seconds=1)

        assert skew("Redis", asked, asked, told).level is Level.OK
        ahead = skew("Redis", asked + timedelta(hours=1), asked, told)
        assert ahead.level is Level.WARNING
        assert "3599.5 s ahead of" in ahead.message


class TestServers:
    def test_postgresql_without_a_schema_names_the_cure(self, tmp_path: Path, postgres_server: PostgreSQL) -> None:
        url = postgres_server.create_database()

        checks = examine(settings(tmp_path, ledger=url))

        assert any("PostgreSQL" in check.message for check in checks if check.level is Level.OK)
        assert any("workq db migrate" in message for message in findings(checks))
        assert [check.message for check in checks if check.area == "clock"] == [
            "the ledger and this host agree within 2 s"
        ]

    def test_mysql_tables_of_another_engine_or_charset_are_findings(
        self, cli: Cli, tmp_path: Path, mariadb_server: MariaDB
    ) -> None:
        url = mariadb_server.create_database()
        assert cli("db", "migrate", "--url", url).status == 0
        assert not [one for one in findings(examine(settings(tmp_path, ledger=url))) if "innodb_flush" not in one]
        database = Database(url)
        with database.engine.begin() as tx:
            tx.exec_driver_sql("ALTER TABLE workq_event ENGINE = MyISAM")
            tx.exec_driver_sql("ALTER TABLE workq_hold CONVERT TO CHARACTER SET latin1")
        database.close()

        found = findings(examine(settings(tmp_path, ledger=url)))

        assert any("workq_event uses MyISAM" in one for one in found)
        assert any("workq_hold is latin1" in one for one in found)

    def test_redis_without_a_log_is_a_warning_and_an_evicting_one_an_error(
        self, tmp_path: Path, private: Private
    ) -> None:
        with private(start_redis, options=("--appendonly", "no")) as redis:
            forgets = examine(settings(tmp_path, inflight=redis.url))
        with private(start_redis, options=("--maxmemory-policy", "allkeys-lru", "--maxmemory", "10mb")) as redis:
            evicts = examine(settings(tmp_path, inflight=redis.url))

        assert any("appendonly is off" in message for message in findings(forgets))
        assert any("allkeys-lru" in message for message in findings(evicts))
        assert Level.UNREACHABLE not in {check.level for check in forgets + evicts}

    def test_a_queue_of_another_type_is_an_error_and_none_is_created(
        self, tmp_path: Path, rabbitmq_server: RabbitMQ
    ) -> None:
        from workq.broker.rabbitmq import RabbitMQBroker

        url, namespace = rabbitmq_server.url, "doctor_rm"
        theirs = RabbitMQBroker(url, namespace=namespace, queue_type="classic")
        try:
            assert theirs.publish([Hint("mail", ("01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f",))], deadline_s=30.0) == [True]
        finally:
            theirs.close()

        ours = settings(tmp_path, broker=url, namespace=namespace, queue_type="quorum")
        found = findings(examine(ours, queues=("mail", "missing")))
        again = findings(examine(ours, queues=("missing",)))

        (mismatch,) = found
        assert "doctor_rm.q.mail exists with different arguments" in mismatch
        assert again == []

    def test_a_wrong_password_is_told_apart_and_never_shown(
        self, tmp_path: Path, rabbitmq_server: RabbitMQ, redis_server: Redis
    ) -> None:
        broker = "amqp://nobody:canary-pw@" + rabbitmq_server.url.partition("://")[2].rpartition("@")[2]
        inflight = "redis://nobody:canary-pw@" + redis_server.url.partition("://")[2].rpartition("@")[2]

        checks = examine(settings(tmp_path, broker=broker, inflight=inflight))

        away = {check.area: check.message for check in checks if check.level is Level.UNREACHABLE}
        assert set(away) == {"broker", "inflight"}
        assert "password" in away["broker"]
        assert "password" in away["inflight"]
        assert "canary-pw" not in str(checks)

    def test_guest_from_another_host_is_a_warning(self, tmp_path: Path) -> None:
        checks = examine(settings(tmp_path, broker="amqp://guest:guest@rabbit.invalid/"))

        assert any("guest" in check.message for check in checks if check.level is Level.WARNING)
        assert any(check.level is Level.UNREACHABLE for check in checks)


class TestExposed:
    def test_files_that_every_user_of_the_machine_can_open_are_findings(self, tmp_path: Path) -> None:
        (tmp_path / "workq.toml").write_text('broker = "amqp://shop:pass@127.0.0.1:1/shop"\n[times]\nbeat_s = 5\n')
        (tmp_path / "key").write_text("key")
        database = Database(f"sqlite:///{tmp_path}/shop.db")
        migrate.ensure(database)

        def exposed() -> list[str]:
            variables = {"WORKQ_LEDGER_URL": f"sqlite:///{tmp_path}/shop.db", "WORKQ_SECRET_KEY_FILE": "key"}
            loaded = Settings.load(folder=tmp_path, environ=variables)
            return [check.message for check in examine(loaded) if "can open" in check.message]

        files = [tmp_path / name for name in ("key", "workq.toml", "shop.db", "shop.db-wal", "shop.db-shm")]
        for file in files:
            file.chmod(0o644)
        opened = exposed()
        for file in files:
            file.chmod(0o640)  # a group that was chosen may read them
        closed = exposed()
        database.close()

        assert [message.partition(" (mode 0644)")[0].rpartition("can open ")[2] for message in opened] == [
            *map(str, files)
        ]
        assert all(f"run: chmod o-rwx {file}" in message for file, message in zip(files, opened, strict=True))
        assert closed == []

    def test_a_settings_file_without_a_secret_may_be_read_by_all(self, tmp_path: Path) -> None:
        (tmp_path / "workq.toml").write_text(f'ledger = "sqlite:///{tmp_path}/shop.db"\nnamespace = "shop"\n')
        (tmp_path / "workq.toml").chmod(0o644)

        assert findings(examine(Settings.load(folder=tmp_path, environ={}))) == []

    def test_secrets_of_webhooks_that_are_not_encrypted_are_a_finding_until_they_are(self, cli: Cli) -> None:
        cli.here("webhook", "endpoint", "add", "https://example.org/hooks")
        in_clear = cli.here("doctor")
        cli.env["WORKQ_SECRET_KEY"] = Fernet.generate_key().decode()
        key_alone = cli("doctor")
        assert cli("webhook", "endpoint", "seal").status == 0
        sealed = cli("doctor")

        assert [in_clear.status, key_alone.status, sealed.status] == [3, 3, 0]
        assert "1 webhook endpoint has secrets that are not encrypted" in key_alone.out
