"""CPU and memory of process trees, from /proc through psutil.

CPU is user + system seconds, of live processes and of their children that have ended. The kernel counts in ticks of
10 ms. Memory is PSS: pages that processes share are split between them.
"""

from __future__ import annotations

from collections.abc import Iterable

import psutil


def tree(pids: Iterable[int]) -> list[psutil.Process]:
    """These processes and everything under them that lives now, parents first."""
    found: list[psutil.Process] = []
    for pid in pids:
        try:
            root = psutil.Process(pid)
            found += [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found


def cpu_by_pid(processes: Iterable[psutil.Process]) -> dict[int, float]:
    """Seconds of each, its ended children included. Those that are gone are left out."""
    used: dict[int, float] = {}
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        used[process.pid] = times.user + times.system + times.children_user + times.children_system
    return used


def cpu_s(pid: int) -> float:
    """Seconds of one tree, now."""
    return sum(cpu_by_pid(tree([pid])).values())


def pss_mb(processes: Iterable[psutil.Process]) -> float:
    """Megabytes (10^6 bytes) of all together. Those that are gone count nothing."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 1e6


def kill(pids: Iterable[int]) -> None:
    """SIGKILL to these trees and nothing else, and wait until all are gone.

    Each process is stopped before it is killed, and the trees are listed again until nothing new appears: a supervisor
    can neither react nor start another one in between.
    """
    roots = list(pids)
    doomed: dict[int, psutil.Process] = {}
    while True:
        new = [process for process in tree(roots) if process.pid not in doomed]
        if not new:
            break
        for process in new:
            doomed[process.pid] = process
            _tell(process, "suspend")
    for process in doomed.values():
        _tell(process, "kill")
    psutil.wait_procs(doomed.values(), timeout=10.0)


def given(name: str, value: str) -> list[int]:
    """The pids of processes that have this in their environment: also of children whose parent has ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue  # gone, or somebody else's
    return found


def _tell(process: psutil.Process, verb: str) -> None:
    try:
        getattr(process, verb)()
    except psutil.NoSuchProcess:
        return
