"""Webhooks: requests to other people's servers, signed as Standard Webhooks 1.0 says, and what receivers need.

    endpoints.py where they go                      outbox.py   sent by an application, in its own transaction
    carry.py    the handler that delivers them      notices.py  what operators are told of it
    ping.py     one request to try an endpoint with receiver.py a receiver to try things with, well-behaved or not

The request itself, its signature, the addresses that it may reach and how secrets are stored: workq/outbound.

What is recorded, and what that leads to, is decided in ledger/, in the database. Nothing here is imported by
`import workq`. Sending needs the extra [webhooks].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workq.errors import VerificationFailed
    from workq.outbound.backoff import growing
    from workq.outbound.signing import new_secret, verify
    from workq.webhooks.endpoints import Endpoint, Endpoints
    from workq.webhooks.notices import Notice
    from workq.webhooks.outbox import Dispatch, Webhooks

_HOMES = {
    "Dispatch": "webhooks.outbox",
    "Endpoint": "webhooks.endpoints",
    "Endpoints": "webhooks.endpoints",
    "Notice": "webhooks.notices",
    "VerificationFailed": "errors",
    "Webhooks": "webhooks.outbox",
    "growing": "outbound.backoff",
    "new_secret": "outbound.signing",
    "verify": "outbound.signing",
}

__all__ = [
    "Dispatch",
    "Endpoint",
    "Endpoints",
    "Notice",
    "VerificationFailed",
    "Webhooks",
    "growing",
    "new_secret",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'workq.webhooks' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"workq.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
