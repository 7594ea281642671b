"""`workq webhook`: try an endpoint, or be one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from workq.cli import exits
from workq.cli.bulk import is_confirmed
from workq.cli.group import CommandGroup, Lazy
from workq.cli.inputs import Decimal, Duration, WholeNumber, document, dry_run_option, why_option, yes_option
from workq.cli.session import Session, pass_session
from workq.cli.show import answer, line, record, write
from workq.errors import MissingExtra
from workq.outbound.signing import check_secret, new_secret
from workq.values.plural import counted

if TYPE_CHECKING:
    from workq.webhooks.ping import Ping
    from workq.webhooks.receiver import Manner, Received


@click.group(
    cls=CommandGroup,
    examples="workq webhook endpoint add https://example.org/hooks\nworkq webhook delivery ls --state exhausted\n"
    "workq webhook test https://example.org/hooks",
    lazy={
        "endpoint": Lazy(
            "workq.cli.endpoint:endpoint", "Where webhooks go: add, ls, show, edit, disable, release, rotate, ..."
        ),
        "delivery": Lazy("workq.cli.delivery:delivery", "What was sent to whom, and each attempt: ls, show, retry."),
    },
)
def webhook() -> None:
    """Webhooks: signed requests to other people's servers."""


@webhook.command(
    "send",
    examples="workq webhook send invoice.paid --data '{\"id\": 17}'\n"
    "workq webhook send invoice.paid --data - --endpoint acme < invoice.json",
)
@click.argument("event_type", metavar="TYPE")
@click.option("--data", "source", default="{}", metavar="JSON", help="an object or an array; `-`: on standard input")
@click.option("--topic", metavar="NAME", help="whose endpoints  [default: default]")
@click.option("--endpoint", metavar="ID", help="this one alone, whatever types it wants")
@click.option("--event-id", metavar="ID", help="sent once, however often this is called")
@click.option("--order-key", metavar="KEY", help="endpoints with --ordered key keep the order of each key")
@pass_session
def send(session: Session, /, event_type: str, source: str, **given: Any) -> None:
    """Send an event of TYPE to all endpoints that want it. The application's workers deliver it.

    Where no endpoint wants it, nothing is sent: a warning says so, and the exit status is 0.
    """
    from workq.webhooks.outbox import Outbox

    outbox = Outbox(session.queue())
    args, kwargs = document(source, max_bytes=session.settings().payload_max_bytes, option="--data")
    session.may_make(session.settings())
    sent = outbox.send(event_type, list(args) or kwargs, **given)
    found = {
        "id": sent.id,
        "deliveries": [to_builtins(one) for one in sent.deliveries],
        "unheard": sent.unheard,
    }
    if sent.unheard is not None:
        session.warn(f"{sent.unheard}; see: workq webhook endpoint ls")
    answer(session, found, lambda: write(f"{sent.id}  to {counted(len(sent.deliveries), 'endpoint')}"))


@webhook.command(
    "recover", examples="workq webhook recover acme --since 2h --dry-run\nworkq webhook recover acme --since 2h --yes"
)
@click.argument("endpoint", metavar="ENDPOINT")
@click.option("--since", "since_s", type=Duration(), required=True, help="sent since then, such as 2h")
@dry_run_option("only count; exit 3 when there are any")
@yes_option("do not ask; needed where nobody can answer")
@why_option("recovered by an operator", "stored in the history")
@pass_session
def recover(session: Session, endpoint: str, since_s: float, dry_run: bool, yes: bool, why: str) -> int:
    """Send again what has failed for good at ENDPOINT: what is exhausted, or gone."""
    from workq.webhooks.outbox import Outbox

    session.stores()
    outbox = Outbox(session.queue())
    return _send_again(session, partial(outbox.recover, endpoint, since_s=since_s, why=why), dry_run=dry_run, yes=yes)


@webhook.command(
    "replay",
    examples="workq webhook replay --type 'invoice.*' --since 1d --until 12h --dry-run\n"
    "workq webhook replay --endpoint acme --since 1d --yes",
)
@click.option("--type", "event_type", metavar="TYPE", help="of this type only: invoice.paid, invoice.*")
@click.option("--endpoint", metavar="ID", help="to this one only")
@click.option("--since", "since_s", type=Duration(), required=True, help="sent since then, such as 1d")
@click.option("--until", "until_s", type=Duration(), help="sent before then, such as 12h")
@dry_run_option("only count; exit 3 when there are any")
@yes_option("do not ask; needed where nobody can answer")
@why_option("replayed by an operator", "stored in the history")
@pass_session
def replay(session: Session, /, dry_run: bool, yes: bool, **which: Any) -> int:
    """Send once more what was sent, whether it has arrived or not. Receivers see the same webhook-id."""
    from workq.webhooks.outbox import Outbox

    session.stores()
    outbox = Outbox(session.queue())
    return _send_again(session, partial(outbox.replay, **which), dry_run=dry_run, yes=yes)


def _send_again(session: Session, act: Callable[..., int], *, dry_run: bool, yes: bool) -> int:
    """Ask, unless `--yes` was given; `act` counts or sends."""
    count = act(dry_run=True) if dry_run or not yes else 0
    said = f"{counted(count, 'delivery', 'deliveries')} would be sent again"
    if not dry_run:
        if count and not is_confirmed(session, said):
            return exits.REFUSED
        count = act(dry_run=False)
        said = f"{counted(count, 'delivery is', 'deliveries are')} sent again"
    answer(session, {"count": count, "dry_run": dry_run}, lambda: write(said))
    return exits.FINDINGS if dry_run and count else exits.DONE


@webhook.command("test", examples="workq webhook test https://example.org/hooks\nworkq webhook test URL -o json")
@click.argument("endpoint", metavar="URL")
@click.option(
    "--secret",
    envvar="WORKQ_WEBHOOK_SECRET",
    help="sign with this one, whsec_..., or WORKQ_WEBHOOK_SECRET; otherwise with one made for this request",
)
@click.option("--timeout", "total_s", type=Decimal(0.1, 300.0), default=20.0, show_default=True, help="seconds in all")
@pass_session
def test(session: Session, endpoint: str, secret: str | None, total_s: float) -> int:
    """Send one signed `workq.ping` to URL, and tell what came of it. Nothing is recorded.

    Exit 1 unless it was delivered.
    """
    secret = new_secret() if secret is None else check_secret(secret)
    settings = session.settings()
    from workq.outbound.target import TargetPolicy, checked

    policy = TargetPolicy.of(
        settings.webhook_allow, settings.webhook_ports, settings.webhook_schemes, settings.webhook_proxy
    )
    checked(endpoint, policy)
    try:
        from workq.webhooks.ping import ping
    except ImportError:
        raise MissingExtra("webhooks need aiohttp: install the extra [webhooks]") from None
    found = asyncio.run(ping(endpoint, secret=secret, policy=policy, total_s=total_s))
    about = _document(found)
    answer(session, about, lambda: record([(name.replace("_", " "), value) for name, value in about.items()]))
    return exits.DONE if found.advice is None else exits.FAILED


def _document(found: Ping) -> dict[str, Any]:
    told = found.answer
    return {
        "url": found.url,
        "result": "delivered" if told.error_class is None else told.error_class,
        "error": told.error or None,
        "advice": found.advice,
        "status": told.status,
        "ms": round(told.ms, 1),
        "proxy": found.proxy,
        "addresses": ", ".join(told.addresses) or None,
        "connected_to": told.address,
        "tls": told.tls,
        "retry_after": told.retry_after,
        **{name.replace("-", "_"): value for name, value in found.headers.items()},
        "answer": told.body[:500].decode("utf-8", "replace") or None,
    }


@webhook.command("listen", examples="workq webhook listen\nworkq webhook listen --flaky 0.3 --secret whsec_...")
@click.option("--port", type=WholeNumber(0, 65535), default=8085, show_default=True, help="0: any that is free")
@click.option(
    "--secret",
    envvar="WORKQ_WEBHOOK_SECRET",
    help="verify with this one, or WORKQ_WEBHOOK_SECRET; what it did not sign is answered with 401",
)
@click.option("--status", type=WholeNumber(200, 599), default=200, show_default=True, help="what it answers")
@click.option("--delay", "delay_s", type=Decimal(0.0, 3600.0), default=0.0, help="seconds before it answers")
@click.option("--drip", is_flag=True, help="its answer never ends")
@click.option("--flaky", type=Decimal(0.0, 1.0), default=0.0, help="which share it answers with 503")
@click.option("--retry-after", help="a header that its answers have, as 30")
@click.option("--count", type=WholeNumber(1, 1_000_000), help="leave after so many requests")
@pass_session
def listen(session: Session, /, port: int, secret: str | None, count: int | None, **manner: Any) -> int:
    """Take webhooks on this machine, and print a line for each, until Ctrl-C. It misbehaves as it is told to."""
    try:
        from workq.webhooks.receiver import Manner
    except ImportError:
        raise MissingExtra("webhooks need aiohttp: install the extra [webhooks]") from None
    if secret is not None:
        check_secret(secret)
    try:
        asyncio.run(_listen(session, port, secret, Manner(**manner), count))
    except OSError as error:
        raise click.ClickException(f"port {port}: {error.strerror or error}; choose another with --port") from None
    return exits.DONE


async def _listen(session: Session, port: int, secret: str | None, manner: Manner, count: int | None) -> None:
    from workq.webhooks.receiver import Receiver

    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, done.set)

    def tell(got: Received) -> None:
        verified = "not checked" if secret is None else "verified" if got.problem is None else got.problem
        about = {name: value for name, value in asdict(got).items() if name != "body"} | {"verified": verified}
        what = f"{got.webhook_id or '-'}  {got.event_type or '-'}  {got.size} bytes"
        line(session, about, f"{got.number}  {what}  {verified}  -> {got.status}")
        if got.number == count:
            loop.call_later(0.1, done.set)

    receiver = Receiver(secret=secret, manner=manner, tell=tell)
    bound = await receiver.start(port=port)
    try:
        session.note(f"listening on http://127.0.0.1:{bound}/ ; Ctrl-C ends it")
        await done.wait()
    finally:
        await receiver.stop()
