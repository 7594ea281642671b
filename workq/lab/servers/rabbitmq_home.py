"""The plugins that a private RabbitMQ sees: those that it needs, not all that are installed.

A start puts the folders of all installed plugins before those of Erlang, enabled or not, and Erlang asks for each of a
thousand modules in one folder after the other: for 50,000 files that are not there. With some forty folders fewer a
start takes two thirds of the processor time. The server is the same one: what is not enabled does not run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

_PLUGIN: Final = re.compile(r"(rabbitmq_[a-z0-9_]+)(?:-.*)?")
_NEEDED: Final = re.compile(r"\{applications,\s*\[([^\]]*)\]")


def link_plugins(folder: Path, installed: Path, enabled: Iterable[str], *, seen: Callable[[Path], Path]) -> None:
    """Fill a new folder with links to what RabbitMQ itself and the enabled plugins need.

    All libraries are among it. Whatever is no folder that we can read is, too.

    Args:
        folder: is made.
        installed: the folder of all plugins, as the server sees it.
        enabled: the names of plugins.
        seen: where something of the server's is for us.
    """
    entries = {entry.name: entry for entry in sorted(seen(installed).iterdir())}
    plugins = {found[1]: name for name in entries if entries[name].is_dir() and (found := _PLUGIN.fullmatch(name))}
    wanted = set(entries) - set(plugins.values())
    pending = [*(plugins[one] for one in enabled if one in plugins), *wanted]
    while pending:
        name = pending.pop()
        wanted.add(name)
        needed = (plugins[one] for one in _needed_by(entries[name]) if one in plugins)
        pending += [one for one in needed if one not in wanted]
    folder.mkdir(parents=True)
    for name in wanted:
        (folder / name).symlink_to(installed / name)


def _needed_by(entry: Path) -> list[str]:
    """The names of the applications that must run before this one."""
    return [
        one.strip()
        for described in entry.glob("ebin/*.app")
        for needed in _NEEDED.findall(described.read_text(encoding="utf-8", errors="replace"))
        for one in needed.split(",")
    ]
