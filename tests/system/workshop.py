"""An application with a job whose handler bears witness of the numbers that it was given (see witness.py)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import workq
from tests.system.legs import Leg
from tests.system.witness import write
from workq import Range, Times, WorkQueue
from workq.jobs.define import Job
from workq.retry import Exponential

APP = "tests.system.workshop:wq"
wq = WorkQueue(times=Times().divided_by(float(os.environ.get("WITNESS_DIVIDE", "1"))))


@wq.task(name="workshop.complete", queue="witness")
def complete(ended: dict[str, Any]) -> None:
    write("complete", ended["state"])


@wq.task(name="workshop.success", queue="witness")
def success(ended: dict[str, Any]) -> None:
    write("success", ended["succeeded"])


@wq.task(name="workshop.failure", queue="witness")
def failure(ended: dict[str, Any]) -> None:
    write("failure", ended["failed"])


@wq.task(name="workshop.cancel", queue="witness")
def cancel(ended: dict[str, Any]) -> None:
    write("cancel", ended["cancelled"])


@wq.task(name="workshop.faint", queue="witness")
def faint(ended: dict[str, Any]) -> None:
    """It dies in its first attempt."""
    if workq.current().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    write("complete", ended["state"])


def on(leg: Leg, job: Callable[[WorkQueue], Job]) -> Job:
    """A job (`as_job`, `as_tree`), to be begun on a leg."""
    for one in (complete, success, failure, cancel, faint):
        leg.app.task(name=one.name, queue="witness")(one.function)
    return job(leg.app)


def as_job(app: WorkQueue) -> Job:
    """The job, registered in an application that has what follows it."""
    register = app.job(
        name="workshop.stamp",
        queue="witness",
        chunk=100,
        window=200,
        failures_max=2,
        source=up_to,
        on_complete=app.handler("workshop.complete"),
        on_success=app.handler("workshop.success"),
        on_failure=app.handler("workshop.failure"),
        on_cancel=app.handler("workshop.cancel"),
    )
    return register(stamp)


def stamp(numbers: list[int], *, to: int, bad: int = 0, seconds: float = 0.0) -> dict[int, str]:
    """Each `bad`th number fails; 0: none."""
    if seconds:
        time.sleep(seconds)
    write("stamp", f"{numbers[0]}-{numbers[-1]}-{len(numbers)}")
    return {number: f"{number} is bad" for number in numbers if bad and number % bad == 0}


def up_to(to: int) -> Range:
    return Range(to)


def as_tree(app: WorkQueue) -> Job:
    """A job that grows while it runs, and has others nested in it."""
    app.job(name="workshop.leaf", queue="witness", chunk=2, source=up_to)(leaf)
    register = app.job(
        name="workshop.tree",
        queue="witness",
        chunk=5,
        failures_max=20,
        retry=Exponential(0.05, 0.05),
        source=("0", "1", "2", "3", "4", "5", "6", "7", "8", "9"),
        on_complete=app.handler("workshop.faint"),
    )
    return register(tree)


def tree(paths: list[str], *, deep: int = 4) -> None:
    """Each path that is not deep enough has four below it; each third call fails after it has told of them."""
    time.sleep(0.02)
    for path in paths:
        write("tree", path)
    workq.current().add(f"{path}.{branch}" for path in paths if path.count(".") < deep - 1 for branch in range(4))
    for path in paths:
        if "." not in path:
            wq.registry.jobs["workshop.leaf"].options(nested=True).run(to=4, of=path)
    if random.random() < 0.3:
        raise OSError("the search engine moves")


def leaf(numbers: list[int], *, to: int, of: str) -> None:
    for number in numbers:
        write("leaf", f"{of}.{number}")


as_job(wq)
as_tree(wq)
