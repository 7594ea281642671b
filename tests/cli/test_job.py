"""`workq job`: begun, watched and steered from the command line; and what its exit statuses say."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.conftest import Cli, Ran

UNKNOWN = "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"

BAZAAR = """
import json

import workq
from workq import Range, WorkQueue

wq = WorkQueue()

@wq.job(name="bazaar.count", chunk=10, failures_max=1)
def count(numbers: list[int], *, to: int, bad: int = -1) -> dict[int, str]:
    return {bad: "it is bad"} if bad in numbers else {}

@count.source
def numbers(to: int) -> Range:
    return Range(to)

@wq.job(name="bazaar.stream", chunk=2)
def stream(lines: list[str]) -> None: ...

@stream.source
def lines():
    yield from ("a", object(), "c")

@wq.job(name="bazaar.measure", chunk=4, collect="all")
def measure(words: list[str]) -> workq.Verdict:
    return workq.Verdict({"bad": "no"} if "bad" in words else {}, results=[(word, len(word)) for word in words])

@measure.source
def words():
    return ["one", "three", "bad", "seven", "a, b"]

@wq.job(name="bazaar.pull", partitioned=True, source=["eu", "us"])
def pull(region: str, cursor: object) -> None: ...

@wq.job(name="bazaar.broken")
def broken(items: list[int]) -> None: ...

@wq.job(name="bazaar.load", chunk=2, source=workq.JsonLines("items.jsonl"))
def load(items: list[int]) -> None: ...

@wq.job(name="bazaar.away", source=lambda: open("away.txt").read())
def away(items: list[int]) -> None: ...

@wq.job(name="bazaar.take", chunk=2, concurrency=1)
def take(items: list[object], *, of: str = "?") -> None:
    with open("taken", "a") as file:
        file.writelines(json.dumps([of, item]) + "\\n" for item in items)

@wq.job(name="bazaar.outer", chunk=1, source=["a", "b"])
def outer(names: list[str]) -> None:
    for name in names:
        count.options(nested=True).run(to=3, bad=-1 if name == "a" else 2)
        if name == "a":
            workq.current().add(["c", "c"])

@wq.job(name="bazaar.strict", chunk=1, failures_max=1, max_failures=1, source=range(20))
def strict(numbers: list[int]) -> None:
    raise ValueError(f"no {numbers[0]}")
"""


@pytest.fixture
def bazaar(cli: Cli) -> Cli:
    (cli.folder / "bazaar.py").write_text(BAZAAR)
    cli.env["WORKQ_APP"] = "bazaar:wq"
    return cli


def run(cli: Cli, *args: str) -> str:
    """Begin a job; its id."""
    ran = cli("job", "run", *args, "-o", "json")
    assert ran.status == 0, ran
    job_id: str = ran.json()["id"]
    return job_id


def work(cli: Cli) -> None:
    assert cli("-q", "worker", "--drain").status == 0


def taken(cli: Cli) -> list[object]:
    """What the handler of `bazaar.take` was given, in order."""
    return sorted((json.loads(line) for line in (cli.folder / "taken").read_text().splitlines()), key=str)


def watched(cli: Cli, job_id: str) -> Ran:
    """How it ended. What a slow machine did not withdraw of it at once, a sweep does, as it would from cron."""
    assert cli("-q", "sweep").status == 0
    return cli("job", "watch", job_id, "-q")


class TestRun:
    def test_it_runs_to_its_end_and_the_exit_status_says_how_it_ended(self, bazaar: Cli) -> None:
        good = run(bazaar, "bazaar.count", "to=95")
        work(bazaar)
        bad = run(bazaar, "bazaar.count", "to=95", "bad=17")
        work(bazaar)
        strict = run(bazaar, "bazaar.strict")
        work(bazaar)
        gone = run(bazaar, "bazaar.count", "to=10")
        assert bazaar("job", "cancel", gone, "--why", "enough").status == 0

        ends = {job_id: watched(bazaar, job_id) for job_id in (good, bad, strict, gone)}
        assert [ends[one].status for one in (good, bad, strict, gone)] == [0, 3, 1, 1]
        assert ends[good].out == "succeeded: 95 of 95 items (100 %)\n"
        assert ends[bad].out == "completed_with_failures: 95 of 95 items (100 %), 1 failed\n"
        assert ends[strict].out.startswith("failed: 20 of 20 items (100 %), ")
        assert ends[gone].out == "cancelled: 0 items, and more to come\n"
        assert "max_failures is 1" in bazaar("job", "show", strict).out

    def test_a_dry_run_counts_and_begins_nothing(self, bazaar: Cli) -> None:
        counted = bazaar("job", "run", "bazaar.count", "to=95", "--dry-run")
        streamed = bazaar("job", "run", "bazaar.strict", "--dry-run", "-o", "json")

        assert counted.out.splitlines()[0] == "95 items, 10 subtasks of up to 10"
        assert counted.out.splitlines()[1] == "[0,1,2,3,4,5,6,7,8,9]"
        assert (streamed.json()["items"], streamed.json()["first"]) == (20, [[0], [1], [2]])
        assert not (bazaar.folder / "shop.db").exists()

    def test_an_item_that_json_cannot_carry_has_failed_and_the_others_run(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.stream")
        work(bazaar)

        found = bazaar.look("job", "show", job_id)
        [item] = [json.loads(line) for line in bazaar("job", "failures", job_id, "-o", "json").out.splitlines()]
        assert (found["state"], found["succeeded"], found["failed"]) == ("completed_with_failures", 2, 1)
        assert "object object at" in item["item"]
        assert "PayloadError" in item["error"]

    @pytest.mark.parametrize(
        ("args", "status", "text"),
        [
            (("bazaar.cuont", "to=1"), 2, "has no job 'bazaar.cuont'; did you mean 'bazaar.count'?"),
            (("bazaar.count",), 2, "missing a required"),
            (("bazaar.count", "to=1", "too=1"), 2, "unexpected keyword argument 'too'"),
            (("bazaar.count", "to=1", "--rate", "fast"), 2, "--rate"),
            (("bazaar.broken", "--dry-run"), 2, "has no source: write one with @broken.source"),
        ],
    )
    def test_what_cannot_be_begun_is_refused_before_anything_is_written(
        self, bazaar: Cli, args: tuple[str, ...], status: int, text: str
    ) -> None:
        ran = bazaar("job", "run", *args)

        assert ran.status == status, ran
        assert text in ran.err
        assert not (bazaar.folder / "shop.db").exists()

    def test_two_at_once_are_refused_joined_queued_or_replaced(self, bazaar: Cli) -> None:
        first = run(bazaar, "bazaar.count", "to=5")
        refused = bazaar("job", "run", "bazaar.count", "to=5")
        joined = bazaar("job", "run", "bazaar.count", "to=5", "--if-running", "join")
        queued = run(bazaar, "bazaar.count", "to=6", "--if-running", "queue")
        replaces = run(bazaar, "bazaar.count", "to=7", "--if-running", "replace")
        work(bazaar)

        states = {one["id"]: one["state"] for one in bazaar.look("job", "ls")["jobs"]}
        assert refused.status == 6
        assert f"workq job show {first}" in refused.err
        assert joined.out == f"{first}  (it was running already)\n"
        assert states == {first: "cancelled", queued: "cancelled", replaces: "succeeded"}

    def test_a_dry_run_of_partitions_knows_no_items(self, bazaar: Cli) -> None:
        plain = bazaar("job", "run", "bazaar.pull", "--dry-run")
        found = bazaar("job", "run", "bazaar.pull", "--dry-run", "-o", "json").json()

        assert plain.out.splitlines() == ["2 partitions", '["eu"]', '["us"]']
        assert (found["items"], found["subtasks"]) == (None, 2)

    def test_its_items_come_on_standard_input(self, bazaar: Cli) -> None:
        fed = bazaar("job", "run", "bazaar.take", "of=me", "--stdin", "csv", stdin="sku,n\na,1\nb,2\nc,3\n")
        work(bazaar)

        job_id = fed.out.strip()
        assert (fed.status, fed.err) == (0, "3 items, 0 of them could not be recorded\n")
        assert bazaar("job", "watch", job_id, "-q").out == "succeeded: 3 of 3 items (100 %)\n"
        assert taken(bazaar) == [["me", {"sku": sku, "n": n}] for sku, n in (("a", "1"), ("b", "2"), ("c", "3"))]

    def test_what_was_interrupted_goes_on_behind_what_it_has(self, bazaar: Cli) -> None:
        broken = bazaar("job", "run", "bazaar.take", "--stdin", "jsonl", stdin="1\n2\n3\n4\nfive\n")
        job_id = broken.out.strip()
        waits = bazaar.look("job", "show", job_id)
        whole = bazaar("job", "run", "bazaar.take", "--stdin", "jsonl", "--into", job_id, stdin="1\n2\n3\n4\n5\n")
        more = bazaar("job", "run", "bazaar.take", "--stdin", "jsonl", "--into", job_id, stdin="1\n2\n")
        work(bazaar)

        assert (broken.status, whole.status, more.status) == (2, 0, 6)
        assert "standard input: line 5 (at byte 8) is not JSON" in broken.err
        assert f"give the same input again with --into {job_id}" in broken.err
        assert (waits["state"], waits["split"], waits["total"]) == ("running", 4, None)
        assert "takes no items: it has all" in more.err
        assert taken(bazaar) == [["?", number] for number in range(1, 6)]
        assert bazaar.look("job", "show", job_id)["state"] == "succeeded"

    @pytest.mark.parametrize(
        "args", [("--into", UNKNOWN), ("--stdin", "csv", "--dry-run"), ("--stdin", "csv", "--if-running", "join")]
    )
    def test_what_does_not_go_together_is_refused(self, bazaar: Cli, args: tuple[str, ...]) -> None:
        ran = bazaar("job", "run", "bazaar.take", *args)

        assert (ran.status, "it goes" in ran.err) == (2, True), ran

    def test_spread_over_a_time_its_items_start_evenly(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.count", "to=20", "--spread", "2s")
        unknown = run(bazaar, "bazaar.stream", "--spread", "1h")
        both = bazaar("job", "run", "bazaar.count", "to=20", "--spread", "2s", "--rate", "3/s")
        work(bazaar)

        assert bazaar.look("job", "show", job_id)["rate_max"] == 10.0
        split = next(one for one in bazaar.look("task", "ls")["tasks"] if one["name"] == "bazaar.stream.split")
        assert "does not know how many items it has" in bazaar.look("task", "show", split["id"])["error"]
        assert both.status == 2
        assert unknown

    def test_what_is_nested_ends_first_and_what_is_added_is_worked_on(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.outer")
        work(bazaar)

        found = bazaar.look("job", "show", job_id, "--slowest", "3")
        nested = bazaar.look("job", "ls", "--in", job_id)["jobs"]
        assert (found["state"], found["succeeded"], found["failed"]) == ("completed_with_failures", 4, 0)
        assert sorted(one["state"] for one in nested) == ["completed_with_failures", "succeeded"]
        assert max(one["ended_at"] for one in nested) <= found["ended_at"]
        assert len(found["slowest"]) == 3
        assert found["slowest"] == sorted(found["slowest"], key=lambda one: -one["ran_s"])
        assert f"nested in: {job_id}" in bazaar("job", "show", nested[0]["id"]).out


class TestSource:
    def test_a_bad_line_fails_the_job_at_once_and_mended_it_goes_on_at_its_cursor(self, bazaar: Cli) -> None:
        (bazaar.folder / "items.jsonl").write_text('1\n2\n3\n{"a": 1, "a": 2}\n')
        job_id = run(bazaar, "bazaar.load")
        work(bazaar)
        found, plain = bazaar.look("job", "show", job_id), bazaar("job", "show", job_id).out
        (bazaar.folder / "items.jsonl").write_text("1\n2\n3\n4\n")
        resumed = bazaar("job", "resume", job_id)
        work(bazaar)
        after = bazaar.look("job", "show", job_id)

        assert (found["state"], found["succeeded"]) == ("failed", 2)
        assert found["source"] == {
            "task": found["source"]["task"],
            "state": "dead",
            "failures": 1,
            "failures_max": 5,
            "error": "workq.errors.BadSource: items.jsonl: line 4 (at byte 6) has an object with the key 'a' twice; "
            "rename one of them",
            "next_at": None,
            "do": f"mend its source, then: workq job resume {job_id}",
        }
        assert "its source failed after 2 items: workq.errors.BadSource: items.jsonl: line 4" in plain
        told = f"1 try has failed of at most 5, and no other follows; mend its source, then: workq job resume {job_id}"
        assert told in plain
        assert resumed.status == 0
        assert (after["state"], after["succeeded"], after["source"]) == ("succeeded", 4, None)

    def test_while_a_source_is_tried_again_its_job_says_what_it_has_failed_of(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.away")
        fresh = bazaar.look("job", "show", job_id)
        work(bazaar)

        found, plain = bazaar.look("job", "show", job_id), bazaar("job", "show", job_id).out
        source = found["source"]
        assert fresh["source"] is None
        assert (found["state"], source["state"], source["do"]) == ("planning", "waiting", None)
        assert (source["failures"] >= 1, source["failures_max"]) == (True, 5)
        assert source["error"] == "FileNotFoundError: [Errno 2] No such file or directory: 'away.txt'"
        assert source["next_at"] > found["created_at"]
        assert re.search(r"source: +\d tr(y has|ies have) failed of at most 5, the next is at 2.*Z: FileNot", plain)

    def test_a_job_whose_source_has_failed_says_so_in_the_log(self, bazaar: Cli) -> None:
        (bazaar.folder / "items.jsonl").write_bytes(b"1\n\xff\n")
        job_id = run(bazaar, "bazaar.load")

        log = bazaar("worker", "--drain").err

        [line] = [line for line in log.splitlines() if "job.failed" in line]
        assert f"job={job_id}" in line
        assert "line 2 (at byte 2) is not UTF-8" in line

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            (
                "bazaar.load",
                "workq: error: cannot read items.jsonl: No such file or directory; put it there, or give its whole "
                "path",
            ),
            (
                "bazaar.away",
                "workq: error: the source of bazaar.away raised FileNotFoundError: [Errno 2] No such file or "
                "directory: 'away.txt'; nothing was begun: mend the source, or what it reads, and try again "
                "(-v shows where)",
            ),
        ],
    )
    def test_a_dry_run_of_a_source_that_raises_says_so_in_a_line(self, bazaar: Cli, name: str, text: str) -> None:
        ran = bazaar("job", "run", name, "--dry-run")

        assert (ran.status, ran.out, ran.err.splitlines()) == (2, "", [text])


class TestSteer:
    def test_pause_throttle_resume_and_cancel_are_told_in_a_line(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.count", "to=5", "--rate", "7/s")

        told = [
            bazaar("job", *args).out
            for args in (
                ("pause", job_id, "--why", "a move"),
                ("throttle", job_id, "--rate", "900/s"),
                ("throttle", job_id, "--off"),
                ("resume", job_id),
                ("cancel", job_id),
            )
        ]
        shown = bazaar.look("job", "show", job_id)
        over = bazaar("job", "resume", job_id)

        assert [line.split(":")[0] for line in told] == ["paused", "paused", "paused", "planning", "cancelled"]
        assert (shown["state"], shown["rate_max"], shown["why"]) == ("cancelled", None, "cancelled by an operator")
        assert over.status == 1
        assert "is cancelled; it cannot be resumed" in over.err

    def test_why_a_task_of_a_paused_job_does_not_run(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.count", "to=5")
        bazaar("job", "pause", job_id, "--why", "a move")
        work(bazaar)  # it parks what it meets
        [task] = bazaar.look("task", "ls")["tasks"]

        found = bazaar.look("why", task["id"])

        assert found["code"] == "job"
        assert "paused its job" in found["reason"]
        assert f"workq job resume {job_id}" in found["do"]

    @pytest.mark.parametrize("verb", ["show", "watch", "resume", "cancel", "retry", "failures", "results"])
    def test_one_that_is_not_there_is_told(self, bazaar: Cli, verb: str) -> None:
        run(bazaar, "bazaar.count", "to=5")

        ran = bazaar("job", verb, UNKNOWN)

        assert ran.status == 1, ran
        assert "list them with: workq job ls" in ran.err

    def test_throttle_needs_one_of_its_options(self, bazaar: Cli) -> None:
        assert bazaar("job", "throttle", UNKNOWN).status == 2
        assert bazaar("job", "throttle", UNKNOWN, "--off", "--rate", "1/s").status == 2

    def test_watch_gives_up_when_its_time_is_over(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.count", "to=5")

        assert bazaar("job", "watch", job_id, "--timeout", "1s", "-q").status == 5

    def test_watch_tells_json_lines_and_draws_a_bar_on_a_terminal(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.count", "to=95", "bad=17")
        work(bazaar)

        lines = [json.loads(line) for line in bazaar("job", "watch", job_id, "-o", "json").out.splitlines()]
        bar = bazaar.on_a_terminal("job", "watch", job_id)

        assert [(line["state"], line["done"], line["total"]) for line in lines] == [("completed_with_failures", 95, 95)]
        assert bar.status == 3
        assert "bazaar.count" in bar.out
        assert "95 of 95 items (100 %), 1 failed" in bar.out


class TestResults:
    def test_they_are_told_a_line_for_each_and_exported(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.measure")
        work(bazaar)

        plain = bazaar("job", "results", job_id)
        lines = [json.loads(line) for line in bazaar("job", "results", job_id, "-o", "json").out.splitlines()]
        table = bazaar("job", "results", job_id, "--csv")

        assert sorted(plain.out.splitlines()) == ['"a, b"  4', '"one"  3', '"seven"  5', '"three"  5']
        assert {line["item"]: line["result"] for line in lines} == {"one": 3, "three": 5, "seven": 5, "a, b": 4}
        assert sorted(table.out.splitlines()) == [
            '"""a, b""",4,',
            '"""one""",3,',
            '"""seven""",5,',
            '"""three""",5,',
            "item,result,note",
        ]
        assert bazaar.look("job", "show", job_id)["results"] == 4

    def test_a_job_that_keeps_none_says_so(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.count", "to=5")
        work(bazaar)

        ran = bazaar("job", "results", job_id)

        assert (ran.status, ran.out) == (0, "")
        assert "keeps no results (collect=none)" in ran.err


class TestFailures:
    def test_a_spreadsheet_finds_no_formula_in_what_is_exported(self, bazaar: Cli) -> None:
        (bazaar.folder / "bazaar.py").write_text(BAZAAR.replace("it is bad", "=1+1"))
        job_id = run(bazaar, "bazaar.count", "to=5", "bad=3")
        work(bazaar)

        table = bazaar("job", "failures", job_id, "--csv")

        assert table.out.splitlines() == ["item,failures,error", "3,1,'=1+1"]

    def test_they_are_listed_exported_and_run_again_alone(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.count", "to=95", "bad=17")
        early = bazaar("job", "retry", job_id, "--failed")
        work(bazaar)

        plain = bazaar("job", "failures", job_id)
        table = bazaar("job", "failures", job_id, "--csv")
        shown = bazaar.look("job", "show", job_id)
        again = bazaar("job", "retry", job_id, "--failed", "--chunk", "1").out.strip()
        (bazaar.folder / "bazaar.py").write_text(BAZAAR.replace("if bad in numbers", "if bad in ()"))
        work(bazaar)

        assert early.status == 6
        assert plain.out == "17  1  it is bad\n"
        assert table.out.splitlines() == ["item,failures,error", "17,1,it is bad"]
        assert [(one["count"], one["item"]) for one in shown["errors"]] == [(1, "17")]
        found = bazaar.look("job", "show", again)
        assert (found["state"], found["succeeded"], found["total"], found["failed_of"]) == ("succeeded", 1, 1, job_id)

    def test_what_was_mended_leaves_the_dead_and_is_not_run_again_once_more(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.count", "to=95", "bad=17")
        work(bazaar)
        [plain] = bazaar.kill()
        listed, table, status = bazaar.look("dead", "ls"), bazaar.here("dead", "ls"), bazaar.look("status")
        groups = bazaar.look("dead", "groups")["groups"]
        before = bazaar.here("dead", "retry", "--all", "--dry-run")
        named = bazaar.look("dead", "retry", listed["tasks"][-1]["id"], "--dry-run")
        sent = bazaar.here("dead", "retry", "--all", "--yes", "-o", "json")

        again = bazaar("job", "retry", job_id).out.strip()
        (bazaar.folder / "bazaar.py").write_text(BAZAAR.replace("if bad in numbers", "if bad in ()"))
        work(bazaar)
        repeated = bazaar("job", "retry", job_id)

        assert (len(listed["tasks"]), listed["of_jobs"], status["dead_of_jobs"], status["states"]["dead"]) == (
            2,
            1,
            1,
            2,
        )
        assert "1 of the dead are of jobs: workq job retry" in table.err
        assert {one["reason"]: one["of_jobs"] for one in groups} == {
            "items failed: it is bad": 1,
            "failures_max reached: ValueError": 0,
        }
        assert (before.status, before.out) == (3, "1 dead task would be sent back\n")
        assert named["tasks"] == 0, "it is of a job"
        assert (sent.status, sent.json()["tasks"], sent.json()["refused"]) == (0, 1, {})
        assert repeated.status == 6
        assert f"workq job retry {again}" in repeated.err
        assert len(bazaar.look("job", "ls")["jobs"]) == 2
        assert (bazaar.look("dead", "ls")["of_jobs"], bazaar.look("status")["dead_of_jobs"]) == (0, 0)
        assert plain not in [one["id"] for one in bazaar.look("task", "ls", "--state", "cancelled")["tasks"]]
        old, new = bazaar.look("job", "show", job_id), bazaar.look("job", "show", again)
        assert (old["retried_by"], old["failed_of"], new["failed_of"], new["retried_by"]) == (again, None, job_id, None)
        assert re.search(f"run again: +{again}", bazaar.here("job", "show", job_id).out)
        assert re.search(f"retry of: +{job_id}", bazaar.here("job", "show", again).out)

    def test_the_task_of_a_subtask_is_not_sent_back_by_itself(self, bazaar: Cli) -> None:
        job_id = run(bazaar, "bazaar.strict")
        work(bazaar)
        dead = bazaar.look("task", "ls", "--state", "dead")["tasks"]

        ran = bazaar("task", "retry", dead[0]["id"])

        assert ran.status != 0
        assert f"workq job retry {job_id}" in ran.out + ran.err


def test_the_audit_finds_counts_that_do_not_add_up_and_counts_again(bazaar: Cli) -> None:
    import sqlite3

    job_id = run(bazaar, "bazaar.count", "to=95")
    work(bazaar)
    fine = bazaar("audit", "-q")
    with sqlite3.connect(bazaar.folder / "shop.db") as connection:
        connection.execute("UPDATE workq_job SET succeeded = 90")
    found = bazaar("audit", "-o", "json")
    mended = bazaar("audit", "--repair", "-o", "json")
    after = bazaar("audit", "-o", "json")

    assert (fine.status, found.status, mended.status, after.status) == (0, 3, 3, 0)
    [finding] = found.json()["findings"]
    assert (finding["kind"], finding["task"]) == ("miscount", job_id)
    assert "succeeded is 90, and its subtasks have 95" in finding["proof"]
    assert mended.json()["repaired"] == {"miscount": 1}
    assert bazaar.look("job", "show", job_id)["succeeded"] == 95


@pytest.mark.parametrize("name", ["bazaar.count", "bazaar.count.split"])
def test_a_job_is_not_enqueued_as_if_it_were_one_of_its_tasks(bazaar: Cli, name: str) -> None:
    ran = bazaar("enqueue", name, "to=3")

    assert (ran.status, ran.out) == (2, "")
    assert "bazaar.count is a job, which makes its tasks itself; start it by: workq job run bazaar.count" in ran.err
    assert bazaar.here("task", "ls", "-o", "json").status != 0, "no ledger was made"


def test_what_is_no_id_of_a_job_is_said_so(bazaar: Cli) -> None:
    assert "nope is not a job id" in bazaar.here("job", "show", "nope").err.replace("'", "")
