"""Begin: what a process imports at its start stays for as long as it lives, so that to look through it is in vain.

Python looks for garbage whenever so many objects were made; imports make some ninety thousand, and keep them. Not to
look meanwhile saves a tenth of a start. The first look ends the start; a process that works for long says `begun`
before, and no later look goes through what stands.
"""

from __future__ import annotations

import gc
from typing import Final

_STARTING: Final = (100_000, 50, 50)
_usual = gc.get_threshold()


def begin() -> None:
    """Imports follow: the next look for garbage comes after a hundred thousand objects, and those after it as usual."""
    gc.set_threshold(*_STARTING)
    gc.callbacks.append(_looked)


def _looked(phase: str, _info: dict[str, int]) -> None:
    if phase == "stop":
        _as_usual()


def _as_usual() -> None:
    if gc.get_threshold() == _STARTING:
        gc.set_threshold(*_usual)


def begun(garbage_every: int | None = None) -> None:
    """What stands now stays, and is not looked through again.

    `garbage_every`: from now on look whenever so many objects were made. By default as before the start, unless the
    application has set its own thresholds.
    """
    gc.freeze()
    if _looked in gc.callbacks:
        gc.callbacks.remove(_looked)
    if garbage_every is None:
        _as_usual()
    else:
        gc.set_threshold(garbage_every)
