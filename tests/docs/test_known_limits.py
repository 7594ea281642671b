"""The known limit that the README admits, and the way out that docs/explanation/guarantees.md gives, on real servers.

When this version learns to prove the loss of a hint by itself, the first assertion fails: then the pages must say so.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.page import blocks
from workq import Times, WorkQueue
from workq.ledger import migrate
from workq.sweep import sweep
from workq.testing.servers import PostgreSQL, RabbitMQ, Redis


@pytest.fixture
def wq(rabbitmq_server: RabbitMQ, redis_server: Redis, postgres_server: PostgreSQL) -> Iterator[WorkQueue]:
    """A queue on servers, in a namespace of its own."""
    queue = WorkQueue(
        ledger=postgres_server.create_database(f"limit_{secrets.token_hex(4)}"),
        broker=rabbitmq_server.url,
        inflight=redis_server.url,
        namespace=f"d{secrets.token_hex(4)}",
        times=Times().divided_by(10),
    )
    database = queue.database()
    migrate.migrate(database)
    database.close()
    yield queue
    queue.close()


def test_a_hint_lost_by_rabbitmq_is_published_again_by_the_statement_that_the_page_gives(
    wq: WorkQueue, rabbitmq_server: RabbitMQ, tmp_path: Path
) -> None:
    @wq.task(name="docs.lost", queue="lost")
    def lost() -> None: ...

    def hints() -> int:
        return wq.stores.broker.depths(["lost"])["lost"].ready

    lost.enqueue()
    assert wq.producer.relay.flush(timeout_s=30)
    assert hints() == 1
    rabbitmq_server.ctl("purge_queue", f"{wq.settings.namespace}.q.lost")
    assert hints() == 0

    assert sweep(wq.stores, wq.settings).relayed == 0, "the sweep finds lost hints by itself now: change the pages"

    [statement] = [one.text for one in blocks("docs/explanation/guarantees.md") if one.language == "sql"]
    database = wq.database()
    database.run(lambda tx: tx.exec_driver_sql(statement.replace("workq_", f"{wq.settings.namespace}_")))
    database.close()
    clock = wq.stores.ledger.clock()
    while (wq.stores.ledger.clock() - clock).total_seconds() <= wq.settings.times.unpublished_grace_s:
        continue  # the grace counts from when it began to wait, by the ledger's clock

    assert sweep(wq.stores, wq.settings).relayed == 1
    assert hints() == 1
