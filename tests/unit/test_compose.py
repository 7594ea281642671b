"""docker-compose.yml: what a developer gets from it, read from the file; no Docker is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Private
from workq.lab.servers import start_redis

FILE = Path(__file__).parents[2] / "docker-compose.yml"
SERVICES = ["kafka", "mysql", "postgres", "rabbitmq", "redis"]


def with_defaults(value: Any) -> Any:
    """The document as Compose sees it when no variable is set."""
    match value:
        case str():
            return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)
        case list():
            return [with_defaults(one) for one in value]
        case dict():
            return {key: with_defaults(one) for key, one in value.items()}
        case _:
            return value


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = with_defaults(yaml.safe_load(FILE.read_text()))
    return document


def test_it_has_the_five_servers_and_no_version_line(compose: dict[str, Any]) -> None:
    assert sorted(compose["services"]) == SERVICES
    assert "version" not in compose


def test_no_variable_is_without_a_default() -> None:
    lines = [line for line in FILE.read_text().splitlines() if not line.lstrip().startswith("#")]

    variables = re.findall(r"\$\{?\w+[^}\s]*\}?", "\n".join(lines))

    assert variables
    assert [one for one in variables if not re.fullmatch(r"\$\{WORKQ_[A-Z_]+:-[\w.]+\}", one)] == []


@pytest.mark.parametrize("service", SERVICES)
class TestEachService:
    def test_starts_with_its_own_profile_and_with_full(self, compose: dict[str, Any], service: str) -> None:
        assert compose["services"][service]["profiles"] == [service, "full"]

    def test_has_an_image_pinned_to_one_release(self, compose: dict[str, Any], service: str) -> None:
        image = compose["services"][service]["image"]

        assert re.fullmatch(rf"(apache/)?{service}:\d+\.\d+(\.\d+)?(-management)?", image)

    def test_opens_ports_on_this_machine_only(self, compose: dict[str, Any], service: str) -> None:
        ports = compose["services"][service]["ports"]

        assert ports
        assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []

    def test_keeps_its_data_in_a_named_volume(self, compose: dict[str, Any], service: str) -> None:
        volumes = [volume.partition(":")[0] for volume in compose["services"][service]["volumes"]]

        assert volumes == [service]
        assert service in compose["volumes"]

    def test_has_a_health_check_with_limits(self, compose: dict[str, Any], service: str) -> None:
        check = compose["services"][service]["healthcheck"]

        assert {"interval", "timeout", "retries", "start_period"} <= check.keys()


@pytest.mark.parametrize(
    ("service", "command"),
    [
        ("rabbitmq", "rabbitmq-diagnostics -q check_port_connectivity"),
        ("kafka", "/opt/kafka/bin/kafka-broker-api-versions.sh --bootstrap-server 127.0.0.1:9092"),
        ("redis", "redis-cli -e ping"),
        ("postgres", "pg_isready -U workq -h 127.0.0.1"),
        ("mysql", "mysqladmin ping -h 127.0.0.1 --silent"),
    ],
)
def test_a_health_check_asks_the_server_that_clients_will_reach(
    compose: dict[str, Any], service: str, command: str
) -> None:
    kind, *words = compose["services"][service]["healthcheck"]["test"]

    assert kind == "CMD"
    assert " ".join(words) == command


def test_the_urls_in_the_comments_fit_the_services(compose: dict[str, Any]) -> None:
    urls = re.findall(r"export (WORKQ_\w+_URL)=(\w+)://(?:(\w*):(\w+)@)?127\.0\.0\.1:(\d+)[/\n]", FILE.read_text())
    services = compose["services"]

    def published(service: str) -> str:
        port: str = services[service]["ports"][0].split(":")[1]
        return port

    rabbitmq, postgres, mysql = (services[one]["environment"] for one in ("rabbitmq", "postgres", "mysql"))
    assert urls == [
        ("WORKQ_BROKER_URL", "amqp", *list(rabbitmq.values())[:2], published("rabbitmq")),
        ("WORKQ_BROKER_URL", "kafka", "", "", published("kafka")),
        ("WORKQ_INFLIGHT_URL", "redis", "", services["redis"]["command"][-1], published("redis")),
        ("WORKQ_LEDGER_URL", "postgresql", *list(postgres.values())[:2], published("postgres")),
        ("WORKQ_LEDGER_URL", "mysql", *list(mysql.values())[:2], published("mysql")),
    ]


def test_a_real_redis_accepts_the_settings_and_never_evicts(compose: dict[str, Any], private: Private) -> None:
    program, *settings = compose["services"]["redis"]["command"]
    password = compose["services"]["redis"]["environment"]["REDISCLI_AUTH"]
    assert program == "redis-server"

    with private(start_redis, options=settings) as redis:
        told = subprocess.run(
            ["redis-cli", "-p", str(redis.port), "CONFIG", "GET", "*"],
            env={"REDISCLI_AUTH": password, "PATH": str(Path(shutil.which("redis-cli") or "").parent)},
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.splitlines()
        refused = subprocess.run(
            ["redis-cli", "-p", str(redis.port), "PING"], capture_output=True, text=True, timeout=10, check=False
        ).stdout

    config = dict(zip(told[::2], told[1::2], strict=True))
    assert config["appendonly"] == "yes"
    assert config["appendfsync"] == "everysec"
    assert config["maxmemory-policy"] == "noeviction"
    assert refused.startswith("NOAUTH")
