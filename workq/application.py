"""The application: the WorkQueue that `module:attribute` names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from workq.app import WorkQueue
from workq.errors import ConfigError


def load_app(path: str) -> WorkQueue:
    """The WorkQueue that `module:attribute` names, or the only one of `module`; the current folder is searched first.

    Raises:
        ConfigError: its module cannot be imported (the cause says why), or has no such WorkQueue; the message names
            those that it has.
    """
    module_name, separator, attribute = path.partition(":")
    if not module_name or (separator and not attribute):
        raise ConfigError(f"app: need module:attribute, such as shop.tasks:wq, got {path!r}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script without a main guard may call sys.exit()
        raise ConfigError(f"app: importing {module_name!r} failed: {type(error).__name__}: {error}") from error
    known = {id(one): name for name, one in reversed(vars(module).items()) if isinstance(one, WorkQueue)}
    names = sorted(f"{module_name}:{name}" for name in known.values())
    has = f"its WorkQueues: {', '.join(names)}" if names else "it has no WorkQueue"
    if not separator:
        if len(names) != 1:
            raise ConfigError(f"app: which WorkQueue of {module_name!r}? Write module:attribute; {has}")
        return load_app(names[0])
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"app: {path!r} is not a WorkQueue: the module has no {attribute!r}; {has}")
        found = getattr(found, part)
    if not isinstance(found, WorkQueue):
        raise ConfigError(f"app: {path!r} is {type(found).__name__}, not a WorkQueue; {has}")
    return found
