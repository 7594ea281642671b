"""What every engine of the demo's index promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from workq.demo.corpus import Document


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer of a search; a higher score is a better one."""

    title: str
    text: str
    score: float


class Index(Protocol):
    """What every engine promises. Not for use from several threads at once: open one for each."""

    engine: str

    def replace(self, part: int, documents: Sequence[Document]) -> None:
        """Write the documents of one part in place of those that an earlier attempt wrote. Atomic and repeatable."""
        ...

    def numbers(self) -> Iterator[int]:
        """The number of every document in the index, as often as it is in there."""
        ...

    def search(self, words: str, *, limit: int) -> list[Hit]:
        """The documents that contain all of the words, the best first."""
        ...

    def close(self) -> None:
        """Close files. Repeatable."""
        ...
