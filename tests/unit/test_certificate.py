"""Evidence: the sentence about each way to die is right, and what it does not know is said."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from workq.ledger import WorkerRow
from workq.recovery.deaths import of_silence
from workq.values.certificate import (
    Certificate,
    Charge,
    OutOfMemory,
    ProofOfEnd,
    Ran,
    certificate_in,
    fields_of,
    how_it_ended,
    sentence_in,
    text_of,
    unknown_of,
)

MIB = 1 << 20
OOM = "killed by the kernel: out of memory (SIGKILL"
WHICH = "which of the attempts that had started it was"


@pytest.mark.parametrize(
    ("status", "oom", "says"),
    [
        (-9, OutOfMemory(1, 1, 512 * MIB), f"{OOM}, and its control group of at most 512 MiB counts 1 more)"),
        (-9, OutOfMemory(2, None), f"{OOM}, and its control group counts 2 more)"),
        (-9, OutOfMemory(None, 1), f"{OOM}, and the machine counts 1 more)"),
        (-9, OutOfMemory(0, 1), "killed by SIGKILL from outside: its control group counts no kill for want of memory"),
        (-9, OutOfMemory(0, 0), "killed by SIGKILL from outside: its control group counts no kill for want of memory"),
        (-9, OutOfMemory(None, 0), "killed by SIGKILL from outside: the machine counts no kill for want of memory"),
        (-9, OutOfMemory(), "killed by SIGKILL: from outside, or by the kernel for want of memory"),
        (-11, OutOfMemory(0, 0), "killed by SIGSEGV: a fault in native code"),
        (-7, OutOfMemory(), "killed by SIGBUS: a fault in native code"),
        (-6, OutOfMemory(), "killed by SIGABRT: native code gave up by itself (abort)"),
        (-15, OutOfMemory(), "killed by SIGTERM, which its supervisor did not send"),
        (-63, OutOfMemory(), "killed by signal 63, which its supervisor did not send"),
        (0, OutOfMemory(), "exit status 0 without taking leave: something in it ended the process (os._exit)"),
        (3, OutOfMemory(), "exit status 3 without taking leave: something in it ended the process (os._exit)"),
        (70, OutOfMemory(), "exit status 70: a thread of workq's own died; the worker's log says why"),
    ],
    ids=["group_limit", "group", "machine", "machine_only_others", "none", "no_group", "unreadable", "segv", "bus",
         "abort", "term", "number", "zero", "three", "broken"],
)  # fmt: skip
def test_each_way_to_die_has_its_sentence(status: int, oom: OutOfMemory, says: str) -> None:
    assert how_it_ended(status, oom, started=1)[0] == says


@pytest.mark.parametrize(
    ("status", "oom", "unknown"),
    [
        (-9, OutOfMemory(1, 1), "the kernel counts for the whole group: that this process was meant is concluded"),
        (-9, OutOfMemory(None, 1), "the kernel counts for the whole machine: that this process was meant is concluded"),
        (-9, OutOfMemory(), "which of the two: no counter of the kernel can be read here"),
        (-9, OutOfMemory(0, 0), "who sent it"),
        (-15, OutOfMemory(), "who sent it"),
    ],
    ids=["group", "machine", "unreadable", "outside", "term"],
)
def test_what_an_exit_status_does_not_tell_is_said(status: int, oom: OutOfMemory, unknown: str) -> None:
    assert how_it_ended(status, oom, started=1)[1] == (unknown,)


@pytest.mark.parametrize("status", [-9, -11, -6, 0])
def test_of_several_attempts_an_exit_status_does_not_tell_which_it_was(status: int) -> None:
    assert WHICH in how_it_ended(status, OutOfMemory(0, 0), started=2)[1]
    assert WHICH not in how_it_ended(status, OutOfMemory(0, 0), started=1)[1]


def test_what_a_supervisor_saw_has_nothing_unknown_by_its_kind_and_all_else_has() -> None:
    seen = {ProofOfEnd.KILLED, ProofOfEnd.HARD_LIMIT, ProofOfEnd.CANCEL, ProofOfEnd.SHUTDOWN}

    assert {kind for kind in ProofOfEnd if unknown_of(kind) == ()} == seen


def test_a_lease_that_the_store_has_lost_is_told_from_one_that_has_ended() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    row = WorkerRow("host.1", "live", "host", 7, ("default",), 4, at, at, 41.6, None, None)

    lost, ended = of_silence(row, has_lease=False), of_silence(row)

    assert (lost.kind, ended.kind) == (ProofOfEnd.REDIS_LOSS, ProofOfEnd.LEASE)
    assert lost.cause.startswith("the in-flight store has lost its lease, ")
    assert lost.cause.endswith(" and it has not beaten for 42 s")
    assert ended.cause == "its lease ended and it has not beaten for 42 s"


def certificate() -> Certificate:
    claim = Ran(task_id="t", attempt=2, name="index", state="ready", charged=Charge.CRASH, started=True, ran_s=1.5)
    return Certificate(
        kind=ProofOfEnd.KILLED, cause="killed \u20ac", pid=7, oom=OutOfMemory(1), unknown=("who",), claims=(claim,)
    )


def test_a_certificate_is_read_as_it_was_written() -> None:
    written = text_of(certificate())

    assert certificate_in(written) == certificate()
    assert sentence_in(written) == "killed \u20ac"


def test_what_is_not_known_is_not_written() -> None:
    assert fields_of(certificate()) == {
        "kind": "killed", "cause": "killed \u20ac", "pid": 7, "oom": {"group_kills": 1}, "unknown": ("who",),
        "claims": ({
            "task_id": "t", "attempt": 2, "name": "index", "state": "ready", "charged": "crash", "started": True,
            "ran_s": 1.5,
        },),
    }  # fmt: skip


@pytest.mark.parametrize("text", [None, "", "process 7: killed by SIGKILL", "{", "{}", '{"kind":"later","cause":"?"}'])
def test_what_is_no_certificate_of_ours_is_none_and_no_error(text: str | None) -> None:
    assert certificate_in(text) is None


def test_a_sentence_is_found_in_plain_text_and_in_what_a_newer_version_wrote() -> None:
    assert sentence_in("process 7: killed by SIGKILL") == "process 7: killed by SIGKILL"
    assert sentence_in('{"kind":"later","cause":"dissolved","more":1}') == "dissolved"
    assert sentence_in("{broken") == "{broken"
    assert sentence_in(None) is None
