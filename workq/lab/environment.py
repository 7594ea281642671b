"""The environment of a run of its own, such as a demo or a fault suite: nothing of the user's settings leaks in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def only_workq_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Exactly these WORKQ_ variables, for this process and those that it starts."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("WORKQ_")]:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
