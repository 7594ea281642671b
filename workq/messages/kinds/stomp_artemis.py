"""What the management of Artemis tells by STOMP: whether an address has a queue for what is sent to it.

A RECEIPT does not say so: a message to an address without such a queue is confirmed, and thrown away.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from workq.messages.kinds.stomp_frames import Frame, encoded

MANAGEMENT: Final = "activemq.management"
QUEUES_MAX: Final = 50
"""So many queues of an address are asked for what they take."""


class NotTold(Exception):
    """The management does not answer this user. What it said."""


class Management:
    """Asks over a connection, and leaves nothing there: the address of its answers is removed by `end`."""

    def __init__(self, send: Callable[[bytes], None], read: Callable[[], Iterator[Frame]]) -> None:
        """`send`, `read`: of a connection that nobody else uses meanwhile."""
        self._send = send
        self._read = read
        self._reply = f"workq.test.{secrets.token_hex(8)}"
        self._receipts = 0
        headers = {"destination": self._reply, "id": self._reply, "destination-type": "MULTICAST"}
        self._await_receipt("SUBSCRIBE", headers)

    def lacks(self, address: str, *, routing: str) -> str | None:
        """Why a message with this routing would be thrown away, or refused; None: it has a queue, or gets one."""
        names = self._ask(f"address.{address}", attribute="QueueNames")
        for name in names[:QUEUES_MAX] if isinstance(names, list) else []:
            kind = self._ask(f"queue.{name}", attribute="RoutingType")
            if kind is None or str(kind).lower() == routing:
                return None
        if routing == "multicast":
            return f"the address {address!r} has no subscriber: Artemis confirms a message to it, and throws it away"
        settings = self._ask("broker", operation="getAddressSettingsAsJSON", parameters=[address])
        made = json.loads(settings) if isinstance(settings, str) else {}
        if made.get("autoCreateQueues") is False:
            return f"the address {address!r} has no queue, and Artemis makes none (auto-create-queues)"
        return None

    def end(self) -> None:
        """Remove what the answers came to."""
        self._await_receipt("UNSUBSCRIBE", {"id": self._reply})
        about = {"_AMQ_ResourceName": "broker", "_AMQ_OperationName": "deleteAddress"}
        self._await_receipt("SEND", {"destination": MANAGEMENT, **about}, json.dumps([self._reply]).encode())

    def _ask(self, resource: str, *, attribute: str = "", operation: str = "", parameters: Sequence[str] = ()) -> Any:
        """What it answers; None: it knows no such thing."""
        about = {"_AMQ_Attribute": attribute} if attribute else {"_AMQ_OperationName": operation}
        headers = {"destination": MANAGEMENT, "reply-to": self._reply, "_AMQ_ResourceName": resource, **about}
        body = json.dumps(list(parameters)).encode() if operation else b""
        self._send(encoded("SEND", headers, body, is_text=True))
        for frame in self._read():
            if frame.command == "ERROR":
                raise NotTold(frame.said)
            if frame.command == "MESSAGE":
                is_told = frame.headers.get("_AMQ_OperationSucceeded") == "true" and frame.body
                told = json.loads(frame.body) if is_told else []
                return told[0] if isinstance(told, list) and told else None
        raise TimeoutError("no answer of the management of Artemis")

    def _await_receipt(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        self._receipts += 1
        receipt = f"{self._reply}-{self._receipts}"
        self._send(encoded(command, {**headers, "receipt": receipt}, body, is_text=True))
        for frame in self._read():
            if frame.command == "ERROR":
                raise NotTold(frame.said)
            if frame.command == "RECEIPT" and frame.headers.get("receipt-id") == receipt:
                return
        raise TimeoutError("no receipt of Artemis")
