"""Destinations: added, looked at, tried. Everything is checked before it is stored.

What people decide about them: operations/messages.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from workq.config.addresses import Allowed
from workq.config.urls import masked
from workq.errors import ConfigError
from workq.messages.kinds import DestinationAddress, registry
from workq.messages.kinds.registry import KindOf
from workq.messages.ledger.sql import MessageLedger
from workq.messages.levels import check_levels
from workq.messages.values import (
    FAILURES_MAX,
    TIMEOUT_MAX_S,
    TIMEOUT_S,
    DestinationPolicy,
    DestinationRow,
    DestinationState,
    NewDestination,
    check_destination_name,
)
from workq.outbound.vault import Vault
from workq.values.incarnation import this_person
from workq.values.limit_rule import check_concurrency, check_rate

if TYPE_CHECKING:
    from workq.app import WorkQueue

MESSAGE_ALLOW = "WORKQ_MESSAGE_ALLOW"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where messages go. `options`: those of its kind, its URL without its password among them. Times are seconds.

    `failures` in a row, since `failing_since`, the last one for `error`; `rests_until`: nothing is sent before.
    """

    name: str
    kind: str
    options: dict[str, Any]
    state: DestinationState
    who: str | None
    why: str | None
    concurrency: int | None
    rate: str | None
    failures_max: int
    timeout_s: float
    levels: tuple[float, ...]
    failures: int
    failing_since: datetime | None
    fault: str | None
    error: str | None
    rests_until: datetime | None
    created_at: datetime


class Destinations:
    """The destinations of an application."""

    def __init__(self, app: WorkQueue, *, kind_of: KindOf | None = None) -> None:
        """`kind_of`: answers the kind of a name; those of workq, by default."""
        self._app = app
        self.kind_of = kind_of or registry.kind_of
        self.vault = Vault(app.settings.secret_key)
        self.allowed = Allowed.of(app.settings.message_allow, setting=MESSAGE_ALLOW)

    def add(
        self,
        name: str,
        *,
        kind: str,
        concurrency: int | None = None,
        rate: str | None = None,
        failures_max: int = FAILURES_MAX,
        timeout_s: float = TIMEOUT_S,
        levels: str | None = None,
        why: str = "added by a person",
        who: str | None = None,
        **options: Any,
    ) -> Destination:
        """Add a destination. Nothing is contacted: `test` does that.

        Args:
            name: what a message names.
            kind: `amqp`, `kafka`, `stomp`, `redis`, `http` or `call`.
            concurrency: messages that are under way to it at once, in all processes.
            rate: messages in a time, such as `100/s`.
            failures_max: a message that was not confirmed in so many attempts is dead.
            timeout_s: for so long a confirm is waited for.
            levels: delays are rounded up to the next of these, such as `5s,10s,30s,1m`; exact without.
            why: kept in the history.
            who: kept in the history; `user@host` of the process without it.
            options: those of its kind, such as `url`, `exchange` and `routing_key`.

        Raises:
            ConfigError: something of it is wrong; nothing was stored. MissingExtra: the kind's library is missing.
            Refused: there is one of that name.
        """
        checked = self.kind_of(kind).check(options)
        url = options.get("url")
        policy = {"concurrency": concurrency, "rate": rate, "failures_max": failures_max, "timeout_s": timeout_s}
        new = NewDestination(
            check_destination_name(name),
            kind,
            checked,
            None if url is None else self.vault.seal_url(str(url)),
            _policy(DestinationPolicy(), policy | {"levels": levels}),
        )
        ledger = self._app.stores.ledger.part(MessageLedger).destinations
        by = who or this_person()
        return _told(ledger.add_destination(new, who=by, why=why, is_same=self.vault.has_same_url))

    def edit(self, name: str, *, why: str = "edited by a person", who: str | None = None, **given: Any) -> Destination:
        """Change what is given, from the next attempt on, also for what was sent before. Nothing is contacted.

        Args:
            given: each of those of `add` but `kind`, which stays; None: as without it. `levels` hold for what is sent
                from then on. A URL is given whole, with its password.

        Raises:
            ConfigError: something of it is wrong, or nothing is given. NotFound: there is none of that name.
            MissingExtra: the kind's library is missing.
            Refused: somebody else has changed it in this moment.
        """
        if "kind" in given:
            raise ConfigError("kind: that of a destination stays; remove it, and add another one")
        if not given:
            raise ConfigError("nothing to change; give options of the destination, such as url or rate")
        before = self._ledger.destinations.required(check_destination_name(name))
        options = {one: value for one, value in given.items() if one not in _OF_POLICY}
        policy = _policy(before.policy, {one: value for one, value in given.items() if one in _OF_POLICY})
        checked, sealed = dict(before.options), before.sealed
        if options:
            url = options["url"] if "url" in options else None if sealed is None else self.vault.open_url(sealed)
            wanted = checked | options | ({} if url is None else {"url": url})
            checked = self.kind_of(before.kind).check(wanted)  # None is as not given; a name that is unknown is refused
            sealed = (None if url is None else self.vault.seal_url(str(url))) if "url" in options else sealed
        after = NewDestination(before.name, before.kind, checked, sealed, policy)
        what = ", ".join(sorted(given))
        self._ledger.edits.edit(before, after, what=what, who=who or this_person(), why=why)
        if given.keys() & _OF_TASKS:
            self._ledger.edits.spread(before.name, policy)
        return self.get(name)

    def get(self, name: str) -> Destination:
        """One destination.

        Raises:
            NotFound: there is none of that name.
        """
        return _told(self._ledger.destinations.required(check_destination_name(name)))

    def all(self) -> Iterator[Destination]:
        """All of them, by their names."""
        after: str | None = None
        while page := self._ledger.destinations.all(after=after):
            yield from map(_told, page)
            after = page[-1].name

    def test(self, name: str, *, timeout_s: float | None = None) -> list[str]:
        """Why a message would not arrive, one line for each reason; empty: it would. No message is left there.

        Raises:
            NotFound: there is none of that name. ConfigError: its URL is encrypted with a key that is not here.
            MissingExtra: the kind's library is missing.
        """
        row = self._ledger.destinations.required(check_destination_name(name))
        url = None if row.sealed is None else self.vault.open_url(row.sealed)
        link = self.kind_of(row.kind).open(DestinationAddress(row.name, row.options, url), allowed=self.allowed)
        try:
            return link.test(timeout_s=row.policy.timeout_s if timeout_s is None else timeout_s)
        finally:
            link.close()

    def seal(self) -> int:
        """Write the URLs of all destinations anew, with the newest key of WORKQ_SECRET_KEY; answers how many."""
        ledger, count = self._ledger.destinations, 0
        after: str | None = None
        while page := ledger.all(after=after):
            for row in page:
                if row.sealed is not None:
                    sealed = self.vault.seal_url(self.vault.open_url(row.sealed))
                    ledger.reseal(row.name, before=row.sealed, sealed=sealed)
                    count += 1
            after = page[-1].name
        return count

    @property
    def _ledger(self) -> MessageLedger:
        return self._app.existing.ledger.part(MessageLedger)


def _policy(before: DestinationPolicy, given: Mapping[str, Any]) -> DestinationPolicy:
    """What is given, checked, and else what was there before. None: as without it."""
    found = asdict(before)
    for name, value in given.items():
        key, check = _OF_POLICY[name]
        found[key] = getattr(DestinationPolicy(), key) if value is None else check(value)
    return DestinationPolicy(**found)


def _failures_max(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000:
        raise ConfigError(f"failures_max: need a whole number from 1 to 1000, got {value!r:.60}")
    return value


def _timeout_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= TIMEOUT_MAX_S:
        raise ConfigError(f"timeout_s: need seconds above 0, up to {TIMEOUT_MAX_S:.0f}, got {value!r:.60}")
    return float(value)


def shown_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """As they are stored; a version before this one has kept the path of an HTTP URL."""
    url = options.get("url")
    is_http = isinstance(url, str) and url.startswith(("http://", "https://"))
    return {**options, "url": masked(str(url))} if is_http else dict(options)


_OF_POLICY: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = {
    "concurrency": ("concurrency", check_concurrency),
    "rate": ("rate", check_rate),
    "failures_max": ("failures_max", _failures_max),
    "timeout_s": ("timeout_s", _timeout_s),
    "levels": ("levels_s", check_levels),
}
"""What is given of how a destination is served: the field of its policy, and the check."""
_OF_TASKS: Final = frozenset({"concurrency", "rate", "failures_max"})
"""What the tasks of its messages have, too."""


def _told(row: DestinationRow) -> Destination:
    rests_until = row.rests_until
    return Destination(
        name=row.name,
        kind=row.kind,
        options=shown_options(row.options),
        state=row.state,
        who=row.who,
        why=row.why,
        concurrency=row.policy.concurrency,
        rate=row.policy.rate,
        failures_max=row.policy.failures_max,
        timeout_s=row.policy.timeout_s,
        levels=row.policy.levels_s,
        failures=row.failures,
        failing_since=row.failing_since,
        fault=row.fault,
        error=row.error,
        rests_until=rests_until if rests_until is not None and rests_until > datetime.now(UTC) else None,
        created_at=row.created_at,
    )
