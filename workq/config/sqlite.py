"""The file of a SQLite ledger: where it is, whether this user may look at it and make it, and who may read it then."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from workq.errors import ConfigError


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite ledger; None for the others."""
    if not url.startswith("sqlite:///"):
        return None
    return Path(url.removeprefix("sqlite:///").partition("?")[0])


def is_there(file: Path) -> bool:
    """Whether there is such a file.

    Raises:
        ConfigError: that cannot be told: this user may not look, or no file can have this name.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"ledger: cannot look at {file} ({why}); let this user into its folder, or set WORKQ_LEDGER_URL"
        ) from None
    return True


def make_private(file: Path) -> None:
    """Make the file of a new ledger, empty, so that this user alone may read it, whatever the umask is.

    SQLite gives the same mode to the files that it makes beside it. A file that is there keeps its mode. What is wrong
    with the place is left to SQLite, which meets it next.
    """
    with suppress(OSError):
        os.close(os.open(os.path.realpath(file), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def check_folder(url: str) -> None:
    """A SQLite file that does not exist yet needs a folder that takes it.

    Raises:
        ConfigError: the folder is missing, or may not be looked at or written to.
    """
    file = sqlite_file(url)
    if file is None or is_there(file):
        return
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"ledger: the folder {folder} does not exist; create it, or set WORKQ_LEDGER_URL")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"ledger: cannot create {file.name} in {folder} (not writable); set WORKQ_LEDGER_URL")
