"""Sources: read on at a cursor, they yield what follows, and nothing twice; what they cannot read they say."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import NullPool, create_engine, text

from workq import WorkQueue
from workq.errors import BadSource, ConfigError
from workq.jobs.sources import CsvFile, Items, JsonLines, Keyset, Range, Source, Steps


def read(source: Source, size: int = 3, cursor: Any = None) -> list[Any]:
    return [item for page in source.pages(cursor, size) for item in page.items]


def counted(cursor: int | None) -> Iterator[tuple[str, int]]:
    for number in range(cursor or 0, 8):
        yield f"item {number}", number + 1


def table(folder: Path) -> str:
    url = f"sqlite:///{folder}/table.db"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT)"))
        connection.execute(
            text("INSERT INTO product VALUES (:id, :name)"), [{"id": 3 * n, "name": f"p{n}"} for n in range(1, 9)]
        )
    engine.dispose()
    return url


def written(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


WORDS: Any = ["a"]
SOURCES: dict[str, Callable[[Path], Source]] = {
    "range": lambda _: Range(3, 30, 4),
    "items": lambda _: Items([f"item {number}" for number in range(7)]),
    "steps": lambda _: Steps(counted),
    "keyset": lambda folder: Keyset(
        table(folder), "SELECT id FROM product WHERE id > :cursor ORDER BY id LIMIT :limit"
    ),
    "keyset rows": lambda folder: Keyset(
        create_engine(table(folder), poolclass=NullPool),
        "SELECT id, name FROM product WHERE id > :cursor ORDER BY id LIMIT :limit",
    ),
    "json lines": lambda folder: JsonLines(
        written(folder, "a.jsonl", "".join(f'{{"ü": {n}}}\n' + "\n" * (n % 2) for n in range(7)))
    ),
    "csv": lambda folder: CsvFile(
        written(folder, "a.csv", 'id,name\n1,a\n2,"b\nb"\n3,"c,""c"\n\n4,ü\n5,e\r\n6,f\n7,g'), delimiter=","
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_it_is_read_on_at_every_cursor_and_yields_nothing_twice(name: str, tmp_path: Path) -> None:
    source = SOURCES[name](tmp_path)
    everything = read(source, 100)
    assert len(everything) >= 7

    for size in (1, 2, 3, 7):
        seen: list[Any] = []
        for page in source.pages(None, size):
            assert len(page.items) <= size
            seen += page.items
            cursor = json.loads(json.dumps(page.cursor))  # as it is kept
            assert seen + read(source, size, cursor) == everything
        assert seen == everything


@given(st.lists(st.integers(), max_size=50), st.integers(1, 20))
def test_pages_are_full_but_for_the_last(items: list[int], size: int) -> None:
    pages = list(Items(items).pages(None, size))

    assert [item for page in pages for item in page.items] == items
    assert all(len(page.items) == size for page in pages[:-1])


def test_how_many_there_are_is_said_where_it_is_known(tmp_path: Path) -> None:
    url = table(tmp_path)
    query = "SELECT id FROM product WHERE id > :cursor ORDER BY id LIMIT :limit"

    assert Range(10_000_000).count() == 10_000_000
    assert Items([1, 2]).count() == 2
    assert Items(one for one in [1, 2]).count() is None
    assert Steps(counted).count() is None
    assert Keyset(url, query).count() is None
    assert Keyset(url, query, total="SELECT count(*) FROM product").count() == 8


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda _: Range(*WORDS), "Range: need one to three whole numbers"),
        (lambda _: Range(1, 2, 0), "Range: need one to three whole numbers"),
        (lambda _: Keyset("sqlite://", "SELECT 1"), "Keyset: the query needs :cursor"),
        (
            lambda folder: Keyset(table(folder), "SELECT 1 WHERE :cursor = :cursor LIMIT :limit", start=1),
            "Keyset: a page has the row of its cursor, 1, once more",
        ),
        (lambda _: Steps(lambda _: WORDS), "yields pairs"),
        (lambda folder: JsonLines(folder / "none"), "No such file"),
        (lambda folder: JsonLines(written(folder, "a", '1\n{"a"\n')), r"line 2 \(at byte 2\) is not JSON: .* column 5"),
        (
            lambda folder: CsvFile(written(folder, "a", "a,b\n1,2,3\n")),
            r"line 2 \(at byte 4\) has 3 fields; .* names 2",
        ),
        (lambda folder: CsvFile(written(folder, "a", 'a,b\n"1,2\n')), r"ends in line 2 \(at byte 4\) is not CSV"),
    ],
)
def test_what_it_cannot_read_it_says_and_where(make: Callable[[Path], Source], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        read(make(tmp_path))


def test_a_file_that_is_not_utf_8_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b'"good"\n"\xff"\n')

    with pytest.raises(ConfigError, match=r"line 2 \(at byte 7\) is not UTF-8"):
        read(JsonLines(tmp_path / "a"))


def test_a_mark_of_the_encoding_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfid,name\n1,a\n")

    assert read(CsvFile(tmp_path / "a.csv")) == [{"id": "1", "name": "a"}]


def test_standard_input_is_read_as_a_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given = b"1\n2\n3\n4\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given)))
    [first, *_] = JsonLines("-").pages(None, 2)

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given)))
    assert read(JsonLines("-"), 2, first.cursor) == [3, 4]


def test_a_source_that_ends_before_what_was_read_of_it_is_an_error() -> None:
    first = next(Items([7, 8, 9]).pages(None, 2))

    with pytest.raises(ConfigError, match="had 2 items or more before, and has fewer now"):
        list(Items([7]).pages(first.cursor, 2))
    assert list(Items([7, 8]).pages(first.cursor, 2)) == []


@pytest.mark.parametrize("given", [iter([1]), (one for one in [1]), {1, 2}, frozenset([1])])
def test_what_cannot_be_read_again_in_the_same_order_is_refused_as_a_source(given: Any) -> None:
    wq = WorkQueue(ledger="sqlite:///never.db")

    with pytest.raises(ConfigError, match="give a list, or a function that begins anew"):
        wq.job(name="a", source=given)(lambda items: None)


def test_a_function_may_answer_what_begins_anew_but_no_set() -> None:
    wq = WorkQueue(ledger="sqlite:///never.db")
    anew = wq.job(name="a", source=lambda: iter([1, 2]))(lambda items: None)
    ordered = wq.job(name="b", source={1: "a", 2: "b"}.keys())(lambda items: None)
    unordered = wq.job(name="c", source=lambda: {1, 2})(lambda items: None)

    for job in (anew, ordered):
        assert [page.items for page in job.items({}).pages(None, 2)] == [[1, 2]]
    with pytest.raises(ConfigError, match="which set cannot be"):
        unordered.items({})


def test_a_file_whose_columns_have_one_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,email,email\n1,a,b\n")

    with pytest.raises(ConfigError, match="names 'email' more than once"):
        list(CsvFile(tmp_path / "a.csv").pages(None, 10))


TIES = "SELECT kind FROM thing WHERE kind > :cursor ORDER BY kind LIMIT :limit"


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_rows_that_share_a_key_are_refused_wherever_a_page_ends(size: int, tmp_path: Path) -> None:
    url = things(tmp_path, "(1), (2), (2), (3)")

    with pytest.raises(BadSource, match=r"two rows have the key kind = 2, .* a unique column"):
        read(Keyset(url, TIES), size)


def test_what_is_read_before_rows_that_share_a_key_is_yielded(tmp_path: Path) -> None:
    pages = Keyset(things(tmp_path, "(1), (2), (3), (4), (4)"), TIES).pages(None, 2)

    assert next(pages).items == [1, 2]
    with pytest.raises(BadSource, match="the key kind = 4"):
        next(pages)


def test_a_query_that_caps_its_pages_is_read_to_its_end(tmp_path: Path) -> None:
    url = things(tmp_path, "(1), (2), (3), (4), (5)")

    assert read(Keyset(url, TIES.replace(":limit", "min(:limit, 2)")), 2) == [1, 2, 3, 4, 5]


def test_a_query_that_begins_at_its_cursor_is_refused(tmp_path: Path) -> None:
    url = things(tmp_path, "(1), (2), (3)")

    with pytest.raises(BadSource, match="a page has the row of its cursor, 2, once more"):
        read(Keyset(url, TIES.replace(">", ">=")), 2)


def test_a_query_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    query = "SELECT a.id, b.id FROM product a JOIN product b USING (id) WHERE a.id > :cursor ORDER BY 1 LIMIT :limit"

    with pytest.raises(BadSource, match=r"two columns of the name 'id', .* AS other_id"):
        read(Keyset(table(tmp_path), query))


def things(folder: Path, kinds: str) -> str:
    url = f"sqlite:///{folder}/things.db"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE thing (kind INTEGER)"))
        connection.execute(text(f"INSERT INTO thing VALUES {kinds}"))
    engine.dispose()
    return url


def test_an_object_with_one_key_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    lines = JsonLines(written(tmp_path, "a", '{"a": 1}\n\n{"b": [{"a": 1, "c": 2, "a": 3}]}\n'))

    with pytest.raises(BadSource, match=r"line 3 \(at byte 10\) has an object with the key 'a' twice"):
        read(lines)


@pytest.mark.parametrize("is_file", [True, False])
def test_a_line_is_numbered_from_the_beginning_wherever_it_is_read_on(
    is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = '1\n\n2\n3\n4\n"\n'
    path = written(tmp_path, "a", given) if is_file else "-"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given.encode())))
    cursor = len(given.encode()) - 4

    with pytest.raises(BadSource, match=rf"{'/a' if is_file else 'standard input'}: line 6 \(at byte {cursor + 2}\)"):
        read(JsonLines(path), 2, cursor)


@pytest.mark.parametrize("is_file", [True, False])
def test_a_row_is_numbered_from_the_beginning_wherever_it_is_read_on(
    is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = 'a,b\n1,"x\ny"\n2,z\n3\n'
    path = written(tmp_path, "a", given) if is_file else "-"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given.encode())))

    with pytest.raises(BadSource, match=r"the row that ends in line 5 \(at byte 16\) has 1 fields"):
        read(CsvFile(path), 2, 12)


def test_a_file_that_is_not_there_may_come_and_is_not_bad(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as found:
        read(JsonLines(tmp_path / "none"))

    assert not isinstance(found.value, BadSource)
