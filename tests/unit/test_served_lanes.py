"""What a worker knows of pauses and bands: it asks when it has a reason to."""

from __future__ import annotations

from datetime import UTC, datetime

from workq.errors import LedgerUnavailable
from workq.ledger import Pause
from workq.worker.fetch.intake import LOOK_EVERY_S, ServedLanes

AT = datetime(2026, 11, 22, tzinfo=UTC)


class Asked:
    """A ledger that is asked for pauses and bands, and the clock of the worker that asks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.paused: list[str] = []
        self.used: list[str] = []
        self.asked = 0
        self.asked_for_bands = 0
        self.is_away = False
        self.lanes = self.pauses = self

    def bands(self) -> frozenset[str]:
        self.asked_for_bands += 1
        if self.is_away:
            raise LedgerUnavailable("away")
        return frozenset(self.used)

    def all(self) -> dict[str, Pause]:
        self.asked += 1
        if self.is_away:
            raise LedgerUnavailable("away")
        return {queue: Pause(queue, AT, None, "eve", "?") for queue in self.paused}


def known(ledger: Asked) -> ServedLanes:
    return ServedLanes(ledger, ["mail", "reports"], clock=lambda: ledger.now)  # type: ignore[arg-type]  # all that it asks


def test_it_looks_once_at_the_beginning_and_then_nobody_is_asked_for_pauses() -> None:
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


def test_a_band_is_served_within_a_second_of_its_first_use_and_for_good() -> None:
    ledger = Asked()
    ledger.used = ["mail~low", "of others~high"]
    pauses = known(ledger)

    began = pauses.has_changed(), pauses.open
    ledger.used.append("reports~high")
    within = pauses.has_changed()
    ledger.now += LOOK_EVERY_S
    later = pauses.has_changed(), pauses.open
    ledger.used = []
    ledger.now += LOOK_EVERY_S
    gone = pauses.has_changed(), pauses.open

    assert began == (True, ("mail", "mail~low", "reports"))
    assert within is False
    assert later == (True, ("mail", "mail~low", "reports~high", "reports"))
    assert gone == (False, later[1])


def test_a_worker_whose_queues_have_all_their_bands_asks_nobody_any_more() -> None:
    ledger = Asked()
    ledger.used = ["mail~low", "mail~high", "reports~low", "reports~high"]
    pauses = known(ledger)

    for _ in range(5):
        pauses.has_changed()
        ledger.now += LOOK_EVERY_S

    assert (ledger.asked_for_bands, ledger.asked) == (1, 1)


def test_a_band_that_was_paused_before_its_first_use_is_not_served_then() -> None:
    ledger = Asked()
    ledger.paused = ["mail~low"]
    pauses = known(ledger)
    pauses.has_changed()

    ledger.used = ["mail~low"]
    ledger.now += LOOK_EVERY_S
    used = pauses.has_changed(), pauses.open
    ledger.paused = []
    ledger.now += LOOK_EVERY_S
    resumed = pauses.has_changed(), pauses.open

    assert used == (False, ("mail", "reports"))
    assert resumed == (True, ("mail", "mail~low", "reports"))
