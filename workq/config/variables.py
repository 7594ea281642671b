"""Variables: every `WORKQ_` variable that something reads, in one list. Another one is a typing error, and is told.

Kubernetes and Docker set variables for each service that a container can see. Those of a service `workq`, or of one
whose name begins so, begin with `WORKQ_` too, and are no error.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from workq.config.sources import OF_SETTINGS
from workq.config.times import Times

KNOWN: Final = OF_SETTINGS | {
    "WORKQ_CONFIG",
    # of single commands: doctor, webhook test and listen, webhook endpoint add and rotate
    "WORKQ_BROKER_MANAGEMENT_URL",
    "WORKQ_WEBHOOK_SECRET",
    "WORKQ_WEBHOOK_NEW_SECRET",
    # of tests, demo, bench and certify
    "WORKQ_FAILPOINT",
    "WORKQ_FAILPOINT_ONCE",
    "WORKQ_BENCH_FOLDER",
    "WORKQ_BENCH_STEPS",
    "WORKQ_DEMO_CORPUS",
    "WORKQ_DEMO_ENGINE",
    "WORKQ_DEMO_FOLDER",
    "WORKQ_SCRATCH_FOLDER",
    # of docker-compose.yml
    "WORKQ_KAFKA_PORT",
    "WORKQ_MYSQL_DB",
    "WORKQ_MYSQL_PASSWORD",
    "WORKQ_MYSQL_PORT",
    "WORKQ_MYSQL_USER",
    "WORKQ_POSTGRES_DB",
    "WORKQ_POSTGRES_PASSWORD",
    "WORKQ_POSTGRES_PORT",
    "WORKQ_POSTGRES_USER",
    "WORKQ_RABBITMQ_MANAGEMENT_PORT",
    "WORKQ_RABBITMQ_PASSWORD",
    "WORKQ_RABBITMQ_PORT",
    "WORKQ_RABBITMQ_USER",
    "WORKQ_REDIS_PASSWORD",
    "WORKQ_REDIS_PORT",
}
"""A test compares this with what stands in the repository."""
_OF_SERVICES: Final = re.compile(r".*(_SERVICE_HOST|_SERVICE_PORT(_\w+)?|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_SHOWN_MAX: Final = 80
_TIMES: Final = frozenset(one.name for one in fields(Times))

log = logging.getLogger("workq.settings")
_told: Final[set[str]] = set()
"""What this process has said of them."""


def unread(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each `WORKQ_` variable that has a value, and that nothing reads, with the name nearest to it."""
    found = sorted((name, value) for name, value in environ.items() if name.startswith("WORKQ_") and value.strip())
    return [_sentence(name) for name, value in found if name not in KNOWN and not _is_of_a_service(name, value)]


def log_unread(*, is_said: bool = False) -> None:
    """Log them, each once in a process. `is_said`: a command has told them, and the log does not repeat it."""
    for sentence in unread(os.environ):
        if sentence not in _told and not is_said:
            log.warning("settings.unread: %s", sentence)
        _told.add(sentence)


def _is_of_a_service(name: str, value: str) -> bool:
    """`WORKQ_PORT` and its like are recognised by what they say, such as tcp://10.0.0.7:80."""
    return _OF_SERVICES.fullmatch(name) is not None or (name.endswith("_PORT") and "://" in value)


def _sentence(name: str) -> str:
    import difflib

    shown = name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}..."
    unread = f"{shown} is set, and nothing reads it"
    time = name.removeprefix("WORKQ_").removeprefix("TIMES_").lower()
    if time in _TIMES:
        return f"{unread}; write {time} into the table times of workq.toml"
    near = difflib.get_close_matches(name, KNOWN, n=1)
    return unread + (f"; did you mean {near[0]}?" if near else "")
