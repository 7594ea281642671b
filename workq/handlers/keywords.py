"""Keywords: what `WorkQueue.task` and `WorkQueue.job` take, for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workq.handlers.handler import Handler
from workq.handlers.retry import Compute, RetryPolicy
from workq.values.options import OptionKeywords


class TaskKeywords(OptionKeywords, total=False):
    """What `WorkQueue.task` takes beside `batch` and `linger_s`, for type checkers."""

    name: str | None
    queue: str
    priority: str
    limit: str | None
    rate: str | None
    concurrency: int | None
    time_limit_s: float | None
    retry: RetryPolicy | Compute | None
    retry_on: type[BaseException] | Sequence[type[BaseException]] | None
    give_up_on: type[BaseException] | Sequence[type[BaseException]] | None


class JobKeywords(OptionKeywords, total=False):
    """What `WorkQueue.job` takes, for type checkers."""

    name: str | None
    chunk: int | None
    partitioned: bool
    collect: str
    window: int
    source: Callable[..., Any] | Iterable[Any] | None
    queue: str
    max_failures: int | str | None
    limit: str | None
    concurrency: int | None
    time_limit_s: float | None
    retry: RetryPolicy | Compute | None
    retry_on: type[BaseException] | Sequence[type[BaseException]] | None
    give_up_on: type[BaseException] | Sequence[type[BaseException]] | None
    on_complete: Handler[..., Any] | None
    on_success: Handler[..., Any] | None
    on_failure: Handler[..., Any] | None
    on_cancel: Handler[..., Any] | None
