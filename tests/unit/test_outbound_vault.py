"""What is stored of an endpoint's secrets: encrypted where there is a key, and told to nobody who has none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from workq import WorkQueue
from workq.config import Settings
from workq.errors import ConfigError, Refused
from workq.messages.destinations import Destinations
from workq.messages.intakes import MessageIntakes
from workq.outbound.vault import Content, Secret, Vault
from workq.webhooks import new_secret

NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)
CONTENT = Content((Secret(new_secret()), Secret(new_secret(), NOW)), {"authorization": "Bearer swordfish"})
OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


@pytest.mark.parametrize("keys", [None, NEW, f"{NEW}, {OLD}"], ids=["none", "one", "two"])
def test_what_is_sealed_reads_as_it_was(keys: str | None) -> None:
    vault = Vault(keys)

    sealed = vault.seal(CONTENT)

    assert vault.open(sealed) == CONTENT
    assert vault.open(sealed).headers == CONTENT.headers
    assert vault.has_key == (keys is not None)
    assert ("whsec_" in sealed) == ("swordfish" in sealed) == (keys is None)


def test_a_new_key_reads_what_the_old_one_has_sealed_and_what_was_not() -> None:
    plain, old = Vault().seal(CONTENT), Vault(OLD).seal(CONTENT)

    both = Vault(f"{NEW},{OLD}")

    assert both.open(plain) == both.open(old) == CONTENT
    assert Vault(NEW).open(both.seal(both.open(old))) == CONTENT


@pytest.mark.parametrize(
    ("keys", "said"), [(None, "set WORKQ_SECRET_KEY, here too"), (NEW, "with another key")], ids=["none", "another"]
)
def test_without_its_key_nothing_is_read_and_the_message_says_what_is_missing(keys: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Vault(keys).open(Vault(OLD).seal(CONTENT))

    assert OLD not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", '{"secrets": 1}', "nothing of ours"])
def test_what_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not workq's"):
        Vault().open(text)


@pytest.mark.parametrize("keys", ["hunter2hunter2", f"{NEW},hunter2hunter2", " , "], ids=["one", "two", "none"])
def test_what_is_no_key_is_refused_and_not_shown(keys: str) -> None:
    with pytest.raises(ConfigError, match="WORKQ_SECRET_KEY") as caught:
        Vault(keys)

    assert "hunter2" not in str(caught.value)


def test_requests_are_signed_with_the_newest_and_those_whose_grace_lasts() -> None:
    first, second = (one.text for one in CONTENT.secrets)

    assert CONTENT.signing(NOW - timedelta(seconds=1)) == [first, second]
    assert CONTENT.signing(NOW) == [first]


def test_nothing_that_is_printed_shows_a_secret() -> None:
    settings = Settings.load(environ={"WORKQ_SECRET_KEY": NEW})

    shown = f"{CONTENT!r} {CONTENT.secrets[0]!r} {settings!r} {settings.table()}"

    assert settings.secret_key == NEW
    assert NEW not in shown
    assert CONTENT.secrets[0].text not in shown
    assert "swordfish" not in shown


@pytest.mark.parametrize("keys", [None, NEW], ids=["none", "one"])
def test_a_destination_is_added_twice_with_the_same_url_and_not_with_another_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str | None
) -> None:
    if keys is not None:
        monkeypatch.setenv("WORKQ_SECRET_KEY", keys)
    wq = WorkQueue(ledger=f"sqlite:///{tmp_path / 'w.db'}")
    ways: Any = (
        (Destinations(wq).add, {"kind": "amqp", "routing_key": "q", "exchange": ""}),
        (MessageIntakes(wq).add, {"kind": "amqp", "queue": "q"}),
    )
    for add, options in ways:
        for _ in range(2):
            add("mail", url="amqp://u:right@127.0.0.1/", **options)
        with pytest.raises(Refused, match="is there already"):
            add("mail", url="amqp://u:wrong@127.0.0.1/", **options)
    wq.close()
