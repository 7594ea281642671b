"""Endpoints: added, changed and looked at. Everything is checked before it is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from workq.errors import ConfigError, NotFound
from workq.outbound.backoff import check_steps
from workq.outbound.signing import check_secret, new_secret
from workq.outbound.target import TargetPolicy, check_header_alias, check_headers, checked
from workq.outbound.vault import SECRETS_MAX, Content, Secret, Vault
from workq.values.codec import new_task_id
from workq.values.incarnation import this_person
from workq.values.limit_rule import check_concurrency, check_rate
from workq.values.names import check_choice, check_delay_s
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import (
    CONCURRENCY,
    DeliveryState,
    EndpointChange,
    EndpointOptions,
    EndpointRow,
    EndpointState,
    NewEndpoint,
    OnGone,
    Ordered,
    WhichDeliveries,
    check_endpoint_id,
    check_topic,
    check_types,
)

if TYPE_CHECKING:
    from workq.app import WorkQueue

TOPIC: Final = "default"
GRACE_S: Final = 86_400.0
GRACE_MAX_S: Final = 7 * 86_400.0
TIMEOUT_MAX_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where webhooks go. `headers`: their names; what they say is kept to itself, as the secret is.

    Times are seconds; None: as for all. `failures` in a row, since `failing_since`. `old_secrets`: until when those
    that were replaced still sign.
    """

    id: str
    topic: str
    url: str
    types: tuple[str, ...]
    state: EndpointState
    why: str | None
    retry_schedule: tuple[float, ...] | None
    concurrency: int
    rate: str | None
    connect_s: float | None
    total_s: float | None
    max_age_s: float | None
    ordered: Ordered
    on_410: OnGone
    header_alias: str | None
    headers: tuple[str, ...]
    old_secrets: tuple[datetime, ...]
    failures: int
    failing_since: datetime | None
    created_at: datetime
    rests_until: datetime | None = None
    """Enabled, but nothing is sent before: it has answered 429, or has failed again and again."""
    secret: str | None = field(default=None, repr=False)
    """Told once, to whoever adds it or rotates it."""


class Endpoints:
    """The endpoints of an application. Who has changed one and why is kept in the history, also when it is removed."""

    def __init__(self, app: WorkQueue) -> None:
        self._app = app
        settings = app.settings
        self.vault = Vault(settings.secret_key)
        self.policy = TargetPolicy.of(
            settings.webhook_allow, settings.webhook_ports, settings.webhook_schemes, settings.webhook_proxy
        )

    def add(
        self,
        url: str,
        *,
        endpoint_id: str | None = None,
        topic: str = TOPIC,
        types: Sequence[str] = ("*",),
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        why: str = "added by a person",
        who: str | None = None,
        **options: Any,
    ) -> Endpoint:
        """Add an endpoint; its secret is in the answer, and nowhere else from then on.

        Args:
            url: where webhooks go.
            endpoint_id: its name; made up without one.
            topic: what is sent to this topic goes to it.
            types: of the events that it wants: `invoice.paid`, `invoice.*`, `*`.
            secret: `whsec_...`; made without one.
            headers: what its requests say beside those of every webhook.
            why: kept in the history.
            who: kept in the history; `user@host` of the process without it.
            options: `retry_schedule` (the waits behind the first attempt, the second, ... in seconds; or `growing()`),
                `concurrency` (requests at once), `rate` (`"10/s"`), `connect_s` and `total_s` (deadlines), `max_age_s`,
                `ordered` (`endpoint` or `key`: one after the other, in the order in which they were sent), `on_410`
                (`disable` it at once, or `confirm`: only if an hour later it answers so again), `header_alias`
                (`"svix"`: the headers of every webhook are there as `svix-id` and its like, too).

        Raises:
            ConfigError: something of it is wrong; nothing was stored. Refused: there is one of that id.
        """
        checked(url, self.policy)
        made = new_secret() if secret is None else check_secret(secret)
        content = Content((Secret(made),), check_headers(headers or {}))
        new = NewEndpoint(
            f"ep_{new_task_id().replace('-', '')}" if endpoint_id is None else check_endpoint_id(endpoint_id),
            check_topic(topic),
            url,
            check_types(types),
            self.vault.seal(content),
            _options(EndpointOptions(), options),
        )
        endpoints = self._app.stores.ledger.part(WebhookLedger).endpoints
        return self._told(endpoints.add_endpoint(new, who=who or this_person(), why=why), secret=made)

    def get(self, endpoint_id: str) -> Endpoint:
        """One endpoint.

        Raises:
            NotFound: there is none of that id.
        """
        return self._told(self._row(endpoint_id))

    def all(self, *, topic: str | None = None, state: EndpointState | None = None) -> Iterator[Endpoint]:
        """Those of a topic, or all, by their ids."""
        after: str | None = None
        while page := self._app.existing.ledger.part(WebhookLedger).endpoints.all(
            topic=topic, state=state, after=after
        ):
            yield from (self._told(row) for row in page)
            after = page[-1].id

    def edit(
        self,
        endpoint_id: str,
        *,
        url: str | None = None,
        topic: str | None = None,
        types: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        why: str = "edited by a person",
        who: str | None = None,
        **options: Any,
    ) -> Endpoint:
        """Change what is given, from the next attempt on, also for what was sent before. See `add`.

        `headers`: all of them. An option that is None is as for all again. `ordered` holds for what is sent from then
        on; what was sent before keeps the order that it has, or none.

        Raises:
            ConfigError: something of it is wrong. NotFound: there is none of that id.
            Refused: somebody else has changed its secrets or headers in this moment.
        """
        row = self._row(endpoint_id)
        if url is not None:
            checked(url, self.policy)
        sealed = None
        if headers is not None:
            content = self.vault.open(row.sealed)
            sealed = self.vault.seal(Content(content.secrets, check_headers(headers)))
        change = EndpointChange(
            topic=None if topic is None else check_topic(topic),
            url=url,
            types=None if types is None else check_types(types),
            sealed=sealed,
            options=_options(row.options, options) if options else None,
        )
        self._app.existing.ledger.part(WebhookLedger).endpoints.change_endpoint(
            endpoint_id,
            change,
            what="edited",
            who=who or this_person(),
            why=why,
            sealed_before=None if sealed is None else row.sealed,
        )
        return self.get(endpoint_id)

    def rotate(
        self,
        endpoint_id: str,
        *,
        secret: str | None = None,
        grace_s: float = GRACE_S,
        why: str = "rotated by a person",
        who: str | None = None,
    ) -> Endpoint:
        """Give an endpoint another secret, which is in the answer. For `grace_s` requests are signed with both.

        The secret that it has and no grace: its old ones no longer sign.

        Raises:
            ConfigError: no secret, or no grace up to seven days; or too many old ones still sign.
            NotFound: there is none of that id. Refused: somebody else has changed it in this moment.
        """
        made = new_secret() if secret is None else check_secret(secret)
        if not 0.0 <= check_delay_s(grace_s, "grace_s") <= GRACE_MAX_S:
            raise ConfigError(f"grace_s: need 0 to {GRACE_MAX_S:.0f} seconds (seven days), got {grace_s!r}")
        row = self._row(endpoint_id)
        content, now = self.vault.open(row.sealed), datetime.now(UTC)
        until = now + timedelta(seconds=grace_s)
        old = [Secret(one.text, until if one.until is None else min(one.until, until)) for one in content.secrets]
        kept = tuple(one for one in old if one.until is not None and one.until > now and one.text != made)
        if len(kept) >= SECRETS_MAX:
            signing = SECRETS_MAX - 1
            raise ConfigError(f"{signing} old secrets of {endpoint_id!r} still sign; rotate with a shorter grace")
        sealed = self.vault.seal(Content((Secret(made), *kept), content.headers))
        self._app.existing.ledger.part(WebhookLedger).endpoints.change_endpoint(
            endpoint_id,
            EndpointChange(sealed=sealed),
            what="rotated",
            who=who or this_person(),
            why=why,
            sealed_before=row.sealed,
        )
        return self._told(self._row(endpoint_id), secret=made)

    def seal(self, *, why: str = "sealed by a person", who: str | None = None) -> int:
        """Write the secrets of all endpoints anew, with the newest key of WORKQ_SECRET_KEY; answers how many."""
        count, by = 0, who or this_person()
        for one in self.all():
            row = self._row(one.id)
            sealed = self.vault.seal(self.vault.open(row.sealed))
            self._app.existing.ledger.part(WebhookLedger).endpoints.change_endpoint(
                one.id, EndpointChange(sealed=sealed), what="sealed", who=by, why=why, sealed_before=row.sealed
            )
            count += 1
        return count

    def disable(self, endpoint_id: str, *, why: str = "disabled by a person", who: str | None = None) -> Endpoint:
        """Send nothing there any more, from now on. What is open, and what is sent meanwhile, is held.

        Raises:
            NotFound: there is none of that id.
        """
        by = who or this_person()
        self._app.existing.ledger.part(WebhookLedger).decisions.disable_endpoint(
            check_endpoint_id(endpoint_id), who=by, why=why
        )
        return self.get(endpoint_id)

    def enable(self, endpoint_id: str, *, why: str = "enabled by a person", who: str | None = None) -> int:
        """Send there again, from now on; answers how many deliveries are held: `release` them, or `discard` them.

        Raises:
            NotFound: there is none of that id.
        """
        by = who or this_person()
        return self._app.existing.ledger.part(WebhookLedger).decisions.enable_endpoint(
            check_endpoint_id(endpoint_id), who=by, why=why
        )

    def held(self, endpoint_id: str) -> int:
        """How many deliveries are held."""
        which = WhichDeliveries(endpoint_id=check_endpoint_id(endpoint_id), state=DeliveryState.HELD)
        return (
            self._app.existing.ledger.part(WebhookLedger).deliveries.delivery_counts(which).get(DeliveryState.HELD, 0)
        )

    def known(self, endpoint_id: str) -> int:
        """How many deliveries are kept, whatever has become of them."""
        which = WhichDeliveries(endpoint_id=check_endpoint_id(endpoint_id))
        return sum(self._app.existing.ledger.part(WebhookLedger).deliveries.delivery_counts(which).values())

    def release(self, endpoint_id: str, *, why: str = "released by a person", who: str | None = None) -> int:
        """Send what is held, the oldest first, or in its order; answers how many deliveries that are.

        Who has decided and why is kept in the history of each task.

        Raises:
            NotFound: there is none of that id. Refused: it is disabled.
        """
        count, by = 0, who or this_person()
        while True:
            page, hints = self._app.existing.ledger.part(WebhookLedger).decisions.release_held(
                check_endpoint_id(endpoint_id), who=by, why=why
            )
            if not page:
                return count
            self._app.producer.relay.offer(hints)
            count += page

    def discard(self, endpoint_id: str, *, why: str = "discarded by a person", who: str | None = None) -> int:
        """Give up what is held; answers how many deliveries that were.

        Who has decided and why is kept in the history of each task.

        Raises:
            NotFound: there is none of that id.
        """
        count, by = 0, who or this_person()
        while page := self._app.existing.ledger.part(WebhookLedger).decisions.discard_held(
            check_endpoint_id(endpoint_id), who=by, why=why
        ):
            count += page
        return count

    def remove(self, endpoint_id: str, *, why: str = "removed by a person", who: str | None = None) -> None:
        """Forget an endpoint, of which nothing is open any more, with its deliveries.

        Raises:
            NotFound: there is none of that id. Refused: something is on its way to it.
        """
        by = who or this_person()
        self._app.existing.ledger.part(WebhookLedger).endpoints.remove_endpoint(
            check_endpoint_id(endpoint_id), who=by, why=why
        )

    def _row(self, endpoint_id: str) -> EndpointRow:
        found = self._app.existing.ledger.part(WebhookLedger).endpoints.endpoint(check_endpoint_id(endpoint_id))
        if found is None:
            raise NotFound(f"no endpoint {endpoint_id!r}; see: workq webhook endpoint ls")
        return found

    def _told(self, row: EndpointRow, *, secret: str | None = None) -> Endpoint:
        try:
            content = self.vault.open(row.sealed)
        except ConfigError:  # another may have the key
            content = Content(())
        now = datetime.now(UTC)
        return Endpoint(
            id=row.id,
            topic=row.topic,
            url=row.url,
            types=row.types,
            state=row.state,
            why=row.why,
            retry_schedule=row.options.steps_s,
            concurrency=row.options.concurrency,
            rate=row.options.rate,
            connect_s=row.options.connect_s,
            total_s=row.options.total_s,
            max_age_s=row.options.max_age_s,
            ordered=row.options.ordered,
            on_410=row.options.on_410,
            header_alias=row.options.header_alias,
            headers=tuple(sorted(content.headers)),
            old_secrets=tuple(one.until for one in content.secrets if one.until is not None and one.until > now),
            failures=row.failures,
            failing_since=row.failing_since,
            created_at=row.created_at,
            rests_until=row.rests_until,
            secret=secret,
        )


def _options(before: EndpointOptions, given: Mapping[str, Any]) -> EndpointOptions:
    """Those options, with what is given in their place."""
    options = before
    for name, value in given.items():
        match name:
            case "retry_schedule":
                options = replace(options, steps_s=None if value is None else check_steps(value))
            case "concurrency":
                options = replace(options, concurrency=CONCURRENCY if value is None else check_concurrency(value))
            case "rate":
                options = replace(options, rate=None if value is None else check_rate(value))
            case "connect_s":
                options = replace(options, connect_s=None if value is None else _timeout_s(value, name))
            case "total_s":
                options = replace(options, total_s=None if value is None else _timeout_s(value, name))
            case "max_age_s":
                options = replace(options, max_age_s=None if value is None else check_delay_s(value, name))
            case "ordered":
                options = replace(
                    options, ordered=Ordered.NO if value is None else check_choice(value, Ordered, "ordered")
                )
            case "on_410":
                options = replace(
                    options, on_410=OnGone.DISABLE if value is None else check_choice(value, OnGone, "on_410")
                )
            case "header_alias":
                options = replace(options, header_alias=None if value is None else check_header_alias(value))
            case _:
                raise TypeError(f"unexpected option {name!r}")
    return options


def _timeout_s(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= TIMEOUT_MAX_S:
        raise ConfigError(f"{name}: need seconds above 0, up to {TIMEOUT_MAX_S:.0f}, got {value!r}")
    return float(value)
