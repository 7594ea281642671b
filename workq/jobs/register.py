"""Registering a job: two handlers come of one function, for the subtasks and for the task that reads the source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from workq.errors import BadSource
from workq.handlers.handler import check_function
from workq.handlers.keywords import TaskKeywords
from workq.handlers.naming import default_name
from workq.jobs.define import Job
from workq.jobs.values import SPLIT, JobOptions

if TYPE_CHECKING:
    from workq.app import WorkQueue


def register_job(
    app: WorkQueue,
    function: Callable[..., Any],
    options: JobOptions,
    source: Callable[..., Any] | Iterable[Any] | None,
    **task: Unpack[TaskKeywords],
) -> Job:
    """`task`: what the handler of the subtasks is registered with.

    Raises:
        ConfigError: the name is taken, or the function cannot be a task.
    """
    check_function(function)
    name, doubt = task.get("name"), None
    if name is None:
        name, doubt = default_name(function, app.settings.app)
    keywords: TaskKeywords = {**task, "name": name, "queue": options.queue}
    of_subtasks = app.task(**keywords)(function)
    of_subtasks.doubt = doubt
    job = Job(function, of_subtasks, options, app).taken(source)
    if options.is_partitioned:
        of_subtasks.becomes(job.iterate_async if of_subtasks.is_async else job.iterate)
    else:
        of_subtasks.becomes(job.work_async if of_subtasks.is_async else job.work)
    app.task(
        name=name + SPLIT,
        queue=options.queue,
        failures_max=options.failures_max,
        crashes_max=options.crashes_max,
        give_up_on=BadSource,
    )(job.split)
    app.registry.jobs[name] = job
    return job
