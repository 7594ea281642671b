"""Many producers that enqueue under the same keys at once make one task for each, and all are told which."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, closing

import pytest
from sqlalchemy import func, select

from tests.system.fleet import REPOSITORY
from tests.system.legs import Leg
from tests.zygote import FORKED_WITH, Forked


@pytest.mark.timeout(1500)
def test_one_row_for_each_key_however_many_processes_enqueue_it(leg: Leg, long_run: bool) -> None:
    producers, keys, draws = (64, 10_000, 2_500) if long_run else (3, 40, 60)
    answers: Counter[tuple[int, str, bool]] = Counter()
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                Forked(
                    [sys.executable, "-m", "tests.system.keyed", str(keys), str(draws), str(seed)],
                    cwd=REPOSITORY,
                    env={**os.environ, **FORKED_WITH, **leg.environ},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for seed in range(producers)
        ]
        for one in started:
            out, _ = one.communicate(timeout=1200)
            assert one.returncode == 0
            for line in out.splitlines():
                key, task_id, created = line.split(" ")
                answers[int(key), task_id, created == "1"] += 1

    asked = {key for key, _, _ in answers}
    with closing(leg.app.database()) as database:
        c = database.tables.task.c
        rows = database.ask(lambda tx: tx.execute(select(c.task_key, func.count()).group_by(c.task_key)).all())
    print(f"{leg.name}: {answers.total()} enqueues of {producers} processes under {len(asked)} keys: {len(rows)} rows")
    assert answers.total() == producers * draws
    assert {row.task_key: row[1] for row in rows} == {f"order {key}": 1 for key in asked}
    assert len({(key, task_id) for key, task_id, _ in answers}) == len(asked), "all were told the same task"
    assert sum(count for (_, _, created), count in answers.items() if created) == len(asked), (
        "one was told that it made it"
    )
