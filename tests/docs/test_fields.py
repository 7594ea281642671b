"""Every public field of what an application gets from workq has its name in the reference, beside that of its class."""

from __future__ import annotations

import dataclasses
import inspect
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import workq
from workq import messages, webhooks
from workq.app import WorkQueue
from workq.handlers.context import Current
from workq.handlers.handler import Call, Handler
from workq.handlers.options import Options
from workq.jobs.define import Job, JobCall
from workq.jobs.sources import Page
from workq.jobs.values import Begun, NewJob
from workq.ledger import CancelAnswer, Pause
from workq.values.limit_rule import LimitRule
from workq.values.task import NewTask, Worked

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "python.md"
OWN = {Current: {"steps", "additions"}, Begun: {"hints"}}
"""What is public by its name alone: parts of workq that others of its parts look at."""
OWN_CLASSES = {LimitRule, NewJob, NewTask, Options, Page, Worked}
"""What methods answer that no page names."""


def answered() -> set[type]:
    """Classes with fields that public methods answer, or that are importable; and those in their fields."""
    public = [getattr(module, name) for module in (workq, webhooks, messages) for name in module.__all__]
    classes = [one for one in (*public, WorkQueue, Handler, Call, Job, JobCall) if inspect.isclass(one)]
    found: set[type] = set()
    for one in classes:
        found |= parts(one)
        for base in one.__mro__:
            for name, member in vars(base).items():
                if isinstance(member, FunctionType) and not name.startswith("_"):
                    found |= parts(hint_of(member))
    found = {one for one in found - OWN_CLASSES if fields(one)}
    return found | {part for one in found for name in fields(one) for part in parts(hints_of(one).get(name))}


def hints_of(one: type) -> dict[str, Any]:
    try:
        return get_type_hints(one)
    except NameError:
        return {}


def hint_of(function: Any) -> Any:
    try:
        return get_type_hints(function, localns={"CancelAnswer": CancelAnswer, "Pause": Pause}).get("return")
    except NameError:  # a name that only type checkers import
        return None


def parts(hint: Any) -> set[type]:
    """The classes of workq's in a type."""
    found = {part for one in get_args(hint) for part in parts(one)}
    if inspect.isclass(hint) and hint.__module__.startswith("workq.") and not issubclass(hint, Enum):
        found.add(hint)
    return found


def fields(one: type) -> list[str]:
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
    else:
        names = list(one.__struct_fields__) if issubclass(one, msgspec.Struct) else []
    return [name for name in names if not name.startswith("_") and name not in OWN.get(one, set())]


CLASSES = sorted(answered() | {Pause}, key=lambda one: one.__name__)


@pytest.mark.parametrize("one", CLASSES, ids=lambda one: one.__name__)
def test_every_public_field_stands_beside_its_class_in_the_reference(one: type) -> None:
    paragraphs = [text for text in REFERENCE.read_text().split("\n\n") if f"`{one.__name__}" in text]
    words = "".join(char if char.isidentifier() or char.isdigit() else " " for char in " ".join(paragraphs)).split()

    assert [name for name in fields(one) if name not in words] == []
