"""Where the commands' log lines go: standard error, one line an event, with its fields.

The library itself only writes to the loggers below `workq`; it configures nothing. What strangers can cause as often as
they like goes through `Seldom`: a line now and then, with a count.
"""

from __future__ import annotations

import logging
import threading
import time

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _OneLine(logging.Formatter):
    """`time level event key=value ...`; line breaks and control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        first, *rest = text.split("\n")
        fields = " ".join(f"{key}={value}" for key, value in vars(record).items() if key not in _PLAIN)
        line = f"{first} {fields}" if fields else first
        line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
        return "\n".join([line, *("  " + one for one in rest)])


def configure(level: int = logging.INFO) -> None:
    """Write the log to standard error, once."""
    root = logging.getLogger("workq")
    if root.handlers:
        root.setLevel(level)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(process)d %(message)s"))
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # it reports each broken connection five times; we do once


class Seldom:
    """One line for the first event of a kind, then at most one every `every_s` seconds with how many there were."""

    def __init__(self, log: logging.Logger, *, every_s: float = 10.0) -> None:
        self._log = log
        self._every_s = every_s
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        """By event and reason: when the last line was written, and how many came since."""

    def warning(self, event: str, *, reason: str, count: int = 1, **fields: object) -> None:
        """Note `count` events; `fields` describe the last of them."""
        now = time.monotonic()
        with self._lock:
            written_at, since = self._seen.get((event, reason), (float("-inf"), 0))
            since += count
            is_time = now - written_at >= self._every_s
            self._seen[event, reason] = (now, 0) if is_time else (written_at, since)
        if is_time:
            self._log.warning(event, extra={"reason": reason, "count": since, **fields})

    def flush(self) -> None:
        """Write what was counted and not told yet."""
        with self._lock:
            untold = {key: since for key, (_, since) in self._seen.items() if since}
            self._seen.clear()
        for (event, reason), since in untold.items():
            self._log.warning(event, extra={"reason": reason, "count": since})
