"""`workq db history`: who chose how much of a task's life is kept, and why, is kept as well."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_what_was_chosen_is_kept_with_who_and_why_and_a_question_is_not(cli: Cli) -> None:
    cli.record("shop.add", 1)
    for said in (["full", "--why", "an inquiry"], ["full"], [], ["brief"]):
        assert cli.here("db", "history", *said).status == 0

    with cli.queue() as wq:
        events = wq.stores.ledger.questions.happened(["manual"], within_s=600.0, limit=9)

    chosen = sorted((one.detail["what"], one.detail["why"]) for one in events)
    assert chosen == [("db history brief", "chosen by an operator"), ("db history full", "an inquiry")]
    assert all("@" in one.detail["who"] for one in events)
