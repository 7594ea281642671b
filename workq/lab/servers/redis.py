"""A private Redis: its program, its settings, and how it shows that it is ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workq.lab.servers.server import Server, find_program


class Redis(Server):
    """A private Redis that appends to a file (fsync once a second) and never evicts, as production should.

    `kill()` keeps what was written before; `wipe()` and `start()` give the empty Redis that a lost disk leaves.
    """

    name = "Redis"

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        self._server = find_program("redis-server", package="redis-server")
        self._cli = find_program("redis-cli", package="redis-tools")
        super().__init__(folder, options)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        self._data.mkdir(exist_ok=True)

    def _command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._data),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "databases": "16",
        }
        return [self._server, *(word for key, value in settings.items() for word in (f"--{key}", value)), *self.options]

    def _answer(self) -> str | None:
        # Without PING first: INFO is answered while the data is still being loaded, `loading` says so.
        told = self._ask([self._cli, "-h", "127.0.0.1", "-p", str(self.port), *self._login(), "INFO"])
        facts = dict(line.split(":", 1) for line in (told or "").splitlines() if ":" in line)
        if facts.get("process_id") != str(self.pid) or facts.get("loading") != "0":
            return None
        return facts["redis_version"]

    def _login(self) -> list[str]:
        """A password among the options must not lock us out."""
        words = dict(zip(self.options, self.options[1:], strict=False))
        return ["--no-auth-warning", "-a", words["--requirepass"]] if "--requirepass" in words else []


def start_redis(folder: Path | None = None, *, options: Sequence[str] = ()) -> Redis:
    """Start a private Redis; as `start_rabbitmq`, but `options` are arguments of redis-server, and win over ours."""
    return Redis(folder, options).first_start()
