"""What the measurements of one SQLite file and of servers share: the stores, waiting, and telling figures."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.arena import POSTGRES_OPTIONS, REDIS_OPTIONS
from workq import WorkQueue
from workq.lab.fleet import only_workq_variables
from workq.lab.servers import start_postgres, start_rabbitmq, start_redis
from workq.ledger.engine import migrate

LEGS: Final = ("sqlite", "servers")
LONG_S: Final = 1800.0


@contextmanager
def opened(
    name: str, folder_variable: str | None = None, /, **variables: str
) -> Iterator[tuple[WorkQueue, Path, dict[str, str]]]:
    """A queue on fresh stores, its folder, and the versions of the servers. All of it is gone afterwards.

    The environment has `variables` meanwhile, and the folder as `folder_variable`.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="workq-bench-")))
        urls, servers = {"ledger": f"sqlite:///{folder}/ledger.db"}, {}
        if name == "servers":
            postgres = stack.enter_context(start_postgres(options=POSTGRES_OPTIONS))
            rabbitmq = stack.enter_context(start_rabbitmq())
            redis = stack.enter_context(start_redis(options=REDIS_OPTIONS))
            urls = {"ledger": postgres.create_database(), "broker": rabbitmq.url, "inflight": redis.url}
            servers = {"postgres": postgres.version, "rabbitmq": rabbitmq.version, "redis": redis.version}
        path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        given = {f"WORKQ_{store.upper()}_URL": url for store, url in urls.items()}
        given |= variables | {"PYTHONPATH": path, "WORKQ_CONFIG": ""}
        if folder_variable is not None:
            given[folder_variable] = str(folder)
        stack.enter_context(only_workq_variables(given))
        app = stack.enter_context(
            WorkQueue(ledger=urls["ledger"], broker=urls.get("broker"), inflight=urls.get("inflight"))
        )
        database = app.database()
        migrate.migrate(database)
        database.close()
        yield app, folder, servers


def until(holds: Callable[[], bool], what: str, *, every_s: float = 0.1) -> None:
    """Wait for it, and for half an hour at most. Who looks takes time of those who are measured: see `every_s`."""
    deadline = time.monotonic() + LONG_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {LONG_S:.0f} s: {what}")
        time.sleep(every_s)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Of several runs."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def told(figures: Mapping[str, Any]) -> Iterator[str]:
    """Figures as a person reads them, one a line."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield f"{name} {value['median']:.2f} ({value['least']:.2f}-{value['most']:.2f})"
        else:
            yield f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value:,}"
