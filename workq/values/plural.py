"""Numbers agree with their nouns: `1 task is`, `5 tasks are`."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """So many of what is named in the singular, and in the plural where that is not the usual one."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
