"""Text: whatever users, handlers and exceptions say is kept, or cut, and never in the way."""

from __future__ import annotations

import pytest

from tests.contract.given import incarnation, new
from tests.contract.ledger.schedules import NIGHTLY
from tests.contract.ledger.steps import Steps
from workq.ledger import Evidence
from workq.ledger.engine.states import CLAIMABLE
from workq.ledger.sql import Ledger
from workq.schedules.ledger import Schedules
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import Cancelled, Claim, Dead, Done, Failed, Outcome, Settlement, State


class TextContract(Steps):
    @pytest.mark.parametrize(
        "text",
        [
            "🦀 and 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
            'it\'s "quoted" `so` \\ back\\slash',
            "line\nnext\r\ntab\t",
            "%s %(x)s :name ? {0} $1",
            "é vs e\u0301",
        ],
    )
    def test_any_text_survives(self, ledger: Ledger, worker: Incarnation, text: str) -> None:
        payload = codec.encode({"a": [text], "k": {"k": text}}, path="args")
        claim = self.run_one(ledger, worker, payload=payload, key="k " + text.replace("\n", " ") + "!")
        assert claim.payload == payload
        self.settle(ledger, claim, Failed(0.0, text))
        [claim] = ledger.claims.claim([claim.task_id], by=worker.id)
        self.settle(ledger, claim, Done(codec.encode(text, path="result")))

        task = self.task(ledger, claim.task_id)
        assert (task.args, task.kwargs, task.result, task.error) == ((text,), {"k": text}, text, text)
        assert ledger.questions.history(claim.task_id)[0].detail["error"] == text

    def test_a_payload_and_a_result_of_250_kb_survive(self, ledger: Ledger, worker: Incarnation) -> None:
        large = codec.encode({"a": ["é" * 125_000], "k": {}}, path="args")
        claim = self.run_one(ledger, worker, payload=large)
        self.settle(ledger, claim, Done(large))

        task = self.task(ledger, claim.task_id)
        assert len(large.encode()) > 250_000
        assert (claim.payload, task.args, task.result["a"]) == (large, ("é" * 125_000,), ["é" * 125_000])

    @pytest.mark.parametrize("text", ["nul \x00 byte", "lone \ud800 surrogate"])
    def test_what_exceptions_and_people_say_never_keeps_an_outcome_from_being_written(
        self, ledger: Ledger, text: str
    ) -> None:
        workers = [incarnation() for _ in range(2)]
        for worker in workers:
            ledger.workers.join(worker, queues=["default"], threads=1)
        claims = ledger.claims.claim(self.record(ledger, 4), by=workers[0].id)
        outcomes: list[Outcome] = [Done(None, note=text), Failed(5.0, text), Dead(text, text), Cancelled(text)]
        settled = ledger.outcomes.settle([Settlement(*pair) for pair in zip(claims, outcomes, strict=True)])
        [cancelled] = self.record(ledger)
        ledger.decisions.cancel(cancelled, who="ada", why=text)
        ledger.decisions.revive(cancelled, who="ada", why=text)
        [claim] = ledger.claims.claim([cancelled], by=workers[1].id)
        ledger.workers.reap(workers[1].id, Evidence(text, failed={claim.task_id: (text, 1.0)}))

        assert [one.state for one in settled] == [State.SUCCEEDED, State.WAITING, State.DEAD, State.CANCELLED]
        task = self.task(ledger, claims[2].task_id)
        assert task.reason == task.error == text.replace("\x00", "\\x00").replace("\ud800", "\\ud800")
        assert self.kinds(ledger, cancelled) == ["cancelled", "revived", "reaped"]

    @pytest.mark.parametrize("text", ["NUL \x00 end", "a lone surrogate \ud800", "w" * 5_000])
    def test_whoever_has_decided_and_why_is_kept_by_each_decision(self, ledger: Ledger, text: str) -> None:
        kept = text.replace("\x00", "\\x00").replace("\ud800", "\\ud800")[:200]
        one, two, three = self.record(ledger, 3)
        ledger.part(Schedules).schedule(NIGHTLY)

        ledger.bulk.cancel_all([one], states=CLAIMABLE, who=text, why=text)
        ledger.decisions.cancel(two, who=text, why=text)
        ledger.decisions.reschedule(three, delay_s=60.0, who=text, why=text)
        ledger.decisions.revive(two, who=text, why=text)
        ledger.part(Schedules).pause_schedule(NIGHTLY.name, who=text, why=text)
        ledger.part(Schedules).resume_schedule(NIGHTLY.name, who=text, why=text)
        ledger.part(Schedules).unschedule(NIGHTLY.name, who=text, why=text)

        kinds = ["cancelled", "rescheduled", "revived", "paused", "resumed", "unscheduled"]
        events = ledger.questions.happened(kinds, within_s=60.0, limit=99)
        assert len(events) == 7
        assert {one.detail["who"] for one in events} == {kept}

    def test_an_endless_error_is_cut(self, ledger: Ledger, claimed: Claim) -> None:
        self.settle(ledger, claimed, Dead("r" * 5000, "e" * 5_000_000))

        task = self.task(ledger, claimed.task_id)
        assert task.error == "e" * 20_000
        assert task.reason == "r" * 200

    def test_names_that_differ_only_by_case_or_accent_are_different(self, ledger: Ledger) -> None:
        answers = ledger.tasks.record([new(name="Index", queue="Q", key=key)[0] for key in ("k", "K", "ḱ", "k!")])
        self.record(ledger, name="index", queue="q", key="k")

        assert all(one.created for one in answers)
        assert len(ledger.questions.tasks(queue="Q")) == 4
        assert len(ledger.questions.tasks(name="index")) == 1
        assert set(ledger.questions.counts().queues) == {"Q", "q"}
