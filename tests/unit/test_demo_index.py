"""The demo's corpora and indexes: slices cover all, a part written twice is there once, and the count can fail."""

from __future__ import annotations

import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from workq.cli.session import Session
from workq.demo.command import ended
from workq.demo.corpus import Corpus, DebianPackages, Document, UnicodeNames, open_corpus, packages
from workq.demo.index import (
    CHUNK,
    ENGINES,
    NEW,
    OLD,
    UNREADABLE,
    Count,
    Index,
    alias,
    count,
    create_index,
    make_unreadable,
    mend,
    open_index,
    point,
    unreadable,
)
from workq.demo.play import Failures, Report, Scene
from workq.errors import ConfigError

STANZAS = """\
Package: aalib-bin
Version: 1.4p5-50
Description: sample programs using aalib
 AAlib is a portable ascii art graphics library.
Description-md5: 0123

Package: b-without-description

Package: c
Description-en: café "quoted"
"""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn; tantivy where it is installed."""
    if request.param == "tantivy":
        pytest.importorskip("tantivy")
    return str(request.param)


@pytest.fixture
def index(engine: str, tmp_path: Path) -> Iterator[Index]:
    """An empty index."""
    create_index(engine, tmp_path)
    with closing(open_index(engine, tmp_path)) as opened:
        yield opened


def documents(first: int, number: int) -> list[Document]:
    """Some that differ."""
    return [Document(one, f"title{one}", f"text of number{one}") for one in range(first, first + number)]


# -- corpora


def items_of(corpus: Corpus, cursor: int | None = None) -> list[int]:
    return [item for item, _ in corpus.items(cursor)]


def test_the_items_of_the_characters_are_every_name_once() -> None:
    corpus = UnicodeNames()
    numbers = [document.number for document in corpus.read(items_of(corpus))]

    assert numbers == [one for one in range(sys.maxunicode + 1) if unicodedata.name(chr(one), "")]
    assert numbers == list(corpus.numbers())


def test_a_corpus_goes_on_behind_a_cursor(tmp_path: Path) -> None:
    packages = DebianPackages(tmp_path / "corpus.jsonl")
    packages.write(STANZAS.splitlines())

    for corpus in (UnicodeNames(), packages):
        found = list(corpus.items(None))
        for place in (0, 1, len(found) - 2, len(found) - 1):
            assert items_of(corpus, found[place][1]) == [item for item, _ in found[place + 1 :]]


def test_a_stanza_gives_its_name_and_the_first_line_of_its_description() -> None:
    assert list(packages(STANZAS.splitlines())) == [
        ("aalib-bin", "sample programs using aalib"),
        ("b-without-description", ""),
        ("c", 'café "quoted"'),
    ]


def test_the_items_of_the_packages_are_every_line_once(tmp_path: Path) -> None:
    corpus = DebianPackages(tmp_path / "corpus.jsonl")
    corpus.write(STANZAS.splitlines())
    items = items_of(corpus)

    assert [document.number for document in corpus.read(items)] == [0, 1, 2]
    assert corpus.read(items[2:]) == [Document(2, "c", 'café "quoted"')]
    assert list(corpus.numbers()) == [0, 1, 2]


def test_a_machine_without_packages_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no list of Debian packages"):
        DebianPackages(tmp_path / "corpus.jsonl").write([])


@pytest.mark.parametrize("open_it", [open_corpus, create_index, open_index])
def test_an_unknown_name_is_refused(open_it: object, tmp_path: Path) -> None:
    assert callable(open_it)
    with pytest.raises(ConfigError, match="'moon' is not known"):
        open_it("moon", tmp_path)


# -- indexes


def test_a_part_that_is_written_again_is_there_once(index: Index) -> None:
    index.replace(0, documents(0, 500))
    index.replace(1, documents(500, 500))

    index.replace(0, documents(0, 500))
    index.replace(1, documents(500, 500))

    assert count(index, range(1000)) == Count(1000, 1000, (), (), ())


def test_an_attempt_takes_the_place_of_the_one_before_it(index: Index) -> None:
    index.replace(7, documents(0, 3))

    index.replace(7, documents(1, 3))

    assert sorted(index.numbers()) == [1, 2, 3]


def test_an_empty_index_has_lost_everything(index: Index) -> None:
    assert count(index, range(3)) == Count(3, 0, (0, 1, 2), (), ())


def test_a_document_that_is_missing_is_counted_as_lost(index: Index) -> None:
    index.replace(0, documents(0, 3))

    counted = count(index, range(4))

    assert counted == Count(4, 3, (3,), (), ())
    assert not counted.is_complete


def test_a_document_that_two_parts_wrote_is_seen_twice(index: Index) -> None:
    index.replace(0, documents(0, 3))
    index.replace(1, documents(2, 2))

    counted = count(index, range(4))

    assert counted == Count(4, 4, (), (2,), ())
    assert not counted.is_complete


def test_a_document_that_nobody_expects_is_seen(index: Index) -> None:
    index.replace(0, documents(0, 3))

    assert count(index, range(2)) == Count(2, 2, (), (), (2,))


def test_writers_at_the_same_time_wait_for_each_other(engine: str, tmp_path: Path, index: Index) -> None:
    failures: list[BaseException] = []

    def write(first: int) -> None:
        try:
            for part in range(first, first + 5):
                with closing(open_index(engine, tmp_path)) as mine:
                    mine.replace(part, documents(part * 20, 20))
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(first,)) for first in (0, 5, 10, 15)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert failures == []
    assert count(index, range(400)).is_complete


class Breaking(list[Document]):
    """Documents of which the last one cannot be had."""

    def __iter__(self) -> Iterator[Document]:
        yield from self[:-1]
        raise RuntimeError("killed here")


def test_an_attempt_that_breaks_in_the_middle_leaves_what_was_there(index: Index) -> None:
    index.replace(0, documents(0, 3))

    with pytest.raises(RuntimeError, match="killed here"):
        index.replace(0, Breaking(documents(0, 3)))

    assert count(index, range(3)).is_complete


def test_a_search_needs_all_words_and_answers_the_best_first(index: Index) -> None:
    index.replace(
        0,
        [
            Document(0, "a", "SMILING DOG"),
            Document(1, "b", "A VERY LONG NAME OF A CAT THAT IS SMILING A LITTLE"),
            Document(2, "c", "SMILING CAT"),
        ],
    )

    hits = index.search("smiling cat", limit=5)

    assert [hit.title for hit in hits] == ["c", "b"]
    assert hits[0].score > hits[1].score > 0.0


@pytest.mark.parametrize("words", ['"', "a OR", "(", "NEAR(", "title:", "-", "*"])
def test_no_search_is_a_syntax_error(index: Index, words: str) -> None:
    index.replace(0, documents(0, 3))

    assert index.search(words, limit=5) == []


# -- the verdict


def report(counted: Count, **facts: Any) -> Report:
    """One of a run in which nobody was killed."""
    scene = Scene("things", counted.expected, 500, "SQLite FTS5", 1, 1, False, Path("demo"))
    given: dict[str, Any] = {
        "throttled": None,
        "failures": Failures(UNREADABLE, "65", "no text", OLD),
        "mended": UNREADABLE,
        "alias": NEW,
        "trouble": None,
    }
    return Report(
        scene=scene,
        stores="SQLite",
        count=counted,
        subtasks=2,
        run_again=0,
        killed=None,
        recovery=None,
        seconds=2.0,
        question="words",
        hits=(),
        **given | facts,
    )


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (report(Count(1000, 1000, (), (), ())), 0, "Proved: nothing is missing"),
        (report(Count(1000, 999, (65,), (), ())), 1, "lost      1: 65\n"),
        (report(Count(1000, 1000, (), (66, 67), ())), 1, "twice     2: 66, 67\n"),
        (report(Count(1000, 1000, (), (), (68,))), 1, "foreign   1: 68\n"),
        (
            report(Count(1000, 1000, (), (), ()), trouble="no progress for 120 s"),
            1,
            "Not finished: no progress for 120 s",
        ),
        (report(Count(1000, 1000, (), (), ()), failures=None), 1, "FAILED: it did not go as it should"),
        (report(Count(1000, 1000, (), (), ()), mended=1000), 1, "FAILED: it did not go as it should"),
        (report(Count(1000, 1000, (), (), ()), alias=OLD), 1, "searched  catalog_v1"),
        (
            report(Count(1000, 1000, (), (), ()), failures=Failures(UNREADABLE, "65", "no text", NEW)),
            1,
            "FAILED: it did not go as it should",
        ),
    ],
)
def test_only_a_complete_index_deserves_status_0(
    given: Report, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(Session(), given) == status
    page = capsys.readouterr().out
    assert said in page
    assert ("Proved" in page) == (status == 0)
    assert ("FAILED" in page) == ((given.trouble is None and status == 1) or not given.count.is_complete)


# -- the versions


@pytest.mark.parametrize("count_of", [7, 700, 138_552])
def test_some_cannot_be_read_until_they_are_mended_and_none_of_them_names_its_chunk(
    tmp_path: Path, count_of: int
) -> None:
    items = list(range(1000, 1000 + count_of))
    make_unreadable(tmp_path, items)

    found = unreadable(tmp_path)
    assert len(set(found)) == UNREADABLE or count_of == UNREADABLE
    assert all((item - 1000) % CHUNK for item in found)
    mend(tmp_path)
    assert unreadable(tmp_path) == []


def test_an_alias_is_moved(tmp_path: Path) -> None:
    for version in (OLD, NEW):
        point(tmp_path, version)
        assert alias(tmp_path) == version
    assert [one.name for one in tmp_path.iterdir()] == ["alias"]
