"""Who holds a task: one life of one worker process.

A name such as "worker-1" is not an identity: a restarted pod with the same name would look alive and hide the
orphans of its former life. An incarnation names the host, its boot, the process, the process's start, and a nonce.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

ID_MAX = 120
"""Characters of the id of an incarnation."""


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:  # not Linux: the boot time names the boot as well
        return f"{int(psutil.boot_time()):x}"


@cache
def this_machine() -> str | None:
    """The boot and the process namespace that this process lives in; None where that cannot be told (not Linux).

    Two processes with the same answer see each other's pids: the host's name would not do, because containers may share
    it, and their boot, without sharing their processes.
    """
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    return f"{_boot_id()}.{namespace:x}"


def is_gone(pid: int) -> bool:
    """Whether no process of this machine has that pid any more, dead ones aside.

    A pid that another process has by now counts as there: the lease of the dead one tells in the end. So does a process
    that cannot be seen, as /proc may hide those of other users.
    """
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.ZombieProcess:
        return True
    except psutil.NoSuchProcess:
        return not _is_there(pid)
    except psutil.Error:
        return False


def _is_there(pid: int) -> bool:
    if pid <= 0:  # which is no process, and a signal to it goes to a group
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of one worker process. `id` is unique for ever and at most `ID_MAX` characters long.

    `machine` and `parent` (the pid of its supervisor) let others on the same machine see that it is gone.
    """

    id: str
    host: str
    pid: int
    machine: str | None = None
    parent: int | None = None

    @staticmethod
    def of_this_process() -> Incarnation:
        host = socket.gethostname()[:60]
        pid = os.getpid()
        started = int(psutil.Process(pid).create_time())
        return Incarnation(
            f"{host}.{_boot_id()}.{pid}.{started:x}.{secrets.token_hex(4)}", host, pid, this_machine(), os.getppid()
        )


def this_person() -> str:
    """Who runs this process, for events: `user@host`."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
