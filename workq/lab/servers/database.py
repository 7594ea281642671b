"""What the private SQL servers share: a user and a database named `workq`, and more databases on demand."""

from __future__ import annotations

import re
import secrets
from abc import abstractmethod

from workq.lab.servers.server import Server


class DatabaseServer(Server):
    """A private SQL server. A subclass says how to reach a database, and how to make one."""

    @property
    def url(self) -> str:
        return self._url("workq")

    def create_database(self, name: str | None = None) -> str:
        """Make an empty database and return its URL. The name: a letter, then letters, digits, underscores; or new."""
        name = name or f"db_{secrets.token_hex(6)}"
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,62}", name):
            raise ValueError(f"{name!r} is no name for a database: a letter, then letters, digits and underscores")
        self._create_database(name)
        return self._url(name)

    @abstractmethod
    def _url(self, database: str) -> str:
        """Where a client connects to this database of the server."""

    @abstractmethod
    def _create_database(self, name: str) -> None:
        """Make it on the running server. The name is checked: it may stand in quotes in a statement."""
