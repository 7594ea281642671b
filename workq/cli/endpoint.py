"""`workq webhook endpoint`: where webhooks go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Final

import click

from workq.cli import exits
from workq.cli.bulk import is_confirmed
from workq.cli.group import CommandGroup
from workq.cli.inputs import Decimal, Duration, WholeNumber, dry_run_option, lines_of, stacked, why_option, yes_option
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table, text_of, write
from workq.outbound.backoff import growing
from workq.outbound.target import check_headers
from workq.values.names import seconds_of
from workq.values.plural import counted
from workq.webhooks.endpoints import GRACE_S, TOPIC, Endpoint, Endpoints
from workq.webhooks.values import EndpointState, OnGone, Ordered


@click.group(
    "endpoint",
    cls=CommandGroup,
    examples="workq webhook endpoint add https://example.org/hooks --type 'invoice.*'\nworkq webhook endpoint ls",
)
def endpoint() -> None:
    """Endpoints: where webhooks go, of which types, signed with which secret."""


_options: Final = stacked(
    click.option("--topic", metavar="NAME", help="what is sent to this topic goes to it"),
    click.option("--type", "types", multiple=True, metavar="TYPE", help="invoice.paid, invoice.* or *; repeat it"),
    click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="said in each request; repeat it"),
    click.option(
        "--header-file",
        metavar="FILE | -",
        help="headers with secrets: NAME=VALUE, one a line, from a file or from standard input",
    ),
    click.option(
        "--retry-schedule",
        metavar="5s,5m,1h",
        help="waits behind the first attempt, the second, ...; `5s..1h*12`: 12 of them, doubling; `spec`",
    ),
    click.option("--concurrency", type=WholeNumber(1, 10_000), help="requests at once"),
    click.option("--rate", metavar="N/s", help="requests in a time, such as 10/s; `none`"),
    click.option("--connect", "connect_s", type=Decimal(0.1, 300.0), help="seconds to connect"),
    click.option("--timeout", "total_s", type=Decimal(0.1, 300.0), help="seconds in all"),
    click.option(
        "--ordered",
        type=click.Choice([one.value for one in Ordered]),
        help="one after the other: all of them, or those of a key",
    ),
    click.option("--max-age", "max_age_s", type=Duration(), help="nothing is sent that is older, such as 3d"),
    click.option(
        "--on-410",
        type=click.Choice([one.value for one in OnGone]),
        help="what a 410 leads to; confirm: asked once more, an hour later",
    ),
    click.option(
        "--header-alias",
        metavar="NAME",
        help="svix: its headers are there as svix-id, svix-timestamp and svix-signature, too; `none`",
    ),
)
"""Those that an endpoint is added and edited with."""


@endpoint.command(
    "add",
    examples="workq webhook endpoint add https://example.org/hooks --id acme --type 'invoice.*'\n"
    "workq webhook endpoint add https://example.org/hooks -o json | jq -r .secret",
)
@click.argument("target", metavar="URL")
@click.option("--id", "endpoint_id", metavar="ID", help="its name; made up without one")
@click.option(
    "--secret", envvar="WORKQ_WEBHOOK_NEW_SECRET", help="whsec_..., or WORKQ_WEBHOOK_NEW_SECRET; made without one"
)
@_options
@why_option("added by an operator", "stored in the history")
@pass_session
def add(session: Session, /, target: str, endpoint_id: str | None, secret: str | None, why: str, **given: Any) -> None:
    """Add an endpoint. Its secret is told here, and never again."""
    endpoints = Endpoints(session.queue())
    options = _given(given)
    options.setdefault("topic", TOPIC)
    options.setdefault("types", ("*",))
    session.may_make(session.settings())
    made = endpoints.add(target, endpoint_id=endpoint_id, secret=secret, why=why, **options)
    answer(session, _document(made), lambda: record(list(_document(made).items())))
    session.note("the secret is not shown again: give it to the receiver")


@endpoint.command("ls", examples="workq webhook endpoint ls\nworkq webhook endpoint ls --topic acme -o json")
@click.option("--topic", metavar="NAME", help="of this one only")
@click.option("--state", type=click.Choice([one.value for one in EndpointState]), help="only those")
@pass_session
def ls(session: Session, topic: str | None, state: str | None) -> None:
    """Each endpoint, and whether anything arrives there."""
    session.stores()
    found = list(Endpoints(session.queue()).all(topic=topic, state=None if state is None else EndpointState(state)))
    columns = [
        *(Column(name, is_whole=name == "id") for name in ("id", "topic", "url", "types", "state")),
        Column("failures", is_number=True),
        Column("failing since"),
    ]
    rows = [
        (one.id, one.topic, one.url, ",".join(one.types), _state(one), one.failures, one.failing_since) for one in found
    ]
    answer(
        session,
        {"endpoints": [_document(one) for one in found]},
        lambda: table(session, columns, rows, empty="no endpoints; add one: workq webhook endpoint add URL"),
    )


@endpoint.command("show", examples="workq webhook endpoint show acme")
@click.argument("endpoint_id", metavar="ID")
@pass_session
def show(session: Session, endpoint_id: str) -> None:
    """One endpoint, without its secret and what its headers say."""
    session.stores()
    found = Endpoints(session.queue()).get(endpoint_id)
    document = _document(found)
    answer(session, document, lambda: record(list((document | {"state": _state(found)}).items())))


@endpoint.command(
    "edit",
    examples="workq webhook endpoint edit acme --to https://example.org/v2/hooks\n"
    "workq webhook endpoint edit acme --rate 10/s --retry-schedule 5s,5m,1h",
)
@click.argument("endpoint_id", metavar="ID")
@click.option("--to", "target", metavar="URL", help="another URL, also for what was sent before")
@_options
@why_option("edited by an operator", "stored in the history")
@pass_session
def edit(session: Session, /, endpoint_id: str, target: str | None, why: str, **given: Any) -> None:
    """Change an endpoint: what is given, and from the next attempt on. `--header` and its file replace all headers."""
    options = _given(given)
    if target is None and not options:
        raise click.UsageError("nothing to change; see: workq webhook endpoint edit --help")
    endpoints = Endpoints(session.queue())
    session.stores()
    found = _document(endpoints.edit(endpoint_id, url=target, why=why, **options))
    answer(session, found, lambda: record(list(found.items())))


@endpoint.command(
    "rotate", examples="workq webhook endpoint rotate acme\nworkq webhook endpoint rotate acme --grace 2d"
)
@click.argument("endpoint_id", metavar="ID")
@click.option(
    "--secret", envvar="WORKQ_WEBHOOK_NEW_SECRET", help="whsec_..., or WORKQ_WEBHOOK_NEW_SECRET; made without one"
)
@click.option(
    "--grace", metavar="1d", default=f"{GRACE_S / 86_400:.0f}d", show_default=True, help="signed with both; 0s: no"
)
@why_option("rotated by an operator", "stored in the history")
@pass_session
def rotate(session: Session, endpoint_id: str, secret: str | None, grace: str, why: str) -> None:
    """Give it another secret. For some time its requests are signed with both, so that nobody is in a hurry."""
    grace_s = seconds_of(grace)
    if grace_s is None:
        raise click.UsageError(f"--grace: {grace[:60]!a} is no duration; write 12h or 2d")
    session.stores()
    made = _document(Endpoints(session.queue()).rotate(endpoint_id, secret=secret, grace_s=grace_s, why=why))
    answer(session, made, lambda: record(list(made.items())))
    session.note("the secret is not shown again: give it to the receiver")


@endpoint.command("disable", examples='workq webhook endpoint disable acme --why "they are moving"')
@click.argument("endpoint_id", metavar="ID")
@why_option(None, "stored in the history, and shown with the endpoint")
@pass_session
def disable(session: Session, endpoint_id: str, why: str) -> None:
    """Send nothing there any more, from now on. What is open, and what is sent meanwhile, is held."""
    session.stores()
    Endpoints(session.queue()).disable(endpoint_id, why=why)
    answer(session, {"id": endpoint_id, "state": "disabled"}, lambda: write("disabled; what waits is held"))


@endpoint.command("enable", examples="workq webhook endpoint enable acme\nworkq webhook endpoint enable acme --release")
@click.argument("endpoint_id", metavar="ID")
@click.option("--release", "is_released", is_flag=True, help="send what is held, too")
@why_option("enabled by an operator", "stored in the history, and with the endpoint")
@pass_session
def enable(session: Session, endpoint_id: str, is_released: bool, why: str) -> None:
    """Send there again, from now on. What is held stays so until it is released or discarded."""
    session.stores()
    endpoints = Endpoints(session.queue())
    held = endpoints.enable(endpoint_id, why=why)
    released = endpoints.release(endpoint_id, why=why) if is_released else 0
    said = f"enabled; {released} released" if is_released else f"enabled; {held} held"
    found = {"id": endpoint_id, "state": "enabled", "held": held - released, "released": released}
    answer(session, found, lambda: write(said))


@endpoint.command(
    "release", examples="workq webhook endpoint release acme --dry-run\nworkq webhook endpoint release acme"
)
@click.argument("endpoint_id", metavar="ID")
@dry_run_option("only count; exit 3 when there are any")
@why_option("released by an operator", "stored in the history")
@pass_session
def release(session: Session, endpoint_id: str, dry_run: bool, why: str) -> int:
    """Send what is held of an endpoint, the oldest first."""
    session.stores()
    endpoints = Endpoints(session.queue())
    return _counted(session, endpoints, endpoint_id, partial(endpoints.release, why=why), "released", dry_run=dry_run)


@endpoint.command(
    "discard", examples="workq webhook endpoint discard acme --dry-run\nworkq webhook endpoint discard acme --yes"
)
@click.argument("endpoint_id", metavar="ID")
@dry_run_option("only count; exit 3 when there are any")
@yes_option("do not ask; needed where nobody can answer")
@why_option("discarded by an operator", "stored in the history")
@pass_session
def discard(session: Session, endpoint_id: str, dry_run: bool, yes: bool, why: str) -> int:
    """Give up what is held of an endpoint: it is cancelled, and may still be sent again one by one.

    It shows the count and asks first; where nobody can answer it needs --yes, and exits with 6 without.
    """
    session.stores()
    endpoints = Endpoints(session.queue())
    if not (dry_run or yes):
        endpoints.get(endpoint_id)
        held = endpoints.held(endpoint_id)
        if held and not is_confirmed(session, f"{counted(held, 'delivery', 'deliveries')} would be discarded"):
            return exits.REFUSED
    return _counted(session, endpoints, endpoint_id, partial(endpoints.discard, why=why), "discarded", dry_run=dry_run)


def _counted(
    session: Session,
    endpoints: Endpoints,
    endpoint_id: str,
    act: Callable[[str], int],
    what: str,
    *,
    dry_run: bool,
) -> int:
    """Do it to what is held, or only count that."""
    endpoints.get(endpoint_id)
    count = endpoints.held(endpoint_id) if dry_run else act(endpoint_id)
    said = f"{count} would be {what}" if dry_run else f"{count} {what}"
    answer(session, {"id": endpoint_id, what: count, "dry_run": dry_run}, lambda: write(said))
    return exits.FINDINGS if dry_run and count else exits.DONE


@endpoint.command("rm", examples="workq webhook endpoint rm acme\nworkq webhook endpoint rm acme --yes")
@click.argument("endpoint_id", metavar="ID")
@yes_option("do not ask; needed where nobody can answer")
@why_option("removed by an operator", "stored in the history")
@pass_session
def rm(session: Session, endpoint_id: str, yes: bool, why: str) -> int:
    """Forget an endpoint with its deliveries. Refused while something is on its way to it.

    It asks first; where nobody can answer it needs --yes, and exits with 6 without.
    """
    session.stores()
    endpoints = Endpoints(session.queue())
    endpoints.get(endpoint_id)
    if not yes:
        known = counted(endpoints.known(endpoint_id), "delivery", "deliveries")
        if not is_confirmed(session, f"{endpoint_id} and its {known} would be forgotten"):
            return exits.REFUSED
    endpoints.remove(endpoint_id, why=why)
    answer(session, {"id": endpoint_id, "removed": True}, lambda: write("removed"))
    return exits.DONE


@endpoint.command("seal", examples="workq webhook endpoint seal")
@why_option("sealed by an operator", "stored in the history")
@pass_session
def seal(session: Session, why: str) -> None:
    """Write the secrets of all endpoints anew, with the first key of WORKQ_SECRET_KEY."""
    endpoints = Endpoints(session.queue())
    session.stores()
    count = endpoints.seal(why=why)
    is_encrypted = endpoints.vault.has_key
    how = "encrypted" if is_encrypted else "not encrypted: WORKQ_SECRET_KEY is not set"
    answer(
        session, {"endpoints": count, "encrypted": is_encrypted}, lambda: write(f"{counted(count, 'endpoint')}, {how}")
    )


def _given(given: dict[str, Any]) -> dict[str, Any]:
    """What was given of the options, as `Endpoints` takes it."""
    found = {name: value for name, value in given.items() if value not in (None, ())}
    file = found.pop("header_file", None)
    if file is not None:
        found["headers"] = (*found.get("headers", ()), *lines_of(file, "--header-file"))
    if "headers" in found:
        found["headers"] = _headers(found["headers"])
    schedule = found.get("retry_schedule")
    if schedule is not None:
        found["retry_schedule"] = None if schedule == "spec" else _schedule(schedule)
    for name in ("rate", "header_alias"):
        if found.get(name) == "none":
            found[name] = None
    return found


def _headers(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise click.UsageError("--header: write NAME=VALUE")  # what was written may be a secret
        if name.lower() in found:
            raise click.UsageError(f"--header: {name[:60]!a} is there twice")
        found[name.lower()] = value
    return check_headers(found)


def _schedule(text: str) -> Sequence[float]:
    span, times, count = text.partition("*")
    first, dots, most = span.partition("..")
    ends = seconds_of(first.strip()), seconds_of(most.strip())
    if times and dots and ends[0] is not None and ends[1] is not None and count.strip().isdecimal():
        return growing(ends[0], ends[1], int(count))
    waits = [seconds_of(part.strip()) for part in text.split(",")]
    if None in waits:
        raise click.UsageError(
            "--retry-schedule: write waits with commas between, such as 5s,5m,1h; or 5s..1h*12; or spec"
        )
    return [one for one in waits if one is not None]


def _state(one: Endpoint) -> str:
    """For a person: one that rests is enabled, and nothing is sent to it."""
    return one.state if one.rests_until is None else f"resting until {text_of(one.rests_until)}"


def _document(one: Endpoint) -> dict[str, Any]:
    found = {field.name: getattr(one, field.name) for field in fields(one)}
    if found["secret"] is None:
        del found["secret"]
    return found
