"""An application with webhooks (see inbox.py). What it is told of them goes into a file, if one is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

from workq import Times, WorkQueue
from workq.webhooks import Notice, Webhooks

APP = "tests.system.postman:wq"
NOTICES = "POSTMAN_NOTICES"
wq = WorkQueue(times=Times().divided_by(float(os.environ.get("WITNESS_DIVIDE", "1"))))


def note(notice: Notice) -> None:
    """A line each."""
    if NOTICES in os.environ:
        with Path(os.environ[NOTICES]).open("a") as file:
            file.write(json.dumps(notice.as_json()) + "\n")


webhooks = Webhooks(wq, on_notice=note)
