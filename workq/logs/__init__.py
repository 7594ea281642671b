"""Where the log of a command goes: standard error, one line an event, with its fields; or the application's handlers.

The library itself only writes to the loggers below `workq`, and configures nothing. The commands that work (`worker`,
`sweep`) call `configure` once the application is imported. An application that has configured logging by then (its root
logger or `workq` has handlers) gets what workq logs there; otherwise all loggers, its own too, write lines here.

Recovery never waits for the log: see buffer.py. What can happen as often as anybody likes goes through `Seldom`.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from workq.logs.buffer import FLUSH_S, Buffer, LineBuffer, RecordBuffer
from workq.logs.forms import FORMS, Form, SaidForm
from workq.logs.seldom import tell_counts

__all__ = ["Form", "configure", "flush", "printer", "shut_down"]

_buffers: list[Buffer[Any]] = []
"""What `flush` waits for."""


def configure(level: int = logging.INFO, *, form: Form = "text", fields: logging.Filter | None = None) -> bool:
    """Send what this process logs to where it belongs. Repeatable: only the level changes.

    Answers whether it is written here, in this `form`: not where the application has configured logging.

    `fields`: a filter that adds to each record what it should say beside its own fields.
    """
    ours, root = logging.getLogger("workq"), logging.getLogger()
    ours.setLevel(level)
    if any(isinstance(one, Buffer) for one in ours.handlers):
        return any(isinstance(one, LineBuffer) for one in ours.handlers)
    handlers = [one for one in ours.handlers if not isinstance(one, logging.NullHandler)]
    is_configured = bool(handlers or root.handlers)
    buffer: Buffer[Any] = (
        RecordBuffer(handlers, has_root=ours.propagate) if is_configured else LineBuffer(FORMS[form]())
    )
    _buffers.append(buffer)
    if fields is not None:
        buffer.addFilter(fields)
    for one in handlers:
        ours.removeHandler(one)
    ours.addHandler(buffer)
    ours.propagate = False
    if not is_configured:
        root.addHandler(buffer)
        if root.level == logging.WARNING:  # as Python leaves it
            root.setLevel(max(level, logging.INFO))
        logging.captureWarnings(True)
    for name in list(root.manager.loggerDict):  # `dictConfig` disables what was there before, unless it is told not to
        if name.startswith("workq."):
            logging.getLogger(name).disabled = False
    ours.disabled = False
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # it reports each broken connection five times; we do once
    return not is_configured


def printer(fd: int, *, is_json: bool) -> LineBuffer:
    """What prints on standard output (1) or standard error (2), for a command that runs on and must not wait."""
    made = LineBuffer(SaidForm(is_json=is_json), fd=fd)
    _buffers.append(made)
    return made


def flush() -> bool:
    """Write what was counted and what waits, within a second. False: something is left, because nothing is taken."""
    tell_counts(are_all=True)
    for one in _buffers:
        one.flush()
    return not any(one.is_stuck for one in _buffers)


def shut_down() -> None:
    """The process ends at once after this: write what waits, and close the handlers, within about two seconds."""
    flush()
    closing = threading.Thread(target=logging.shutdown, name="workq-log-end", daemon=True)
    closing.start()  # a handler of the application's may be held up for ever
    closing.join(FLUSH_S)
