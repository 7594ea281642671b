"""`workq webhook test` and `listen`: an endpoint is tried, and played."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.faults.egress import EgressProxy, refusing, running
from tests.zygote import Forked
from workq.webhooks import new_secret

HERE = {"WORKQ_WEBHOOK_ALLOW": "external,loopback"}
SECRET = new_secret()


@contextmanager
def listening(cli: Cli, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A receiver; answers its URL."""
    process = Forked(
        [sys.executable, "-m", "workq", "webhook", "listen", "--port", "0", "-o", "json", *options],
        cwd=cli.folder,
        env=cli.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert found is not None, said
        yield found[0], process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def lines(process: subprocess.Popen[str], count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_a_ping_arrives_signed_and_both_ends_tell_of_it(cli: Cli) -> None:
    with listening(cli, "--secret", SECRET, "--count", "1") as (url, process):
        ran = cli("webhook", "test", url, "-o", "json", env={**HERE, "WORKQ_WEBHOOK_SECRET": SECRET})
        assert ran.status == 0, ran
        [got] = lines(process, 1)
        ended = process.wait(timeout=30)

    told = ran.json()
    assert (ended, told["result"], told["status"]) == (0, "delivered", 200)
    assert told["webhook_id"] == got["webhook_id"]
    assert told["webhook_signature"].startswith("v1,")
    assert (told["connected_to"], told["tls"]) == ("127.0.0.1", None)
    assert told["ms"] > 0.0
    assert (got["event_type"], got["verified"], got["problem"]) == ("workq.ping", "verified", None)
    assert SECRET not in ran.out + ran.err


def test_who_has_another_secret_refuses_it_and_says_so(cli: Cli) -> None:
    with listening(cli, "--secret", SECRET) as (url, process):
        ran = cli("webhook", "test", url, env=HERE)
        assert ran.status == 1, ran
        [got] = lines(process, 1)

    assert "client_error" in ran.out
    assert "no signature fits" in ran.out
    assert got["status"] == 401


@pytest.mark.parametrize(
    ("manner", "result"),
    [
        (["--status", "500"], "server_error"),
        (["--status", "410"], "gone"),
        (["--status", "429", "--retry-after", "30"], "throttled"),
        (["--delay", "30"], "answer_timeout"),
        (["--drip"], "body_timeout"),
        (["--flaky", "1"], "server_error"),
    ],
)
def test_a_receiver_misbehaves_as_it_is_told_and_the_test_says_how(cli: Cli, manner: list[str], result: str) -> None:
    with listening(cli, *manner) as (url, _):
        ran = cli("webhook", "test", url, "--timeout", "1", "-o", "json", env=HERE)

    told = ran.json()
    assert (ran.status, told["result"]) == (1, result)
    assert told["advice"]
    assert told["retry_after"] == ("30" if "429" in manner else None)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:8085/", "blocked address 127.0.0.1 (set WORKQ_WEBHOOK_ALLOW=external,127.0.0.1 to permit)"),
        ("https://user:hunter2hunter@example.org/", "has a user or a password"),
        ("ftp://example.org/", "need http://host/path"),
        ("https://example.org:6379/", "blocked port 6379"),
    ],
)
def test_what_may_not_be_called_is_refused_before_anything_is_sent(cli: Cli, url: str, said: str) -> None:
    ran = cli("webhook", "test", url)

    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
    assert "hunter2" not in ran.err


def test_where_nothing_listens_it_says_what_to_do(cli: Cli) -> None:
    ran = cli("webhook", "test", "http://127.0.0.1:1", env={**HERE, "WORKQ_WEBHOOK_PORTS": "1"})

    assert ran.status == 1
    assert "refused" in ran.out
    assert "start the receiver" in ran.out


def test_through_a_proxy_it_says_so_and_shows_no_login(cli: Cli) -> None:
    proxy = EgressProxy()
    with listening(cli, "--secret", SECRET) as (url, process), running(proxy) as port:
        proxy.ahead = int(url.rstrip("/").rpartition(":")[2])
        env = {**HERE, "WORKQ_WEBHOOK_SECRET": SECRET, "WORKQ_WEBHOOK_PROXY": f"http://app:hunter2@127.0.0.1:{port}"}
        ran = cli("webhook", "test", "http://hooks.example/", "-o", "json", env=env)
        [got] = lines(process, 1)

    told = ran.json()
    assert (ran.status, told["result"], told["proxy"]) == (0, "delivered", f"http://127.0.0.1:{port}")
    assert (told["addresses"], told["connected_to"], got["verified"]) == (None, "127.0.0.1", "verified")
    assert [line for line, _ in proxy.asked] == ["POST http://hooks.example/ HTTP/1.1"]
    assert "hunter2" not in ran.out + ran.err


@pytest.mark.parametrize(
    ("allow", "advice", "error"),
    [
        ("external,loopback", "look into the proxy's log", "403 X"),
        ("external", "check WORKQ_WEBHOOK_PROXY", "blocked address 127.0.0.1 (set WORKQ_WEBHOOK_ALLOW=external,127"),
    ],
    ids=["refused", "blocked"],
)
def test_what_the_proxy_has_to_do_with_it_is_said(cli: Cli, allow: str, advice: str, error: str) -> None:
    with running(refusing(403)) as port:
        env = {"WORKQ_WEBHOOK_ALLOW": allow, "WORKQ_WEBHOOK_PROXY": f"http://app:hunter2@127.0.0.1:{port}"}
        ran = cli("webhook", "test", "https://hooks.example/", "-o", "json", env=env)

    told = ran.json()
    assert (ran.status, told["result"]) == (1, "proxy")
    assert told["advice"].startswith(advice)
    assert told["error"].startswith(f"the proxy http://127.0.0.1:{port}: {error}")
    assert "hunter2" not in ran.out + ran.err


def test_a_proxy_that_is_none_is_refused_and_its_password_is_not_shown(cli: Cli) -> None:
    env = {"WORKQ_WEBHOOK_PROXY": "https://app:hunter2@proxy:3128"}

    ran = cli("webhook", "test", "https://hooks.example/", env=env)

    assert (ran.status, ran.out) == (2, "")
    assert "webhook_proxy (environment WORKQ_WEBHOOK_PROXY): the scheme of https://app:***@proxy:3128" in ran.err
    assert "hunter2" not in ran.err


@pytest.mark.parametrize("command", [["test", "https://example.org/", "--secret"], ["listen", "--secret"]])
def test_what_is_no_secret_is_refused_and_not_shown(cli: Cli, command: list[str]) -> None:
    ran = cli("webhook", *command, "swordfish")

    assert (ran.status, ran.out) == (2, "")
    assert "whsec_" in ran.err
    assert "swordfish" not in ran.err


@pytest.mark.parametrize("missing", ["aiohttp", "standardwebhooks"])
def test_without_its_extra_a_line_says_what_to_install(cli: Cli, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from workq.cli.root import run; sys.exit(run(sys.argv[1:]))"

    ran = subprocess.run(
        [sys.executable, "-c", code, "webhook", "test", "https://example.org/"],
        cwd=cli.folder,
        env=cli.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"workq: error: webhooks need {missing}: install the extra [webhooks]\n"


def test_a_port_that_is_taken_is_said(cli: Cli) -> None:
    with listening(cli) as (url, _):
        ran = cli("webhook", "listen", "--port", url.rstrip("/").rpartition(":")[2])

    assert ran.status == 2
    assert "choose another with --port" in ran.err
