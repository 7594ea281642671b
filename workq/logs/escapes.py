"""Escapes: text of unknown origin as one line that moves no cursor and forges no line."""

from __future__ import annotations


def escaped(text: str) -> str:
    r"""The text on one line: line breaks, control, format and bidirectional characters as `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def in_one_line(text: str) -> str:
    """The same, where line breaks and tabs between words say nothing: each run of white space is one blank."""
    return escaped(" ".join(text.split()))
