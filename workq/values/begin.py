"""Begin: what a process imports at its start stays for as long as it lives, so that to look through it is in vain.

Python looks for garbage whenever so many objects were made; imports make a hundred thousand, and keep them. Not to look
meanwhile saves a tenth of a start, and to look past them afterwards saves a busy process a tenth of its time.
"""

from __future__ import annotations

import gc
from typing import Final

_STARTING: Final = (100_000, 50, 50)
_usual = gc.get_threshold()


def begin() -> None:
    """Imports follow: look for garbage hardly ever."""
    gc.set_threshold(*_STARTING)


def begun(garbage_every: int | None = None) -> None:
    """What stands now stays, and is not looked through again.

    `garbage_every`: from now on look whenever so many objects were made. By default as before the start, unless the
    application has set its own thresholds.
    """
    gc.freeze()
    if garbage_every is not None:
        gc.set_threshold(garbage_every)
    elif gc.get_threshold() == _STARTING:
        gc.set_threshold(*_usual)
