"""An application with webhooks (see inbox.py)."""

from __future__ import annotations

import os

from workq import Times, WorkQueue
from workq.webhooks import Webhooks

APP = "tests.system.postman:wq"
wq = WorkQueue(times=Times().divided_by(float(os.environ.get("WITNESS_DIVIDE", "1"))))
webhooks = Webhooks(wq)
