"""`workq enqueue`: record a task by its name."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from workq.cli.group import Command, nearest
from workq.cli.inputs import Duration, InstantText, QueueName, arguments, document
from workq.cli.session import Session
from workq.cli.show import answer, write
from workq.errors import UnknownTask
from workq.jobs.values import SPLIT
from workq.values.task import Priority

_EXAMPLES = """
workq enqueue shop.reindex product_id=42
workq enqueue mail.send to=ann@example.org retries=3 'tags=["a","b"]' --in 10m
echo '{"product_id": 42}' | workq enqueue shop.reindex --json - --key product:42
workq enqueue report.nightly --at 2026-11-21T03:00Z --queue reports --priority low
"""


@click.command(cls=Command, examples=_EXAMPLES)
@click.argument("name")
@click.argument("pairs", nargs=-1, metavar="[ARGUMENT=VALUE]...")
@click.option("--json", "source", metavar="JSON | -", help="arguments as a JSON object or array; - reads stdin")
@click.option("--in", "delay_s", type=Duration(), metavar="TIME", help="run it in 90s, 10m, 2h or 1d")
@click.option("--at", type=InstantText(), metavar="TIME", help="run it at 2026-11-21T03:00Z")
@click.option("--key", metavar="KEY", help="at most one live task of this name has it; that one is answered")
@click.option("--key-for", "key_for_s", type=Duration(), metavar="TIME", help="hold the key so long in any case")
@click.option("--queue", type=QueueName(), help="another queue than the handler's own")
@click.option("--priority", type=click.Choice([one.value for one in Priority]), help="instead of the handler's own")
@click.option("--expires", "expires_s", type=Duration(), metavar="TIME", help="start it within 90s, 10m, 2h, or never")
@click.pass_context
def enqueue(
    ctx: click.Context,
    /,
    name: str,
    pairs: tuple[str, ...],
    source: str | None,
    delay_s: float | None,
    at: datetime | None,
    queue: str | None,
    **options: Any,
) -> None:
    """Record a task of your application by its name, with the options that its code gives it.

    A VALUE that is JSON (42, true, null, "x", [1], {"a": 1}) is that value; anything else is text. To pass the text 42,
    write '"42"'.
    """
    if delay_s is not None and at is not None:
        raise click.UsageError("--in and --at: give one of them", ctx)
    if source is not None and pairs:
        raise click.UsageError("--json and ARGUMENT=VALUE: give one of them", ctx)
    session = ctx.ensure_object(Session)
    app, path = session.application()
    handler = app.registry.get(name)
    if handler is None:
        known = app.registry.names()
        hint = nearest(name, known) or f"; it has {', '.join(known[:20]) or 'none'}"
        raise UnknownTask(f"{path} has no task {name[:200]!r}{hint}")
    if (job := name.removesuffix(SPLIT)) in app.registry.jobs:
        raise click.UsageError(f"{job} is a job, which makes its tasks itself; start it by: workq job run {job}", ctx)
    if source is not None:
        # JSON may be spread over lines: only what is left of it is measured against the payload's limit
        args, kwargs = document(source, max_bytes=4 * app.settings.payload_max_bytes)
    else:
        args, kwargs = (), arguments(pairs)
    misfit = handler.fits(args, kwargs)
    if misfit is not None:
        raise click.UsageError(f"{name}: {misfit}", ctx)
    call = handler.options(delay_s=delay_s, at=at, queue=queue, **options)
    own = app.registry.queues()
    if queue is not None and queue not in own and (proposed := nearest(queue, own)):
        session.warn(f"no task of {path} uses the queue {queue!r} by default{proposed}")
    session.may_make(app.settings)
    recorded = call.enqueue(*args, **kwargs)
    answer(
        session,
        {"id": recorded.id, "state": recorded.state, "created": recorded.created},
        lambda: write(f"{recorded.id}  {recorded.state}{'' if recorded.created else '  (it existed already)'}"),
    )
