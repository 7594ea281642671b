"""`workq message`: what is sent at its time, and what people decide about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import click
from msgspec import to_builtins

from workq.cli import exits
from workq.cli.bulk import is_confirmed
from workq.cli.group import CommandGroup, Lazy
from workq.cli.inputs import Duration, InstantText, WholeNumber, dry_run_option, why_option, yes_option
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, clean, line, record, table, write
from workq.errors import ConfigError, NotFound, PayloadError, Refused, Unavailable, WorkqError
from workq.messages.ledger.sql import MessageLedger
from workq.messages.sender import MessageSender
from workq.messages.values import BODY_MAX_BYTES, MessageRow, WhichMessages, check_destination_name, check_message_id
from workq.operations import messages, tasks
from workq.values.incarnation import this_person
from workq.values.names import seconds_of
from workq.values.plural import counted
from workq.values.task import State

_LINE_MAX_BYTES: Final = 2 * BODY_MAX_BYTES
_LINES_MAX: Final = 100_000


class Ago(click.ParamType[float]):
    """How long ago: `2h`, or an instant with its offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if isinstance(value, float):
            return value
        seconds = seconds_of(value)
        if seconds is not None:
            return seconds
        at = InstantText().convert(value, param, ctx)
        return max(0.0, (datetime.now(UTC) - at).total_seconds())


@click.group(
    cls=CommandGroup,
    examples="workq message send orders '{\"id\": 17}' --json --in 10m\nworkq message ls --to orders --state dead",
    lazy={
        "destination": Lazy(
            "workq.cli.destination:destination",
            "Where messages go: add, edit, ls, show, test, disable, enable, rm, seal.",
        ),
    },
)
def message() -> None:
    """Messages: sent to a destination at their time."""


@message.command(
    "send",
    examples="workq message send orders hello --in 10m\n"
    "workq message send orders '{\"id\": 17}' --json --at 2026-11-21T03:00Z --key customer-4\n"
    "workq message send orders --lines messages.jsonl",
)
@click.argument("destination", metavar="NAME")
@click.argument("body", required=False, metavar="[BODY | -]")
@click.option("--json", "is_json", is_flag=True, help="BODY is JSON")
@click.option("--in", "delay_s", type=Duration(), metavar="TIME", help="send it in 90s, 10m, 2h or 1d")
@click.option("--at", type=InstantText(), metavar="TIME", help="send it at 2026-11-21T03:00Z")
@click.option("--key", metavar="KEY", help="what a destination may sort by, such as Kafka's key")
@click.option("--order-key", metavar="KEY", help="messages of one key are sent one after the other")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="repeat it")
@click.option("--id", "message_id", metavar="ID", help="sent once, however often this is called")
@click.option("--lines", metavar="FILE | -", help="one JSON object a line, with a body; all of them, or none")
@pass_session
def send(
    session: Session,
    /,
    destination: str,
    body: str | None,
    is_json: bool,
    headers: tuple[str, ...],
    lines: str | None,
    **given: Any,
) -> None:
    """Send a message to the destination NAME, now or at its time. The application's workers carry it.

    Each of the --lines is {"body": ..., "at": ..., "delay_s": ..., "key": ..., "order_key": ..., "headers": {...},
    "message_id": ..., "spread_s": ...}; `at` is RFC 3339, and only the body is needed.
    """
    if (body is None) == (lines is None):
        raise click.UsageError("give BODY, or --lines")
    if lines is not None and (is_json or headers or any(value is not None for value in given.values())):
        raise click.UsageError("--lines: each line says itself when it is sent, and with what")
    sender = MessageSender(session.queue())
    check_destination_name(destination)
    if lines is not None:
        many = list(_of_lines(lines))
        session.stores()  # where no ledger is, no destination is
        try:
            sent = sender.send_many(destination, many)
        except (ConfigError, PayloadError) as error:
            which = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
            raise type(error)(f"--lines: {which}{error}") from None
        found = {"messages": [to_builtins(one) for one in sent]}
        fresh = sum(one.created for one in sent)
        known = f"; sent before: {len(sent) - fresh}" if fresh < len(sent) else ""
        answer(session, found, lambda: write(f"{counted(fresh, 'message')} recorded{known}"))
        return
    content = _body(body or "", is_json=is_json)
    session.stores()
    one = sender.send(destination, content, headers=_headers(headers), **given)
    known = "" if one.created else "  (it was sent before)"
    answer(session, to_builtins(one), lambda: write(f"{one.id}{known}"))


def _body(text: str, *, is_json: bool) -> Any:
    if text == "-":
        raw = sys.stdin.buffer.read(BODY_MAX_BYTES + 1)
        if len(raw) > BODY_MAX_BYTES:
            raise PayloadError(f"body: more than the limit of {BODY_MAX_BYTES} bytes")
        if not is_json:
            return _text_or_bytes(raw)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise click.UsageError(f"the body is no JSON: {error}") from None
    if not is_json:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"the body is no JSON: {error}") from None


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _headers(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise click.UsageError("--header: write NAME=VALUE")
        if name in found:
            raise click.UsageError(f"--header: {name[:60]!a} is there twice")
        found[name] = value
    return found


def _of_lines(source: str) -> Iterator[dict[str, Any]]:
    """The messages of a file, or of standard input, one JSON object a line; empty lines are none."""
    number = 0
    try:
        with click.open_file(source, "rb") as file:
            while raw := file.readline(_LINE_MAX_BYTES + 1):
                number += 1
                if number > _LINES_MAX:
                    raise click.UsageError(f"--lines: more than {_LINES_MAX} lines; send them in several files")
                if raw.strip():
                    yield _of_line(raw, number)
    except OSError as error:
        raise click.UsageError(f"--lines: cannot read {source[:60]!a}: {error.strerror}") from None


def _of_line(raw: bytes, number: int) -> dict[str, Any]:
    if len(raw) > _LINE_MAX_BYTES:
        raise PayloadError(f"--lines: line {number} is longer than {_LINE_MAX_BYTES} bytes")
    try:
        found = json.loads(raw)
        if not isinstance(found, dict) or "body" not in found:
            raise ConfigError('need an object with a "body"')
        at = found.get("at")
        if at is not None:
            found["at"] = InstantText().convert(at, None, None)
    except (ValueError, RecursionError, click.BadParameter, TypeError) as error:
        raise ConfigError(f"--lines: line {number}: {error}") from None
    return found


@message.command("ls", examples="workq message ls --to orders\nworkq message ls --state dead -o json")
@click.option("--to", metavar="NAME", help="to this destination only")
@click.option("--state", type=click.Choice([one.value for one in State]), help="only those")
@click.option("--since", "since_s", type=Ago(), metavar="TIME", help="recorded since then: 2h, or 2026-11-21T03:00Z")
@click.option("--until", "until_s", type=Ago(), metavar="TIME", help="recorded before then")
@click.option("--limit", type=WholeNumber(1, 10_000), default=100, show_default=True, help="so many at most")
@click.option("--after", metavar="ID", help="the page after this id")
@pass_session
def ls(
    session: Session,
    to: str | None,
    state: str | None,
    since_s: float | None,
    until_s: float | None,
    limit: int,
    after: str | None,
) -> None:
    """Messages from the newest, and how many there are in each state."""
    ledger = session.stores().ledger.part(MessageLedger)
    letters = ledger.letters
    which = WhichMessages(
        None if to is None else check_destination_name(to), None if state is None else State(state), since_s, until_s
    )
    found = letters.all(which, limit=limit, after=after)
    counts = letters.counts(which)
    if to is not None and not counts:
        ledger.destinations.required(to)  # one that was removed may have left some
    columns = [
        Column("id", is_whole=True),
        *(Column(name) for name in ("to", "state")),
        Column("attempts", is_number=True),
        *(Column(name) for name in ("due", "next", "error")),
    ]
    rows = [
        (one.id, one.destination, _state(one), one.attempts, one.due_at, one.next_at, _first_line(one.error))
        for one in found
    ]

    def as_text() -> None:
        table(session, columns, rows, empty="no messages")
        if len(found) == limit:
            session.note(f"the newest {limit} of: " + ", ".join(f"{count} {name}" for name, count in counts.items()))

    more = found[-1].id if len(found) == limit else None
    answer(session, {"messages": [asdict(one) for one in found], "counts": counts, "next": more}, as_text)


@message.command("show", examples="workq message show 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --body")
@click.argument("message_id", metavar="ID")
@click.option("--body", "with_body", is_flag=True, help="what it says, too")
@pass_session
def show(session: Session, message_id: str, with_body: bool) -> None:
    """One message: where it goes and when, what became of it, and the history of the task that sends it."""
    ledger = session.stores().ledger
    letters = ledger.part(MessageLedger).letters
    found = letters.message(check_message_id(message_id))
    if found is None:
        raise NotFound(f"no message {message_id!r}; see: workq message ls")
    history = ledger.questions.history(found.task_id)
    document = asdict(found) | {"history": [asdict(one) for one in history]}
    if with_body:
        body = letters.body(message_id)
        document["body"] = None if body is None else body.decode("utf-8", "backslashreplace")

    def as_text() -> None:
        record([(name, value) for name, value in (asdict(found) | {"state": _state(found)}).items()])
        for one in history:
            write(clean(f"{one.at:%Y-%m-%dT%H:%M:%SZ}  {one.kind}  {json.dumps(one.detail)[:300]}"))
        if with_body:
            write(clean(str(document["body"])))

    answer(session, document, as_text)


@message.command("cancel", examples='workq message cancel 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --why "sent twice"')
@click.argument("message_ids", nargs=-1, required=True, metavar="ID...")
@why_option("cancelled by an operator", "stored with it")
@pass_session
def cancel(session: Session, message_ids: tuple[str, ...], why: str) -> int:
    """Do not send these. What is on its way may arrive, and is not tried again; what has ended stays as it is."""
    stores, who = session.stores(), this_person()
    return _each(session, message_ids, lambda one: messages.cancel(stores, one, who=who, why=why).value)


@message.command("reschedule", examples="workq message reschedule 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f --in 2h")
@click.argument("message_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--in", "delay_s", type=Duration(), metavar="TIME", help="send them in 90s, 10m, 2h or 1d")
@click.option("--at", type=InstantText(), metavar="TIME", help="send them at 2026-11-21T03:00Z")
@why_option("rescheduled by an operator", "stored with it")
@pass_session
def reschedule(
    session: Session, message_ids: tuple[str, ...], delay_s: float | None, at: datetime | None, why: str
) -> int:
    """Send these at another time. What is on its way or has ended is refused; the past means now."""
    if (delay_s is None) == (at is None):
        raise click.UsageError("--in and --at: give one of them")
    when, stores, who = tasks.due(delay_s=delay_s, at=at), session.stores(), this_person()
    announce = session.queue().producer.relay.offer

    def act(one: str) -> str:
        row = messages.reschedule(stores, one, when, who=who, why=why, announce=announce)
        return "waiting" if row.delay_s > 0.0 else "ready"

    return _each(session, message_ids, act)


@message.command("retry", examples="workq message retry 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f")
@click.argument("message_ids", nargs=-1, required=True, metavar="ID...")
@why_option("retried by an operator", "stored with it")
@pass_session
def retry(session: Session, message_ids: tuple[str, ...], why: str) -> int:
    """Send what is dead or cancelled after all, with fresh budgets: at once, or at its time, if that is to come."""
    stores, who, announce = session.stores(), this_person(), session.queue().producer.relay.offer

    def act(one: str) -> str:
        row = messages.retry(stores, one, who=who, why=why, announce=announce)
        return "waiting" if row.delay_s > 0.0 else "ready"

    return _each(session, message_ids, act)


@message.command(
    "restore",
    examples="workq message restore --to orders --since 1d --dry-run\n"
    "workq message restore --to orders --since 1d --yes",
)
@click.option("--to", required=True, metavar="NAME", help="to this destination")
@click.option("--since", "since_s", type=Ago(), metavar="TIME", help="recorded since then: 2h, or 2026-11-21T03:00Z")
@click.option("--until", "until_s", type=Ago(), metavar="TIME", help="recorded before then")
@click.option("--expired", "is_expired", is_flag=True, help="only those whose time has come, and that never arrived")
@dry_run_option("only count; exit 3 when there are any")
@yes_option("do not ask; needed where nobody can answer")
@why_option("restored by an operator", "stored with them")
@pass_session
def restore(session: Session, /, to: str, dry_run: bool, yes: bool, why: str, **which: Any) -> int:
    """Send once more what has arrived at a destination or is dead: the same ids, by new tasks.

    What is open is sent in any case, and what was cancelled stays so. Refused where retention has removed some of them.
    It shows the count and asks first; where nobody can answer it needs --yes, and exits with 6 without.
    """
    stores, who, announce = session.stores(), this_person(), session.queue().producer.relay.offer

    def act(*, dry_run: bool) -> Any:
        return messages.restore(stores, to, dry_run=dry_run, who=who, why=why, announce=announce, **which)

    would = act(dry_run=True) if dry_run or not yes else None
    if not dry_run:
        count = 0 if would is None else would.sent_again + would.made_due
        if count and not is_confirmed(session, f"{counted(count, 'message')} would be sent again"):
            return exits.REFUSED
        would = act(dry_run=False)
    found = to_builtins(would) | {"dry_run": dry_run}
    again, due = found["sent_again"], found["made_due"]
    said = f"{counted(again, 'message')} {'would be ' * dry_run}sent again"
    answer(session, found, lambda: write(f"{said}, {due} {'would be ' * dry_run}due now" if due else said))
    return exits.FINDINGS if dry_run and again + due else exits.DONE


@message.command(
    "clear", examples="workq message clear --to orders --dry-run\nworkq message clear --to orders --yes --why obsolete"
)
@click.option("--to", required=True, metavar="NAME", help="to this destination")
@dry_run_option("only count; exit 3 when there are any")
@yes_option("do not ask; needed where nobody can answer")
@click.option("--confirm", "confirmed", type=WholeNumber(0, 10**9), metavar="N", help="refuse when there are more")
@why_option("cleared by an operator", "stored with them")
@pass_session
def clear(session: Session, to: str, dry_run: bool, yes: bool, confirmed: int | None, why: str) -> int:
    """Cancel all messages to a destination that are not sent yet. What is on its way may arrive.

    It shows the count and asks first; where nobody can answer it needs --yes, and exits with 6 without.
    """
    stores = session.stores()
    ledger = stores.ledger.part(MessageLedger)
    ledger.destinations.required(check_destination_name(to))
    count = ledger.decisions.waiting(to)
    if not dry_run:
        if count and not yes and not is_confirmed(session, f"{counted(count, 'message')} would be cancelled"):
            return exits.REFUSED
        most = count if confirmed is None else confirmed
        try:
            count = messages.clear(stores, to, confirmed=most, who=this_person(), why=why)
        except Refused as error:
            session.warn(str(error))
            return exits.REFUSED
    said = f"{counted(count, 'message')} {'would be ' * dry_run}cancelled"
    answer(session, {"to": to, "cancelled": count, "dry_run": dry_run}, lambda: write(said))
    return exits.FINDINGS if dry_run and count else exits.DONE


def _each(session: Session, message_ids: Iterable[str], act: Callable[[str], str]) -> int:
    """Do one thing to each message and print one result for each; answers 1 when any failed."""
    results: list[dict[str, Any]] = []
    for one in dict.fromkeys(message_ids):
        result: dict[str, Any] = {"id": one, "ok": False}
        try:
            result |= {"ok": True, "result": act(one)}
        except Unavailable:
            raise
        except WorkqError as error:
            result["error"] = str(error)
        results.append(result)
        if session.output == "table":
            line(session, result, f"{one}  {result.get('result') or 'failed: ' + result['error']}")
    if session.output == "json":
        answer(session, {"results": results}, lambda: None)
    return exits.DONE if all(one["ok"] for one in results) else exits.FAILED


def _state(one: MessageRow) -> str:
    return "removed" if one.state is None else one.state.value


def _first_line(text: str | None) -> str | None:
    return None if text is None else text.split("\n", 1)[0][:200]
