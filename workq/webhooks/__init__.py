"""Webhooks: requests to other people's servers, signed as Standard Webhooks 1.0 says, and what receivers need.

    endpoints.py where they go                      outbox.py   sent by an application, in its own transaction
    carry.py    the handler that delivers them      post.py     one request, and what came of it
    target.py   whether a URL may be called         guard.py    which addresses may be reached, asked at the socket
    signing.py  the signature, and `verify`         vault.py    secrets, as they are stored
    proxy.py    the one way out, where there is one receiver.py a receiver to try things with, well-behaved or not
    backoff.py  when it is tried again              notices.py  what operators are told of it

What is recorded, and what that leads to, is decided in ledger/, in the database. Nothing here is imported by
`import workq`. Sending needs the extra [webhooks].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workq.errors import VerificationFailed
    from workq.webhooks.backoff import growing
    from workq.webhooks.endpoints import Endpoint, Endpoints
    from workq.webhooks.notices import Notice
    from workq.webhooks.outbox import Dispatch, Webhooks
    from workq.webhooks.signing import new_secret, verify

_HOMES = {
    "Dispatch": "webhooks.outbox",
    "Endpoint": "webhooks.endpoints",
    "Endpoints": "webhooks.endpoints",
    "Notice": "webhooks.notices",
    "VerificationFailed": "errors",
    "Webhooks": "webhooks.outbox",
    "growing": "webhooks.backoff",
    "new_secret": "webhooks.signing",
    "verify": "webhooks.signing",
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
