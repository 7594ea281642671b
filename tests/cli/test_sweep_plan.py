"""workq sweep --plan and --apply: what it says, it does, to exactly the rows that stand where they stood."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests.cli.conftest import BOUND_S, Cli, Ran
from tests.cli.test_sweep import EXPECTED, ago, claim, incarnation, join, make_wreck, record, wreck
from tests.stores import database_of, tables_of
from workq.app import WorkQueue
from workq.inflight import Entry
from workq.values.task import State

PLANNED = {"expire": 11, "relay": 7, "reap": 1, "rehint": 3, "orphan": 2, "promote": 4, "lost": 6, "prune": 30}
"""The wreck as decisions. A sweep counts a worker that was reaped half-way among the reaped; a plan has its tasks."""


def plan(cli: Cli, *args: str, name: str = "plan.json") -> dict[str, Any]:
    """Make one; answers the document."""
    ran = cli.here("sweep", "--plan", name, *args)
    assert ran.status == 0, ran
    document: dict[str, Any] = json.loads((cli.folder / name).read_text())
    return document


def apply(cli: Cli, name: str = "plan.json") -> Ran:
    return cli.here("sweep", "--apply", name, "--yes", "-o", "json")


def tables(cli: Cli) -> dict[str, list[Any]]:
    """All that the ledger holds."""
    with cli.queue() as wq:
        database = database_of(wq)
        with database.read() as tx:
            return {table.name: sorted(map(repr, tx.execute(select(table)))) for table in tables_of(database)}


def task_of(row: dict[str, Any]) -> str | None:
    """The task of a row that is about one."""
    fence = row.get("fence") or row.get("foreseen", {}).get("fence")
    return fence["task_id"] if fence else None


def manual(cli: Cli) -> list[dict[str, Any]]:
    """What people did, as events tell it."""
    with cli.queue() as wq:
        events = wq.stores.ledger.questions.happened(["manual"], within_s=BOUND_S * 10, limit=10_000)
    return [{"task": one.task_id, "worker": one.worker, **one.detail} for one in events]


def is_clean(cli: Cli) -> bool:
    """Whether a sweep finds nothing to recover. (A marker may follow later: that is no work. No plan makes schedules
    tick, order keys and limits go on, or sees to jobs.)
    """
    said = cli.look("sweep", "--dry-run")
    unplanned = ("ticked", "advanced", "admitted", "tended", "pruned_jobs", "pruned_webhooks", "pruned_messages")
    return not any(said[name] for name in EXPECTED if name not in unplanned)


class TestPlan:
    def test_it_writes_each_decision_with_its_reason_and_changes_nothing(self, cli: Cli) -> None:
        wreck(cli)
        before = tables(cli)

        made = plan(cli)

        assert tables(cli) == before
        rows = made["rows"]
        assert Counter(row["kind"] for row in rows if row["kind"] != "prune") == Counter(PLANNED) - Counter(prune=30)
        assert {row["rows"]["what"]: len(row["rows"]["ids"]) for row in rows if row["kind"] == "prune"} == {
            "succeeded": 8, "cancelled": 1, "ticks": 8, "windows": 12, "workers": 1,
        }  # fmt: skip
        for row in rows:
            assert 10 < len(row["why"]) < 200, row
            assert row["why"].isprintable(), row
        assert made["workq_plan"] == 1
        assert (made["namespace"], made["ledger"], made["limit"]) == ("workq", "sqlite:///shop.db", 1000)
        assert made["made_at"].endswith("Z")
        assert "@" in made["made_by"]
        assert (made["cut"], made["away"], made["suspects"]) == ([], [], [])

    def test_a_reaping_says_what_becomes_of_each_claim(self, cli: Cli) -> None:
        wreck(cli)

        [reap] = [row for row in plan(cli)["rows"] if row["kind"] == "reap"]

        foresight = reap["foresight"]
        assert (foresight["worker"], reap["how"]) == ("host.crashed", "silent")
        claims = foresight["claims"]
        assert Counter(one["becomes"] for one in claims) == Counter(ready=3, cancelled=1, dead=1)
        assert [one["charged"] for one in claims if one["becomes"] == "dead"] == ["crash"]
        assert "1 cancelled, 1 dead, 3 ready" in reap["why"]
        assert foresight["suspected_at"] > foresight["beat_at"]

    def test_it_has_no_token(self, cli: Cli) -> None:
        wreck(cli)
        with cli.queue() as wq:
            database = database_of(wq)
            token = database.tables.task.c.token
            tokens = database.ask(lambda tx: list(tx.execute(select(token).where(token.is_not(None))).scalars()))
        assert len(tokens) >= 7

        text = json.dumps(plan(cli))

        assert [one for one in tokens if one in text] == []

    def test_it_says_when_it_was_cut(self, cli: Cli) -> None:
        wreck(cli)

        ran = cli.here("sweep", "--plan", "plan.json", "--limit", "3")

        made = json.loads((cli.folder / "plan.json").read_text())
        assert sorted(made["cut"]) == ["expire", "mark", "promote", "prune", "relay"]
        counted = Counter(row["kind"] for row in made["rows"])
        assert {kind: counted[kind] for kind in ("relay", "promote", "lost", "orphan")} == {
            "relay": 3, "promote": 3, "lost": 3, "orphan": 2,
        }  # fmt: skip
        assert "cut at 3 rows" in ran.err

    def test_a_worker_that_nobody_has_looked_at_before_is_named_not_planned(self, cli: Cli) -> None:
        with cli.queue() as wq, ago(wq, 600.0):
            silent = join(wq, "silent")
            claim(wq, record(wq, 1), silent)

        before = tables(cli)
        first = plan(cli, name="first.json")
        assert tables(cli) == before, "a plan suspects nobody"
        cli.look("sweep", "--only", "reap")
        with cli.queue() as wq:  # a beat later
            database = database_of(wq)
            with ago(wq, 5.0):
                now = database.now()
                worker = database.tables.worker
                database.run(lambda tx: tx.execute(worker.update().values(suspected_at=now)))
        second = plan(cli, name="second.json")

        assert (first["suspects"], first["rows"]) == ([silent.id], [])
        assert second["suspects"] == []
        assert [row["kind"] for row in second["rows"]] == ["reap"]

    def test_only_some_steps(self, cli: Cli) -> None:
        wreck(cli)
        assert {row["kind"] for row in plan(cli, "--only", "relay,mark")["rows"]} == {"relay", "lost"}

    def test_it_goes_to_standard_output_or_to_a_new_file_and_never_over_another(self, cli: Cli) -> None:
        wreck(cli)
        (cli.folder / "mine.txt").write_text("precious")

        told = cli("sweep", "--plan", "-", "-q")
        over = cli.here("sweep", "--plan", "mine.txt")
        nowhere = cli.here("sweep", "--plan", "no/such/folder/plan.json")

        assert told.status == 0
        assert Counter(row["kind"] for row in json.loads(told.out)["rows"])["relay"] == PLANNED["relay"]
        assert told.err == ""
        assert (over.status, nowhere.status) == (2, 2)
        assert (cli.folder / "mine.txt").read_text() == "precious"
        assert sorted(path.name for path in cli.folder.iterdir() if path.name.endswith(("txt", "json"))) == ["mine.txt"]

    def test_a_person_reads_a_line_for_each_change(self, cli: Cli) -> None:
        wreck(cli)

        ran = cli("sweep", "--plan", "plan.json")

        lines = ran.out.splitlines()
        assert Counter(line.split()[0] for line in lines[1:]) == Counter(PLANNED)
        assert "workq sweep --apply plan.json" in ran.err

    def test_an_empty_plan_is_one_too(self, cli: Cli) -> None:
        cli.record("shop.add", 1)

        assert plan(cli)["rows"] == []
        ran = cli.here("sweep", "--apply", "plan.json")

        assert ran.status == 0
        assert manual(cli) == []


class TestApply:
    def test_it_does_what_the_plan_says_and_a_sweep_finds_nothing_more(self, cli: Cli) -> None:
        wreck(cli)
        plan(cli)

        ran = apply(cli)

        assert ran.status == 0
        document = ran.json()
        assert document["applied"] == PLANNED
        assert (document["refused"], document["unconfirmed"]) == ([], 0)
        assert is_clean(cli)

    def test_it_leaves_the_tasks_as_a_sweep_leaves_them(self, cli: Cli, tmp_path_factory: Any) -> None:
        other = Cli(tmp_path_factory.mktemp("other"))
        wreck(cli)
        wreck(other)
        plan(cli)

        apply(cli)
        cli.look("sweep", "--only", "tick,advance,admit")
        other.look("sweep")

        assert cli.look("status")["states"] == other.look("status")["states"]
        for one in (cli, other):
            with one.queue() as wq:
                assert wq.stores.inflight.held_by("host.crashed") == []
                assert [row.id for row in wq.stores.ledger.questions.workers()] == []

    def test_a_second_application_changes_nothing_and_says_why(self, cli: Cli) -> None:
        wreck(cli)
        plan(cli)
        assert apply(cli).status == 0
        before = tables(cli)

        again = apply(cli)

        assert again.status == 3
        assert set(again.json()["applied"].values()) == {0}
        assert Counter(one["kind"] for one in again.json()["refused"]) == Counter(PLANNED)
        assert all(one["why"] for one in again.json()["refused"])
        assert tables(cli) == before

    def test_each_change_is_kept_with_who_asked_for_it(self, cli: Cli) -> None:
        wreck(cli)
        made = plan(cli)

        digest = apply(cli).json()["plan"]

        events = manual(cli)
        assert {(one["who"], one["what"], one["plan"]) for one in events} == {
            (made["made_by"], "sweep --apply", digest)
        }
        told = Counter((one["row"], one["task"]) for one in events if one["task"] and one["row"] != "reap")
        assert told == Counter((row["kind"], task_of(row)) for row in made["rows"] if task_of(row))
        [reap] = [row["foresight"] for row in made["rows"] if row["kind"] == "reap"]
        of_reap = {(one["worker"], one["task"]) for one in events if one.get("row") == "reap"}
        assert of_reap == {
            ("host.crashed", None),
            *(("host.crashed", one["fence"]["task_id"]) for one in reap["claims"]),
        }
        [summary] = [one for one in events if "applied" in one]
        assert (summary["applied"], summary["refused"]) == (PLANNED, 0)
        assert Counter({one["removed"]: one["count"] for one in events if "removed" in one}).total() == PLANNED["prune"]

    def test_a_sweep_without_a_plan_keeps_no_such_event(self, cli: Cli) -> None:
        wreck(cli)
        cli.look("sweep")
        assert manual(cli) == []

    @pytest.mark.parametrize("half", [0, 1])
    def test_of_rows_that_have_moved_since_none_is_changed_and_all_others_are(self, cli: Cli, half: int) -> None:
        wreck(cli)
        made = plan(cli)
        rows = {task_id: row["kind"] for row in made["rows"] if (task_id := task_of(row)) is not None}
        assert len(rows) == sum(PLANNED[kind] for kind in ("expire", "relay", "rehint", "orphan", "promote", "lost"))
        moved = sorted(rows)[half::2]
        with cli.queue() as wq:
            move(wq, moved)
        before = {one["id"]: one for one in all_tasks(cli)}

        ran = apply(cli)

        assert ran.status == 3
        assert {one["id"] for one in ran.json()["refused"]} == set(moved)
        assert all(one["kind"] == rows[one["id"]] for one in ran.json()["refused"])
        applied = Counter(rows[task_id] for task_id in rows if task_id not in moved) + Counter(reap=1, prune=30)
        assert {kind: count for kind, count in ran.json()["applied"].items() if count} == applied
        after = {one["id"]: one for one in all_tasks(cli)}
        assert [task_id for task_id in moved if after[task_id] != before[task_id]] == []
        assert {one["task"] for one in manual(cli)}.isdisjoint(moved)

    def test_a_worker_that_beats_again_is_not_reaped_whatever_the_plan_says(self, cli: Cli) -> None:
        wreck(cli)
        plan(cli)
        with cli.queue() as wq:
            wq.stores.ledger.workers.beat("host.crashed")
            wq.stores.inflight.beat("host.crashed", lease_s=30.0, entries=[])

        ran = apply(cli)

        refused = Counter(one["kind"] for one in ran.json()["refused"])
        assert ran.status == 3
        assert refused == Counter(reap=1, rehint=3)
        assert cli.look("status")["states"]["running"] == 5
        with cli.queue() as wq:
            assert [row.id for row in wq.stores.ledger.questions.workers()] == ["host.crashed"]
            assert len(wq.stores.inflight.held_by("host.crashed")) == 8

    def test_a_lease_alone_keeps_a_worker_alive(self, cli: Cli) -> None:
        wreck(cli)
        plan(cli)
        with cli.queue() as wq:
            wq.stores.inflight.beat("host.crashed", lease_s=30.0, entries=[])

        ran = apply(cli)

        assert [one["why"] for one in ran.json()["refused"] if one["kind"] == "reap"] == ["it has a lease again"]
        assert cli.look("status")["states"]["running"] == 5

    def test_a_young_in_flight_store_ends_nobody_and_proves_nothing(self, cli: Cli) -> None:
        wreck(cli)
        plan(cli)
        with cli.queue() as wq:
            database = database_of(wq)
            meta = database.tables.meta
            database.run(
                lambda tx: tx.execute(meta.update().where(meta.c.name != "schema_version").values(at=database.now()))
            )

        ran = apply(cli)

        assert ran.status == 3
        refused = {one["kind"]: one["why"] for one in ran.json()["refused"]}
        assert Counter(one["kind"] for one in ran.json()["refused"]) == Counter(reap=1, rehint=3, lost=6)
        assert "is young" in refused["reap"]
        assert "is young" in refused["lost"]
        assert cli.look("status")["states"]["running"] == 5

    def test_a_forged_plan_ends_no_live_worker(self, cli: Cli) -> None:
        wreck(cli)
        made = plan(cli)
        with cli.queue() as wq:
            live = join(wq, "well")
            [claimed] = claim(wq, record(wq, 1), live)
            fence = wq.stores.ledger.plans.fences([claimed.task_id])[claimed.task_id]
            [row] = [one for one in wq.stores.ledger.questions.workers() if one.id == live.id]
        seal = {
            "task_id": fence.task_id, "queue": fence.queue, "state": "running", "attempt": 1, "worker": live.id,
            "due_at": fence.due_at.isoformat(), "queued_at": fence.queued_at.isoformat(),
            "published_at": fence.published_at.isoformat() if fence.published_at else None, "seal": fence.seal,
        }  # fmt: skip
        foreseen = {"fence": seal, "becomes": "ready", "charged": "nothing"}
        foresight = {"worker": live.id, "beat_at": row.beat_at.isoformat(), "suspected_at": None, "claims": [foreseen]}
        made["rows"] = [
            {"kind": "reap", "why": "I say so", "how": "silent", "foresight": foresight},
            {"kind": "reap", "why": "I say so", "how": "gone", "foresight": foresight},
            {"kind": "orphan", "why": "I say so", "foreseen": foreseen},
            {"kind": "relay", "why": "I say so", "fence": seal},
            {"kind": "promote", "why": "I say so", "fence": seal},
        ]
        (cli.folder / "forged.json").write_text(json.dumps(made))

        ran = apply(cli, "forged.json")

        assert ran.status == 3
        assert len(ran.json()["refused"]) == 5, ran.out
        with cli.queue() as wq:
            found = wq.stores.ledger.questions.get(claimed.task_id)
        assert found is not None
        assert (found.state, found.worker) == (State.RUNNING, live.id)

    def test_a_forged_proof_has_no_hint_sent(self, cli: Cli) -> None:
        wreck(cli)
        made = plan(cli)
        [marker, *_] = {row["marker"] for row in made["rows"] if row["kind"] == "lost"}
        lost = [row["fence"] for row in made["rows"] if row["kind"] == "lost"]
        with cli.queue() as wq:
            join(wq, "holder")
            wq.stores.inflight.hold([Entry(lost[1]["task_id"], "lost")], by="host.holder")
        made["rows"] = [
            {"kind": "lost", "why": "I say so", "fence": lost[0], "marker": lost[0]["task_id"]},
            {"kind": "lost", "why": "so it was", "fence": lost[1], "marker": marker},
            {"kind": "lost", "why": "so it is", "fence": lost[2], "marker": marker},
        ]
        (cli.folder / "forged.json").write_text(json.dumps(made))

        ran = apply(cli, "forged.json")

        assert +Counter(ran.json()["applied"]) == Counter(lost=1)
        assert {one["id"]: one["why"] for one in ran.json()["refused"]} == {
            lost[0]["task_id"]: "its marker proves nothing any more: its losses were repaired, or a newer one speaks",
            lost[1]["task_id"]: "a worker holds it",
        }

    def test_what_a_cut_plan_leaves_of_a_dead_workers_holds_the_sweep_sends(self, cli: Cli) -> None:
        wreck(cli)
        made = plan(cli, "--only", "reap", "--limit", "2")
        assert made["cut"] == ["reap"]

        ran = apply(cli)
        swept = cli.look("sweep", "--only", "reap")

        assert ran.status == 0
        assert +Counter(ran.json()["applied"]) == Counter(reap=1, rehint=2)
        assert swept["rehinted"] == PLANNED["rehint"] - 2
        with cli.queue() as wq:
            assert wq.stores.inflight.held_by("host.crashed") == []

    def test_applications_at_the_same_time_do_together_what_one_does(self, cli: Cli) -> None:
        wreck(cli)
        plan(cli)
        ran: list[Ran] = []
        threads = [
            threading.Thread(target=lambda: ran.append(cli("sweep", "--apply", "plan.json", "--yes", "-o", "json")))
            for _ in range(5)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join(BOUND_S)

        applied: Counter[str] = Counter()
        for each in ran:
            applied.update(each.json()["applied"])
        assert applied == Counter(PLANNED)
        assert len([one for one in manual(cli) if one["task"]]) == sum(
            PLANNED[kind] for kind in ("expire", "relay", "rehint", "orphan", "promote", "lost")
        ) + 5  # the claims of the one that was reaped  # fmt: skip
        assert is_clean(cli)

    @pytest.mark.parametrize(
        "point",
        [
            "sweep.before_relay", "sweep.before_reap", "sweep.before_unhint", "sweep.before_forget",
            "sweep.before_hints", "sweep.before_promote", "sweep.before_repair", "relay.before_publish",
            "relay.before_mark",
        ],
    )  # fmt: skip
    def test_what_a_crash_left_half_done_another_application_and_the_sweep_finish(self, cli: Cli, point: str) -> None:
        wreck(cli)
        plan(cli)

        died = cli("sweep", "--apply", "plan.json", "--yes", env={"WORKQ_FAILPOINT": f"{point}:exit137"})
        again = apply(cli)

        assert died.status == 137
        assert again.status == 3
        total = Counter(row["row"] for row in manual(cli) if row.get("row") != "reap" and row["task"])
        assert total == Counter({kind: PLANNED[kind] for kind in total}), "each task was changed once, in all"
        with cli.queue() as wq, ago(wq, -60.0):  # the reservation of the one that died has ended
            from workq.recovery.sweep import sweep

            sweep(wq.stores, wq.settings, only=["relay", "reap", "advance", "admit"])
            left = wq.stores.ledger.hints.take_unpublished(limit=99, grace_s=0.0, horizon_s=0.0, dry_run=True)
        assert left == []
        states = cli.look("status")["states"]
        assert (states["running"], states["waiting"], states["dead"]) == (0, 0, 1)


def move(wq: WorkQueue, task_ids: list[str]) -> None:
    """Change where these tasks stand, each in one of the ways in which it may happen."""
    ledger, database = wq.stores.ledger, database_of(wq)
    other = incarnation("other")
    ledger.workers.join(other, queues=["sums"], threads=4)
    for at, task_id in enumerate(task_ids):
        task = ledger.questions.get(task_id)
        assert task is not None
        if task.state is State.RUNNING:
            t = database.tables.task
            database.run(methodcaller("execute", t.update().where(t.c.id == task_id).values(token="0" * 32)))
        elif at % 3 == 0 or task.expires_at is not None:
            ledger.decisions.cancel(task_id, who="ada", why="no need")
        elif at % 3 == 1:
            assert ledger.claims.claim([task_id], by=other.id)
        else:
            [claimed] = ledger.claims.claim([task_id], by=other.id)
            from workq.values.task import HandedBack, Settlement

            ledger.outcomes.settle([Settlement(claimed, HandedBack())])


def all_tasks(cli: Cli) -> Iterator[dict[str, Any]]:
    yield from cli.look("task", "ls", "--limit", "1000")["tasks"]


class TestRefusal:
    def test_without_yes_it_asks_where_somebody_can_answer_and_refuses_elsewhere(self, cli: Cli) -> None:
        wreck(cli)
        plan(cli)

        silent = cli.here("sweep", "--apply", "plan.json")
        no = cli.on_a_terminal("sweep", "--apply", "plan.json", typed="n\n")
        states = cli.look("status")["states"]
        yes = cli.on_a_terminal("sweep", "--apply", "plan.json", typed="y\n")

        assert (silent.status, no.status, yes.status) == (6, 6, 0)
        assert "refused without --yes" in silent.err
        assert "7 relay, 1 reap, 3 rehint" in no.out
        assert states["running"] == 7
        assert cli.look("status")["states"]["running"] == 0

    def test_a_plan_from_standard_input_needs_yes(self, cli: Cli) -> None:
        wreck(cli)
        plan(cli)
        body = (cli.folder / "plan.json").read_bytes()

        assert cli("sweep", "--apply", "-", stdin=body).status == 6
        assert cli("sweep", "--apply", "-", "--yes", stdin=body, app=True).status == 0

    @pytest.mark.parametrize(
        ("name", "value", "told"),
        [
            ("namespace", "other", "for namespace 'other'"),
            ("ledger", "postgresql://db.example/shop", "for the ledger postgresql://db.example/shop"),
            ("ledger_began_at", "2026-01-01T00:00:00Z", "made at 2026-01-01 00:00:00Z"),
            ("workq_plan", 2, "version 2"),
        ],
    )
    def test_a_plan_of_another_ledger_or_of_a_newer_version_is_refused_as_a_whole(
        self, cli: Cli, name: str, value: object, told: str
    ) -> None:
        wreck(cli)
        made = plan(cli)
        (cli.folder / "other.json").write_text(json.dumps(made | {name: value}))
        before = tables(cli)

        ran = cli.here("sweep", "--apply", "other.json", "--yes")

        assert ran.status == 6
        assert told in ran.err
        assert tables(cli) == before

    def test_a_new_ledger_at_the_same_place_is_another_one(self, cli: Cli) -> None:
        wreck(cli)
        plan(cli)
        for file in cli.folder.glob("shop.db*"):
            file.unlink()
        make_wreck(cli)

        assert cli.here("sweep", "--apply", "plan.json", "--yes").status == 6

    @pytest.mark.parametrize("damage", ["cut", "empty", "no json", "list", "no version", "kind", "field", "binary"])
    def test_a_damaged_file_is_an_error_of_usage(self, cli: Cli, damage: str) -> None:
        wreck(cli)
        made = plan(cli)
        whole = (cli.folder / "plan.json").read_bytes()
        bodies = {
            "cut": whole[: len(whole) // 2],
            "empty": b"",
            "no json": b"hello",
            "list": b"[]",
            "no version": json.dumps({name: made[name] for name in made if name != "workq_plan"}).encode(),
            "kind": whole.replace(b'"relay"', b'"erase"', 1),
            "field": whole.replace(b'"attempt":0', b'"attempt":"none"', 1),
            "binary": bytes(range(256)),
        }
        (cli.folder / "bad.json").write_bytes(bodies[damage])

        ran = cli.here("sweep", "--apply", "bad.json", "--yes")

        assert ran.status == 2
        assert "no plan of a sweep" in ran.err
        assert len(ran.err.splitlines()) == 1
        assert not is_clean(cli)

    @pytest.mark.parametrize(
        "args",
        [
            ["--plan", "a", "--apply", "b"],
            ["--plan", "a", "--dry-run"],
            ["--apply", "a", "--every", "5s"],
            ["--apply", "a", "--only", "relay"],
            ["--apply", "a", "--limit", "9"],
            ["--yes"],
            ["--apply", "missing.json"],
            ["--apply", "."],
        ],
    )
    def test_what_does_not_go_together_is_an_error_of_usage(self, cli: Cli, args: list[str]) -> None:
        ran = cli.here("sweep", *args)
        assert ran.status == 2
        assert len(ran.err.splitlines()) == 1


class TestAway:
    def test_a_plan_without_the_in_flight_store_has_the_rest_and_says_so(self, cli: Cli) -> None:
        wreck(cli)

        ran = cli("sweep", "--plan", "plan.json", env={"WORKQ_INFLIGHT_URL": "redis://127.0.0.1:1"})

        made = json.loads((cli.folder / "plan.json").read_text())
        assert ran.status == 4
        assert {row["kind"] for row in made["rows"]} == {"expire", "relay", "orphan", "promote", "prune"}
        assert len(made["away"]) == 1
        assert "127.0.0.1:1" in ran.err

    @pytest.mark.parametrize(
        "away", [{"WORKQ_BROKER_URL": "amqp://u:canary-pw@127.0.0.1:1/"}, {"WORKQ_INFLIGHT_URL": "redis://127.0.0.1:1"}]
    )
    def test_nothing_is_applied_while_a_store_is_away(self, cli: Cli, away: dict[str, str]) -> None:
        wreck(cli)
        plan(cli)
        before = tables(cli)

        ran = cli("sweep", "--apply", "plan.json", "--yes", "-o", "json", env=away)

        assert (ran.status, ran.out) == (4, "")
        assert "canary-pw" not in ran.err
        assert tables(cli) == before
        assert apply(cli).json()["applied"] == PLANNED


def test_the_file_appears_as_a_whole(cli: Cli, tmp_path: Path) -> None:
    wreck(cli)
    plan(cli)
    assert [path.name for path in tmp_path.iterdir() if "plan" in path.name] == ["plan.json"]
