"""What the commands of `workq demo` share: their bounds, and how they end.

A demo ends with its proof on standard output, and with the exit status that it deserves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from workq.cli.exits import DONE, FAILED
from workq.cli.session import Session
from workq.demo.voice import write_page

PROCESSES_MAX: Final = 64
THREADS_MAX: Final = 64


def ended(session: Session, *, is_proved: bool, page: Callable[[], str], document: Callable[[], dict[str, Any]]) -> int:
    """Print the proof, as a page or as JSON; answers the exit status."""
    write_page(json.dumps(document()) if session.output == "json" else page())
    return DONE if is_proved else FAILED
