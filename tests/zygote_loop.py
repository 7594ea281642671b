"""The loop of the zygote: it forks a process for each request at once, and waits for none of them.

A request comes with three open files. The answers are the pid, when the process has begun, and its exit status.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

REQUEST_MAX: Final = 1 << 20
_MADV_COLLAPSE: Final = 25
_LARGE_PAGE: Final = 1 << 21
Become = Callable[[Mapping[str, Any], Sequence[int], Callable[[], None]], NoReturn]
"""In the process that was forked: be what the request says, with these files, and tell when that begins."""


def fork_for_each(listener: socket.socket, become: Become) -> None:
    """Serve until standard input ends."""
    with selectors.DefaultSelector() as selector:

        def accept() -> None:
            line, _ = listener.accept()
            selector.register(line, selectors.EVENT_READ, lambda: _Run(line, selector, become))

        selector.register(listener, selectors.EVENT_READ, accept)
        selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    return
                if selector.get_map().get(key.fd) == key:  # else it has ended by what came before it in this round
                    key.data()


class _Run:
    """One run, from its request to its status. What comes of it is called by the loop, which waits for none of them."""

    def __init__(self, line: socket.socket, selector: selectors.BaseSelector, become: Become) -> None:
        """A request has come."""
        self._line = line
        self._selector = selector
        selector.unregister(line)
        body, fds, _, _ = socket.recv_fds(line, REQUEST_MAX, 3)
        if not body:  # who wanted to ask has gone
            line.close()
            return
        request = json.loads(body)
        self._ends_with_its_shim = bool(request.get("ends_with_its_shim"))
        self._is_told = False
        self._begun, begins = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._leave_the_loop()
            become(request, fds, lambda: os.close(begins))
        for one in (*fds, begins):
            os.close(one)
        # it is told of when it is in its own session, as whoever signals a group expects
        selector.register(self._begun, selectors.EVENT_READ, self._tell)
        self._end = os.pidfd_open(self._pid)
        selector.register(self._end, selectors.EVENT_READ, self._bury)

    def _leave_the_loop(self) -> None:
        """In the process that was forked: nothing of the others stays open there."""
        for key in [*self._selector.get_map().values()]:
            if key.fd != 0:
                os.close(key.fd)
        self._selector.close()
        self._line.close()
        os.close(self._begun)

    def _tell(self) -> None:
        self._is_told = True
        self._selector.unregister(self._begun)
        os.close(self._begun)
        self._send(self._pid)
        if self._ends_with_its_shim:
            self._selector.register(self._line, selectors.EVENT_READ, self._kill)

    def _kill(self) -> None:
        """Its shim has ended."""
        self._selector.unregister(self._line)
        signal.pidfd_send_signal(self._end, signal.SIGKILL)

    def _bury(self) -> None:
        if not self._is_told:
            self._tell()
        for one in (self._line, self._end):
            if one in self._selector.get_map():
                self._selector.unregister(one)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._end)
        self._send(os.waitstatus_to_exitcode(status))
        self._line.close()

    def _send(self, number: int) -> None:
        with contextlib.suppress(OSError):  # whoever asked has gone
            self._line.send(str(number).encode())


def gather_memory() -> None:
    """Have the kernel put the memory of this process into large pages: it copies a table of all pages at each fork.

    So a fork takes 2.8 ms of a processor in the place of 4.4. Linux before 6.1 cannot, and nothing else is different.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, kind, _, _, file, *name = line.split()
        if kind == "rw-p" and file == "0" and name in ([], ["[heap]"]):
            first, last = (int(one, 16) for one in addresses.split("-"))
            first, last = -(-first // _LARGE_PAGE) * _LARGE_PAGE, last // _LARGE_PAGE * _LARGE_PAGE
            if first < last:
                madvise(first, last - first, _MADV_COLLAPSE)
