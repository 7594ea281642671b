"""The recorder of worlds with a job: what holds of it after every commit, and when all is quiet.

I15 the counts of a job are the sums of its subtasks at every moment, no item is in two subtasks, none is left out, its
end is final and what follows it is there once · I8 holds of jobs, too: nothing of one starts while it is paused, or
after it was cancelled.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from tests.simulation.jobs import NAME, NAMES, SPLIT, Run
from tests.simulation.ledger import instant
from tests.simulation.recorder import CLAIMABLE, CLAIMS, TERMINAL, Recorder, Row
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import JOB_ENDED, JOB_STARTS, JOB_UNWANTED, Ending, JobState
from workq.values import codec
from workq.values.task import Done, Worked

_COUNTS = ("succeeded", "failed", "skipped", "cancelled")
_FOLLOWS = {
    JobState.SUCCEEDED: {Ending.COMPLETE, Ending.SUCCESS},
    JobState.CANCELLED: {Ending.COMPLETE, Ending.CANCEL},
    JobState.COMPLETED_WITH_FAILURES: {Ending.COMPLETE, Ending.FAILURE},
    JobState.FAILED: {Ending.COMPLETE, Ending.FAILURE},
}


class JobRecorder(Recorder):
    """Knows what happened to one job, too."""

    HANDED_BACK: ClassVar[tuple[str, ...]] = ("ready", "cancelled", "waiting")
    """By the claim that parks it at once, because its job is paused."""

    def __init__(self, run: Run, *args: Any) -> None:
        super().__init__(*args)
        self.run = run
        self.items: dict[str, list[int]] = {}
        """What each subtask was made of."""
        self._ends: dict[str, str] = {}
        self._endings = 0
        """How often it has ended: one that has failed goes on when a person says so."""

    # -- after each commit

    def look(self) -> None:
        before = self._seen
        super().look()
        if self._seen != before:
            for job in self._jobs():
                self._judge_job(job)

    def _jobs(self) -> list[dict[str, Any]]:
        return self._all(job_tables(self._database).job.name)

    def _all(self, table: str) -> list[dict[str, Any]]:
        found = self._database.raw.execute(f"SELECT * FROM {table}")
        names = [one[0] for one in found.description]
        return [dict(zip(names, row, strict=True)) for row in found]

    def _judge_job(self, job: dict[str, Any]) -> None:
        of_it = [one for one in self._all(job_tables(self._database).subtask.name) if one["job_id"] == job["id"]]
        right = {name: sum(one[name] for one in of_it) for name in _COUNTS}
        right |= {"split": sum(one["size"] for one in of_it), "subtasks": len(of_it)}
        right["open_subtasks"] = sum(one["ended_at"] is None for one in of_it)
        for name, count in right.items():
            if job[name] != count:
                self.world.violated("I15", f"job {job['id']}: {name} is {job[name]}, and its subtasks have {count}")
        if sorted(one["number"] for one in of_it) != list(range(1, len(of_it) + 1)):
            self.world.violated("I15", f"job {job['id']}: its subtasks are not numbered one after the other")
        window = codec.decode(job["options"])["window"]
        if job["open_subtasks"] > window:
            self.world.violated("I15", f"job {job['id']}: {job['open_subtasks']} subtasks are open, of {window}")
        ended = self._ends.get(job["id"])
        if ended is not None and job["state"] != ended and ended != JobState.FAILED:
            self.world.violated("I15", f"job {job['id']}: {ended} became {job['state']}")
        if job["state"] in JOB_ENDED:
            self._endings += job["id"] not in self._ends
            self._ends[job["id"]] = job["state"]
            if job["open_subtasks"] and job["state"] != JobState.CANCELLED:
                self.world.violated("I15", f"job {job['id']} is {job['state']} with open subtasks")
        else:
            self._ends.pop(job["id"], None)

    # -- the rows of tasks

    def _judge(self, old: Row | None, new: Row) -> None:
        op, args = self._op()
        where = f"{new.id} in {op}"
        if old is None:
            self._not_before[new.id] = new.due_at
            self._unpublished_since[new.id] = self.world.now
            self._take_items(new, where)
            return
        if new.attempt < old.attempt or (new.attempt > old.attempt and op not in CLAIMS):
            self.world.violated("I9", f"{where}: attempt {old.attempt} became {new.attempt}")
        if old.state in TERMINAL and op != "revive":
            if (old.state, old.attempt, old.settled_at) != (new.state, new.attempt, new.settled_at):
                self.world.violated("I1", f"{where}: {old.state} became {new.state}, though terminal is final")
        elif old.state == new.state == "running":
            if (old.token, old.worker, old.attempt) != (new.token, new.worker, new.attempt) and (
                op not in CLAIMS or old.worker != new.worker or (old.id, old.token) in self.started
            ):
                self.world.violated("I3", f"{where}: claimed while it was running")
        elif old.state == "running":
            self._judge_end(old, new, op, args, f"{new.id}: running became {new.state} in {op}")
        elif new.state == "running":
            self._judge_claim(old, new, op, f"{new.id}: {old.state} became running in {op}")
            self._judge_start(new, where)
        elif new.state == "cancelled" and op != "cancel" and not self._is_unwanted(new):
            self.world.violated("I8", f"{where}: cancelled, though its job wants it")
        elif new.state not in (*CLAIMABLE, "cancelled"):
            self.world.violated("I1", f"{where}: {old.state} became {new.state}")
        if new.state in CLAIMABLE:
            self._not_before[new.id] = new.due_at
        self._judge_hint(old, new, op)

    def _take_items(self, new: Row, where: str) -> None:
        """No item is in two subtasks."""
        query = f"SELECT name, payload FROM {self._database.tables.task.name} WHERE id = ?"
        [(name, payload)] = self._database.raw.execute(query, (new.id,))
        if name in (NAME, SPLIT):
            self.tasks.append(new.id)
        if name not in NAMES:
            self.world.violated("I1", f"{where}: {name} was recorded without being asked")
        if name != NAME:
            return
        items = codec.decode(payload)["a"][0]
        taken = {item for others in self.items.values() for item in others}
        if taken.intersection(items):
            self.world.violated("I15", f"{where}: {items} are in another subtask already")
        self.items[new.id] = items

    def _job_of(self, task_id: str) -> dict[str, Any] | None:
        query = f"SELECT job_id FROM {self._database.tables.task.name} WHERE id = ?"
        [(job_id,)] = self._database.raw.execute(query, (task_id,))
        return next((job for job in self._jobs() if job["id"] == job_id), None)

    def _judge_start(self, new: Row, where: str) -> None:
        job = self._job_of(new.id)
        if job is not None and (job["state"] not in JOB_STARTS or job["live_key"] is None):
            self.world.violated("I8", f"{where} at {instant(self.world.now)}: it starts, and its job is {job['state']}")

    def _is_unwanted(self, row: Row) -> bool:
        job = self._job_of(row.id)
        return job is not None and job["state"] in JOB_UNWANTED | JOB_ENDED

    def _judge_repair(self, task_id: str) -> None:
        """A relay that is slow between a confirm and its mark may mark what was parked and let go meanwhile.

        That is the same attempt, and its new hint may be on its way, or lost with whoever let it go: a marker finds it.
        """
        if self.world.plan.kind == "any":
            self.repaired += 1
        else:
            super()._judge_repair(task_id)

    def _judge_need(self, task_id: str) -> None:
        """Whoever wakes a splitter may do so when it has just been settled."""

    # -- the end

    def subtasks(self) -> int:
        return self.run.items + 4

    def is_quiet(self) -> bool:
        return super().is_quiet() and all(job["state"] in JOB_ENDED for job in self._jobs())

    def check_end(self) -> None:
        jobs = {job["id"]: job for job in self._jobs()}
        for job_id in self.run.begun - set(jobs):
            self.world.violated("I1", f"job {job_id} was begun, and is not there")
        for row in self.rows.values():
            if row.state == "succeeded" and not isinstance(self.outcomes.get((row.id, row.token)), Done | Worked):
                self.world.violated("I3", f"{row.id} succeeded by attempt {row.attempt}, which has not")
        for job in jobs.values():
            self._judge_ended(job)

    def _judge_ended(self, job: dict[str, Any]) -> None:
        state, run = JobState(job["state"]), self.run
        short = f"job {job['id']}, {state}"
        if state not in JOB_ENDED:
            self.world.violated("I2", f"{short}: it does not end")
            return
        names = [name for (name,) in self._database.raw.execute(f"SELECT name FROM {self._database.tables.task.name}")]
        followers = Counter(name for name in names if name.startswith("on."))
        expected = {f"on.{when}": 1 for when in _FOLLOWS[state]}
        if self._endings == 1 and followers != expected:
            self.world.violated("I15", f"{short}: what follows is {dict(followers)}, and should be {expected}")
        made = sorted(item for items in self.items.values() for item in items)
        if made != list(range(len(made))) or (job["is_split"] and len(made) != run.items):
            self.world.violated("I15", f"{short}: its subtasks have {made} of {run.items}")
        if state in (JobState.SUCCEEDED, JobState.COMPLETED_WITH_FAILURES) and len(made) != run.items:
            self.world.violated("I15", f"{short}: it has ended with {len(made)} of {run.items}")
        if state is JobState.SUCCEEDED and not run.handled >= set(made):
            self.world.violated("I15", f"{short}: no handler has returned for {set(made) - run.handled}")
        rows = self._all(job_tables(self._database).failed_item.name)
        if len(rows) != job["failed"]:
            self.world.violated("I15", f"{short}: {job['failed']} have failed, and {len(rows)} are listed")
        lost = run.bad - {codec.decode(row["item"]) for row in rows}
        if state is JobState.COMPLETED_WITH_FAILURES and not job["cancelled"] and lost:
            self.world.violated("I15", f"{short}: {lost} are bad, and have not failed")
