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
from workq.messages.intake.values import LINE, IntakeBacklog, IntakeRow
from workq.messages.intake_inspection import IntakeInspection, PeekedRecord
from workq.messages.intakes import MessageIntake, MessageIntakes
from workq.messages.ledger.sql import MessageLedger
from workq.operations import intakes
from workq.supervisor.first_process import leave_first_process
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
@why_option("added by an operator", "stored in the history")
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
    why: str,
    **more: str | None,
) -> None:
    """Add a way in. Nothing is contacted: `workq intake run NAME` does that."""
    if target is not None and url_file is not None:
        raise click.UsageError("--url and --url-file: give one of them")
    if url_file is not None:
        target = lines_of(url_file, "--url-file")[0]
    options: dict[str, Any] = {one: more[one] for one in _OF_KINDS if more[one] is not None}
    options |= options_in(others, MessageIntakes.add)
    if target is not None:
        options["url"] = target
    ways = MessageIntakes(session.queue())
    session.may_make(session.settings())
    made = asdict(ways.add(name, kind=kind, to=to, why=why, **options))
    answer(session, made, lambda: record(list(made.items())))


@intake.command("ls", examples="workq intake ls\nworkq intake ls -o json")
@pass_session
def ls(session: Session) -> None:
    """Each way in, how many records wait and how many it has taken in, and whether it can be read.

    Its broker is asked what waits (`lag`), without joining a group, for some seconds at most.
    """
    part = session.stores().ledger.part(MessageLedger)
    found = list(MessageIntakes(session.queue()).all())
    lags = _lags(session, [part.intakes.required(one.name) for one in found])
    counts = ("recorded", "repeated", "cancelled", "quarantined")
    columns = [
        *(Column(name, is_whole=name == "name") for name in ("name", "kind", "from", "to")),
        *(Column(name, is_number=True) for name in ("lag", *counts)),
        *(Column(name) for name in ("failing since", "error")),
    ]
    rows = [
        (
            one.name,
            one.kind,
            _place(one),
            one.to,
            _lag(lags[one.name]),
            *(getattr(one, each) for each in counts),
            one.failing_since,
            one.error,
        )
        for one in found
    ]

    def told() -> None:
        table(session, columns, rows, empty="no ways in; add one: workq intake add NAME")
        for name, one in lags.items():
            if one.unknown is not None:
                session.note(f"{name}: what waits is unknown: {one.unknown}")

    answer(session, {"intakes": [asdict(one) | _lag_document(lags[one.name]) for one in found]}, told)


@intake.command("show", examples="workq intake show shop")
@click.argument("name", metavar="NAME")
@pass_session
def show(session: Session, name: str) -> None:
    """One way in, without its password; what waits; how far each partition was taken in; the processes that serve it.

    Its broker is asked what waits (`lag`), without joining a group, for some seconds at most.
    """
    ledger = session.stores().ledger
    found = asdict(MessageIntakes(session.queue()).get(name))
    lag = _lags(session, [ledger.part(MessageLedger).intakes.required(name)])[name]
    offsets = [asdict(one) for one in ledger.part(MessageLedger).intakes.offsets(name)]
    workers = [one.id for one in ledger.questions.workers(live_only=True) if LINE + name in one.queues]
    document = found | _lag_document(lag) | {"offsets": offsets, "workers": workers}

    def told() -> None:
        said = _lag(lag) if lag.unknown is None else f"unknown: {lag.unknown}"
        lost = {"lost": lag.lost} if lag.lost else {}
        record(list((found | {"lag": said} | lost | {"workers": ", ".join(workers) or None}).items()))
        fields = ("topic", "part", "next_offset", "epoch", "owner", "changed_at")
        columns = [Column(one.replace("_", " "), is_number=one in ("part", "next_offset", "epoch")) for one in fields]
        if offsets:
            table(session, columns, [[one[each] for each in fields] for one in offsets], empty="")

    answer(session, document, told)


@intake.command("peek", examples="workq intake peek shop\nworkq intake peek shop --count 50 -o json")
@click.argument("name", metavar="NAME")
@click.option("--count", type=WholeNumber(1, 500), default=10, show_default=True, help="how many, 1 to 500")
@pass_session
def peek(session: Session, name: str, count: int) -> None:
    """The next records of a way in as they would be read, or why they would go to quarantine. Changes nothing.

    Of Kafka alone, without joining a group: of RabbitMQ each look would count as a delivery, and is refused.
    """
    part = session.stores().ledger.part(MessageLedger)
    row = part.intakes.required(MessageIntakes(session.queue()).get(name).name)
    found = IntakeInspection(session.settings(), part).peek(row, limit=count)
    columns = [Column("where", is_whole=True), Column("id"), Column("what"), Column("at")]
    rows = [(one.where, one.id, _what(one), one.at) for one in found]
    answer(
        session,
        {"name": name, "records": [asdict(one) for one in found]},
        lambda: table(session, columns, rows, empty="no records wait"),
    )


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


@intake.command("run", runs_on=lambda _: True, examples="workq intake run\nworkq intake run shop --processes 3")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--processes", type=WholeNumber(1, 64), default=1, show_default=True, help="intake processes, 1 to 64")
@log_format_option
@pass_session
def run(session: Session, names: tuple[str, ...], processes: int) -> int:
    """Take in from these ways in, or from all that there are now, until SIGTERM or Ctrl-C.

    The messages are sent by the workers of your application: workq worker.
    """
    leave_first_process()
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


def _lags(session: Session, rows: list[IntakeRow]) -> dict[str, IntakeBacklog]:
    return IntakeInspection(session.settings(), session.stores().ledger.part(MessageLedger)).backlogs(rows)


def _lag(one: IntakeBacklog) -> str:
    return "unknown" if one.records is None else str(one.records)


def _lag_document(one: IntakeBacklog) -> dict[str, Any]:
    return {"lag": one.records, "lag_unknown": one.unknown, "lost": one.lost}


def _what(one: PeekedRecord) -> str:
    if one.reason is not None:
        return f"quarantine: {one.reason}"
    if one.is_cancel:
        return "cancels it"
    return f"to {one.destination}" + (", recorded already" if one.is_recorded else "")
