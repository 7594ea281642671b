"""What a person decides is decided in one place, and recorded with who and why."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from workq import WorkQueue, operations
from workq.errors import ConfigError
from workq.messages import Messages
from workq.messages.ledger.decisions import MessageDecisions
from workq.messages.ledger.sql import MessageLedger
from workq.values.incarnation import Incarnation
from workq.webhooks import Endpoints

PACKAGE = Path(__file__).parents[2] / "workq"
HELPERS = ("_ledger", "_tell")
"""They take the stores and decide nothing."""
MODULES = [importlib.import_module(one.name) for one in pkgutil.walk_packages(operations.__path__, "workq.operations.")]


def _takes_stores(operation: Callable[..., Any]) -> bool:
    return any(name == "stores" or one.annotation == "Stores" for name, one in _given(operation).items())


def _given(operation: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(operation).parameters


OPERATIONS = [
    one
    for module in MODULES
    for name, one in inspect.getmembers(module, lambda one: inspect.isfunction(one) or inspect.isclass(one))
    if one.__module__ == module.__name__ and name not in HELPERS and _takes_stores(one)
]
"""What takes the stores: functions, and a class that decides about many tasks."""
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
    assert {one.__module__ for one in OPERATIONS} == {module.__name__ for module in MODULES}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.__module__.rpartition('.')[2]}.{one.__name__}")
def test_each_operation_takes_who_and_why_and_has_no_default_for_them(operation: Callable[..., Any]) -> None:
    given = _given(operation)

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


OTHERS = {
    "cli/dead.py": {"bulk.retry"},  # of operations/bulk.py
    "cli/delivery.py": {"Outbox(session.queue()).retry"},  # the objects of workq.webhooks take who and why themselves
    "cli/destination.py": {"Destinations(session.queue()).edit", "Destinations.edit"},  # likewise of workq.messages
    "cli/endpoint.py": {
        *("Endpoints(session.queue()).disable", "endpoints.edit", "endpoints.enable", "endpoints.remove"),
    },
    "cli/lab.py": {"namespace.remove"},  # of what a run of the laboratory has left
    "cli/task.py": {"bulk.cancel", "rows.clear"},  # of operations/bulk.py; a list
}
"""What has the name of a decision where no operation is called, in full."""


def test_the_command_line_and_the_application_decide_nothing_past_the_operations() -> None:
    files = [*(PACKAGE / "cli").rglob("*.py"), PACKAGE / "app.py", PACKAGE / "messenger.py", PACKAGE / "intake.py"]
    past: dict[str, set[str]] = {}
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        called = {node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in DECISIONS}
        if other := {ast.unparse(node) for node in called if ast.unparse(node.value) not in _operations_of(tree)}:
            past[file.relative_to(PACKAGE).as_posix()] = other

    assert past == OTHERS


def _operations_of(tree: ast.Module) -> set[str]:
    """The modules of operations that a module imports, by the names that they have there."""
    return {
        one.asname or one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == operations.__name__
        for one in node.names
    }


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
