"""How a command ends: the exit statuses, in one place."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
FINDINGS: Final = 3
UNREACHABLE: Final = 4
TIMED_OUT: Final = 5
REFUSED: Final = 6
INTERRUPTED: Final = 130
TERMINATED: Final = 143

TABLE: Final = """\
  0    done
  1    the operation failed, or found nothing
  2    usage or configuration: nothing was changed
  3    finished, with failures or findings (doctor, audit, meters, db status, job watch, sweep --apply, a --dry-run)
  4    a server is unreachable, or the ledger's file was deleted or replaced meanwhile
  5    timed out (task show --wait; job watch --timeout; queue drain; audit with tasks that could not be proved in time)
  6    refused: a confirmation is missing, a plan is not for this ledger, the job runs already or has nothing to retry
  130  interrupted (Ctrl-C)
  143  terminated (SIGTERM)
"""
