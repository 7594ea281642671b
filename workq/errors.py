"""What can go wrong, as a tree. Every message says what, why, and what to do next.

WorkqError
├── ConfigError (ValueError)         a setting, name or option is wrong; nothing was contacted
│   ├── MissingExtra                 the client library for a URL is not installed
│   ├── NoLedger                     no ledger is where the settings say; nothing was made
│   └── BadSource                    a job's source yields what waiting does not mend: its job fails at once
├── PayloadError (ValueError)        arguments or a result that JSON cannot carry; nothing was recorded
├── UnknownTask (LookupError)        no handler is registered under that name
├── NotFound (LookupError)           no task with that id in the ledger
├── KeyConflict                      the key is taken by a live task with other arguments
├── SchemaMismatch                   the ledger's schema is missing, older or newer than this code
├── Refused                          an answer, not a fault: the state does not allow it
├── Unavailable (ConnectionError)    a server did not answer, or refused us
│   ├── LedgerUnavailable            nothing was recorded (or, as CommitUnknown, we cannot see whether)
│   │   ├── CommitUnknown            the connection broke during COMMIT: repeat with the same id
│   │   └── LedgerReplaced           the SQLite file was deleted or replaced under this process
│   ├── BrokerUnavailable            hints cannot be sent or fetched; the sweep relays them later
│   └── InFlightUnavailable          Redis did not answer: hold nothing, ack nothing
├── LeaseLost                        a store knows no live lease of this incarnation: stop claiming
├── VerificationFailed (ValueError)  a request is no webhook of who has the secret
├── NotInTask (RuntimeError)         current() was called outside of a handler
├── SoftTimeLimit                    raised inside a handler that exceeds time_limit_s
├── Cancel                           raised by a handler to cancel its own task
├── Retry                            raised by a handler: it has failed, and says when it runs again
└── Snooze                           raised by a handler: not now, and no failure either
"""

from __future__ import annotations

import math
from typing import Final

NAME_PATIENCE_S: Final = 60.0
"""For so long a name that nobody can resolve, or an answer in no protocol at all, may still be a server that starts."""


class WorkqError(Exception):
    """Base of every error that workq raises on purpose."""


class ConfigError(WorkqError, ValueError):
    """A setting, name or option is wrong. Raised before any I/O."""


class MissingExtra(ConfigError):
    """A URL names a server whose client library is not installed."""


class NoLedger(ConfigError):
    """The SQLite file that the settings name is not there, or holds no ledger. Only what records something makes it."""


class BadSource(ConfigError):
    """The source of a job yields what waiting does not mend: a line that is no JSON, rows that share a key.

    The job fails at once. Mend the data, then `workq job resume ID` reads on at the cursor. A source of your own may
    raise it, too.
    """


class PayloadError(WorkqError, ValueError):
    """Arguments or a result cannot be stored as JSON. Names the path, for example `args.x`."""


class UnknownTask(WorkqError, LookupError):
    """No handler is registered under that name in this application."""


class NotFound(WorkqError, LookupError):
    """The ledger has no task with that id."""


class KeyConflict(WorkqError):
    """A live task holds the same key with other arguments."""


class SchemaMismatch(WorkqError):
    """The ledger's schema is older (run `workq db migrate`) or newer (upgrade workq) than this code."""


class Refused(WorkqError):
    """The task's state does not allow what was asked."""


class Unavailable(WorkqError, ConnectionError):
    """A server did not answer in time, or refused the connection.

    `patience_s`: for so many seconds a worker that starts waits for it to be mended. 0.0: waiting does not mend it.
    """

    patience_s: float = math.inf


class LedgerUnavailable(Unavailable):
    """The ledger did not answer: nothing was recorded."""


class CommitUnknown(LedgerUnavailable):
    """The connection broke while committing: the change may or may not stand. Repeat it with the same ids."""


class LedgerReplaced(LedgerUnavailable):
    """The SQLite file was deleted or replaced while this process worked with it: nothing was recorded.

    It stays so until the process starts again, or closes its WorkQueue: it never goes on with another file by itself.
    """

    patience_s = 0.0


class BrokerUnavailable(Unavailable):
    """The broker did not answer. The ledger keeps the task; the sweep relays its hint later."""


class InFlightUnavailable(Unavailable):
    """The in-flight store did not answer. Hold nothing, ack nothing, and try again."""


class LeaseLost(WorkqError):
    """A store knows no live lease of this incarnation.

    Raised by a hold or after a claim: nothing was held or claimed, and the worker beats at once to learn whether it has
    a lease. Raised by a beat: the incarnation was reaped. It stops claiming; running handlers may end, as late results.
    """


class VerificationFailed(WorkqError, ValueError):
    """A request is no webhook of somebody who has the secret: not signed, signed otherwise, changed, or too old."""


class NotInTask(WorkqError, RuntimeError):
    """`current()` was called outside of a running handler."""


class SoftTimeLimit(WorkqError):
    """Raised inside a handler that has run longer than its `time_limit_s`."""


class Cancel(WorkqError):
    """Raise it in a handler to cancel the task: no retry, no failure counted.

    The reason is stored with the task.
    """

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(WorkqError):
    """Raise it in a handler that has failed, to say when it runs again; counted as a failure.

    `in_s` seconds from now, or as the handler's retry policy says. The reason is kept as the error.
    """

    def __init__(self, reason: str = "asked for by its handler", *, in_s: float | None = None) -> None:
        super().__init__(reason)
        self.in_s = in_s


class Snooze(WorkqError):
    """Raise it in a handler to run again in `in_s` seconds: no failure is counted, however often."""

    def __init__(self, in_s: float, reason: str = "") -> None:
        super().__init__(reason)
        self.in_s = in_s
        self.reason = reason
