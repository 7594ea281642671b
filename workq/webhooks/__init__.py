"""Webhooks: requests to other people's servers, signed as Standard Webhooks 1.0 says, and what receivers need.

    target.py   whether a URL may be called         guard.py    which addresses may be reached, asked at the socket
    signing.py  the signature, and `verify`         post.py     one attempt, and what came of it
    backoff.py  when it is tried again              receiver.py a receiver to try things with, well-behaved or not

Nothing here is imported by `import workq`. Sending needs the extra [webhooks]: aiohttp and standardwebhooks.
"""

from __future__ import annotations

from workq.errors import VerificationFailed
from workq.webhooks.signing import new_secret, verify

__all__ = ["VerificationFailed", "new_secret", "verify"]
