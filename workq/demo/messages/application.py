"""The application, as `workq worker --app workq.demo.messages.application:wq` serves it: it sends messages.

Where the stores are, and where messages may go, comes from the settings, as for every application.
"""

from __future__ import annotations

from workq import WorkQueue
from workq.messages import Messages

wq = WorkQueue()
messages = Messages(wq)
