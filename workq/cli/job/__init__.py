"""`workq job`: run a job, watch it, and decide about it."""

from __future__ import annotations

import click

from workq.cli.group import CommandGroup
from workq.cli.job.begin import run
from workq.cli.job.decide import cancel, pause, resume, retry, throttle
from workq.cli.job.look import failures, ls, results, show, watch


@click.group(
    cls=CommandGroup,
    examples="""workq job run shop.reindex index=v2
    workq job watch 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq job ls""",
)
def job() -> None:
    """Jobs: work that is split into subtasks. Run, watch, pause, throttle, cancel."""


for command in (run, ls, show, watch, pause, resume, cancel, throttle, retry, failures, results):
    job.add_command(command)
