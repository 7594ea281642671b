"""Which items of a chunk are done: told by the handler, or found by halving; in few calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workq.errors import Cancel
from workq.handlers.retry import Fixed, Retries, retries
from workq.handlers.verdict import Verdict
from workq.jobs.values import Collect
from workq.jobs.verdict import Answered, ChunkOutcome, Raised, WrongVerdict, bisected
from workq.jobs.work import Chunk, work
from workq.values import codec
from workq.values.task import Claim, FailedItem, Result

Handler = Callable[[list[Any]], object]


def claimed(payload: str, *, failures: int = 0, failures_max: int = 5) -> Claim:
    return Claim("1", "index", "default", payload, 1, "t", failures, 0, failures_max, 3, "2", False, None, None)


def played(items: list[Any], handler: Handler, *, is_last: bool = False) -> tuple[ChunkOutcome, list[list[Any]]]:
    """What came of a chunk, and the calls."""
    calls: list[list[Any]] = []
    steps = bisected(items, is_last=lambda _part, _error: is_last)
    part = next(steps)
    while True:
        calls.append([items[place] for place in part])
        try:
            answer: Answered | Raised = Answered(handler(calls[-1]))
        except Exception as error:
            answer = Raised(error)
        try:
            part = steps.send(answer)
        except StopIteration as end:
            return end.value, calls


def allergic(*bad: Any) -> Handler:
    """Raises when one of these is among its items."""

    def handler(items: list[Any]) -> None:
        if found := set(bad).intersection(items):
            raise ValueError(f"cannot do {min(found)}")

    return handler


@given(st.integers(1, 700), st.data())
def test_one_bad_item_is_found_and_all_others_are_done_in_few_calls(size: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, size - 1))
    worked, calls = played(list(range(size)), allergic(bad))

    assert set(worked.failed) == {bad}
    assert str(worked.failed[bad][0]) == f"cannot do {bad}"
    assert not worked.unknown
    assert len(calls) <= math.ceil(2 * math.log2(size) + 2)
    done = [item for call in calls if bad not in call for item in call]
    assert sorted(done) == [item for item in range(size) if item != bad], "each of the others in one good call"


@given(st.integers(1, 64), st.sets(st.integers(0, 63), max_size=8))
def test_in_the_last_attempt_every_bad_item_is_found(size: int, bad: set[int]) -> None:
    worked, calls = played(list(range(size)), allergic(*bad), is_last=True)

    mine = {item for item in bad if item < size}
    assert set(worked.failed) == mine
    assert not worked.unknown
    assert sorted(item for call in calls if not mine.intersection(call) for item in call) == sorted(
        set(range(size)) - mine
    )


def test_where_both_halves_raise_it_is_rather_the_world_and_the_rest_waits() -> None:
    worked, calls = played(list(range(100)), allergic(*range(100)))

    assert len(calls) == 3
    assert set(worked.unknown) == set(range(100))
    assert not worked.failed


@pytest.mark.parametrize(
    ("answer", "failed", "skipped"),
    [
        (None, {}, set()),
        ({}, {}, set()),
        ({"b": "no"}, {1: "no"}, set()),
        (Verdict({"b": "no"}, ["a", "b"]), {1: "no"}, {0}),
        (Verdict([("c", "never")]), {2: "never", 3: "never"}, set()),
    ],
)
def test_what_a_handler_answers_is_of_the_items_that_are_named(
    answer: object, failed: dict[int, object], skipped: set[int]
) -> None:
    worked, calls = played(["a", "b", "c", "c"], lambda _: answer)

    assert {place: error for place, (error, _) in worked.failed.items()} == failed
    assert worked.skipped == skipped
    assert len(calls) == 1


def test_items_that_cannot_be_keys_are_named_in_pairs() -> None:
    worked, _ = played([{"id": 1}, {"id": 2}], lambda _: Verdict([({"id": 2}, "no")], [{"id": 1}]))

    assert set(worked.failed) == {1}
    assert worked.skipped == {0}


def test_results_are_of_the_items_that_are_named_and_have_not_failed() -> None:
    verdict = Verdict({"b": "no"}, results={"a": 1, "b": 2, "c": None})

    worked, _ = played(["a", "b", "c", "c", "d"], lambda _: verdict)

    assert worked.results == {0: 1, 2: None, 3: None}


@pytest.mark.parametrize("answer", [{"z": "no"}, Verdict(skipped=["z"]), Verdict(results={"z": 1}), 7, "all", ["a"]])
def test_an_answer_for_other_items_or_that_says_nothing_is_no_verdict(answer: object) -> None:
    with pytest.raises(WrongVerdict):
        played(["a", "b"], lambda _: answer)


class TestChunk:
    """What is settled of it."""

    @staticmethod
    def outcome(
        items: list[Any],
        handler: Handler,
        *,
        failures: int = 0,
        policy: Retries | None = None,
        collect: Collect = Collect.NONE,
        **flags: bool,
    ) -> Any:
        payload = codec.encode({"a": [items], "k": {"index": "v2"}}, path="payload")
        chunk = Chunk(
            claimed(payload, failures=failures),
            codec.decode(payload)["a"][0],
            {"index": "v2"},
            policy or retries(Fixed(7.0), None, None),
            collect=collect,
        )
        stops = flags.get("stops", False)
        work(handler, chunk, stops=lambda: stops, is_whole=lambda: flags.get("is_whole", False))
        return chunk.outcome(Random(0))

    def test_what_has_failed_is_tried_again_alone_and_later(self) -> None:
        found = self.outcome(["a", "b", "c"], lambda _: {"b": "no"})

        assert (found.succeeded, found.failed, found.again) == (2, (), '{"a":[["b"]],"k":{"index":"v2"}}')
        assert found.delay_s > 0.0
        assert found.error == "no"

    def test_what_has_no_failures_left_has_failed_for_good(self) -> None:
        found = self.outcome(["a", "b"], lambda _: {"b": "no"}, failures=4)

        assert (found.succeeded, found.again) == (1, None)
        [item] = found.failed
        assert isinstance(item, FailedItem)
        assert (item.item, item.failures, item.error) == ('"b"', 5, "no")

    def test_a_bad_item_that_was_found_by_halving_has_used_its_failures(self) -> None:
        found = self.outcome(list(range(500)), allergic(77))

        assert (found.succeeded, found.again) == (499, None)
        assert [(one.item, one.error.partition("\n")[0]) for one in found.failed] == [
            ("77", "ValueError: cannot do 77")
        ]
        assert found.failed[0].failures >= 5

    def test_what_the_handler_gives_up_on_is_not_tried_again(self) -> None:
        policy = retries(Fixed(7.0), None, ValueError)

        found = self.outcome([1, 2], allergic(2), policy=policy)

        assert (found.succeeded, found.again, len(found.failed)) == (1, None, 1)

    def test_bad_items_in_both_halves_take_no_others_with_them_when_the_handler_gives_up_on_that(self) -> None:
        policy = retries(Fixed(7.0), None, ValueError)

        found = self.outcome(list(range(100)), allergic(7, 70), policy=policy)

        assert (found.succeeded, found.again) == (98, None)
        assert [one.item for one in found.failed] == ["7", "70"]

    def test_what_all_have_failed_of_is_raised_as_of_any_task(self) -> None:
        with pytest.raises(ValueError, match="cannot do"):
            self.outcome(list(range(10)), allergic(*range(10)))

    def test_a_chunk_that_may_not_be_halved_fails_as_a_whole(self) -> None:
        with pytest.raises(ValueError, match="cannot do 3"):
            self.outcome(list(range(10)), allergic(3), is_whole=True)

    @pytest.mark.parametrize(
        ("collect", "told", "kept"), [("none", 0, 0), ("count", 300, 0), ("sample", 300, 100), ("all", 300, 300)]
    )
    def test_of_its_results_as_many_are_settled_as_may_be_kept(self, collect: str, told: int, kept: int) -> None:
        def handler(items: list[int]) -> Verdict:
            return Verdict(results=[(item, {"is": item}) for item in items])

        found = self.outcome(list(range(300)), handler, collect=Collect(collect))

        assert (found.succeeded, found.told, len(found.results)) == (300, told, kept)
        assert found.results[:1] == (Result("0", '{"is":0}'),)[: min(1, kept)]

    def test_what_is_tried_again_has_no_result_yet_and_of_the_halves_that_answered_there_are_some(self) -> None:
        def handler(items: list[int]) -> Verdict:
            if 7 in items:
                raise ValueError("cannot do 7")
            return Verdict({3: "no"} if 3 in items else {}, results=[(item, -item) for item in items])

        found = self.outcome(list(range(10)), handler, collect=Collect.ALL)

        assert sorted(int(one.item) for one in found.results) == [0, 1, 2, 4, 5, 6, 8, 9]
        assert found.again is not None

    def test_a_result_that_json_cannot_carry_does_not_undo_the_work(self) -> None:
        found = self.outcome([1], lambda _: Verdict(results={1: object()}), collect=Collect.ALL)

        [result] = found.results
        assert (found.succeeded, result.value) == (1, None)
        assert "result_error" in (result.note or "")

    def test_one_that_is_to_stop_halves_no_further(self) -> None:
        with pytest.raises(Cancel):
            self.outcome(list(range(10)), allergic(3), stops=True)

    def test_each_call_gets_the_items_as_they_are_recorded_whatever_the_one_before_has_changed(self) -> None:
        done: dict[int, int] = {}

        def handler(rows: list[dict[str, int]]) -> None:
            for row in rows:
                row["price"] *= 100
            if 2 in [row["id"] for row in rows]:
                raise ValueError("the shop is busy")
            done.update((row.pop("id"), row["price"]) for row in rows)
            rows.clear()

        found = self.outcome([{"id": number, "price": 5} for number in range(8)], handler, failures=2)

        assert done == {number: 500 for number in range(8) if number != 2}
        assert [one.item for one in found.failed] == ['{"id":2,"price":5}']
        assert found.succeeded == len(done)

    def test_what_is_tried_again_is_as_it_was_recorded_when_an_answer_names_what_was_changed(self) -> None:
        def handler(rows: list[dict[str, int]]) -> dict[Any, Any] | Verdict:
            for row in rows:
                row["price"] *= 100
            rows.reverse()
            return Verdict([(rows[0], "busy")], skipped=[rows[1]], results=[(rows[2], "done")])

        found = self.outcome([{"id": number, "price": 5} for number in range(3)], handler, collect=Collect.ALL)

        assert (found.succeeded, found.skipped) == (1, 1)
        assert found.again == '{"a":[[{"id":2,"price":5}]],"k":{"index":"v2"}}'
        assert found.results == (Result('{"id":0,"price":5}', '"done"'),)

    def test_an_attempt_of_one_call_whose_answer_names_nothing_decodes_nothing_again(self) -> None:
        chunk = Chunk(claimed("never read"), [{"id": 1}, {"id": 2}], {}, retries(None, None, None))

        work(lambda _: None, chunk, stops=lambda: False, is_whole=lambda: False)

        assert chunk.outcome(Random(0)).succeeded == 2

    def test_what_waits_because_both_halves_have_raised_is_as_it_was_recorded(self) -> None:
        def handler(rows: list[dict[str, int]]) -> None:
            for row in rows:
                row["price"] *= 100
            if {4, 7} & {row["id"] for row in rows}:
                raise ValueError("the shop is busy")

        rows = [{"id": number, "price": 5} for number in range(8)]
        found = self.outcome(rows, handler)

        assert (found.succeeded, found.failed) == (4, ())
        assert codec.decode(found.again)["a"] == [rows[4:]]

    @pytest.mark.parametrize(
        "name",
        [
            lambda row, _: row,
            lambda row, _: dict(row),
            lambda _, before: before,
        ],
        ids=["the object itself", "what is like it now", "what is like it as it was"],
    )
    def test_an_item_that_was_changed_is_known_by_itself_and_by_what_it_is_and_was(
        self, name: Callable[[Any, Any], Any]
    ) -> None:
        def handler(rows: list[dict[str, int]]) -> Verdict:
            before = [dict(row) for row in rows]
            for row in rows:
                row["price"] *= 100
            return Verdict([(name(rows[1], before[1]), "busy")])

        found = self.outcome([{"id": number, "price": 5} for number in range(3)], handler)

        assert (found.succeeded, found.again) == (2, '{"a":[[{"id":1,"price":5}]],"k":{"index":"v2"}}')

    def test_items_that_are_recorded_alike_have_the_same_verdict_when_one_of_them_was_changed(self) -> None:
        def handler(rows: list[dict[str, int]]) -> Verdict:
            rows[0]["price"] *= 100
            return Verdict([(rows[0], "busy")])

        found = self.outcome([{"price": 5}, {"price": 6}, {"price": 5}], handler)

        assert (found.succeeded, found.again) == (1, '{"a":[[{"price":5},{"price":5}]],"k":{"index":"v2"}}')

    def test_a_changed_item_is_known_by_itself_though_another_was_like_it(self) -> None:
        def handler(rows: list[dict[str, int]]) -> Verdict:
            for row in rows:
                row["n"] += 1
            return Verdict([(rows[0], "busy")])

        assert self.outcome([{"n": 1}, {"n": 2}], handler).again == '{"a":[[{"n":1}]],"k":{"index":"v2"}}'

    def test_a_copy_that_may_be_one_item_or_another_names_none(self) -> None:
        def handler(rows: list[dict[str, int]]) -> Verdict:
            for row in rows:
                row["n"] += 1
            return Verdict([(dict(rows[0]), "busy")])

        with pytest.raises(WrongVerdict, match=r"may be several of them.*name the very object"):
            self.outcome([{"n": 1}, {"n": 2}], handler)

    def test_an_object_of_another_call_that_was_changed_there_is_not_of_this_one(self) -> None:
        seen: list[Any] = []

        def handler(rows: list[dict[str, int]]) -> Verdict | None:
            seen.append(rows[0])
            rows[0]["n"] += 10
            if len(rows) == 2:
                raise ValueError("find out")
            return Verdict([(seen[0], "busy")]) if len(seen) == 3 else None

        with pytest.raises(WrongVerdict, match="not given"):
            self.outcome([{"n": 1}, {"n": 2}], handler)
