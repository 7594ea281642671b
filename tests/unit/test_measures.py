"""The measures of the package's structure, on packages made for them; and the bounds that the package keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grimp

from benchmarks.house import ROOT, arrows_up, circles, doubles, lengths, public_names, public_sizes

LINES_MAX: Final = 500
PUBLIC_NAMES_MAX: Final = 30
ROWS: Final = {
    "JobRow": "the columns of a job, each one a field: the reference lists them",
    "Swept": "the counts of one sweep, each one a field: a kind of repair adds a count, and no behaviour",
}
"""Classes that may have more public names, and why."""


def package(root: Path, **modules: str) -> None:
    for name in ("workq", "workq/webhooks"):
        folder = root / name
        folder.mkdir()
        (folder / "__init__.py").write_text('__all__ = ["Task"]\n' if name == "workq" else "__all__: list[str] = []\n")
    for name, text in modules.items():
        (root / "workq" / f"{name}.py").write_text(text)


def test_no_file_of_the_package_is_too_long_to_be_read_at_once() -> None:
    longer = {str(path.relative_to(ROOT)): count for path, count in lengths(ROOT).items() if count > LINES_MAX}

    assert longer == {}


def test_no_class_of_the_package_has_many_public_names_but_for_rows() -> None:
    larger = {name for name, count in public_sizes().items() if count > PUBLIC_NAMES_MAX}

    assert larger == set(ROWS)


def test_a_class_name_stands_once_in_the_package() -> None:
    assert doubles(ROOT) == {}


def test_a_class_name_counts_once_for_each_module(tmp_path: Path) -> None:
    package(
        tmp_path, a="class Task: ...\nclass Row: ...\n", b="class Task: ...\n", c="class Row: ...\nclass One: ...\n"
    )

    found = {name: [place.path for place in places] for name, places in doubles(tmp_path).items()}

    assert found == {"Task": ["workq/a.py", "workq/b.py"], "Row": ["workq/a.py", "workq/c.py"]}


def test_public_is_what_is_exported_and_what_the_reference_names_in_code(tmp_path: Path) -> None:
    package(tmp_path)
    pages = tmp_path / "docs" / "reference"
    pages.mkdir(parents=True)
    (pages / "python.md").write_text("A Word is none, `Job.run()` is one, and:\n\n```python\nendpoint: Endpoint\n```\n")

    assert public_names(tmp_path) == {"Task", "Job", "Endpoint"}


def test_no_modules_of_the_package_import_each_other() -> None:
    """What is imported for annotations alone does not run."""
    assert circles(grimp.build_graph("workq", exclude_type_checking_imports=True)) == []


def test_modules_that_import_each_other_are_one_circle() -> None:
    assert [sorted(circle) for circle in circles(graph("a>b", "b>c", "c>a", "d>a", "e>d"))] == [["a", "b", "c"]]


def test_an_arrow_up_is_an_import_of_a_higher_layer_or_of_a_part_beside() -> None:
    layers: list[dict[str, Any]] = [
        {"type": "layers", "containers": ["p"], "layers": ["a", "b | c", "d : e"]},
        {"type": "independence"},
    ]

    assert arrows_up(graph("p.a>p.b", "p.a.x>p.d", "p.d>p.e"), layers) == 0
    assert arrows_up(graph("p.b>p.a.x", "p.d>p.c", "p.b>p.c", "p.b>p.b.x"), layers) == 3


def graph(*imports: str) -> grimp.ImportGraph:
    made = grimp.ImportGraph()
    for one in imports:
        importer, imported = one.split(">")
        made.add_module(importer)
        made.add_module(imported)
        made.add_import(importer=importer, imported=imported)
    return made
