"""What every way in promises, whatever its broker: the processes are real, and so is the broker.

A subclass says only where the records lie, by its stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.faults.ways_in import LONG_S, WayIn, children_of, end
from tests.system.fleet import wait_until
from workq import State
from workq.messages import Messages
from workq.messages.intake.values import IntakeBacklog
from workq.messages.intake_inspection import IntakeInspection
from workq.recovery.sweep import sweep

LARGE = b"4" * 300_000


class IntakeStage(ABC):
    """A topic or a queue of one test."""

    kind: str
    missing: str
    """What is said when it is not there."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Those of `add`."""

    @abstractmethod
    def publish(self, *records: tuple[bytes, dict[str, str]]) -> None:
        """Records, each a body and headers, in this order; confirmed."""

    @abstractmethod
    def quarantined(self, count: int) -> list[dict[str, Any]]:
        """So many records of the quarantine, or more, each as its body and headers."""

    @abstractmethod
    def is_empty(self, way_in: WayIn) -> bool:
        """Whether the ledger has passed everything. Asked when nothing reads."""

    @abstractmethod
    def remove(self) -> None:
        """Delete it."""

    @abstractmethod
    def make(self) -> None:
        """Make it, after it was deleted."""


class IntakeContract:
    """What every way in promises."""

    @pytest.fixture
    def stage(self) -> IntakeStage:
        raise NotImplementedError

    @pytest.fixture
    def way_in(self, tmp_path: Path, stage: IntakeStage) -> Iterator[WayIn]:
        made = WayIn(tmp_path)
        made.add(kind=stage.kind, to="orders", **stage.options())
        yield made
        made.app.close()

    def test_records_become_messages_as_their_headers_say_and_what_waits_is_known(
        self, stage: IntakeStage, way_in: WayIn
    ) -> None:
        later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        stage.publish(
            (b"now", {"workq-id": "a", "colour": "red"}),
            (b"in ms", {"workq-id": "b", "workq-at": str(int(later.timestamp() * 1000)), "workq-to": "bills"}),
            (b"\xff\x00", {"workq-id": "c", "workq-at": later.isoformat(), "workq-order-key": "k"}),
            (b"past", {"workq-id": "d", "workq-at": "1000"}),
            (b"again", {"workq-id": "a"}),
            (b"gone", {"workq-id": "e", "workq-at": later.isoformat()}),
            (b"", {"workq-cancel": "e"}),
            (b"unnamed", {}),
        )
        wait_until(lambda: lag(way_in) == IntakeBacklog(8), timeout_s=LONG_S, what="8 wait")

        with way_in.running() as supervisor:
            way_in.wait_for(6)
            listed = way_in.command("worker", "ls")["workers"]
            shown = way_in.command("intake", "show", "in")
            assert end(supervisor) == 0

        found = way_in.messages()
        assert [one["queues"] for one in listed] == [["intake:in"]]
        assert (shown["workers"], shown["lag"]) == ([listed[0]["id"]], 0)
        assert (way_in.intake().recorded, way_in.intake().repeated, way_in.intake().cancelled) == (6, 1, 1)
        assert {name: found[name].due_at for name in "bc"} == {"b": later, "c": later}
        assert [found[one].destination for one in "abcd"] == ["orders", "bills", "orders", "orders"]
        assert (found["a"].headers, found["c"].order_key, found["d"].state) == ({"colour": "red"}, "k", State.READY)
        assert {name: way_in.body(name) for name in "acd"} == {"a": b"now", "c": b"\xff\x00", "d": b"past"}
        assert found["e"].state is State.CANCELLED
        assert stage.is_empty(way_in)

    def test_what_cannot_be_read_is_in_quarantine_before_it_is_passed(self, stage: IntakeStage, way_in: WayIn) -> None:
        stage.publish(
            (b"1", {"workq-at": "soon"}),
            (b"2", {"workq-to": "nowhere"}),
            (b"3", {"workq-id": "good"}),
            (LARGE, {"workq-id": "large"}),
            (b"6", {"workq-to": "bills", "workq-id": "good"}),
            (b"7", {"workq-hat": "x"}),
        )

        with way_in.running() as supervisor:
            wait_until(lambda: way_in.intake().quarantined == 5, timeout_s=LONG_S, what="all passed")
            end(supervisor)

        reasons = {one["body"]: one["workq-reason"] for one in stage.quarantined(5)}
        assert (list(way_in.messages()), way_in.intake().recorded) == (["good"], 1)
        assert reasons.keys() == {b"1", b"2", LARGE, b"6", b"7"}
        assert "need epoch milliseconds or RFC 3339" in reasons[b"1"]
        assert reasons[b"2"] == "no destination 'nowhere'"
        assert "300000 bytes" in reasons[LARGE]
        assert reasons[b"6"] == "message 'good' was sent before, to 'orders'"
        assert "'workq-hat' is not known" in reasons[b"7"]
        assert stage.is_empty(way_in)

    @pytest.mark.parametrize(
        "point",
        ["intake.before_record@2", "intake.after_record@2", "record.after_commit@2", "intake.before_quarantine@1"],
    )
    def test_a_death_in_each_gap_loses_no_record_and_records_none_twice(
        self, point: str, stage: IntakeStage, way_in: WayIn, tmp_path: Path
    ) -> None:
        count = 1200
        stage.publish(*[(b"%d" % number, {"n": str(number)}) for number in range(count)], (b"bad", {"workq-at": "?"}))
        name, _, nth = point.partition("@")
        died = tmp_path / "died"

        with way_in.running(WORKQ_FAILPOINT=f"{name}:exit137@{nth}", WORKQ_FAILPOINT_ONCE=str(died)) as supervisor:
            way_in.wait_for(count, timeout_s=2 * LONG_S)
            wait_until(lambda: way_in.intake().quarantined == 1, timeout_s=LONG_S, what="all passed")
            end(supervisor)

        assert died.exists()
        numbers = sorted(int(one.headers["n"]) for one in way_in.messages().values())
        assert (way_in.intake().recorded, numbers) == (count, list(range(count)))
        assert {one["body"] for one in stage.quarantined(1)} == {b"bad"}
        assert stage.is_empty(way_in)

    def test_processes_that_are_killed_lose_no_record_and_record_none_twice(
        self, stage: IntakeStage, way_in: WayIn
    ) -> None:
        count = 3000

        with way_in.running(processes=2) as supervisor:
            for start in range(0, count, 1000):
                stage.publish(*[(b"x", {"n": str(number)}) for number in range(start, start + 1000)])
                if living := children_of(supervisor):
                    living[0].kill()
            way_in.wait_for(count, timeout_s=3 * LONG_S)
            end(supervisor)

        numbers = sorted(int(one.headers["n"]) for one in way_in.messages().values())
        assert (way_in.intake().recorded, numbers) == (count, list(range(count)))
        assert stage.is_empty(way_in)

    def test_messages_of_one_key_stand_in_the_order_of_their_records(self, stage: IntakeStage, way_in: WayIn) -> None:
        stage.publish(*[(b"x", {"workq-id": f"{number}", "workq-order-key": "k"}) for number in range(5)])

        with way_in.running() as supervisor:
            way_in.wait_for(5)
            end(supervisor)

        turns, messages = [], Messages(way_in.app)
        while ready := [one.id for one in way_in.messages().values() if one.state is State.READY]:
            turns.append(ready)
            messages.cancel(ready[0])
            sweep(way_in.app.stores, way_in.app.settings)
        assert turns == [[f"{number}"] for number in range(5)]

    def test_what_is_missing_is_noted_and_read_when_it_is_there(self, stage: IntakeStage, way_in: WayIn) -> None:
        stage.remove()

        with way_in.running():
            wait_until(lambda: way_in.intake().failing_since is not None, timeout_s=LONG_S, what="noted")
            assert stage.missing in (way_in.intake().error or "")
            assert (lag(way_in).records, stage.missing in (lag(way_in).unknown or "")) == (None, True)
            stage.make()
            stage.publish((b"x", {"workq-id": "x"}))
            way_in.wait_for(1, timeout_s=2 * LONG_S)
            wait_until(lambda: way_in.intake().failing_since is None, timeout_s=LONG_S, what="well again")

    def test_a_broker_that_may_not_be_reached_is_not_asked(self, stage: IntakeStage, way_in: WayIn) -> None:
        stage.publish((b"x", {}))

        with way_in.running(WORKQ_MESSAGE_ALLOW="192.0.2.0/24"):
            wait_until(lambda: way_in.intake().error is not None, timeout_s=LONG_S, what="noted")

        assert "127.0.0.1" in (way_in.intake().error or "")
        assert "WORKQ_MESSAGE_ALLOW" in (way_in.intake().error or "")
        assert (way_in.intake().recorded, way_in.offsets()) == (0, {})


def lag(way_in: WayIn) -> IntakeBacklog:
    """What waits, by the broker and the ledger."""
    settings = replace(way_in.app.settings, message_allow="loopback")
    return IntakeInspection(settings, way_in.ledger).backlogs([way_in.ledger.intakes.required("in")])["in"]
