"""Certificates: what is known of the death of a worker, and what is not."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from tests.contract.given import LONG_S, Clock
from tests.contract.ledger.steps import Steps
from workq.ledger import Evidence
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.certificate import Certificate, Charge, DeathFacts, OutOfMemory, ProofOfEnd, Ran
from workq.values.incarnation import Incarnation
from workq.values.task import Claim


class CertificatesContract(Steps):
    def test_the_certificate_of_a_death_says_who_ran_what_and_who_was_charged(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ran, waited = self.run_one(ledger, worker, name="shop.resize"), self.run_one(ledger, worker)
        ledger.workers.beat(worker.id, memory_bytes=300 << 20)
        clock.forward(7.0)
        facts = DeathFacts(
            signal="SIGKILL",
            oom=OutOfMemory(1, 1, 512 << 20),
            memory_bytes=500 << 20,
            memory_age_s=0.7,
            peak_bytes=510 << 20,
            ran_s={ran.task_id: 4.5},
            stacks={ran.task_id: 'File "shop.py", line 3 in resize'},
            unknown=("who was meant",),
        )

        ledger.workers.reap(worker.id, Evidence("out of memory", {ran.task_id: 1}, kind=ProofOfEnd.KILLED, facts=facts))

        [row] = ledger.questions.workers(live_only=False)
        assert row.certificate is not None
        beat_age_s = row.certificate.beat_age_s
        assert beat_age_s is not None
        assert 7.0 <= beat_age_s < 7.0 + LONG_S
        assert row.certificate == Certificate(
            kind=ProofOfEnd.KILLED,
            cause="out of memory",
            host="host",
            pid=4711,
            signal="SIGKILL",
            oom=OutOfMemory(1, 1, 512 << 20),
            memory_bytes=500 << 20,
            memory_age_s=0.7,
            peak_bytes=510 << 20,
            beat_memory_bytes=300 << 20,
            beat_age_s=beat_age_s,
            unknown=("who was meant",),
            claims=(
                Ran(
                    task_id=ran.task_id, attempt=1, name="shop.resize", state="ready", charged=Charge.CRASH,
                    started=True, ran_s=4.5, stack='File "shop.py", line 3 in resize',
                ),
                Ran(
                    task_id=waited.task_id, attempt=1, name="index", state="ready", charged=Charge.NOTHING,
                    started=False,
                ),
            ),
        )  # fmt: skip
        [event] = ledger.questions.history(ran.task_id)
        assert event.worker == worker.id
        assert event.detail == {
            "kind": "killed", "cause": "out of memory", "state": "ready", "charged": "crash", "started": True,
            "ran_s": 4.5, "stack": 'File "shop.py", line 3 in resize', "host": "host", "pid": 4711,
            "signal": "SIGKILL", "oom": {"group_kills": 1, "machine_kills": 1, "limit_bytes": 512 << 20},
            "memory_bytes": 500 << 20, "memory_age_s": 0.7, "peak_bytes": 510 << 20,
            "beat_memory_bytes": 300 << 20, "beat_age_s": beat_age_s,
            "unknown": ["who was meant"],
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("kind", "unknown"),
        [
            (ProofOfEnd.LEASE, "whether it died, was paused, or was cut off"),
            (ProofOfEnd.GONE, "how it ended"),
            (ProofOfEnd.REDIS_LOSS, "whether it died before or after the loss"),
        ],
        ids=["lease", "gone", "redis_loss"],
    )
    def test_a_death_that_nobody_saw_says_what_is_not_known(
        self, ledger: Ledger, worker: Incarnation, claimed: Claim, kind: ProofOfEnd, unknown: str
    ) -> None:
        ledger.workers.reap(worker.id, Evidence("nobody is there", kind=kind))

        [row] = ledger.questions.workers(live_only=False)
        assert row.certificate is not None
        assert row.certificate.kind is kind
        assert (row.certificate.signal, row.certificate.exit_status, row.certificate.oom) == (None, None, None)
        assert row.certificate.unknown[0].startswith(unknown)
        assert row.certificate.unknown[1] == "which of its claims had started: all count as started"
        assert ledger.questions.history(claimed.task_id)[0].detail["unknown"] == list(row.certificate.unknown)

    def test_a_certificate_names_some_of_very_many_claims_and_counts_the_others(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 230)
        ledger.claims.claim(ids, by=worker.id)

        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={ids[-1]: 1}))

        [row] = ledger.questions.workers(live_only=False)
        assert row.certificate is not None
        assert row.certificate.claims[0].task_id == ids[-1]
        assert (len(row.certificate.claims), row.certificate.claims_more) == (200, 30)

    def test_evidence_that_an_older_version_wrote_as_plain_text_is_still_read(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        with database.engine.begin() as connection:
            connection.execute(
                update(database.tables.worker).values(state="reaped", evidence="process 7: killed by SIGKILL")
            )

        [row] = ledger.questions.workers(live_only=False)

        assert (row.evidence, row.certificate) == ("process 7: killed by SIGKILL", None)
