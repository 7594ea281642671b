"""The log: it never waits, loses nothing unseen, writes no line that is not its own."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from workq.cli.show import cell
from workq.handlers.said import describe
from workq.ledger.log_lines import headline
from workq.logs import decisions
from workq.logs.forms import JsonForm, TextForm
from workq.logs.seldom import Seldom, tell_counts

BOUND_S = 60.0
EVIL = "a\x1b[2J\rb\u202ec\u2028d\n2026-01-01 00:00:00,000 ERROR 1 task.dead task=forged"


def record(message: str, *args: object, raised: BaseException | None = None, **fields: Any) -> logging.LogRecord:
    log = logging.getLogger("workq.tests")
    exc_info = None if raised is None else (type(raised), raised, raised.__traceback__)
    return log.makeRecord(log.name, logging.WARNING, "file", 1, message, args, exc_info, extra=fields)


def error_of(text: str) -> BaseException:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


# -- forms


def test_nothing_in_a_record_writes_a_control_character_or_begins_a_line() -> None:
    lines = TextForm().format(record("said: %s", EVIL, raised=error_of(EVIL), field=EVIL)).split("\n")

    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if not line.startswith("  ")] == lines[:1]
    assert lines[0].count("\\x1b") == 2
    assert any("\\u202e" in line for line in lines[1:])
    assert any("ERROR 1 task.dead task=forged" in line for line in lines[1:])


def test_a_field_with_blanks_is_quoted_so_that_it_forges_no_other() -> None:
    line = TextForm().format(record("task.retry", error='no "luck" task=2', count=3, delay_s=0.5))

    assert line.endswith('task.retry error="no \\"luck\\" task=2" count=3 delay_s=0.5')


def test_as_json_a_record_is_one_object_on_one_line() -> None:
    odd = {"when": float("nan"), "what": object, "name_of": EVIL, "level": "mine"}

    text = JsonForm().format(record("said: %s", EVIL, raised=error_of(EVIL), task="1", count=2, **odd))

    document = json.loads(text)
    assert text.isascii()
    assert "\n" not in text
    assert document["message"] == f"said: {EVIL}"
    assert (document["task"], document["count"], document["name_of"]) == ("1", 2, EVIL)
    assert (document["level"], document["logger"], document["process"]) == ("WARNING", "workq.tests", os.getpid())
    assert document["traceback"].startswith("Traceback")
    assert document["when"] == "nan"
    assert document["time"].endswith("Z")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd", "'+cmd"),
        ("-2+3", "'-2+3"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'\\t=1"),
        ("\r=1", "'\\r=1"),
        ("a\x1b\n=b", "a\\x1b\\n=b"),
        ("-17", "-17"),
        ("-1.5e3", "-1.5e3"),
        (-17, -17),
        (None, None),
        ("Füße", "Füße"),
    ],
)
def test_no_cell_of_a_csv_is_a_formula_and_numbers_stay_numbers(value: object, expected: object) -> None:
    assert cell(value) == expected


# -- seldom


class Counts:
    """What a `Seldom` wrote, by a clock that the test moves."""

    def __init__(self, lines: int) -> None:
        self.now = 0.0
        self.written: list[int] = []
        self.seldom = Seldom(logging.getLogger("tests"), lines=lines, every_s=60.0, clock=lambda: self.now)

    def note(self, kind: str = "kind") -> None:
        self.seldom.note(kind, self.written.append)


def test_after_so_many_lines_of_a_kind_one_tells_the_exact_count_of_the_others() -> None:
    told = Counts(lines=10)

    for _ in range(100):
        told.note()
    told.note("another")
    assert told.written == [1] * 11
    told.now = 60.0
    told.note()

    assert told.written == [1] * 11 + [90, 1]
    told.seldom.flush()
    assert told.written == [1] * 11 + [90, 1]


def test_what_goes_on_and_on_is_one_line_in_each_interval() -> None:
    told = Counts(lines=1)

    for second in range(0, 181, 20):
        told.now = float(second)
        told.note()

    assert told.written == [1, 2, 3, 3]


def test_what_has_ended_and_begins_anew_is_told_at_once() -> None:
    told = Counts(lines=1)
    told.note()
    told.note()
    told.now = 60.0
    tell_counts()
    told.now = 120.0
    told.note()

    assert told.written == [1, 1, 1]


def test_the_count_comes_although_nothing_else_happens() -> None:
    told = Counts(lines=1)
    for _ in range(3):
        told.note()

    told.seldom.flush()

    assert told.written == [1, 2]


# -- the buffer, in a process of its own

BURST = """
import logging, os, sys, time
from workq.logs import configure, flush, shut_down

configure()
log = logging.getLogger("workq.tests")
for number in range(30_000):
    log.info("burst", extra={"number": number})
sys.stdout.write("logged")
sys.stdout.flush()
sys.stdin.readline()
while not flush():
    time.sleep(0.01)
log.info("later")

class Bad:
    def __str__(self):
        raise SystemExit(3)

log.info("bad: %s", Bad())
assert flush()
if os.fork() == 0:
    log.info("in a forked child")
    os._exit(0)
os.wait()
log.info("the last")
shut_down()
os._exit(7)
"""

BROKEN = """
import logging, os, sys
from workq.logs import configure, flush

configure()
log = logging.getLogger("workq.tests")
log.info("first")
assert flush()
os.closerange(2, 100)
taken = [os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT) for _ in range(20)]
sys.stderr = None
log.info("not into a file of somebody else's")
flush()
"""


@contextmanager
def program(code: str, *args: str, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    # from 3.12 on Python warns of a fork beside threads
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *args]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_who_logs_never_waits_and_what_is_dropped_is_counted_and_the_rest_comes_in_order() -> None:
    with program(BURST) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], BOUND_S)[0], "whoever logs waits for a reader"
        _, said = process.communicate(b"go\n", timeout=BOUND_S)

    lines = said.decode().splitlines()
    numbers = [int(line.partition("number=")[2]) for line in lines if " burst " in line]
    dropped = [int(line.partition("count=")[2]) for line in lines if "log.dropped" in line]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 10_000
    assert sum(dropped) == 30_000 - len(numbers)
    rest = [line.split(" ", 4)[4] for line in lines if " burst " not in line and "log.dropped" not in line]
    assert rest == ["later", "log.unreadable logger=workq.tests error=SystemExit", "in a forked child", "the last"]
    assert process.returncode == 7


def test_a_descriptor_that_a_handler_has_closed_is_not_written_to_when_it_is_another_files(tmp_path: Path) -> None:
    file = tmp_path / "file"

    with program(BROKEN, str(file)) as process:
        _, said = process.communicate(timeout=BOUND_S)

    assert said.decode().splitlines()[0].endswith(" first")
    assert len(said.decode().splitlines()) == 1
    assert file.read_bytes() == b""


def test_a_process_whose_standard_error_nobody_reads_ends_within_a_second_or_two() -> None:
    code = (
        "import logging\nfrom workq.cli import main\nfrom workq.logs import configure\nimport sys\nconfigure()\n"
        "for number in range(5000): logging.getLogger('workq.tests').info('burst ' + 'x' * 80)\n"
        "sys.argv = ['workq', 'version']\nmain()\n"
    )
    with program(code) as process:
        assert process.wait(BOUND_S) == 0


# -- decisions


def group() -> BaseException:
    try:
        raise ExceptionGroup("two", [ValueError("one"), KeyError("other")])
    except ExceptionGroup as error:
        return error


def group_with_a_cause() -> BaseException:
    try:
        try:
            raise ValueError("the cause")
        except ValueError as cause:
            raise group() from cause
    except ExceptionGroup as error:
        return error


def chained() -> BaseException:
    try:
        try:
            raise ValueError("the cause")
        except ValueError as cause:
            raise LookupError("what came of it") from cause
    except LookupError as error:
        return error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (describe(error_of("no luck")), ("ValueError", "ValueError: no luck")),
        (describe(error_of("two\n\nlines")), ("ValueError", "ValueError: two\n\nlines")),
        (describe(error_of("")), ("ValueError", "ValueError")),
        (describe(error_of("\n\n  two\nlines")), ("ValueError", "ValueError:   two")),
        (describe(error_of(" \n ")), ("ValueError", "ValueError")),
        (describe(group_with_a_cause()), ("ExceptionGroup", "ExceptionGroup: two (2 sub-exceptions)")),
        (describe(group()), ("ExceptionGroup", "ExceptionGroup: two (2 sub-exceptions)")),
        (describe(chained()), ("LookupError", "LookupError: what came of it")),
        ("TimeLimit: attempt 1 exceeded", ("TimeLimit", "TimeLimit: attempt 1 exceeded")),
        ("SKU4711: is not there", ("", "SKU4711: is not there")),
        ("", ("", "")),
    ],
)
def test_the_class_of_an_error_is_that_of_what_was_raised_and_no_word_of_a_handler(
    text: str, expected: tuple[str, str]
) -> None:
    assert headline(text) == expected


def test_of_many_failures_alike_ten_are_told_and_then_the_count_for_each_handler_and_class(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logging.getLogger("workq.task")
    caplog.set_level("WARNING", logger="workq.task")  # whatever other tests have left
    log.disabled = False
    log.addHandler(caplog.handler)
    try:
        decisions._seldom.flush()
        caplog.clear()  # of what other tests had logged
        for number in range(30):
            for of in ("shop.mail", "shop.bill"):
                decisions.log_decision("task.retry", {"task": str(number), "error": "E" * 9999}, of=of, kind="OSError")
        decisions.log_decision("task.retry", {"task": "another"}, of="shop.mail", kind="KeyError")
        lines = [vars(one) for one in caplog.records if one.name == "workq.task"]
        tell_counts(are_all=True)
        counts = [vars(one) for one in caplog.records if one.name == "workq.task"][len(lines) :]
    finally:
        log.removeHandler(caplog.handler)

    assert len({(one["task"], one.get("error")) for one in lines}) == 11
    assert all(len(one.get("error", "")) <= 500 for one in lines)
    assert {(one["msg"], one["count"], one["of"], one["kind"]) for one in counts} == {
        ("task.retry", 20, "shop.mail", "OSError"),
        ("task.retry", 20, "shop.bill", "OSError"),
    }
