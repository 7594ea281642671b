"""An application with messages, and a kind of destination of its own: a folder that keeps what it is sent.

`got.jsonl` has a line for each message that the destination has taken. `manner.json` says how it behaves: the fault
that it answers with, in the place of a confirm, and for which bodies.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.system.pace import paced_by_environment
from workq import WorkQueue
from workq.config.addresses import Allowed
from workq.errors import ConfigError
from workq.messages import (
    Answer,
    Confirmed,
    DestinationAddress,
    DestinationLink,
    Kind,
    Messages,
    Posting,
    SendFault,
    Unsent,
)
from workq.messages.kinds.registry import KindOf

APP = "tests.system.box:wq"


class BoxLink(DestinationLink):
    """Appends to the file of its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def send(self, postings: Sequence[Posting], *, timeout_s: float) -> list[Answer]:
        if hangs(self.folder):
            keep(self.folder, postings[0], "hung.jsonl")
        ends_at = time.monotonic() + timeout_s
        while hangs(self.folder):
            if time.monotonic() > ends_at:
                return [Unsent(SendFault.LATE, "no confirm")] * len(postings)
            time.sleep(0.02)
        return [self._one(one) for one in postings]

    def _one(self, posting: Posting) -> Answer:
        manner = manner_of(self.folder)
        is_meant = manner.get("body") in (None, posting.body.decode("utf-8", "replace"))
        if manner.get("fault") and is_meant:
            if manner["fault"] == SendFault.LATE:  # it has arrived all the same
                keep(self.folder, posting)
            return Unsent(SendFault(manner["fault"]), f"the box is {manner['fault']}", manner.get("after_s"))
        keep(self.folder, posting)
        return Confirmed("the box")

    def test(self, *, timeout_s: float) -> list[str]:
        return [] if self.folder.is_dir() else [f"{self.folder} is not there"]

    def close(self) -> None:
        """Nothing is open."""


class Box(Kind):
    """A folder."""

    name = "box"

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        if "folder" not in options or options.keys() - {"folder", "url"}:
            raise ConfigError("box: need folder")
        return dict(options)

    def open(self, address: DestinationAddress, *, allowed: Allowed) -> DestinationLink:
        return BoxLink(Path(address.options["folder"]))


def hangs(folder: Path) -> bool:
    """Whether the destination takes connections and confirms nothing."""
    return manner_of(folder).get("fault") == "hang"


def keep(folder: Path, posting: Posting, file_name: str = "got.jsonl") -> None:
    """A line for a message that was taken; or, in `hung.jsonl`, for a call that hangs."""
    told = {"id": posting.id, "sending": posting.sending, "body": posting.body.decode("utf-8", "replace")}
    told |= {"key": posting.key, "headers": dict(posting.headers), "content_type": posting.content_type}
    with (folder / file_name).open("a") as file:
        file.write(json.dumps(told | {"at": time.time(), "pid": os.getpid()}) + "\n")


def got(folder: Path, file_name: str = "got.jsonl") -> list[dict[str, Any]]:
    """What the destination has taken; or the first message of each call that hung."""
    file = folder / file_name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def manner_of(folder: Path) -> dict[str, Any]:
    """How the destination behaves."""
    file = folder / "manner.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def behave(folder: Path, **manner: Any) -> None:
    """Let the destination behave so from now on."""
    (folder / "manner.new").write_text(json.dumps(manner))
    (folder / "manner.new").rename(folder / "manner.json")


def box_of(name: str) -> Kind:
    """The kind of the name `box`."""
    if name != Box.name:
        raise ConfigError(f"kind: need box, got {name!r}")
    return Box()


kinds: KindOf = box_of
wq = WorkQueue(times=paced_by_environment())
messages = Messages(wq, kind_of=kinds)
