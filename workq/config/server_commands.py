"""Commands of the servers' own programs, as a person can paste them: with the server's place, and each argument quoted.

None has a password in it. Where a login is needed, `redis-cli` asks for the password, and Kafka's programs read it from
the file of `--command-config`, which only a person can name. RabbitMQ's programs speak to the node of their own host.
"""

from __future__ import annotations

import re
import shlex
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from workq.config.place import UrlPlace, shown

_REDIS_PORT: Final = 6379
_REDIS_FILES: Final = {"ssl_ca_certs": "--cacert", "ssl_certfile": "--cert", "ssl_keyfile": "--key"}
"""Options of a Redis URL, each as `redis-cli` has it."""


def kafka_command(place: UrlPlace, program: str, *arguments: object) -> str:
    """`kafka-topics.sh` and the like, at the first node of a URL."""
    return _command(program, "--bootstrap-server", shown(*place.hosts[0]), *arguments)


def rabbitmq_command(vhost: str, program: str, verb: str, *arguments: object) -> str:
    """`rabbitmqctl` or `rabbitmq-queues`, about one vhost: without its name they take `/`."""
    return _command(program, verb, "-p", vhost, *arguments)


def rabbitmq_grant(vhost: str, user: str, namespace: str) -> str:
    """What gives a user all that producers and workers of a namespace need."""
    ours = f"^{re.escape(namespace)}\\."
    return rabbitmq_command(vhost, "rabbitmqctl", "set_permissions", user, ours, f"{ours}|^amq\\.default$", ours)


def rabbitmq_growth(vhost: str, node: str, queue: str) -> str:
    """How a quorum queue gets a member on another node: names are patterns there."""
    patterns = ("--vhost-pattern", f"^{re.escape(vhost)}$", "--queue-pattern", f"^{re.escape(queue)}$")
    return _command("rabbitmq-queues", "grow", node, "all", *patterns)


def redis_command(url: str, *arguments: object) -> str:
    """`redis-cli`, at the one server of a URL."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    at: list[object]
    if parts.scheme == "unix":
        at = ["-s", unquote(parts.path)]
        database = query.get("db", ["0"])[0]
    else:
        at = ["-h", parts.hostname or "localhost", "-p", parts.port or _REDIS_PORT]
        database = parts.path.strip("/") or query.get("db", ["0"])[0]
    if parts.scheme == "rediss":
        at.append("--tls")
        for name, flag in _REDIS_FILES.items():
            at += [flag, query[name][0]] if name in query else []
    if database != "0":
        at += ["-n", database]
    user = unquote(parts.username) if parts.username else query.get("username", [None])[0]
    at += _redis_login(user, has_password=bool(parts.password) or "password" in query)
    return _command("redis-cli", *at, *arguments)


def redis_cluster_check(host: str, *, user: str | None, has_password: bool) -> str:
    """How `redis-cli` is asked whether the nodes of a cluster agree. `host`: with its port, of one of them."""
    return _command("redis-cli", *_redis_login(user, has_password=has_password), "--cluster", "check", host)


def _redis_login(user: str | None, *, has_password: bool) -> list[str]:
    return [*(["--user", user] if user else []), *(["--askpass"] if has_password else [])]


def _command(*words: object) -> str:
    return shlex.join(str(one) for one in words)
