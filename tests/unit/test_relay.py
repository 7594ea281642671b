"""Which tasks share a hint: none comes after its time by that, and none is looked at before it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.stores import database_of
from tests.system.fleet import wait_until
from workq import Times, WorkQueue
from workq.broker import PAGE, Hint
from workq.broker.rabbitmq import delays
from workq.enqueue import relay
from workq.enqueue.relay import BATCH, SENT_MAX, Relay, hints_of
from workq.errors import ConfigError
from workq.ledger import Unpublished
from workq.ledger.engine import migrate
from workq.logs.seldom import Seldom
from workq.recovery.sweep import sweep
from workq.values.codec import new_task_id
from workq.values.task import NewTask

UNIT_S = 0.1


def rows(delays: Sequence[float], queue: str = "mail") -> list[Unpublished]:
    return [Unpublished(new_task_id(), queue, 0, delay_s) for delay_s in delays]


def waited_s(hint: Hint) -> list[float]:
    """How long each id of a hint waits in all, in the ladder and then with its consumer."""
    units, wait_ms = delays.split(hint.delay_s)
    waits_ms = delays.waits_ms(hint, wait_ms) or (0,) * len(hint.task_ids)
    return [units * UNIT_S + one / 1000 for one in waits_ms]


def test_what_is_due_shares_pages_by_queue() -> None:
    mail, index = rows([0.0] * (2 * PAGE + 1)), rows([0.0] * 3, "index")

    pages = hints_of([*mail, *index], unit_s=UNIT_S)

    assert [(hint.queue, len(hint.task_ids), hint.delay_s, hint.waits_s) for hint, _ in pages] == [
        ("mail", PAGE, 0.0, ()),
        ("mail", PAGE, 0.0, ()),
        ("mail", 1, 0.0, ()),
        ("index", 3, 0.0, ()),
    ]
    assert [one for _, page in pages for one in page] == [*mail, *index]


def test_what_is_due_in_one_unit_shares_a_hint_and_each_waits_for_exactly_its_time() -> None:
    rng = random.Random(5)
    given = rows([rng.uniform(0.0001, 3.0) for _ in range(2000)])

    pages = hints_of(given, unit_s=UNIT_S)

    assert len(pages) < 2000 / 20
    assert sorted(one.task_id for _, page in pages for one in page) == sorted(one.task_id for one in given)
    for hint, page in pages:
        assert hint.task_ids == tuple(one.task_id for one in page)
        assert len(page) <= PAGE
        for row, waited in zip(page, waited_s(hint), strict=True):
            assert row.delay_s - 1e-6 <= waited <= row.delay_s + 0.0011
        assert max(waited_s(hint)) - delays.split(hint.delay_s)[0] * UNIT_S < UNIT_S + 0.0011


def test_whole_units_need_no_wait() -> None:
    [(hint, _)] = hints_of(rows([2.0, 2.0, 2.0]), unit_s=UNIT_S)

    assert delays.split(hint.delay_s) == (20, 0)
    assert delays.waits_ms(hint, 0) == ()


def test_queues_never_share_a_hint() -> None:
    pages = hints_of([*rows([1.0, 1.0]), *rows([1.0], "index")], unit_s=UNIT_S)

    assert sorted((hint.queue, len(hint.task_ids)) for hint, _ in pages) == [("index", 1), ("mail", 2)]


def test_without_a_unit_each_delayed_task_has_a_hint_of_its_own() -> None:
    given = rows([1.0, 1.0, 0.25])

    assert [(hint.task_ids, hint.delay_s, hint.waits_s) for hint, _ in hints_of(given, unit_s=0.0)] == [
        ((one.task_id,), one.delay_s, ()) for one in given
    ]


def test_however_many_are_sent_together_all_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[int] = []
    with WorkQueue(ledger=f"sqlite:///{tmp_path / 'workq.db'}") as wq:
        database = wq.database()
        migrate.migrate(database)
        database.close()
        monkeypatch.setattr(wq.stores.broker, "publish", lambda hints, **_: [True] * len(hints))
        monkeypatch.setattr(wq.stores.ledger.hints, "mark_published", lambda sent: marked.append(len(sent)))
        relay = Relay(wq.stores, confirm_s=1.0)
        relay.offer(rows([0.0] * (SENT_MAX + BATCH // 2)))

        assert relay.flush(timeout_s=30)
        relay.close()

    assert sum(marked) == SENT_MAX + BATCH // 2
    assert max(marked) <= BATCH


def test_what_is_confirmed_is_marked_well_within_the_grace_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unmarked for longer, whatever waits in a queue would be hinted twice."""
    monkeypatch.setattr("workq.enqueue.relay.MARK_AFTER_S", 3600.0)
    with WorkQueue(ledger=f"sqlite:///{tmp_path / 'workq.db'}") as wq:
        database = wq.database()
        migrate.migrate(database)
        database.close()
        ledger = wq.stores.ledger
        task = NewTask(new_task_id(), "mail.send", "mail", '{"a":[],"k":{}}')
        ledger.tasks.record([task])

        def unmarked() -> list[str]:
            return [
                row.task_id for row in ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=0.0, dry_run=True)
            ]

        before = unmarked()
        relay = Relay(wq.stores, confirm_s=1.0, grace_s=0.2)
        relay.offer([Unpublished(task.id, task.queue, 0, 0.0)])

        assert before == [task.id]
        wait_until(lambda: unmarked() == [], timeout_s=30, what="it is marked")
        relay.close()


def test_a_delay_goes_on_while_its_row_waits_for_the_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    sent: list[Hint] = []
    with WorkQueue(ledger=f"sqlite:///{tmp_path / 'workq.db'}") as wq:
        database = wq.database()
        migrate.migrate(database)
        database.close()

        def publish(hints: Sequence[Hint], **_: Any) -> list[bool]:
            sent.extend(hints)
            return [False] * len(hints)

        monkeypatch.setattr(wq.stores.broker, "publish", publish)
        relay = Relay(wq.stores, confirm_s=1.0, has_thread=False, clock=lambda: now)
        [slow, quick, prompt] = rows([5.0, 0.2, 0.0])
        relay.offer([slow, quick, prompt])
        relay.offer([replace(slow, task_id="later")], since=now - 1.0)
        now += 0.5
        relay.relay_once()

    assert {hint.task_ids: hint.delay_s for hint in sent} == {
        (slow.task_id,): pytest.approx(4.5),
        ("later",): pytest.approx(3.5),
        (quick.task_id, prompt.task_id): 0.0,  # both are due by now
    }


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "full"])
def test_a_queue_that_takes_nothing_keeps_the_sweep_from_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_refused: bool
) -> None:
    with WorkQueue(ledger=f"sqlite:///{tmp_path / 'workq.db'}") as wq:
        database = wq.database()
        migrate.migrate(database)
        database.close()
        ledger = wq.stores.ledger
        tasks = [NewTask(new_task_id(), "n", queue, "{}") for queue in ("bad", "bad", "bad", "good", "bad", "good")]
        for task in tasks:
            ledger.tasks.record([task])  # by a producer that died before it could send the hint
        database_of(wq).clock_offset_s = 60.0

        def publish(hints: Sequence[Hint], **_: Any) -> list[bool]:
            if is_refused and any(one.queue == "bad" for one in hints):
                raise ConfigError("broker: queue bad exists with different arguments")
            return [one.queue != "bad" for one in hints]

        monkeypatch.setattr(relay, "_seldom", Seldom(relay.log, every_s=60.0))  # what others were told is no matter
        monkeypatch.setattr(wq.stores.broker, "publish", publish)
        monkeypatch.setattr(wq.stores.broker, "is_transactional", False)
        done = sweep(wq.stores, wq.settings, limit=2)
        left = ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=0.0, dry_run=True)
        left += ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=0.0, dry_run=True, but=["bad"])

    assert done.relayed == 2
    assert {row.queue for row in left} == {"bad"}
    refusals = [vars(one)["queue"] for one in caplog.records if one.msg == "relay.refused"]
    assert refusals == ["bad"] * is_refused, "once a minute"
    unconfirmed = [vars(one) for one in caplog.records if one.msg == "relay.unconfirmed"]
    assert [one["queues"] for one in unconfirmed] == ["bad"] * (not is_refused), "once a minute, and with its reason"
    assert all(one["levelname"] == "WARNING" and "not confirmed" in one["reason"] for one in unconfirmed)


def test_a_broker_that_does_not_answer_holds_up_what_is_behind_the_relay_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = []
    with WorkQueue(ledger=f"sqlite:///{tmp_path / 'workq.db'}", times=Times(confirm_s=1e-6)) as wq:
        database = wq.database()
        migrate.migrate(database)
        database.close()
        for number in range(6):
            wq.stores.ledger.tasks.record([NewTask(new_task_id(), "n", f"queue{number}", "{}")])
        database_of(wq).clock_offset_s = 60.0

        def publish(hints: Sequence[Hint], **_: Any) -> list[bool]:
            """It takes longer than half of the time for confirms, which is half a microsecond here."""
            published.append(hints)
            return [False] * len(hints)

        monkeypatch.setattr(wq.stores.broker, "publish", publish)
        monkeypatch.setattr(wq.stores.broker, "is_transactional", False)
        done = sweep(wq.stores, wq.settings, only=["relay"], limit=2)

    assert (done.relayed, done.unconfirmed) == (0, 2)
    assert len(published) == 1
