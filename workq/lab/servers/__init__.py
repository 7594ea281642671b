"""Private servers for tests, RabbitMQ to Kafka: started here, and gone afterwards.

    with start_redis() as redis:
        client = connect(redis.url)
        redis.kill()        # as if the machine lost power, but what the server wrote is kept
        redis.start()       # the same port, the same data

Each server runs the Debian binary, or jars (`jars.py`), in a folder of its own, on free loopback ports. No service of
the machine is used, started or stopped, and no configuration file of the machine is read. A server is ready only when
the process that answers on the port is proved to be ours, so a port that two runs chose at once leads to another try,
never to somebody else's server.

What happens on each failure:

- The binary or the jars are not there: `ServerMissing`, naming the package or `make servers`. Nothing was started.
- The server ends while it starts, or never answers: `ServerFailed` with the last lines of its log. If it was the first
  start, nothing is left behind.
- The test process ends without `stop()`, even by SIGKILL: a guardian process kills the server with all its children,
  and removes the folder (`guardian.py` says how).

Durability is as in production (`fsync` on, append-only file on): what a server acknowledged survives `kill()`. A crash
of the machine is not simulated: the page cache survives.
"""

from __future__ import annotations

from workq.lab.servers.artemis import Artemis, start_artemis
from workq.lab.servers.databases import MariaDB, PgBouncer, PostgreSQL, start_mariadb, start_pgbouncer, start_postgres
from workq.lab.servers.kafka import Kafka, start_kafka
from workq.lab.servers.programs import ServerMissing
from workq.lab.servers.rabbitmq import RabbitMQ, start_rabbitmq
from workq.lab.servers.redis import Redis, start_redis
from workq.lab.servers.server import Server, ServerFailed

__all__ = [
    "Artemis",
    "Kafka",
    "MariaDB",
    "PgBouncer",
    "PostgreSQL",
    "RabbitMQ",
    "Redis",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "start_artemis",
    "start_kafka",
    "start_mariadb",
    "start_pgbouncer",
    "start_postgres",
    "start_rabbitmq",
    "start_redis",
]
