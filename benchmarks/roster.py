"""Who takes part: every contestant with its exact configuration, and what it is not asked for.

A contestant is one module of `benchmarks/contestants/` with one set of settings. Those of one family share a module and
an environment. Order is importance: it is the order of the run and of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MEASURES = ("drain", "drain1", "enqueue", "bulk", "latency", "delay", "sustained", "kill")


@dataclass(frozen=True, slots=True)
class Contestant:
    """One queue in one configuration.

    Attributes:
        name: for people and for `--only`, which takes the family as well.
        module: of `benchmarks/contestants/`, without `.py`.
        family: names the environment and its `requirements/<family>.txt`; None is the interpreter of the driver.
        servers: of "rabbitmq", "kafka", "redis", "postgres", "artemis": which it needs.
        configuration: printed beside its figures.
        settings: passed to the module as `BENCH_<name>`.
        survives: None when every task of a killed worker runs again within a minute; otherwise how it is.
        commands: how many worker commands are started.
        workers: how many processes run tasks, all commands together.
        share: of the number of tasks that is asked for: slow peers would take minutes otherwise.
        sustained_share: the same, for the sustained measure.
        measures: what it is asked for.
    """

    name: str
    module: str
    family: str | None
    servers: tuple[str, ...]
    configuration: str
    settings: Mapping[str, str] = field(default_factory=dict)
    survives: str | None = None
    commands: int = 1
    workers: int = 2
    share: float = 1.0
    sustained_share: float = 1.0
    measures: tuple[str, ...] = MEASURES

    @property
    def is_lossy(self) -> bool:
        """Whether a task that was taken by a killed worker never runs again by itself."""
        return self.survives is not None and self.survives.startswith("no")

    @property
    def group(self) -> str:
        """What `--only` takes for all of a kind."""
        return self.family or self.name.partition("-")[0]


WORKQ = {"PROCESSES": "2", "THREADS": "1"}
NO_BULK = tuple(measure for measure in MEASURES if measure != "bulk")
NO_DELAY = tuple(measure for measure in MEASURES if measure != "delay")
"""Of who needs another command for delays, or has none."""
AT_MOST_ONCE = "no: a task that was taken is gone with its worker"

ROSTER: tuple[Contestant, ...] = (
    Contestant(
        "workq-servers",
        "workq",
        None,
        ("postgres", "rabbitmq", "redis"),
        "PostgreSQL + RabbitMQ quorum + Redis, as shipped; 2 processes x 1 thread",
        WORKQ,
    ),
    Contestant(
        "workq-classic",
        "workq",
        None,
        ("postgres", "rabbitmq", "redis"),
        "PostgreSQL + RabbitMQ classic (WORKQ_QUEUE_TYPE=classic) + Redis; 2 processes x 1 thread",
        WORKQ | {"QUEUE_TYPE": "classic"},
        measures=("latency", "drain", "bulk", "sustained"),
    ),
    Contestant(
        "workq-kafka",
        "workq",
        None,
        ("postgres", "kafka", "redis"),
        "PostgreSQL + Kafka, 8 partitions + Redis, as shipped; 2 processes x 1 thread",
        WORKQ,
    ),
    Contestant(
        "workq-postgres", "workq", None, ("postgres",), "PostgreSQL alone, as shipped; 2 processes x 1 thread", WORKQ
    ),
    Contestant("workq-sqlite", "workq", None, (), "one SQLite file, synchronous=FULL; 2 processes x 1 thread", WORKQ),
    Contestant(
        "pgqueuer-100",
        "pgqueuer",
        "pgqueuer",
        ("postgres",),
        "batch_size 100, max_concurrent_tasks 200, logged tables, uvloop; 2 processes",
        {"BATCH": "100", "CONCURRENT": "200"},
        commands=2,
    ),
    Contestant(
        "pgqueuer-10",
        "pgqueuer",
        "pgqueuer",
        ("postgres",),
        "batch_size 10 (default), logged tables, uvloop; 2 processes",
        {"BATCH": "10"},
        commands=2,
    ),
    Contestant(
        "dramatiq-t1",
        "dramatiq",
        "dramatiq",
        ("rabbitmq",),
        "RabbitMQ, confirm_delivery, -p 2 -t 1, prefetch 100",
        {"PROCESSES": "2", "THREADS": "1", "PREFETCH": "100"},
        sustained_share=0.25,
        measures=NO_BULK,
    ),
    Contestant(
        "dramatiq-t4",
        "dramatiq",
        "dramatiq",
        ("rabbitmq",),
        "RabbitMQ, confirm_delivery, -p 2 -t 4, prefetch 100",
        {"PROCESSES": "2", "THREADS": "4", "PREFETCH": "100"},
        sustained_share=0.25,
        measures=NO_BULK,
    ),
    Contestant(
        "dramatiq-noconfirm",
        "dramatiq",
        "dramatiq",
        ("rabbitmq",),
        "RabbitMQ, no confirms (default), -p 2 -t 1, prefetch 100",
        {"PROCESSES": "2", "THREADS": "1", "PREFETCH": "100", "CONFIRM": "0"},
        survives="yes, but an enqueue is not confirmed",
    ),
    Contestant(
        "dramatiq-redis",
        "dramatiq",
        "dramatiq",
        ("redis",),
        "Redis, -p 2 -t 8 (default), maintenance and heartbeats as shipped",
        {"PROCESSES": "2", "THREADS": "8", "STORE": "redis"},
        survives="yes, but only after 60 s, by maintenance at random (default)",
        measures=NO_BULK,
    ),
    Contestant(
        "huey-sqlite",
        "huey",
        "huey",
        (),
        "SQLite WAL, fsync=False (synchronous OFF), -k process -w 2 -n -q -d 0.01 -m 0.1",
        {"STORE": "sqlite"},
        survives=AT_MOST_ONCE,
        measures=NO_BULK,
    ),
    Contestant(
        "huey-sqlite-fsync",
        "huey",
        "huey",
        (),
        "SQLite WAL as shipped: synchronous FULL, which fsync=True also says, -k process -w 2 -n -q -d 0.01 -m 0.1",
        {"STORE": "sqlite-fsync"},
        survives=AT_MOST_ONCE,
        measures=NO_BULK,
    ),
    Contestant(
        "huey-redis",
        "huey",
        "huey",
        ("redis",),
        "Redis, blocking pop, -k process -w 2 -n -q",
        {"STORE": "redis"},
        survives=AT_MOST_ONCE,
        measures=NO_BULK,
    ),
    Contestant(
        "celery-solo",
        "celery",
        "celery",
        ("rabbitmq",),
        "acks_late, reject_on_worker_lost, confirms, 2 x -P solo, prefetch multiplier 64, no results",
        {"POOL": "solo", "MULTIPLIER": "64"},
        commands=2,
        sustained_share=0.25,
        measures=NO_BULK,
    ),
    Contestant(
        "celery-threads",
        "celery",
        "celery",
        ("rabbitmq",),
        "acks_late, reject_on_worker_lost, confirms, 2 x -P threads -c 8, prefetch multiplier 4, no results",
        {"POOL": "threads", "CONCURRENCY": "8", "MULTIPLIER": "4"},
        commands=2,
        sustained_share=0.25,
        measures=NO_BULK,
    ),
    Contestant(
        "celery-prefork",
        "celery",
        "celery",
        ("rabbitmq",),
        "acks_late, reject_on_worker_lost, confirms, -P prefork -c 2, prefetch multiplier 4, no results",
        {"POOL": "prefork", "CONCURRENCY": "2", "MULTIPLIER": "4"},
        sustained_share=0.25,
        measures=NO_BULK,
    ),
    Contestant(
        "taskiq-rabbitmq",
        "taskiq",
        "taskiq",
        ("rabbitmq",),
        "RabbitMQ quorum, confirms, qos 200, --workers 2 --max-async-tasks 200 --no-parse, orjson",
        {"STORE": "rabbitmq"},
        sustained_share=0.5,
        measures=NO_DELAY,
    ),
    Contestant(
        "taskiq-redis",
        "taskiq",
        "taskiq",
        ("redis",),
        "Redis streams, XACK after the run, --workers 2 --max-async-tasks 200 --no-parse, orjson",
        {"STORE": "redis"},
        survives="yes, but only after 10 minutes idle (default)",
        sustained_share=0.5,
        measures=NO_DELAY,
    ),
    Contestant(
        "faststream-each",
        "faststream",
        "faststream",
        ("kafka",),
        "Kafka, acks=all, NACK_ON_ERROR: a commit after each, --workers 2, max_workers 4, 8 partitions, orjson, uvloop",
        {"CONSUMERS": "4"},
        sustained_share=0.25,
        measures=NO_DELAY,
    ),
    Contestant(
        "faststream-batch",
        "faststream",
        "faststream",
        ("kafka",),
        "Kafka, the same with batch=True, max_records 100: a commit after a batch, 2 partitions",
        {"MAX_RECORDS": "100"},
        measures=NO_DELAY,
    ),
    Contestant(
        "saq",
        "saq",
        "saq",
        ("redis",),
        "Redis, 2 processes, concurrency 10, retries=3, ttl=-1",
        survives="yes, but some only after two sweeps, a minute apart (default)",
        commands=2,
        share=0.5,
        sustained_share=0.25,
    ),
    Contestant(
        "streaq",
        "streaq",
        "streaq",
        ("redis",),
        "Redis, run --workers 2, concurrency 16, silent tasks, result ttl 5 min (default)",
        survives="yes, but only after 60 s idle (default)",
        share=0.5,
        sustained_share=0.25,
    ),
    Contestant(
        "arq",
        "arq",
        "arq",
        ("redis",),
        "Redis, 2 processes, max_jobs 100, poll_delay 0.01, keep_result 0",
        survives="yes, but only after job_timeout + 10 s: 310 s (default)",
        commands=2,
        share=0.25,
        sustained_share=0.125,
    ),
    Contestant(
        "procrastinate",
        "procrastinate",
        "procrastinate",
        ("postgres",),
        "PostgreSQL, 2 x worker -c 10, LISTEN/NOTIFY",
        commands=2,
        survives="no: jobs of a dead worker stay `doing` unless the application retries them",
        share=0.25,
        sustained_share=0.125,
    ),
    Contestant(
        "rq",
        "rq",
        "rq",
        ("redis",),
        "Redis, 2 x SimpleWorker, Retry(max=3), result_ttl 0",
        commands=2,
        share=0.1,
        sustained_share=0.05,
        survives="yes, but only by the maintenance task, minutes later",
        measures=NO_DELAY,
    ),
    Contestant(
        "rq-scheduler",
        "rq",
        "rq",
        ("redis",),
        "Redis, 2 x SimpleWorker --with-scheduler, result_ttl 0",
        {"SCHEDULER": "1"},
        commands=2,
        survives="yes, but only by the maintenance task, minutes later",
        measures=("delay",),
    ),
    Contestant(
        "bare-psycopg",
        "bare",
        None,
        ("postgres",),
        "INSERT of one row of 200 bytes, autocommit: no queue at all",
        {"TABLE": "two columns"},
        survives="-",
        workers=0,
        commands=0,
        measures=("enqueue",),
    ),
    Contestant(
        "bare-workq-row",
        "bare",
        None,
        ("postgres",),
        "the same, of a row of workq's table with its indexes and checks: the floor of its enqueue",
        {"TABLE": "workq"},
        survives="-",
        workers=0,
        commands=0,
        measures=("enqueue",),
    ),
)


def chosen(names: Sequence[str]) -> list[Contestant]:
    """Contestants by name or by family, in the roster's order; all when there are no names.

    Raises:
        ValueError: a name is nobody's.
    """
    known = {contestant.name for contestant in ROSTER} | {contestant.group for contestant in ROSTER}
    strange = [name for name in names if name not in known]
    if strange:
        raise ValueError(f"no contestant is called {', '.join(strange)}; there are {', '.join(sorted(known))}")
    return [one for one in ROSTER if not names or one.name in names or one.group in names]
