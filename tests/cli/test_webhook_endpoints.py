"""`workq webhook endpoint`, `delivery` and `send`: where webhooks go, what was sent, and nothing that is secret."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any

import pytest
from cryptography.fernet import Fernet

from tests.cli.conftest import Cli
from tests.contract.given import incarnation
from workq import WorkQueue
from workq.outbound.vault import Vault
from workq.values.incarnation import this_person
from workq.values.task import Dead, Delivered, Done, Failed, Sent, Settlement
from workq.webhooks import Webhooks, new_secret
from workq.webhooks.ledger.sql import WebhookLedger

URL = "https://example.org/hooks"
CANARY = "swordfish-4711"
SECRET = new_secret()


def stored(cli: Cli) -> str:
    """All that the ledger has, as text."""
    with sqlite3.connect(cli.folder / "shop.db") as connection:
        return "\n".join(connection.iterdump())


def add(cli: Cli, *more: str) -> Any:
    ran = cli.here("webhook", "endpoint", "add", URL, "-o", "json", *more)
    assert ran.status == 0, ran
    return ran.json()


def test_headers_come_from_a_file_or_from_standard_input_and_are_never_shown(cli: Cli) -> None:
    (cli.folder / "headers").write_text(f"Authorization=Bearer {CANARY}\r\n\nX-Eq=a=b\n")
    (cli.folder / "wrong").write_text(f"Authorization: {CANARY}\n")
    (cli.folder / "binary").write_bytes(b"X=\xff")
    (cli.folder / "empty").write_text("\n")
    (cli.folder / "huge").write_text("x" * 65_537)

    made = add(cli, "--id", "acme", "--header-file", "headers", "--header", "X-Plain=1")
    edited = cli("webhook", "endpoint", "edit", "acme", "--header-file", "-", "-o", "json", stdin=f"X-Key={CANARY}2\n")
    with cli.queue() as wq:
        endpoint = wq.stores.ledger.part(WebhookLedger).endpoints.endpoint("acme")
    refused = {
        name: cli.here("webhook", "endpoint", "edit", "acme", "--header-file", name)
        for name in ("wrong", "binary", "empty", "huge", "missing", ".")
    }
    twice = cli.here("webhook", "endpoint", "edit", "acme", "--header-file", "headers", "--header", "authorization=1")

    assert made["headers"] == ["authorization", "x-eq", "x-plain"]
    assert edited.json()["headers"] == ["x-key"]
    assert endpoint is not None
    assert Vault().open(endpoint.sealed).headers == {"x-key": f"{CANARY}2"}
    assert {name: ran.status for name, ran in refused.items()} == dict.fromkeys(refused, 2)
    said = {name: ran.err for name, ran in refused.items()}
    assert "write NAME=VALUE" in said["wrong"]
    assert "UTF-8" in said["binary"]
    assert "nothing in" in said["empty"]
    assert "64 KiB" in said["huge"]
    assert "No such file" in said["missing"]
    assert "directory" in said["."]
    assert twice.status == 2
    assert CANARY not in "".join([*said.values(), edited.out, edited.err, twice.err])


def test_an_endpoint_is_added_shown_changed_and_removed(cli: Cli) -> None:
    made = add(cli, "--id", "acme", "--type", "invoice.*", "--type", "user.added", "--header", f"X-Token={CANARY}")
    options = [
        "--on-410",
        "confirm",
        "--retry-schedule",
        "5s,1m",
        "--rate",
        "10/s",
        "--concurrency",
        "2",
        "--timeout",
        "3",
        "--max-age",
        "3d",
        "--header-alias",
        "Svix",
    ]
    edited = cli.here("webhook", "endpoint", "edit", "acme", "--to", f"{URL}/v2", "--topic", "other", *options)
    shown, listed = cli.look("webhook", "endpoint", "show", "acme"), cli.look("webhook", "endpoint", "ls")
    grows = cli.here("webhook", "endpoint", "edit", "acme", "--retry-schedule", "5s..1m*5", "-o", "json").json()
    back = cli.here(
        *["webhook", "endpoint", "edit", "acme", "--retry-schedule", "spec", "--rate", "none", "--header-alias", "none"]
    )
    again = cli.look("webhook", "endpoint", "show", "acme")
    removed, missing = (cli.here("webhook", "endpoint", "rm", "acme", "--yes") for _ in range(2))

    assert made["secret"].startswith("whsec_")
    assert (made["types"], made["topic"], made["headers"]) == (["invoice.*", "user.added"], "default", ["x-token"])
    assert (edited.status, back.status, removed.status, missing.status) == (0, 0, 0, 1)
    assert listed == {"endpoints": [shown]}
    assert "secret" not in shown
    assert (shown["url"], shown["topic"], shown["state"]) == (f"{URL}/v2", "other", "enabled")
    assert (shown["retry_schedule"], shown["rate"], shown["concurrency"]) == ([5.0, 60.0], "10/s", 2)
    assert (shown["total_s"], shown["max_age_s"], shown["headers"]) == (3.0, 259_200.0, ["x-token"])
    assert (made["on_410"], shown["on_410"]) == ("disable", "confirm")
    assert (made["header_alias"], shown["header_alias"], again["header_alias"]) == (None, "svix", None)
    assert grows["retry_schedule"] == [5.0, 10.0, 20.0, 40.0, 60.0]
    assert (again["retry_schedule"], again["rate"], again["concurrency"]) == (None, None, 2)
    assert "no endpoint 'acme'" in missing.err
    assert CANARY not in json.dumps([made, shown, listed]) + edited.out + edited.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://10.0.0.5/"], "set WORKQ_WEBHOOK_ALLOW=external,10.0.0.5 to permit"),
        ([URL, "--id", "a.b"], "need up to 64 letters, digits, _ and -"),
        ([URL, "--type", "invoice*"], "need invoice.paid, invoice.* or *"),
        ([URL, "--header", "webhook-id=1"], "workq says that itself"),
        ([URL, "--header", f"authorization: {CANARY}"], "write NAME=VALUE"),
        ([URL, "--retry-schedule", "5s,never"], "write waits with commas between"),
        ([URL, "--retry-schedule", "1m..5s*3"], "grows from more than 0 s up to at least that"),
        ([URL, "--retry-schedule", "5s..1m*many"], "write waits with commas between"),
        ([URL, "--ordered", "always"], "is not one of 'no', 'endpoint', 'key'"),
        ([URL, "--rate", "fast"], "need a whole number from 1 to 1000 per s, m, h or d"),
        ([URL, "--secret", CANARY], "secret: need whsec_"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_stored(cli: Cli, arguments: list[str], said: str) -> None:
    cli.here("db", "migrate")
    ran = cli.here("webhook", "endpoint", "add", *arguments)

    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
    assert CANARY not in ran.err
    assert cli.look("webhook", "endpoint", "ls") == {"endpoints": []}


def test_a_secret_is_rotated_and_for_some_time_both_count(cli: Cli) -> None:
    first = add(cli, "--id", "acme", "--secret", SECRET)
    rotated = cli.here("webhook", "endpoint", "rotate", "acme", "--grace", "2d", "-o", "json").json()
    at_once = cli.here("webhook", "endpoint", "rotate", "acme", "--grace", "0s", "-o", "json").json()
    wrong = cli.here("webhook", "endpoint", "rotate", "acme", "--grace", "8d")

    assert first["secret"] == SECRET
    assert len({SECRET, rotated["secret"], at_once["secret"]}) == 3
    assert (len(rotated["old_secrets"]), at_once["old_secrets"]) == (1, [])
    assert SECRET not in stored(cli)
    assert at_once["secret"] in stored(cli)
    assert (wrong.status, wrong.out) == (2, "")
    assert "seven days" in wrong.err


def test_no_two_share_a_secret_because_a_receivers_is_in_the_environment(cli: Cli) -> None:
    receivers = {"WORKQ_WEBHOOK_SECRET": SECRET}
    made = [cli("webhook", "endpoint", "add", URL, "--id", one, "-o", "json", env=receivers).json() for one in "ab"]
    rotated = cli("webhook", "endpoint", "rotate", "a", "-o", "json", env=receivers).json()
    given = cli("webhook", "endpoint", "rotate", "a", "-o", "json", env={"WORKQ_WEBHOOK_NEW_SECRET": SECRET}).json()

    assert len({one["secret"] for one in (*made, rotated, given)}) == 4
    assert given["secret"] == SECRET


def test_no_more_than_five_old_secrets_sign_and_none_when_a_person_says_so(cli: Cli) -> None:
    add(cli, "--id", "acme")
    rotated = [cli.here("webhook", "endpoint", "rotate", "acme", "-o", "json") for _ in range(6)]
    newest = rotated[4].json()["secret"]
    ended = cli.here("webhook", "endpoint", "rotate", "acme", "--secret", newest, "--grace", "0s", "-o", "json")

    assert [one.status for one in rotated] == [0, 0, 0, 0, 0, 2]
    assert [len(one.json()["old_secrets"]) for one in rotated[:5]] == [1, 2, 3, 4, 5]
    assert "5 old secrets of 'acme' still sign; rotate with a shorter grace" in rotated[5].err
    assert (ended.json()["secret"], ended.json()["old_secrets"]) == (newest, [])


def test_who_decided_about_an_endpoint_and_why_is_in_the_history_and_nothing_secret_is(cli: Cli) -> None:
    key = {"WORKQ_SECRET_KEY": Fernet.generate_key().decode()}
    made = add(cli, "--id", "acme", "--header", f"X-Token={CANARY}", "--why", "a new customer")
    steps = [
        (*("edit", "--header", f"X-Token={CANARY}2"), "their token has expired"),
        (*("rotate", "--secret", SECRET), "a leak"),
        ("disable", "they are away"),
        ("enable", "they are back"),
        ("seal", "a key"),
        (*("rm", "--yes"), "they have left"),
    ]
    for verb, *more, why in steps:
        given = [] if verb == "seal" else ["acme"]
        ran = cli("webhook", "endpoint", verb, *given, *more, "--why", why, env=key if verb == "seal" else {})
        assert ran.status == 0, ran
    with cli.queue() as wq:
        endpoints = Webhooks(wq).endpoints
        endpoints.add(URL, endpoint_id="other", who="ann@web", why="asked for")
        endpoints.edit("other", topic="news", who="ann@web")
        endpoints.seal(who="ann@web")  # without a key they are as they were
        endpoints.remove("other")
        events = wq.stores.ledger.questions.happened(["manual"], within_s=600.0, limit=99)

    me = this_person()
    assert [(one.task_id, *one.detail.values()) for one in events] == [
        (None, f"endpoint {what}", who, why)
        for what, who, why in (
            ("acme added", me, "a new customer"),
            ("acme edited", me, "their token has expired"),
            ("acme rotated", me, "a leak"),
            ("acme disabled", me, "they are away"),
            ("acme enabled", me, "they are back"),
            ("acme sealed", me, "a key"),
            ("acme removed", me, "they have left"),
            ("other added", "ann@web", "asked for"),
            ("other edited", "ann@web", "edited by a person"),
            ("other removed", me, "removed by a person"),
        )
    ]
    assert not any(secret in str(events) for secret in (CANARY, made["secret"], SECRET, URL))


def test_with_a_key_nothing_secret_is_in_the_ledger(cli: Cli) -> None:
    key = {"WORKQ_SECRET_KEY": Fernet.generate_key().decode()}
    made = add(cli, "--id", "acme", "--header", f"X-Token={CANARY}")
    before = stored(cli)
    sealed = cli("webhook", "endpoint", "seal", env=key)
    config = cli("config", env=key)
    without = cli.here("webhook", "endpoint", "rotate", "acme")

    assert CANARY in before
    assert "1 endpoint, encrypted" in sealed.out
    assert CANARY not in stored(cli)
    assert made["secret"] not in stored(cli)
    assert key["WORKQ_SECRET_KEY"] not in config.out + config.err
    assert without.status == 2
    assert "set WORKQ_SECRET_KEY" in without.err


def test_an_event_is_sent_to_all_who_want_it_once_and_is_seen(cli: Cli) -> None:
    for name, types in (("all", "*"), ("users", "user.*")):
        add(cli, "--id", name, "--type", types)
    data = json.dumps({"id": 17, "note": CANARY})

    sent = cli("webhook", "send", "invoice.paid", "--data", "-", "--event-id", "paid-17", "-o", "json", stdin=data)
    again = cli.here("webhook", "send", "invoice.paid", "--data", data, "--event-id", "paid-17", "-o", "json")
    other = cli.here("webhook", "send", "invoice.paid", "--event-id", "paid-17")
    [delivery] = cli.look("webhook", "delivery", "ls", "--endpoint", "all", "--state", "pending")["deliveries"]
    shown = cli.look("webhook", "delivery", "show", delivery["id"], "--body")

    assert [one["endpoint_id"] for one in sent.json()["deliveries"]] == ["all"]
    assert [one["created"] for one in again.json()["deliveries"]] == [False]
    assert other.status == 1
    assert "was sent before" in other.err
    assert (delivery["webhook_id"], delivery["type"], delivery["attempts"]) == ("paid-17", "invoice.paid", 0)
    assert json.loads(shown["body"])["data"] == {"id": 17, "note": CANARY}
    assert shown["log"] == []
    for looked in (("delivery", "ls"), ("delivery", "show", delivery["id"]), ("endpoint", "show", "all")):
        ran = cli.here("webhook", *looked)
        assert ran.status == 0, ran
        assert CANARY not in ran.out + ran.err
    assert cli.look("webhook", "delivery", "ls", "--type", "user.*")["deliveries"] == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["send", "workq.ping"], 2, "are workq's own"),
        (["send", "invoice.paid", "--topic", "workq"], 2, "is for what workq itself tells operators"),
        (["send", "invoice paid"], 2, "need words with dots between"),
        (["send", "invoice.paid", "--endpoint", "nobody"], 1, "no endpoint 'nobody'"),
        (["send", "invoice.paid", "--event-id", "a.b"], 2, "event_id: need"),
        (["send", "invoice.paid", "--order-key", "k" * 121], 2, "order_key: need text of 1 to 120 characters"),
        (["send", "invoice.paid", "--order-key", ""], 2, "order_key: need text of 1 to 120 characters"),
        (["send", "invoice.paid", "--endpoint", "a", "--topic", "b"], 2, "give one of them"),
        (["delivery", "show", "01a20aa6-3295-7534-af8c-a2ce0a67004b"], 1, "no delivery"),
        (["endpoint", "edit", "acme"], 2, "nothing to change"),
    ],
)
def test_what_cannot_be_is_one_line(cli: Cli, arguments: list[str], status: int, said: str) -> None:
    cli.here("db", "migrate")
    ran = cli.here("webhook", *arguments)

    assert (ran.status, ran.out) == (status, "")
    assert said in ran.err


def sent(cli: Cli, event_id: str) -> str:
    """Send one event to the one endpoint; the id of its delivery."""
    ran = cli.here("webhook", "send", "invoice.paid", "--event-id", event_id, "-o", "json")
    assert ran.status == 0, ran
    [one] = ran.json()["deliveries"]
    return str(one["delivery_id"])


def tried(cli: Cli, delivery_id: str, *, error_class: str | None, rest_s: float = 0.0) -> None:
    """A worker has sent it: for good, or in vain; or the receiver wants to rest for so long."""
    with WorkQueue(ledger=f"sqlite:///{cli.folder / 'shop.db'}") as wq:
        ledger, worker = wq.stores.ledger, incarnation()
        ledger.workers.join(worker, queues=["webhooks"], threads=1)
        row = ledger.part(WebhookLedger).deliveries.delivery(delivery_id)
        assert row is not None
        [claim] = ledger.claims.claim([row.task_id], by=worker.id)
        told = Sent(
            delivery_id=delivery_id,
            endpoint_id=row.endpoint_id,
            number=row.attempts + 1,
            cause=row.cause.value,
            url=URL,
            status=429 if rest_s else 200 if error_class is None else 500,
            error_class=error_class,
            error=None,
            duration_ms=5.0,
            rest_s=rest_s,
        )
        then: Done | Dead | Failed = Dead("exhausted: server_error", "server_error: 500")
        if error_class is None:
            then = Done()
        elif rest_s:
            then = Failed(rest_s, "throttled: 429 Too Many Requests")
        ledger.outcomes.settle([Settlement(claim, Delivered(told, then))])
        ledger.workers.leave(worker.id)


def state(cli: Cli, delivery_id: str) -> tuple[str, str]:
    """Where a delivery stands, and why it was sent."""
    found = cli.look("webhook", "delivery", "show", delivery_id)
    return found["state"], found["cause"]


def test_what_waits_for_a_disabled_endpoint_is_held_and_a_person_decides(cli: Cli) -> None:
    add(cli, "--id", "acme")
    first = sent(cli, "first")
    disabled = cli.here("webhook", "endpoint", "disable", "acme", "--why", "they are moving")
    why = cli.here("why", cli.look("webhook", "delivery", "show", first)["task_id"])
    too_early = cli.here("webhook", "endpoint", "release", "acme")
    shown = cli.look("webhook", "endpoint", "show", "acme")
    second = sent(cli, "second")
    unasked = cli.here("webhook", "endpoint", "rm", "acme")
    refused = cli.here("webhook", "endpoint", "rm", "acme", "--yes")
    enabled = cli.here("webhook", "endpoint", "enable", "acme")
    held = [state(cli, one)[0] for one in (first, second)]
    retry = cli.here("webhook", "delivery", "retry", first)
    foreseen = cli.here("webhook", "endpoint", "release", "acme", "--dry-run")
    released = cli.here("webhook", "endpoint", "release", "acme")
    again = cli.here("webhook", "endpoint", "release", "acme")

    assert (disabled.status, disabled.out) == (0, "disabled; what waits is held\n")
    assert why.status == 0, why
    assert (too_early.status, "is disabled; first" in too_early.err) == (1, True)
    assert (shown["state"], shown["why"]) == ("disabled", "they are moving")
    assert unasked.status == 6
    assert "acme and its 2 deliveries would be forgotten; refused without --yes" in unasked.err
    assert (refused.status, "2 deliveries to 'acme' are open" in refused.err) == (1, True)
    assert (enabled.status, enabled.out, held) == (0, "enabled; 2 held\n", ["held", "held"])
    assert (retry.status, "is held: workq webhook endpoint release acme" in retry.err) == (1, True)
    assert (foreseen.status, foreseen.out) == (3, "2 would be released\n")
    assert (released.out, again.out) == ("2 released\n", "0 released\n")
    assert [state(cli, one)[0] for one in (first, second)] == ["pending", "pending"]
    cli.here("webhook", "endpoint", "disable", "acme", "--why", "again")
    cli.here("webhook", "endpoint", "enable", "acme")
    unasked = cli.here("webhook", "endpoint", "discard", "acme")
    assert (unasked.status, "2 deliveries would be discarded; refused without --yes" in unasked.err) == (6, True)
    assert state(cli, first)[0] == "held"
    discarded = cli.here("webhook", "endpoint", "discard", "acme", "--yes", "-o", "json")
    assert discarded.json() == {"id": "acme", "discarded": 2, "dry_run": False}
    assert state(cli, first)[0] == "cancelled"
    assert cli.here("webhook", "endpoint", "rm", "acme", "--yes").status == 0


def test_who_has_decided_about_deliveries_and_why_is_in_the_history_of_their_tasks(cli: Cli) -> None:
    add(cli, "--id", "acme")
    lost, waits = sent(cli, "lost"), sent(cli, "waits")
    tried(cli, lost, error_class="server_error")

    decisions = (
        ("webhook", "recover", "acme", "--since", "1h", "--yes"),
        ("webhook", "delivery", "retry", waits),
        ("webhook", "endpoint", "disable", "acme"),
        ("webhook", "endpoint", "enable", "acme"),
        ("webhook", "endpoint", "release", "acme"),
        ("webhook", "endpoint", "disable", "acme"),
        ("webhook", "endpoint", "discard", "acme", "--yes"),
        ("webhook", "endpoint", "enable", "acme"),
        ("webhook", "replay", "--since", "1h", "--yes"),
    )
    for number, command in enumerate(decisions):
        assert cli.here(*command, "--why", f"for reason {number}").status == 0
    with cli.queue() as wq:
        events = wq.stores.ledger.questions.happened(["rescheduled", "cancelled", "revived"], within_s=600.0, limit=99)

    assert {(one.kind, one.detail["why"]) for one in events} == {
        ("revived", "for reason 0"),
        ("rescheduled", "for reason 1"),
        ("rescheduled", "for reason 4"),
        ("cancelled", "for reason 6"),
        ("revived", "for reason 8"),
    }
    assert all(one.detail["who"] for one in events)


def test_what_has_failed_is_recovered_and_what_was_sent_is_replayed_with_a_count_before(cli: Cli) -> None:
    add(cli, "--id", "acme")
    lost, arrived, waits = (sent(cli, name) for name in ("lost", "arrived", "waits"))
    tried(cli, lost, error_class="server_error")
    tried(cli, arrived, error_class=None)

    recover = ["webhook", "recover", "acme", "--since", "1h"]
    replay = ["webhook", "replay", "--type", "invoice.*", "--endpoint", "acme", "--since", "1h"]
    counts = [cli.here(*command, "--dry-run") for command in (recover, replay)]
    recovered, replayed = cli.here(*recover, "--yes"), cli.here(*replay, "--yes", "-o", "json")
    nothing = cli.here(*replay, "--dry-run")
    causes = [state(cli, one) for one in (lost, arrived, waits)]
    foreseen = [cli.here("webhook", "delivery", "retry", one, "--dry-run") for one in (lost, waits)]
    still = state(cli, lost), state(cli, waits)
    later = cli.here("webhook", "delivery", "retry", waits)

    assert [(ran.status, ran.out) for ran in counts] == [
        (3, "1 delivery would be sent again\n"),
        (3, "2 deliveries would be sent again\n"),
    ]
    assert (recovered.status, recovered.out) == (0, "1 delivery is sent again\n")
    assert replayed.json() == {"count": 1, "dry_run": False}
    assert (nothing.status, nothing.out) == (0, "0 deliveries would be sent again\n")
    assert causes == [("pending", "manual"), ("pending", "replay"), ("pending", "scheduled")]
    assert [(ran.status, ran.out) for ran in foreseen] == [(3, "it would be tried again\n")] * 2
    assert still == (causes[0], causes[2])
    assert later.out == "it is tried again\n"
    assert state(cli, waits) == ("pending", "manual"), "whatever its endpoint says of its age"
    tried(cli, lost, error_class="server_error")
    shown = cli.here("webhook", "delivery", "show", lost)
    assert f"1 scheduled  {URL}  500 server_error: -  5 ms" in shown.out
    assert f"2 manual  {URL}  500 server_error: -  5 ms" in shown.out
    assert f"{URL}  200 delivered  5 ms" in cli.here("webhook", "delivery", "show", arrived).out
    assert state(cli, lost)[0] == "exhausted"
    ended = cli.here("webhook", "delivery", "retry", lost, "--dry-run")
    assert (ended.status, ended.out) == (3, "it would be tried again\n")
    assert state(cli, lost)[0] == "exhausted"
    assert cli.here("webhook", "delivery", "retry", lost).out == "it is tried again\n"
    assert state(cli, lost) == ("pending", "manual")
    unknown = cli.here("webhook", "recover", "nobody", "--since", "1h")
    assert (unknown.status, "no endpoint 'nobody'" in unknown.err) == (1, True)


def test_as_many_are_replayed_as_were_counted_between_two_moments(cli: Cli) -> None:
    add(cli, "--id", "acme")
    for name in ("first", "second", "third"):
        tried(cli, sent(cli, name), error_class=None if name == "third" else "server_error")
    replay = ["webhook", "replay", "--endpoint", "acme", "--since", "1h"]

    before = cli.here(*replay, "--until", "30m", "-o", "json")
    foreseen = cli.here(*replay, "--dry-run", "-o", "json")
    replayed = cli.here(*replay, "--yes", "-o", "json")

    assert before.json() == {"count": 0, "dry_run": False}
    assert foreseen.json() == {"count": 3, "dry_run": True}
    assert replayed.json() == {"count": 3, "dry_run": False}


def test_an_endpoint_keeps_the_order_and_says_for_whom_one_waits(cli: Cli) -> None:
    made = add(cli, "--id", "acme", "--ordered", "key")
    first, second = (
        cli.here("webhook", "send", "invoice.paid", "--order-key", "item:7", "-o", "json").json()["deliveries"][0]
        for _ in range(2)
    )
    shown = cli.look("webhook", "delivery", "show", second["delivery_id"])
    too_early = cli.here("webhook", "delivery", "retry", second["delivery_id"])
    why = cli.look("why", shown["task_id"])
    retried = cli.here("webhook", "delivery", "retry", first["delivery_id"])
    back = cli.here("webhook", "endpoint", "edit", "acme", "--ordered", "no", "-o", "json").json()

    assert (made["ordered"], back["ordered"]) == ("key", "no")
    assert (shown["state"], shown["order_key"]) == ("pending", "item:7")
    assert (too_early.status, too_early.out) == (1, "")
    assert f"waits for its turn in the order of its endpoint; for whom: workq why {shown['task_id']}" in too_early.err
    assert why["code"] == "in_line"
    assert f"it is the turn of task {first['delivery_id']}" in why["reason"]
    assert (retried.status, retried.out) == (0, "it is tried again\n")


def test_an_endpoint_that_has_asked_for_less_rests_and_all_that_look_say_so(cli: Cli) -> None:
    add(cli, "--id", "acme")
    add(cli, "--id", "calm", "--topic", "calm")
    asked, waits = sent(cli, "one"), sent(cli, "two")
    tried(cli, asked, error_class="throttled", rest_s=600.0)
    with cli.queue() as wq:  # a worker looks at the other, and may not start it
        me = incarnation()
        wq.stores.ledger.workers.join(me, queues=["webhooks"], threads=1)
        assert wq.stores.ledger.claims.claim([waits], by=me.id) == []

    listed, shown = cli.look("webhook", "endpoint", "ls")["endpoints"], cli.look("webhook", "endpoint", "show", "acme")
    table = cli("webhook", "endpoint", "ls", env={"COLUMNS": "200"}).out  # so that no cell is wrapped
    record = cli.here("webhook", "endpoint", "show", "acme").out
    deliveries = {one["id"]: one for one in cli.look("webhook", "delivery", "ls")["deliveries"]}
    itself, other = cli.look("why", deliveries[asked]["task_id"]), cli.look("why", deliveries[waits]["task_id"])

    until = shown["rests_until"]
    assert [(one["id"], one["state"], one["rests_until"]) for one in listed] == [
        ("acme", "enabled", until),
        ("calm", "enabled", None),
    ]
    assert f"resting until {until}" in table
    assert re.search(r"calm +calm +\S+ +\* +enabled", table), table
    assert re.search(rf"^state: +resting until {until}$", record, re.MULTILINE), record
    assert deliveries[waits]["next_at"] == until
    assert until in cli.here("webhook", "delivery", "show", waits).out
    assert (other["code"], other["until"]) == ("limited", until)
    assert other["reason"].startswith(f"endpoint 'acme' rests until {until}: it has answered 429 Too Many Requests")
    for one in (itself, other):
        assert "429" in one["reason"]
        assert "Retry-After" in one["reason"]


def test_what_no_endpoint_listens_to_is_said_with_the_nearest_topic(cli: Cli) -> None:
    add(cli, "--id", "acme", "--topic", "customer-acme", "--type", "invoice.*")

    sent = cli.here("webhook", "send", "invoice.paid", "--topic", "customer-acne")
    document = cli.look("webhook", "send", "invoice.paid", "--topic", "customer-acne")
    of_another_type = cli.here("webhook", "send", "user.added", "--topic", "customer-acme")
    heard = cli.look("webhook", "send", "invoice.paid", "--topic", "customer-acme")
    with cli.queue() as wq:
        in_python = Webhooks(wq).send("invoice.paid", {}, topic="far-away")

    said = "nothing is recorded to be sent: no endpoint has the topic 'customer-acne'; did you mean 'customer-acme'?"
    assert sent.status == of_another_type.status == 0
    assert sent.out.endswith("  to 0 endpoints\n")
    assert sent.err == f"workq: warning: {said}; see: workq webhook endpoint ls\n"
    assert document["unheard"] == said
    assert "no endpoint of topic 'customer-acme' wants 'user.added'" in of_another_type.err
    assert heard["unheard"] is None
    assert len(heard["deliveries"]) == 1
    assert in_python.deliveries == ()
    assert in_python.unheard == "nothing is recorded to be sent: no endpoint has the topic 'far-away'"
