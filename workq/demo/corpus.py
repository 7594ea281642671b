"""The texts that the demo indexes: what there is, and how a worker reads some of it.

An item is a number that means something to its corpus alone: a code point, or where a line begins in a file. So a
subtask stays small, and every attempt reads the same documents again.

On failure: a corpus that this machine does not have is a ConfigError before anything was started.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from workq.errors import ConfigError

CORPORA: Final = ("unicode", "debian")

_DPKG_FILES: Final = (Path("/var/lib/dpkg/available"), Path("/var/lib/dpkg/status"))
_APT_LISTS: Final = Path("/var/lib/apt/lists")


@dataclass(frozen=True, slots=True)
class Document:
    """One text to be found. `number` is its identity within the corpus."""

    number: int
    title: str
    text: str


class Corpus(Protocol):
    """What every corpus promises. Reading changes nothing."""

    what: str
    """What the documents are, in the plural."""
    question: str
    """A search that has an answer in it."""

    def items(self, cursor: int | None) -> Iterator[tuple[int, int]]:
        """What there is behind a cursor (None: all), one document after the other, each with the cursor behind it."""
        ...

    def read(self, items: Sequence[int]) -> list[Document]:
        """The documents of these items, the same at every call."""
        ...

    def numbers(self) -> Iterator[int]:
        """The number of every document, each once: what the index must contain in the end."""
        ...


class UnicodeNames:
    """The names of all characters, from the database that Python carries. A document's number is its code point."""

    what = "Unicode character names"
    question = "smiling cat"

    def items(self, cursor: int | None) -> Iterator[tuple[int, int]]:
        """Every code point that has a name; the cursor is the next one."""
        points = range(cursor or 0, sys.maxunicode + 1)
        return ((point, point + 1) for point in points if unicodedata.name(chr(point), None) is not None)

    def read(self, items: Sequence[int]) -> list[Document]:
        """These characters."""
        return [Document(point, f"{chr(point)} U+{point:04X}", unicodedata.name(chr(point))) for point in items]

    def numbers(self) -> Iterator[int]:
        """Every code point that has a name."""
        return (point for point, _ in self.items(None))


class DebianPackages:
    """The short descriptions of the packages that this machine's package manager knows, one JSON line for each.

    The file is written once, by `write`; workers read lines of it. An item is where its line begins.
    """

    what = "Debian package descriptions"
    question = "web server"

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, stanzas: Iterable[str]) -> None:
        """Keep the packages of these lines, as `package_stanzas` gives them.

        Raises:
            ConfigError: there are none.
        """
        with self.file.open("w", encoding="utf-8") as lines:
            for number, (package, description) in enumerate(packages(stanzas)):
                lines.write(json.dumps([number, package, description]) + "\n")
        if not self.file.stat().st_size:
            raise ConfigError("corpus debian: this machine has no list of Debian packages; use --corpus unicode")

    def items(self, cursor: int | None) -> Iterator[tuple[int, int]]:
        """Where each line begins; the cursor is where it ends."""
        with self.file.open("rb") as lines:
            begins = lines.seek(cursor or 0)
            for line in lines:
                yield begins, begins + len(line)
                begins += len(line)

    def read(self, items: Sequence[int]) -> list[Document]:
        """The packages of these lines."""
        with self.file.open("rb") as lines:
            found = []
            for begins in items:
                lines.seek(begins)
                found.append(Document(*json.loads(lines.readline())))
            return found

    def numbers(self) -> Iterator[int]:
        """The ordinal of every package."""
        with self.file.open("rb") as lines:
            for line in lines:
                yield json.loads(line)[0]


def open_corpus(name: str, folder: Path) -> Corpus:
    """The corpus of that name; `folder` is where its file is, if it has one.

    Raises:
        ConfigError: there is no such corpus.
    """
    match name:
        case "unicode":
            return UnicodeNames()
        case "debian":
            return DebianPackages(folder / "corpus.jsonl")
        case _:
            raise ConfigError(f"corpus {name!r} is not known; use one of {', '.join(CORPORA)}")


def packages(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and first line of the description of each stanza (deb822: `Field: value`, a blank line between stanzas)."""
    package = description = ""
    for line in lines:
        if line.startswith("Package:"):
            package = line.partition(":")[2].strip()
        elif line.startswith(("Description:", "Description-en:")):
            description = line.partition(":")[2].strip()
        elif not line.strip():
            if package:
                yield package, description
            package = description = ""
    if package:
        yield package, description


def package_stanzas() -> Iterator[str]:
    """The lines of the longest list of packages on this machine: apt's (its files may be compressed), or else dpkg's.

    Raises:
        ConfigError: apt cannot read its own list.
    """
    apt = shutil.which("apt-cache")
    if apt is not None and any(_APT_LISTS.glob("*_Packages*")):
        with subprocess.Popen(
            [apt, "dumpavail"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace"
        ) as process:
            if process.stdout is not None:
                yield from process.stdout
        if process.returncode != 0:
            raise ConfigError(
                f"corpus debian: `apt-cache dumpavail` ended with {process.returncode}; use --corpus unicode"
            )
        return
    for file in _DPKG_FILES:
        if file.exists() and file.stat().st_size:
            with file.open(encoding="utf-8", errors="replace") as lines:
                yield from lines
            return
