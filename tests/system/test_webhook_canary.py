"""A secret, what a header says and what a webhook says are searched for wherever they must not be: not one is found."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import redis
from cryptography.fernet import Fernet
from sqlalchemy import select, text

from tests.cli.conftest import ran_in
from tests.system.conftest import OpenLeg
from tests.system.fleet import REPOSITORY
from tests.system.inbox import Inbox, Letter
from tests.system.legs import Leg
from tests.system.postman import APP
from tests.zygote import FORKED_WITH, ran
from workq import WorkQueue
from workq.slices import every_table
from workq.webhooks import Webhooks
from workq.webhooks.outbox import Outbox
from workq.webhooks.values import DELIVERY_OPEN, DeliveryRow

KEY = b"canary-secret-31c7-canary-secret"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
HEADER = "canary-header-7c1f"
PAYLOAD = "canary-payload-9e2d"
CANARIES = (SECRET, SECRET.removeprefix("whsec_"), KEY.decode(), HEADER, PAYLOAD)
RUNS = 30
LONG_S = 120.0


def found_in(said: str) -> list[str]:
    """The canaries that it shows."""
    return [one for one in CANARIES if one in said]


@pytest.fixture(params=["sqlite", "servers"])
def leg(request: pytest.FixtureRequest, open_leg: OpenLeg, monkeypatch: pytest.MonkeyPatch) -> Leg:
    """Each leg; the secrets of endpoints are encrypted."""
    monkeypatch.setenv("WORKQ_WEBHOOK_ALLOW", "loopback")
    monkeypatch.setenv("WORKQ_SECRET_KEY", Fernet.generate_key().decode())
    return open_leg(request.param, divide=10.0)


def command(leg: Leg, *args: str) -> str:
    """What one prints, to both."""
    environ = {**os.environ, **leg.environ, "WORKQ_APP": APP, "PYTHONPATH": str(REPOSITORY)}
    _, out, err = ran_in(args, cwd=leg.folder, env=environ, stdin=b"")
    return out.decode() + err.decode()


def work(leg: Leg) -> str:
    """A worker that talks as much as it can, until nothing is due; what it has said."""
    command = ["-m", "workq", "-v", "worker", "--app", APP, "--drain", "--processes", "1", "--threads", "16"]
    environ = {**os.environ, **FORKED_WITH, **leg.environ}
    done = ran([sys.executable, *command], cwd=REPOSITORY, env=environ, timeout_s=LONG_S)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def tables(leg: Leg) -> dict[str, str]:
    """All that the ledger has, by table and column."""
    found: dict[str, str] = {}
    database = leg.app.database()
    try:
        for table in every_table(database.tables).sorted_tables:  # each in a transaction of its own, which ends soon
            with database.read() as tx:
                rows = tx.execute(select(table)).all()
            for place, column in enumerate(table.columns):
                found[f"{table.name}.{column.name}"] = "\n".join(str(row[place]) for row in rows)
    finally:
        database.close()
    return found


def in_redis(leg: Leg) -> str:
    """All that this namespace has there."""
    url = leg.app.settings.inflight
    if url is None:
        return ""
    with redis.Redis.from_url(url) as client:
        keys = list(client.scan_iter(match=f"*{leg.app.settings.namespace}*"))
        return "\n".join(str((key, client.dump(key))) for key in keys)


def of_errors(acts: Iterable[Callable[[], Any]]) -> list[str]:
    """What each of these raises, with its causes and where it came from."""
    said = []
    for act in acts:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is: it must not show a canary
            act()
        said.append("".join(traceback.format_exception(caught.value)) + repr(caught.value))
    return said


def sent_everywhere(leg: Leg, outbox: Outbox, inbox: Inbox) -> list[DeliveryRow]:
    """Deliveries that have ended in each way, and one that is held."""
    urls = {name: inbox.url(name) for name in ("ok", "down", "gone", "slow")} | {"dns": "http://nowhere.invalid/hooks"}
    for name, url in urls.items():
        outbox.endpoints.add(
            url, endpoint_id=name, secret=SECRET, headers={"x-token": HEADER}, retry_schedule=[0.1], total_s=1.0
        )
    outbox.endpoints.add("http://nowhere.invalid/", endpoint_id="held", secret=SECRET, headers={"x-token": HEADER})
    outbox.endpoints.disable("held")
    for _ in range(2):
        outbox.send("invoice.paid", {"note": PAYLOAD}, order_key="7")
    return list(outbox.deliveries())


@pytest.mark.one_leg
def test_nothing_that_is_said_or_stored_shows_a_secret_a_header_or_a_payload(leg: Leg) -> None:
    async def answer(letter: Letter) -> int:
        if letter.path == "slow":
            await asyncio.sleep(1.5)
        return {"down": 500, "gone": 410}.get(letter.path, 200)

    outbox = Outbox(leg.app)
    logs = []
    with Inbox(answer) as inbox:
        deliveries = sent_everywhere(leg, outbox, inbox)
        for _ in range(RUNS):
            logs.append(work(leg))
            if sum(one.state in DELIVERY_OPEN for one in outbox.deliveries()) <= 2 + 2:  # held, and those of `slow`
                break
        pinged = command(leg, "-v", "webhook", "test", inbox.url("ok"), "--secret", SECRET)

    seen = {one.headers["x-token"] for one in inbox.letters if "x-token" in one.headers}
    assert seen == {HEADER}
    assert all(PAYLOAD.encode() in one.body for one in inbox.letters if "x-token" in one.headers)
    by_class = {one.error_class: one for one in outbox.deliveries()}
    assert {None, "server_error", "gone", "answer_timeout", "dns"} <= set(by_class)
    one_of_each = list(by_class.values())
    looks = [
        ["webhook", "endpoint", "ls"],
        ["webhook", "endpoint", "show", "ok"],
        ["webhook", "delivery", "ls"],
        *(["webhook", "delivery", "show", one.id] for one in one_of_each),
        *(["task", "show", one.task_id] for one in one_of_each),
        ["why", deliveries[0].task_id],
        *([name, "ls"] for name in ("task", "limit", "order", "worker", "dead", "handler")),
        *([name] for name in ("status", "audit", "doctor", "config", "meters")),
        *(["dead", "groups"], ["db", "status"], ["queue", "show", "webhooks"], ["handler", "show", "workq.webhook"]),
        *(["sweep", "--dry-run"], ["db", "prune", "--dry-run"], ["webhook", "delivery", "retry", deliveries[0].id]),
        ["webhook", "recover", "down", "--since", "1d", "--dry-run"],
        ["webhook", "replay", "--since", "1d", "--dry-run"],
        ["webhook", "endpoint", "release", "held", "--dry-run"],
        ["webhook", "send", "x y", "--data", json.dumps({"a": PAYLOAD})],
        ["webhook", "send", "x.y", "--data", json.dumps({"a": PAYLOAD})[:-1]],
        ["webhook", "endpoint", "add", inbox.url(), "--secret", SECRET, "--header", f"x-a={HEADER}\x01"],
        ["webhook", "endpoint", "add", inbox.url(), "--id", "ok", "--header", f"x-a={HEADER}", "--secret", SECRET],
    ]
    for look in looks:
        said = command(leg, "-v", *look)
        if look[0] in ("webhook", "task"):
            said += command(leg, "-v", *look, "-o", "json")
        assert found_in(said) == [], look
        assert "No such command" not in said, look
    assert found_in(pinged) == []
    assert [found_in(log) for log in logs] == [[]] * len(logs)
    assert found_in(in_redis(leg)) == []
    where = {column: found for column, said in tables(leg).items() if (found := found_in(said))}
    namespace = leg.app.settings.namespace
    assert where == {f"{namespace}_webhook.body": [PAYLOAD]}


def test_no_error_shows_what_was_to_be_sent(leg: Leg, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = Outbox(leg.app)
    outbox.endpoints.add("http://127.0.0.1:8080/", endpoint_id="a", secret=SECRET, headers={"x-token": HEADER})
    outbox.send("invoice.paid", {"note": PAYLOAD}, event_id="paid-1")
    said = of_errors(
        [
            lambda: outbox.send("invoice.paid", {"note": PAYLOAD + "2"}, event_id="paid-1"),
            lambda: outbox.send("invoice.paid", {"note": PAYLOAD * 100_000}),
            lambda: outbox.send("invoice.paid", {"note": {PAYLOAD}}),
            lambda: outbox.send("invoice.paid", {"note": PAYLOAD}, endpoint="nobody"),
            lambda: outbox.endpoints.add(
                "http://127.0.0.1:8080/", endpoint_id="a", headers={"x-token": HEADER}, secret=SECRET + "A"
            ),
            lambda: outbox.endpoints.rotate("a", secret=SECRET[:-9]),
            lambda: outbox.endpoints.edit("a", headers={"x-token": HEADER + "\n"}),
        ]
    )
    monkeypatch.setenv("WORKQ_SECRET_KEY", Fernet.generate_key().decode())
    settings = leg.app.settings
    other = WorkQueue(ledger=settings.ledger, namespace=settings.namespace)
    said += of_errors([lambda: Webhooks(other).endpoints.rotate("a")])
    other.close()
    database = leg.app.database()
    with database.engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {settings.namespace}_delivery"))
    database.close()
    said += of_errors([lambda: outbox.send("invoice.paid", {"note": PAYLOAD})])

    assert [found_in(one) for one in said] == [[]] * len(said)
    assert repr(outbox.endpoints.get("a")).count("x-token") == 1
    assert found_in(repr(outbox.endpoints.get("a")) + repr(settings)) == []
