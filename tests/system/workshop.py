"""An application with jobs whose handlers bear witness of the numbers that they were given (see witness.py)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

from sqlalchemy import text

import workq
from tests.system.legs import Leg
from tests.system.pace import paced_by_environment
from tests.system.witness import write
from workq import Range, WorkQueue
from workq.handlers.retry import Exponential, Fixed
from workq.jobs.define import Job

APP = "tests.system.workshop:wq"
wq = WorkQueue(times=paced_by_environment())


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
        collect="all",
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


def stamp(numbers: list[int], *, to: int, bad: int = 0, seconds: float = 0.0) -> workq.Verdict:
    """Each `bad`th number fails; 0: none. Each tenth has a result."""
    if seconds:
        time.sleep(seconds)
    write("stamp", f"{numbers[0]}-{numbers[-1]}-{len(numbers)}")
    failed = {number: f"{number} is bad" for number in numbers if bad and number % bad == 0}
    return workq.Verdict(failed, results={number: -number for number in numbers if number % 10 == 0})


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


# -- partitions: shelves that are filled page by page


def shelf_of(app: WorkQueue) -> str:
    """A table of the user's own in the ledger's database, without any constraint that would help."""
    return f"{app.settings.namespace}_shelf"


def shelves_on(leg: Leg) -> Job:
    """The job, to be begun on a leg, and its table."""
    with closing(leg.app.database()) as database, database.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {shelf_of(leg.app)} (letter CHAR(1), number INTEGER)"))
    return as_partitions(leg.app)


def read_shelves(app: WorkQueue) -> Counter[tuple[str, int]]:
    """How often each number stands on each shelf."""
    with closing(app.database()) as database, database.engine.connect() as connection:
        rows = connection.execute(text(f"SELECT letter, number FROM {shelf_of(app)}"))
        return Counter((row.letter, row.number) for row in rows)


def as_partitions(app: WorkQueue) -> Job:
    register = app.job(
        name="workshop.fill",
        queue="witness",
        partitioned=True,
        source=letters,
        failures_max=1,
        retry=Fixed(0.2),
    )
    return register(fill)


def letters(shelves: str) -> list[str]:
    return list(shelves)


def fill(letter: str, cursor: int | None, *, shelves: str, to: int, page: int, seconds: float, raises: str) -> None:
    """The first attempt of the shelf `raises` does so when it has made three steps."""
    begins = cursor or 0
    numbers = [{"letter": letter, "number": number} for number in range(begins, min(to, begins + page))]
    time.sleep(seconds)
    write("fill", f"{letter}-{begins}")
    if letter == raises and begins >= 3 * page and workq.current().attempt == 1:
        raise ValueError(f"{letter} has no room at {begins}")
    with workq.current().step(cursor=None if begins + page >= to else begins + page, items=len(numbers)) as connection:
        connection.execute(text(f"INSERT INTO {shelf_of(wq)} VALUES (:letter, :number)"), numbers)


as_job(wq)
as_tree(wq)
as_partitions(wq)
