"""The checks behind `workq doctor`, as data: what was looked at, what was found, and what to do about it.

Reads only; no store is created or changed, and a SQLite file that does not exist is not made. Each store is asked for
itself, so that one which is away does not hide what is wrong with another. Passwords never appear: URLs are masked.

    check.py                                what a check answers
    host.py                                 this installation, clocks, and who else can read payloads and secrets
    absence.py                              whether a dead host can be found before its leases end
    ledger.py                               and what SQLite, PostgreSQL, MySQL and MariaDB make of it
    rabbitmq.py, management.py              what AMQP tells, and what only the management API does
    kafka.py                                its nodes, topics, rights, and who reads
    redis.py, sentinels.py                  the in-flight store, and who makes another Redis the primary
    intakes.py                              ways in for messages, and what their brokers tell of them
    work.py                                 what lies about: overdue tasks, queues that nobody serves, no sweep
    naming.py                               how many names a finding tells

What loses hints or holds is a warning: the ledger repairs that, and it costs time. What can lose a recorded task, or
stops the work, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from workq.config import Settings
from workq.config.kafka import is_kafka
from workq.diagnose.doctor.check import Check, Level, line
from workq.errors import Unavailable, WorkqError


def examine(settings: Settings, *, queues: tuple[str, ...] = ()) -> list[Check]:
    """Look at everything, one store after the other. `queues` are looked for in the broker."""
    from workq.diagnose.doctor import absence, host, kafka, ledger, rabbitmq, redis, work

    checks: list[Check] = []
    checks += host.versions()
    checks += _guarded("processes", host.first_process)
    checks += [Check("settings", Level.WARNING, warning) for warning in settings.warnings]
    checks += host.exposed_settings(settings)
    checks += absence.look(settings)
    looks: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("ledger", lambda: ledger.look(settings)),
        (
            "broker",
            lambda: kafka.look(settings, queues) if is_kafka(settings.broker) else rabbitmq.look(settings, queues),
        ),
        ("inflight", lambda: redis.look(settings)),
    ]
    for area, look in looks:
        checks += _guarded(area, look)
    if not any(check.area == "ledger" and check.level in (Level.UNREACHABLE, Level.ERROR) for check in checks):
        checks += _guarded("tasks", lambda: work.look(settings))
    return checks


def _guarded(area: str, look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from look()
    except Unavailable as error:
        yield Check(area, Level.UNREACHABLE, line(error))
    except WorkqError as error:
        yield Check(area, Level.ERROR, line(error))
