"""enqueue, task, dead, queue, status, worker, config: what a person does in a day, against a SQLite file."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cli.conftest import BOUND_S, Cli
from tests.stores import database_of
from tests.system.fleet import wait_until
from workq.cli.inputs import arguments
from workq.values.codec import new_task_id
from workq.values.incarnation import Incarnation
from workq.values.task import Dead, Done, HandedBack, NewTask, Settlement, Unhandled

UNKNOWN = "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"
STATES = ("ready", "waiting", "running", "succeeded", "dead", "cancelled")


def drain(cli: Cli) -> None:
    """Run everything that is due."""
    ran = cli("worker", "--drain", "-q", app=True)
    assert ran.status == 0, ran
    assert ran.out == ""


def results(document: Any) -> dict[str, Any]:
    return {one["id"]: one for one in document["results"]}


class TestEnqueue:
    def test_values_are_json_where_they_can_be_and_text_otherwise(self, cli: Cli) -> None:
        values = {
            "42": 42, "-1.5": -1.5, "true": True, "null": None, '"42"': "42", "text": "text", "[1,2]": [1, 2],
            '{"a": 1}': {"a": 1}, "NaN": "NaN", "007": "007", "": "", "a=b": "a=b", "\u00e9": "\u00e9",
        }  # fmt: skip

        enqueued = cli("enqueue", "shop.echo", 'value={"a": [1, "\u00e9"]}', "-o", "json", app=True).json()
        parsed = {text: arguments((f"value={text}",))["value"] for text in values}

        assert enqueued == {"id": enqueued["id"], "state": "ready", "created": True}
        assert cli.look("task", "show", enqueued["id"])["args"] == [{"a": [1, "\u00e9"]}]
        assert parsed == values

    def test_arguments_come_from_standard_input_as_an_object_or_an_array(self, cli: Cli) -> None:
        by_name = cli("enqueue", "shop.add", "--json", "-", "-o", "json", stdin='{"a": 1, "b": 2}', app=True).json()
        by_position = cli("enqueue", "shop.add", "--json", "-", "-o", "json", stdin="\ufeff[1, 2]", app=True).json()

        same = [cli.look("task", "show", one["id"]) for one in (by_name, by_position)]
        assert same[0]["args"] == same[1]["args"] == [1, 2]
        assert same[0]["queue"] == "sums"

    @pytest.mark.parametrize(
        ("stdin", "said"),
        [
            (b"", "nothing there"),
            (b"{", "not JSON"),
            (b"42", "an object of keyword arguments"),
            (b'{"a": NaN}', "NaN"),
            (b'{"a": 1, "a": 2}', "twice"),
            (b"\xff", "not UTF-8"),
            (b"[" * 100_000, "nested too deeply"),
            (b" " * 2_000_000 + b"{}", "more than"),
            (b'{"a": "' + b"x" * 300_000 + b'"}', "more than the limit"),
            (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
            (b'{"a": "\\ud800"}', "surrogate"),
            (b'{"c": 1}', "shop.add"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_wrong_json_is_refused_before_anything_is_recorded(self, cli: Cli, stdin: bytes, said: str) -> None:
        ran = cli("enqueue", "shop.add", "--json", "-", stdin=stdin, app=True)

        assert ran.status == 2
        assert said in ran.err
        assert len(ran.err) < 600
        assert not (cli.folder / "shop.db").exists()

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            (("shop.ad",), "did you mean 'shop.add'"),
            (("__import__('os')",), "has no task"),
            (("shop.add",), "missing a required argument: 'a'"),
            (("shop.add", "a=1", "c=2"), "unexpected keyword argument 'c'"),
            (("shop.add", "a"), "write name=value"),
            (("shop.add", "a=1", "a=2"), "given twice"),
            (("shop.add", "a=" + "9" * 5000), "too long"),
            (("shop.add", "a=1", "--key", ""), "key"),
            (("shop.add", "a=1", "--in", "4000d"), "ten years"),
            (("shop.add", "a=1", "--in", "2h", "--expires", "1h"), "it would never start"),
        ],
        ids=str,
    )
    def test_a_wrong_call_is_refused_with_the_reason(self, shared_cli: Cli, args: tuple[str, ...], said: str) -> None:
        ran = shared_cli("enqueue", *args, app=True)

        assert ran.status == 2
        assert said in ran.err
        assert ran.out == ""
        assert not (shared_cli.folder / "shop.db").exists()

    def test_later_tasks_wait_and_a_key_answers_the_live_one(self, cli: Cli) -> None:
        at = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")

        first = cli("enqueue", "shop.echo", "value=1", "--in", "10m", "--key", "k", "-o", "json", app=True).json()
        again = cli("enqueue", "shop.echo", "value=1", "--key", "k", "-o", "json", app=True).json()
        other = cli("enqueue", "shop.echo", "value=2", "--key", "k", app=True)
        dated = cli("enqueue", "shop.echo", "value=3", "--at", at, "--queue", "later", "-o", "json", app=True).json()

        assert (first["state"], first["created"]) == ("waiting", True)
        assert again == first | {"created": False}
        assert other.status == 1
        assert "key" in other.err
        shown = cli.look("task", "show", dated["id"])
        assert (shown["queue"], shown["expires_at"]) == ("later", None)
        assert abs(datetime.fromisoformat(shown["due_at"]) - datetime.fromisoformat(at)) < timedelta(seconds=60)

    def test_a_task_that_expired_is_cancelled_and_says_so(self, cli: Cli) -> None:
        task_id = cli("enqueue", "shop.echo", "value=1", "--expires", "0.1s", "-o", "json", app=True).json()["id"]
        before = cli.look("task", "show", task_id)
        time.sleep(0.2)  # by the clock of the ledger, which no test moves in another process

        drain(cli)
        cli.look("sweep")

        after = cli.look("task", "show", task_id)
        assert before["expires_at"] is not None
        assert (after["state"], after["reason"], after["attempt"]) == ("cancelled", "expired", 0)


class TestReschedule:
    def test_each_id_is_answered_and_only_what_does_not_run_moves(self, cli: Cli) -> None:
        waiting = [cli("enqueue", "shop.add", "a=1", "--in", "1h", "-o", "json", app=True).json()["id"]]
        ready = cli.record("shop.add", 1)
        (done,) = cli.settle(cli.record("shop.add", 1), Done("1"))
        at = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")

        mixed = cli("task", "reschedule", "--now", *waiting, done, UNKNOWN, "abc", "-o", "json")
        later = cli("task", "reschedule", "-", "--at", at, "--why", "the shop is closed", stdin=ready[0])

        assert mixed.status == 1
        told = results(mixed.json())
        assert {one for one, result in told.items() if result["ok"]} == set(waiting)
        assert told[waiting[0]]["result"] == "ready"
        assert told[done]["error"].startswith("is succeeded")
        assert (later.status, later.out) == (0, f"{ready[0]}  waiting\n")
        shown = cli.look("task", "show", ready[0])
        assert abs(datetime.fromisoformat(shown["due_at"]) - datetime.fromisoformat(at)) < timedelta(seconds=60)
        assert [one["detail"]["why"] for one in shown["history"]] == ["the shop is closed"]
        drain(cli)
        assert cli.look("task", "show", waiting[0])["state"] == "succeeded"
        assert cli.look("task", "show", ready[0])["state"] == "waiting"


class TestDrain:
    def test_twenty_tasks_are_drained_and_counted(self, cli: Cli) -> None:
        cli.record("shop.add", 1, count=20)
        before = cli("status", "-o", "json").json()

        drain(cli)

        after = cli("status", "-o", "json").json()
        assert before["queues"] == {"sums": {"ready": 20, "waiting": 0, "running": 0}}
        assert before["oldest_ready_s"] >= 0.0
        assert after == {
            "queues": {},
            "states": {state: 20 if state == "succeeded" else 0 for state in STATES},
            "dead_of_jobs": 0,
            "oldest_ready_s": None,
            "workers": 0,
            "no_handler": [],
            "paused": [],
            "late_workers": [],
            "destinations": [],
            "intakes": [],
            "polled": 0,
        }
        left = cli.look("worker", "ls", "--all")["workers"]
        assert [(one["state"], one["queues"], one["threads"]) for one in left] == [("left", ["default", "sums"], 4)]
        assert cli.look("worker", "ls") == {"workers": []}

    def test_status_tells_a_paused_queue_once_and_its_age_apart_from_that_of_the_others(self, cli: Cli) -> None:
        with cli.queue() as wq:
            database_of(wq).clock_offset_s = -1000.0
            wq.handler("shop.add").options(priority="low").enqueue(1)
            database_of(wq).clock_offset_s = 0.0
            wq.handler("shop.fail").enqueue()
            wq.pause_queue("sums", why="the shop moves")
            wq.pause_queue("mail~low", why="newsletters")

        told, table = cli.look("status"), cli.here("status").out

        assert 0.0 <= told["oldest_ready_s"] < 500.0
        band, queue = sorted(told["paused"], key=lambda one: str(one["queue"]))
        assert (band["queue"], band["why"], band["oldest_ready_s"]) == ("mail~low", "newsletters", None)
        assert (queue["queue"], queue["why"], queue["ends_at"]) == ("sums", "the shop moves", None)
        assert queue["oldest_ready_s"] >= 1000.0
        assert set(queue) == {"queue", "paused_at", "ends_at", "who", "why", "oldest_ready_s"}
        assert "Paused: what is ready there waits, and is not in `oldest ready`" in table
        assert re.search(r"\nsums +20.* the shop moves +1\d\d\d", table), table

    def test_status_tells_a_worker_whose_beat_is_late(self, cli: Cli) -> None:
        with cli.queue() as wq:
            wq.stores.ledger.workers.join(Incarnation("in.time", "here", 1), queues=["sums"], threads=1)
            database_of(wq).clock_offset_s = -90.0
            wq.stores.ledger.workers.join(Incarnation("stopped", "there", 2), queues=["sums"], threads=1)

        told, table = cli.look("status"), cli.here("status").out

        [late] = told["late_workers"]
        assert (late["id"], late["host"], late["pid"]) == ("stopped", "there", 2)
        assert late["beat_age_s"] >= 90.0
        assert told["workers"] == 2
        assert re.search(r"workers: +2, 1 of them late", table), table
        assert re.search(r"\nstopped +there +2 +9\d", table), table

    def test_status_and_doctor_name_what_no_worker_knows_with_how_many_tasks_wait(self, cli: Cli) -> None:
        with cli.queue() as wq:
            ledger, me = wq.stores.ledger, Incarnation("old.release", "host", 1)
            ledger.workers.join(me, queues=["sums"], threads=1)
            tasks = [NewTask(new_task_id(), "shop.new", "sums", '{"a":[],"k":{}}') for _ in range(2)]
            claims = ledger.claims.claim([one.id for one in ledger.tasks.record(tasks)], by=me.id)
            ledger.outcomes.settle([Settlement(one, Unhandled(20.0, 3600.0, "no handler")) for one in claims])

        told, table, doctor = cli.look("status"), cli.here("status"), cli.here("doctor", "-o", "json")

        [name] = told["no_handler"]
        assert (name["name"], name["tasks"], name["since"][-1]) == ("shop.new", 2, "Z")
        assert re.search(r"shop\.new +2 +20", table.out), table
        assert "shop.new (2 of them, since 20" in doctor.out
        assert doctor.status == 3

    def test_a_worker_of_some_queues_leaves_the_others_alone(self, cli: Cli) -> None:
        (mine,), (other,) = cli.record("shop.add", 1), cli.record("shop.fail")

        ran = cli("worker", "--queues", "sums,sumz", "--processes", "2", "--threads", "1", "--drain", app=True)

        assert ran.status == 0
        assert "no task of shop:wq uses the queue 'sumz' by default; did you mean 'sums'?" in ran.err
        assert cli.look("task", "show", mine)["state"] == "succeeded"
        assert cli.look("task", "show", other)["state"] == "ready"

    def test_a_worker_leaves_in_order_on_sigterm(self, cli: Cli) -> None:
        with cli.start("worker") as worker:
            assert worker.stderr is not None
            seen = wait_for_line(worker.stderr, b"worker.started")

            worker.send_signal(signal.SIGTERM)
            out, err = worker.communicate(timeout=BOUND_S)

        assert seen
        assert worker.returncode == 0, err
        assert out == b""
        assert b"worker.left" in err


def wait_for_line(stream: Iterable[bytes], mark: bytes) -> bool:
    return any(mark in line for line in stream)


class TestShow:
    def test_everything_of_a_failed_task_is_shown_in_both_forms(self, cli: Cli) -> None:
        (task_id,) = cli.kill()

        document = cli("task", "show", task_id.upper(), "-o", "json").json()
        text = cli("task", "show", task_id)

        assert document["state"] == "dead"
        assert document["failures"] == document["failures_max"] == 1
        assert "ValueError: no" in document["error"]
        assert [one["kind"] for one in document["history"]] == ["failed"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document["settled_at"])
        assert f"id:       {task_id}" in text.out
        assert "ValueError: no" in text.out
        assert "history:" in text.out
        assert text.out.isascii()

    def test_the_history_tells_of_an_attempt_that_was_handed_back_and_by_whom(self, cli: Cli) -> None:
        [task_id] = cli.settle(cli.record("shop.add", 1), HandedBack())
        cli.settle([task_id], Done("1"))

        shown = cli.here("task", "show", task_id).out

        pid = Incarnation.of_this_process().pid
        assert re.search(rf"^  \S+  handed_back attempt 1  worker=\S+\.{pid}\.\S+$", shown, re.MULTILINE), shown
        assert re.search("^attempt: +2$", shown, re.MULTILINE)

    def test_the_history_shows_of_an_error_its_first_line(self, cli: Cli) -> None:
        error = "ValueError: no luck\n\nTraceback (most recent call last):\nValueError: no luck\n(see the wiki)"
        (task_id,) = cli.settle(cli.record("shop.add", 1), Dead("failures_max reached: ValueError", error))

        history = cli("task", "show", task_id).out.partition("history:")[2]

        assert "failed attempt 1  error=ValueError: no luck  dead=" in history
        assert "wiki" not in history

    def test_an_unknown_id_exits_1_and_wait_times_out_with_5(self, cli: Cli) -> None:
        (ready,), (dead,) = cli.record("shop.add", 1), cli.kill()
        (done,) = cli.settle(cli.record("shop.add", 1), Done("1"))

        unknown = cli("task", "show", UNKNOWN)
        waited = cli("task", "show", ready, "--wait", "0.2s", "-o", "json")

        assert unknown.status == 1
        assert UNKNOWN in unknown.err
        assert waited.status == 5
        assert waited.json()["state"] == "ready"
        assert cli("task", "show", done, "--wait", "30s").status == 0
        assert cli("task", "show", dead, "--wait", "30s").status == 1

    def test_control_characters_of_data_do_not_reach_the_terminal(self, cli: Cli) -> None:
        (task_id,) = cli.kill(error="ValueError: \x1b[2Jgone\u00e9\x07")

        for args in (("dead", "ls"), ("task", "show", task_id)):
            ran = cli(*args)

            assert "\x1b" not in ran.out
            assert ran.out.isascii()

    def test_tasks_are_listed_by_pages_and_filters(self, cli: Cli) -> None:
        ids = cli.record("shop.add", 1, count=3)

        first = cli.look("task", "ls", "--limit", "2")
        second = cli.look("task", "ls", "--limit", "2", "--after", first["next"])
        none = cli.look("task", "ls", "--state", "dead")
        table = cli("task", "ls", "--queue", "sums", "--name", "shop.add")

        assert [one["id"] for one in first["tasks"] + second["tasks"]] == ids[::-1]
        assert second["next"] is None
        assert none == {"tasks": [], "next": None}
        assert table.out.splitlines()[0].split() == ["id", "name", "queue", "state", "attempt", "due"]
        assert len(table.out.splitlines()) == 4


class TestCancelAndRetry:
    def test_cancel_is_idempotent_and_answers_for_each_id(self, cli: Cli) -> None:
        (ready,), (finished,) = cli.record("shop.add", 1), cli.kill()

        first = cli("task", "cancel", ready, "-o", "json")
        again = cli("task", "cancel", ready, UNKNOWN, "abc", "-o", "json")
        late = cli("task", "cancel", "-", stdin=f"\n{finished}\n{finished}\n")

        assert first.status == 0
        assert results(first.json())[ready]["result"] == "cancelled"
        assert again.status == 1
        told = results(again.json())
        assert told[ready]["result"] == "already cancelled"
        assert "no task" in told[UNKNOWN]["error"] or "list them" in told[UNKNOWN]["error"]
        assert told["abc"]["error"] == "not a task id"
        assert (late.status, late.out) == (0, f"{finished}  already finished\n")

    def test_kill_is_for_ids_and_is_kept(self, cli: Cli) -> None:
        [running] = cli.claim(cli.record("shop.add", 1))

        ran = cli("task", "cancel", running, "--kill")
        refused = cli("task", "cancel", "--all", "--kill", "--yes")

        assert (ran.status, ran.out.split()) == (0, [running, "requested"])
        assert cli.look("task", "show", running)["history"][0]["detail"]["kill"] is True
        assert refused.status == 2
        assert "--kill belongs to ids" in refused.err

    def test_retry_revives_what_is_dead_or_cancelled_and_says_why_not_for_the_rest(self, cli: Cli) -> None:
        (dead,), (cancelled, ready) = cli.kill(), cli.record("shop.add", 1, count=2)
        (done,) = cli.settle(cli.record("shop.add", 1), Done("1"))
        cli.look("task", "cancel", cancelled)

        mixed = cli("task", "retry", "-", "-o", "json", stdin="\n".join([dead, cancelled, done, ready, UNKNOWN, "abc"]))
        malformed = cli("task", "retry", "abc", "x" * 5000)

        assert mixed.status == 1
        told = results(mixed.json())
        assert {one for one, result in told.items() if result["ok"]} == {dead, cancelled}
        assert told[done]["error"].startswith("is succeeded")
        assert told[ready]["error"].startswith("is ready")
        assert malformed.status == 2
        assert len(malformed.out) < 1000
        drain(cli)
        assert cli.look("task", "show", cancelled)["state"] == "succeeded"
        history = cli.look("task", "show", dead)["history"]
        assert [one["kind"] for one in history] == ["failed", "revived", "failed"]

    def test_a_thousand_ids_on_standard_input_get_a_line_each(self, cli: Cli) -> None:
        cli.here("db", "migrate")
        ids = [new_task_id() for _ in range(1000)]

        ran = cli("task", "retry", "-", stdin="\n".join(ids))

        assert ran.status == 1
        assert [line.split()[0] for line in ran.out.splitlines()] == ids


class TestForms:
    def test_every_command_that_answers_prints_one_json_document(self, cli: Cli) -> None:
        (task_id,) = cli.record("shop.add", 1)
        for args in (
            ("status",), ("task", "ls"), ("task", "show", task_id), ("task", "cancel", task_id),
            ("task", "retry", task_id), ("queue", "ls"), ("dead", "ls"), ("dead", "retry", "--all", "--dry-run"),
            ("task", "cancel", "--all", "--dry-run"), ("queue", "show", "sums"), ("queue", "purge", "sums", "--yes"),
            ("worker", "ls"), ("sweep",), ("sweep", "--dry-run"), ("doctor",), ("config",), ("db", "status"),
            ("db", "migrate"), ("db", "sql"), ("version",),
        ):  # fmt: skip
            assert isinstance(cli.look(*args), dict), args
        ran = cli("status", "-o", "json")
        assert ran.out.count("\n") == 1
        assert ran.err == ""

    def test_queues_are_listed_with_their_hints(self, cli: Cli) -> None:
        cli.record("shop.add", 1)

        (default, sums) = cli("queue", "ls", "-o", "json", app=True).json()["queues"]

        assert (default["queue"], default["ready"]) == ("default", 0)
        assert (sums["queue"], sums["ready"], sums["hints"]) == ("sums", 1, 1)

    def test_one_queue_is_shown_with_who_serves_it(self, cli: Cli) -> None:
        cli.record("shop.add", 1, count=2)
        alone = cli.look("queue", "show", "sums")

        with cli.start("worker", "-q", "--queues", "sums", "--threads", "3", env={"WORKQ_APP": "shop:wq"}) as worker:
            wait_until(lambda: cli.look("queue", "show", "sums")["workers"], timeout_s=BOUND_S, what="it has joined")
            served = cli.look("queue", "show", "sums")
            shown = cli.here("queue", "show", "sums").out
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=BOUND_S)

        assert (alone["queue"], alone["ready"], alone["workers"]) == ("sums", 2, [])
        assert [one["threads"] for one in served["workers"]] == [3]
        assert "served by:     1 process with 3 threads" in shown

    @pytest.mark.parametrize("columns", ["20", "80"])
    def test_tables_fit_the_width_and_are_ascii_in_the_c_locale(self, cli: Cli, columns: str) -> None:
        with cli.queue() as wq:
            task_id = wq.handler("shop.add").options(queue="a-queue-with-a-long-name").enqueue(1).id

        status = cli("status", env={"COLUMNS": columns, "LANG": "C", "LC_ALL": "C"})
        listed = cli("task", "ls", env={"COLUMNS": columns, "LANG": "C", "LC_ALL": "C"})

        for ran in (status, listed):
            assert ran.status == 0
            assert ran.out.isascii()
        assert "a-queue-with-a-long-name" in status.out
        assert task_id in listed.out  # never folded: it is there to be copied
        if columns == "80":
            assert max(map(len, (status.out + listed.out).splitlines())) <= 80
        assert re.search(r"ready:? +1|ready: 1", status.out)

    def test_colors_go_to_a_terminal_that_takes_them_alone(self, cli: Cli) -> None:
        cli.kill()

        plain = [
            cli.on_a_terminal("task", "ls", env={"NO_COLOR": "1"}),
            cli.on_a_terminal("task", "ls", "--no-color"),
            cli.on_a_terminal("task", "ls", env={"LANG": "C"}),
            cli("task", "ls"),
        ]

        assert "\x1b[31mdead" in cli.on_a_terminal("task", "ls").out
        for ran in plain:
            assert ran.status == 0
            assert "\x1b" not in ran.out
            assert " dead " in ran.out

    def test_what_is_read_by_head_ends_in_silence(self, cli: Cli) -> None:
        cli.record("shop.add", 1)

        with cli.start("task", "ls", "-q") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            err = process.stderr.read()

        assert process.returncode == 0
        assert err == b""

    def test_the_default_ledger_is_said_on_standard_error_but_not_when_quiet(self, cli: Cli) -> None:
        cli("db", "migrate", env={"WORKQ_LEDGER_URL": ""})
        for empty in ("", " "):
            said = cli("status", "-o", "json", env={"WORKQ_LEDGER_URL": empty})

            assert "using sqlite:///workq.db; set WORKQ_LEDGER_URL to change\n" in said.err
            assert json.loads(said.out)["workers"] == 0
        assert cli("status", "-q", env={"WORKQ_LEDGER_URL": ""}).err == ""

    def test_whitespace_and_quotes_around_a_url_are_removed_with_a_warning(self, cli: Cli) -> None:
        ran = cli("config", "-o", "json", env={"WORKQ_LEDGER_URL": "'sqlite:///x.db'\n"})

        assert ran.json()["settings"][0]["value"] == "sqlite:///x.db"
        assert ran.err.count("workq: warning: WORKQ_LEDGER_URL") == 2
