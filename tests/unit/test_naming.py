"""A task has the name that the worker which imports its module knows, however a script was started; or it says so."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from workq.errors import ConfigError

SCRIPT = """
from workq import WorkQueue

wq = WorkQueue(ledger="sqlite:///never-opened.db")

@wq.task()
def hello(): ...

@wq.task(batch=2)
def greet(items): ...

@wq.job()
def reindex(items): ...
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project: a script in a package folder, and a module beside it. Nothing names the application."""
    folder = tmp_path / "project" / "pkg"
    folder.mkdir(parents=True)
    for name in ("jobs", "__main__"):
        (folder / f"{name}.py").write_text(SCRIPT)
    (folder / "main.py").write_text("")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.delenv("WORKQ_APP", raising=False)
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path[1:]])  # as `python pkg/jobs.py` does
    return folder.parent


def run(path: Path, how: str = "__main__") -> dict[str, Any]:
    return runpy.run_path(str(path), run_name=how)


def refusal(made: dict[str, Any]) -> str:
    """All of its tasks are refused, before anything is opened, with the same advice."""
    said = set()
    for enqueue in (
        made["hello"].enqueue,
        made["hello"].options(delay_s=1.0).enqueue,
        lambda: made["hello"].enqueue_many([()]),
        lambda: made["greet"].enqueue(1),
        made["reindex"].run,
    ):
        with pytest.raises(ConfigError) as caught:
            enqueue()
        said.add(str(caught.value).partition(": ")[2])
    [text] = said
    assert list(Path.cwd().glob("never-opened.db*")) == []
    return text


@pytest.mark.parametrize("how", ["__main__", "__mp_main__"], ids=["run", "spawned"])
@pytest.mark.parametrize("app", ["pkg.jobs:wq", "pkg.main:wq"])
@pytest.mark.parametrize("is_package", [False, True], ids=["folder", "package"])
def test_the_application_says_what_a_script_is_imported_as(
    root: Path, app: str, how: str, is_package: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_package:
        (root / "pkg" / "__init__.py").write_text("")
    monkeypatch.setenv("WORKQ_APP", app)
    monkeypatch.chdir(root)
    from_here = run(root / "pkg" / "jobs.py", how)
    monkeypatch.chdir(root.parent)
    monkeypatch.setattr(sys, "path", [sys.path[0], str(root), *sys.path[1:]])
    from_elsewhere = run(root / "pkg" / "jobs.py", how)

    for made in (from_here, from_elsewhere):
        assert made["hello"].name == "pkg.jobs.hello"
        assert made["reindex"].name == "pkg.jobs.reindex"
        made["hello"].check_name()


def test_a_script_that_may_be_two_modules_to_a_worker_is_refused_at_enqueue(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    in_a_folder = refusal(run(root / "pkg" / "jobs.py"))
    monkeypatch.chdir(root.parent / "elsewhere")
    monkeypatch.setattr(sys, "path", [sys.path[0], str(root), *sys.path[1:]])
    on_the_path = refusal(run(root / "pkg" / "jobs.py"))
    as_a_folder = refusal(run(root / "pkg"))

    assert "'jobs' or 'pkg.jobs'" in in_a_folder
    assert "python -m pkg.jobs" in in_a_folder
    assert "WORKQ_APP=pkg.jobs:wq" in in_a_folder
    assert on_the_path == in_a_folder
    assert "python -m pkg.__main__" in as_a_folder


def test_a_script_that_can_be_one_module_only_has_its_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = run(root / "pkg" / "jobs.py")
    monkeypatch.chdir(root / "pkg")
    beside = run(root / "pkg" / "jobs.py")
    monkeypatch.setenv("WORKQ_APP", "another.app:wq")
    named_otherwise = run(root / "pkg" / "jobs.py")

    for made in (far, beside, named_otherwise):
        assert made["hello"].name == "jobs.hello"
        made["hello"].check_name()


def test_python_m_says_the_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", [str(root), *sys.path[1:]])
    names = []
    for module in ("pkg.jobs", "pkg.__main__"):
        made = runpy.run_module(module, run_name="__main__", alter_sys=True)
        made["hello"].check_name()
        names.append(made["hello"].name)

    assert names == ["pkg.jobs.hello", "pkg.__main__.hello"]


@pytest.mark.usefixtures("root")
def test_what_no_worker_can_import_is_refused_at_enqueue() -> None:
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, made)  # noqa: S102 - as an interactive session does

    assert "in no file" in refusal(made)
