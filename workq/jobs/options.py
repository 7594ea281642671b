"""The options of a job and of a run, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workq.errors import ConfigError
from workq.handlers.handler import Handler
from workq.jobs.values import CHUNK_MAX, WINDOW_MAX, Callback, Collect, Ending, JobOptions
from workq.values.names import check_choice, check_delay_s
from workq.values.options import GivenTo, OptionKeywords, checked

RATE_MAX: Final = 1e9
CHUNK: Final = 500


def job_options(
    *,
    queue: str,
    chunk: object,
    partitioned: bool,
    collect: object,
    window: object,
    max_failures: object,
    callbacks: Mapping[Ending, Handler[..., Any] | None],
    stored: OptionKeywords,
) -> JobOptions:
    """The options of a job, checked.

    Raises:
        ConfigError: one of them is out of range.
    """
    if partitioned and chunk is not None:
        raise ConfigError("chunk and partitioned: a partition is a subtask of its own; give one of them")
    kept = check_choice(collect, Collect, "collect")
    if partitioned and kept is not Collect.NONE:
        raise ConfigError("collect: a partition keeps what it finds in its steps")
    failed_max, failed_share_max = _most_failures(max_failures)
    options = JobOptions(
        queue=queue,
        chunk=1 if partitioned else _whole(CHUNK if chunk is None else chunk, "chunk", CHUNK_MAX),
        is_partitioned=bool(partitioned),
        collect=kept,
        window=_whole(window, "window", WINDOW_MAX),
        failed_max=failed_max,
        failed_share_max=failed_share_max,
        callbacks=tuple(
            Callback(when, one.name, one.defaults.queue, **one.defaults.carried())
            for when, one in callbacks.items()
            if one is not None
        ),
    )
    return checked(options, stored, GivenTo.JOB)


def check_items_per_s(value: object) -> float:
    """Items a second, above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= RATE_MAX:
        raise ConfigError(f"rate: need items a second, above 0, got {value!r}")
    return float(value)


def check_spread_s(value: object) -> float:
    """Seconds above 0, up to what a delay may be."""
    spread_s = check_delay_s(value, "spread_s")
    if spread_s <= 0.0:
        raise ConfigError(f"spread_s: need seconds above 0, got {value!r}")
    return spread_s


def _most_failures(value: object) -> tuple[int | None, float | None]:
    """A number of items, or a share of them, as `5%`."""
    if value is None:
        return None, None
    if isinstance(value, str) and value.endswith("%"):
        try:
            share = float(value[:-1]) / 100
        except ValueError:
            share = -1.0
        if 0.0 <= share <= 1.0:
            return None, share
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value, None
    raise ConfigError(f"max_failures: need a whole number of items, or a share such as '5%', got {value!r}")


def _whole(value: object, what: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{what}: need a whole number from 1 to {most}, got {value!r}")
    return value
