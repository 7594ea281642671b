"""What the pages say agrees with the code: names, settings, states, errors, commands, targets, links, the promise."""

from __future__ import annotations

import ast
import inspect
import logging
import re
from dataclasses import fields
from typing import Final

import pytest

import workq
from tests.docs import reference
from tests.docs.page import REPOSITORY, blocks, pages, prose, text_of
from workq import State, Times, errors
from workq.config import Settings
from workq.diagnose.why.look import Code
from workq.ledger.schema import Tables
from workq.logs.decisions import EVENTS
from workq.recovery.sweep import STEPS
from workq.slices import every_table
from workq.values.task import TRANSITIONS, Event, Task

PROMISE: Final = """\
> A task whose `enqueue()` returned is recorded in the ledger. It is run at least once and settled
> exactly once; only its newest attempt can settle it. RabbitMQ and Redis may be purged, restarted,
> rolled back or replaced at any moment: nothing is lost; at worst tasks run later, and more than once
> only if a worker was killed, paused longer than its lease, or cut off while it ran them. The ledger is
> as durable as your database.
"""
"""The one place for these words. They change with the design, never to make a page nicer."""

EVERY_PAGE: Final = [*pages(), "CHANGELOG.md", "CONTRIBUTING.md"]
RECORDS: Final = sorted(path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "benchmarks").rglob("*.md"))
"""Records keep the names of their day: their words and links are checked, not whether a command is still there."""


@pytest.mark.parametrize("page", ["README.md", "docs/guarantees.md"])
def test_the_promise_stands_in_its_own_words(page: str) -> None:
    assert PROMISE in text_of(page)


@pytest.mark.parametrize("page", [*EVERY_PAGE, *RECORDS])
def test_a_page_never_says_what_would_be_wrong(page: str) -> None:
    text = text_of(page).lower()
    assert not re.search(r"pip3? install (--\S+ )*[\"']?workq\b", text), "that name belongs to somebody else"
    assert "exactly-once" not in text
    assert "exactly once execution" not in text


@pytest.mark.parametrize("page", [*EVERY_PAGE, *RECORDS])
def test_a_page_names_no_path_of_the_machine_that_it_was_written_on(page: str) -> None:
    text = text_of(page)
    assert [folder for folder in ("/tmp/", "/home/", "/root/", "/work/", f"{REPOSITORY}/") if folder in text] == []


@pytest.mark.parametrize("page", [*EVERY_PAGE, *RECORDS])
def test_a_page_keeps_to_plain_characters(page: str) -> None:
    assert text_of(page).isascii()


@pytest.mark.parametrize("page", [*EVERY_PAGE, *RECORDS])
def test_internal_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (REPOSITORY / page).parent / path if path else REPOSITORY / page
        assert found.exists(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in [_anchor(heading) for heading in headings], f"{page}: {target}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_readme_is_short_and_is_the_packages_own() -> None:
    assert len(text_of("README.md").splitlines()) <= 260
    assert '\nreadme = "README.md"' in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


def test_the_first_example_has_as_many_lines_as_its_heading_says() -> None:
    [example] = [block for block in blocks("README.md") if block.file == "shop.py"]
    assert "## Fourteen lines\n" in text_of("README.md")
    assert len(example.text.splitlines()) == 14


def test_every_page_can_be_reached_from_the_readme() -> None:
    """Through the one link to the index, which lists each page once."""
    index = "docs/README.md"
    listed = [link.partition("#")[0] for link in re.findall(r"\]\(((?!\.\./)[^)]+)\)", text_of(index))]
    linked = {link.partition("#")[0] for link in re.findall(r"\]\((docs/[^)]+)\)", text_of("README.md"))}
    assert index in linked
    assert {f"docs/{page}" for page in listed} | {index} == set(pages()) - {"README.md"}
    assert len(listed) == len(set(listed))


def test_the_page_on_performance_is_read_in_three_minutes() -> None:
    assert len(prose("docs/performance.md").split()) <= 1200


@pytest.mark.parametrize("heading", ["# Words", "## Words that still mean two things"])
def test_the_glossary_is_in_alphabetical_order_and_its_places_exist(heading: str) -> None:
    text = text_of("docs/explanation/words.md").split(f"{heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([a-z][a-z -]*) \| .+ \| (`.+`) \|$", text, flags=re.MULTILINE)
    words = [word for word, _ in rows]
    places = {place for _, found in rows for place in re.findall(r"`([^`]+)`", found)}

    assert len(words) > 10
    assert words == sorted(set(words))
    assert [place for place in places if not (REPOSITORY / "workq" / place).exists()] == []


def test_every_make_target_that_a_page_names_exists() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    for page in EVERY_PAGE:
        text = text_of(page)
        named = set(re.findall(r"(?:`|\$ |^  )make ([a-z-]+)", text, flags=re.MULTILINE))
        assert named <= targets, page
        if page == "README.md":
            assert named == targets


def test_the_reference_of_the_command_line_is_what_the_commands_say() -> None:
    again = "python -m tests.docs.reference > docs/reference/cli.md"
    assert text_of("docs/reference/cli.md") == reference.page(), f"stale: {again}"


def test_every_command_and_option_is_in_its_reference() -> None:
    text = text_of("docs/reference/cli.md")
    paths = [path for path, _ in reference.commands()]
    assert len(paths) > 20
    for path in paths:
        assert f"\n## {path}\n" in text


def test_every_command_that_a_page_names_exists() -> None:
    paths = {path for path, _ in reference.commands()}
    groups = {path for path in paths if any(other.startswith(f"{path} ") for other in paths)} - {"workq worker"}
    for page in EVERY_PAGE:
        for written in re.findall(r"`workq ([a-z]+(?: [a-z]+)?)", prose(page)):
            first = f"workq {written.split()[0]}"
            assert first in paths, f"{page}: workq {written}"
            if first in groups and " " in written:
                assert f"workq {written}" in paths, f"{page}: workq {written}"


def test_every_error_is_in_its_reference_with_its_place_in_the_tree() -> None:
    text = text_of("docs/reference/errors.md")
    found = inspect.getmembers(errors, inspect.isclass)
    ours = {name: kind for name, kind in found if kind.__module__ == errors.__name__}
    for name in set(ours) - {"WorkqError"}:
        assert f"| `{name}` |" in text, name
    assert set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) == set(ours) - {"WorkqError"}
    drawn = re.findall(r"^([|` -]*)(\w+)", text.split("```text\n")[1].split("```")[0], flags=re.MULTILINE)
    path: list[str] = []
    for indent, name in drawn:
        depth = len(indent) // 4
        assert depth == 0 or path[depth - 1] in [base.__name__ for base in ours[name].__bases__], name
        path[depth:] = [name]
    assert {name for _, name in drawn} == set(ours)


def test_every_setting_is_in_its_reference_with_its_default() -> None:
    text = text_of("docs/reference/settings.md")
    for name, value, _ in Settings().table():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{name}` |")), None)
        assert row is not None, name
        default = row.split("|")[2 if name.startswith("times.") else 3].strip()
        written = re.sub(r" \([^)]*\)$", "", default).strip("`")  # without what it is in days
        assert written == ("none" if value == "-" else value.removesuffix(".0")), name
    named = re.findall(r"^\| `([a-z_.]+)` \|", text, flags=re.MULTILINE)
    assert sorted(named) == sorted(name for name, _, _ in Settings().table())
    assert len([name for name in named if name.startswith("times.")]) == len(fields(Times))


def test_the_settings_of_the_readme_have_their_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(WORKQ_\w+)` \| (.+) \|$", text_of("README.md"), flags=re.MULTILINE)
    values = {name: value for name, value, _ in Settings().table()}
    assert len(rows) == 7
    for name, _, default in rows:
        assert default.startswith("none" if values[name] == "-" else f"`{values[name]}`"), name


def test_every_state_is_in_its_reference_with_what_may_follow() -> None:
    text = text_of("docs/reference/states.md")
    for state in State:
        row = next((line for line in text.splitlines() if line.startswith(f"| `{state}` |")), None)
        assert row is not None, state
        follow = row.split("|")[3]
        assert set(re.findall(r"`(\w+)`", follow)) == {one.value for one in TRANSITIONS[state]}, state


def test_every_event_of_the_log_is_in_its_reference_with_its_level() -> None:
    found: dict[str, str] = {name: logging.getLevelName(level) for name, level in EVENTS.items()}
    found |= {"log.dropped": "WARNING", "log.unreadable": "WARNING"}
    for path in (REPOSITORY / "workq").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and (event := _event(call)) is not None:
                found[event[0]] = event[1]

    rows = re.findall(r"^[|] `([a-z_]+[.][a-z_]+)` [|] ([A-Z]+) [|] \S", text_of("docs/reference/log.md"), re.MULTILINE)

    assert sorted(rows) == sorted(found.items())


def _event(call: ast.Call) -> tuple[str, str] | None:
    """The event that this call logs, and its level; None: it logs nothing."""
    match call:
        case ast.Call(func=ast.Attribute(attr="_die"), args=[ast.Constant(value=str(text)), *_]):
            return text, "CRITICAL"
        case ast.Call(func=ast.Name(id="tell"), args=[ast.Name(), ast.Constant(value=str(text)), *_]):
            return text, "WARNING"
        case ast.Call(func=ast.Attribute(value=log, attr=method), args=[ast.Constant(value=str(text)), *_]):
            name = log.id if isinstance(log, ast.Name) else log.attr if isinstance(log, ast.Attribute) else ""
            if name in ("log", "_log", "seldom", "_seldom", "_unknown") and "." in text:
                return text.partition(":")[0], "ERROR" if method == "exception" else method.upper()
    return None


def test_every_table_and_column_is_in_its_reference() -> None:
    text = text_of("docs/reference/sql.md")
    tables = Tables("workq", "sqlite")
    for table in every_table(tables).sorted_tables:
        assert f"| `{table.name}` |" in text, table.name
    for column in tables.task.columns:
        assert f"`{column.name}`" in text, column.name


def test_every_public_name_is_in_a_reference() -> None:
    text = "".join(text_of(f"docs/reference/{name}.md") for name in ("python", "errors", "states"))
    for name in set(workq.__all__) - {"Current", "State", "Times"}:
        assert name in text, name
    for one in fields(Task):
        assert f"`{one.name}`" in text, one.name


def test_every_reason_of_why_is_on_its_page() -> None:
    text = text_of("docs/how-to/why-is-it-not-running.md")
    assert [one.value for one in Code if f"| `{one.value}` | " not in text] == []


def test_every_kind_of_event_is_on_the_page_of_states() -> None:
    told = " ".join((Event.__doc__ or "").split()).partition("Its kind is ")[2].rstrip(". ")
    kinds = re.split(r", | or ", told)

    assert len(kinds) > 5
    assert [one for one in kinds if f"`{one}`" not in text_of("docs/reference/states.md")] == []


def test_the_steps_of_the_sweep_are_those_of_its_help() -> None:
    assert ",".join(STEPS) in text_of("docs/reference/cli.md")


def test_the_bounds_on_the_pages_are_those_of_the_default_times() -> None:
    from workq.diagnose.bounds import Bounds

    bounds = Bounds.of(Times())
    table = re.findall(r"^\| .+ \| (\d+) s \| .+ \|$", text_of("docs/guarantees.md"), flags=re.MULTILINE)
    assert [float(one) for one in table] == [
        bounds.local_crash_s,
        bounds.dead_host_s,
        Bounds.of(Times(absence_s=8.0)).absent_host_s,
        bounds.dead_fleet_s,
        bounds.unpublished_s,
        bounds.inflight_wiped_s,
        bounds.forgotten_s,
        bounds.purge_s,
        bounds.everything_s,
    ]
    readme = text_of("README.md")
    for row, bound in {
        "a worker process dies": bounds.local_crash_s,
        "a host dies, supervisor included": bounds.dead_host_s,
        "a worker is paused longer than its lease": bounds.dead_host_s,
        "a producer dies after the commit": bounds.unpublished_s,
        "RabbitMQ is down": bounds.unpublished_s,
        "RabbitMQ loses confirmed hints": bounds.purge_s,
        "Redis is wiped": bounds.inflight_wiped_s,
    }.items():
        assert re.search(rf"^\| {row} \| .+ \| {bound:.0f} s \|$", readme, flags=re.MULTILINE), row
