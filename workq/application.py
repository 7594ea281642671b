"""The application: the WorkQueue that `module:attribute` names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from workq.app import WorkQueue
from workq.errors import ConfigError


def load_app(path: str) -> WorkQueue:
    """The WorkQueue that `module:attribute` names; the current folder is searched first.

    Raises:
        ConfigError: the path is malformed, its module cannot be imported (the cause says why), or it is no WorkQueue.
    """
    module_name, separator, attribute = path.partition(":")
    if not separator or not module_name or not attribute:
        raise ConfigError(f"app: need module:attribute, such as shop.tasks:wq, got {path!r}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script without a main guard may call sys.exit()
        raise ConfigError(f"app: importing {module_name!r} failed: {type(error).__name__}: {error}") from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, WorkQueue):
        raise ConfigError(
            f"app: {path!r} is {type(found).__name__}, not a WorkQueue; name the object: module:attribute"
        )
    return found
