"""Notices: what operators should know of endpoints and deliveries, told to a function and to endpoints of their own.

    endpoint.failing     nothing has arrived there for a part of what disables it: 50, 70 and 90 percent, once each
    endpoint.disabled    by workq, or by a person: what is sent there is held from now on
    delivery.exhausted   it was tried as often as its schedule says, or its workers died too often
    delivery.recovered   it had failed, was sent again by a person, and has arrived

The last two are told once an hour for each endpoint, however many there are. A notice is a task that the ledger
recorded when it came to pass (webhooks/ledger/notices.py): it is told at least once, and again when the function
raises, with the same id; after `NOTICE_FAILURES_MAX` failures it is a dead task, and can be revived as any other.

Whoever adds an endpoint to the topic `workq` gets them as webhooks: signed, tried again, and seen, as all others. What
concerns such an endpoint itself is told to the function alone: nobody would learn of it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from workq.errors import ConfigError
from workq.handlers import answer, context
from workq.webhooks.values import OWN_TOPIC, NoticeKind

if TYPE_CHECKING:
    from workq.webhooks.ledger.sql import WebhookLedger


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that an operator should know.

    `id` is the same however often it is told. None: its kind has no such thing, or it was removed meanwhile.

    Attributes:
        endpoint, topic: which endpoint, and whose it is.
        percent, failures, failing_s: of an endpoint that fails: of what disables it, in a row, and for so many seconds.
        who, why: of one that was disabled.
        delivery, event_id, event_type: which delivery, and of what; `workq webhook delivery show ID --body` shows it.
        attempts, status, error_class: how often it was tried, and what came of the last time.
    """

    id: str
    kind: NoticeKind
    endpoint: str
    topic: str | None = None
    percent: int | None = None
    failures: int | None = None
    failing_s: int | None = None
    who: str | None = None
    why: str | None = None
    delivery: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    attempts: int | None = None
    status: int | None = None
    error_class: str | None = None

    def as_json(self) -> dict[str, Any]:
        """What is known of it."""
        known = asdict(self) | {"kind": self.kind.value}
        return {name: value for name, value in known.items() if value is not None}


class Herald:
    """Tells notices. Its `tell` is the handler of their tasks."""

    def __init__(
        self,
        webhooks: Callable[[], WebhookLedger],
        *,
        hook: Any,
        forward: Callable[[Notice], None],
    ) -> None:
        """`hook`: the application's function of one Notice, or None. `forward`: to operators' endpoints, repeatable.

        Raises:
            ConfigError: the hook is no plain function.
        """
        if hook is not None and (not callable(hook) or answer.is_coroutine_function(hook)):
            raise ConfigError("on_notice: need a function of one Notice, which is called in a thread: no async def")
        if answer.is_generator_function(hook):
            raise ConfigError("on_notice: need a function of one Notice; a generator is called, and never run")
        self._webhooks = webhooks
        self._hook = hook
        self._forward = forward

    def tell(self, kind: str, endpoint_id: str, facts: dict[str, Any]) -> None:
        """Tell one notice, of the task that runs."""
        webhooks = self._webhooks()
        endpoint = webhooks.endpoints.endpoint(endpoint_id)
        delivery = webhooks.deliveries.delivery(facts["delivery"]) if "delivery" in facts else None
        notice = Notice(
            id=context.running().task_id,
            kind=NoticeKind(kind),
            endpoint=endpoint_id,
            topic=None if endpoint is None else endpoint.topic,
            event_id=None if delivery is None else delivery.webhook_id,
            event_type=None if delivery is None else delivery.type or None,
            **facts,
        )
        if notice.topic != OWN_TOPIC and webhooks.endpoints.all(topic=OWN_TOPIC, limit=1):
            self._forward(notice)
        if self._hook is not None:
            answer.check(answer.call(self._hook, context.desk().wait_for, notice))
