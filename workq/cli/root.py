"""The command `workq`: its commands, and what becomes of an error.

Every error is one line on standard error that says what, why and what to do; its exit status follows from its kind
(exits.py). With `-v` the traceback comes first. All of it goes through `_scrubbed`: no message shows the password of a
URL that this process was given, even where a library quotes it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import unquote

import click

from workq.cli import exits
from workq.cli.group import CommandGroup, Lazy
from workq.cli.session import Session
from workq.errors import (
    ConfigError,
    PayloadError,
    Unavailable,
    UnknownTask,
    WorkqError,
)
from workq.logs.forms import escaped, in_one_line

_COMMANDS: Final = {
    "demo": Lazy("workq.demo.command:demo", "watch a reindex job, or webhooks, survive a killed worker"),
    "worker": Lazy("workq.cli.worker:worker", "run tasks; `worker ls` lists who does"),
    "enqueue": Lazy("workq.cli.enqueue:enqueue", "record a task by its name"),
    "status": Lazy("workq.cli.status:status", "how many tasks are where"),
    "task": Lazy("workq.cli.task:task", "ls, show, cancel, reschedule, retry"),
    "job": Lazy("workq.cli.job:job", "run, watch, pause, throttle, cancel: work that is split into subtasks"),
    "webhook": Lazy("workq.cli.webhook:webhook", "test, listen: try an endpoint, or be one"),
    "message": Lazy("workq.cli.message:message", "send, ls, restore: what is sent to a broker or a URL at its time"),
    "intake": Lazy("workq.cli.intake:intake", "add, ls, run: a Kafka topic or a RabbitMQ queue as a way in"),
    "why": Lazy("workq.cli.why:why", "why a task is not running"),
    "handler": Lazy("workq.cli.handler:handler", "ls, show: your application's tasks, and when each is tried again"),
    "queue": Lazy("workq.cli.queue:queue", "ls, show, pause, resume, drain, purge: queues and their backlog"),
    "limit": Lazy("workq.cli.limit:limit", "ls, show: limits in use, and how many tasks wait for each"),
    "order": Lazy("workq.cli.order:order", "ls, show: order keys, and which of them are blocked"),
    "schedule": Lazy("workq.cli.schedule:schedule", "ls, next, run, pause, resume: what ticks"),
    "dead": Lazy("workq.cli.dead:dead", "ls, retry: tasks that are out of budget"),
    "sweep": Lazy("workq.cli.sweep:sweep", "one repair pass, or one every 5s; plan and apply"),
    "rebuild": Lazy("workq.cli.rebuild:rebuild", "fill an empty broker again, from the ledger"),
    "audit": Lazy("workq.cli.audit:audit", "is every task in exactly one place?"),
    "meters": Lazy("workq.cli.meters:meters", "what started twice and why, and how long recoveries took"),
    "doctor": Lazy("workq.cli.doctor:doctor", "check versions, servers and settings"),
    "bench": Lazy("workq.cli.lab:bench", "how fast this is, on your own servers"),
    "certify": Lazy("workq.cli.lab:certify", "the fault suite, against your own servers"),
    "db": Lazy("workq.cli.db:db", "migrate, status, sql: the ledger's schema"),
    "config": Lazy("workq.cli.config:config", "the settings in force, and where they come from"),
    "completion": Lazy("workq.cli.help:completion", "completion for bash, zsh or fish"),
    "version": Lazy("workq.cli.help:version", "print the version"),
    "help": Lazy("workq.cli.help:explain", "help about a command, or about exit-codes"),
}

_EXAMPLES: Final = """
workq demo reindex                                   watch it work, in a temporary folder
workq worker --app shop.tasks:wq                     run the tasks of your application
workq enqueue --app shop.tasks:wq shop.reindex product_id=42
"""

_FIRST_HELP: Final = f"""\
workq: a reliable work queue. It starts as one SQLite file.

Usage: workq COMMAND [OPTIONS]

Examples:{_EXAMPLES.replace(chr(10) + "workq", chr(10) + "  workq").rstrip()}

All commands: workq --help       Exit codes: workq help exit-codes"""


@click.group(
    cls=CommandGroup,
    lazy=_COMMANDS,
    examples=_EXAMPLES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: workq help exit-codes",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="print the version",
    callback=lambda ctx, _param, value: _print_version(ctx) if value else None,
)
@click.pass_context
def root(ctx: click.Context) -> int:
    """A reliable work queue. It starts as one SQLite file, and grows to RabbitMQ or Kafka, Redis, PostgreSQL/MySQL."""
    if ctx.invoked_subcommand is None:
        click.echo(_FIRST_HELP, err=True)
        return exits.USAGE
    return exits.DONE


def _print_version(ctx: click.Context) -> None:
    from workq.cli.help import version_text

    click.echo(version_text())
    ctx.exit(exits.DONE)


def run(args: list[str]) -> int:
    """Run one command; answers the exit status. Nothing is raised, apart from SystemExit by a completion script."""
    session = Session()
    try:
        _check_text(args)
        status = root.main(args=args, prog_name="workq", standalone_mode=False, obj=session)
        return status if isinstance(status, int) else exits.DONE
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (KeyboardInterrupt, click.Abort):
        return exits.INTERRUPTED
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it lives until the process ends
        return exits.DONE
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return exits.USAGE
    except Exception as error:
        _report(error, [*args, *session.urls()], is_verbose=session.is_verbose, say=session.say)
        return _status(error)
    finally:
        session.close()


def _check_text(args: list[str]) -> None:
    """What is not UTF-8 comes from the system as half characters, which no store and no output takes."""
    for number, one in enumerate(args, 1):
        try:
            one.encode()
        except UnicodeEncodeError as error:
            raise click.UsageError(
                f"argument {number} is not UTF-8 (at character {error.start + 1}); write it in UTF-8"
            ) from None


def _status(error: Exception) -> int:
    match error:
        case click.ClickException() | ConfigError() | PayloadError() | UnknownTask():
            return exits.USAGE
        case Unavailable():
            return exits.UNREACHABLE
        case _:
            return exits.FAILED


def _report(error: Exception, args: list[str], *, is_verbose: bool, say: Callable[[str], None]) -> None:
    if isinstance(error, click.ClickException):
        if isinstance(error, click.NoSuchOption):
            text = error.message.rstrip(".")
            if error.possibilities:
                text += f"; did you mean {' or '.join(error.possibilities)}?"
        else:
            text = error.format_message()
        text = in_one_line(text)
        text = text[:1].lower() + text[1:]
        context = getattr(error, "ctx", None)
        if context is not None:
            text = f"{text.rstrip('.')} (see: {context.command_path} --help)"
    elif isinstance(error, WorkqError):
        text = in_one_line(str(error))
    else:
        text = f"{type(error).__name__}: {in_one_line(str(error))}"
        if not is_verbose:
            text += " (this is a defect of workq; -v shows where)"
    if is_verbose:
        lines = "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
        for line in lines:
            say(_ascii(_scrubbed(f"  {escaped(line)}", args)))
    say(_ascii(f"workq: error: {_scrubbed(text, args)}"))


def _ascii(text: str) -> str:
    encoding = (getattr(sys.stderr, "encoding", None) or "ascii").lower()
    return text if encoding.replace("-", "") == "utf8" else text.encode("ascii", "backslashreplace").decode()


def _scrubbed(text: str, args: list[str]) -> str:
    """The text without the passwords of any URL that this process was given."""
    for user, password in _logins(args):
        for form in {password, unquote(password)}:
            text = text.replace(f":{form}@", ":***@")
            if len(form) >= 6 and form not in (user, "workq"):
                text = text.replace(form, "***")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _logins(args: list[str]) -> Iterator[tuple[str, str]]:
    given = [value for name, value in os.environ.items() if name.startswith("WORKQ_") and name.endswith("_URL")]
    for url in (*given, *(one.partition("=")[2] if one.startswith("--") else one for one in args)):
        userinfo, at, _ = url.partition("://")[2].rpartition("@")
        user, colon, password = userinfo.partition(":")
        if at and colon and password:
            yield user, password


__all__ = ["root", "run"]
