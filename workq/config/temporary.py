"""Where temporary files are made."""

from __future__ import annotations

import tempfile
from pathlib import Path

from workq.errors import ConfigError


def temporary_folder() -> Path:
    """The folder of temporary files: TMPDIR, or what Python takes without it.

    Raises:
        ConfigError: this user may write to none.
    """
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ConfigError(
            f"no folder takes temporary files ({error.strerror}); set TMPDIR to one that this user may write to"
        ) from None
