"""The servers that all processes of a distributed run share: started once, and lent.

xdist runs the tests in some processes. The one that distributes them has the lender: it starts a server when the first
process asks for it, and ends all of them when the run is over. It outlives the others, so none of them loses a server
that another one has asked for. If it is killed, the guardians of its servers end them (workq/lab/servers/guardian.py);
the lender itself leaves no file.

Who borrows a server uses it under names of its own, and cannot stop, pause or kill it: others use it meanwhile.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Final, NoReturn

import psutil

from workq.lab.servers import Server, ServerFailed, ServerMissing

_NOT_LENT: Final = frozenset({"_process", "_helpers", "_guardian"})
_Loan = tuple[type[Server], dict[str, Any], int]
"""Of a server: its class, its attributes, its pid."""


class Lender:
    """Starts each server once, and keeps it until `close`."""

    def __init__(self, starters: Mapping[str, Callable[[], Server]]) -> None:
        """`starters`: what may be borrowed, by name."""
        self.token = secrets.token_hex(16)
        """By which a borrower finds it, and is let in."""
        self._starters = starters
        self._locks = {name: threading.Lock() for name in starters}
        self._lent: dict[str, Server | ServerMissing] = {}
        self._is_open = True
        self._listener = Listener(_address(self.token), authkey=self.token.encode())
        threading.Thread(target=self._serve, name="lender", daemon=True).start()

    def close(self) -> None:
        """End all servers, also one that is just starting. Repeatable."""
        self._is_open = False
        for name in self._starters:
            with self._locks[name]:
                if isinstance(server := self._lent.pop(name, None), Server):
                    server.kill()  # nobody reads what it has: an orderly end would be for nothing
                    server.stop()

    def _serve(self) -> None:
        while True:
            with contextlib.suppress(OSError, EOFError, AuthenticationError):
                threading.Thread(target=self._attend, args=[self._listener.accept()], daemon=True).start()

    def _attend(self, line: Connection[Any, Any]) -> None:
        with line, contextlib.suppress(OSError, EOFError):
            line.send(self._lend(line.recv()))

    def _lend(self, name: str) -> _Loan | ServerMissing | ServerFailed:
        with self._locks[name]:
            if not self._is_open:
                return ServerFailed(f"the run is over: {name} is not started any more")
            if name not in self._lent:
                try:
                    self._lent[name] = self._starters[name]()
                except ServerMissing as error:
                    self._lent[name] = error
                except ServerFailed as error:  # on a busy machine, perhaps: who asks next has it tried again
                    return error
            found = self._lent[name]
        if not isinstance(found, Server):
            return found
        return type(found), {key: value for key, value in vars(found).items() if key not in _NOT_LENT}, found.pid


class _Elsewhere:
    """A process that somebody else has started: as much of `subprocess.Popen` as is asked of a server in use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """None while it lives."""
        return None if psutil.pid_exists(self.pid) else -1


class _Borrowed:
    """What a server cannot do that is another process's."""

    def _refuse(self, *_: object) -> NoReturn:
        raise RuntimeError("this server is lent to all processes of the run: start one of your own (`private`)")

    start = kill = stop = restart = pause = resume = wipe = _refuse


def borrow(token: str, name: str) -> Server:
    """A server of the lender with this token; it starts when nobody has asked for it before.

    Raises:
        ServerMissing: it is not installed.
        ServerFailed: it could not be started.
    """
    with Client(_address(token), authkey=token.encode()) as line:
        line.send(name)
        answer = line.recv()
    if isinstance(answer, Exception):
        raise answer
    kind, attributes, pid = answer
    server: Server = object.__new__(type(kind.__name__, (_Borrowed, kind), {}))
    vars(server).update(attributes, _process=_Elsewhere(pid), _helpers=[])
    return server


def _address(token: str) -> str:
    """A name in the kernel's own list: no file has to be removed."""
    return f"\0workq-lender-{token}"
