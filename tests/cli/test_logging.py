"""What handlers log, and what is logged of them: with their task, as text or JSON, or as the application has it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.conftest import BOUND_S, Cli

APP = """
import asyncio, contextvars, logging, threading, warnings
{configured}
from workq import Fixed, WorkQueue

wq = WorkQueue()
log = logging.getLogger("app")

@wq.task(name="app.plain")
def plain(secret):
    log.info("plain %s", "one")
    log.debug("unseen")
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(log.info, "of a thread"))
    thread.start()
    thread.join()
    warnings.warn("careful")

@wq.task(name="app.coro")
async def coro(secret):
    await asyncio.sleep(0)
    await asyncio.to_thread(log.warning, "coro\\n\\x1b[2J", extra={{"task": "mine"}})

@wq.task(name="app.many", batch=20)
def many(items):
    log.info("many %d", len(items))

@wq.task(name="app.bad", failures_max=2, retry=Fixed(0.1))
def bad(secret):
    raise LookupError("not there")
"""
OWN = """
from logging.config import dictConfig
import workq.logs, workq.worker.settle, workq.supervisor.supervisor
dictConfig({
    "version": 1,
    "formatters": {"own": {"format": "OWN %(levelname)s %(name)s %(message)s"}},
    "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
    "root": {"level": "INFO", "handlers": ["own"]},
})
"""
SECRET = "canary-argument"


def ran(cli: Cli, *options: str, configured: str = "") -> tuple[dict[str, list[str]], str]:
    """Run one task of each; their ids by name, and what the worker wrote."""
    (cli.folder / "app.py").write_text(APP.format(configured=configured))
    ids: dict[str, list[str]] = {}
    with cli.queue() as wq:
        for name, count in (("app.plain", 1), ("app.coro", 1), ("app.bad", 1), ("app.many", 12)):
            register = wq.task(name=name, failures_max=2)(lambda secret: None)
            ids[name] = [register.enqueue(SECRET).id for _ in range(count)]
    done = cli("worker", "--app", "app:wq", "--drain", "--threads", "1", "-v", *options)
    assert done.status == 0, done
    return ids, done.err


def test_what_a_handler_logs_is_shown_with_its_task_and_each_failure_is_a_line(cli: Cli) -> None:
    ids, said = ran(cli)

    lines = said.splitlines()
    texts = [found.group(1) for line in lines if (found := re.search(r" \d+ (app: .+)", line))]
    of = {name: f"task={found[0]} task_name={name} attempt=1" for name, found in ids.items()}
    many = [text for text in texts if text.startswith("app: many")]
    assert sorted(set(texts) - set(many)) == [
        "app: coro\\n\\x1b[2J task=mine task_name=app.coro attempt=1",
        f"app: of a thread {of['app.plain']}",
        f"app: plain one {of['app.plain']}",
    ]
    assert sum(int(text.split(" ")[2]) for text in many) == 12
    assert all("task_name=app.many tasks=[" in text and "tasks_count=" in text for text in many)
    assert any("py.warnings: " in line and of["app.plain"] in line for line in lines)
    [retry] = [line for line in lines if "task.retry" in line]
    [dead] = [line for line in lines if "task.dead" in line]
    assert " WARNING " in retry
    assert f"{of['app.bad']}".replace(" attempt", " queue=default attempt") in retry
    assert 'error="LookupError: not there"' in retry
    assert " ERROR " in dead
    assert "queue=default attempt=2" in dead
    assert lines[lines.index(dead) + 1] == "  Traceback (most recent call last):"
    assert SECRET not in said
    assert all(line.isprintable() for line in lines)


def test_as_json_each_record_is_one_object_on_one_line(cli: Cli) -> None:
    ids, said = ran(cli, "--log-format", "json")

    lines = [line for line in said.splitlines() if not line.startswith("workq: warning: running as root")]
    documents: list[dict[str, Any]] = [json.loads(line) for line in lines]
    [plain] = [one for one in documents if one["message"] == "plain one"]
    [dead] = [one for one in documents if one["message"] == "task.dead"]
    assert plain["logger"] == "app"
    assert (plain["task"], plain["task_name"], plain["attempt"]) == (ids["app.plain"][0], "app.plain", 1)
    assert (dead["task"], dead["level"], dead["attempt"]) == (ids["app.bad"][0], "ERROR", 2)
    assert dead["traceback"].startswith("Traceback")
    assert {"worker.started", "worker.left", "supervisor.started"} <= {one["message"] for one in documents}
    assert SECRET not in said


def test_an_application_that_has_configured_logging_is_left_alone_and_gets_what_workq_logs(cli: Cli) -> None:
    ids, said = ran(cli, configured=OWN)

    lines = said.splitlines()
    assert "OWN INFO app plain one" in lines
    [dead] = [line for line in lines if "task.dead" in line]
    assert dead.startswith(f"OWN ERROR workq.task task.dead task={ids['app.bad'][0]} task_name=app.bad ")
    assert lines[lines.index(dead) + 1] == "Traceback (most recent call last):"
    assert any(line.startswith("OWN INFO workq.worker worker.started worker=") for line in lines)
    assert any(line.startswith("OWN INFO workq.supervisor supervisor.started pid=") for line in lines)


def test_a_log_format_is_said_to_have_no_effect_where_the_application_has_configured_logging(cli: Cli) -> None:
    (cli.folder / "app.py").write_text(APP.format(configured=OWN))
    cli.here("db", "migrate")

    given = cli("worker", "--app", "app:wq", "--drain", "--log-format", "json")
    not_given = cli("worker", "--app", "app:wq", "--drain")

    said = "workq: warning: --log-format json has no effect: the application has configured logging itself; "
    assert given.status == not_given.status == 0
    assert given.err.count(said) == 1
    assert "has no effect" not in not_given.err


def test_a_wrong_log_format_is_refused_in_words(cli: Cli) -> None:
    option = cli("worker", "--log-format", "xml", app=True)
    variable = cli("worker", app=True, env={"WORKQ_LOG_FORMAT": "xml"})

    assert (option.status, variable.status) == (2, 2)
    assert "'xml' is not one of 'text', 'json'" in option.err
    assert "log_format (environment WORKQ_LOG_FORMAT): must be text or json" in variable.err


@pytest.mark.parametrize(
    ("configured", "expected"), [("", ""), ("logging.basicConfig(); ", "WARNING:workq.relay:said\n")]
)
def test_who_uses_the_library_sees_nothing_of_its_log_unless_it_is_asked_for(configured: str, expected: str) -> None:
    code = f"import logging, workq; {configured}logging.getLogger('workq.relay').warning('said')"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND_S, check=True)

    assert done.stderr == expected
