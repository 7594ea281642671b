"""The reference of Python and the public objects have the same methods: none is missing there, none is invented."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

import workq
from tests.docs.page import pages, text_of
from workq import Times, WorkQueue, messages, webhooks
from workq.handlers.context import Current
from workq.handlers.handler import Call, Handler
from workq.jobs.define import Job, JobCall

PAGE: Final = "docs/reference/python.md"
PLACES: Final[dict[str, tuple[type, ...]]] = {
    "| `task(...)` |": (WorkQueue,),
    "`Times`, in seconds": (Times,),
    "| `reindex(42)` |": (Handler, Call),
    "| `@job.source` |": (Job, JobCall),
    "| `send(event_type, ": (webhooks.Webhooks,),
    "| `endpoints.add(": (webhooks.Endpoints,),
    "| `send(destination, ": (messages.Messages,),
    "| `destinations.add(": (messages.Destinations,),
    "`MessageIntakes(wq)` has": (messages.MessageIntakes,),
    "A kind of your own is a `Kind`": (messages.Kind, messages.DestinationLink),
    "`workq.current()` gives": (Current,),
}
"""Each object's place on the page, by the words that it has, and the classes of what is called there."""
PARTS: Final = {"endpoints", "destinations"}
"""Objects of an object: what has methods of its own has a row of its own."""
ELSEWHERE: Final[dict[type, set[str]]] = {WorkQueue: {"job", "schedule"}}
"""What has a section of its own."""
MADE_AND_HANDED_OVER: Final = {
    *(workq.Exponential, workq.Fixed, workq.Schedule),
    *(workq.CsvFile, workq.JsonLines, workq.Keyset, workq.Range),
    workq.TaskFields,  # `filter` is for `logging`
    webhooks.Notice,
}
"""An application makes or gets one; its methods are called by workq."""
OWN: Final[dict[type, set[str]]] = {
    Times: {"absence_least_s", "fills_s", "is_absence_watched"},
    Handler: {"becomes", "check_name", "fits", "limit_of", "limit_rule", "new_task"},
    Call: {"new_task", "taken"},
    Job: {
        *("begin", "check", "items", "iterate", "iterate_async", "new_job", "split", "taken", "work", "work_async"),
    },
    JobCall: {"open_feed"},
    webhooks.Endpoints: {"known"},
    messages.MessageIntakes: {"open"},
}
"""What is public by its name alone: parts of workq that others of its parts call."""


def methods(kind: type) -> set[str]:
    """Those that an application calls."""
    ours = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "workq"]
    named = {name for base in ours for name, value in vars(base).items() if _is_method(value)}
    return {name for name in named if not name.startswith("_")} - OWN.get(kind, set())


def _is_method(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, staticmethod | classmethod)


def units() -> Iterator[str]:
    """The paragraphs and tables of the page; a row about a part of an object stands alone."""
    for paragraph in text_of(PAGE).split("\n\n"):
        rows = paragraph.splitlines()
        alone = [row for row in rows if row.startswith(tuple(f"| `{part}." for part in PARTS))]
        yield "\n".join(row for row in rows if row not in alone)
        yield from alone


def place(mark: str) -> str:
    [found] = [unit for unit in units() if mark in unit]
    return found


def called(text: str) -> set[str]:
    """The names that stand as a call or alone in code: of `await job.run(x)`, `run`."""
    objects = {"job", "reindex"}
    spans = re.findall(r"`(?:await |@)?(?:(?:reindex|job|endpoints|destinations)\.)?([a-z]\w*)(?:\([^`]*)?`", text)
    return set(spans) - objects


@pytest.mark.parametrize("mark", PLACES)
def test_every_public_method_is_in_its_place_in_the_reference(mark: str) -> None:
    wanted = {name for kind in PLACES[mark] for name in methods(kind) - ELSEWHERE.get(kind, set())}

    assert wanted
    assert wanted - called(place(mark)) == set()


@pytest.mark.parametrize("mark", [mark for mark in PLACES if mark.startswith("|")])
def test_every_row_of_a_table_of_methods_is_one(mark: str) -> None:
    rows = [row.split(" | ")[0] for row in place(mark).splitlines() if row.startswith("| `")]
    there = {name for kind in PLACES[mark] for name in methods(kind)}

    assert rows
    assert {name for row in rows for name in called(row)} - there == set()


def test_what_a_section_of_its_own_is_about_is_there() -> None:
    for name in ELSEWHERE[WorkQueue]:
        assert re.search(rf"^`@?wq\.{name}\b", text_of(PAGE), flags=re.MULTILINE), name


@pytest.mark.parametrize("page", pages())
def test_what_a_page_calls_of_a_queue_exists(page: str) -> None:
    assert {name for name in re.findall(r"\bwq\.(\w+)", text_of(page)) if not hasattr(WorkQueue, name)} == set()


def test_every_public_class_with_methods_has_its_place() -> None:
    public = [getattr(module, name) for module in (workq, webhooks, messages) for name in module.__all__]
    with_methods = {one for one in public if inspect.isclass(one) and methods(one)}

    assert with_methods - {kind for kinds in PLACES.values() for kind in kinds} == MADE_AND_HANDED_OVER


def test_what_is_called_by_workq_alone_is_there() -> None:
    assert {kind: names for kind, names in OWN.items() if not all(hasattr(kind, name) for name in names)} == {}
