"""An application with webhooks (see inbox.py). What it is told of them goes into a file, if one is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.system.pace import paced_by_environment
from workq import WorkQueue
from workq.webhooks import Notice, Webhooks

APP = "tests.system.postman:wq"
NOTICES = "POSTMAN_NOTICES"
wq = WorkQueue(times=paced_by_environment())


def note(notice: Notice) -> None:
    """A line each."""
    if NOTICES in os.environ:
        with Path(os.environ[NOTICES]).open("a") as file:
            file.write(json.dumps(notice.as_json()) + "\n")


webhooks = Webhooks(wq, on_notice=note)
