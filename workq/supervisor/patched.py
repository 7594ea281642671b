"""Patched: an application in which gevent or eventlet has replaced parts of the standard library.

There a worker would start and never run anything: its threads would be greenlets of one thread, and its handlers would
keep all others from their turn. Producers are served: they only wait for answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from workq.errors import ConfigError

_TOOLS = {
    "gevent": ("gevent.monkey", "is_module_patched", ("threading", "socket", "select", "ssl", "time", "os", "queue")),
    "eventlet": ("eventlet.patcher", "is_monkey_patched", ("thread", "socket", "select", "time", "os")),
}
"""By tool: the module that patches, what it answers whether, and for which names."""


def check_unpatched(app: str) -> None:
    """A worker may run this application.

    Raises:
        ConfigError: something is patched; the message says what, and what to do.
    """
    for tool, (module, question, names) in _TOOLS.items():
        is_patched: Callable[[str], bool] | None = getattr(sys.modules.get(module), question, None)
        patched = [] if is_patched is None else [name for name in names if is_patched(name)]
        if patched:
            raise ConfigError(
                f"{tool} has patched {', '.join(patched)} in what {app} imports, and a worker needs them as they are; "
                "patch where the web server starts, and not in a module that the worker imports"
            )
