"""Named places where a test makes this process stop, as a crash at exactly that moment would.

`WORKQ_FAILPOINT=settle.before_release:exit137@3` ends the process with status 137 at the third time that the point
is reached; `raise` raises OSError there instead; `pause` stops the process with SIGSTOP. Without the variable,
`reach` costs one comparison.

`WORKQ_FAILPOINT_ONCE=PATH` lets only one process stop, however many have the variable: the one that creates the file
PATH. Its successors find the file and pass. The file holds the process id, so that a test sees that the point was
reached.
"""

from __future__ import annotations

import os
import re
import signal
import threading

from workq.errors import ConfigError

POINTS = frozenset(
    {
        "record.after_commit",
        "relay.before_publish",
        "relay.before_mark",
        "worker.before_hold",
        "worker.before_ack",
        "worker.before_takeover",
        "worker.before_claim",
        "worker.before_commit",
        "worker.before_run",
        "poll.before_hold",
        "poll.after_hold",
        "worker.before_let_go",
        "worker.after_run",
        "settle.before_write",
        "settle.before_retry_hint",
        "settle.before_advance",
        "sweep.before_advance",
        "settle.before_admit",
        "sweep.before_admit",
        "sweep.before_tend",
        "split.before_record",
        "split.after_record",
        "settle.before_release",
        "transaction.before_settle",
        "transaction.before_commit",
        "transaction.after_commit",
        "step.before_commit",
        "step.after_commit",
        "beat.before_write",
        "beat.before_return",
        "beat.before_hints",
        "watch.before_reap",
        "sweep.before_relay",
        "sweep.before_settle",
        "sweep.before_reap",
        "sweep.before_unhint",
        "sweep.before_forget",
        "sweep.before_hints",
        "sweep.before_tick",
        "sweep.after_tick",
        "sweep.before_promote",
        "sweep.before_marker",
        "sweep.before_repair",
        "worker.before_return",
        "supervisor.before_reap",
        "later.before_publish",
        "move.before_publish",
        "move.before_delete",
        "move.after_delete",
        "intake.before_quarantine",
        "intake.before_record",
        "intake.after_record",
    }
)
_FORM = re.compile(r"(?P<point>[a-z_.]+):(?P<act>exit137|raise|pause)(@(?P<nth>[1-9][0-9]*))?\Z")


class _Armed:
    """One point, what happens there, and after how many passes."""

    def __init__(self, text: str) -> None:
        match = _FORM.match(text)
        if match is None or match["point"] not in POINTS:
            raise ConfigError(f"WORKQ_FAILPOINT: need POINT:exit137|raise|pause[@N], got {text!r}")
        self.point, self.act, self.left = match["point"], match["act"], int(match["nth"] or 1)
        self.lock = threading.Lock()

    def passed(self) -> None:
        with self.lock:
            self.left -= 1
            if self.left != 0:
                return
        if not _is_first():
            return
        if self.act == "exit137":
            os._exit(137)
        if self.act == "pause":
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        raise OSError(f"failpoint {self.point}")


def _is_first() -> bool:
    """Whether this process is the one to stop."""
    path = os.environ.get("WORKQ_FAILPOINT_ONCE")
    if not path:
        return True
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    os.write(handle, str(os.getpid()).encode())
    os.close(handle)
    return True


_armed = _Armed(os.environ["WORKQ_FAILPOINT"]) if os.environ.get("WORKQ_FAILPOINT") else None


def reach(point: str) -> None:
    """This step of the protocol is about to begin (or has just ended)."""
    if _armed is not None and _armed.point == point:
        _armed.passed()
