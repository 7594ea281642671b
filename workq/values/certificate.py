"""Evidence: what is known of a worker process that has ended, and the certificate of its death.

Who says what: a supervisor that saw its child end knows the exit status or the signal, what had started, and what the
kernel counted (supervisor/oom.py); a sweep knows only that nobody is there any more. The ledger adds the last beat, who
had claimed what, and who was charged. What nobody can know stands in `unknown`, in words.

A certificate is written once, in the transaction that ends the claims, and is never changed: JSON in the worker's row,
and its essentials in the `reaped` event of each task, which is kept longer.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, assert_never

import msgspec

from workq.values import codec

CAUSE_MAX: Final = 2000
"""How many characters of a cause are kept in a certificate."""
STACK_MAX: Final = 8_000
"""How many characters of one stack are kept."""
CLAIMS_MAX: Final = 200
"""How many claims a certificate names; it counts the others."""

EXIT_GRACE_EXCEEDED: Final = 1
"""It was told to leave, and what it ran did not end in time."""
EXIT_LEASE_LOST: Final = 75
EXIT_BROKEN: Final = 70
"""A thread that nothing works without has died, or an error came that nobody expected."""

_FAULTS: Final = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")


class ProofOfEnd(StrEnum):
    """How it is known that an incarnation has ended."""

    KILLED = "killed"
    """Its supervisor saw it end: by a signal, or with an exit status."""
    HARD_LIMIT = "hard_limit"
    """Its supervisor killed it, because an attempt exceeded its hard limit."""
    CANCEL = "cancel"
    """Its supervisor killed it, because a person had cancelled an attempt by force."""
    SHUTDOWN = "shutdown"
    """Its supervisor ended it at shutdown."""
    GONE = "gone"
    """Its process is gone from this machine, and nobody saw how."""
    LEASE = "lease"
    """Its lease ended and it did not beat: it was paused, cut off, or its host is dead."""
    ABSENCE = "absence"
    """It did not beat, and none of its connections was in any store: it is cut off from all, or its host is dead."""
    REDIS_LOSS = "redis_loss"
    """The in-flight store lost its lease, and it did not come back to assert it."""
    ORPHAN = "orphan"
    """A claim was left over under an incarnation that had ended before."""
    FORGOTTEN = "forgotten"
    """A claim stood under an incarnation that lives and does not have it: the ledger was restored from a backup."""


class Charge(StrEnum):
    """What a claim of a dead incarnation cost its task."""

    CRASH = "crash"
    SUSPICION = "suspicion"
    """It ran in company when its process died: it runs alone from now on, and pays for the next crash."""
    PRESENCE = "presence"
    """Its worker ended and nobody saw why, or its handler had ended already: free, the first time."""
    FAILURE = "failure"
    NOTHING = "nothing"


class OutOfMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Kills for want of memory that the kernel counted when the process died: in its control group, on the machine.

    None is a counter that cannot be read here.
    """

    group_kills: int | None = None
    machine_kills: int | None = None
    limit_bytes: int | None = None
    """What its control group may use; None without a limit, or when it cannot be read."""

    @property
    def is_counted(self) -> bool:
        """Whether the kernel counts a kill: in the control group, or on the machine where no group can be read."""
        return bool(self.machine_kills if self.group_kills is None else self.group_kills)


class Ran(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One claim of the dead: what it was, whether it had started, and what came of it."""

    task_id: str
    attempt: int
    name: str
    state: str
    """Where the task went."""
    charged: Charge
    started: bool
    ran_s: float | None = None
    """Seconds since its start."""
    stack: str | None = None
    """Of its thread, before the kill."""


class Certificate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How one incarnation ended, what it was doing, and who was charged. What is absent is not known."""

    kind: ProofOfEnd
    cause: str
    host: str | None = None
    pid: int | None = None
    exit_status: int | None = None
    signal: str | None = None
    oom: OutOfMemory | None = None
    memory_bytes: int | None = None
    """At the supervisor's last look."""
    memory_age_s: float | None = None
    peak_bytes: int | None = None
    """The most that it ever used, as the kernel told when it had ended; never less than its supervisor used."""
    beat_memory_bytes: int | None = None
    """At its last beat."""
    beat_age_s: float | None = None
    """How old its last beat in the ledger was."""
    stack_note: str | None = None
    """Why there is no stack where one was asked for."""
    unknown: tuple[str, ...] = ()
    claims: tuple[Ran, ...] = ()
    """Those that had started first; at most `CLAIMS_MAX`."""
    claims_more: int = 0


@dataclass(frozen=True, slots=True)
class DeathFacts:
    """What a supervisor knows of its dead child beyond the cause. All of it may be absent."""

    exit_status: int | None = None
    signal: str | None = None
    oom: OutOfMemory | None = None
    memory_bytes: int | None = None
    memory_age_s: float | None = None
    peak_bytes: int | None = None
    ran_s: Mapping[str, float] = field(default_factory=dict)
    """By task id."""
    stacks: Mapping[str, str] = field(default_factory=dict)
    """By task id."""
    stack_note: str | None = None
    unknown: tuple[str, ...] = ()


NO_FACTS: Final = DeathFacts()
STARTED_UNKNOWN: Final = "which of its claims had started: all count as started"


def unknown_of(kind: ProofOfEnd) -> tuple[str, ...]:
    """What nobody can know about an ending of this kind."""
    match kind:
        case ProofOfEnd.KILLED | ProofOfEnd.HARD_LIMIT | ProofOfEnd.CANCEL | ProofOfEnd.SHUTDOWN:
            return ()
        case ProofOfEnd.GONE:
            return ("how it ended: nobody waited for it",)
        case ProofOfEnd.LEASE:
            return ("whether it died, was paused, or was cut off: nobody saw it",)
        case ProofOfEnd.ABSENCE:
            return ("whether it died or was cut off from every store: nobody saw it",)
        case ProofOfEnd.REDIS_LOSS:
            return ("whether it died before or after the loss: nobody saw it",)
        case ProofOfEnd.ORPHAN:
            return ("how its worker ended: see the certificate of that one, if it has one",)
        case ProofOfEnd.FORGOTTEN:
            return ("whether it had ended, in what the ledger or its worker has forgotten",)
        case _:
            assert_never(kind)


def signal_of(status: int) -> str | None:
    """The name of the signal in an exit status as `subprocess` has it; None when it was no signal."""
    if status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def how_it_ended(status: int, oom: OutOfMemory, *, started: int) -> tuple[str, tuple[str, ...]]:
    """The sentence about an exit status that the supervisor did not cause, and what stays unknown.

    `started` is how many attempts had started: of several, an exit status does not tell which one it was.
    """
    name = signal_of(status)
    who = ("which of the attempts that had started it was",) if started > 1 else ()
    if name == "SIGKILL":
        return _sigkill(oom, who)
    if name is not None and name in _FAULTS:
        return f"killed by {name}: a fault in native code", who
    if name == "SIGABRT":
        return "killed by SIGABRT: native code gave up by itself (abort)", who
    if name is not None:
        return f"killed by {name}, which its supervisor did not send", ("who sent it",)
    if status == EXIT_BROKEN:
        return f"exit status {status}: a thread of workq's own died; the worker's log says why", ()
    return f"exit status {status} without taking leave: something in it ended the process (os._exit)", who


def _sigkill(oom: OutOfMemory, who: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """A kill for want of memory is counted in the victim's own control group: where that can be read, it decides."""
    if oom.group_kills:
        limit = f" of at most {oom.limit_bytes >> 20} MiB" if oom.limit_bytes is not None else ""
        text = f"killed by the kernel: out of memory (SIGKILL, and its control group{limit} counts {oom.group_kills}"
        return f"{text} more)", (
            "the kernel counts for the whole group: that this process was meant is concluded",
            *who,
        )
    if oom.group_kills is None and oom.machine_kills:
        text = f"killed by the kernel: out of memory (SIGKILL, and the machine counts {oom.machine_kills} more)"
        return text, ("the kernel counts for the whole machine: that this process was meant is concluded", *who)
    if oom.group_kills is None and oom.machine_kills is None:
        text = "killed by SIGKILL: from outside, or by the kernel for want of memory"
        return text, ("which of the two: no counter of the kernel can be read here", *who)
    where = "its control group" if oom.group_kills is not None else "the machine"
    return f"killed by SIGKILL from outside: {where} counts no kill for want of memory", ("who sent it", *who)


def certificate_in(text: str | None) -> Certificate | None:
    """The certificate in a worker's row; None for none, and for the plain text that older versions wrote."""
    if text is None or not text.startswith("{"):
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None  # a newer version may know more kinds


def sentence_in(text: str | None) -> str | None:
    """The cause in a worker's row, whoever wrote it."""
    if text is None or not text.startswith("{"):
        return text
    try:
        return _cause_decoder.decode(text).cause
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


def text_of(certificate: Certificate) -> str:
    """As it is stored."""
    return msgspec.json.encode(certificate).decode("utf-8")


def fields_of(known: Certificate | Ran) -> dict[str, Any]:
    """As a document; what is not known is absent."""
    document: dict[str, Any] = msgspec.to_builtins(known)
    return document


def kept(text: str, characters_max: int = CAUSE_MAX) -> str:
    """Text as every ledger can store it."""
    return codec.storable(text, characters_max=characters_max)


class _Cause(msgspec.Struct, frozen=True):
    cause: str


_decoder = msgspec.json.Decoder(Certificate)
_cause_decoder = msgspec.json.Decoder(_Cause)
