"""Settings: where each value comes from, what is refused, and that no password is ever shown."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import traceback
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from workq.config import (
    FILE_MAX_BYTES,
    LEDGER_SCHEMES,
    PAYLOAD_LIMIT_BYTES,
    SECRET_MAX_BYTES,
    Settings,
    Times,
    check_broker_url,
    check_inflight_url,
    check_ledger_url,
    check_proxy_url,
    masked,
)
from workq.errors import ConfigError

CANARY = "c4nary"
"""The password in every URL here. It must not be in any message."""

BROKER = f"amqp://app:{CANARY}@rabbit:5672/shop"


def load(folder: Path, environ: dict[str, str] | None = None, **arguments: Any) -> Settings:
    """Settings of a folder, untouched by the environment of the run."""
    return Settings.load(environ=environ or {}, folder=folder, **arguments)


def refusal(folder: Path, environ: dict[str, str] | None = None, **arguments: Any) -> str:
    """The message of the ConfigError, proved not to show the password anywhere in its traceback."""
    with pytest.raises(ConfigError) as caught:
        load(folder, environ, **arguments)
    everything = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert CANARY not in everything
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------------- precedence


def test_without_any_setting_the_ledger_is_one_sqlite_file_and_serves_as_all_three(tmp_path: Path) -> None:
    settings = load(tmp_path)

    assert (settings.ledger, settings.broker, settings.inflight) == ("sqlite:///workq.db", None, None)
    assert (settings.app, settings.namespace, settings.queue_type) == (None, "workq", "quorum")
    assert settings.ladder == "ledger"
    assert settings.webhook_proxy is None
    assert settings.times == Times()
    assert settings.payload_max_bytes == 256 * 1024
    assert settings.retention_s == 7 * 86400
    assert settings.dead_retention_s == 90 * 86400
    assert (settings.webhook_body_retention_s, settings.webhook_retention_s) == (7 * 86400, 30 * 86400)
    assert settings.warnings == ()
    assert {origin for _, _, origin in settings.table()} == {"default"}


def test_an_argument_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "workq.toml").write_text('ledger = "sqlite:///file.db"\nnamespace = "file"\napp = "file:app"\n')
    environ = {"WORKQ_LEDGER_URL": "sqlite:///env.db", "WORKQ_NAMESPACE": "env"}

    settings = load(tmp_path, environ, ledger="sqlite:///argument.db")

    assert (settings.ledger, settings.namespace, settings.app) == ("sqlite:///argument.db", "env", "file:app")
    assert settings.origins == {
        "ledger": "argument",
        "namespace": "environment WORKQ_NAMESPACE",
        "app": "workq.toml",
    }


@pytest.mark.parametrize(
    ("variable", "name", "value"),
    [
        ("WORKQ_LEDGER_URL", "ledger", "mysql://app@db/shop"),
        ("WORKQ_BROKER_URL", "broker", "amqp://rabbit/"),
        ("WORKQ_INFLIGHT_URL", "inflight", "redis://redis:6379/1"),
        ("WORKQ_APP", "app", "shop.tasks:queue"),
        ("WORKQ_NAMESPACE", "namespace", "shop"),
        ("WORKQ_QUEUE_TYPE", "queue_type", "classic"),
        ("WORKQ_LADDER", "ladder", "levels:5s,10s,1m"),
        ("WORKQ_WEBHOOK_PROXY", "webhook_proxy", "http://proxy.internal:4750"),
        ("WORKQ_RETENTION_S", "retention_s", 60.0),
        ("WORKQ_DEAD_RETENTION_S", "dead_retention_s", 90.5),
        ("WORKQ_WEBHOOK_BODY_RETENTION_S", "webhook_body_retention_s", 60.0),
        ("WORKQ_WEBHOOK_RETENTION_S", "webhook_retention_s", 2_592_001.0),
    ],
)
def test_each_environment_variable_sets_its_setting(
    tmp_path: Path, variable: str, name: str, value: str | float
) -> None:
    settings = load(tmp_path, {variable: str(value)})

    assert getattr(settings, name) == value
    assert settings.origins == {name: f"environment {variable}"}


@pytest.mark.parametrize(
    "variable",
    ["WORKQ_RETENTION_S", "WORKQ_DEAD_RETENTION_S", "WORKQ_WEBHOOK_BODY_RETENTION_S", "WORKQ_WEBHOOK_RETENTION_S"],
)
@pytest.mark.parametrize("value", ["7d", "0", "-1", "nan", "inf", "1e300"])
def test_a_retention_of_the_environment_that_is_none_is_refused(tmp_path: Path, variable: str, value: str) -> None:
    assert variable in refusal(tmp_path, {variable: value})


def test_webhooks_are_kept_as_long_as_their_bodies(tmp_path: Path) -> None:
    told = refusal(tmp_path, {"WORKQ_WEBHOOK_RETENTION_S": "60"})

    assert told == (
        "webhook_retention_s (environment WORKQ_WEBHOOK_RETENTION_S): webhooks are kept at least as long as their "
        "bodies: webhook_retention_s is 60, below webhook_body_retention_s, 604800"
    )


def test_workq_toml_wins_over_pyproject_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.workq]\nnamespace = "pyproject"\napp = "pyproject:app"\n')
    assert load(tmp_path).origins == dict.fromkeys(("namespace", "app"), "pyproject.toml [tool.workq]")

    (tmp_path / "workq.toml").write_text('namespace = "file"\n')
    settings = load(tmp_path)

    assert (settings.namespace, settings.app) == ("file", None)


def test_the_file_sets_every_setting_and_times_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "workq.toml").write_text(
        'ledger = "postgres://app@db/shop"\nbroker = "amqps://rabbit"\ninflight = "unix:///run/redis.sock?db=2"\n'
        'app = "shop:queue"\nnamespace = "shop"\nqueue_type = "classic"\nladder = "levels:5s,1m"\n'
        "payload_max_bytes = 1024\nretention_s = 60\ndead_retention_s = 90.5\n"
        "webhook_body_retention_s = 30\nwebhook_retention_s = 40.5\n"
        'webhook_allow = "private"\nwebhook_ports = "443"\nwebhook_schemes = "https"\n'
        'webhook_proxy = "http://app:secret@10.0.0.7:3128"\nsecret_key = "k"\nlog_format = "json"\n'
        'message_allow = "10.0.0.0/8"\n'
        "[times]\nlease_s = 60\nbeat_s = 7.5\n"
    )

    settings = load(tmp_path)

    assert (settings.payload_max_bytes, settings.log_format) == (1024, "json")
    assert (settings.retention_s, settings.dead_retention_s) == (60.0, 90.5)
    assert (settings.webhook_body_retention_s, settings.webhook_retention_s) == (30.0, 40.5)
    assert (settings.webhook_allow, settings.webhook_ports, settings.webhook_schemes) == ("private", "443", "https")
    assert (settings.webhook_proxy, settings.secret_key) == ("http://app:secret@10.0.0.7:3128", "k")
    assert settings.message_allow == "10.0.0.0/8"
    assert settings.times == Times(lease_s=60.0, beat_s=7.5)
    origins = {name: origin for name, _, origin in settings.table()}
    assert origins.pop("times.sweep_s") == "default"
    assert origins["times.lease_s"] == "workq.toml"
    assert all(origins[name] == "workq.toml" for name in origins if not name.startswith("times."))


def test_times_given_as_an_argument_replace_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "workq.toml").write_text("[times]\nlease_s = 60\n")

    settings = load(tmp_path, times=Times().divided_by(10))

    assert settings.times == Times().divided_by(10)
    assert settings.origins["times.lease_s"] == "argument"


def test_the_environment_and_the_folder_default_to_those_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKQ_LEDGER_URL", "sqlite:///env.db")
    for variable in ("WORKQ_NAMESPACE", "WORKQ_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "workq.toml").write_text('namespace = "file"\n')

    settings = Settings.load()

    assert (settings.ledger, settings.namespace) == ("sqlite:///env.db", "file")


# --------------------------------------------------------------------------------------------------------- environment


@pytest.mark.parametrize("value", ["", "   ", "\n", '""', "' '"])
def test_an_empty_variable_counts_as_missing(tmp_path: Path, value: str) -> None:
    settings = load(tmp_path, {"WORKQ_LEDGER_URL": value, "WORKQ_LEDGER_URL_FILE": value, "WORKQ_CONFIG": value})

    assert settings.ledger == "sqlite:///workq.db"
    assert settings.origins == {}


@pytest.mark.parametrize(
    ("value", "warned"),
    [
        (BROKER, []),
        (f"{BROKER}\n", ["whitespace"]),
        (f"  {BROKER}", ["whitespace"]),
        (f'"{BROKER}"', ["quotes"]),
        (f"' {BROKER} '\r\n", ["quotes", "whitespace"]),
    ],
)
def test_what_surrounds_a_value_is_removed_with_a_warning(tmp_path: Path, value: str, warned: list[str]) -> None:
    settings = load(tmp_path, {"WORKQ_BROKER_URL": value})

    assert settings.broker == BROKER
    assert [next(word for word in ("quotes", "whitespace") if word in one) for one in settings.warnings] == warned
    assert all(one.startswith("WORKQ_BROKER_URL: ") and CANARY not in one for one in settings.warnings)


def test_a_secret_is_read_from_the_file_that_a_variable_names(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\xef\xbb\xbf" + BROKER.encode() + b"\r\n")

    for path in ("secret", str(tmp_path / "secret")):
        settings = load(tmp_path, {"WORKQ_BROKER_URL_FILE": path})

        assert settings.broker == BROKER
        assert settings.origins == {"broker": "environment WORKQ_BROKER_URL_FILE"}
        assert settings.warnings == ()  # a newline at the end of a file is no mistake


def test_the_proxy_of_webhooks_is_read_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"http://app:{CANARY}@proxy:3128\n")

    settings = load(tmp_path, {"WORKQ_WEBHOOK_PROXY_FILE": "secret"})

    assert settings.webhook_proxy == f"http://app:{CANARY}@proxy:3128"
    assert settings.origins == {"webhook_proxy": "environment WORKQ_WEBHOOK_PROXY_FILE"}


def test_an_argument_leaves_the_secret_file_unread(tmp_path: Path) -> None:
    assert load(tmp_path, {"WORKQ_BROKER_URL_FILE": "missing"}, broker=BROKER).broker == BROKER


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b' "" \n', "is empty"),
        (b"\xff\xfe" + CANARY.encode(), "not UTF-8"),
        (b"x" * (SECRET_MAX_BYTES + 1), "larger than"),
        (b"amqp://a:" + CANARY.encode() + b"@h\namqp://b:" + CANARY.encode() + b"@h", "space or control character"),
    ],
)
def test_a_bad_secret_file_is_refused_by_name(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)

    message = refusal(tmp_path, {"WORKQ_BROKER_URL_FILE": "secret"})

    assert "WORKQ_BROKER_URL_FILE" in message
    assert said in message


def test_a_variable_and_its_file_variant_contradict_each_other(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"WORKQ_LEDGER_URL": "sqlite:///a.db", "WORKQ_LEDGER_URL_FILE": "b"})

    assert "WORKQ_LEDGER_URL and WORKQ_LEDGER_URL_FILE are both set" in message


# --------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"\xef\xbb\xbfnamespace = 'shop'\n",
        b"namespace = 'shop'\r\n[times]\r\nlease_s = 40\r\n",
        b"# only a comment",
    ],
)
def test_an_empty_file_a_bom_and_windows_line_ends_are_fine(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "workq.toml").write_bytes(content)

    assert load(tmp_path).namespace == ("shop" if b"shop" in content else "workq")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"namespace = \n", ["not valid TOML", "line 1, column 13"]),
        (b"namespace = 'a'\n\nnamespace = 'b'\n", ["not valid TOML", "line 3"]),
        (b"[times]\nbeat_s = 1\nbeat_s = 2\n", ["not valid TOML", "line 3"]),
        (b"retention_s = " + b"9" * 5000, ["not valid TOML"]),
        (b"namespace = 'caf\xe9'\n", ["not UTF-8"]),
        ("namespace = 'shop'".encode("utf-16"), ["not UTF-8"]),
        (b"#" * (FILE_MAX_BYTES + 1), ["larger than 1048576 bytes"]),
        (b"brokr = 'amqp://app:c4nary@h'\n", ["unknown key brokr", "did you mean broker?"]),
        (b"zzz = 1\n", ["unknown key zzz", "known keys: ledger, broker"]),
        (b'"a\\nb" = 1\n', ["unknown key a?b"]),
        (b"[times]\nlease = 1\n", ["unknown key times.lease;", "did you mean lease_s?"]),
        (b"times = 5\n", ["times must be a table, not a number"]),
        (b"[times]\nlease_s = '30'\n", ["times.lease_s must be a number of seconds, not text"]),
        (b"[times]\nlease_s = true\n", ["times.lease_s must be a number of seconds, not true or false"]),
        (b"broker = 5672\n", ["broker must be text, not a number"]),
        (b"broker = ['amqp://app:c4nary@h']\n", ["broker must be text, not a list"]),
        (b"ledger = 2026-01-01\n", ["ledger must be text, not a date"]),
        (b"[ledger]\nurl = 'sqlite:///a.db'\n", ["ledger must be text, not a table"]),
        (b"payload_max_bytes = '1 MiB'\n", ["payload_max_bytes must be a number, not text"]),
        (b"payload_max_bytes = 0\n", ["payload_max_bytes", "from 1 to 16777216"]),
        (b"payload_max_bytes = 16777217\n", ["payload_max_bytes", "from 1 to 16777216"]),
        (b"payload_max_bytes = 1024.0\n", ["payload_max_bytes", "whole number"]),
        (b"retention_s = 0\n", ["retention_s", "more than 0"]),
        (b"retention_s = nan\n", ["retention_s", "more than 0"]),
        (b"dead_retention_s = 1e12\n", ["dead_retention_s", "at most"]),
        (b"dead_retention_s = 1" + b"0" * 400, ["dead_retention_s", "at most"]),
        (b"queue_type = 'stream'\n", ["queue_type", "quorum or classic"]),
        (b"ladder = 'levels:5s,1s'\n", ["ladder", "'1s' is not above the one before it"]),
        (b"ladder = ['5s']\n", ["ladder must be text, not a list"]),
        (b"broker = ''\n", ["broker", "is empty", "leave it out"]),
        (b"namespace = ''\n", ["namespace", "[a-z][a-z0-9_]{0,30}"]),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_place(tmp_path: Path, content: bytes, said: list[str]) -> None:
    (tmp_path / "workq.toml").write_bytes(content)

    message = refusal(tmp_path)

    assert "workq.toml" in message
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[tool.workq]\nledgr = 'x'\n", "pyproject.toml [tool.workq]: unknown key ledgr; did you mean ledger?"),
        ("[tool]\nworkq = 'x'\n", "pyproject.toml: tool.workq must be a table, not text"),
        ("[tool.workq\n", "pyproject.toml: not valid TOML"),
    ],
)
def test_a_bad_table_in_pyproject_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(content)

    assert said in refusal(tmp_path)


@pytest.mark.parametrize("content", ["", "[project]\nname = 'shop'\n", "[tool.ruff]\nfix = true\n", "tool = 1\n"])
def test_a_pyproject_without_our_table_is_nothing_of_ours(tmp_path: Path, content: str) -> None:
    (tmp_path / "pyproject.toml").write_text(content)

    assert load(tmp_path).origins == {}


def test_a_missing_file_is_fine_unless_it_was_named(tmp_path: Path) -> None:
    assert load(tmp_path).origins == {}
    assert load(tmp_path / "no such folder").origins == {}

    assert "shop.toml: this settings file does not exist" in refusal(tmp_path, file="shop.toml")
    assert "shop.toml: this settings file does not exist" in refusal(tmp_path, {"WORKQ_CONFIG": "shop.toml"})


def test_a_named_file_is_read_instead_of_the_usual_ones(tmp_path: Path) -> None:
    (tmp_path / "workq.toml").write_text('namespace = "usual"\n')
    (tmp_path / "shop.toml").write_text('namespace = "named"\n')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pyproject.toml").write_text('[tool.workq]\nnamespace = "other"\n')

    assert load(tmp_path, file="shop.toml").origins == {"namespace": "shop.toml"}
    assert load(tmp_path, {"WORKQ_CONFIG": str(tmp_path / "shop.toml")}).namespace == "named"
    assert load(tmp_path, {"WORKQ_CONFIG": "shop.toml"}, file="other/pyproject.toml").namespace == "other"


@pytest.mark.parametrize("name", ["workq.toml", "pyproject.toml"])
def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()

    message = refusal(tmp_path)

    assert name in message
    assert "is a folder, not a file" in message


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "workq.toml").symlink_to("workq.toml")

    message = refusal(tmp_path)

    assert "cannot read" in message
    assert os.strerror(40) in message  # ELOOP; root reads everything, so a forbidden file proves nothing


# ---------------------------------------------------------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///workq.db",
        "sqlite:////srv/my files/q@home/workq.db",
        "postgresql://app:secret@db:5432/shop",
        "postgresql+psycopg://app@db/shop?sslmode=verify-full",
        "postgres://db/shop",
        "postgresql://app:s%40c%2Fr%23t@[::1]:5432/shop",
        "postgresql:///shop?host=/run/postgresql",
        "postgresql://?service=shop",
        "mysql://app:se:cret@db/shop",
        "mysql+pymysql://app@127.0.0.1:3306/shop",
        "mariadb://app@my_db.internal/shop?charset=utf8mb4",
        "mariadb+pymysql://app@/shop?unix_socket=/run/mysqld.sock",
    ],
)
def test_a_ledger_url_of_the_right_form_is_taken_as_it_is(url: str) -> None:
    assert check_ledger_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "amqp://rabbit",
        "amqp://a:b@one:5672,[::1],three/shop",
        "amqp://a:b@rabbit:5672/",
        "amqps://a:b@rabbit/%2F",
        "amqp://[fe80::1%25eth0]/shop?heartbeat=5",
    ],
)
def test_a_broker_url_of_the_right_form_is_taken_as_it_is(url: str) -> None:
    assert check_broker_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "redis://redis",
        "redis://:secret@redis:6379/15",
        "rediss://a:b@[::1]:6380/0?protocol=2",
        "unix:///run/r.sock?db=1",
        "redis+cluster://redis",
        "redis+cluster://a:b@one:7000,two:7000,[::1]:7000/0?protocol=2",
        "rediss+cluster://:secret@one,two",
        "redis+sentinel://:secret@one:26379,two:26379/shop/0",
        "rediss+sentinel://a:b@one,[::1]:26379/shop?ssl_ca_certs=/etc/ca.pem&sentinel_password=x",
    ],
)
def test_an_inflight_url_of_the_right_form_is_taken_as_it_is(url: str) -> None:
    assert check_inflight_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://proxy:3128",
        "http://proxy.internal:4750/",
        "http://10.0.0.7:80",
        "http://[fd00::7]:3128",
        "http://app:s%40c%2Fr%23t@proxy:3128",
        "http://app:se:cret@proxy:3128",
    ],
)
def test_a_url_of_a_proxy_of_the_right_form_is_taken_as_it_is(url: str) -> None:
    assert check_proxy_url(url) == url


PROXY_FORM = "http://host:port or http://user:password@host:port"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"https://app:{CANARY}@proxy:3128", "the scheme of https://app:***@proxy:3128 is not http://"),
        (f"socks5://app:{CANARY}@proxy:1080", "the scheme of socks5://app:***@proxy:1080 is not http://"),
        (f"app:{CANARY}@proxy:3128", "not a URL"),
        ("proxy:3128", "not a URL"),
        ("http://", "no host"),
        (f"http://app:{CANARY}@:3128", "no host"),
        ("http://proxy", "no port in http://proxy"),
        ("http://[fd00::7]", "no port in http://[fd00::7]"),
        (f"http://app:{CANARY}@proxy", "no port in http://app:***@proxy"),
        (f"http://app:{CANARY}@proxy:", "from 1 to 65535"),
        (f"http://app:{CANARY}@proxy:0", "from 1 to 65535"),
        (f"http://app:{CANARY}@proxy:web", "from 1 to 65535"),
        (f"http://app:{CANARY}", "from 1 to 65535"),
        (f"http://{CANARY}@proxy:3128", "a login is a user and a password, in http://***@proxy:3128"),
        (f"http://:{CANARY}@proxy:3128", "a login is a user and a password"),
        ("http://app:@proxy:3128", "a login is a user and a password"),
        ("http://@proxy:3128", "a login is a user and a password"),
        (f"http://app:{CANARY}@proxy:3128/out", "nothing follows the port in http://app:***@proxy:3128/***"),
        (f"http://app:{CANARY}@proxy:3128/?a=b", "nothing follows the port"),
        (f"http://app:{CANARY}@proxy:3128?", "nothing follows the port"),
        (f"http://app:{CANARY}@proxy:3128#a", "write # as %23"),
        (f"http://app:{CANARY}/x@proxy:3128", "write @ as %40"),
        (f"http://app:x@{CANARY}@proxy:3128", "write @ as %40"),
        (f"http://app:{CANARY} x@proxy:3128", "space or control character"),
        (f"http://app:{CANARY}@[fe80::7%25eth0]:3128", "of one machine only"),
        (f"http://app:{CANARY}@fd00::7:3128", "an IPv6 address needs brackets"),
        (f"http://app:{CANARY}@one,two:3128", "not a valid host"),
    ],
)
def test_a_proxy_of_another_form_is_refused_with_its_origin_and_the_right_form(
    tmp_path: Path, url: str, said: str
) -> None:
    (tmp_path / "workq.toml").write_text(f"webhook_proxy = '{url}'\n")
    (tmp_path / "empty").mkdir()

    for message, origin in [
        (refusal(tmp_path), "webhook_proxy (workq.toml): "),
        (
            refusal(tmp_path / "empty", {"WORKQ_WEBHOOK_PROXY": url}),
            "webhook_proxy (environment WORKQ_WEBHOOK_PROXY): ",
        ),
    ]:
        assert message.startswith(origin)
        assert said in message
        assert PROXY_FORM in message


LEDGER_FORM = "postgresql://user:password@host:5432/database"
BROKER_FORM = "amqp://user:password@host:5672/vhost"
INFLIGHT_FORM = "redis://:password@host:6379/0"


@pytest.mark.parametrize(
    ("name", "url", "said"),
    [
        ("ledger", f"app:{CANARY}@db/shop", "not a URL"),
        ("ledger", CANARY, "not a URL"),
        ("ledger", f"postgresql:/app:{CANARY}@db/shop", "not a URL"),
        ("ledger", f"http://app:{CANARY}@db/shop", "is not sqlite:// or postgresql://"),
        ("ledger", f"POSTGRESQL://app:{CANARY}@db/shop", "is not sqlite:// or postgresql://"),
        ("ledger", f"amqp://app:{CANARY}@db/shop", "the scheme of amqp://app:***@db/shop is not"),
        ("ledger", f"postgresql+psycopg2://app:{CANARY}@db/shop", "is not sqlite:// or postgresql://"),
        ("ledger", f"oracle://app:{CANARY}@db/shop", LEDGER_FORM),
        ("ledger", f"postgresql://app:{CANARY}@/shop", "no host"),
        ("ledger", f"postgresql://app:{CANARY}@:5432/shop", "no host"),
        ("ledger", f"mysql://app:{CANARY}@/shop?host=/run/mysqld", "?unix_socket=/path"),
        ("ledger", f"postgresql://app:{CANARY}@db", "no database name"),
        ("ledger", f"mysql://app:{CANARY}@db/", "no database name"),
        ("ledger", f"postgresql://app:{CANARY}@db:0/shop", "the port in postgresql://app:***@db:0/shop must be"),
        ("ledger", f"postgresql://app:{CANARY}@db:70000/shop", "from 1 to 65535"),
        ("ledger", f"postgresql://app:{CANARY}@db:abc/shop", "from 1 to 65535"),
        ("ledger", f"postgresql://app:{CANARY}@db:/shop", "from 1 to 65535"),
        ("ledger", f"postgresql://app:{CANARY}@db:-1/shop", "from 1 to 65535"),
        ("ledger", f"postgresql://app:{CANARY}@::1:5432/shop", "an IPv6 address needs brackets"),
        ("ledger", f"postgresql://app:{CANARY}@[::1/shop", "an IPv6 address needs brackets"),
        ("ledger", f"postgresql://app:{CANARY}@[::1]5432/shop", "an IPv6 address needs brackets"),
        ("ledger", f"postgresql://app:{CANARY}@[db]/shop", "not a valid host"),
        ("ledger", f"mysql://app:{CANARY}@a,b/shop", "not a valid host"),
        ("ledger", f"postgresql://app:{CANARY}@a,/shop", "a comma without a host"),
        ("ledger", f"postgresql://app:{CANARY}@a:5432,b:x/shop", "from 1 to 65535"),
        ("ledger", f"postgresql://app:12,{CANARY}:x/shop", "the port in postgresql://app:*** must be"),
        ("ledger", f"postgresql://app:{CANARY}/x@db/shop", "write @ as %40"),
        ("ledger", f"postgresql://app:{CANARY}#x@db/shop", "write @ as %40"),
        ("ledger", f"postgresql://app:x?{CANARY}@db/shop", "write @ as %40"),
        ("ledger", f"postgresql://app:x@{CANARY}@db/shop", "write @ as %40"),
        ("ledger", f"postgresql://app:x@y?{CANARY}@db/shop", "write @ as %40"),
        ("ledger", f"postgresql://app:{CANARY}@db/shop#x", "write # as %23"),
        ("ledger", f"postgresql://app:{CANARY}", "from 1 to 65535"),
        ("ledger", f"postgresql://app:{CANARY}/shop", "from 1 to 65535"),
        ("ledger", f"postgresql://app:{CANARY} x@db/shop", "space or control character"),
        ("ledger", f"postgresql://app:{CANARY}\nx@db/shop", "space or control character"),
        ("ledger", f"postgresql://app:{CANARY}@d\u2100b/shop", "not a valid host"),
        ("ledger", f"postgresql://db:x/shop?user=app&password={CANARY}", "from 1 to 65535"),
        ("ledger", f"mysql://db:x/shop?ssl_key_passphrase={CANARY}&a=b", "from 1 to 65535"),
        ("ledger", "sqlite://workq.db", "three slashes"),
        ("ledger", "sqlite:workq.db", "three slashes"),
        ("ledger", "sqlite:///work\nq.db", "a control character"),
        ("ledger", f"sqlite://app:{CANARY}@host/workq.db", "three slashes"),
        ("ledger", "sqlite://", "three slashes"),
        (
            "ledger",
            f"postgresql://app:{CANARY}@one:5432,two/shop?host=three",
            "hosts before the path and in the query of",
        ),
        ("ledger", f"postgresql://app:{CANARY}@one,two/shop?port=5433", "hosts before the path and in the query of"),
        ("ledger", "sqlite:///", "needs a file"),
        ("ledger", "sqlite:///:memory:", "needs a file"),
        ("ledger", "sqlite:///file:x?mode=memory&uri=true", "needs a file"),
        ("broker", f"http://app:{CANARY}@rabbit", "is not amqp:// or amqps:// or kafka:// or kafkas://"),
        ("broker", "KAFKA://one:9092", "or kafka://host:9092"),
        ("broker", f"redis://:{CANARY}@rabbit", BROKER_FORM),
        ("broker", f"app:{CANARY}@rabbit", BROKER_FORM),
        ("broker", "amqp:///shop", "no host"),
        ("broker", f"amqp://app:{CANARY}@", "no host"),
        ("broker", f"amqp://app:{CANARY}@rabbit:amqp", "from 1 to 65535"),
        ("broker", f"amqp://app:{CANARY}@one,/shop", "a comma without a host"),
        ("broker", f"amqp://app:{CANARY}@one:5672,two:x/shop", "from 1 to 65535"),
        ("broker", f"amqp://one:5672,{CANARY}:x", "from 1 to 65535"),
        ("broker", f"amqps://app:{CANARY}@{','.join('abcdefghij')}", "10 hosts in amqps://app:***@a,"),
        ("broker", f"amqp://app:{CANARY}@rabbit/a/b", "write a slash in the vhost as %2F"),
        ("broker", f"amqp://app:{CANARY}@rabbit//", "write a slash in the vhost as %2F"),
        ("inflight", f"amqp://app:{CANARY}@redis", "is not redis:// or rediss:// or unix://"),
        ("inflight", f"redis://:{CANARY}", "from 1 to 65535"),
        ("inflight", f"redis://:{CANARY}@/0", "no host"),
        ("inflight", f"redis://:{CANARY}@redis/cache", "the database of Redis is a number"),
        ("inflight", f"redis://:{CANARY}@redis/0/1", "the database of Redis is a number"),
        ("inflight", f"redis://:{CANARY}@redis?db=x", "the database of Redis is a number"),
        ("inflight", f"unix://app:{CANARY}@", "no path of a socket"),
        ("inflight", f"unix://app:{CANARY}@run/redis.sock", "no path of a socket"),
        ("inflight", f"unix:///run/redis.sock?db=x&password={CANARY}", "the database of Redis is a number"),
        ("inflight", f"redis+cluster://:{CANARY}", "from 1 to 65535"),
        ("inflight", f"redis+cluster://app:12,{CANARY}:x", "the port in redis+cluster://app:*** must be"),
        ("inflight", f"redis+cluster://:{CANARY}@one:7000,two:x", "from 1 to 65535"),
        ("inflight", f"redis+cluster://:{CANARY}@one:7000,", "a node without a host in redis+cluster://:***@one"),
        ("inflight", f"redis+cluster://:{CANARY}@one:7000/1", "a cluster of Redis has only database 0"),
        ("inflight", f"redis+cluster://:{CANARY}@one:7000?db=2", "a cluster of Redis has only database 0"),
        ("inflight", f"redis+cluster://:{CANARY}/x@one:7000,two:7000", "write @ as %40"),
        ("inflight", f"unix+cluster://app:{CANARY}@run/redis.sock", "is not redis://"),
        ("inflight", f"unix+sentinel://app:{CANARY}@one/shop", "is not redis://"),
    ],
)
def test_a_wrong_url_is_refused_with_its_origin_and_the_right_form(
    tmp_path: Path, name: str, url: str, said: str
) -> None:
    form = {"ledger": "sqlite:///workq.db", "broker": BROKER_FORM, "inflight": INFLIGHT_FORM}[name]
    variable = f"WORKQ_{name.upper()}_URL"

    for message, origin in [
        (refusal(tmp_path, {}, **{name: url}), f"{name} (argument): "),
        (refusal(tmp_path, {variable: url}), f"{name} (environment {variable}): "),
    ]:
        assert message.startswith(origin)
        assert said in message
        assert form in message


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"redis+sentinel://:{CANARY}", "a host has a port from 1 to 65535"),
        (f"redis+sentinel://:{CANARY}@one:26379", "the name of a service follows"),
        (f"redis+sentinel://:{CANARY}@one:26379,/shop", "a host has a port from 1 to 65535"),
        (f"redis+sentinel://:{CANARY}@one:26379/shop/x", "the number of a database follows the service"),
        (f"redis+sentinel://:{CANARY}@one:26379/shop/0/1", "the number of a database follows the service"),
        (f"redis+sentinel://:{CANARY}@one:26379/shop%20window", "the name of a service follows"),
        (f"redis+sentinel://:{CANARY}@one:26379/shop?db=1", "is no option"),
        (f"redis+sentinel://:{CANARY}@one:26379/shop?{CANARY}", "NAME=VALUE"),
        (f"redis+sentinel://:{CANARY}#@one:26379/shop", "# as %23"),
    ],
)
def test_a_wrong_url_of_sentinels_is_refused_with_its_origin_and_the_right_form(
    tmp_path: Path, url: str, said: str
) -> None:
    message = refusal(tmp_path, {"WORKQ_INFLIGHT_URL": url})

    assert message.startswith("inflight (environment WORKQ_INFLIGHT_URL): ")
    assert said in message
    assert "redis+sentinel://:password@host:26379,host:26379/service/0" in message


@pytest.mark.parametrize("value", [5, b"sqlite:///a.db", Path("a.db"), ["amqp://h"]])
def test_a_url_that_is_no_text_is_refused(tmp_path: Path, value: Any) -> None:
    assert "must be text" in refusal(tmp_path, ledger=value)
    assert "must be text" in refusal(tmp_path, broker=value)


def test_the_schemes_of_ledgers_are_those_that_have_a_driver() -> None:
    from workq.ledger.engine.url import DRIVERS

    assert set(LEDGER_SCHEMES) == set(DRIVERS)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:c4nary@db:5432/shop?sslmode=require", "postgresql://app:***@db:5432/shop?***"),
        ("redis://:c4nary@redis:6379/0", "redis://:***@redis:6379/0"),
        ("redis://c4nary@redis:6379/0", "redis://***@redis:6379/0"),
        ("redis+cluster://:c4nary@one:7000,two:7000", "redis+cluster://:***@one:7000,two:7000"),
        ("redis+cluster://c4nary@one,two", "redis+cluster://***@one,two"),
        ("redis+cluster://one:7000,two:7000/0?protocol=2", "redis+cluster://one:7000,two:7000/0?***"),
        ("redis+cluster://app:7000,c4nary", "redis+cluster://app:***"),
        ("redis+sentinel://:c4nary@one:1,two:2/shop/0", "redis+sentinel://:***@one:1,two:2/shop/0"),
        ("redis+sentinel://one:1,two:2/shop?sentinel_password=c4nary", "redis+sentinel://one:1,two:2/shop?***"),
        ("postgresql://app:c4nary@one:5432,two:5433/shop", "postgresql://app:***@one:5432,two:5433/shop"),
        ("postgresql://one:5432,two:5433/shop", "postgresql://one:5432,two:5433/shop"),
        ("postgresql://app:5432,c4nary", "postgresql://app:***"),
        ("amqp://rabbit:5672/shop", "amqp://rabbit:5672/shop"),
        ("amqp://app:c4nary@one:5672,two/shop", "amqp://app:***@one:5672,two/shop"),
        ("amqp://one:5672,two:5672/shop", "amqp://one:5672,two:5672/shop"),
        ("amqp://app:12,c4nary", "amqp://app:***"),
        ("amqp://[::1]:5672/shop", "amqp://[::1]:5672/shop"),
        ("amqp://app@rabbit", "amqp://app@rabbit"),
        ("http://app:c4nary@proxy:3128", "http://app:***@proxy:3128"),
        ("http://c4nary@proxy:3128", "http://***@proxy:3128"),
        ("sqlite:////srv/a@b:c/workq.db", "sqlite:////srv/a@b:c/workq.db"),
        ("postgresql://db/shop?password=c4nary", "postgresql://db/shop?***"),
        ("postgresql://db/shop?a=b&sslPassword=x&c=c4nary", "postgresql://db/shop?***"),
        ("mysql://db/shop?ssl_key=c4nary", "mysql://db/shop?***"),
        ("sqlite:///shop.db?c4nary", "sqlite:///shop.db?***"),
        ("unix:///run/redis.sock?db=0&x=c4nary", "unix:///run/redis.sock?***"),
        ("db/shop?x=c4nary", "db/shop?***"),
        # broken ones
        ("", ""),
        ("app:c4nary@db/shop", "app:***@db/shop"),
        ("amqp://app:c4nary", "amqp://app:***"),
        ("amqp://app:c4nary/x", "amqp://app:***"),
        ("amqp://:12345", "amqp://:***"),
        ("amqp://app:x@c4nary/y@h", "amqp://app:***@h"),
        ("amqp://app:x/c4nary@h", "amqp://app:***@h"),
        ("amqp://app:x\nc4nary@h", "amqp://app:***@h"),
        ("amqp://[x:c4nary", "amqp://[x:***"),
        ("amqp:app:c4nary@h", "amqp:***@h"),
        ("://app:c4nary@h", ":***@h"),
        ("a\x1b[31mb", "a?[31mb"),
    ],
)
def test_a_masked_url_shows_everything_but_the_password_and_the_query(url: str, shown: str) -> None:
    assert masked(url) == shown
    assert masked(masked(url)) == shown


# --------------------------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"lease_s": 10.0}, "times.lease_s: must be more than 2 * beat_s"),
        ({"beat_s": 15.0}, "lease_s is 30 and beat_s is 15"),
        ({"sweep_s": 30.1}, "times.sweep_s: must not be more than lease_s"),
        ({"amqp_heartbeat_s": 0}, "times.amqp_heartbeat_s: must be whole seconds from 1 to 65535 (0 would switch it"),
        ({"amqp_heartbeat_s": 2.5}, "times.amqp_heartbeat_s: must be whole seconds"),
        ({"amqp_heartbeat_s": 65536}, "times.amqp_heartbeat_s: must be whole seconds"),
        ({"grace_s": -0.1}, "times.grace_s: must be from 0"),
        ({"hard_limit_grace_s": -1}, "times.hard_limit_grace_s: must be from 0"),
        ({"beat_s": "5"}, "times.beat_s: must be a number of seconds, not text"),
        ({"beat_s": True}, "times.beat_s: must be a number of seconds, not true or false"),
        ({"beat_s": None}, "times.beat_s: must be a number of seconds"),
    ],
)
def test_contradictory_times_are_refused_with_the_rule(times: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Times(**times)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", [one.name for one in fields(Times)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e9, 10**400])
def test_a_time_that_is_not_a_positive_finite_number_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"times\.{name}: must be"):
        Times(**{name: value})


MAY_BE_ZERO = ("absence_s", "grace_s", "hard_limit_grace_s")


@pytest.mark.parametrize("name", [one.name for one in fields(Times) if one.name not in MAY_BE_ZERO])
def test_only_an_absence_and_a_grace_at_an_end_may_be_zero(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"times\.{name}: must be"):
        Times(**{name: 0.0})
    assert Times(**dict.fromkeys(MAY_BE_ZERO, 0.0)).grace_s == 0.0


def test_an_absence_means_nothing_where_beats_or_leases_tell_as_soon() -> None:
    assert not Times().is_absence_watched
    assert Times(absence_s=8.0).is_absence_watched
    assert Times(beat_s=5.0, absence_s=7.5).is_absence_watched
    assert not Times(beat_s=5.0, absence_s=7.4).is_absence_watched
    assert not Times(beat_s=5.0, absence_s=8.0, redis_socket_s=3.0).is_absence_watched, "of which one answer is lost"
    assert not Times(beat_s=1.0, absence_s=3.9).is_absence_watched
    assert not Times(absence_s=30.0).is_absence_watched
    assert not Times(absence_s=0.0).is_absence_watched
    assert Times(absence_s=8.0).divided_by(10).absence_s == 0.0, "servers tell no sooner"


def test_contradictory_times_name_the_file_that_sets_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "workq.toml").write_text("[times]\nbeat_s = 20\n")
    assert refusal(tmp_path).endswith("(workq.toml)")

    (tmp_path / "workq.toml").write_text("[times]\nlease_s = nan\n")
    assert refusal(tmp_path).endswith("(workq.toml)")


def test_times_that_are_no_times_are_refused(tmp_path: Path) -> None:
    assert "must be a Times, not a table" in refusal(tmp_path, times={"beat_s": 1})


def test_divided_times_keep_their_proportions_and_the_floors_of_servers() -> None:
    times = Times().divided_by(10)

    assert (times.beat_s, times.lease_s, times.sweep_s, times.grace_s) == (0.5, 3.0, 0.5, 3.0)
    assert (times.amqp_heartbeat_s, times.confirm_s, times.redis_socket_s, times.statement_s) == (2.0, 2.0, 1.0, 5.0)
    assert times.unpublished_grace_s == 1.0
    assert Times().divided_by(1) == Times()
    assert Times().divided_by(0.5).lease_s == 60.0


@pytest.mark.parametrize("n", [3, 7, 16, 19.9, 1000])
def test_the_heartbeat_stays_a_whole_number_of_seconds(n: float) -> None:
    times = Times().divided_by(n)

    assert times.amqp_heartbeat_s.is_integer()
    assert times.amqp_heartbeat_s >= 2


def test_a_floor_does_not_raise_what_was_lower_before() -> None:
    assert Times(redis_socket_s=0.25, amqp_heartbeat_s=1).divided_by(10).redis_socket_s == 0.25
    assert Times(amqp_heartbeat_s=1).divided_by(10).amqp_heartbeat_s == 1.0


@pytest.mark.parametrize("n", [0, -1, math.nan, math.inf, "2", True])
def test_times_are_divided_by_a_positive_number_only(n: Any) -> None:
    with pytest.raises(ConfigError, match="positive number"):
        Times().divided_by(n)


# --------------------------------------------------------------------------------------------------------- other values


@pytest.mark.parametrize("app", ["shop", "shop.tasks", "shop.tasks:queue", "shop:Shop.queue", "_a1:_b2"])
def test_an_app_is_a_module_and_perhaps_an_attribute(tmp_path: Path, app: str) -> None:
    assert load(tmp_path, app=app).app == app


@pytest.mark.parametrize("app", ["", ":queue", "shop:", "shop..tasks", "shop/tasks.py", "shop tasks", "a:b:c", "1a", 5])
def test_an_app_of_another_form_is_refused(tmp_path: Path, app: Any) -> None:
    assert "app (argument): must be module:attribute" in refusal(tmp_path, app=app)


def test_a_payload_limit_stays_below_the_hard_one(tmp_path: Path) -> None:
    assert load(tmp_path, payload_max_bytes=PAYLOAD_LIMIT_BYTES).payload_max_bytes == 16 * 1024 * 1024
    for value in (0, -1, PAYLOAD_LIMIT_BYTES + 1, True, 1.5):
        assert "payload_max_bytes (argument)" in refusal(tmp_path, payload_max_bytes=value)


def test_settings_made_by_hand_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"queue_type \(argument\): must be quorum or classic"):
        Settings(queue_type="stream")  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(
        ConfigError, match=r"ladder \(argument\): 'linear' is no ladder of delays; use binary, ledger, or"
    ):
        Settings(ladder="linear")
    with pytest.raises(ConfigError, match="namespace"):
        replace(Settings(), namespace='x"; drop')


# ---------------------------------------------------------------------------------------------------------- the object


def test_settings_show_no_password_in_their_repr_and_table(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        {"WORKQ_INFLIGHT_URL": f"redis://:{CANARY}@redis", "WORKQ_WEBHOOK_PROXY": f"http://app:{CANARY}@proxy:3128"},
        ledger=f"mysql://app:{CANARY}@db/shop",
        broker=f"amqp://app:{CANARY}@rabbit",
    )

    assert CANARY not in repr(settings) + str(settings) + str(settings.table())
    assert settings.table()[:4] == [
        ("ledger", "mysql://app:***@db/shop", "argument"),
        ("broker", "amqp://app:***@rabbit", "argument"),
        ("inflight", "redis://:***@redis", "environment WORKQ_INFLIGHT_URL"),
        ("app", "-", "default"),
    ]
    assert ("webhook_proxy", "http://app:***@proxy:3128", "environment WORKQ_WEBHOOK_PROXY") in settings.table()
    assert ("times.lease_s", "30", "default") in settings.table()


def test_settings_are_frozen_and_travel_to_another_process() -> None:
    settings = Settings(namespace="shop", origins={"namespace": "argument"}, warnings=("one",))

    copy = pickle.loads(pickle.dumps(settings))  # noqa: S301 - ours, to ourselves

    assert copy == settings
    assert (copy.origins, copy.warnings) == (settings.origins, settings.warnings)
    with pytest.raises(FrozenInstanceError):
        settings.namespace = "other"  # type: ignore[misc]  # what the test is about


def test_reading_settings_loads_no_client_library() -> None:
    program = (
        "import sys, workq.config; workq.config.Settings.load(environ={'WORKQ_BROKER_URL': 'amqp://h'});"
        "print(sorted({'sqlalchemy', 'msgspec', 'pika', 'redis', 'click', 'psutil', 'difflib'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "[]\n"
