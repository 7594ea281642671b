"""Jars: what servers written in Java are made of. `make servers` fetches them into one folder of the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from workq.lab.servers.programs import Programs, ServerMissing

JARS: Final = Path(__file__).parents[3] / ".jars"
"""Ignored by git, and kept: `make clean` leaves it."""
CLASSES: Final = "classes.jsa"
"""The file beside a server's jars that has the classes it loads, if somebody has made one."""
LOGGING: Final = """rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n
"""
"""A log4j2.properties: what matters goes to the server's log."""


def find_jars(name: str) -> Path:
    """The folder of one server and version below `JARS`, such as `kafka-4.4.0`.

    Raises:
        ServerMissing: it was not fetched.
    """
    folder = JARS / name
    if not folder.is_dir():
        raise ServerMissing(
            f"{name} is not there: make servers (it fetches the jars into {JARS.name}/ of the checkout; of Kafka, "
            "scripts/install-jars.sh fetches another version)"
        )
    return folder


def java(heap_mb: int, jars: Path | None) -> list[str]:
    """The Java runtime with a heap of at most so many MiB, made to start fast and to leave the cores to others.

    `jars`: the folder that may have an archive of their classes. One that does not fit is not used, and not spoken of.

    Raises:
        ServerMissing: it is not installed.
    """
    program = Programs().find("java", package="default-jre-headless")
    quiet = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true"]
    if jars is not None and (jars / CLASSES).exists():
        quiet += [f"-XX:SharedArchiveFile={jars / CLASSES}", "-Xlog:cds=off", "-Xlog:class+path=off"]
    return [program, f"-Xms{heap_mb // 2}m", f"-Xmx{heap_mb}m", *quiet]
