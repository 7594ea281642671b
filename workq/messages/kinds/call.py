"""call: to a function of yours. It gets the `Posting`; that it returns is the confirm.

It reaches what workq has no kind for: RocketMQ, a mail server, an HTTP API with a login of its own. What it raises is a
failure like any other, and the message is sent again (`LATE`: whatever the function had done by then may be done):

    ConnectionError (workq.errors.Unavailable is one)    AWAY: the destination is not there, for any message
    workq.Retry, workq.Snooze                            ASKED, with the seconds that it names
    workq.Cancel                                         MESSAGE: this one will not be taken, however often
    everything else                                      LATE

It has as long as the call of the port has. One that is not back by then goes on, as Python cannot end it, and until it
is back no other message is given to it by this link (`AWAY`).
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from workq.config.addresses import Allowed
from workq.config.given_options import GivenOptions
from workq.errors import Cancel, ConfigError, Retry, Snooze
from workq.messages.kinds import (
    Answer,
    Confirmed,
    DestinationAddress,
    DestinationLink,
    Kind,
    Posting,
    SendFault,
    Unsent,
)
from workq.messages.kinds.reach import left

FORM: Final = "module.name, as in shop.outgoing.to_rocketmq"
_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
TEXT_MAX: Final = 400
CLOSE_S: Final = 0.5
Function = Callable[[Posting], object]


class CallKind(Kind):
    """`--handler module.name`: a function of one argument, which is imported when the first message goes to it."""

    name = "call"

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See the port. `handler`."""
        given = GivenOptions(options)
        name = given.text("handler", why=f"it is {FORM}")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"handler: need {FORM}, not {name!r:.60}")
        return given.done(kind=self.name)

    def open(self, address: DestinationAddress, *, allowed: Allowed) -> DestinationLink:  # noqa: ARG002 - the function goes where it likes
        """See the port. What the function connects to is its own affair."""
        return _CallLink(address.options["handler"])


class _CallLink(DestinationLink):
    def __init__(self, name: str) -> None:
        self._name = name
        self._function: Function | None = None
        self._calls: queue.SimpleQueue[tuple[Posting, queue.SimpleQueue[Answer]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_back = True

    def send(self, postings: Sequence[Posting], *, timeout_s: float) -> list[Answer]:
        """See the port."""
        ends = time.monotonic() + timeout_s
        try:
            self._function = self._function or _found(self._name)
        except LookupError as error:
            return [Unsent(SendFault.NO_TARGET, str(error)) for _ in postings]
        return [self._call(posting, ends) for posting in postings]

    def test(self, *, timeout_s: float) -> list[str]:  # noqa: ARG002 - nothing is contacted
        """See the port. The function is imported, and not called."""
        try:
            _found(self._name)
        except LookupError as error:
            return [str(error)]
        return []

    def close(self) -> None:
        """See the port."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            thread.join(CLOSE_S)

    def _call(self, posting: Posting, ends: float) -> Answer:
        if not self._is_back:
            return Unsent(SendFault.AWAY, f"{self._name} is not back yet from the message before")
        if time.monotonic() >= ends:
            return Unsent(SendFault.AWAY, "no time was left")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="workq-call", daemon=True)
            self._thread.start()
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._is_back = False
        self._calls.put((posting, answers))
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=left(ends))
        return Unsent(SendFault.LATE, f"{self._name} did not return in time")

    def _run(self) -> None:
        """The thread that calls: one call after the other."""
        calls, function = self._calls, self._function
        assert function is not None  # noqa: S101 - there is no call without it
        while (one := calls.get()) is not None:
            posting, answers = one
            answer = _answer_of(function, posting)
            self._is_back = True
            answers.put(answer)


def _answer_of(function: Function, posting: Posting) -> Answer:
    try:
        function(posting)
    except Cancel as error:
        return Unsent(SendFault.MESSAGE, _said(error))
    except (Retry, Snooze) as error:
        return Unsent(SendFault.ASKED, _said(error), error.in_s)
    except ConnectionError as error:
        return Unsent(SendFault.AWAY, _said(error))
    except Exception as error:
        return Unsent(SendFault.LATE, _said(error))
    except BaseException as error:  # SystemExit and the like end the call, and not the thread
        return Unsent(SendFault.LATE, _said(error))
    return Confirmed()


def _found(name: str) -> Function:
    """The function by its name.

    Raises:
        LookupError: it cannot be imported, or is none.
    """
    module, _, attribute = name.rpartition(".")
    try:
        function = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # of the module, too, which may call sys.exit() when it is imported
        raise LookupError(f"{name} cannot be imported: {_said(error)}") from None
    if not callable(function):
        raise LookupError(f"{name} is no function")
    found: Function = function
    return found


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:TEXT_MAX]
