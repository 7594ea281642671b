"""`workq message destination`: where messages go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import click

from workq.cli import exits
from workq.cli.bulk import is_confirmed
from workq.cli.group import CommandGroup
from workq.cli.inputs import (
    Decimal,
    WholeNumber,
    check_no_parameter,
    lines_of,
    options_in,
    stacked,
    why_option,
    yes_option,
)
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, clean, record, table, text_of, write
from workq.messages.destinations import Destination, Destinations
from workq.messages.intakes import MessageIntakes
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import FAILURES_MAX, TIMEOUT_S, WhichMessages
from workq.operations import messages
from workq.values.incarnation import this_person
from workq.values.plural import counted


@click.group(
    "destination",
    cls=CommandGroup,
    examples="workq message destination add orders --kind amqp --url-file url --exchange shop --routing-key new\n"
    "workq message destination ls",
)
def destination() -> None:
    """Destinations: where messages go, and how they fare there."""


_options: Final = stacked(
    click.option("--url", "target", metavar="URL", help="where it is; with a password, --url-file is safer"),
    click.option("--url-file", metavar="FILE | -", help="the URL, from a file or from standard input"),
    click.option("--exchange", help="amqp: the exchange; '' is the default one"),
    click.option("--routing-key", help="amqp: the routing key"),
    click.option("--topic", help="kafka: the topic"),
    click.option("--address", help="stomp: the address"),
    click.option("--stream", help="redis: the stream"),
    click.option("--list", help="redis: the list"),
    click.option("--handler", metavar="MODULE.NAME", help="call: the function"),
    click.option(
        "--option",
        "others",
        multiple=True,
        metavar="NAME=VALUE",
        help="another one of its kind, JSON or text; repeat it",
    ),
    click.option("--concurrency", type=WholeNumber(1, 10_000), help="messages that are under way at once"),
    click.option("--rate", metavar="N/s", help="messages in a time, such as 100/s"),
    click.option(
        "--failures-max", type=WholeNumber(1, 1000), help=f"attempts until dead; {FAILURES_MAX} when it is added"
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=Decimal(0.1, 300.0),
        help=f"s for a confirm; {TIMEOUT_S:g} when it is added",
    ),
    click.option("--levels", metavar="5s,30s,1m", help="round delays up to the next of these"),
)
"""Those that a destination is added and edited with."""


def _given(given: dict[str, Any], call: Callable[..., Any]) -> dict[str, Any]:
    """The options that were given, for a call of this function."""
    target, url_file, others = given.pop("target"), given.pop("url_file"), given.pop("others")
    if target is not None and url_file is not None:
        raise click.UsageError("--url and --url-file: give one of them")
    if url_file is not None:
        target = lines_of(url_file, "--url-file")[0]
    options = {name: value for name, value in given.items() if value is not None}
    options |= options_in(others, call)
    return options if target is None else options | {"url": target}


@destination.command(
    "add",
    examples="workq message destination add orders --kind amqp --url-file url --exchange shop --routing-key new\n"
    "workq message destination add audit --kind kafka --url kafka://host:9092 --topic audit --concurrency 50\n"
    "workq message destination add mail --kind call --handler shop.mail.send --levels 5s,30s,1m",
)
@click.argument("name", metavar="NAME")
@click.option("--kind", required=True, metavar="KIND", help="amqp, kafka, stomp, redis, http or call")
@_options
@why_option("added by an operator", "stored in the history")
@pass_session
def add(session: Session, /, name: str, kind: str, why: str, **given: Any) -> None:
    """Add a destination. Nothing is contacted: `workq message destination test NAME` does that."""
    options = _given(given, Destinations.add)
    destinations = Destinations(session.queue())
    session.may_make(session.settings())
    made = document_of(destinations.add(name, kind=kind, why=why, **options))
    answer(session, made, lambda: record(list(made.items())))


@destination.command(
    "edit",
    examples="workq message destination edit orders --url-file url --why 'the broker has moved'\n"
    "workq message destination edit audit --concurrency 20 --without rate",
)
@click.argument("name", metavar="NAME")
@_options
@click.option("--without", "dropped", multiple=True, metavar="NAME", help="as without this option; repeat it")
@why_option("edited by an operator", "stored in the history")
@pass_session
def edit(session: Session, /, name: str, dropped: tuple[str, ...], why: str, **given: Any) -> None:
    """Change a destination: what is given, from the next attempt on, also for what was sent before. Its kind stays."""
    options = _given(given, Destinations.edit)
    for one in dropped:
        option = {"timeout": "timeout_s"}.get(one, one.replace("-", "_"))
        check_no_parameter(option, "--without", Destinations.edit)
        if option in options:
            raise click.UsageError(f"--without {one}: it is given, too")
        options[option] = None
    if not options:
        raise click.UsageError("nothing to change; see: workq message destination edit --help")
    session.stores()
    found = document_of(Destinations(session.queue()).edit(name, why=why, **options))
    answer(session, found, lambda: record(list(found.items())))


@destination.command("ls", examples="workq message destination ls\nworkq message destination ls -o json")
@pass_session
def ls(session: Session) -> None:
    """Each destination, and whether anything arrives there."""
    session.stores()
    found = list(Destinations(session.queue()).all())
    columns = [
        *(Column(name, is_whole=name == "name") for name in ("name", "kind", "to", "state")),
        Column("failures", is_number=True),
        *(Column(name) for name in ("failing since", "error")),
    ]
    rows = [
        (one.name, one.kind, _place(one), state_of(one), one.failures, one.failing_since, one.error) for one in found
    ]
    answer(
        session,
        {"destinations": [document_of(one) for one in found]},
        lambda: table(session, columns, rows, empty="no destinations; add one: workq message destination add NAME"),
    )


@destination.command("show", examples="workq message destination show orders")
@click.argument("name", metavar="NAME")
@pass_session
def show(session: Session, name: str) -> None:
    """One destination, without its password, and how many of its messages are in each state."""
    ledger = session.stores().ledger
    found = Destinations(session.queue()).get(name)
    letters, line = ledger.part(MessageLedger).letters, ledger.part(MessageLedger).line
    counts = letters.counts(WhichMessages(destination=name))
    document = document_of(found) | {"messages": counts, "overdue": letters.overdue(name), "in_line": line.length(name)}
    answer(session, document, lambda: record(list((document | {"state": state_of(found)}).items())))


@destination.command("test", examples="workq message destination test orders")
@click.argument("name", metavar="NAME")
@click.option("--timeout", "timeout_s", type=Decimal(0.1, 300.0), help="seconds; its own by default")
@pass_session
def test(session: Session, name: str, timeout_s: float | None) -> int:
    """Whether a message would arrive: it connects, and leaves nothing. Exit 1 when it would not, with the reasons."""
    session.stores()
    problems = Destinations(session.queue()).test(name, timeout_s=timeout_s)

    def show_them() -> None:
        write("a message would arrive" if not problems else "\n".join(clean(one) for one in problems))

    answer(session, {"name": name, "ok": not problems, "problems": problems}, show_them)
    return exits.FAILED if problems else exits.DONE


@destination.command("disable", examples='workq message destination disable orders --why "they are moving"')
@click.argument("name", metavar="NAME")
@why_option(None, "stored, and shown with the destination")
@pass_session
def disable(session: Session, name: str, why: str) -> None:
    """Send nothing there any more, from now on: its messages wait. What is on its way ends."""
    messages.disable(session.stores(), name, who=this_person(), why=why)
    answer(session, {"name": name, "state": "disabled"}, lambda: write("disabled; its messages wait"))


@destination.command("enable", examples="workq message destination enable orders")
@click.argument("name", metavar="NAME")
@why_option("enabled by an operator", "stored with it")
@pass_session
def enable(session: Session, name: str, why: str) -> None:
    """Send there again, and end its rest: what waited for it is due now."""
    stores, announce = session.stores(), session.queue().producer.relay.offer
    due = messages.enable(stores, name, who=this_person(), why=why, announce=announce)
    found = {"name": name, "state": "enabled", "due": due}
    answer(
        session,
        found,
        lambda: write(f"enabled; of those that waited, {counted(due, 'message is', 'messages are')} due now"),
    )


@destination.command("rm", examples="workq message destination rm orders\nworkq message destination rm orders --yes")
@click.argument("name", metavar="NAME")
@yes_option("do not ask; needed where nobody can answer")
@why_option("removed by an operator", "stored in the history")
@pass_session
def rm(session: Session, name: str, yes: bool, why: str) -> int:
    """Forget a destination. Refused while messages to it are open. Its messages stay until retention takes them.

    It asks first; where nobody can answer it needs --yes, and exits with 6 without.
    """
    stores = session.stores()
    Destinations(session.queue()).get(name)
    if not yes and not is_confirmed(session, f"destination {name} would be forgotten"):
        return exits.REFUSED
    messages.remove(stores, name, who=this_person(), why=why)
    answer(session, {"name": name, "removed": True}, lambda: write("removed"))
    return exits.DONE


@destination.command("seal", examples="workq message destination seal")
@pass_session
def seal(session: Session) -> None:
    """Write the URLs of all destinations, and of all ways in, anew, with the first key of WORKQ_SECRET_KEY."""
    session.stores()
    destinations = Destinations(session.queue())
    count, is_encrypted = destinations.seal(), destinations.vault.has_key
    ways = MessageIntakes(session.queue()).seal()
    how = "encrypted" if is_encrypted else "not encrypted: WORKQ_SECRET_KEY is not set"
    found = {"destinations": count, "intakes": ways, "encrypted": is_encrypted}
    answer(
        session, found, lambda: write(f"{counted(count, 'destination')}, {counted(ways, 'way in', 'ways in')}, {how}")
    )


def state_of(one: Destination) -> str:
    """Its state for a person, which says that it rests."""
    return one.state if one.rests_until is None else f"resting until {text_of(one.rests_until)}"


def document_of(one: Destination) -> dict[str, Any]:
    """One destination in JSON: no password is in it."""
    return asdict(one)


def _place(one: Destination) -> str:
    return " ".join(str(value) for value in one.options.values() if value not in (None, ""))
