"""What a worker knows of pauses: it asks when it has a reason to."""

from __future__ import annotations

from datetime import UTC, datetime

from workq.errors import LedgerUnavailable
from workq.ledger import Pause
from workq.pauses import LOOK_EVERY_S, Pauses

AT = datetime(2026, 11, 22, tzinfo=UTC)


class Asked:
    """A ledger that is asked for pauses, and the clock of the worker that asks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.paused: list[str] = []
        self.asked = 0
        self.is_away = False

    def pauses(self) -> dict[str, Pause]:
        self.asked += 1
        if self.is_away:
            raise LedgerUnavailable("away")
        return {queue: Pause(queue, AT, None, "eve", "?") for queue in self.paused}


def known(ledger: Asked) -> Pauses:
    return Pauses(ledger, ["mail", "reports"], clock=lambda: ledger.now)  # type: ignore[arg-type]  # all that it asks


def test_it_looks_once_at_the_beginning_and_then_nobody_is_asked() -> None:
    ledger = Asked()
    pauses = known(ledger)

    changed = []
    for _ in range(5):
        changed.append(pauses.has_changed())
        ledger.now += 10.0

    assert (changed, ledger.asked) == ([False] * 5, 1)
    assert pauses.open == ("mail", "reports")


def test_a_refusal_makes_it_look_and_a_pause_makes_it_look_every_second() -> None:
    ledger = Asked()
    pauses = known(ledger)
    pauses.has_changed()
    ledger.paused = ["mail"]

    pauses.seen()
    first = pauses.has_changed()
    for _ in range(9):  # within the second
        pauses.seen()
        assert not pauses.has_changed()
        ledger.now += LOOK_EVERY_S / 10
    meanwhile, asked = pauses.open, ledger.asked
    ledger.paused = []
    ledger.now += LOOK_EVERY_S
    resumed = pauses.has_changed()
    ledger.now += 60.0

    assert (first, meanwhile, asked) == (True, ("reports",), 2)
    assert (resumed, pauses.open) == (True, ("mail", "reports"))
    assert not pauses.has_changed()
    assert ledger.asked == 3


def test_a_queue_that_is_paused_at_the_beginning_is_not_served() -> None:
    ledger = Asked()
    ledger.paused = ["mail", "reports", "of others"]
    pauses = known(ledger)

    assert pauses.has_changed()
    assert pauses.open == ()


def test_a_ledger_that_is_away_is_asked_again_a_second_later() -> None:
    ledger = Asked()
    pauses = known(ledger)
    ledger.is_away, ledger.paused = True, ["mail"]

    away = pauses.has_changed()
    ledger.is_away = False
    soon = pauses.has_changed()
    ledger.now += LOOK_EVERY_S
    later = pauses.has_changed()

    assert (away, soon, later) == (False, False, True)
