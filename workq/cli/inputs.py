"""What the command line accepts: durations, times, whole numbers, names, ids, arguments, and the options that several
commands have. Nothing is guessed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from inspect import signature
from typing import Any, Final, TypeVar

import click

from workq.errors import ConfigError
from workq.values.codec import is_task_id
from workq.values.lane import check_band
from workq.values.names import check_queue, check_said, check_task_name, seconds_of

_A_RATE_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_RATE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)/([smh])")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}|-")
_LINE_MAX: Final = 200
_FILE_MAX_BYTES: Final = 64 * 1024

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[float]):
    """`90s`, `10m`, `2h` or `1d`, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, above 0."""
        if isinstance(value, float):
            return value
        seconds = seconds_of(value)
        if not seconds:
            self.fail(f"{_shown(value)} is not a duration above 0; write 90s, 10m, 2h or 1d", param, ctx)
        return seconds


class InstantText(click.ParamType[datetime]):
    """An instant with its offset, such as `2026-11-21T03:00Z`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """An aware datetime."""
        if isinstance(value, datetime):
            return value
        try:
            if not _INSTANT.fullmatch(value):
                raise ValueError
            return datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{_shown(value)} is not a time with its offset; write 2026-11-21T03:00Z or +01:00", param, ctx)


class Decimal(click.ParamType[float]):
    """A number within bounds."""

    name = "number"

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        try:
            found = float(value)
        except ValueError:
            found = float("nan")
        if not self.least <= found <= self.most:
            self.fail(f"{str(value)[:60]!a} is not a number from {self.least:g} to {self.most:g}", param, ctx)
        return found


class WholeNumber(click.ParamType[int]):
    """A whole number within bounds."""

    name = "number"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        text = str(value)
        if not _WHOLE.fullmatch(text) or not self.least <= int(text) <= self.most:
            self.fail(f"{_shown(text)} is not a whole number from {self.least} to {self.most}", param, ctx)
        return int(text)


class RateText(click.ParamType[float]):
    """`100/s`, `60/m` or `1000/h`, as so many a second."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """So many a second, above 0."""
        if isinstance(value, float):
            return value
        found = _RATE.fullmatch(value)
        per_s = float(found[1]) / _A_RATE_S[found[2]] if found else 0.0
        if per_s <= 0.0:
            self.fail(f"{_shown(value)} is not a rate above 0; write 100/s, 60/m or 1000/h", param, ctx)
        return per_s


class Fingerprint(click.ParamType[str]):
    """The group of a dead task."""

    name = "group"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Its sixteen hexadecimal digits, or the dash of those that have none."""
        if not _FINGERPRINT.fullmatch(str(value).lower()):
            self.fail(f"{_shown(value)} is not a group; `workq dead groups` lists them", param, ctx)
        return str(value).lower()


class QueueName(click.ParamType[str]):
    """The name of a queue."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, checked."""
        try:
            return check_queue(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class BandName(click.ParamType[str]):
    """The name of a queue, or of one of its bands."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, checked."""
        try:
            return check_band(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Words(click.ParamType[str]):
    """A text that says something: a reason."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, checked."""
        try:
            return check_said(value, "why")
        except ConfigError as error:
            self.fail(str(error).removeprefix("why: "), param, ctx)


class ScheduleName(click.ParamType[str]):
    """The name of a schedule."""

    name = "schedule"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, checked."""
        try:
            return check_task_name(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class QueueNames(click.ParamType[list[str]]):
    """Names of queues, separated by commas."""

    name = "queues"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """The names, checked, each once."""
        if isinstance(value, list):
            return value
        try:
            return list(dict.fromkeys(check_queue(one) for one in value.split(",")))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Choices(click.ParamType[list[str]]):
    """Some of a few words, separated by commas."""

    name = "words"

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """The words, each once."""
        if isinstance(value, list):
            return value
        chosen = list(dict.fromkeys(value.split(",")))
        for one in chosen:
            if one not in self.words:
                self.fail(f"{_shown(one)} is not one of {', '.join(self.words)}", param, ctx)
        return chosen


class TaskId(click.ParamType[str]):
    """The id of a task, or of what has ids of the same form. Only that is checked here."""

    name = "id"

    def __init__(self, of: str = "task") -> None:
        self.of = of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The id in its canonical form."""
        if not is_task_id(str(value).lower()):
            self.fail(
                f"{_shown(value)} is not a {self.of} id, such as 01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f", param, ctx
            )
        return str(value).lower()


def ids_of(given: tuple[str, ...]) -> Iterator[str]:
    """Ids from the command line; `-` stands for those on standard input, one a line. Each comes once."""
    seen: set[str] = set()

    def lines() -> Iterator[str]:
        for one in given:
            if one == "-":
                while line := sys.stdin.readline(4096):
                    yield line.strip()
            else:
                yield one.strip()

    for one in lines():
        found = one.lower() if is_task_id(one.lower()) else one[:_LINE_MAX]
        if found and found not in seen:
            seen.add(found)
            yield found


def lines_of(source: str, option: str) -> list[str]:
    """The lines of a file, or (`-`) of standard input, without empty ones. None of them goes into a message.

    Raises:
        click.UsageError: it cannot be read, is not UTF-8, has more than 64 KiB or no line.
    """
    try:
        if source == "-":
            body = sys.stdin.buffer.read(_FILE_MAX_BYTES + 1)
        else:
            with open(source, "rb") as file:
                body = file.read(_FILE_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a path"
        raise click.UsageError(f"{option}: cannot read {_shown(source)}: {why}") from None
    if len(body) > _FILE_MAX_BYTES:
        raise click.UsageError(f"{option}: {_shown(source)} has more than {_FILE_MAX_BYTES >> 10} KiB")
    try:
        lines = [line.strip() for line in body.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{option}: {_shown(source)} is not UTF-8 (byte {error.start})") from None
    found = [line for line in lines if line]
    if not found:
        raise click.UsageError(f"{option}: there is nothing in {_shown(source)}")
    return found


# -- arguments of tasks


def arguments(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Keyword arguments from `name=value`: a value that is JSON is that, anything else is text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.UsageError(f"argument {_shown(pair)}: write name=value, or use --json -")
        if name in found:
            raise click.UsageError(f"argument {_shown(name)} is given twice")
        found[name] = _value(name, value)
    return found


def _value(name: str, text: str) -> Any:
    try:
        return _json(text)
    except (ValueError, RecursionError):
        if re.fullmatch(
            r"-?[0-9]{4000,}", text
        ):  # a number that Python refuses to read must not become text in silence
            raise click.UsageError(f"argument {name}: an integer of {len(text)} digits is too long") from None
        return text


_FORMS: Final = "an object of keyword arguments, or an array of arguments"


def document(source: str, *, max_bytes: int, option: str = "--json") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from JSON, inline or (`-`) on standard input: an array or an object."""
    if source == "-":
        body = sys.stdin.buffer.read(max_bytes + 1)
        if len(body) > max_bytes:
            raise click.UsageError(f"{option}: more than {max_bytes} bytes; store the data and pass a reference")
        try:
            source = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise click.UsageError(f"{option}: not UTF-8 (byte {error.start})") from None
    if not source.strip():
        raise click.UsageError(
            f"{option}: nothing there; give an object of keyword arguments, or an array of arguments"
        )
    try:
        value = _json(source)
    except RecursionError:
        raise click.UsageError(f"{option}: nested too deeply") from None
    except ValueError as error:
        raise click.UsageError(f"{option}: not JSON: {error}") from None
    if isinstance(value, dict):
        return (), value
    if isinstance(value, list):
        return tuple(value), {}
    raise click.UsageError(f"{option}: give {_FORMS}")


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _shown(value: object) -> str:
    text = str(value)
    return ascii(text if len(text) <= 60 else text[:60] + "...")


def stacked(*each: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help."""

    def decorate(function: F) -> F:
        for one in reversed(each):
            function = one(function)
        return function

    return decorate


def why_option(default: str | None, says: str = "stored") -> Callable[[F], F]:
    """`--why`: a person's reason, which has to be given where there is no default. `says`: where it is told."""
    if default is None:
        return click.option("--why", type=Words(), required=True, metavar="TEXT", help=says)
    return click.option("--why", type=Words(), default=default, show_default=True, metavar="TEXT", help=says)


def yes_option(says: str = "do not ask") -> Callable[[F], F]:
    """`--yes`: what is asked for on a terminal is confirmed."""
    return click.option("--yes", is_flag=True, help=says)


def dry_run_option(says: str = "only print how many; exit 3 when there are any") -> Callable[[F], F]:
    """`--dry-run`: nothing is changed."""
    return click.option("--dry-run", is_flag=True, help=says)


def task_filters() -> Callable[[F], F]:
    """`--queue` and `--name`: only some tasks."""
    return stacked(
        click.option("--queue", type=BandName(), help="only those of this queue"),
        click.option("--name", metavar="NAME", help="only those of this handler"),
    )


def page_options() -> Callable[[F], F]:
    """`--limit` and `--after`: one page of a list."""
    return stacked(
        click.option("--limit", type=WholeNumber(1, 10_000), default=50, show_default=True, help="at most so many"),
        click.option("--after", type=TaskId(), metavar="ID", help="the page after this id"),
    )


def options_in(pairs: tuple[str, ...], call: Callable[..., Any]) -> dict[str, Any]:
    """What `--option NAME=VALUE` says, each value JSON or else text. `call`: the function that is given it by name.

    Raises:
        ConfigError: one has the name of a parameter of this function.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or name == "url":
            raise click.UsageError("--option: write NAME=VALUE; a URL is --url or --url-file")
        check_no_parameter(name, "--option", call)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def check_no_parameter(name: str, option: str, call: Callable[..., Any]) -> None:
    """A name of an option of some kind, which a function is given among its keywords.

    Raises:
        ConfigError: a parameter of this function has that name.
    """
    found = signature(call).parameters.get(name)
    if found is not None and found.kind is not found.VAR_KEYWORD:
        raise ConfigError(f"{option} {name}: is no option of a kind; see the options of this command: --help")
