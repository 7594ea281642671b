"""One run of the command line: its global options, and the application or the stores that it works on.

Options go into the environment of this process, so that worker processes inherit them. A command looks where the
application looks: when one is named, its WorkQueue decides, unless `--url` is given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import click

from workq.config import Settings, check_ledger_url
from workq.config.sqlite import check_folder
from workq.errors import ConfigError
from workq.logs.forms import escaped
from workq.values.clock import implausible

if TYPE_CHECKING:
    from workq.app import WorkQueue
    from workq.stores import Stores


class Session:
    """What the global options said, and what was opened because of it."""

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"app", "url", "output", "quiet", "verbose", "no_color"})

    def __init__(self) -> None:
        self.output = "table"
        self.is_quiet = False
        self.is_verbose = False
        self.is_colored = not os.environ.get("NO_COLOR")
        self.url: str | None = None
        self.app_path: str | None = None
        self.log_format: str | None = None
        """What `--log-format` said."""
        self._app: WorkQueue | None = None
        self.say: Callable[[str], None] = partial(click.echo, err=True)
        """Says one line to a person. A command that runs on puts one here that waits for no reader."""
        self._said: set[str] = set()

    # -- global options

    def take(self, name: str, value: Any) -> None:
        """Note one global option that was given."""
        if name == "output":
            self.output = value
        elif name == "quiet":
            self.is_quiet = True
        elif name == "verbose":
            self.is_verbose = True
        elif name == "no_color":
            self.is_colored = False
        elif name == "url":
            self.url = check_ledger_url(value)
            os.environ.pop("WORKQ_LEDGER_URL_FILE", None)
            os.environ["WORKQ_LEDGER_URL"] = value
        elif name == "app":
            Settings(app=value, origins={"app": "option --app"})
            self.app_path = value
            os.environ["WORKQ_APP"] = value

    # -- what is said to a person

    def note(self, text: str) -> None:
        """Say something on standard error, unless -q."""
        if not self.is_quiet:
            _say(text)

    def warn(self, text: str) -> None:
        """Say once what is not right, on standard error, -q or not."""
        if text not in self._said:
            self._said.add(text)
            _say(f"workq: warning: {text}")

    # -- what is worked on

    def settings(self) -> Settings:
        """The settings in force: those of the application, where one is named, otherwise those of this place."""
        return self.queue().settings

    def queue(self) -> WorkQueue:
        """The application's WorkQueue, or one without handlers. Nothing is contacted.

        Raises:
            ConfigError: a setting is wrong, or the application cannot be imported.
        """
        if self._app is None:
            from workq.app import WorkQueue
            from workq.application import load_app
            from workq.config.variables import log_unread

            found = Settings.load()
            for warning in found.warnings:
                self.warn(warning)
            log_unread(is_said=True)
            self._app = load_app(found.app) if found.app is not None and self.url is None else WorkQueue()
        return self._app

    def application(self) -> tuple[WorkQueue, str]:
        """The application with its handlers, and its path.

        Raises:
            ConfigError: none is named, it cannot be imported, or it has a ledger of its own beside `--url`.
        """
        from workq.application import load_app

        path = Settings.load().app
        if path is None:
            raise ConfigError("which application? Name its WorkQueue: --app shop.tasks:wq, or WORKQ_APP=shop.tasks:wq")
        self._app = load_app(path)
        if self.url is not None and self._app.settings.ledger != self.url:
            raise ConfigError(f"--url: {path} names a ledger of its own in its code, which would be used instead")
        for warning in self._app.settings.warnings:
            self.warn(warning)
        return self._app, path

    def stores(self) -> Stores:
        """The opened stores, for a command that reads or changes what is there: it makes nothing.

        Raises:
            NoLedger: the SQLite file is not there, or has no ledger.
            Unavailable: a server did not answer; SchemaMismatch: the ledger is older or newer.
        """
        queue = self.queue()
        self.say_default(queue.settings)
        with self.naming_origin():
            return queue.existing

    def may_make(self, settings: Settings) -> None:
        """For a command that records something new: say in which ledger, which may be made.

        Raises:
            ConfigError: its folder is missing, or takes no file.
        """
        self.say_default(settings)
        check_folder(settings.ledger)

    @contextmanager
    def naming_origin(self) -> Iterator[None]:
        """`--url` goes into the environment, which a message would name."""
        try:
            yield
        except ConfigError as error:
            if self.url is None:
                raise
            raise type(error)(str(error).replace("environment WORKQ_LEDGER_URL", "option --url")) from None

    def say_default(self, settings: Settings) -> None:
        """Nobody should work on the default ledger, or with a clock that is wrong, without knowing."""
        if (wrong := implausible()) is not None:
            self.warn(wrong)
        if settings.origins.get("ledger", "default") == "default" and settings.ledger not in self._said:
            self._said.add(settings.ledger)
            self.note(f"using {settings.ledger}; set WORKQ_LEDGER_URL to change")

    def configure_log(self, level: int) -> None:
        """Begin to log, as the settings say, or the application itself."""
        from workq.logs import configure

        if not configure(level, form=self.settings().log_format) and self.log_format is not None:
            self.warn(
                f"--log-format {self.log_format} has no effect: the application has configured logging itself; "
                "give its handlers the formatter that you want"
            )

    def urls(self) -> list[str]:
        """Every URL of the settings that were loaded, with their passwords."""
        if self._app is None:
            return []
        settings = self._app.settings
        return [url for url in (settings.ledger, settings.broker, settings.inflight) if url is not None]

    def close(self) -> None:
        """Close what was opened; what is behind is published within a bound. Repeatable."""
        if self._app is not None:
            self._app.close()


def global_options() -> list[click.Parameter]:
    """The options that every command accepts, before or after its name."""

    def take(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value not in (None, False) and param.name is not None:
            ctx.ensure_object(Session).take(param.name, value)

    def option(*names: str, **more: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=take, is_eager=True, **more)

    return [
        option("--app", metavar="M:A", help="module:attribute of your WorkQueue [WORKQ_APP]"),
        option(
            "--url",
            "--ledger",
            "url",
            metavar="URL",
            help="the ledger [WORKQ_LEDGER_URL]; a password is safer in the environment",
        ),
        option("-o", "--output", type=click.Choice(["table", "json"]), help="how to print  [default: table]"),
        option("-q", "--quiet", is_flag=True, help="say nothing but errors"),
        option("-v", "--verbose", is_flag=True, help="log more; show tracebacks"),
        option("--no-color", is_flag=True, help="no colors [NO_COLOR]"),
    ]


def _take_log_format(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).log_format = value
        os.environ["WORKQ_LOG_FORMAT"] = value


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    expose_value=False,
    is_eager=True,
    callback=_take_log_format,
    help="the log as lines of text or of JSON [WORKQ_LOG_FORMAT]",
)
"""Of the commands that log."""
pass_session = click.make_pass_decorator(Session, ensure=True)


def _say(text: str) -> None:
    line = escaped(text)
    if not _is_utf8(sys.stderr):
        line = line.encode("ascii", "backslashreplace").decode()
    click.echo(line, err=True)


def _is_utf8(stream: Any) -> bool:
    return str(getattr(stream, "encoding", "")).lower().replace("-", "") == "utf8"
