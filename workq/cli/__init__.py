"""The command line. Each command is one call into the package and one way to print what came of it.

Standard output carries data alone (a table, or one JSON document with `-o json`); everything said to a person goes to
standard error. What fails is one line, `workq: error: ...`, without a traceback unless `-v` asks for it, and without a
password.

Exit statuses:

    0    done
    1    the operation failed, or found nothing
    2    usage or configuration: nothing was changed
    3    finished, with failures or findings
    4    a server is unreachable, or the ledger's file was deleted or replaced meanwhile
    5    timed out
    6    refused: a confirmation is missing
    130  interrupted; 143 terminated

Commands are loaded when they are used: `workq --help` imports neither SQLAlchemy nor the clients of the servers.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from workq.cli.exits import hold_back
from workq.values.begin import begin

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command that `sys.argv` names, and end the process with its exit status."""
    hold_back()
    begin()
    from workq.cli.root import run

    status = run(sys.argv[1:])
    logs = sys.modules.get("workq.logs")
    if logs is not None and not logs.flush():
        os._exit(status)  # nobody takes what was logged, and Python's own end would wait for it
    sys.exit(status)
