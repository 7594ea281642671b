"""Archives of the classes that Kafka and Artemis load: with one, each start takes a third less of a processor.

`make test` has them made once; a newer Java has them made again. A server that finds none, or one that does not fit its
Java and its jars, starts without.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Final

import psutil

from workq.lab.servers import ServerFailed, ServerMissing, artemis, kafka
from workq.lab.servers.artemis import Artemis
from workq.lab.servers.jars import CLASSES, find_jars, java
from workq.lab.servers.kafka import Kafka

END_S: Final = 120.0
"""How long Java may take to write one, when it ends."""


def make(server: type[Kafka | Artemis], folder: Path, heap_mb: int) -> None:
    """Make the archive of one kind of server, if it is missing or older than its Java."""
    archive = folder / CLASSES
    modules = Path(shutil.which("java") or "").resolve().parents[1] / "lib" / "modules"
    if archive.exists() and (not modules.exists() or archive.stat().st_mtime > modules.stat().st_mtime):
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


if __name__ == "__main__":
    try:
        make(Kafka, find_jars(f"kafka-{kafka.DEFAULT_VERSION}"), kafka.HEAP_MB)
        make(Artemis, find_jars(f"apache-artemis-{artemis.VERSION}"), artemis.HEAP_MB)
    except (ServerMissing, ServerFailed, psutil.Error, OSError) as error:  # it is about speed alone
        print(f"without archives of classes: {error}")
