"""What a person decides about a queue: let nothing of it start, let it go on."""

from __future__ import annotations

from workq.ledger import Pause
from workq.stores import Stores
from workq.values.lane import check_band
from workq.values.names import check_delay_s


def pause(stores: Stores, name: str, *, who: str, why: str, for_s: float | None = None) -> Pause:
    """Start nothing of a queue, or of one band of it, for `for_s` seconds or until it is resumed. What runs goes on.

    Raises:
        ConfigError: no name of a queue or band, or `for_s` is no number from 0 to ten years.
    """
    queue, ends_in_s = check_band(name), None if for_s is None else check_delay_s(for_s, "for_s")
    return stores.ledger.pauses.pause(queue, who=who, why=why, for_s=ends_in_s)


def resume(stores: Stores, name: str, *, who: str, why: str) -> bool:
    """Let a paused queue go on, with all of its bands, or one band of it; False when it was not paused.

    Raises:
        ConfigError: no name of a queue or band.
    """
    return stores.ledger.pauses.resume(check_band(name), who=who, why=why)
