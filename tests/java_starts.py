"""What makes servers in Java start at less cost, made once.

Archives of the classes that they load spare a third of a start. A folder as Kafka formats it spares a start of Java for
each node.

`make test` has them made; a newer Java has its archives made again. A server that finds none, or one that does not fit
its Java and its jars, starts without.
"""

from __future__ import annotations

import inspect
import os
import shutil
import signal
from pathlib import Path
from typing import Final

import psutil

from workq.lab.servers import ServerFailed, ServerMissing, artemis
from workq.lab.servers.artemis import Artemis
from workq.lab.servers.jars import CLASSES, find_jars, java
from workq.lab.servers.kafka import HEAP_MB, META, Kafka, chosen_version, format_of

END_S: Final = 120.0
"""How long Java may take to write an archive, when it ends."""


def make_archive(server: type[Kafka | Artemis], folder: Path, heap_mb: int) -> None:
    """Make the archive of one kind of server, if it is missing or older than its Java, or than how we start it."""
    archive = folder / CLASSES
    modules = Path(shutil.which("java") or "").resolve().parents[1] / "lib" / "modules"
    made_for = [one for one in (modules, Path(inspect.getfile(server))) if one.exists()]
    if archive.exists() and all(archive.stat().st_mtime > one.stat().st_mtime for one in made_for):
        return
    archive.unlink(missing_ok=True)
    partial = folder / f"{CLASSES}.{os.getpid()}"
    try:
        made = server(None, ())
        made._java = [*java(heap_mb, None), f"-XX:ArchiveClassesAtExit={partial}"]
        with made.first_start():
            process = psutil.Process(made.pid)
            os.kill(made.pid, signal.SIGTERM)
            process.wait(END_S)
        partial.rename(archive)
    finally:
        partial.unlink(missing_ok=True)


def keep_format(jars: Path, version: str) -> None:
    """Have this version of Kafka format a folder by its own program, and keep what it made, if it is not kept yet."""
    kept = format_of(jars, version)
    if kept.exists():
        return
    partial = kept.with_name(f"{kept.name}.{os.getpid()}")
    try:
        with Kafka(None, ()) as made:
            made._choose_ports()
            made._prepare()
            shutil.copytree(made._data, partial, ignore=shutil.ignore_patterns(META))
        partial.rename(kept)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


if __name__ == "__main__":
    version = chosen_version()
    try:
        jars = find_jars(f"kafka-{version}")
        keep_format(jars, version)
        make_archive(Kafka, jars, HEAP_MB)
        make_archive(Artemis, find_jars(f"apache-artemis-{artemis.VERSION}"), artemis.HEAP_MB)
    except (ServerMissing, ServerFailed, psutil.Error, OSError) as error:  # it is about speed alone
        print(f"starts of Java cost what they cost: {error}")
