"""The code in README.md and docs/ is executed, page by page, each in a folder of its own."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.docs.page import REPOSITORY, blocks, pages, prose, text_of
from tests.docs.stage import HANDLERS, Stage

COMPOSE_URLS: Final = {
    "broker": "amqp://workq:workq@127.0.0.1:5672/",
    "inflight": "redis://:workq@127.0.0.1:6379/0",
    "ledger": "postgresql://workq:workq@127.0.0.1:5432/workq",
}
"""What docker-compose.yml serves, and pages write; the tests mean private servers by it."""
DESTINATION_URLS: Final = {
    "amqp://shop:secret@127.0.0.1:5672/": "rabbitmq_server",
    "redis://:secret@127.0.0.1:6379/0": "redis_server",
    "stomp://workq:secret@127.0.0.1:61613": "artemis_server",
    "kafka://127.0.0.1:9092": "kafka_server",
}
"""What pages on destinations write, and the fixture of the one server that is meant: the run's own, for all pages."""
NOT_EXECUTED_MAX: Final = 2
DRAWINGS: Final = (
    "README.md",
    "docs/how-to/run-on-kafka.md",
    "docs/reference/errors.md",
    "docs/reference/log.md",
    "docs/reference/states.md",
)
"""Pages with a block of plain text, one each: nobody runs it."""


def private_urls(request: pytest.FixtureRequest, page: str) -> Mapping[str, str]:
    """The private servers for the URLs that a page writes; none are started for the others."""
    text = text_of(page)
    found = {url: request.getfixturevalue(name).url for url, name in DESTINATION_URLS.items() if url in text}
    if found:
        hosts = {url.partition("://")[2]: meant.partition("://")[2] for url, meant in found.items()}
        return found | {host: meant for host, meant in hosts.items() if "@" not in host}
    if not any(url in text for url in COMPOSE_URLS.values()):
        return {}
    return {
        COMPOSE_URLS["broker"]: request.getfixturevalue("rabbitmq_server").url,
        COMPOSE_URLS["inflight"]: request.getfixturevalue("redis_server").url,
        COMPOSE_URLS["ledger"]: request.getfixturevalue("postgres_server").create_database(
            f"docs_{secrets.token_hex(4)}"
        ),
    }


@pytest.mark.parametrize("page", [page for page in pages() if any(blocks(page))])
def test_every_block_of_a_page_does_what_the_page_says(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with Stage(tmp_path, private_urls(request, page)) as stage:
        for block in blocks(page):
            stage.play(block)
    for block in stage.not_executed:
        print(f"not executed: {block.place} ({block.language}): {block.reason}")


def test_no_block_has_a_language_that_nobody_handles() -> None:
    assert [block.place for page in pages() for block in blocks(page) if block.language not in HANDLERS] == []


def test_what_another_test_executes_it_takes_from_the_page() -> None:
    elsewhere = [(block, block.executed_by) for page in pages() for block in blocks(page) if block.executed_by]

    assert elsewhere
    for block, test in elsewhere:
        source = (REPOSITORY / test).read_text(encoding="utf-8")
        assert f'PAGE = "{block.page}"' in source, block.place
        assert "blocks(PAGE)" in source, block.place


def test_almost_no_block_goes_unexecuted() -> None:
    left = [f"{block.place}: {block.reason}" for page in pages() for block in blocks(page) if block.reason]
    print("\n".join([f"{len(left)} blocks are not executed:", *left]))
    assert len(left) <= NOT_EXECUTED_MAX


@pytest.mark.parametrize("page", pages())
def test_a_page_has_no_fence_that_is_not_read(page: str) -> None:
    """One of tildes, in a list or a quotation, or with more than a language behind it: its block would not be run."""
    assert [line for line in prose(page).splitlines() if re.match(r"[\s>*+\-\d.)]*(?:`{3}|~{3})", line)] == []


def test_plain_text_stands_in_few_places() -> None:
    found = [block.page for page in pages() for block in blocks(page) if block.language == "text"]

    assert found == list(DRAWINGS)
