"""Who holds a task: one life of one worker process.

A name such as "worker-1" is not an identity: a restarted pod with the same name would look alive and hide the
orphans of its former life. An incarnation names the host, its boot, the process, the process's start, and a nonce.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:  # not Linux: the boot time names the boot as well
        return f"{int(psutil.boot_time()):x}"


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of one worker process. `id` is unique for ever and at most 120 characters long."""

    id: str
    host: str
    pid: int

    @staticmethod
    def of_this_process() -> Incarnation:
        host = socket.gethostname()[:60]
        pid = os.getpid()
        started = int(psutil.Process(pid).create_time())
        return Incarnation(f"{host}.{_boot_id()}.{pid}.{started:x}.{secrets.token_hex(4)}", host, pid)
