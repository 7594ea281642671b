"""What the pages about the code name is there: files, functions, tests. And the map is that of the layers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Final

import pytest

from tests.docs.page import REPOSITORY, text_of

MAP: Final = "docs/explanation/architecture.md"
PAGES: Final = [MAP, "CONTRIBUTING.md"]
RULES: Final = 14
QUESTIONS: Final = (
    "Where is a lease lost?",
    "Where is a retry scheduled?",
    "What forbids a second start?",
    "May this task start now?",
    "Where does a task wait for others?",
    "Where does an endpoint rest?",
    "Who publishes a hint?",
    "Where does a message end that is no hint?",
    "Where are old rows deleted?",
    "Where does a doctor check go?",
    "What may a slice import?",
)
_NAMED: Final = re.compile(r"`((?:workq|tests|sql|docs|benchmarks|scripts)/[^\s`:]*)(?:::([\w.]+))?`")

_FILE: Final = re.compile(r"""(?<![\w./"'-])((?:[a-z_]+/)*[a-z_]+\.py)\b""")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_name_that_a_page_names_is_there(page: str) -> None:
    named = _NAMED.findall(text_of(page))
    missing = []
    for path, name in named:
        found = list(REPOSITORY.glob(path)) if "*" in path else [REPOSITORY / path]
        if not found or not all(one.exists() for one in found):
            missing.append(path)
        elif name and name not in _names(path):
            missing.append(f"{path}::{name}")

    assert missing == []
    assert len(named) > 40


@cache
def _names(path: str) -> frozenset[str]:
    """What can be named of a module: `function`, `Class`, `Class.method`, `VALUE`. In tests a method needs no class."""
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    names = set(_named_in(tree, ""))
    if path.startswith("tests/"):
        names |= {name.rpartition(".")[2] for name in names}
    return frozenset(names)


def _named_in(tree: ast.Module | ast.ClassDef, before: str) -> Iterator[str]:
    for one in tree.body:
        match one:
            case ast.ClassDef(name=name):
                yield before + name
                yield from _named_in(one, f"{before}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield before + name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield before + name


def test_every_file_that_a_docstring_names_is_beside_it_or_has_its_path() -> None:
    """`x.py` is in the same folder, `part/x.py` below the package."""
    package = REPOSITORY / "workq"
    named = [
        (path, name)
        for path in sorted(package.rglob("*.py"))
        for name in _FILE.findall(path.read_text(encoding="utf-8"))
        if not name.startswith(("workq/", "tests/"))
    ]
    missing = [
        f"{path.relative_to(package)}: {name}"
        for path, name in named
        if not ((package if "/" in name else path.parent) / name).exists()
    ]

    assert missing == []
    assert len(named) > 100


def test_the_map_has_each_part_from_top_to_bottom() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    [layers] = [one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers"]
    ranks = [rank.split(" | ") for rank in layers["layers"]]

    rows = re.findall(r"^\| `workq/(\w+)(?:\.py|/)` \| ", text_of(MAP), flags=re.MULTILINE)

    assert sorted(rows) == sorted(part for rank in ranks for part in rank)
    rank_of = {part: number for number, rank in enumerate(ranks) for part in rank}
    assert rows == sorted(rows, key=rank_of.__getitem__)


def test_every_rule_of_the_protocol_names_its_code_and_its_tests() -> None:
    sections = re.split(r"^### R(\d+): ", text_of(MAP), flags=re.MULTILINE)
    rules = dict(zip(map(int, sections[1::2]), sections[2::2], strict=True))

    assert sorted(rules) == list(range(1, RULES + 1))
    for number, rule in rules.items():
        code, _, tests = rule.partition("- tests: ")
        assert "- code: `workq/" in code, number
        assert re.search(r"`tests/[\w/]+\.py::test_\w+`", tests), number


@pytest.fixture(scope="module")
def collected(every_test: frozenset[str] | None) -> frozenset[str]:
    """The names of all test functions that pytest collects: that one is written in a file does not say that it runs."""
    return frozenset(name.partition("[")[0].rpartition("::")[2] for name in every_test or _collected())


def _collected() -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "--both-legs", "--long", "-q", "tests"]
    told = subprocess.run(
        [*command, "-p", "no:randomly", "-p", "no:cacheprovider"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-1000:]
    return [line for line in told.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_collected(page: str, collected: frozenset[str]) -> None:
    """A contract that no file joins has tests, and none of them runs."""
    named = {name.rpartition(".")[2] for path, name in _NAMED.findall(text_of(page)) if path.startswith("tests/")}
    tests = {name for name in named if name.startswith("test_")}

    assert tests
    assert tests - collected == set()


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_of_a_newcomer_is_found_by_its_heading(question: str) -> None:
    assert f"\n## {question}\n" in text_of(MAP)
