"""What orders webhooks: checked before anything is contacted, and as the order key of their tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workq import WorkQueue
from workq.errors import ConfigError
from workq.values.names import check_key
from workq.values.task import AfterDeath
from workq.webhooks.outbox import Outbox
from workq.webhooks.values import ORDER_KEY_MAX, EndpointOptions, Ordered, line_of, task_of

URL = "https://example.org/hooks"


@pytest.fixture
def nowhere(tmp_path: Path) -> Iterator[Outbox]:
    """Of an application whose ledger cannot be opened."""
    with WorkQueue(ledger=f"sqlite:///{tmp_path / 'no' / 'such' / 'folder.db'}") as wq:
        yield Outbox(wq)


@pytest.mark.parametrize("key", ["", "k" * (ORDER_KEY_MAX + 1), 7, b"k", "a\nb", "a\x00", "\ud800", "k "])
def test_a_key_that_is_none_is_refused_before_anything_is_contacted(nowhere: Outbox, key: Any) -> None:
    with pytest.raises(ConfigError, match="key"):
        nowhere.send("invoice.paid", {}, order_key=key)


@pytest.mark.parametrize("ordered", ["always", "", "KEY", 1, True, ["key"]])
def test_an_order_that_is_none_is_refused_before_anything_is_contacted(nowhere: Outbox, ordered: Any) -> None:
    with pytest.raises(ConfigError, match="ordered: need one of no, endpoint, key"):
        nowhere.endpoints.add(URL, ordered=ordered)


@pytest.mark.parametrize(
    ("ordered", "key", "line"),
    [
        (Ordered.NO, "x", None),
        (Ordered.ENDPOINT, None, "webhook:acme"),
        (Ordered.ENDPOINT, "x", "webhook:acme"),
        (Ordered.KEY, None, None),
        (Ordered.KEY, "x", "webhook:acme:x"),
    ],
)
def test_a_task_stands_in_the_line_of_its_endpoint_or_its_key_and_goes_on_after_a_dead_one(
    ordered: Ordered, key: str | None, line: str | None
) -> None:
    task = task_of("t", "d", "acme", EndpointOptions(ordered=ordered), order_key=key, delay_s=0.0)

    assert task.order_key == line
    assert task.after_death is (AfterDeath.BLOCK if line is None else AfterDeath.SKIP)


def test_the_longest_key_fits_behind_the_longest_endpoint() -> None:
    line = line_of("e" * 64, EndpointOptions(ordered=Ordered.KEY), "k" * ORDER_KEY_MAX)

    assert line is not None
    assert check_key(line) == line
