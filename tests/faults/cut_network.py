"""Hosts in network namespaces, and a hub between them that can drop all that one sends to another.

    alone(...)                        this process begins again in a network of its own, with nothing in it but loopback
    with CutNetwork(["a", "b"]) as network:
        network.place("a")            where a server may be started
        network.cut("a", "b")         packets between them vanish; nobody is told
        network.heal()

Each host has one wire to the hub, which forwards. This process is a host, too, and is never cut off. All of it is in
namespaces that go with the last process in them: of the machine nothing is changed. Root is needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from workq.lab.servers.place import NetworkPlace

_LIMIT_S: Final = 30.0


def alone(module: str, words: Sequence[str]) -> None:
    """Go on in a network of our own: the module is started again in one, with the same words. There: do nothing.

    Raises:
        SystemExit: it may not be made.
    """
    if _is_alone():
        return
    if os.geteuid() != 0:
        raise SystemExit(f"{module}: network namespaces need root")
    begin = ["unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    os.execvp(begin[0], [*begin, sys.executable, "-m", module, *words])  # noqa: S606 - there is one, with fixed words


class CutNetwork:
    """Some hosts. As a context manager they are gone at the block's end."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = tuple(hosts)
        self._cut: list[list[str]] = []
        self._held = ExitStack()
        self._hub = 0
        self._pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        if not _is_alone():
            raise RuntimeError("this network is not ours: call alone() first")
        with ExitStack() as made:
            self._hub = made.enter_context(_Holder()).pid
            for number, host in enumerate(self._hosts, 1):
                self._pids[host] = made.enter_context(_Holder()).pid
                self._wire(number, self._pids[host])
            self._wire(0, os.getpid())
            _run([*_inside(self._hub), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
            self._held = made.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, trace)

    def place(self, host: str) -> NetworkPlace:
        """Where it is, for a server that shall be there."""
        known = tuple((one, self._address(one)) for one in self._hosts)
        return NetworkPlace(
            host, self._address(host), tuple(_inside(self._pids[host])), (*known, ("localhost", "127.0.0.1"))
        )

    def cut(self, one: str, other: str) -> None:
        """From now on, nothing that one of them sends reaches the other."""
        for source, target in permutations((self._address(one), self._address(other))):
            rule = ["from", source, "to", target, "blackhole"]
            _run([*_inside(self._hub), "ip", "rule", "add", *rule])
            self._cut.append(rule)

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        while self._cut:
            _run([*_inside(self._hub), "ip", "rule", "del", *self._cut[-1]])
            self._cut.pop()

    def _address(self, host: str) -> str:
        return f"10.77.{1 + self._hosts.index(host)}.2"

    def _wire(self, number: int, pid: int) -> None:
        """Between the hub and the namespace of this process."""
        hub, there, port = _inside(self._hub), _inside(pid), f"host{number}"
        net = f"10.77.{number}"
        for command in (
            [*hub, "ip", "link", "add", port, "type", "veth", "peer", "name", "hub", "netns", str(pid)],
            [*hub, "ip", "address", "add", f"{net}.1/30", "dev", port],
            [*hub, "ip", "link", "set", port, "up"],
            [*there, "ip", "address", "add", f"{net}.2/30", "dev", "hub"],
            [*there, "ip", "link", "set", "lo", "up"],
            [*there, "ip", "link", "set", "hub", "up"],
            [*there, "ip", "route", "add", "default", "via", f"{net}.1"],
        ):
            _run(command)


class _Holder:
    """A process that keeps a network namespace in being, until its input ends: with us at the latest."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["unshare", "--net", "--", "cat"], stdin=subprocess.PIPE)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _LIMIT_S
        while _network(str(self.pid)) == _network("self"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError("no network namespace could be made")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _is_alone() -> bool:
    """Whether this process left the network of the one that started it."""
    return _network("self") != _network(str(os.getppid()))


def _inside(pid: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]


def _network(process: str) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink())


def _run(command: Iterable[str]) -> None:
    subprocess.run(list(command), check=True, timeout=_LIMIT_S)
