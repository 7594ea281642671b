"""Operations: what a person may decide, one function each, which Python and the command line call.

Each records who has decided, and why. What becomes due by a decision is announced by it: `announce` gets the rows that
need a hint; it publishes them, or remembers them to publish them together. What is not published, a sweep relays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workq.ledger import Unpublished

Announce = Callable[[Sequence[Unpublished]], None]
