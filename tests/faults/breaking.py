"""An application whose handlers break the process that they run in, and return. Its grace is long."""

from __future__ import annotations

import os
import resource
from dataclasses import replace

from tests.system import witness
from workq import Times, WorkQueue

wq = WorkQueue(times=replace(Times().divided_by(10), grace_s=120.0))


def break_process(how: str) -> None:
    witness.write("start", how)
    match how:
        case "descriptors":
            os.closerange(3, 4096)
        case "file_size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


@wq.task(name="breaking.plain", queue="witness")
def plain(how: str) -> None:
    break_process(how)


@wq.task(name="breaking.coroutine", queue="witness")
async def coroutine(how: str) -> None:
    break_process(how)


@wq.task(name="witness.note", queue="witness")
def note(number: int, seconds: float = 0.0) -> None:
    witness.note(number, seconds)


@wq.task(name="witness.anote", queue="witness")
async def anote(number: int, seconds: float = 0.0) -> str:
    return await witness.anote(number, seconds)
