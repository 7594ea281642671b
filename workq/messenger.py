"""Messages of an application: what it sends, its destinations, what it decides about both; and the handler that sends.

from workq import WorkQueue
from workq.messages import Messages

wq = WorkQueue()
messages = Messages(wq)
messages.send("orders", {"id": 17}, delay_s=30, connection=session)

Made once, beside the application's handlers: its workers send what is due, from the queue `workq.messages`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from workq.errors import ConfigError
from workq.handlers.retry import Exponential
from workq.messages.carry import Health, MessageCarrier, NotTaken
from workq.messages.destinations import Destinations
from workq.messages.health import DestinationHealth
from workq.messages.kinds.registry import KindOf
from workq.messages.ledger.sql import MessageLedger
from workq.messages.sender import MessageSender
from workq.messages.values import (
    BATCH,
    FAILURES_MAX,
    QUEUE,
    TASK_NAME,
    Letter,
    MessageRow,
    Restored,
    WhichMessages,
    check_destination_name,
    check_message_id,
    destination_in,
)
from workq.operations import messages, tasks
from workq.values.incarnation import this_person
from workq.values.names import check_delay_s
from workq.values.task import State

if TYPE_CHECKING:
    from workq.app import WorkQueue
    from workq.ledger import CancelAnswer

RETRY_BASE_S = 1.0
RETRY_CAP_S = 600.0


class Messages(MessageSender):
    """The messages of an application, and the handler that sends them."""

    def __init__(self, app: WorkQueue, *, kind_of: KindOf | None = None) -> None:
        """Register the handler of messages.

        Args:
            kind_of: answers the kind of a destination by its name; those of workq, by default.

        Raises:
            ConfigError: a setting is wrong, or the application has its messages already.
        """
        super().__init__(app)
        self.destinations = Destinations(app, kind_of=kind_of)
        self.carrier = MessageCarrier(
            self._letters,
            self._health,
            kind_of=self.destinations.kind_of,
            vault=self.destinations.vault,
            allowed=self.destinations.allowed,
        )
        self.handler = app.task(
            name=TASK_NAME,
            queue=QUEUE,
            failures_max=FAILURES_MAX,
            batch=BATCH,
            linger_s=0.0,
            retry=Exponential(base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S),
            give_up_on=NotTaken,
        )(self.carrier.carry)
        self.handler.batch_by = destination_in

    # -- questions

    def get(self, message_id: str) -> MessageRow | None:
        """One message, or None. Its body: `body`.

        Raises:
            ConfigError: that is no id of a message.
        """
        known = check_message_id(message_id)
        return self._ledger.letters.message(known)

    def body(self, message_id: str) -> bytes | None:
        """What a message says; None: it is kept no longer, or never was.

        Raises:
            ConfigError: that is no id of a message.
        """
        known = check_message_id(message_id)
        return self._ledger.letters.body(known)

    def all(
        self,
        *,
        to: str | None = None,
        state: str | None = None,
        since_s: float | None = None,
        until_s: float | None = None,
    ) -> Iterator[MessageRow]:
        """Messages from the newest, read page by page. None: whatever it is.

        Args:
            to: to this destination.
            state: that of a task: `waiting`, `ready`, `running`, `succeeded`, `dead`, `cancelled`.
            since_s, until_s: recorded between two moments so long ago.

        Raises:
            ConfigError: there is no such state; that is no name of a destination; or a time is out of range.
        """
        if state is not None and state not in tuple(State):
            raise ConfigError(f"state: need one of {', '.join(State)}, got {state!r:.100}")
        which = WhichMessages(
            None if to is None else check_destination_name(to),
            None if state is None else State(state),
            None if since_s is None else check_delay_s(since_s, "since_s"),
            None if until_s is None else check_delay_s(until_s, "until_s"),
        )
        return self._pages(which)

    def _pages(self, which: WhichMessages) -> Iterator[MessageRow]:
        after: str | None = None
        while page := self._ledger.letters.all(which, after=after):
            yield from page
            after = page[-1].id

    # -- decisions of a person

    def cancel(self, message_id: str, *, why: str = "cancelled by a person", who: str | None = None) -> CancelAnswer:
        """Do not send a message: at once, if it is not on its way. What is on its way may arrive.

        Raises:
            NotFound: there is no such message, or it has ended and is kept no longer.
        """
        return messages.cancel(self._app.existing, message_id, who=who or this_person(), why=why)

    def reschedule(
        self,
        message_id: str,
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        why: str = "rescheduled by a person",
        who: str | None = None,
    ) -> None:
        """Send a message in `delay_s` seconds, or `at` an aware instant; the past means now.

        Raises:
            ConfigError: not one of both, or out of range. NotFound: there is no such message.
            Refused: it is on its way or has ended, or waits for its turn.
        """
        when, by = tasks.due(delay_s=delay_s, at=at), who or this_person()
        messages.reschedule(
            self._app.existing, message_id, when, who=by, why=why, announce=self._app.producer.relay.offer
        )

    def retry(self, message_id: str, *, why: str = "retried by a person", who: str | None = None) -> None:
        """Send a message that is dead or cancelled after all, with fresh budgets: the same sending, at once.

        A time that is still to come it keeps: `reschedule` changes it then.

        Raises:
            NotFound: there is no such message. Refused: it is neither dead nor cancelled.
        """
        by, announce = who or this_person(), self._app.producer.relay.offer
        messages.retry(self._app.existing, message_id, who=by, why=why, announce=announce)

    def restore(
        self,
        to: str,
        *,
        since_s: float | None = None,
        until_s: float | None = None,
        is_expired: bool = False,
        dry_run: bool = False,
        why: str = "restored by a person",
        who: str | None = None,
    ) -> Restored:
        """Send all messages to a destination once more that have arrived or are dead; each is a new task.

        `workq-id` stays. What is open is sent in any case, and what was cancelled stays so.

        Args:
            since_s, until_s: only those that were recorded between two moments so long ago.
            is_expired: only those whose time has come and that were never confirmed.

        Raises:
            ConfigError: a time is out of range. NotFound: there is no such destination.
            Refused: retention has removed some of them; the message has the count.
        """
        return messages.restore(
            self._app.existing,
            to,
            since_s=None if since_s is None else check_delay_s(since_s, "since_s"),
            until_s=None if until_s is None else check_delay_s(until_s, "until_s"),
            is_expired=is_expired,
            dry_run=dry_run,
            who=who or this_person(),
            why=why,
            announce=self._app.producer.relay.offer,
        )

    def waiting(self, to: str) -> int:
        """How many messages to a destination are not sent yet: what `clear` wants to have confirmed.

        Raises:
            ConfigError: that is no name of a destination.
        """
        known = check_destination_name(to)
        return self._ledger.decisions.waiting(known)

    def clear(self, to: str, *, confirmed: int, why: str = "cleared by a person", who: str | None = None) -> int:
        """Cancel all messages to a destination that are not sent yet; answers how many.

        `confirmed`: how many those are, as `waiting` has answered.

        Raises:
            NotFound: there is no such destination. Refused: there are more by now; nothing was cancelled.
        """
        return messages.clear(self._app.existing, to, confirmed=confirmed, who=who or this_person(), why=why)

    def disable(self, destination: str, *, why: str = "disabled by a person", who: str | None = None) -> None:
        """Send nothing to a destination any more, from now on: its messages wait.

        Raises:
            NotFound: there is none of that name.
        """
        messages.disable(self._app.existing, destination, who=who or this_person(), why=why)

    def enable(self, destination: str, *, why: str = "enabled by a person", who: str | None = None) -> int:
        """Send to a destination again, and end its rest; answers how many messages that waited are due now.

        Raises:
            NotFound: there is none of that name.
        """
        by, announce = who or this_person(), self._app.producer.relay.offer
        return messages.enable(self._app.existing, destination, who=by, why=why, announce=announce)

    def remove(self, destination: str, *, why: str = "removed by a person", who: str | None = None) -> None:
        """Forget a destination. Its messages stay until retention takes them.

        Raises:
            NotFound: there is none of that name. Refused: messages to it are open.
        """
        messages.remove(self._app.existing, destination, who=who or this_person(), why=why)

    # -- for the handler

    def _letters(self, message_ids: Sequence[str]) -> Mapping[str, Letter]:
        return self._ledger.letters.letters(message_ids)

    def _health(self) -> Health:
        return DestinationHealth(self._ledger, self._app.producer.relay.offer)

    @property
    def _ledger(self) -> MessageLedger:
        return self._app.existing.ledger.part(MessageLedger)
