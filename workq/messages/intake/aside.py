"""Aside: records that cannot be read are sent to a quarantine of the same broker, by a destination's link to it.

Each keeps its body, its headers and its key, and bears what is wrong with it. Where the quarantine is missing, it is
made. One that does not take a record as it is gets it with fewer headers, and then cut; the whole one is where the
header `workq-where` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from workq.messages.intake.values import BrokerRecord
from workq.messages.kinds import Confirmed, DestinationLink, Posting, SendFault, Unsent
from workq.messages.kinds.reach import ReachFailed
from workq.values.codec import new_task_id

CUT_BYTES: Final = 64 * 1024
HEADERS_BYTES: Final = 32 * 1024
_NAME_MAX: Final = 200
_OURS: Final = ("workq-reason", "workq-where")
_TEXT_MAX: Final = 4000


class RecordsAside:
    """A quarantine, and what was confirmed there since it was opened."""

    def __init__(self, link: DestinationLink, *, make: Callable[[float], None]) -> None:
        """`make` makes the quarantine, within so many seconds. Raises ReachFailed."""
        self._link = link
        self._make = make
        self._kept: set[str] = set()

    def keep(self, unreadable: Sequence[tuple[BrokerRecord, str]], *, timeout_s: float) -> None:
        """Send what was not sent before, and wait for every confirm.

        Raises:
            ReachFailed: one is not confirmed.
        """
        forms = {record.where: _forms(record, reason) for record, reason in unreadable}
        left = {where: next(those) for where, those in forms.items() if where not in self._kept}
        is_made = False
        while left:
            unsent = self._send(left, timeout_s)
            wanted: dict[str, Posting] = {}
            for where, why in unsent.items():
                again = left[where] if _is_missing(why) and not is_made else None
                form = next(forms[where], None) if why.fault is SendFault.MESSAGE else again
                if form is None:
                    raise ReachFailed(Unsent(why.fault, f"the quarantine does not take a record: {why.text}"))
                wanted[where] = form
            if not is_made and any(map(_is_missing, unsent.values())):
                self._make(timeout_s)
                is_made = True
            left = wanted

    def passed(self) -> None:
        """What was kept is passed, and does not come again."""
        self._kept.clear()

    def close(self) -> None:
        """Close the link. What was kept may come again under another `where`, or another record under this one."""
        self._kept.clear()
        self._link.close()

    def _send(self, postings: Mapping[str, Posting], timeout_s: float) -> dict[str, Unsent]:
        """Why each of those is left that was not confirmed."""
        unsent: dict[str, Unsent] = {}
        answers = self._link.send(list(postings.values()), timeout_s=timeout_s)
        for where, answer in zip(postings, answers, strict=True):
            if isinstance(answer, Confirmed):
                self._kept.add(where)
            else:
                unsent[where] = answer
        return unsent


def _is_missing(why: Unsent) -> bool:
    return why.fault is SendFault.NO_TARGET


def _forms(record: BrokerRecord, reason: str) -> Iterator[Posting]:
    """A record as it is, then what a quarantine may take of it."""
    whole = _posting(record, reason)
    yield whole
    yield _with_fewer_headers(whole)
    yield _cut(whole)


def _posting(record: BrokerRecord, reason: str) -> Posting:
    headers: dict[str, str] = {}
    for name, value in record.headers.items():
        headers["workq-id-given" if name.lower() == "workq-id" else name] = _shown(value)
    headers |= {"workq-reason": reason, "workq-where": record.where}
    return Posting(
        id=record.own_id or new_task_id(),
        sending=1,
        body=record.body or b"",
        content_type=record.content_type or "application/octet-stream",
        key=None if record.key is None else _shown(record.key),
        headers=headers,
    )


def _with_fewer_headers(one: Posting) -> Posting:
    """The whole body, and of its headers the first ones, as far as they are few, short and named shortly."""
    ours = {name: one.headers[name] for name in _OURS}
    headers: dict[str, str] = {}
    room = HEADERS_BYTES
    for name, value in one.headers.items():
        size = len(name.encode()) + len(value.encode())
        if name not in _OURS and len(name.encode()) <= _NAME_MAX and size <= room:
            room -= size
            headers[name] = value
    left_out = len(one.headers) - len(ours) - len(headers)
    return replace(one, headers={**headers, **ours, "workq-headers-left-out": str(left_out)})


def _cut(one: Posting) -> Posting:
    headers = {name: one.headers[name] for name in _OURS} | {"workq-cut": str(len(one.body))}
    return replace(one, key=None, body=one.body[:CUT_BYTES], headers=headers)


def _shown(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")[:_TEXT_MAX]
