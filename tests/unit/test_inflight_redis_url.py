"""What a Redis URL may say, and what is refused before anything is contacted (B7, B9, B12)."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from workq.errors import ConfigError
from workq.inflight.redis import RedisInFlight


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/0",
        "redis://localhost",
        "redis://user:p%40ss@localhost:6379/15",
        "rediss://[::1]:6380/2?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=yes",
        "unix:///run/redis.sock?db=3",
        "redis://localhost/0?protocol=2&client_name=workq&max_connections=4",
        "redis+cluster://localhost:7000,localhost:7001",
        "redis+cluster://user:p%40ss@a:7000,[::1]:7001,c/0?protocol=2",
        "rediss+cluster://a:7000?ssl_ca_certs=/etc/ca.pem",
        "redis+sentinel://a,b:26380/shop",
    ],
)
def test_a_url_is_accepted(url: str) -> None:
    RedisInFlight(url).close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "its scheme is not redis, rediss or unix"),
        ("localhost:6379", "its scheme is not"),
        ("http://localhost:6379/0", "its scheme is not"),
        ("redis://localhost:abc/0", "its host or port cannot be read"),
        ("redis://localhost:70000/0", "its host or port cannot be read"),
        ("redis://localhost:0/0", "port 0 is no port"),
        ("redis://::1:6379/0", "its host or port cannot be read"),
        ("redis://[::1/0", "its host or port cannot be read"),
        ("redis://localhost/zero", "what follows the host must be the number of a database"),
        ("redis://localhost/0/1", "what follows the host must be the number of a database"),
        ("redis://localhost/0?db=zero", "option db has a value that redis-py refuses"),
        ("redis://localhost/0?protocol=9", "an option of its query has a value that redis-py refuses"),
        ("redis://localhost/0?protcol=2", "option 'protcol' of its query is not allowed"),
        ("redis://localhost/0?retry_on_timeout=yes", "option 'retry_on_timeout' of its query is not allowed"),
        ("redis://localhost/0?decode_responses=no", "option 'decode_responses' of its query is not allowed"),
        ("redis://localhost/0?ssl_check_hostname=no", "option ssl_check_hostname has a value that redis-py refuses"),
        ("redis+cluster://", "a node of the cluster has no host"),
        ("redis+cluster://a:7000,,b:7000", "a node of the cluster has no host"),
        ("redis+cluster://a:7000,b:x", "its host or port cannot be read"),
        ("redis+cluster://a:7000,b:7000/1", "a cluster of Redis has only database 0"),
        ("redis+cluster://a:7000?retry_on_timeout=yes", "option 'retry_on_timeout' of its query is not allowed"),
        ("unix+cluster:///run/redis.sock", "its scheme is not"),
        ("redis://:1234?x@localhost/0", "write special characters of a password as %XX"),
        ("redis://user:a#b@localhost/0", "write special characters of a password as %XX"),
    ],
)
def test_a_url_is_refused_with_the_reason_and_the_right_form(url: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisInFlight(url)

    message = str(caught.value)
    assert why in message
    assert "use redis://[user:password@]host:6379/0, or rediss:// for TLS" in message
    assert "\n" not in message


@pytest.mark.parametrize("namespace", ["", "a b", "x}", "{x", "x:y", "ü", "x" * 101, "*"])
def test_a_namespace_that_would_break_its_keys_is_refused(namespace: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        RedisInFlight("redis://localhost/0", namespace=namespace)


def test_a_node_that_is_learnt_is_spoken_to_as_those_of_the_url() -> None:
    store = RedisInFlight("rediss+cluster://app:p%40ss@a:7000?ssl_ca_certs=/etc/ca.pem&max_connections=4", socket_s=0.5)
    assert store._cluster is not None

    pool: Any = store._cluster.client(("::1", 7001)).connection_pool

    options = pool.connection_kwargs
    assert issubclass(pool.connection_class, redis.SSLConnection)
    assert (options["host"], options["port"]) == ("::1", 7001)
    assert (options["username"], options["password"], options["ssl_ca_certs"]) == ("app", "p@ss", "/etc/ca.pem")
    assert (options["socket_timeout"], options["socket_connect_timeout"], pool.max_connections) == (0.5, 0.5, 4)
    store.close()


def test_redis_and_its_sentinels_have_logins_of_their_own_and_the_same_options_of_tls() -> None:
    url = (
        "rediss+sentinel://app:p%40ss@a:26380,[::1]/shop/3?ssl_ca_certs=/etc/ca.pem&max_connections=4"
        "&sentinel_username=looks&sentinel_password=q%40"
    )
    store = RedisInFlight(url, socket_s=2.0)
    way: Any = store._sentinels

    pools = [one.connection_pool for one in (*way.all, way._clients.of(("b", 6380)))]

    places = [(one.connection_kwargs["host"], one.connection_kwargs["port"]) for one in pools]
    assert places == [("a", 26380), ("::1", 26379), ("b", 6380)]
    logins = [(one.connection_kwargs["username"], one.connection_kwargs["password"]) for one in pools]
    assert logins == [("looks", "q@"), ("looks", "q@"), ("app", "p@ss")]
    assert {one.connection_kwargs["ssl_ca_certs"] for one in pools} == {"/etc/ca.pem"}
    assert [one.connection_kwargs["socket_timeout"] for one in pools] == [1.0, 1.0, 2.0]
    assert (pools[2].connection_kwargs["db"], pools[2].max_connections) == (3, 4)
    store.close()
