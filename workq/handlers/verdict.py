"""Verdict: what a handler of a list may answer, in a job or with `batch=`. How it is read: jobs/verdict.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a handler of a list may return: who failed, and why, and who was skipped; all the others have succeeded.

    `failed` maps items to errors (a text, or an exception), or has pairs of both, for items that cannot be keys.
    `results` does so for what came of items, which is kept as the job's `collect` says; not of those that have failed.
    """

    failed: Mapping[Any, object] | Iterable[tuple[Any, object]] = ()
    skipped: Iterable[Any] = ()
    results: Mapping[Any, object] | Iterable[tuple[Any, object]] = ()
