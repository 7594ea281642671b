"""`workq webhook delivery`: what was sent to whom, and what came of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from workq.cli import exits
from workq.cli.group import CommandGroup
from workq.cli.inputs import Duration, TaskId, WholeNumber, dry_run_option, why_option
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, clean, record, table, text_of, write
from workq.errors import NotFound
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import AttemptRow, DeliveryState, WhichDeliveries, check_endpoint_id


@click.group(
    "delivery",
    cls=CommandGroup,
    examples="workq webhook delivery ls --state exhausted\n"
    "workq webhook delivery show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f",
)
def delivery() -> None:
    """Deliveries: one webhook on its way to one endpoint, and each of its attempts."""


@delivery.command(
    "ls",
    examples="workq webhook delivery ls --endpoint acme --state exhausted\n"
    "workq webhook delivery ls --error-class tls --since 2h -o json",
)
@click.option("--endpoint", "endpoint_id", metavar="ID", help="to this one only")
@click.option("--event", "webhook_id", metavar="ID", help="of this webhook only")
@click.option("--type", "event_type", metavar="TYPE", help="of this type only: invoice.paid, invoice.*")
@click.option("--state", type=click.Choice([one.value for one in DeliveryState]), help="only those")
@click.option("--error-class", metavar="WORD", help="whose last attempt failed so: dns, tls, server_error, ...")
@click.option("--status", type=WholeNumber(100, 599), help="whose last answer was this")
@click.option("--since", "since_s", type=Duration(), help="sent since then, such as 2h")
@click.option("--until", "until_s", type=Duration(), help="sent before then, such as 1h")
@click.option("--limit", type=WholeNumber(1, 10_000), default=100, show_default=True, help="so many at most")
@pass_session
def ls(session: Session, /, event_type: str | None, state: str | None, limit: int, **given: Any) -> None:
    """Deliveries from the newest, and how many there are in each state."""
    if given["endpoint_id"] is not None:
        check_endpoint_id(given["endpoint_id"])
    which = WhichDeliveries(type=event_type, state=None if state is None else DeliveryState(state), **given)
    ledger = session.stores().ledger
    found = ledger.part(WebhookLedger).deliveries.all(which, limit=limit)
    counts = {one.value: count for one, count in ledger.part(WebhookLedger).deliveries.delivery_counts(which).items()}
    columns = [
        Column("id", is_whole=True),
        *(Column(name) for name in ("type", "endpoint", "state")),
        Column("attempts", is_number=True),
        *(Column(name) for name in ("status", "error class", "created", "next")),
    ]
    rows = [
        (
            *(one.id, one.type, one.endpoint_id, one.state, one.attempts),
            *(one.status, one.error_class, one.created_at, one.next_at),
        )
        for one in found
    ]

    def as_text() -> None:
        table(session, columns, rows, empty="no deliveries")
        if len(found) == limit:
            session.note(f"the newest {limit} of: " + ", ".join(f"{count} {name}" for name, count in counts.items()))

    answer(session, {"deliveries": [asdict(one) for one in found], "counts": counts}, as_text)


@delivery.command(
    "show",
    examples="workq webhook delivery show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f\n"
    "workq webhook delivery show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --body",
)
@click.argument("delivery_id", metavar="ID", type=TaskId("delivery"))
@click.option("--body", "with_body", is_flag=True, help="what is sent, too")
@pass_session
def show(session: Session, delivery_id: str, with_body: bool) -> None:
    """One delivery and its attempts: where to, the answer, how long it took, and when it is tried again."""
    ledger = session.stores().ledger
    found = ledger.part(WebhookLedger).deliveries.delivery(delivery_id)
    if found is None:
        raise NotFound(f"no delivery {delivery_id}; see: workq webhook delivery ls")
    attempts = ledger.part(WebhookLedger).deliveries.attempts(delivery_id)
    document = asdict(found) | {"log": [asdict(one) for one in attempts]}
    if with_body:
        document["body"] = ledger.part(WebhookLedger).deliveries.webhook_body(found.webhook_id)

    def as_text() -> None:
        record(list(asdict(found).items()))
        for one in attempts:
            write(clean(_line(one)))
        if with_body:
            write(clean(text_of(document["body"])))

    answer(session, document, as_text)


@delivery.command("retry", examples="workq webhook delivery retry 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f")
@click.argument("delivery_id", metavar="ID", type=TaskId("delivery"))
@dry_run_option("only say whether it would be; exit 3 then")
@why_option("retried by an operator", "stored in the history")
@pass_session
def retry(session: Session, delivery_id: str, dry_run: bool, why: str) -> int:
    """Try a delivery again now, whether it waits for its next attempt or has ended: then its schedule begins anew."""
    from workq.webhooks.outbox import Outbox

    session.stores()
    is_retried = Outbox(session.queue()).retry(delivery_id, dry_run=dry_run, why=why)
    again = "it would be tried again" if dry_run else "it is tried again"
    said = again if is_retried else "it is being sent just now"
    answer(session, {"id": delivery_id, "retried": is_retried, "dry_run": dry_run}, lambda: write(said))
    return exits.FINDINGS if dry_run and is_retried else exits.DONE


def _line(one: AttemptRow) -> str:
    status = "" if one.status is None else f"{one.status} "
    result = "delivered" if one.error_class is None else f"{one.error_class}: {one.error or '-'}"
    again = "" if one.next_at is None else f", again at {text_of(one.next_at)}"
    answered = f"  {one.answer[:200]!r}" if one.answer else ""
    tried = f"{text_of(one.at)}  {one.number} {one.cause}  {one.url}"
    return f"{tried}  {status}{result}  {one.duration_ms:.0f} ms{again}{answered}"
