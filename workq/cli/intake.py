"""`workq intake`: ways in: a Kafka topic, a RabbitMQ queue, whose records become messages."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

import click

from workq.cli import exits
from workq.cli.bulk import is_confirmed
from workq.cli.group import CommandGroup
from workq.cli.inputs import WholeNumber, lines_of, options_in, why_option, yes_option
from workq.cli.session import Session, log_format_option, pass_session
from workq.cli.show import Column, answer, record, table, write
from workq.config import Settings
from workq.errors import NotFound
from workq.messages.intake.values import LINE
from workq.messages.intakes import MessageIntake, MessageIntakes
from workq.messages.ledger.sql import MessageLedger
from workq.operations import intakes
from workq.supervisor.first_process import leave_first_process, leave_when_told
from workq.values.incarnation import this_person

_OF_KINDS = ("topic", "queue")


@click.group(
    "intake",
    cls=CommandGroup,
    examples="workq intake add shop --kind kafka --url kafka://host:9092 --topic later --to orders\n"
    "workq intake run shop --processes 2",
)
def intake() -> None:
    """Ways in for programs that speak Kafka or RabbitMQ: their records become messages."""


@intake.command(
    "add",
    examples="workq intake add shop --kind kafka --url kafka://host:9092 --topic later\n"
    "workq intake add mail --kind amqp --url-file url --queue later --to mail",
)
@click.argument("name", metavar="NAME")
@click.option("--kind", required=True, metavar="KIND", help="kafka or amqp")
@click.option("--url", "target", metavar="URL", help="where it is; with a password, --url-file is safer")
@click.option("--url-file", metavar="FILE | -", help="the URL, from a file or from standard input")
@click.option("--topic", help="kafka: the topic")
@click.option("--queue", help="amqp: the queue")
@click.option("--to", metavar="NAME", help="the destination of records without the header workq-to")
@click.option(
    "--option", "others", multiple=True, metavar="NAME=VALUE", help="another one of its kind, JSON or text; repeat it"
)
@pass_session
def add(
    session: Session,
    /,
    name: str,
    kind: str,
    target: str | None,
    url_file: str | None,
    to: str | None,
    others: tuple[str, ...],
    **more: str | None,
) -> None:
    """Add a way in. Nothing is contacted: `workq intake run NAME` does that."""
    if target is not None and url_file is not None:
        raise click.UsageError("--url and --url-file: give one of them")
    if url_file is not None:
        target = lines_of(url_file, "--url-file")[0]
    options: dict[str, Any] = {one: more[one] for one in _OF_KINDS if more[one] is not None} | options_in(others)
    if target is not None:
        options["url"] = target
    ways = MessageIntakes(session.queue())
    session.may_make(session.settings())
    made = asdict(ways.add(name, kind=kind, to=to, **options))
    answer(session, made, lambda: record(list(made.items())))


@intake.command("ls", examples="workq intake ls\nworkq intake ls -o json")
@pass_session
def ls(session: Session) -> None:
    """Each way in, how many records it has taken in, and whether it can be read."""
    session.stores()
    found = list(MessageIntakes(session.queue()).all())
    counts = ("recorded", "repeated", "cancelled", "quarantined")
    columns = [
        *(Column(name, is_whole=name == "name") for name in ("name", "kind", "from", "to")),
        *(Column(name, is_number=True) for name in counts),
        *(Column(name) for name in ("failing since", "error")),
    ]
    rows = [
        (
            one.name,
            one.kind,
            _place(one),
            one.to,
            *(getattr(one, each) for each in counts),
            one.failing_since,
            one.error,
        )
        for one in found
    ]
    answer(
        session,
        {"intakes": [asdict(one) for one in found]},
        lambda: table(session, columns, rows, empty="no ways in; add one: workq intake add NAME"),
    )


@intake.command("show", examples="workq intake show shop")
@click.argument("name", metavar="NAME")
@pass_session
def show(session: Session, name: str) -> None:
    """One way in, without its password; how far each partition was taken in; the processes that serve it."""
    ledger = session.stores().ledger
    found = asdict(MessageIntakes(session.queue()).get(name))
    offsets = [asdict(one) for one in ledger.part(MessageLedger).intakes.offsets(name)]
    workers = [one.id for one in ledger.questions.workers(live_only=True) if LINE + name in one.queues]
    document = found | {"offsets": offsets, "workers": workers}

    def told() -> None:
        record(list((found | {"workers": ", ".join(workers) or None}).items()))
        fields = ("topic", "part", "next_offset", "epoch", "owner", "changed_at")
        columns = [Column(one.replace("_", " "), is_number=one in ("part", "next_offset", "epoch")) for one in fields]
        if offsets:
            table(session, columns, [[one[each] for each in fields] for one in offsets], empty="")

    answer(session, document, told)


@intake.command("rm", examples="workq intake rm shop\nworkq intake rm shop --yes")
@click.argument("name", metavar="NAME")
@yes_option("do not ask; needed where nobody can answer")
@why_option("removed by an operator", "stored in the history")
@pass_session
def rm(session: Session, name: str, yes: bool, why: str) -> int:
    """Forget a way in, and how far it was read: one of the same name reads from the beginning. Its messages stay.

    It asks first; where nobody can answer it needs --yes, and exits with 6 without.
    """
    stores = session.stores()
    MessageIntakes(session.queue()).get(name)
    if not yes and not is_confirmed(session, f"intake {name}, and how far it was read, would be forgotten"):
        return exits.REFUSED
    intakes.remove(stores, name, who=this_person(), why=why)
    answer(session, {"name": name, "removed": True}, lambda: write("removed"))
    return exits.DONE


@intake.command("run", examples="workq intake run\nworkq intake run shop --processes 3")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--processes", type=WholeNumber(1, 64), default=1, show_default=True, help="intake processes, 1 to 64")
@log_format_option
@pass_session
def run(session: Session, names: tuple[str, ...], processes: int) -> int:
    """Take in from these ways in, or from all that there are now, until SIGTERM or Ctrl-C.

    The messages are sent by the workers of your application: workq worker.
    """
    leave_first_process()
    leave_when_told()
    session.stores()
    app = session.queue()
    ways = MessageIntakes(app)
    chosen = [ways.get(one).name for one in dict.fromkeys(names)] or [one.name for one in ways.all()]
    if not chosen:
        raise NotFound("no ways in; add one: workq intake add NAME")

    from workq.supervisor.supervisor import Supervisor

    level = logging.DEBUG if session.is_verbose else logging.ERROR if session.is_quiet else logging.INFO
    session.configure_log(level)
    return Supervisor(
        app,
        app_path="" if session.url is not None else Settings.load().app or "",
        queues=[LINE + one for one in chosen],
        processes=processes,
        threads=len(chosen),
        log_level=level,
        program="workq.intake",
    ).run()


def _place(one: MessageIntake) -> str:
    return " ".join(str(one.options[each]) for each in ("url", *_OF_KINDS) if each in one.options)
