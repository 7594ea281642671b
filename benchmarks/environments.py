"""Each peer in an environment of its own, below `.bench/`, with the versions that `requirements/<family>.txt` pins.

An environment is made when it is missing or its requirements have changed, by pip alone; a run that was interrupted
leaves one without its mark, and it is made again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
ENVIRONMENTS = Path(__file__).parent.parent / ".bench"
INSTALL_LIMIT_S = 600.0
_MARK = "installed.txt"


class EnvironmentFailed(RuntimeError):
    """pip could not install; the message ends with its last lines."""


def interpreter(family: str | None) -> Path:
    """The Python of a family's environment, which is made first where needed. None is the driver's own.

    Raises:
        EnvironmentFailed: it could not be made; nothing of it is left that would be taken for complete.
    """
    if family is None:
        return Path(sys.executable)
    folder, wanted = ENVIRONMENTS / family, (REQUIREMENTS / f"{family}.txt").read_text()
    python, mark = folder / "bin" / "python", folder / _MARK
    if mark.exists() and mark.read_text() == wanted and python.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--requirement", str(REQUIREMENTS / f"{family}.txt")])
    mark.write_text(wanted)
    return python


def versions(family: str) -> dict[str, str]:
    """What the environment holds, as its requirements pin it: distribution to version."""
    lines = (REQUIREMENTS / f"{family}.txt").read_text().splitlines()
    pins = (line.partition("==") for line in lines if "==" in line and not line.startswith("#"))
    return {name.strip(): version.strip() for name, _, version in pins}


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailed(f"{' '.join(command)} took longer than {INSTALL_LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise EnvironmentFailed(f"{' '.join(command)} ended with {done.returncode}:\n{last}")
