"""What makes RabbitMQ lose hints silently is found by `workq doctor`, on a real one that is configured so."""

from __future__ import annotations

import base64
import json
import re
import secrets
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pika
import pytest

from tests.conftest import Private
from workq.broker import Hint
from workq.broker.rabbitmq import RabbitMQBroker
from workq.config import BINARY, QueueType, Settings
from workq.diagnose.doctor import examine
from workq.diagnose.doctor.check import Check, Level
from workq.lab.servers import (
    RabbitMQ,
    ServerFailed,
    start_rabbitmq,
)

ID = "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"


def tells_of_no_leader(managed: Managed) -> bool:
    """RabbitMQ 4.0 alone: 3 tells in the list of queues, and 4.1 in a health check."""
    return managed.server.version.startswith("4.0.")


def told(checks: list[Check], area: str, *levels: Level) -> list[str]:
    return [check.message for check in checks if check.area == area and check.level in levels]


def findings(checks: list[Check], area: str) -> list[str]:
    return told(checks, area, Level.WARNING, Level.ERROR, Level.UNREACHABLE)


@dataclass
class Managed:
    """A RabbitMQ with its management API, and one namespace in it with the queue `mail`."""

    server: RabbitMQ
    api: str
    folder: Path
    namespace: str = ""
    ladder: str = BINARY

    def fresh(self, queue_type: QueueType = "quorum", *, ladder: str = BINARY) -> Managed:
        """A new namespace, whose queue `mail` is declared."""
        namespace = f"n{secrets.token_hex(4)}"
        broker = RabbitMQBroker(self.server.url, namespace=namespace, queue_type=queue_type, ladder=ladder)
        try:
            assert broker.publish([Hint("mail", (ID,), 0.2)], deadline_s=30.0) == [True]  # delayed: the ladder, too
        finally:
            broker.close()
        return Managed(self.server, self.api, self.folder, namespace, ladder)

    def look(self, *queues: str, queue_type: QueueType = "quorum", url: str | None = None) -> list[Check]:
        settings = Settings(
            ledger=f"sqlite:///{self.folder}/none.db",
            broker=url or self.server.url,
            namespace=self.namespace,
            queue_type=queue_type,
            ladder=self.ladder,
        )
        return examine(settings, queues=queues or ("mail",))

    def found(self, *queues: str, queue_type: QueueType = "quorum") -> list[str]:
        return findings(self.look(*queues, queue_type=queue_type), "broker")

    def policy(self, definition: str, *, pattern: str = "q[.]", operator: bool = False) -> Callable[[], object]:
        """Set a policy on this namespace; answers how to take it away."""
        name = f"{self.namespace}-{secrets.token_hex(2)}"
        kind = "operator-policies" if operator else "policies"
        wanted = {"pattern": f"^{self.namespace}[.]{pattern}", "definition": json.loads(definition)}
        self._api("PUT", f"{kind}/%2F/{name}", wanted | {"apply-to": "queues"})
        return lambda: self._api("DELETE", f"{kind}/%2F/{name}")

    def _api(self, method: str, path: str, body: object = None) -> None:
        """Milliseconds; rabbitmqctl starts a machine of Erlang's for each word."""
        login = base64.b64encode(b"guest:guest").decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.api}/api/{path}", json.dumps(body).encode(), headers, method=method)  # noqa: S310
        try:
            urllib.request.urlopen(asked, timeout=60.0).close()  # noqa: S310 - on loopback
        except urllib.error.HTTPError as refused:
            raise ServerFailed(refused.read().decode()) from refused

    def channel(self) -> Any:
        return pika.BlockingConnection(pika.URLParameters(self.server.url)).channel()


@pytest.fixture(scope="module")
def rabbitmq(private: Private, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    """One for this file: Debian's has the plugin, and the private servers run without it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = (f"management.tcp.port = {port}", "management.tcp.ip = 127.0.0.1")
    with private(start_rabbitmq, options=options, plugins=["rabbitmq_management"]) as server:
        yield Managed(server, f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("broker"))


@pytest.fixture
def managed(rabbitmq: Managed, monkeypatch: pytest.MonkeyPatch) -> Managed:
    monkeypatch.setenv("WORKQ_BROKER_MANAGEMENT_URL", rabbitmq.api)
    return rabbitmq


def test_a_broker_as_workq_declares_it_has_no_findings(managed: Managed) -> None:
    for queue_type in get_args(QueueType):
        fresh = managed.fresh(queue_type)

        checks = fresh.look(queue_type=queue_type)

        assert findings(checks, "broker") == []
        assert len(told(checks, "broker", Level.UNCHECKED)) == tells_of_no_leader(fresh)
        assert any("no policy drops hints, no alarm; 15 queues are well" in one.message for one in checks)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ('{"message-ttl":60000}', "message-ttl 60000: hints that wait for more milliseconds are dropped"),
        ('{"max-length":1000}', "max-length 1000: when it is full, hints are dropped (overflow drop-head)"),
        ('{"max-length-bytes":9000}', "max-length-bytes 9000: when it is full, hints are dropped"),
        ('{"max-length":1000,"overflow":"reject-publish"}', "max-length 1000: when it is full, hints are refused"),
        ('{"expires":3600000}', "expires 3600000: RabbitMQ deletes the queue"),
    ],
)
def test_a_policy_that_drops_hints_is_a_finding(managed: Managed, definition: str, words: str) -> None:
    fresh = managed.fresh()

    clear = fresh.policy(definition)
    found, unborn = fresh.found(), fresh.found("unborn")
    clear()
    again = fresh.found()

    (warning,) = found
    assert f"on queue {fresh.namespace}.q.mail sets {words}" in warning
    assert [one for one in unborn if f"which will apply to queue {fresh.namespace}.q.unborn sets {words}" in one]
    assert again == []


def test_a_policy_that_overrides_where_dead_letters_go_matters_to_classic_queues_only(managed: Managed) -> None:
    quorum, classic = managed.fresh("quorum"), managed.fresh("classic")
    for one in (quorum, classic):
        one.policy('{"dead-letter-exchange":"elsewhere"}')

    assert quorum.found() == [], "the arguments that workq declares win"
    (warning,) = classic.found(queue_type="classic")
    assert "sets dead-letter-exchange elsewhere" in warning


def test_an_operator_policy_may_lower_what_workq_declares(managed: Managed) -> None:
    fresh = managed.fresh()
    higher = fresh.policy('{"delivery-limit":50}', operator=True)
    assert fresh.found() == []
    higher()

    fresh.policy('{"delivery-limit":3}', operator=True)

    (warning,) = fresh.found()
    assert "operator policy" in warning
    assert "sets delivery-limit 3" in warning


def test_a_policy_of_no_limit_leaves_the_one_that_workq_declares(managed: Managed) -> None:
    fresh = managed.fresh()
    if int(fresh.server.version.partition(".")[0]) < 4:
        with pytest.raises(ServerFailed, match="Validation failed"):
            fresh.policy('{"delivery-limit":-1}')
        return

    fresh.policy('{"delivery-limit":-1}')

    assert fresh.found() == []


def test_a_policy_on_the_ladder_of_delays_is_a_finding_and_one_on_others_queues_is_none(managed: Managed) -> None:
    fresh = managed.fresh()
    fresh.server.operator.set_policy(f"{fresh.namespace}-theirs", "^theirs[.]", '{"max-length":1}', apply_to="all")
    assert fresh.found() == []

    fresh.policy('{"message-ttl":1000}', pattern="delay[.]")

    found = fresh.found()
    assert len(found) == 9, "the rungs that wait for longer than a second"
    assert all(".delay." in one for one in found)


def test_levels_of_delays_are_told_and_a_policy_on_them_is_a_finding(managed: Managed) -> None:
    fresh = managed.fresh(ladder="levels:1s,5s,1m")
    assert [one for one in told(fresh.look(), "broker", Level.OK) if "up to 55 s late" in one]

    fresh.policy('{"message-ttl":1000}', pattern="level[.]")

    found = fresh.found()
    assert len(found) == 2, "the levels that wait for longer than a second"
    assert all(f"{fresh.namespace}.level." in one for one in found)


def test_the_policy_with_the_highest_priority_counts(managed: Managed) -> None:
    fresh, name = managed.fresh(), secrets.token_hex(2)
    pattern = f"^{fresh.namespace}[.]q[.]"
    fresh.server.operator.set_policy(f"{name}-low", pattern, '{"max-length":7}')
    fresh.server.operator.set_policy(f"{name}-high", pattern, '{"max-length":9}', priority=5)

    (warning,) = fresh.found()

    assert f"policy '{name}-high' on queue" in warning
    assert "max-length 9" in warning


def test_a_quorum_queue_without_a_leader_is_an_error(managed: Managed) -> None:
    fresh = managed.fresh()
    name = f"{fresh.namespace}.q.mail"

    fresh.server.evaluate(f'ra:stop_server(quorum_queues, {{list_to_atom("%2F_{name}"), node()}}).')

    checks = fresh.look("other")
    errors = told(checks, "broker", Level.ERROR)
    if tells_of_no_leader(fresh):
        (unchecked,) = told(checks, "broker", Level.UNCHECKED)
        assert "whether each quorum queue has a leader was not checked" in unchecked
        return
    assert errors
    # whether it counts as a member that is up, RabbitMQ finds out a little later
    assert re.search(rf"quorum queue {re.escape(name)} has no leader \([01] of 1 members are up\)", errors[0])


def test_a_memory_alarm_is_an_error_until_it_ends(managed: Managed) -> None:
    fresh = managed.fresh()
    fresh.server.operator.set_memory_limit(0.000001)
    try:
        raised = fresh.found()
    finally:
        fresh.server.operator.set_memory_limit(0.9)

    assert any("memory alarm on node" in one for one in raised)
    assert fresh.found() == []


def test_queues_that_somebody_else_declared_otherwise_are_errors(managed: Managed) -> None:
    fresh = managed.fresh()
    channel = fresh.channel()
    channel.queue_declare(f"{fresh.namespace}.q.volatile", durable=False)
    channel.queue_declare(f"{fresh.namespace}.q.endless", durable=True, arguments={"x-queue-type": "quorum"})

    found = fresh.found("mail", "volatile", "endless")
    channel.connection.close()

    assert any(f"{fresh.namespace}.q.volatile is not durable" in one for one in found)
    assert any(f"{fresh.namespace}.q.endless has no x-delivery-limit" in one for one in found)
    for name in ("volatile", "endless"):
        assert any(f"{fresh.namespace}.q.{name} exists with different arguments" in one for one in found)


def test_a_missing_quarantine_is_a_finding_and_is_not_created_by_looking(managed: Managed) -> None:
    fresh = managed.fresh()
    channel = fresh.channel()
    channel.queue_delete(f"{fresh.namespace}.quarantine")

    found, again = fresh.found(), fresh.found()
    channel.connection.close()

    (warning,) = found
    assert f"queue {fresh.namespace}.quarantine is missing" in warning
    assert again == found


def test_without_the_management_api_the_answer_says_what_was_not_checked(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = managed.fresh()
    fresh.policy('{"max-length":1}')
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WORKQ_BROKER_MANAGEMENT_URL", f"http://127.0.0.1:{probe.getsockname()[1]}")
        checks = fresh.look()

    (unchecked,) = told(checks, "broker", Level.UNCHECKED)
    assert "policies, alarms and members of queues were not checked" in unchecked
    assert "Connection refused" in unchecked
    by_hand = "rabbitmqctl list_policies -p /; rabbitmqctl list_queues -p / name policy state; rabbitmqctl status"
    assert unchecked.endswith(f"by hand: {by_hand}")
    assert findings(checks, "broker") == [], "what cannot be seen is no finding"


def test_where_something_else_answers_for_the_management_api_the_other_checks_are_told(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its URL has a port like that of RabbitMQ itself, which answers in its own tongue."""
    fresh = managed.fresh()

    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"AMQP\x00\x00\x09\x01")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=answer, args=(listening,), daemon=True)
        server.start()
        monkeypatch.setenv("WORKQ_BROKER_MANAGEMENT_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        checks = fresh.look()
        server.join(30.0)

    (unchecked,) = told(checks, "broker", Level.UNCHECKED)
    assert "does not speak HTTP" in unchecked
    assert told(checks, "broker", Level.OK), "RabbitMQ itself was looked at"


@pytest.mark.parametrize(
    "url",
    [
        "ann:canary-pw@rabbit:15672",
        "http://ann:canary-pw@rabbit:port",
        "http://[ann:canary-pw@rabbit",
        "ftp://ann:canary-pw@rabbit:15672",
        "http://",
        "http:///canary-pw",
    ],
)
def test_a_url_of_the_management_api_that_is_none_is_told_and_nothing_of_it_is_repeated(
    managed: Managed, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    fresh = managed.fresh()
    monkeypatch.setenv("WORKQ_BROKER_MANAGEMENT_URL", url)

    checks = fresh.look()

    (unchecked,) = told(checks, "broker", Level.UNCHECKED)
    assert "WORKQ_BROKER_MANAGEMENT_URL is not of the form http://user:password@host:15672" in unchecked
    assert "canary-pw" not in str(checks)
    assert told(checks, "broker", Level.OK), "RabbitMQ itself was looked at"


def test_a_user_without_the_right_is_told_which_one_and_the_password_is_not(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = managed.fresh()
    user = f"u{secrets.token_hex(3)}"
    fresh.server.operator.add_user(user, "canary-pw")
    fresh.server.operator.set_permissions(user, ".*", ".*", ".*")
    place = fresh.server.url.partition("@")[2]

    checks = fresh.look(url=f"amqp://{user}:canary-pw@{place}")

    (unchecked,) = told(checks, "broker", Level.UNCHECKED)
    assert f"rabbitmqctl set_user_tags {user} monitoring" in unchecked
    assert "canary-pw" not in str(checks)
    monkeypatch.setenv("WORKQ_BROKER_MANAGEMENT_URL", managed.api.replace("//", "//guest:guest@"))
    unchecked_as_guest = told(fresh.look(url=f"amqp://{user}:canary-pw@{place}"), "broker", Level.UNCHECKED)
    assert len(unchecked_as_guest) == tells_of_no_leader(fresh)
    assert "set_user_tags" not in str(unchecked_as_guest)
