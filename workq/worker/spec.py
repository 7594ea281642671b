"""Spec: what a supervisor tells a consumer process. By itself, as a supervisor needs nothing else of a worker."""

from __future__ import annotations

import logging

import msgspec

from workq.logs import Form


class WorkerSpec(msgspec.Struct, frozen=True):
    """What the supervisor tells a consumer process, as JSON on its standard input."""

    app: str
    queues: list[str]
    threads: int
    is_drain: bool
    board: str
    stacks: str
    log_level: int = logging.INFO
    log_format: Form = "text"
