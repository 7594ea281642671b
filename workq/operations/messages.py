"""What a person decides about messages: at another time, not at all, once more; and whether a destination gets any."""

from __future__ import annotations

from workq.enqueue.producer import hints_beside
from workq.errors import Refused
from workq.ledger import CancelAnswer, Unpublished
from workq.messages.ledger.decisions import removed
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import (
    MessagePosition,
    Restored,
    WhichMessages,
    check_destination_name,
    check_message_id,
)
from workq.operations import Announce
from workq.operations.tasks import DueTime
from workq.stores import Stores
from workq.values.plural import counted


def cancel(stores: Stores, message_id: str, *, who: str, why: str) -> CancelAnswer:
    """Do not send a message: at once, if it is not on its way. What is on its way may arrive, and is not tried again.

    Raises:
        NotFound: there is no such message, or it has ended and its task is kept no longer.
    """
    return _ledger(stores).decisions.cancel(check_message_id(message_id), who=who, why=why)


def reschedule(
    stores: Stores, message_id: str, when: DueTime, *, who: str, why: str, announce: Announce
) -> Unpublished:
    """Send a message at another time; the past means now.

    Raises:
        NotFound: there is no such message. Refused: it is on its way or has ended, or waits for its turn.
    """
    row = _ledger(stores).decisions.reschedule(
        check_message_id(message_id), delay_s=when.wait_s, at=when.at, who=who, why=why
    )
    announce([row])
    return row


def retry(stores: Stores, message_id: str, *, who: str, why: str, announce: Announce) -> Unpublished:
    """Send a message that is dead or cancelled after all, with fresh budgets: the same sending, at once.

    A time that is still to come it keeps.

    Raises:
        NotFound: there is no such message. Refused: it is neither dead nor cancelled.
    """
    row = _ledger(stores).decisions.retry(check_message_id(message_id), who=who, why=why)
    announce([row])
    return row


def restore(
    stores: Stores,
    destination: str,
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    is_expired: bool = False,
    dry_run: bool = False,
    who: str,
    why: str,
    announce: Announce,
) -> Restored:
    """Send all messages to a destination once more that have arrived or are dead; each is a new task, of the same id.

    What is open is sent in any case, and what a person has cancelled stays so.

    Args:
        since_s, until_s: only those that were recorded between two moments so long ago.
        is_expired: only those whose time has come and that were never confirmed: dead ones, and what waits for another
            try is due at once.

    Raises:
        NotFound: there is no such destination. Refused: retention has removed messages to it that this would have sent;
            the message has the count.
    """
    ledger = _ledger(stores)
    ledger.destinations.required(check_destination_name(destination))
    which = WhichMessages(destination=destination, since_s=since_s, until_s=until_s)
    found = ledger.decisions.restorable(which, is_expired=is_expired)
    if found.gone or found.unknown:
        raise removed(found, destination)
    if dry_run:
        return Restored(found.again, found.late)
    before, hints = ledger.decisions.now(), hints_beside(stores.broker)
    sent_again = made_due = 0
    after: MessagePosition | None = None
    while True:
        count, fresh, after = ledger.decisions.restore(
            which, is_expired=is_expired, before=before, who=who, why=why, hints=hints, after=after
        )
        if count:
            sent_again += count
            _tell(stores, fresh, announce)
        if after is None:
            break
    if is_expired:
        made_due = _make_due(stores, which, who=who, why=why, announce=announce)
    return Restored(sent_again, made_due)


def clear(stores: Stores, destination: str, *, confirmed: int, who: str, why: str) -> int:
    """Cancel all messages to a destination that are not sent yet; answers how many.

    `confirmed`: so many of them the person has seen, and means.

    Raises:
        NotFound: there is no such destination. Refused: more of them wait by now; nothing was cancelled.
    """
    ledger = _ledger(stores)
    ledger.destinations.required(check_destination_name(destination))
    before = ledger.decisions.now()  # what is sent from now on was not seen
    count = ledger.decisions.waiting(destination, before=before)
    if count > confirmed:
        raise Refused(
            f"{counted(count, 'message')} to {destination!r} would be cancelled, and {confirmed} were confirmed: "
            "look again, and confirm that count"
        )
    done, found = 0, 1
    while found and done < confirmed:  # once more: what was on its way as we came by may have come back
        found, after = 0, None
        while done < confirmed:
            page, after = ledger.decisions.clear(
                destination, before=before, limit=confirmed - done, who=who, why=why, after=after
            )
            found += page
            done += page
            if after is None:
                break
    return done


def disable(stores: Stores, name: str, *, who: str, why: str) -> None:
    """Send nothing to a destination any more, from now on: its messages wait. What is on its way ends. Repeatable.

    Raises:
        NotFound: there is no such destination.
    """
    _ledger(stores).decisions.disable(check_destination_name(name), who=who, why=why)


def enable(stores: Stores, name: str, *, who: str, why: str, announce: Announce) -> int:
    """Send to a destination again, and end its rest; answers how many messages that waited are due now. Repeatable.

    Those of its line that a sweep lets come in this very moment are counted, too.

    Raises:
        NotFound: there is no such destination.
    """
    decisions, line = _ledger(stores).decisions, _ledger(stores).line
    waited = line.length(check_destination_name(name))
    decisions.enable(name, who=who, why=why)
    count = 0
    while rows := line.come(name):
        count += len(rows)
        announce(rows)
    overdue = _make_due(stores, WhichMessages(destination=name), who=who, why=why, announce=announce)
    return max(waited, count) + overdue


def remove(stores: Stores, name: str, *, who: str, why: str) -> None:
    """Forget a destination. Its messages stay until retention takes them.

    Raises:
        NotFound: there is none of that name. Refused: messages to it are open.
    """
    _ledger(stores).decisions.remove(check_destination_name(name), who=who, why=why)


def _make_due(stores: Stores, which: WhichMessages, *, who: str, why: str, announce: Announce) -> int:
    """Let be due what is overdue and waits for another try; answers how many."""
    decisions, count = _ledger(stores).decisions, 0
    after: MessagePosition | None = None
    while True:
        rows, after = decisions.make_due(which, who=who, why=why, after=after)
        if rows:
            count += len(rows)
            announce(rows)
        if after is None:
            return count


def _ledger(of: Stores) -> MessageLedger:
    return of.ledger.part(MessageLedger)


def _tell(of: Stores, fresh: list[Unpublished], announce: Announce) -> None:
    if fresh:
        announce(fresh)
    else:
        of.broker.wake()
