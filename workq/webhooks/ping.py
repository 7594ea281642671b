"""Ping: one signed request to a URL, and what is to be said of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from workq.outbound.post import Answer, ErrorClass, Sender
from workq.outbound.signing import signed
from workq.outbound.target import TargetPolicy
from workq.values import codec

EVENT_TYPE: Final = "workq.ping"
_ADVICE: Final = {
    ErrorClass.BLOCKED: "workq does not go there: that is its own decision, and the message names the setting",
    ErrorClass.DNS: "check the host's name, and the name server of this machine",
    ErrorClass.REFUSED: "start the receiver, or correct the port",
    ErrorClass.UNREACHABLE: "check the route and the firewall between this machine and the receiver",
    ErrorClass.TLS: "check the receiver's certificate: its name, its dates, its chain",
    ErrorClass.RESET: "look into the receiver's log: it has closed the connection without an answer",
    ErrorClass.PROTOCOL: "something else listens there, or https is spoken on a port for http",
    ErrorClass.CONNECT_TIMEOUT: "a firewall drops the packets, or the receiver accepts no more connections",
    ErrorClass.ANSWER_TIMEOUT: "the receiver works too long: it should store the webhook, answer, and work then",
    ErrorClass.BODY_TIMEOUT: "the receiver has begun to answer and does not end: an empty answer is enough",
    ErrorClass.REDIRECT: "use the URL that it points to, if you trust it",
    ErrorClass.GONE: "the receiver says that it is gone for good: an endpoint would be disabled now",
    ErrorClass.THROTTLED: "the receiver wants fewer requests",
    ErrorClass.CLIENT_ERROR: "the receiver refuses the request: its path, its verification, or what it expects",
    ErrorClass.SERVER_ERROR: "the receiver has failed: look into its log",
    ErrorClass.PROXY: "look into the proxy's log: it refuses this URL",
}
_PROXY_AWAY: Final = (
    "check WORKQ_WEBHOOK_PROXY, its login too, and whether the proxy runs: deliveries wait for it, and none fails"
)


@dataclass(frozen=True, slots=True)
class Ping:
    """What was sent, and what came of it."""

    url: str
    headers: dict[str, str]
    answer: Answer
    proxy: str | None = None
    """Through which it went, without its login."""

    @property
    def advice(self) -> str | None:
        """What to look at; None: it was a success."""
        if self.answer.is_proxy_away:
            return _PROXY_AWAY
        return None if self.answer.error_class is None else _ADVICE[self.answer.error_class]


async def ping(url: str, *, secret: str, policy: TargetPolicy, total_s: float) -> Ping:
    """Send one `workq.ping`. Nothing is recorded."""
    now = datetime.now(UTC)
    body = codec.encode({"type": EVENT_TYPE, "timestamp": now.isoformat(), "data": {}}, path="body").encode()
    headers = signed([secret], message_id=f"msg_{codec.new_task_id()}", body=body, at=now)
    async with Sender(policy, total_s=total_s) as sender:
        answer = await sender.post(url, body, headers)
    return Ping(url, headers, answer, None if policy.proxy is None else policy.proxy.url)
