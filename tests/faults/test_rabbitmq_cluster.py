"""A RabbitMQ of three nodes under a fleet: no task is lost. The long one is `make cluster-rabbitmq`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.contract.broker import hints, ids, until
from tests.faults.rabbitmq_trial import try_cluster
from tests.system.conftest import OpenLeg
from workq.broker import Consumer, Hint
from workq.broker.rabbitmq import RabbitMQBroker
from workq.broker.rabbitmq.topology import QueueType
from workq.config import Settings
from workq.diagnose.doctor.rabbitmq import look
from workq.lab.servers import RabbitMQ
from workq.lab.servers.rabbitmq_cluster import RabbitMQCluster, RabbitMQNode, start_rabbitmq_cluster

AWAY = "is on a node of RabbitMQ that is away"


def test_no_task_is_lost_while_the_leader_dies_and_a_majority_stands_still(
    rabbitmq_server: RabbitMQ,  # where RabbitMQ is missing, that one says so
    open_leg: OpenLeg,
    tmp_path: Path,
) -> None:
    with start_rabbitmq_cluster(tmp_path / "rabbitmq") as cluster:
        leg = open_leg("servers", divide=4.0, broker=cluster.url)

        found = try_cluster(leg, cluster, iter(["pause majority", "kill"]))

        assert found.is_right, found
        assert [step.what for step in found.steps] == ["pause majority", "kill"]
        check_what_is_on_a_node_that_dies_and_what_is_not(cluster)


def check_what_is_on_a_node_that_dies_and_what_is_not(cluster: RabbitMQCluster) -> None:
    """A node dies that has one of two classic queues, and the quarantine of an installation with quorum queues.

    The consumer of the classic queue gets `basic.cancel`, or loses its connection, and nobody can declare that queue.
    """

    def make_at(node: RabbitMQNode, namespace: str, queue: str, queue_type: QueueType) -> None:
        """RabbitMQ 3.10 has a classic queue where it was declared, a newer one where the fewest are."""
        url = cluster.url_of([node])
        with closing(RabbitMQBroker(url, namespace=namespace, queue_type=queue_type)) as there:
            sends(there, hints(queue, 1))

    with closing(RabbitMQBroker(cluster.url, namespace="classic", queue_type="classic")) as broker:
        consumer = broker.consumer(["mail"], name="one", prefetch=10)
        gets(consumer, sends(broker, hints("mail", 1)))
        home = cluster.home_of("classic.q.mail")
        assert home is not None
        another = next(node for node in cluster.nodes if node is not home)
        other = first_of(
            lambda name: cluster.home_of(f"classic.q.{name}") not in (home, None),
            lambda name: make_at(another, "classic", name, "classic"),
        )
        namespace = first_of(
            lambda name: cluster.home_of(f"{name}.quarantine") is home,
            lambda name: make_at(home, name, "mail", "quorum"),
        )
        consumer.serve(["mail", other])

        home.kill()
        until(lambda: AWAY in (consumer.trouble or ""), "the consumer tells why nothing comes")
        more = hints(other, 1)
        until(
            lambda: broker.publish([*hints("mail", 1), *more], deadline_s=5.0) == [False, True],
            "the other queue gets its hint, and this one says that it does not",
        )
        gets(consumer, more)
        checks = look(Settings(broker=cluster.url, namespace="classic", queue_type="classic"), ("mail", other))
        assert any("queue classic.q.mail is on a node that is away" in one.message for one in checks)
        with closing(RabbitMQBroker(cluster.url, namespace=namespace)) as quorum:  # connects while it is away
            gets(quorum.consumer(["mail"], name="two", prefetch=10), sends(quorum, hints("mail", 1)))
        checks = look(Settings(broker=cluster.url, namespace=namespace), ("mail",))
        assert any(f"queue {namespace}.quarantine is on a node that is away" in one.message for one in checks)
        home.start()

        until(lambda: consumer.trouble is None, "it has its subscription again")
        gets(consumer, sends(broker, hints("mail", 1)))


def sends(broker: RabbitMQBroker, sent: list[Hint]) -> list[Hint]:
    """These, when they are confirmed."""
    until(lambda: all(broker.publish(sent, deadline_s=5.0)), "it is confirmed")
    return sent


def gets(consumer: Consumer, sent: list[Hint]) -> None:
    """Fetch until these have come."""
    left = set(ids(sent))

    def is_there() -> bool:
        deliveries = consumer.fetch(ids_max=100, wait_s=0.2)
        consumer.ack(deliveries)
        left.difference_update(ids(deliveries))
        return not left

    until(is_there, "it has come")


def first_of(is_so: Callable[[str], bool], make: Callable[[str], object]) -> str:
    """The first name of which that is so, once it is made."""
    for number in range(10):
        name = f"number{number}"
        make(name)
        if is_so(name):
            return name
    raise AssertionError("RabbitMQ puts all classic queues on one node")
