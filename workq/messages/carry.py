"""Carry: the handler of messages. One call sends up to a hundred to one destination, and waits for their confirms.

What came of each message, and what that means for the task that sends it:

    confirmed                                  succeeded; what the destination told of its place is the result
    away, refused, no_target, asked            the destination rests, and the message is sent when it has. Where
                                               others of the call were confirmed, no_target is a failure of this message
    late: no confirm in time                   a failure, and tried again with the same id: it may have arrived. Where
                                               nothing at all was confirmed, the destination rests, too
    message: this one will never be taken      dead at once

While a destination rests or is disabled, what comes due for it does not come here (messages/ledger/gate.py); what has
come in that very moment waits without a connection. When the ledger does not answer, or the key to the URL is not here,
nothing was sent, and nothing has failed: it is tried again a little later.

A process that dies between a confirm and the settlement sends a second copy, with the same id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, Protocol

from workq.config.addresses import Allowed
from workq.errors import Cancel, ConfigError, Snooze, Unavailable
from workq.handlers.verdict import Verdict
from workq.messages.kinds import Answer, Confirmed, DestinationAddress, DestinationLink, Posting, SendFault, Unsent
from workq.messages.kinds.registry import KindOf
from workq.messages.links import Links, NoLinkFree
from workq.messages.rests import REST_MIN_S
from workq.messages.values import DestinationState, Letter, parts_of
from workq.outbound.vault import Vault

log = logging.getLogger("workq.message")

LATER_S: Final = 2.0
NO_KEY_S: Final = 60.0
HELD_S: Final = 3600.0
"""What is due for a destination that is disabled looks again so seldom: whoever enables it makes it due."""
DISABLED: Final = "its destination is disabled"
RESTS: Final = "its destination rests"
NO_DESTINATION: Final = "its destination was removed; add it again, or cancel the message"
"""It may have been removed while the transaction that sent the message was open: the message is not lost."""
_REST_SPREAD_S: Final = 0.05
_OF_THE_DESTINATION: Final = frozenset({SendFault.AWAY, SendFault.REFUSED, SendFault.NO_TARGET, SendFault.ASKED})


class NotTaken(Exception):
    """The destination will never take this message."""


class NotConfirmed(Exception):
    """No confirm of this message came in time: it may have arrived."""


class Health(Protocol):
    """How destinations fare, in the ledger (see messages/health.py)."""

    def failed(self, name: str, *, fault: str, error: str, asked_s: float | None = None) -> float:
        """It rests; answers for how many seconds."""

    def arrived(self, name: str) -> bool:
        """It does not fail any more; answers whether it had."""

    def let_come(self, name: str) -> None:
        """Some of those that wait for it are due now."""


class MessageCarrier:
    """Sends messages in one process. Thread-safe."""

    def __init__(
        self,
        read: Callable[[Sequence[str]], Mapping[str, Letter]],
        health: Callable[[], Health],
        *,
        kind_of: KindOf,
        vault: Vault,
        allowed: Allowed,
        rng: Random | None = None,
    ) -> None:
        """`read`: the ledger's `letters`."""
        self._read = read
        self._health = health
        self._kind_of = kind_of
        self._vault = vault
        self._allowed = allowed
        self._rng = rng or Random()
        self._links = Links()

    def carry(self, items: list[str]) -> Verdict:
        """Send the messages that these items name, of one call; all to one destination, as `batch_by` has it."""
        parts = {item: parts_of(item) for item in items}
        try:
            found = self._read([part[2] for part in parts.values() if part is not None])
        except Unavailable:
            return Verdict([(item, Snooze(LATER_S, "the ledger did not answer")) for item in items])
        failed: list[tuple[str, object]] = []
        letters: dict[str, Letter] = {}
        for item, part in parts.items():
            letter = None if part is None else found.get(part[2])
            if part is not None and letter is None:
                log.warning("message.no_destination", extra={"destination": part[0]})
                failed.append((item, Snooze(NO_KEY_S, f"{NO_DESTINATION}: {part[0]!r}")))
            elif part is None or letter is None or letter.body is None:
                failed.append((item, Cancel("its body is kept no longer")))
            elif letter.sending != part[1]:
                failed.append((item, Cancel("another task sends this message")))
            else:
                letters[item] = letter
        if not letters:
            return Verdict(failed)
        answers = self._sent(letters)
        results: list[tuple[str, object]] = []
        for item in letters:
            came = answers[item]
            if isinstance(came, BaseException):
                failed.append((item, came))
            elif came.where is not None:
                results.append((item, came.where))
        return Verdict(failed=failed, results=results)

    def _sent(self, letters: Mapping[str, Letter]) -> dict[str, Confirmed | BaseException]:
        """What came of each of these, which go to one destination."""
        to = next(iter(letters.values()))
        if to.state == DestinationState.DISABLED:
            return dict.fromkeys(letters, Snooze(HELD_S, DISABLED))
        if to.rests_s > 0.0:
            return dict.fromkeys(letters, Snooze(self._after(to.rests_s), RESTS))
        try:
            url = None if to.sealed is None else self._vault.open_url(to.sealed)
        except ConfigError as error:
            log.warning("message.no_key: %s", error, extra={"destination": to.destination})
            return dict.fromkeys(letters, Snooze(NO_KEY_S, str(error)))
        address = DestinationAddress(to.destination, to.options, url)
        try:
            with self._links.to(to.destination, to.changed_at, lambda: self._open(to.kind, address)) as link:
                answers = self._answers(link, list(letters.values()), timeout_s=to.policy.timeout_s)
        except NoLinkFree as error:
            wait_s = self._after(error.wait_s)
            return dict.fromkeys(letters, Snooze(wait_s, "every connection to its destination is in use"))
        except ConfigError as error:  # this process does not know the kind, or lacks its library
            log.warning("message.no_kind: %s", error, extra={"destination": to.destination})
            return dict.fromkeys(letters, Snooze(NO_KEY_S, str(error)))
        return self._meaning(to, letters, answers)

    def _open(self, kind: str, address: DestinationAddress) -> DestinationLink:
        return self._kind_of(kind).open(address, allowed=self._allowed)

    @staticmethod
    def _answers(link: DestinationLink, letters: Sequence[Letter], *, timeout_s: float) -> list[Answer]:
        postings = [
            Posting(one.id, one.sending, one.body or b"", one.content_type, one.key, one.headers) for one in letters
        ]
        try:
            answers: list[object] = list(link.send(postings, timeout_s=timeout_s))
        except Exception as error:  # a mistake of the kind's, or of the user's own function
            log.exception("message.kind_raised")
            return [Unsent(SendFault.LATE, f"{type(error).__name__}: {error}"[:300])] * len(letters)
        if len(answers) != len(letters):
            return [Unsent(SendFault.LATE, f"the kind answered for {len(answers)} of {len(letters)}")] * len(letters)
        return [
            one if isinstance(one, Answer) else Unsent(SendFault.LATE, f"the kind answered with a {type(one).__name__}")
            for one in answers
        ]

    def _meaning(
        self, to: Letter, letters: Mapping[str, Letter], answers: Sequence[Answer]
    ) -> dict[str, Confirmed | BaseException]:
        rest_s = self._health_of(to, answers)
        is_any_confirmed = any(isinstance(one, Confirmed) for one in answers)
        came: dict[str, Confirmed | BaseException] = {}
        for item, answer in zip(letters, answers, strict=True):
            match answer:
                case Confirmed():
                    came[item] = answer
                case Unsent(fault=SendFault.MESSAGE):
                    came[item] = NotTaken(answer.text)
                case Unsent(fault=SendFault.LATE):
                    came[item] = NotConfirmed(answer.text)
                case Unsent(fault=SendFault.NO_TARGET) if is_any_confirmed:
                    came[item] = NotConfirmed(answer.text)
                case Unsent():
                    came[item] = Snooze(self._after(rest_s), f"{RESTS}: {answer.fault}: {answer.text}")
        return came

    def _health_of(self, to: Letter, answers: Sequence[Answer]) -> float:
        """Tell the ledger how the destination fares; answers for how long it rests."""
        is_any_confirmed = any(isinstance(one, Confirmed) for one in answers)
        unsent = [one for one in answers if isinstance(one, Unsent)]
        if is_any_confirmed or any(one.fault is not SendFault.MESSAGE for one in unsent):
            self._links.prove(to.destination, is_proven=is_any_confirmed)
        of_all = frozenset({SendFault.ASKED}) if is_any_confirmed else _OF_THE_DESTINATION  # others have arrived
        faults = [one for one in unsent if one.fault in of_all]
        if not faults and unsent and not is_any_confirmed:
            faults = [one for one in unsent if one.fault is SendFault.LATE]
        try:
            if faults:
                asked_s = max((one.after_s or 0.0 for one in faults), default=0.0)
                first = faults[0]
                rest_s = self._health().failed(
                    to.destination, fault=first.fault.value, error=first.text, asked_s=asked_s or None
                )
                told = {"destination": to.destination, "fault": first.fault.value, "rests_s": round(rest_s, 1)}
                log.warning("message.destination_rests: %s", first.text, extra=told)
                return rest_s
            has_recovered = is_any_confirmed and to.is_failing and self._health().arrived(to.destination)
            if has_recovered:
                log.info("message.destination_recovered", extra={"destination": to.destination})
            if has_recovered or (is_any_confirmed and to.is_waited_for):
                self._health().let_come(to.destination)
        except Unavailable as error:
            log.debug("message.health_unknown: %s", error)
        return REST_MIN_S

    def _after(self, rest_s: float) -> float:
        """A little later than the rest ends, so that it has ended by then."""
        return rest_s + self._rng.uniform(0.0, _REST_SPREAD_S)

    def close(self) -> None:
        """Close the connections of this process that are not in use. Repeatable."""
        self._links.close()
