"""Where the programs of private servers are: on this machine, or in a folder with another Debian.

    LAB_ROOT=.newer/trixie       run the servers that are installed in there (scripts/install-newer-servers.sh)
    LAB_PRODUCTS=valkey,mysql    take these in the place of Redis and MariaDB
    LAB_KAFKA=4.0.2              run this version of Kafka, from the jars that scripts/install-jars.sh has fetched

A server of a folder sees that folder's /usr and /etc in the place of ours, and all else as it is: /tmp, /proc, /dev and
the network. So its programs, libraries and accounts are those of its Debian, and paths, ports and pids mean the same on
both sides. The two bind mounts are in a mount namespace that only its processes have: the kernel removes them with the
last of these, however that ends, and nobody else ever sees them. Only root may do that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

ROOT: Final = "LAB_ROOT"
PRODUCTS: Final = "LAB_PRODUCTS"
KAFKA_VERSION: Final = "LAB_KAFKA"
KNOWN_PRODUCTS: Final = ("valkey", "mysql")

PATH: Final = os.pathsep.join([os.defpath, "/usr/local/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"])

_ENTER: Final = 'mount --bind "$1/etc" /etc && mount --bind "$1/usr" /usr && shift && exec "$@"'
"""What the shell does in the new namespace before it becomes the program: the pid stays the same."""


class ServerMissing(RuntimeError):
    """The server's binary is not on this machine. The message names the Debian package."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of this machine (no root), or of the Debian in a folder."""

    root: Path | None = None
    enter: tuple[str, ...] = ()
    """The words before each command: what leads it into a namespace."""

    @classmethod
    def chosen(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """What the environment says.

        Raises:
            ServerMissing: it names a folder with no Debian in it, or we may not enter it.
        """
        told = environment.get(ROOT)
        if not told:
            return cls()
        root = Path(told).absolute()
        if not (root / "etc" / "passwd").is_file():
            raise ServerMissing(f"{ROOT}={told} has no Debian in it: scripts/install-newer-servers.sh fetches one")
        if os.geteuid() != 0:
            raise ServerMissing(f"{ROOT}={told} needs root: its servers run in a mount namespace")
        return cls(root)

    def find(self, program: str, *, package: str, places: Sequence[Path] = ()) -> str:
        """The path of a program: in these places first, then as the user finds it, then where Debian puts servers.

        Raises:
            ServerMissing: it is not installed; the message says how to install it.
        """
        if self.root is None:
            path = shutil.which(program, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", ""), PATH]))
            if path is None:
                raise ServerMissing(f"{program} is not installed: apt-get install {package}")
            return path
        for place in [*map(str, places), *PATH.split(os.pathsep)]:
            if os.path.lexists(self.seen_from_here(Path(place) / program)):  # where its link leads is for inside
                return f"{place}/{program}"
        raise ServerMissing(f"{program} is not installed in {self.root}: it has no package {package}")

    def folders(self, pattern: str) -> list[Path]:
        """The folders below / that fit, as the program sees them."""
        root = self.root or Path("/")
        return [Path("/") / found.relative_to(root) for found in root.glob(pattern)]

    def seen_from_here(self, path: Path) -> Path:
        """Where something of /usr or /etc is for us."""
        return path if self.root is None else self.root / path.relative_to("/")

    def account(self, name: str) -> tuple[int, int]:
        """The numbers of a system account and of its group.

        Raises:
            ServerMissing: no package has made it.
        """
        for line in self.seen_from_here(Path("/etc/passwd")).read_text().splitlines():
            words = line.split(":")
            if words[0] == name:
                return int(words[2]), int(words[3])
        raise ServerMissing(f"there is no account {name!r}: the package of the server makes it")

    def command(self, command: Sequence[str], *, run_as: tuple[int, int] | None = None) -> list[str]:
        """The words that become this program, in a folder as this user: one process from the start to the end.

        On this machine the user is for whoever starts it: no program is root into which a library may be loaded first.
        """
        if self.root is None:
            return [*self.enter, *command]
        user = []
        if run_as is not None:
            user = ["setpriv", f"--reuid={run_as[0]}", f"--regid={run_as[1]}", "--clear-groups", "--"]
        inside = ["unshare", "--mount", "--", "sh", "-c", _ENTER, "sh", str(self.root)]
        return [*self.enter, *inside, *user, *command]


def find_program(program: str, *, package: str, places: Sequence[Path] = ()) -> str:
    """The path of a server's program, on this machine or in the folder that the environment names.

    Raises:
        ServerMissing: it is not installed; the message says how to install it.
    """
    return Programs.chosen().find(program, package=package, places=places)


def is_chosen(product: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this product is to be taken in the place of the one that speaks as it does.

    Raises:
        ServerMissing: the environment names one that is not known.
    """
    told = [*filter(None, environment.get(PRODUCTS, "").split(","))]
    if unknown := sorted(set(told).difference(KNOWN_PRODUCTS)):
        raise ServerMissing(f"{PRODUCTS}: unknown product {', '.join(unknown)}; known: {', '.join(KNOWN_PRODUCTS)}")
    return product in told
