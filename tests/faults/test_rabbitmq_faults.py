"""RabbitMQ killed, stopped, blocked, cut off and misconfigured, on a server of its own.

Nothing is timed here but bounds: each call must come back within its own deadline, with room for a noisy machine.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pika
import pytest

from tests.conftest import Private
from tests.contract.broker import LONG_S, collect, hints, ids, until
from tests.faults.rabbitmq import FULL, ask
from tests.system.conftest import OpenLeg
from tests.system.fleet import REPOSITORY, ROOM_S
from workq.broker import Hint
from workq.broker.rabbitmq import RabbitMQBroker
from workq.broker.rabbitmq.connection import Link
from workq.broker.rabbitmq.nodes import Address, Nodes
from workq.config import QueueType, Settings
from workq.diagnose.doctor.check import Level
from workq.diagnose.doctor.rabbitmq import look
from workq.errors import BrokerUnavailable, ConfigError
from workq.lab.proxy import FaultProxy
from workq.lab.servers import RabbitMQ, start_rabbitmq
from workq.lab.servers.server import free_port
from workq.recovery.sweep import sweep
from workq.values.codec import new_task_id

CANARY = "canary-81d0"
SLOW_S = 300.0
"""A machine that needs longer is too slow to tell anything."""

_numbers = itertools.count()


@pytest.fixture
def namespace() -> str:
    return f"f{next(_numbers)}"


@pytest.fixture
def broker(server: RabbitMQ, namespace: str) -> Iterator[RabbitMQBroker]:
    broker = RabbitMQBroker(server.url, namespace=namespace, heartbeat_s=1, confirm_s=1)
    yield broker
    broker.close()


@pytest.fixture
def nobody() -> int:
    """A port where nothing listens."""
    return free_port()


def publish_until_confirmed(broker: RabbitMQBroker, sent: list[Hint]) -> None:
    until(lambda: all(broker.publish(sent, deadline_s=2)), "the hints are confirmed")


def let_quorum_queues_settle(server: RabbitMQ) -> None:
    """Have RabbitMQ write down which quorum queues it has.

    Up to 3.10 at least it does so about a second later: a quorum queue that is younger when the broker is killed finds
    no leader afterwards, ever (rabbitmq-server#10070). Nobody can help that from outside; these tests are not about it.
    """
    server.evaluate("[dets:sync(T) || T <- dets:all()].")


# Down and up again


def test_while_the_broker_is_down_publish_answers_false_and_the_consumer_comes_back_by_itself(
    server: RabbitMQ, broker: RabbitMQBroker
) -> None:
    consumer = broker.consumer(["mail"], name="one", prefetch=10)
    publish_until_confirmed(broker, hints("mail", 1))
    assert len(collect(consumer, 1)) == 1
    let_quorum_queues_settle(server)

    server.kill()
    began = time.monotonic()
    answers = [broker.publish(hints("mail", 2), deadline_s=1.0) for _ in range(3)]
    took_s = time.monotonic() - began
    nothing = consumer.fetch(ids_max=1, wait_s=0.1)
    with pytest.raises(BrokerUnavailable, match="connection refused"):
        broker.depths(["mail"])
    until(lambda: consumer.trouble is not None, "the consumer knows")
    server.start()

    assert answers == [[False, False]] * 3
    assert took_s < 3.0 + ROOM_S
    assert nothing == []
    sent = hints("mail", 3)
    publish_until_confirmed(broker, sent)
    until(lambda: consumer.trouble is None, "the consumer is back")
    assert set(ids(collect(consumer, 3))) >= set(ids(sent))


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_no_confirmed_hint_is_lost_when_the_broker_is_killed_amid_publishing(
    server: RabbitMQ, namespace: str, queue_type: QueueType
) -> None:
    broker = RabbitMQBroker(server.url, namespace=namespace, queue_type=queue_type)
    confirmed: list[Hint] = []
    started = threading.Event()
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set():
            page = hints("mail", 200)
            for hint, stored in zip(page, broker.publish(page, deadline_s=5), strict=True):
                if stored:
                    confirmed.append(hint)
            if len(confirmed) > 1000:
                started.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        assert started.wait(SLOW_S), "a thousand hints were not confirmed: slow, and none is lost yet"
        let_quorum_queues_settle(server)
        server.kill()
    finally:
        stop.set()
        publisher.join()
    server.start()

    missing, [last] = set(ids(confirmed)), hints("mail", 1)
    consumer = broker.consumer(["mail"], name="one", prefetch=500)
    began = time.monotonic()
    while not all(broker.publish([last], deadline_s=5)):
        assert time.monotonic() - began < SLOW_S, "the broker does not come back: slow, and none is lost yet"
    is_over = False
    while not is_over:  # the queue keeps the order: whatever was confirmed before the last has come before it
        page = consumer.fetch(ids_max=500, wait_s=1.0)
        consumer.ack(page)
        is_over = not set(ids([last])).isdisjoint(ids(page))
        missing.difference_update(ids(page))
        assert time.monotonic() - began < SLOW_S, f"{len(missing)} hints are still to come: slow, none is lost yet"
    assert not missing, f"the last has come, and {len(missing)} before it have not"
    broker.close()


def test_all_connections_closed_by_an_operator_come_back(server: RabbitMQ, broker: RabbitMQBroker) -> None:
    consumer = broker.consumer(["mail"], name="one", prefetch=10)
    sent = hints("mail", 3)
    publish_until_confirmed(broker, sent)
    held = collect(consumer, 3, ack=False)

    server.operator.close_connections("by the test")
    again = collect(consumer, 3, ack=False)
    consumer.ack(held)  # of the connection before: an ack with these numbers would hit other messages

    assert ids(again) == ids(sent)
    assert all(delivery.is_redelivered for delivery in again)
    consumer.close()
    rest = collect(broker.consumer(["mail"], name="two", prefetch=10), 3)
    assert ids(rest) == ids(sent)
    assert "unknown delivery tag" not in server.log.read_text()


def test_a_connection_that_ends_at_once_is_tried_again_with_growing_pauses() -> None:
    """No busy loop: an accepting socket that hangs up sees a handful of attempts, not thousands."""
    attempts: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LONG_S)

        def hang_up() -> None:
            while len(attempts) < 6:
                connection, _ = listener.accept()
                attempts.append(time.monotonic())
                connection.close()

        answering = threading.Thread(target=hang_up)
        answering.start()
        broker = RabbitMQBroker(f"amqp://127.0.0.1:{listener.getsockname()[1]}/")
        consumer = broker.consumer(["mail"], name="one", prefetch=1)
        answering.join(2 * LONG_S)
        consumer.close()

    assert len(attempts) == 6
    gaps = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert all(gap >= bound for gap, bound in zip(gaps, [0.1, 0.2, 0.4, 0.8, 1.6], strict=True))


# Stopped, not dead


def test_a_stopped_broker_delays_nobody_beyond_the_own_deadline(server: RabbitMQ, broker: RabbitMQBroker) -> None:
    consumer = broker.consumer(["mail"], name="one", prefetch=10)
    idle = broker.consumer(["mail"], name="two", prefetch=10)
    publish_until_confirmed(broker, hints("mail", 1))
    collect(consumer, 1)

    server.pause()
    try:
        began = time.monotonic()
        answers = broker.publish(hints("mail", 2), deadline_s=1.0)
        published_s = time.monotonic() - began
        with pytest.raises(BrokerUnavailable, match="did not answer in time"):
            broker.depths(["mail"])
        with pytest.raises(BrokerUnavailable, match="did not answer in time"):
            broker.check()
        asked_s = time.monotonic() - began - published_s
        consumer.close()
        closed_s = time.monotonic() - began - published_s - asked_s
        until(lambda: idle.trouble is not None, "the heartbeat is missed")
        broker.close()
    finally:
        server.resume()

    assert answers == [False, False]
    assert published_s < 1.0 + ROOM_S
    assert asked_s < 6.0 + ROOM_S
    assert closed_s < 2.0 + ROOM_S


def test_after_a_stop_everything_goes_on(server: RabbitMQ, broker: RabbitMQBroker) -> None:
    consumer = broker.consumer(["mail"], name="one", prefetch=10)
    publish_until_confirmed(broker, hints("mail", 1))
    assert len(collect(consumer, 1)) == 1

    server.pause()
    try:
        assert broker.publish(hints("mail", 1), deadline_s=0.5) == [False]
    finally:
        server.resume()

    sent = hints("mail", 2)
    publish_until_confirmed(broker, sent)
    found: set[str] = set()

    def both_arrived() -> bool:
        found.update(ids(collect(consumer, 1)))
        return found.issuperset(ids(sent))

    until(both_arrived, "both arrive")


def test_a_memory_alarm_stops_publishing_but_not_consuming(server: RabbitMQ, broker: RabbitMQBroker) -> None:
    consumer = broker.consumer(["mail"], name="one", prefetch=1)
    sent = hints("mail", 5)
    publish_until_confirmed(broker, sent)

    server.operator.set_memory_limit(0.0001)
    try:
        answers = [broker.publish(hints("mail", 2), deadline_s=0.5) for _ in range(4)]
        depth = broker.depths(["mail"])["mail"].ready
        found = collect(consumer, 5)
    finally:
        server.operator.set_memory_limit(0.6)

    assert answers == [[False, False]] * 4
    assert depth >= 4
    assert ids(found) == ids(sent)
    publish_until_confirmed(broker, hints("mail", 1))


WITHOUT_SOCKETS = """
import os, resource, sys, time
from workq.broker import Hint
from workq.broker.rabbitmq import RabbitMQBroker
from workq.values.codec import new_task_id
from workq.errors import BrokerUnavailable

def until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)

def sent():
    return broker.publish([Hint("mail", (new_task_id(),))], deadline_s=2.0) == [True]

broker = RabbitMQBroker(sys.argv[1], namespace=sys.argv[2], heartbeat_s=1, confirm_s=1)
consumer = broker.consumer(["mail"], name="one", prefetch=50)
until(sent)
until(lambda: consumer.fetch(ids_max=50, wait_s=0.1))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
links = [broker._publisher.link, consumer.link]
for link in links:
    link.call(lambda link=link: link.recycle("as if the server had closed it"))
until(lambda: all("Too many open files" in (link.trouble or "") for link in links))
try:
    broker.check()
except BrokerUnavailable as error:
    print("unavailable:", error)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
until(sent)
until(lambda: consumer.fetch(ids_max=50, wait_s=0.1))
broker.close()
print("works again")
"""


def test_a_process_without_sockets_connects_again_once_it_has_some(server: RabbitMQ, namespace: str) -> None:
    command = [sys.executable, "-c", WITHOUT_SOCKETS, server.url, namespace]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)

    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["works again"]), f"{ran.stdout}\n{ran.stderr}"
    assert "unavailable: broker: the connection to RabbitMQ at " in ran.stdout
    assert "Too many open files" in ran.stdout


def test_while_publishers_are_blocked_a_pass_of_the_sweep_waits_for_one_deadline_not_for_one_a_line(
    server: RabbitMQ, open_leg: OpenLeg
) -> None:
    """An alarm: whoever asks gets an answer, and whoever publishes none."""
    lines, confirm_s = 12, 5.0
    leg = open_leg("servers", broker=server.url)
    stores, times = leg.app.stores, leg.app.settings.times
    settings = replace(leg.app.settings, times=replace(times, confirm_s=confirm_s, unpublished_grace_s=1.0))
    for number in range(lines):
        leg["note"].options(queue=f"line{number}").enqueue(number)
    leg.app.producer.relay.flush(timeout_s=LONG_S)

    server.operator.set_memory_limit(0.0001)
    try:
        until(lambda: not all(stores.broker.publish(hints("mail", 1), deadline_s=1.0)), "it is blocked")
        leg["note"].enqueue(99)
        time.sleep(1.5)  # the grace
        began = time.monotonic()
        swept = sweep(stores, settings)
        took_s = time.monotonic() - began
    finally:
        server.operator.set_memory_limit(0.6)

    assert (swept.markers, swept.unconfirmed) == (lines, 1), "each would have cost a deadline"
    assert took_s < lines / 2 * confirm_s
    until(lambda: sweep(stores, settings).unconfirmed == 0, "the next passes make up for it")


def test_a_queue_without_a_leader_is_told_and_stops_no_other_queue(
    server: RabbitMQ, namespace: str, broker: RabbitMQBroker
) -> None:
    """The broker lives, but neither confirms nor delivers for that queue (its majority is gone)."""
    publish_until_confirmed(broker, [*hints("mail", 1), *hints("other", 1)])
    consumer = broker.consumer(["mail"], name="one", prefetch=10)
    assert len(collect(consumer, 1)) == 1
    member = f"{{'%2F_{namespace}.q.mail', node()}}"

    server.evaluate(f"ra:stop_server(quorum_queues, {member}).")
    try:
        lost = broker.publish(hints("mail", 3), deadline_s=1.0)
        publish_until_confirmed(broker, hints("other", 3))
        newcomer = broker.consumer(["mail"], name="two", prefetch=10)
        until(lambda: newcomer.trouble is not None, "the newcomer tells that it gets no answer")
    finally:
        server.evaluate(f"ra:restart_server(quorum_queues, {member}).")

    assert lost == [False] * 3
    sent = hints("mail", 3)
    publish_until_confirmed(broker, sent)
    consumer.close()
    found: set[str] = set()

    def all_arrived() -> bool:
        found.update(ids(collect(newcomer, 1)))
        return found.issuperset(ids(sent))

    until(all_arrived, "the newcomer gets what was sent")


def test_a_queue_that_answers_nothing_is_told_by_who_had_a_subscription_to_it(
    server: RabbitMQ, namespace: str, broker: RabbitMQBroker
) -> None:
    publish_until_confirmed(broker, hints("mail", 1))
    consumer = broker.consumer(["mail"], name="one", prefetch=10)
    assert len(collect(consumer, 1)) == 1
    member = f"{{'%2F_{namespace}.q.mail', node()}}"

    server.evaluate(f"sys:suspend({member}).")
    try:
        consumer.set_prefetch(20)  # as an idle worker changes it: one subscription ends, another begins
        until(lambda: "does not answer about queue" in (consumer.trouble or ""), "it tells what it waits for")
    finally:
        server.evaluate(f"sys:resume({member}).")

    until(lambda: consumer.trouble is None, "it has its subscription again")
    sent = hints("mail", 1)
    publish_until_confirmed(broker, sent)
    assert ids(collect(consumer, 1)) == ids(sent)


# Damage by operators


def test_a_deleted_exchange_of_the_delays_is_declared_again(
    server: RabbitMQ, namespace: str, broker: RabbitMQBroker
) -> None:
    consumer = broker.consumer(["mail"], name="one", prefetch=10)
    publish_until_confirmed(broker, hints("mail", 1, delay_s=0.1))
    assert len(collect(consumer, 1)) == 1
    ask(server, lambda channel: channel.exchange_delete(f"{namespace}.delay.01"))
    ask(server, lambda channel: channel.queue_delete(f"{namespace}.delay.00"))
    sent = hints("mail", 2, delay_s=0.3)

    publish_until_confirmed(broker, sent)

    assert set(ids(collect(consumer, 2))) == set(ids(sent))


def test_a_queue_with_other_arguments_is_a_clear_error_and_is_left_alone(
    server: RabbitMQ, namespace: str, broker: RabbitMQBroker
) -> None:
    name = f"{namespace}.q.mail"
    ask(server, lambda channel: channel.queue_declare(name, durable=True, arguments={"x-max-length": 7}))
    ask(server, lambda channel: channel.basic_publish("", name, b"kept"))

    for _ in range(2):
        with pytest.raises(ConfigError, match=f"queue {name} exists with different arguments"):
            broker.publish(hints("mail", 1), deadline_s=LONG_S)
    consumer = broker.consumer(["mail"], name="one", prefetch=10)
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"queue {name} exists with different arguments"):
            consumer.fetch(ids_max=1, wait_s=LONG_S)

    assert broker.publish(hints("other", 1), deadline_s=LONG_S) == [True]
    assert broker.depths(["mail"])["mail"].ready == 1


def test_a_user_without_rights_gets_a_clear_error(server: RabbitMQ, namespace: str) -> None:
    user = f"reader-{namespace}"
    server.operator.add_user(user, CANARY)
    server.operator.set_permissions(user, "nothing", ".*", ".*")
    broker = RabbitMQBroker(f"amqp://{user}:{CANARY}@127.0.0.1:{server.port}/", namespace=namespace)

    with pytest.raises(ConfigError, match="may not be used by this user") as caught:
        broker.publish(hints("mail", 1), deadline_s=LONG_S)

    assert CANARY not in str(caught.value)
    broker.close()


def test_a_hint_that_comes_back_too_often_leaves_the_queue_for_the_quarantine(
    server: RabbitMQ, namespace: str, broker: RabbitMQBroker
) -> None:
    publish_until_confirmed(broker, hints("mail", 1))

    for n in range(21):
        consumer = broker.consumer(["mail"], name=f"victim.{n}", prefetch=1)
        assert len(collect(consumer, 1, ack=False)) == 1
        consumer.close()

    until(
        lambda: ask(server, lambda channel: channel.basic_get(f"{namespace}.quarantine", auto_ack=True))[0] is not None,
        "it is in the quarantine",
    )
    assert broker.depths(["mail"])["mail"].ready == 0


def test_deliveries_that_lie_in_the_buffer_for_too_long_are_taken_back_and_come_again(
    server: RabbitMQ, broker: RabbitMQBroker
) -> None:
    """The broker's `consumer_timeout` (30 minutes by default) closes the channel, also for what was never fetched."""
    limits = "[application:set_env(rabbit, Key, {}) || Key <- [channel_tick_interval, consumer_timeout]]."
    server.evaluate(limits.format(1000))
    try:
        sent = hints("mail", 2)
        publish_until_confirmed(broker, sent)
        consumer = broker.consumer(["mail"], name="one", prefetch=10)
        until(lambda: consumer.fetch(ids_max=0, wait_s=0) != [], "the first is fetched")

        until(lambda: consumer.trouble is not None, "the channel was closed")

        again = collect(consumer, 2)
        assert ids(again) == ids(sent)
        assert all(delivery.is_redelivered for delivery in again)
    finally:
        server.evaluate(limits.format(1_800_000))


# Why there is no connection: one message for each reason


def trouble(url: str) -> str:
    broker = RabbitMQBroker(url)
    with pytest.raises(BrokerUnavailable) as caught:
        broker.check()
    assert broker.publish([Hint("mail", (new_task_id(),))], deadline_s=0.2) == [False]
    consumer = broker.consumer(["mail"], name="one", prefetch=1)
    until(lambda: consumer.trouble is not None, "the consumer knows")
    broker.close()
    message = str(caught.value)
    assert CANARY not in f"{message} {consumer.trouble}"
    assert message.count("\n") == 0
    return message


def test_an_unknown_host_is_called_unknown() -> None:
    assert "the host 'no-such-host.invalid'" in trouble(f"amqp://u:{CANARY}@no-such-host.invalid/")


def test_a_closed_port_is_called_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    assert "nothing listens at" in trouble(f"amqp://u:{CANARY}@127.0.0.1:{port}/")


def test_a_wrong_password_is_called_wrong(server: RabbitMQ) -> None:
    assert "wrong user or password" in trouble(f"amqp://guest:{CANARY}@127.0.0.1:{server.port}/")


def test_a_missing_vhost_is_named(server: RabbitMQ) -> None:
    assert "has no vhost 'no/such'" in trouble(f"amqp://guest:guest@127.0.0.1:{server.port}/no%2Fsuch")


def test_a_vhost_without_rights_is_named(server: RabbitMQ, namespace: str) -> None:
    server.operator.add_user(f"stranger-{namespace}", CANARY)

    assert "may not use it" in trouble(f"amqp://stranger-{namespace}:{CANARY}@127.0.0.1:{server.port}/")


def test_a_silent_server_is_called_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"amqp://u:{CANARY}@127.0.0.1:{listener.getsockname()[1]}/"

        assert "did not answer in time" in trouble(url)


def test_a_quorum_queue_that_was_full_by_a_policy_takes_hints_again(
    server: RabbitMQ, broker: RabbitMQBroker, namespace: str
) -> None:
    """RabbitMQ 3.10 refuses a channel that it has refused once, also when there is room."""
    publish_until_confirmed(broker, hints("other", 1))
    server.operator.set_policy(namespace, f"^{namespace}[.]q[.]mail$", FULL)
    until(lambda: broker.publish(hints("mail", 1), deadline_s=LONG_S) == [False], "it is full")

    publish_until_confirmed(broker, hints("other", 1))
    server.operator.clear_policy(namespace)

    publish_until_confirmed(broker, hints("mail", 1))
    publish_until_confirmed(broker, hints("other", 1))


# Several hosts in one URL


def test_of_several_hosts_the_one_that_answers_is_used(server: RabbitMQ, namespace: str, nobody: int) -> None:
    """One has nobody listening, one accepts and is silent, as a stopped node does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dead, hanging = f"127.0.0.1:{nobody}", f"127.0.0.1:{silent.getsockname()[1]}"
        url = f"amqp://guest:guest@{dead},{hanging},127.0.0.1:{server.port}/"
        with closing(RabbitMQBroker(url, namespace=namespace)) as broker:
            sent = hints("mail", 2)

            publish_until_confirmed(broker, sent)

            assert ids(collect(broker.consumer(["mail"], name="one", prefetch=10), 2)) == ids(sent)
            assert broker.check() == f"RabbitMQ {server.version}"
            assert broker.depths(["mail"])["mail"].consumers == 1


def test_a_lost_connection_goes_on_at_another_host(server: RabbitMQ, namespace: str) -> None:
    """Whichever of the two it is at: that one is cut, and refuses from then on."""
    with FaultProxy.before(server.url) as one, FaultProxy.before(server.url) as two:
        url = f"amqp://guest:guest@127.0.0.1:{one.port},127.0.0.1:{two.port}/"
        with closing(RabbitMQBroker(url, namespace=namespace)) as broker:
            consumer = broker.consumer(["mail"], name="one", prefetch=10)
            publish_until_confirmed(broker, hints("mail", 1))
            collect(consumer, 1)
            used, other = (one, two) if one.connections else (two, one)
            at_first = (used.connections, other.connections)

            used.refuse()
            used.cut()
            sent = hints("mail", 2)
            publish_until_confirmed(broker, sent)

            assert at_first == (2, 0)
            assert set(ids(collect(consumer, 2))) >= set(ids(sent))
            assert other.connections == 2


def test_doctor_says_of_each_host_whether_it_answers(server: RabbitMQ, nobody: int) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{nobody},127.0.0.1:{server.port}/"

    checks = list(look(Settings.load(broker=url), ()))

    told = {(check.level, check.message) for check in checks}
    assert (Level.OK, f"amqp://guest:***@127.0.0.1:{server.port}/: RabbitMQ {server.version}") in told
    [warning] = [message for level, message in told if level is Level.WARNING]
    assert warning.startswith(f"one of 2 hosts: broker: nothing listens at amqp://guest:***@127.0.0.1:{nobody}/")


def test_hosts_that_all_fail_are_told_with_their_reasons(nobody: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = silent.getsockname()[1]

        message = trouble(f"amqp://u:{CANARY}@127.0.0.1:{nobody},127.0.0.1:{hanging}/")

    assert f"nothing listens at amqp://u:***@127.0.0.1:{nobody}/" in message
    assert f"RabbitMQ at amqp://u:***@127.0.0.1:{hanging}/ did not answer in time" in message


def test_tls_on_a_port_without_it_is_told_apart(server: RabbitMQ) -> None:
    assert "TLS" in trouble(f"amqps://u:{CANARY}@127.0.0.1:{server.port}/")


def test_closing_before_the_connection_is_made_is_bounded() -> None:
    class Idle:
        def opened(self, connection: pika.SelectConnection) -> None:
            raise AssertionError("nobody answers")

        def lost(self, *, was_open: bool) -> None:
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address.parse(f"amqp://127.0.0.1:{listener.getsockname()[1]}/")
        link = Link(Nodes(address, heartbeat_s=20), Idle(), name="test")
        link.start()
        listener.accept()[0].close()
        began = time.monotonic()

        link.close(within_s=1.0)

        assert time.monotonic() - began < 1.0 + ROOM_S


def test_amqps_verifies_who_answers_and_the_command_line_says_what_to_do(private: Private, authority: Path) -> None:
    """An unknown authority and a wrong name are refused; neither is passed over in silence."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.cacertfile = {authority / 'ca.pem'}",
        f"ssl_options.certfile = {authority / 'server.pem'}",
        f"ssl_options.keyfile = {authority / 'server.key'}",
        "ssl_options.verify = verify_none",
    ]
    trusting = f"?cacertfile={authority / 'ca.pem'}"
    with private(start_rabbitmq, options=options):
        unknown = RabbitMQBroker(f"amqps://guest:canary-7d1f@127.0.0.1:{port}/")
        misnamed = RabbitMQBroker(f"amqps://guest:guest@localhost:{port}/{trusting}")
        right = RabbitMQBroker(f"amqps://guest:guest@127.0.0.1:{port}/{trusting}")

        with pytest.raises(BrokerUnavailable, match=r"could not be verified by TLS.*\?cacertfile="):
            unknown.check()
        with pytest.raises(BrokerUnavailable, match="could not be verified by TLS"):
            misnamed.check()
        assert right.check().startswith("RabbitMQ")
        ran = subprocess.run(
            [sys.executable, "-m", "workq", "-q", "doctor"],
            env={**os.environ, "WORKQ_LEDGER_URL": f"sqlite:///{authority / 'q.db'}"}
            | {"WORKQ_BROKER_URL": f"amqps://guest:canary-7d1f@127.0.0.1:{port}/"},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 4
        assert "could not be verified by TLS" in ran.stdout + ran.stderr
        assert "canary-7d1f" not in ran.stdout + ran.stderr
        for broker in (unknown, misnamed, right):
            broker.close()
