"""`workq why`: one true reason why a task is not running."""

from __future__ import annotations

import click

from workq.cli.group import Command
from workq.cli.inputs import TaskId
from workq.cli.session import Session, pass_session
from workq.cli.show import answer, record
from workq.errors import NotFound


@click.command(
    cls=Command,
    examples="""workq why 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq why 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f -o json | jq -r .code""",
)
@click.argument("task_id", type=TaskId(), metavar="ID")
@pass_session
def why(session: Session, task_id: str) -> None:
    """Why a task is not running: one reason, computed now from a closed list, and what to do.

    Changes nothing. Exit 1 when there is no such task.
    """
    from workq.diagnose import why

    found = why.why(session.stores(), session.settings(), task_id)
    if found is None:
        raise NotFound(f"no task {task_id}; list them with: workq task ls")
    document = {
        "task": found.task_id,
        "code": found.code,
        "reason": found.reason,
        "since": found.since,
        "until": found.until,
        "do": found.do,
    }
    rows = [(name, value) for name, value in document.items() if value is not None]
    answer(session, document, lambda: record(rows))
