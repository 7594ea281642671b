"""Whatever a handler, its arguments or its recorded payload do: a recorded failure, never a dead worker.

One consumer process serves the whole module: after each test the same one must serve a good task.
"""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select, update

from tests.stores import database_of
from tests.system.fleet import Fleet, wait_until
from tests.system.legs import Leg
from workq import State, WorkQueue
from workq.diagnose.doctor.work import examine
from workq.errors import ConfigError
from workq.values.codec import new_task_id
from workq.values.task import NewTask, Task


def found(leg: Leg, task_id: str) -> Task:
    task = leg.app.get(task_id)
    assert task is not None
    return task


def settled(leg: Leg, task_id: str, *, timeout_s: float = 30) -> Task:
    is_open = (State.READY, State.WAITING, State.RUNNING)
    wait_until(lambda: found(leg, task_id).state not in is_open, timeout_s=timeout_s, what="it is settled")
    return found(leg, task_id)


@dataclass
class Served:
    """A leg with one consumer process for the whole module: nothing that a test does may end it."""

    leg: Leg
    fleet: Fleet
    pid: int

    def check(self) -> None:
        """The same process serves good tasks of both kinds."""
        good = [self.leg["note"].enqueue(1).id, self.leg["anote"].enqueue(2).id]
        for task_id in good:
            assert settled(self.leg, task_id).state is State.SUCCEEDED
        assert {line.pid for line in self.leg.testimony() if line.task_id in good} == {self.pid}
        assert "child_died" not in self.fleet.text()


@pytest.fixture(scope="module", params=["sqlite", "servers"])
def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        leg = Leg.open("sqlite", folder, ledger=f"sqlite:///{folder / 'workq.db'}", divide=10.0)
    else:
        leg = Leg.open(
            "servers",
            folder,
            ledger=request.getfixturevalue("postgres_server").url,
            broker=request.getfixturevalue("rabbitmq_server").url,
            inflight=request.getfixturevalue("redis_server").url,
            divide=10.0,
        )
    with leg.fleet(processes=1, threads=4) as fleet:
        wait_until(lambda: len(fleet.children()) == 1, timeout_s=20, what="a consumer process")
        yield Served(leg, fleet, fleet.children()[0].pid)
        fleet.terminate()
        assert fleet.wait(20) == 0
    leg.close()


@pytest.fixture
def leg(serving: Served) -> Iterator[Leg]:
    """The leg of that process, which still serves after the test."""
    yield serving.leg
    serving.check()


def record(leg: Leg, *, name: str = "witness.note", payload: str = '{"a":[1],"k":{}}', failures_max: int = 3) -> str:
    """A row as somebody else's code, or a careless hand, may leave it."""
    task = NewTask(new_task_id(), name, "witness", payload, failures_max=failures_max)
    leg.app.producer.record([task])
    return task.id


# What a handler returns (B60).


@pytest.mark.parametrize("kind", ["set", "nan", "huge", "error"])
def test_a_result_that_cannot_be_kept_is_a_success_with_a_note(kind: str, leg: Leg) -> None:
    task = settled(leg, leg["answer"].enqueue(None, kind).id)

    assert (task.state, task.attempt, task.failures, task.result) == (State.SUCCEEDED, 1, 0, None)
    assert task.reason is not None
    assert task.reason.startswith("result_error: ")


@pytest.mark.parametrize("value", [0, False, "", [], {"deep": [1, {"x": None}]}, "\U0001f600 €", 2**70, 1.5])
def test_a_result_comes_back_as_it_was(value: Any, leg: Leg) -> None:
    task = settled(leg, leg["answer"].enqueue(value).id)

    assert (task.state, task.result, task.reason) == (State.SUCCEEDED, value, None)


def test_a_coroutine_is_a_handler_like_any_other(leg: Leg) -> None:
    ids = [leg["anote"].enqueue(number, 0.2).id for number in range(6)]
    tasks = [settled(leg, task_id) for task_id in ids]

    assert [task.result for task in tasks] == [f"done {number}" for number in range(6)]


def test_work_that_was_only_created_is_awaited_or_a_failure_and_no_success(leg: Leg) -> None:
    ids = [leg["hidden"].enqueue().id for _ in range(6)]
    unrun = settled(leg, leg["unrun"].enqueue().id)

    assert [settled(leg, task_id).result for task_id in ids] == ["not set"] * 6
    assert leg.starts().keys() >= set(ids)
    assert unrun.state is State.DEAD
    assert unrun.error is not None
    assert "work that nobody has run (generator)" in unrun.error.partition("\n")[0]


def test_a_task_sees_nothing_that_another_has_set_in_its_context(leg: Leg) -> None:
    ids = [leg["tenant"].enqueue().id for _ in range(12)]

    assert {settled(leg, task_id).result for task_id in ids} == {"not set"}


# What a handler raises.


@pytest.mark.parametrize(
    ("how", "name"),
    [("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt"), ("memory", "MemoryError"),
     ("recursion", "RecursionError"), ("bad_str", "BadText"), ("strange", "Strange"), ("surrogate", "ValueError")],
)  # fmt: skip
@pytest.mark.parametrize("task_name", ["misbehave", "amisbehave"], ids=["sync", "async"])
def test_whatever_a_handler_raises_is_a_failure(task_name: str, how: str, name: str, leg: Leg) -> None:
    task = settled(leg, leg[task_name].enqueue(how).id)

    assert (task.state, task.failures, task.crashes) == (State.DEAD, 1, 0)
    assert task.reason == f"failures_max reached: {name}"
    assert task.error is not None
    assert name in task.error
    assert "\x00" not in task.error


def test_a_task_that_a_handler_left_in_the_loop_cannot_end_it(leg: Leg) -> None:
    """SystemExit in a task of the handler's own ends asyncio's loop, and every other coroutine with it."""
    slow = leg["anote"].enqueue(1, 1.0)
    wait_until(lambda: leg.starts()[slow.id] == 1, timeout_s=20, what="a coroutine runs")
    leg["amisbehave"].enqueue("leave_exit")

    assert settled(leg, slow.id).state is State.SUCCEEDED


@pytest.mark.parametrize("how", ["close", "with"])
@pytest.mark.parametrize("name", ["close", "aclose"], ids=["sync", "async"])
def test_a_handler_that_closes_its_application_closes_nothing_of_the_worker(name: str, how: str, leg: Leg) -> None:
    task = settled(leg, leg[name].enqueue(how).id)

    assert task.state is State.SUCCEEDED
    assert settled(leg, str(task.result)).state is State.SUCCEEDED


def test_a_failing_task_is_tried_again_until_its_budget_is_used_up(leg: Leg) -> None:
    task = settled(leg, leg["fail"].enqueue(7).id)

    assert (task.state, task.attempt, task.failures, task.crashes) == (State.DEAD, 3, 3, 0)
    assert task.reason == "failures_max reached: ValueError"
    assert task.error is not None
    assert task.error.startswith("ValueError: no luck with 7")
    assert [event.kind for event in leg.app.stores.ledger.questions.history(task.id)] == ["failed"] * 3


# Limits and cancelling.


@pytest.mark.parametrize("name", ["soft", "asoft"])
def test_a_soft_limit_ends_the_handler_and_not_the_process(name: str, leg: Leg) -> None:
    task = settled(leg, leg[name].enqueue().id)

    assert (task.state, task.failures, task.crashes) == (State.DEAD, 1, 0)
    assert task.reason == "failures_max reached: time_limit"
    assert task.error is not None
    assert "SoftTimeLimit" in task.error.partition("\n")[0]


@pytest.mark.parametrize("name", ["cancel_me", "acancel_me"])
def test_a_running_task_sees_that_it_was_cancelled(name: str, leg: Leg) -> None:
    task = leg[name].enqueue(60.0)
    wait_until(lambda: leg.starts()[task.id] == 1, timeout_s=30, what="it runs")

    assert leg.app.stores.ledger.decisions.cancel(task.id, who="ada", why="no longer wanted") == "requested"

    after = settled(leg, task.id)
    assert (after.state, after.failures, after.attempt) == (State.CANCELLED, 0, 1)
    assert "cancelled" in [line.what for line in leg.testimony() if line.task_id == task.id]


def test_a_success_stays_a_success_though_a_cancel_was_asked_for(leg: Leg) -> None:
    task = leg["note"].enqueue(1, 1.0)
    wait_until(lambda: leg.starts()[task.id] == 1, timeout_s=30, what="it runs")
    leg.app.stores.ledger.decisions.cancel(task.id, who="ada", why="too late")

    assert settled(leg, task.id).state is State.SUCCEEDED


# What the ledger's row says (B62).


@pytest.mark.parametrize(
    ("payload", "reason"),
    [("nonsense", "bad_payload"), ("", "bad_payload"), ("[]", "bad_payload"), ('{"a":5,"k":{}}', "bad_payload"),
     ("[" * 50_000, "bad_payload"), ('{"a":[],"k":{}}', "bad_arguments"), ('{"a":[1,2,3,4],"k":{}}', "bad_arguments"),
     ('{"a":[1],"k":{"nope":1}}', "bad_arguments")],
    ids=["text", "empty", "list", "types", "deep", "missing", "too_many", "unknown"],
)  # fmt: skip
def test_a_row_that_no_handler_can_take_is_dead_at_once(payload: str, reason: str, leg: Leg) -> None:
    task_id = record(leg, payload=payload)

    def is_dead() -> bool:  # the payload may be unreadable: this asks for the state alone
        return leg.app.stores.ledger.claims.look([task_id])[task_id].state is State.DEAD

    wait_until(is_dead, timeout_s=30, what="it is dead")
    assert leg.starts()[task_id] == 0
    table = database_of(leg.app).tables.task
    with database_of(leg.app).read() as tx:
        row = tx.execute(table.select().where(table.c.id == task_id)).one()
    assert (row.reason, row.attempt, row.crashes) == (reason, 1, 0)


def test_a_name_without_a_handler_waits_visibly_at_no_cost_and_is_dead_in_the_end(serving: Served, leg: Leg) -> None:
    ledger: Any = leg.app.stores.ledger
    task_id = record(leg, name="os.system", failures_max=1)
    wait_until(lambda: found(leg, task_id).state is State.WAITING, timeout_s=30, what="it waits for a handler")
    waiting = found(leg, task_id)
    assert (waiting.failures, waiting.crashes, waiting.reason) == (0, 0, "no_handler")
    assert waiting.error is not None
    assert "no handler is registered under the name 'os.system'" in waiting.error
    [unknown] = ledger.questions.counts().unknown
    assert (unknown.name, unknown.tasks) == ("os.system", 1)
    [finding] = [one.message for one in examine(ledger, leg.app.settings) if "knows their names" in one.message]
    assert "os.system (1 of them, since" in finding
    wait_until(lambda: "task.no_handler" in serving.fleet.text(), timeout_s=20, what="the log tells")
    assert re.search(r"task\.no_handler .*reason=os\.system count=\d+ .*since=20", serving.fleet.text())

    table, event = ledger.database.tables.task, ledger.database.tables.event

    def is_hinted() -> bool:
        with ledger.database.read() as tx:
            return tx.execute(select(table.c.published_at).where(table.c.id == task_id)).scalar() is not None

    def move(tx: Any) -> None:
        """Its next look is now, and the first one was long ago."""
        now = ledger.database.now
        tx.execute(
            update(event).where(event.c.task_id == task_id).values(at=now(-leg.app.settings.times.no_handler_wait_s))
        )
        values = {"due_at": now(), "queued_at": now(-60), "published_at": None, "relay_until": None}
        tx.execute(update(table).where(table.c.id == task_id).values(values))

    wait_until(is_hinted, timeout_s=20, what="its next look is hinted")
    ledger.database.run(move)

    task = settled(leg, task_id)
    assert (task.state, task.reason, task.attempt, task.failures) == (State.DEAD, "no_handler", 2, 0)
    assert task.error is not None
    assert f"looked: {task.worker}" in task.error
    assert ledger.questions.counts().unknown == []


# What can be registered (B63, B64). No server is needed.


@pytest.fixture
def unopened() -> WorkQueue:
    return WorkQueue(ledger="sqlite:///never-opened.db")


def plain(number: int) -> int:
    return number


async def coroutine(number: int) -> int:
    return number


def generator(number: int) -> Iterator[int]:
    yield number


async def async_generator(number: int) -> AsyncIterator[int]:
    yield number


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Callee:
    def __call__(self, number: int) -> int:
        return number

    def method(self, number: int) -> int:
        return number


@pytest.mark.parametrize(
    ("function", "is_async"),
    [(plain, False), (coroutine, True), (lambda number: number, False), (functools.partial(plain, 1), False),
     (functools.partial(coroutine, 1), True), (wrapped(plain), False), (wrapped(coroutine), False),
     (Callee().method, False), (Callee(), False)],
    ids=["function", "coroutine", "lambda", "partial", "partial_coroutine", "decorated", "decorated_coroutine",
         "method", "object"],
)  # fmt: skip
def test_what_can_be_called_can_be_a_task(function: Any, is_async: bool, unopened: WorkQueue) -> None:
    handler = unopened.task(name="one")(function)

    assert handler.is_async == is_async


@pytest.mark.parametrize(
    "function",
    [generator, async_generator, functools.partial(generator, 1), Callee, 5, None],
    ids=["generator", "async_generator", "partial", "class", "number", "none"],
)
def test_what_nobody_could_run_is_refused_when_it_is_registered(function: Any, unopened: WorkQueue) -> None:
    with pytest.raises(ConfigError):
        unopened.task(name="one")(function)


def test_a_name_belongs_to_one_function_and_is_registered_before_the_worker_starts(unopened: WorkQueue) -> None:
    unopened.task(name="one")(plain)

    with pytest.raises(ConfigError, match="registered twice"):
        unopened.task(name="one")(coroutine)

    unopened.registry.freeze()
    with pytest.raises(ConfigError, match="after the worker started"):
        unopened.task(name="two")(plain)
    assert unopened.registry.names() == ["one"]
