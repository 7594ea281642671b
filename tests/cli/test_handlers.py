"""`workq handler`: what the application has registered, and when its attempts are due. No server is asked."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli
from workq.values.options import OF_EACH_TASK

BANK = """
import workq

wq = workq.WorkQueue()

@wq.task(name="bank.charge", queue="money", failures_max=4, retry=workq.Schedule([5, 300, 1800]), give_up_on=OSError)
def charge(order_id: int) -> None: ...

@wq.task(name="bank.ask", retry=lambda failures, error: 3.0, retry_on=(ValueError, OSError), time_limit_s=5)
def ask() -> None: ...

@wq.task(name="bank.once", failures_max=1)
def once() -> None: ...

@wq.task(name="bank.always", failures_max=1000000, retry=workq.Fixed(86400, jitter=0.5))
def always() -> None: ...
"""


@pytest.fixture
def bank(cli: Cli) -> Cli:
    (cli.folder / "bank.py").write_text(BANK)
    cli.env |= {"WORKQ_APP": "bank:wq", "WORKQ_LEDGER_URL": "postgresql://nobody@127.0.0.1:9/none"}
    return cli


def test_ls_tells_each_with_its_budgets_and_policy(bank: Cli) -> None:
    ran = bank("handler", "ls")
    as_json = bank("handler", "ls", "-o", "json").json()

    assert ran.status == 0, ran
    lines = ran.out.splitlines()
    titles = ["name", "queue", *(one.name for one in OF_EACH_TASK), "time_limit_s", "retry"]
    assert lines[0].split() == " ".join(titles).replace("_", " ").split()
    assert [line.split()[0] for line in lines[1:]] == ["bank.always", "bank.ask", "bank.charge", "bank.once"]
    assert "Schedule(waits_s=(5, 300, 1800), jitter=0.0)" in lines[3]
    assert [one["name"] for one in as_json["handlers"]] == ["bank.always", "bank.ask", "bank.charge", "bank.once"]
    assert as_json["handlers"][1]["retry_on"] == ["ValueError", "OSError"]


def test_show_tells_when_each_attempt_is_due(bank: Cli) -> None:
    charge = bank("handler", "show", "bank.charge")

    assert charge.status == 0, charge
    found = dict(line.split(":", 1) for line in charge.out.splitlines())
    assert {name: value.strip() for name, value in found.items() if name.startswith(("attempt", "give"))} == {
        "give up on": "OSError",
        "attempt 2": "5 s after the first failure",
        "attempt 3": "5 min 5 s after the first failure",
        "attempt 4": "35 min 5 s after the first failure",
    }
    assert bank("handler", "show", "bank.charge", "-o", "json").json()["timeline"] == [
        {"least_s": 5.0, "most_s": 5.0},
        {"least_s": 305.0, "most_s": 305.0},
        {"least_s": 2105.0, "most_s": 2105.0},
    ]


def test_show_says_what_cannot_be_known_or_is_too_long(bank: Cli) -> None:
    ask, once, always = (bank("handler", "show", f"bank.{name}") for name in ("ask", "once", "always"))

    assert "the function decides" in ask.out
    assert "retry on:" in ask.out
    assert "attempt 2" not in once.out
    assert "12 h to 1 d 12 h after the first failure" in always.out
    assert "up to attempt 1000000" in always.out
    assert len(always.out.splitlines()) < 70


def test_an_unknown_name_is_a_usage_error_that_names_the_known(bank: Cli) -> None:
    ran = bank("handler", "show", "bank.chrage")

    assert ran.status == 2, ran
    assert "bank.charge" in ran.err
