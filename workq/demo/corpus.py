"""The texts that the demo indexes: what there is, how it is cut into slices, and how a worker reads one slice.

A slice is two numbers that mean something to its corpus alone: a range of code points, or of bytes in a file. So a
subtask's arguments stay small, and every attempt reads the same documents again.

On failure: a corpus that this machine does not have is a ConfigError before anything was started.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
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


@dataclass(frozen=True, slots=True)
class Slice:
    """What one subtask indexes: the documents from `start` to before `end`, in the corpus's own measure."""

    part: int
    start: int
    end: int


class Corpus(Protocol):
    """What every corpus promises. Reading changes nothing."""

    what: str
    """What the documents are, in the plural."""
    question: str
    """A search that has an answer in it."""

    def slices(self, size: int) -> Iterator[Slice]:
        """The whole corpus, cut into slices of `size` documents; the last one may be shorter."""
        ...

    def read(self, start: int, end: int) -> list[Document]:
        """The documents of one slice, the same at every call."""
        ...

    def numbers(self) -> Iterator[int]:
        """The number of every document, each once: what the index must contain in the end."""
        ...


class UnicodeNames:
    """The names of all characters, from the database that Python carries. A document's number is its code point."""

    what = "Unicode character names"
    question = "smiling cat"

    def slices(self, size: int) -> Iterator[Slice]:
        """Ranges of code points with `size` named characters each."""
        numbers = self.numbers()
        part = 0
        while chunk := list(islice(numbers, size)):
            yield Slice(part, chunk[0], chunk[-1] + 1)
            part += 1

    def read(self, start: int, end: int) -> list[Document]:
        """The named characters of a range of code points."""
        return [
            Document(code_point, f"{chr(code_point)} U+{code_point:04X}", name)
            for code_point in range(start, end)
            if (name := unicodedata.name(chr(code_point), None)) is not None
        ]

    def numbers(self) -> Iterator[int]:
        """Every code point that has a name."""
        return (number for number in range(sys.maxunicode + 1) if unicodedata.name(chr(number), None) is not None)


class DebianPackages:
    """The short descriptions of the packages that this machine's package manager knows, one JSON line for each.

    The file is written once, by `write`; workers read slices of it by byte offset.
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

    def slices(self, size: int) -> Iterator[Slice]:
        """Ranges of bytes with `size` lines each."""
        with self.file.open("rb") as lines:
            part = start = 0
            while chunk := list(islice(lines, size)):
                end = start + sum(map(len, chunk))
                yield Slice(part, start, end)
                part, start = part + 1, end

    def read(self, start: int, end: int) -> list[Document]:
        """The packages of a range of bytes that begins and ends between lines."""
        with self.file.open("rb") as lines:
            lines.seek(start)
            return [Document(*json.loads(line)) for line in lines.read(end - start).splitlines()]

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
