"""Define: what is to tick, as the user writes it."""

from __future__ import annotations

from typing import Any

from workq.errors import ConfigError
from workq.handlers.handler import Call, Handler
from workq.schedules.timetable import MissedTicks, NewSchedule, Timetable
from workq.values.names import check_choice, check_task_name


def new_schedule(
    name: str,
    timetable: Timetable,
    missed: str,
    what: Handler[..., Any] | Call[...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> NewSchedule:
    """What is to tick, checked and encoded as a call is.

    Raises:
        ConfigError: the name, the policy or an option cannot be; TypeError, PayloadError: as for an enqueue.
    """
    check_task_name(name)
    policy = check_choice(missed, MissedTicks, "missed")
    if not isinstance(what, Call | Handler):
        raise ConfigError(f"schedule {name!r}: give the task itself, as @wq.task has made it, not {what!r:.100}")
    call = what if isinstance(what, Call) else what.options()
    options = call.taken()
    has_time = options.delay_s or options.at is not None
    if has_time or options.key or options.order_key or options.connection is not None:
        raise ConfigError(
            f"schedule {name!r}: a delay, a key, an order key or a connection cannot belong to each of its tasks"
        )
    task = call.new_task(args, kwargs)
    return NewSchedule(
        name=name,
        timetable=timetable,
        missed=policy,
        task_name=task.name,
        queue=task.queue,
        payload=task.payload,
        expires_s=task.expires_s,
        limit=task.limit,
        **task.carried(),
    )
