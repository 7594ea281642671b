"""A ledger in one file with a way in, and the processes that serve it, as tests start and kill them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system.fleet import PATIENCE, processes_of, wait_until
from tests.zygote import FORKED_WITH, Forked, zygote
from workq import WorkQueue
from workq.messages.destinations import Destinations
from workq.messages.intakes import MessageIntake, MessageIntakes
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import MessageRow, WhichMessages

LONG_S = 30.0


class WayIn:
    """The ledger of one test. `orders` and `bills` are destinations, which nothing is sent to: no worker runs."""

    def __init__(self, folder: Path, *, environ: Mapping[str, str] | None = None, app: WorkQueue | None = None) -> None:
        """`environ`, `app`: of a leg; a file in the folder, by default."""
        self.folder = folder
        url = f"sqlite:///{folder / 'workq.db'}"
        place = environ or {"WORKQ_LEDGER_URL": url}
        self.environ = {**os.environ, **FORKED_WITH, **place, "WORKQ_MESSAGE_ALLOW": "loopback"}
        self.app = app or WorkQueue(ledger=url)
        self._logs = 0
        for name in ("orders", "bills"):
            Destinations(self.app).add(name, kind="call", handler="nowhere.nothing")

    def add(self, name: str = "in", **given: Any) -> MessageIntake:
        return MessageIntakes(self.app).add(name, **given)

    def intake(self, name: str = "in") -> MessageIntake:
        return MessageIntakes(self.app).get(name)

    @property
    def ledger(self) -> MessageLedger:
        return self.app.stores.ledger.part(MessageLedger)

    def offsets(self) -> dict[int, int | None]:
        return {one.part: one.next_offset for one in self.ledger.intakes.offsets("in")}

    def messages(self) -> dict[str, MessageRow]:
        found: dict[str, MessageRow] = {}
        after: str | None = None
        while page := self.ledger.letters.all(WhichMessages(), limit=1000, after=after):
            found |= {one.id: one for one in page}
            after = page[-1].id
        return found

    def body(self, message_id: str) -> bytes | None:
        return self.ledger.letters.body(message_id)

    def wait_for(self, count: int, *, timeout_s: float = LONG_S) -> None:
        """Until so many records were recorded."""
        wait_until(lambda: self.intake().recorded >= count, timeout_s=timeout_s, what=f"{count} records taken in")

    @contextlib.contextmanager
    def running(self, *, processes: int = 1, **environ: str) -> Iterator[Forked]:
        """`workq intake run`; killed with its processes at the end."""
        self._logs += 1
        log_path = self.folder / f"intake-{self._logs}.log"
        args = ["intake", "run", "in", "--processes", str(processes)]
        with log_path.open("wb") as log:
            supervisor = zygote().start(args, cwd=self.folder, env={**self.environ, **environ}, out=log)
        try:
            yield supervisor
        except BaseException:
            print(log_path.read_text(errors="replace")[-5000:])
            raise
        finally:
            for one in children_of(supervisor):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            supervisor.kill()
            supervisor.wait(PATIENCE * LONG_S)

    def command(self, *args: str) -> Any:
        """What a command answers in JSON."""
        status, out, err = zygote().run(
            [*args, "-o", "json"], cwd=self.folder, env=self.environ, stdin=b"", timeout_s=PATIENCE * LONG_S
        )
        assert status == 0, err.decode()
        return json.loads(out)


@pytest.fixture
def way_in(tmp_path: Path) -> Iterator[WayIn]:
    made = WayIn(tmp_path)
    yield made
    made.app.close()


def children_of(supervisor: Forked) -> Sequence[psutil.Process]:
    """The intake processes that live."""
    return processes_of(supervisor.pid)


def end(supervisor: Forked) -> int:
    """SIGTERM; answers the exit status, when it has drained."""
    supervisor.send_signal(signal.SIGTERM)
    return supervisor.wait(PATIENCE * LONG_S)
