"""Messages at their time: to an exchange, a topic, a queue, a URL, a function of the application's own.

    destinations.py where they go                    sender.py   sent by an application, in its own transaction
    carry.py        the handler that sends them      kinds/      one file for each kind of destination
    intakes.py      where records come from          intake/     one file for each kind of way in
    rests.py        for how long a destination rests links.py    the connections that a worker has open
    levels.py       instants rounded up              bodies.py   what a message says, as bytes

What is recorded, and what that leads to, is decided in ledger/, in the database. What an application calls is
`Messages`, above the operations (workq/messenger.py). Nothing here is imported by `import workq`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workq.messages.destinations import Destination, Destinations
    from workq.messages.intakes import MessageIntake, MessageIntakes
    from workq.messages.kinds import (
        Answer,
        Confirmed,
        DestinationAddress,
        DestinationLink,
        Kind,
        Posting,
        SendFault,
        Unsent,
    )
    from workq.messages.values import MessageRow, Restored, SentMessage
    from workq.messenger import Messages

_HOMES = {
    "DestinationAddress": "messages.kinds",
    "Answer": "messages.kinds",
    "Confirmed": "messages.kinds",
    "Destination": "messages.destinations",
    "Destinations": "messages.destinations",
    "SendFault": "messages.kinds",
    "Kind": "messages.kinds",
    "DestinationLink": "messages.kinds",
    "MessageIntake": "messages.intakes",
    "MessageIntakes": "messages.intakes",
    "MessageRow": "messages.values",
    "Messages": "messenger",
    "Posting": "messages.kinds",
    "Restored": "messages.values",
    "SentMessage": "messages.values",
    "Unsent": "messages.kinds",
}

__all__ = [
    "DestinationAddress",
    "Answer",
    "Confirmed",
    "Destination",
    "Destinations",
    "SendFault",
    "Kind",
    "DestinationLink",
    "MessageIntake",
    "MessageIntakes",
    "MessageRow",
    "Messages",
    "Posting",
    "Restored",
    "SentMessage",
    "Unsent",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'workq.messages' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"workq.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
