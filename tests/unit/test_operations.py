"""What a person decides is decided in one place, and recorded with who and why."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workq import WorkQueue
from workq.errors import ConfigError
from workq.messages import Messages
from workq.messages.ledger.decisions import MessageDecisions
from workq.messages.ledger.sql import MessageLedger
from workq.operations import jobs, messages, queues, schedules, tasks
from workq.values.incarnation import Incarnation
from workq.webhooks import Endpoints

PACKAGE = Path(__file__).parents[2] / "workq"
FUNCTIONS = [
    one
    for module in (jobs, messages, queues, schedules, tasks)
    for _, one in inspect.getmembers(module, inspect.isfunction)
    if one.__module__ == module.__name__ and "stores" in inspect.signature(one).parameters
]
LEDGERS = (
    "workq.ledger",
    *(f"workq.{one}.ledger" for one in ("jobs", "limits", "messages", "order", "webhooks")),
    "workq.schedules",
)
DECISIONS = {
    name
    for package in LEDGERS
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    for _, part in inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
    for name, method in inspect.getmembers(part, inspect.isfunction)
    if not name.startswith("_") and {"who", "why"} <= set(inspect.signature(method).parameters)
}
"""What the ledger does because a person wants it."""


def test_the_ledger_asks_who_and_why_for_each_decision() -> None:
    assert {"cancel", "revive", "reschedule", "pause", "resume", "cancel_job", "retry_job", "discard_dead"} <= DECISIONS
    assert len(FUNCTIONS) >= 14


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: f"{one.__module__.rpartition('.')[2]}.{one.__name__}")
def test_each_operation_takes_who_and_why_and_has_no_default_for_them(function: Callable[..., Any]) -> None:
    given = inspect.signature(function).parameters

    assert given["who"].default is given["why"].default is inspect.Parameter.empty


@pytest.mark.parametrize(
    "method",
    [
        WorkQueue.cancel,
        WorkQueue.pause_queue,
        WorkQueue.resume_queue,
        WorkQueue.reschedule,
        WorkQueue.revive,
        Endpoints.disable,
        Endpoints.enable,
    ],
)
def test_in_python_who_can_be_said(method: Callable[..., Any]) -> None:
    assert inspect.signature(method).parameters["who"].default is None


@pytest.mark.parametrize("place", ["cli", "app.py"])
def test_the_command_line_and_the_application_decide_nothing_past_the_operations(place: str) -> None:
    files = [PACKAGE / place] if place.endswith(".py") else sorted((PACKAGE / place).glob("*.py"))
    called = {
        (file.name, node.func.attr)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in DECISIONS
        and ".ledger." in f"{ast.unparse(node.func.value)}."
    }

    assert files
    assert called == set()


def test_reason_is_why_for_one_version_more(tmp_path: Path) -> None:
    with WorkQueue(ledger=f"sqlite:///{tmp_path}/shop.db") as wq:
        task = wq.task(name="shop.add")(lambda: None)
        first, second = task.enqueue(), task.enqueue()

        with pytest.warns(DeprecationWarning, match="why="):
            wq.cancel(first.id, reason="formerly")
        wq.cancel(second.id, why="now", who="ada@office")

        assert [found.reason for one in (first, second) if (found := wq.get(one.id))] == ["formerly", "now"]
        [cancelled] = wq.stores.ledger.questions.history(second.id)
        assert cancelled.detail == {"reason": "now", "who": "ada@office"}


@pytest.mark.parametrize(
    "ask",
    [
        lambda sender: sender.get("a\x00b"),
        lambda sender: sender.body("\ud800"),
        lambda sender: sender.waiting("\x00"),
        lambda sender: list(sender.all(to="\x00")),
        lambda sender: list(sender.all(since_s=float("nan"))),
        lambda sender: list(sender.all(until_s=1e18)),
    ],
)
def test_a_question_about_messages_that_none_can_answer_is_refused_before_the_ledger(
    tmp_path: Path, ask: Callable[[Messages], object]
) -> None:
    with WorkQueue(ledger=f"sqlite:///{tmp_path}/no/such/folder/q.db") as wq, pytest.raises(ConfigError, match="need "):
        ask(Messages(wq))


def test_enable_counts_what_a_sweep_lets_come_in_that_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkQueue(ledger=f"sqlite:///{tmp_path}/q.db") as wq:
        sender = Messages(wq)
        sender.destinations.add("orders", kind="call", handler="shop.orders")
        sender.disable("orders")
        sent = sender.send_many("orders", [{"body": str(number)} for number in range(3)])
        ledger = wq.stores.ledger
        ledger.workers.join(Incarnation("w", "host", 1), queues=["workq.messages"], threads=1)
        assert ledger.claims.claim([one.task_id for one in sent], by="w") == []
        enable = MessageDecisions.enable

        def then_a_sweep(*given: Any, **named: Any) -> None:
            enable(*given, **named)
            assert len(ledger.part(MessageLedger).line.tend(limit=10)) == 3

        monkeypatch.setattr(MessageDecisions, "enable", then_a_sweep)

        assert sender.enable("orders") == 3
        monkeypatch.undo()
        assert sender.enable("orders") == 0
