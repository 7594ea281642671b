"""A RabbitMQ of three nodes under a fleet: no task is lost. The long one is `make cluster-rabbitmq`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.contract.broker import collect, hints, ids, until
from tests.faults.rabbitmq_trial import try_cluster
from tests.system.conftest import OpenLeg
from workq.broker.rabbitmq import RabbitMQBroker
from workq.lab.servers import RabbitMQ
from workq.lab.servers.rabbitmq_cluster import RabbitMQCluster, start_rabbitmq_cluster


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
        check_a_classic_queue_whose_node_dies_is_told_and_comes_back(cluster)


def check_a_classic_queue_whose_node_dies_is_told_and_comes_back(cluster: RabbitMQCluster) -> None:
    """Its consumers get `basic.cancel`, or lose their connection. It cannot be declared while its node is away."""
    with closing(RabbitMQBroker(cluster.url, namespace="classic", queue_type="classic")) as broker:
        consumer = broker.consumer(["mail"], name="one", prefetch=10)
        sent = hints("mail", 1)
        until(lambda: broker.publish(sent, deadline_s=5.0) == [True], "it is confirmed")
        collect(consumer, 1)
        places = cluster.nodes[0].ctl("list_queues", "name", "pid", "--no-table-headers")
        [place] = [line for line in places.splitlines() if line.startswith("classic.q.mail")]
        home = next(node for node in cluster.nodes if node.node in place)

        home.kill()
        until(lambda: consumer.trouble is not None, "the consumer tells why nothing comes")
        answers = broker.publish(hints("mail", 1), deadline_s=1.0)
        home.start()

        assert answers == [False]
        until(lambda: consumer.trouble is None, "it has its subscription again")
        more = hints("mail", 1)
        until(lambda: broker.publish(more, deadline_s=5.0) == [True], "it is confirmed again")
        assert set(ids(collect(consumer, 1))) <= {*ids(sent), *ids(more)}
