"""`python -m benchmarks.house`: the measures of the package's structure, computed from the source tree alone.

`--since COMMIT` measures that commit of this repository as well, and prints it in a column before. Nothing is judged.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grimp

ROOT: Final = Path(__file__).parents[1]
PUBLIC_PACKAGES: Final = ("workq/__init__.py", "workq/webhooks/__init__.py")
"""A class is public when one of these exports it, or a page of docs/reference names it as code."""
LABORATORY: Final = {"lab", "demo", "bench", "certify", "scratch", "testing"}
"""Folders that no queue needs; the last four became `lab`, and are named for the sake of `--since`."""
LEDGERS: Final = ("Ledger", "SqlLedger")
"""Its class, and the name that the class had when `Ledger` was the name of its port."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a class is defined."""

    path: str
    line: int


Doubles = dict[str, list[Place]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.house", description="measures of the package's structure"
    )
    parser.add_argument("--since", metavar="COMMIT", help="print the figures of this commit beside those of the tree")
    parser.add_argument(
        "--doubles", action="store_true", help="list each class name that stands more than once, and where"
    )
    parser.add_argument("--figures", type=Path, metavar="TREE", help=argparse.SUPPRESS)
    wished = parser.parse_args(arguments)
    if wished.figures is not None:
        print(json.dumps(figures(wished.figures)))
        return 0
    if wished.doubles:
        for name, places in sorted(doubles(ROOT).items()):
            kind = "public" if name in public_names(ROOT) else "private"
            print(f"{name} ({kind}): " + ", ".join(f"{place.path}:{place.line}" for place in places))
        return 0
    columns = {"now": _of_tree(ROOT)}
    if wished.since:
        columns = {wished.since: _of_commit(wished.since), **columns}
    print("\n".join(_table(columns)))
    return 0


def figures(root: Path) -> dict[str, str]:
    """Every measure of the tree at `root`, in the order of the table. Run in a process whose `workq` is that tree's."""
    if not (root / "workq" / "__init__.py").is_file():
        raise FileNotFoundError(f"no package workq below {root}")
    sys.path.insert(0, str(root))
    files = _modules(root)
    lines = lengths(root)
    runtime = [path for path in files if path.relative_to(root).parts[1] not in LABORATORY]
    contracts = _contracts(root)
    graph = grimp.build_graph("workq", exclude_type_checking_imports=True, cache_dir=None)
    found, public = doubles(root), public_names(root)
    sizes = public_sizes()
    largest = max(sizes, key=lambda name: sizes[name])
    return {
        "lines in workq/": f"{sum(lines.values()):,}",
        "lines without lab and demo": f"{sum(lines[path] for path in runtime):,}",
        "files": str(len(files)),
        "files of more than 500 lines": str(sum(count > 500 for count in lines.values())),
        "flat modules": str(sum(path.parent == root / "workq" for path in files)),
        "circles of imports": str(len(circles(graph))),
        "imports that the layers forbid": str(arrows_up(graph, contracts)),
        "ignored imports in the contracts": str(sum(len(each.get("ignore_imports", ())) for each in contracts)),
        "class names that stand more than once, public": str(sum(name in public for name in found)),
        "class names that stand more than once, private": str(sum(name not in public for name in found)),
        "public names of the ledger": str(max(sizes.get(name, 0) for name in LEDGERS)),
        "public names of the largest class": f"{sizes[largest]} ({largest})",
    }


def lengths(root: Path) -> dict[Path, int]:
    """The lines of each module."""
    return {path: len(path.read_text(encoding="utf-8").splitlines()) for path in _modules(root)}


def doubles(root: Path) -> Doubles:
    """Class names that more than one module of workq defines, with every place. One module counts once."""
    places: dict[str, dict[str, Place]] = defaultdict(dict)
    for path in _modules(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                where = str(path.relative_to(root))
                places[node.name].setdefault(where, Place(where, node.lineno))
    return {name: list(found.values()) for name, found in places.items() if len(found) > 1}


def public_names(root: Path) -> set[str]:
    """What the public packages export, and what the reference names in code marks."""
    names: set[str] = set()
    for package in PUBLIC_PACKAGES:
        for node in ast.parse((root / package).read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements)):
                    names |= {str(each.value) for each in elements if isinstance(each, ast.Constant)}
                case _:
                    pass
    for page in (root / "docs" / "reference").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for code in re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL):
            names |= set(re.findall(r"(?<![\w\"'-])[A-Z]\w*[a-z]\w*(?![\w\"'-])", code))
    return names


def circles(graph: grimp.ImportGraph) -> list[set[str]]:
    """Sets of modules that import each other, directly or around (strongly connected components, Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if imported not in index:
                visit(imported)
                low[module] = min(low[module], low[imported])
            elif imported in stack:
                low[module] = min(low[module], index[imported])
        if low[module] == index[module]:
            circle: set[str] = set()
            while module not in circle:
                circle.add(stack.pop())
            if len(circle) > 1:
                found.append(circle)

    for module in sorted(graph.modules):
        if module not in index:
            visit(module)
    return found


def arrows_up(graph: grimp.ImportGraph, contracts: Iterable[Mapping[str, Any]]) -> int:
    """Imports from one layer to a higher one, or between parts that share a layer and may not import each other."""
    forbidden: set[tuple[str, str]] = set()
    for contract in contracts:
        if contract["type"] == "layers":
            for container in contract.get("containers", [""]):
                heights = dict(_heights(contract["layers"], prefix=f"{container}." if container else ""))
                forbidden |= set(_upward(graph, heights))
    return len(forbidden)


def _heights(layers: list[str], *, prefix: str) -> Iterator[tuple[str, tuple[int, bool]]]:
    """Each part with the height of its layer, and whether the parts of that layer may import each other."""
    for height, layer in enumerate(reversed(layers)):
        for part in re.split(r"[|:]", layer):
            yield prefix + part.strip().strip("()"), (height, ":" in layer)


def _upward(graph: grimp.ImportGraph, heights: Mapping[str, tuple[int, bool]]) -> Iterator[tuple[str, str]]:
    part_of = {module: _part(module, heights) for module in graph.modules}
    for importer, part in part_of.items():
        for imported in graph.find_modules_directly_imported_by(importer):
            other = part_of.get(imported)
            if part is None or other is None or part == other:
                continue
            (height, free), (other_height, _) = heights[part], heights[other]
            if other_height > height or (other_height == height and not free):
                yield importer, imported


def _part(module: str, heights: Mapping[str, tuple[int, bool]]) -> str | None:
    return next((part for part in heights if module == part or module.startswith(f"{part}.")), None)


def public_sizes() -> dict[str, int]:
    """Public names of each class of workq: defined, set in `__init__`, or inherited from a class of ours."""
    package = importlib.import_module("workq")
    sizes: dict[str, int] = {}
    for module in pkgutil.walk_packages(package.__path__, "workq."):
        if module.name.endswith("__main__"):
            continue
        for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            ours = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "workq"]
            if kind in ours:
                named = {each for base in ours for each in (*vars(base), *_set_in(vars(base).get("__init__")))}
                sizes[name] = sum(not each.startswith("_") for each in named)
    return sizes


def _set_in(function: Any) -> list[str]:
    """The attributes that a constructor of ours sets. None: there is none, or it is made (of a dataclass, say)."""
    try:
        return re.findall(r"^\s+self\.(\w+)(?:: .+)? = ", inspect.getsource(function), flags=re.MULTILINE)
    except (OSError, TypeError):
        return []


def _modules(root: Path) -> list[Path]:
    return sorted((root / "workq").rglob("*.py"))


def _contracts(root: Path) -> list[dict[str, Any]]:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return contracts


def _of_tree(root: Path) -> dict[str, str]:
    """The figures of a tree, from a process of its own: only one package named workq can be imported in each."""
    command = [sys.executable, __file__, "--figures", str(root)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=root)
    read: dict[str, str] = json.loads(answer.stdout)
    return read


def _of_commit(commit: str) -> dict[str, str]:
    archive = subprocess.run(["git", "archive", commit], check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    with tempfile.TemporaryDirectory(prefix="workq-house-") as folder:
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive)
        return _of_tree(Path(folder))


def _table(columns: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    rows = [["measure", *columns]]
    rows += [[name, *(figures[name] for figures in columns.values())] for name in next(iter(columns.values()))]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    for row in rows:
        yield "| " + " | ".join(map(str.ljust, row, widths)) + " |"


if __name__ == "__main__":
    sys.exit(main())
