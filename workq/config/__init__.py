"""Settings: where the three stores are, whose tables and queues these are, and every time that workq keeps.

Each value comes from the first place that has it: an argument, the environment, `workq.toml` or `[tool.workq]` of
`pyproject.toml` in the working folder, a default. `origins` remembers which, for errors and for `workq config`. With
neither a broker nor an in-flight URL the ledger serves as all three: the embedded queue.

Everything is checked here, before anything is contacted, but for the options in a URL's query: the part that opens the
store refuses those. What is wrong is a ConfigError that names the place and the
right form; a password never appears in it, in a `repr`, nor in `table()`. An empty environment variable counts as
missing; an empty argument, key or secret file is an error: nobody should work on the default ledger because a secret
was empty.

This package is imported by every command: nothing but the standard library, and of that as little as possible.
"""

from __future__ import annotations

from workq.config.settings import DEFAULT_LEDGER, PAYLOAD_DEFAULT_BYTES, PAYLOAD_LIMIT_BYTES, QueueType, Settings
from workq.config.sources import FILE_MAX_BYTES, SECRET_MAX_BYTES
from workq.config.times import BINARY, LEDGER, Times, levels_ms
from workq.config.urls import (
    CLUSTER_SCHEMES,
    LEDGER_SCHEMES,
    check_broker_url,
    check_inflight_url,
    check_ledger_url,
    check_proxy_url,
    masked,
    node_urls,
)

__all__ = [
    "BINARY",
    "LEDGER",
    "CLUSTER_SCHEMES",
    "DEFAULT_LEDGER",
    "FILE_MAX_BYTES",
    "LEDGER_SCHEMES",
    "PAYLOAD_DEFAULT_BYTES",
    "PAYLOAD_LIMIT_BYTES",
    "SECRET_MAX_BYTES",
    "QueueType",
    "Settings",
    "Times",
    "check_broker_url",
    "check_inflight_url",
    "check_ledger_url",
    "check_proxy_url",
    "levels_ms",
    "masked",
    "node_urls",
]
