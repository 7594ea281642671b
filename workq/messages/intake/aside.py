"""Aside: records that cannot be read are sent to a quarantine of the same broker, by a destination's link to it.

Each keeps its body, its headers and its key, and bears what is wrong with it. Where the quarantine is missing, it is
made. A record that is too large for it is cut; the whole one is where the header `workq-where` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from workq.messages.intake.values import BrokerRecord
from workq.messages.kinds import Confirmed, DestinationLink, Posting, SendFault, Unsent
from workq.messages.kinds.reach import ReachFailed
from workq.values.codec import new_task_id

CUT_BYTES: Final = 64 * 1024
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
        left = {record.where: _posting(record, reason) for record, reason in unreadable}
        left = {where: one for where, one in left.items() if where not in self._kept}
        left, unsent = self._send(left, timeout_s)
        if unsent is not None and unsent.fault is SendFault.NO_TARGET:
            self._make(timeout_s)
            left, unsent = self._send(left, timeout_s)
        if unsent is not None and unsent.fault is SendFault.MESSAGE:
            left, unsent = self._send({where: _cut(one) for where, one in left.items()}, timeout_s)
        if unsent is not None:
            raise ReachFailed(Unsent(unsent.fault, f"the quarantine does not take a record: {unsent.text}"))

    def passed(self) -> None:
        """What was kept is passed, and does not come again."""
        self._kept.clear()

    def close(self) -> None:
        """Close the link. What was kept may come again under another `where`, or another record under this one."""
        self._kept.clear()
        self._link.close()

    def _send(self, postings: dict[str, Posting], timeout_s: float) -> tuple[dict[str, Posting], Unsent | None]:
        """What is left, and why the last of it is."""
        if not postings:
            return {}, None
        unsent: Unsent | None = None
        left = dict(postings)
        answers = self._link.send(list(postings.values()), timeout_s=timeout_s)
        for where, answer in zip(postings, answers, strict=True):
            if isinstance(answer, Confirmed):
                self._kept.add(where)
                del left[where]
            else:
                unsent = answer
        return left, unsent


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


def _cut(one: Posting) -> Posting:
    kept = {name: one.headers[name] for name in ("workq-reason", "workq-where")}
    headers = kept | {"workq-cut": str(len(one.body))}
    return Posting(id=one.id, sending=1, body=one.body[:CUT_BYTES], content_type=one.content_type, headers=headers)


def _shown(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")[:_TEXT_MAX]
