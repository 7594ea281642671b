"""Pages of the documentation, and the fenced blocks in them.

A block is told apart by its language. One of these comments may stand before one:

    <!-- not executed: REASON -->   nobody runs it here; the tests count and print these
    <!-- executed by: FILE -->      this test does it, with servers of its own
    <!-- figures vary -->           numbers in the expected output, other than 0, stand for any number

A block whose first line is `# name.ext` is a file of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_FENCE: Final = re.compile(r"(`{3,})\s*(\S*)\s*")
_NOT_EXECUTED: Final = re.compile(r"<!-- not executed: (.+) -->")
_EXECUTED_BY: Final = re.compile(r"<!-- executed by: (\S+) -->")
_FILE: Final = re.compile(r"# ([A-Za-z0-9_.-]+\.[a-z]+)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `line` is that of its opening fence."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not executed; None when it is."""
    executed_by: str | None
    """The file of the test that executes it, where that is another one than that of its page."""
    is_figures_vary: bool

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that it is, or None."""
        found = _FILE.fullmatch(self.text.partition("\n")[0])
        return found[1] if found else None


def pages() -> list[str]:
    """Every page, as its path in the repository."""
    docs = sorted(path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docs").rglob("*.md"))
    return ["README.md", *docs]


def text_of(page: str) -> str:
    """What stands there."""
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    lines = text_of(page).splitlines()
    comments: list[str] = []
    at = 0
    while at < len(lines):
        opened = _FENCE.fullmatch(lines[at])
        if opened is None:
            if lines[at].startswith("<!--"):
                comments.append(lines[at].strip())
            elif lines[at].strip():
                comments.clear()
            at += 1
            continue
        end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == opened[1]), None)
        if end is None:
            raise AssertionError(f"{page}:{at + 1}: this block is never closed")
        reasons = [found[1] for comment in comments if (found := _NOT_EXECUTED.fullmatch(comment))]
        elsewhere = [found[1] for comment in comments if (found := _EXECUTED_BY.fullmatch(comment))]
        yield Block(
            page,
            at + 1,
            opened[2],
            "\n".join(lines[at + 1 : end]),
            reasons[-1] if reasons else None,
            elsewhere[-1] if elsewhere else None,
            "<!-- figures vary -->" in comments,
        )
        comments.clear()
        at = end + 1


def prose(page: str) -> str:
    """The page without its blocks."""
    kept, fence = [], ""
    for line in text_of(page).splitlines():
        found = _FENCE.fullmatch(line)
        if fence:
            fence = "" if line.strip() == fence else fence
        elif found is not None:
            fence = found[1]
        else:
            kept.append(line)
    return "\n".join(kept)
