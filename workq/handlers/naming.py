"""Naming: what a task is called by default: `module.function`, the same in a script and in the worker that imports it.

A script that is run by its path has no name that it is imported by. Where the application is named (WORKQ_APP, or `app`
in workq.toml), the folder that it is found from says how a worker imports the script, too. Otherwise a worker that is
started in this folder and environment would look in the current folder, and in those of PYTHONPATH: where that gives
another name than the script's own, or several, none of them is certain. Such a task is named by the script, and can be
called, but not enqueued: a worker that does not know its name would not run it.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from workq.errors import ConfigError
from workq.values.names import check_task_name

_RUN: tuple[str, ...] = ("__main__", "__mp_main__")
"""What a module is called that is run; the second one in a process that multiprocessing has spawned."""


def default_name(function: Callable[..., Any], app: str | None) -> tuple[str, str | None]:
    """The name of a function, and why it is not certain, if it is not. `app`: what WORKQ_APP says.

    Raises:
        ConfigError: the function has no lasting name (a lambda, a partial, or defined inside another function).
    """
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not qualname or "<" in qualname:
        raise ConfigError(f"{function!r}: it has no lasting name; give one: @wq.task(name='shop.reindex')")
    doubt: str | None = None
    if module in _RUN:
        module, doubt = _module_of_script(_facts(function, module), app)
    return check_task_name(f"{module}.{qualname}"), doubt


def innermost(function: Any) -> Callable[..., Any]:
    """The function in a partial of it."""
    while isinstance(function, partial):
        function = function.func
    found: Callable[..., Any] = function
    return found


def _facts(function: Callable[..., Any], module: str) -> dict[str, Any]:
    """The variables of the script: multiprocessing fills the module only when it has run."""
    found: dict[str, Any] = getattr(inspect.unwrap(innermost(function)), "__globals__", {})
    return found if found.get("__name__") == module else vars(sys.modules[module])


def _module_of_script(facts: dict[str, Any], app: str | None) -> tuple[str, str | None]:
    spec, file = facts.get("__spec__"), facts.get("__file__")
    if spec is not None and spec.name not in _RUN:  # python -m
        return spec.name, None
    if not file:
        return "main", "it is defined in no file that a worker can import: put it into a module, or give it a name="
    path = Path(os.path.realpath(file))
    if app is not None and (named := _beside(path, app.partition(":")[0])) is not None:
        return named, None
    own = path.stem
    names = {name for folder in _folders() if (name := _module(path, folder)) is not None} - {*_RUN}
    if own not in _RUN and names <= {own}:
        return own, None
    others = " or ".join(repr(name) for name in sorted(names | {own} - {*_RUN}))
    first = min(names - {own}, default=own)
    return own, (
        f"this script may be the module {others} to a worker: run it as `python -m {first}`, name the application "
        f"(WORKQ_APP={first}:wq), or give the task a name="
    )


def _folders() -> Iterator[Path]:
    """Where a worker that is started here would look for a module: not in the folder of the script, as Python does."""
    yield Path(os.path.realpath(os.getcwd()))
    yield from (Path(os.path.realpath(entry)) for entry in sys.path[1:] if entry)


def _beside(script: Path, app: str) -> str | None:
    """The module of a script below the folder that the module of the application is found from; None: it is not."""
    parts = Path(*app.split("."))
    for folder in (*_folders(), script.parent):
        is_there = (folder / parts).with_suffix(".py").is_file() or (folder / parts / "__init__.py").is_file()
        if is_there and (name := _module(script, folder)) is not None and name not in _RUN:
            return name
    return None


def _module(path: Path, folder: Path) -> str | None:
    """What a file is imported as from a folder; None: it is not."""
    try:
        parts = path.relative_to(folder).with_suffix("").parts
    except ValueError:
        return None
    return ".".join(parts) if all(map(str.isidentifier, parts)) else None


def place_of(function: Callable[..., Any]) -> str:
    """File and line of a function, for messages."""
    code = getattr(inspect.unwrap(innermost(function)), "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else repr(function)
