"""Chunks: items become the payloads of subtasks. One that is larger than a payload may be is halved.

A partition is a subtask of its own. The cursor that its handler is called with stands beside it, in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workq.errors import PayloadError
from workq.values import codec
from workq.values.task import NewSubtask


class Unfit(Exception):
    """An item that no subtask can carry."""

    def __init__(self, item: Any, error: PayloadError) -> None:
        super().__init__(str(error))
        self.item = item
        self.error = error


def chunks(items: Sequence[Any], params: Mapping[str, Any], *, payload_max_bytes: int) -> Iterator[NewSubtask | Unfit]:
    """One subtask of all of these items, called with these parameters; or, where it would be too large, several."""
    parts = [items]
    while parts:
        part = parts.pop()
        try:
            payload = codec.encode({"a": [part], "k": params}, path="items", max_bytes=payload_max_bytes)
        except PayloadError as error:
            if len(part) == 1:
                yield Unfit(part[0], error)
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            continue
        yield NewSubtask(codec.new_task_id(), payload, len(part))


def partition(
    item: Any, begins: str | None, params: Mapping[str, Any], *, payload_max_bytes: int
) -> NewSubtask | Unfit:
    """The subtask of a partition, which goes on at a cursor, as JSON; None: at its beginning."""
    try:
        payload = codec.encode({"a": [item, None], "k": params}, path="partition", max_bytes=payload_max_bytes)
    except PayloadError as error:
        return Unfit(item, error)
    return NewSubtask(codec.new_task_id(), payload, 1, begins)
