"""Messages in our queues that are not ours, or that lie: quarantined or dropped, and never a reason to run anything.

On RabbitMQ they are put there by a client of its own; on the embedded queue as rows of the table of hints.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import secrets
import uuid
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select

from tests.faults.intruder import Intruder, OnRabbitMQ
from tests.faults.rabbitmq import YEAR_57879, send_encoded
from tests.stores import database_of
from tests.system.conftest import OpenLeg
from tests.system.fleet import Fleet, wait_until
from tests.system.legs import Leg
from workq import State
from workq.broker import QUARANTINE_BODY_MAX
from workq.values.codec import HINT_MAX_BYTES, new_task_id
from workq.values.task import Task

pytestmark = pytest.mark.one_leg

HUGE = 20_000_000


def hint(*task_ids: str, **fields: Any) -> bytes:
    return json.dumps({"v": 1, "q": "witness", "ids": list(task_ids)} | fields).encode()


def found(leg: Leg, task_id: str) -> Task:
    task = leg.app.get(task_id)
    assert task is not None
    return task


def unknown_ids(leg: Leg) -> list[str]:
    """The ids that the ledger has noted as unknown."""
    database = database_of(leg.app)
    event = database.tables.event
    with database.read() as tx:
        found = tx.execute(select(event.c.detail).where(event.c.kind == "quarantined")).scalars().all()
    details = [json.loads(text) for text in found]
    return [task_id for one in details if one["reason"] == "unknown_id" for task_id in one["tasks"]]


def lines(fleet: Fleet, event: str) -> int:
    return sum(event in line for line in fleet.text().splitlines())


SOME_ID = "01234567-89ab-7cde-8f01-23456789abcd"
FOREIGN = {
    "empty": (b"", "empty"),
    "random": (b"\xff\xfe\x00\x01" + secrets.token_bytes(60), "not_json"),
    "text": (b"hello", "not_json"),
    "truncated": (hint(SOME_ID)[:-2], "not_json"),
    "bom": (b"\xef\xbb\xbf" + hint(SOME_ID), "not_json"),
    "utf16": (hint(SOME_ID).decode().encode("utf-16"), "not_json"),
    "gzip": (gzip.compress(hint(SOME_ID)), "not_json"),
    "pickle": (b"cos\nsystem\n(S'touch /tmp/never'\ntR.", "not_json"),
    "deep": (b"[" * 30_000 + b"]" * 30_000, "not_json"),
    "list": (b"[]", "bad_envelope"),
    "number": (b"5", "bad_envelope"),
    "null": (b"null", "bad_envelope"),
    "string": (b'"x"', "bad_envelope"),
    "no_version": (json.dumps({"q": "witness", "ids": [SOME_ID]}).encode(), "bad_envelope"),
    "no_queue": (json.dumps({"v": 1, "ids": [SOME_ID]}).encode(), "bad_envelope"),
    "no_ids": (json.dumps({"v": 1, "q": "witness"}).encode(), "bad_envelope"),
    "ids_empty": (hint(), "bad_envelope"),
    "ids_text": (hint(SOME_ID, ids=SOME_ID), "bad_envelope"),
    "ids_numbers": (hint(SOME_ID, ids=[1, 2]), "bad_envelope"),
    "id_form": (hint("not-an-id"), "bad_envelope"),
    "id_upper": (hint(SOME_ID.upper()), "bad_envelope"),
    "id_sql": (hint("' OR 1=1; DROP TABLE task; --"), "bad_envelope"),
    "queue_number": (hint(SOME_ID, q=5), "bad_envelope"),
    "looks_negative": (hint(SOME_ID, n=-1), "bad_envelope"),
    "looks_huge": (hint(SOME_ID, n=10**6), "bad_envelope"),
    "version_0": (hint(SOME_ID, v=0), "bad_envelope"),
    "version_negative": (hint(SOME_ID, v=-1), "bad_envelope"),
    "version_text": (hint(SOME_ID, v="1"), "bad_envelope"),
    "version_true": (hint(SOME_ID, v=True), "bad_envelope"),
    "version_3": (hint(SOME_ID, v=3), "newer_version"),
    "version_huge": (b'{"v":1' + b"0" * 400 + b',"q":"witness","ids":["' + SOME_ID.encode() + b'"]}', "newer_version"),
    "too_large": (hint(*[new_task_id() for _ in range(HINT_MAX_BYTES // 30)]), "too_large"),
    "huge": (b"x" * HUGE, "too_large"),
}


def different(intruder: Intruder) -> set[tuple[str, int, str]]:
    """What is in the quarantine: reason, size and digest. One whose confirm came too late is there a second time."""
    return {(one.reason, one.bytes, one.sha256) for one in intruder.quarantined()}


def test_what_is_not_ours_goes_to_the_quarantine_with_its_reason(fast_leg: Leg, intruder: Intruder) -> None:
    """B44 to B48, B55."""
    wanted = Counter(reason for _, reason in FOREIGN.values())
    with fast_leg.fleet(processes=1, threads=2) as fleet:
        wait_until(lambda: len(fleet.children()) == 1, timeout_s=20, what="a consumer process")
        pids = [child.pid for child in fleet.children()]
        intruder.put([body for body, _ in FOREIGN.values()])

        wait_until(lambda: len(different(intruder)) >= len(FOREIGN), timeout_s=60, what="all are in quarantine")
        after = fast_leg["note"].enqueue(1)
        fast_leg.wait_settled(timeout_s=20)

        assert found(fast_leg, after.id).state is State.SUCCEEDED
        assert [child.pid for child in fleet.children()] == pids
        assert "hint.newer_version" in fleet.text(), "those were put back for a newer worker first"
    assert Counter(reason for reason, _, _ in different(intruder)) == wanted
    assert all(one.kept <= QUARANTINE_BODY_MAX for one in intruder.quarantined())
    huge = hashlib.sha256(b"x" * HUGE).hexdigest()
    assert [sha for _, size, sha in different(intruder) if size == HUGE] == [huge]
    assert len(fast_leg.starts()) == 2


def test_fields_that_we_do_not_know_are_ignored(fast_leg: Leg, intruder: Intruder) -> None:
    """B47. The task itself has no hint of its own yet: this one wakes it."""
    handler = fast_leg["note"]
    task = handler.new_task(handler.defaults, (7,), {})
    fast_leg.app.stores.ledger.tasks.record([task])
    intruder.put([hint(task.id, extra={"deep": [1, 2]}, trace="abc")])
    with fast_leg.fleet(processes=1, threads=1):
        fast_leg.wait_settled(timeout_s=30)
    assert fast_leg.starts()[task.id] == 1
    assert intruder.quarantined() == []


def test_a_hint_of_another_queue_follows_the_ledger(fast_leg: Leg, intruder: Intruder) -> None:
    """B51. Who serves this queue alone does not run it, and it is not lost."""
    elsewhere = fast_leg["note"].options(queue="elsewhere").enqueue(1)
    with fast_leg.fleet(processes=1, threads=1, queues="witness") as fleet:
        fast_leg.app.producer.relay.flush(timeout_s=10)
        intruder.put([hint(elsewhere.id), hint(elsewhere.id)])
        wait_until(lambda: "hint.of_another_queue" in fleet.text(), timeout_s=30, what="it was seen")
        wait_until(lambda: found(fast_leg, elsewhere.id).state is State.READY, timeout_s=20, what="it is back")
        assert fast_leg.starts()[elsewhere.id] == 0
        fleet.terminate()
        assert fleet.wait(20) == 0
    with fast_leg.fleet(processes=1, threads=1, queues="elsewhere,witness") as fleet:
        fast_leg.wait_settled(timeout_s=30)
        fleet.terminate()  # one that is killed may hold a hint too many
        assert fleet.wait(20) == 0
    task = found(fast_leg, elsewhere.id)
    assert (task.state, task.queue, task.failures, task.crashes) == (State.SUCCEEDED, "elsewhere", 0, 0)
    assert fast_leg.starts()[elsewhere.id] == 1
    for queue in ("witness", "elsewhere"):
        assert fast_leg.app.stores.inflight.holds(queue) == []


def test_hints_of_settled_tasks_and_many_hints_of_one_task_change_nothing(fast_leg: Leg, intruder: Intruder) -> None:
    """B52."""
    with fast_leg.fleet(processes=2, threads=2):
        done = fast_leg["note"].enqueue(1)
        dead = fast_leg["fail"].options(failures_max=1).enqueue(2)
        fast_leg.wait_settled(timeout_s=30)
        before = [found(fast_leg, one.id) for one in (done, dead)]
        later = fast_leg["note"].options(delay_s=2.0).enqueue(3)
        running = fast_leg["note"].enqueue(4, 1.0)
        intruder.put([hint(done.id, dead.id, later.id, running.id, running.id)] * 50)
        fast_leg.wait_settled(timeout_s=30)
        wait_until(lambda: intruder.depth() == 0, timeout_s=30, what="all were looked at")
    assert [found(fast_leg, one.id) for one in (done, dead)] == before
    early = found(fast_leg, later.id)
    assert early.started_at is not None
    assert early.started_at >= early.due_at
    assert {fast_leg.starts()[one.id] for one in (done, dead, later, running)} == {1}
    assert intruder.quarantined() == []


def test_an_unknown_id_is_looked_up_three_times_and_then_quarantined_with_one_alarm(
    fast_leg: Leg, intruder: Intruder
) -> None:
    """B53. One that is older than anything the ledger keeps is not looked up again."""
    fresh = [new_task_id() for _ in range(3)] + [str(uuid.uuid4())]
    old = f"00e4f1c6-0000-7{secrets.token_hex(2)[1:]}-8{secrets.token_hex(2)[1:]}-{secrets.token_hex(6)}"
    late = fast_leg["note"].new_task(fast_leg["note"].defaults, (8,), {})
    with fast_leg.fleet(processes=1, threads=2) as fleet:
        wait_until(lambda: fast_leg.unsettled() == 0, timeout_s=30, what="it works")
        intruder.put([hint(*fresh, old), hint(late.id)])
        wait_until(lambda: unknown_ids(fast_leg) != [], timeout_s=10, what="the old one is dropped at once")
        assert unknown_ids(fast_leg) == [old]
        fast_leg.app.stores.ledger.tasks.record([late])  # it came between the first look and the last

        wait_until(lambda: len(unknown_ids(fast_leg)) >= 5, timeout_s=15, what="the others after three looks")
        fast_leg.wait_settled(timeout_s=20)

        assert Counter(unknown_ids(fast_leg)) == Counter([old, *fresh])
        assert lines(fleet, "hint.unknown_id") == 1
        fleet.terminate()
        assert fleet.wait(20) == 0
    assert fast_leg.starts()[late.id] == 1
    assert fast_leg.app.stores.inflight.holds("witness") == []


def test_two_thousand_foreign_messages_do_not_stop_our_own_tasks_nor_fill_the_log(
    fast_leg: Leg, intruder: Intruder
) -> None:
    """B59."""
    intruder.put([b"noise %d" % number for number in range(2000)])
    fast_leg["note"].enqueue_many({"number": number} for number in range(50))
    with fast_leg.fleet(processes=2, threads=4) as fleet:
        fast_leg.wait_settled(timeout_s=60)
        wait_until(lambda: intruder.depth() == 0, timeout_s=60, what="the queue is empty")
        wait_until(lambda: len(intruder.quarantined()) == 2000, timeout_s=60, what="all are in quarantine")
        assert {one.reason for one in intruder.quarantined()} == {"not_json"}
        assert lines(fleet, "hint.quarantined") < 20
        assert len(fleet.text().splitlines()) < 100
    assert len(fast_leg.starts()) == 51


def test_thousands_of_forged_hints_start_nothing(fast_leg: Leg, intruder: Intruder) -> None:
    """S3."""
    ids = [new_task_id() for _ in range(3_000)]
    size = 2 if fast_leg.name == "servers" else 20  # on SQLite every message costs a handful of commits
    intruder.put([hint(*ids[start : start + size]) for start in range(0, len(ids), size)])
    with fast_leg.fleet(processes=2, threads=4 * size) as fleet:
        wait_until(lambda: len(unknown_ids(fast_leg)) == len(ids), timeout_s=120, what="all were looked up")
        own = fast_leg["note"].enqueue(1)
        fast_leg.wait_settled(timeout_s=30)
        assert found(fast_leg, own.id).state is State.SUCCEEDED
        assert lines(fleet, "hint.unknown_id") < 40
        assert len(fleet.text().splitlines()) < 100
        fleet.terminate()
        assert fleet.wait(20) == 0
    assert len(fast_leg.starts()) == 2
    assert fast_leg.app.stores.inflight.holds("witness") == []


PROPERTIES: tuple[dict[str, Any], ...] = (
    {"expiration": "60000"},
    {"priority": 255},
    {"reply_to": "amq.rabbitmq.reply-to.x", "correlation_id": "1"},
    {"headers": {"CC": ["elsewhere"], "BCC": ["x"], "x-death": [{"count": 9, "queue": "q", "reason": "expired"}]}},
    {"headers": {"at": YEAR_57879}},
    {"content_encoding": "gzip", "content_type": "application/x-python-serialize", "type": "celery"},
)


def test_foreign_properties_of_a_hint_mean_nothing(open_leg: OpenLeg, monkeypatch: pytest.MonkeyPatch) -> None:
    """B57. A retry of each task they woke is sent with fresh properties, and arrives."""
    leg = open_leg("servers", divide=10.0)
    leg["note"].enqueue(0)
    leg.app.producer.relay.flush(timeout_s=10)
    intruder = OnRabbitMQ(leg)
    send_encoded(monkeypatch)
    handler = leg["fail_until"]
    tasks = [handler.new_task(handler.options(failures_max=10)._options, (1, 3), {}) for _ in PROPERTIES]
    leg.app.stores.ledger.tasks.record(tasks)
    for task, properties in zip(tasks, PROPERTIES, strict=True):
        intruder.put([hint(task.id)], **properties)
    with leg.fleet(processes=1, threads=1) as fleet:
        leg.wait_settled(timeout_s=30)
        fleet.terminate()
        assert fleet.wait(20) == 0
    for task, properties in zip(tasks, PROPERTIES, strict=True):
        done = found(leg, task.id)
        assert (done.state, done.attempt, done.failures) == (State.SUCCEEDED, 3, 2), properties
        assert leg.starts()[task.id] == 3, properties
    assert (intruder.quarantined(), intruder.depth()) == ([], 0)
    intruder.close()
