"""Outbound: what every slice that sends something out of the house shares, and no slice owns.

    target.py   whether a URL may be called         guard.py    which addresses may be reached, asked at the socket
    post.py     one request, and what came of it    proxy.py    the one way out, where a network has only one
    signing.py  the signature, and `verify`         vault.py    secrets, as they are stored
    backoff.py  when it is tried again              answer_limits.py  how much of an answer is read
    deadline.py the seconds that an attempt has

Nothing here knows a webhook, a message or a table. It needs the extra [webhooks].
"""
