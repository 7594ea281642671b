"""`workq why`: one true reason why a task is not running, or why a message is not sent."""

from __future__ import annotations

from collections.abc import Iterator

import click

from workq.cli.group import Command
from workq.cli.session import Session, pass_session
from workq.cli.show import answer, record
from workq.errors import NotFound
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import check_message_id
from workq.stores import Stores
from workq.values.codec import is_task_id


@click.command(
    cls=Command,
    examples="""workq why 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f
    workq why 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f -o json | jq -r .code""",
)
@click.argument("task_or_message_id", metavar="ID")
@pass_session
def why(session: Session, task_or_message_id: str) -> None:
    """Why a task is not running: one reason, computed now from a closed list, and what to do.

    ID is that of a task, or of a message: of the task that sends it. Changes nothing. Exit 1 when there is neither.
    """
    from workq.diagnose import why

    check_message_id(task_or_message_id)  # as a task id is one, too
    stores, settings = session.stores(), session.settings()
    told = (why.why(stores, settings, one) for one in _tasks_of(stores, task_or_message_id))
    found = next((one for one in told if one is not None), None)
    if found is None:
        raise NotFound(f"no task {task_or_message_id}, and no message; list them with: workq task ls, workq message ls")
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


def _tasks_of(stores: Stores, given: str) -> Iterator[str]:
    """What this id may mean: a task, and the task that sends a message."""
    if is_task_id(given.lower()):
        yield given.lower()
    message = stores.ledger.part(MessageLedger).letters.message(given)
    if message is not None:
        yield message.task_id
