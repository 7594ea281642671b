"""The application, as `workq worker --app workq.demo.webhooks.application:wq` serves it: it delivers webhooks.

Where the stores are, and where webhooks may go, comes from the settings, as for every application. A receiver that
answers 429 is left alone for `THROTTLED_MIN_S` at least: that is a minute by default, and longer than a demo may take.
"""

from __future__ import annotations

from workq import WorkQueue
from workq.demo.webhooks.roles import THROTTLED_MIN_S
from workq.webhooks import Webhooks

wq = WorkQueue()
webhooks = Webhooks(wq, throttled_min_s=THROTTLED_MIN_S)
