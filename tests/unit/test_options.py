"""The table of task options: each of its lines is complete, and whatever carries options has all of them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from tests.contract.given import OTHER_THAN_DEFAULT
from workq import ConfigError, WorkQueue
from workq.handlers.handler import Handler
from workq.handlers.keywords import JobKeywords, TaskKeywords
from workq.handlers.options import Options
from workq.jobs.values import Callback, JobOptions
from workq.ledger.schema import Tables
from workq.ledger.tasks import RARE
from workq.schedules.define import new_schedule
from workq.schedules.ledger import ScheduleTables
from workq.schedules.timetable import NewSchedule, ScheduleRow, Timetable
from workq.values.options import (
    LIMIT,
    OF_EACH_TASK,
    TASK_OPTIONS,
    CallKeywords,
    GivenTo,
    Option,
    OptionKeywords,
    Stored,
    in_columns,
    of_row,
)
from workq.values.task import NewTask, OnCrash, TaskOptions

FUNCTIONS = {GivenTo.TASK: WorkQueue.task, GivenTo.JOB: WorkQueue.job, GivenTo.CALL: Handler.options}

each_option = pytest.mark.parametrize("option", TASK_OPTIONS, ids=lambda one: one.name)
each_stored = pytest.mark.parametrize("stored", [*TASK_OPTIONS, *RARE], ids=lambda one: one.name)


@pytest.fixture
def wq() -> WorkQueue:
    """A ledger that cannot be reached."""
    return WorkQueue(ledger="postgresql://nobody@127.0.0.1:1/none")


def note() -> None: ...


def index(_items: list[int]) -> None: ...


def given_to(to: GivenTo) -> list[Option]:
    return [one for one in TASK_OPTIONS if to in one.given_to]


def test_type_checkers_know_the_options_of_the_table_and_no_others() -> None:
    assert list(get_type_hints(OptionKeywords)) == [one.name for one in given_to(GivenTo.TASK)]
    assert list(get_type_hints(CallKeywords)) == [one.name for one in given_to(GivenTo.CALL)]
    assert get_type_hints(OptionKeywords).items() <= get_type_hints(TaskKeywords).items()
    assert get_type_hints(OptionKeywords).items() <= get_type_hints(JobKeywords).items()


def test_a_handlers_own_options_are_those_that_a_job_and_a_schedule_carry() -> None:
    names = [one.name for one in OF_EACH_TASK]

    assert [one.name for one in given_to(GivenTo.TASK)] == names
    assert [one.name for one in given_to(GivenTo.JOB)] == names
    assert sorted(TaskOptions.__struct_fields__) == sorted(names)
    for carrier in (Options, NewTask, JobOptions, Callback, NewSchedule, ScheduleRow):
        assert issubclass(carrier, TaskOptions)


@each_option
def test_the_default_of_a_field_is_that_of_the_table(option: Option) -> None:
    assert getattr(NewTask("id", "name", "queue", "{}"), option.name) == option.default
    assert getattr(Options(queue="default"), option.name) == option.default


@each_stored
@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mysql"])
def test_the_columns_of_a_field_are_there(stored: Stored, dialect: str) -> None:
    tables = Tables("workq", dialect)

    assert set(stored.columns) <= set(tables.task.c.keys())
    if stored in (*OF_EACH_TASK, LIMIT):
        assert set(stored.columns) <= set(tables.part(ScheduleTables).schedule.c.keys())


@each_stored
def test_what_is_read_is_what_was_written(stored: Stored) -> None:
    default = SimpleNamespace(**{stored.name: stored.default})
    other = SimpleNamespace(**{stored.name: OTHER_THAN_DEFAULT[stored.name]})

    in_default, in_other = in_columns(default, [stored]), in_columns(other, [stored])

    assert of_row(SimpleNamespace(**in_default), [stored]) == {stored.name: stored.default}
    assert of_row(SimpleNamespace(**in_other), [stored]) == {stored.name: OTHER_THAN_DEFAULT[stored.name]}
    assert stored.is_always_written or set(in_default.values()) == {None}


@pytest.mark.parametrize("to", list(GivenTo))
def test_a_docstring_has_each_option_that_its_function_takes(to: GivenTo) -> None:
    lines = (FUNCTIONS[to].__doc__ or "").splitlines()

    assert "**options" not in "".join(lines)
    assert max(map(len, lines)) <= 120
    for option in TASK_OPTIONS:
        told = [line for line in lines if re.match(rf" +{option.name}( \(.+ by default\))?: ", line)]
        assert len(told) == (to in option.given_to), option.name


def test_an_option_that_a_function_does_not_take_is_an_error_of_the_call(wq: WorkQueue) -> None:
    task: Any = wq.task(name="shop.note")(print)

    for option in (*TASK_OPTIONS, SimpleNamespace(name="not_there", given_to=())):
        functions: dict[GivenTo, Any] = {
            GivenTo.TASK: wq.task,
            GivenTo.JOB: wq.job,
            GivenTo.CALL: task.options,
        }
        for to, function in functions.items():
            if to not in option.given_to:
                with pytest.raises(TypeError) as refused:
                    function(**{option.name: None})
                assert str(refused.value) == f"{to.value}() got an unexpected keyword argument {option.name!r}"


def test_none_is_the_handlers_own_for_a_call_and_wrong_for_a_handler(wq: WorkQueue) -> None:
    task: Any = wq.task(name="shop.note", on_crash="ask")(print)

    assert task.options(on_crash=None).taken().on_crash is OnCrash.ASK
    assert task.options(on_crash="again").taken().on_crash is OnCrash.AGAIN
    registering: list[Any] = [wq.task, wq.job]
    for register in registering:
        with pytest.raises(ConfigError, match=r"^on_crash: need one of again, fail, ask, got None$"):
            register(on_crash=None)


def test_a_handlers_options_reach_each_of_its_tasks(wq: WorkQueue) -> None:
    own: Any = {one.name: OTHER_THAN_DEFAULT[one.name] for one in OF_EACH_TASK}
    register: Any = wq.task(name="shop.note", **own)
    task = register(note)
    register_job: Any = wq.job(name="shop.index", on_complete=task, **own)
    job = register_job(index)
    schedule = new_schedule("nightly", Timetable.cron("0 3 * * *"), "once", task, (), {})

    [callback] = job.job_options.callbacks
    for carrier in (task.new_task(task.defaults, (), {}), task.options(), job.job_options, callback, schedule):
        kept = carrier.taken() if hasattr(carrier, "taken") else carrier
        assert kept.carried() == own


def test_a_call_gives_its_task_every_option_that_it_takes(wq: WorkQueue) -> None:
    task: Any = wq.task(name="shop.note")(note)
    given = {one.name: OTHER_THAN_DEFAULT[one.name] for one in given_to(GivenTo.CALL)}

    made = task.options(**given).new_task((), {})

    assert {name: getattr(made, name) for name in given} == given
