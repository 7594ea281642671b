"""Run one attempt: from a claim to an outcome. A handler's exception becomes an outcome here and goes no further.

Wrong arguments are the caller's mistake and do not get better by repeating: the task is dead at once. A result that
JSON cannot carry does not undo the work that was done: the task has succeeded, with a note instead of the result.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from random import Random
from typing import Any

from workq import codec, context
from workq.context import Desk
from workq.errors import Cancel, PayloadError, Retry, Snooze, SoftTimeLimit
from workq.handler import Handler
from workq.names import check_delay_s
from workq.retry import Exponential
from workq.task import Cancelled, Claim, Dead, Delivered, Done, Failed, Outcome, Snoozed, Unhandled, Worked

log = logging.getLogger("workq.run")

RESULT_MAX_BYTES = 64 * 1024
NO_HANDLER = "no handler is registered under the name"
"""How the error of a task begins that found no handler in its worker."""
NO_HANDLER_LOOK_S = 30.0
"""How often a worker looks at it, at most; half as long at least."""
REASON_MAX = 200
TRACEBACK_MAX = 8_000
MEMBERS_MAX = 1_000
"""How many exceptions may hang together, as causes or in groups, for a traceback to be kept."""


def run_sync(claim: Claim, handler: Handler[..., Any], arguments: Any, desk: Desk) -> Any:
    """Call a plain function in this thread; what it returns or raises is the caller's."""
    entered = context.enter(claim, desk)
    try:
        return handler.function(*arguments["a"], **arguments["k"])
    except BaseException as error:
        if not entered.has_succeeded:
            raise
        _raised_late(claim, error)
    finally:
        context.leave()


async def run_async(claim: Claim, handler: Handler[..., Any], arguments: Any, desk: Desk) -> Any:
    """Await a coroutine function under its soft limit, in this event loop."""
    entered = context.enter(claim, desk)
    try:
        return await _limited(handler, arguments)
    except BaseException as error:
        if not entered.has_succeeded:
            raise
        _raised_late(claim, error)
    finally:
        context.leave()


async def _limited(handler: Handler[..., Any], arguments: Any) -> Any:
    if handler.time_limit_s is None:
        return await handler.function(*arguments["a"], **arguments["k"])
    try:
        async with asyncio.timeout(handler.time_limit_s) as limit:
            return await handler.function(*arguments["a"], **arguments["k"])
    except TimeoutError as error:
        if limit.expired():
            raise SoftTimeLimit(f"ran longer than time_limit_s={handler.time_limit_s}") from error
        raise


def _raised_late(claim: Claim, error: BaseException) -> None:
    """A handler whose `transaction()` stands has raised: its task has succeeded all the same."""
    log.warning("task.raised_after_success", exc_info=error, extra={"task": claim.task_id, "attempt": claim.attempt})


def prepare(
    claim: Claim, handler: Handler[..., Any] | None, *, rng: Random, no_handler_wait_s: float
) -> tuple[Any, Outcome | None]:
    """The decoded arguments, or the outcome when the attempt cannot start.

    Without a handler the task waits for a worker that has one, for `no_handler_wait_s` seconds from the first look.
    """
    if handler is None:
        look_s = NO_HANDLER_LOOK_S * rng.uniform(0.5, 1.0)
        return None, Unhandled(look_s, no_handler_wait_s, f"{NO_HANDLER} {claim.name!r}")
    try:
        arguments = codec.decode(claim.payload)
        args, kwargs = tuple(arguments["a"]), dict(arguments["k"])
    except Exception as error:  # whatever stands there: too deep for the parser, not JSON, another shape
        return None, Dead("bad_payload", f"the recorded payload is not ours: {_text_of(error)}", failed=True)
    mismatch = handler.fits(args, kwargs)
    if mismatch is not None:
        return None, Dead(
            "bad_arguments", codec.storable(f"{claim.name}: {mismatch}", characters_max=TRACEBACK_MAX), failed=True
        )
    return {"a": args, "k": kwargs}, None


def returned(result: Any) -> Done | Worked | Delivered:
    """The outcome of a handler that returned."""
    if result is None:
        return Done()
    if isinstance(result, Worked | Delivered):  # a job's handler has told of each item, or that of webhooks how it went
        return result
    try:
        return Done(codec.encode(result, path="result", max_bytes=RESULT_MAX_BYTES))
    except PayloadError as error:
        return Done(None, codec.storable(f"result_error: {error}", characters_max=REASON_MAX))
    except BaseException as error:  # it is the user's object: its own methods may do anything
        return Done(None, f"result_error: {type(error).__name__}")


def raised(
    claim: Claim, handler: Handler[..., Any], error: BaseException, *, rng: Random, is_shared: bool = False
) -> Outcome:
    """The outcome of a handler that raised: cancelled or snoozed by itself, another attempt, or dead.

    `is_shared`: other tasks were in its call, so that this may be the error of another (see together.py).
    """
    if isinstance(error, Cancel):
        reason: object = error.reason  # whatever the handler passed
        return Cancelled(
            codec.storable(reason, characters_max=REASON_MAX) if isinstance(reason, str) else "cancelled by its handler"
        )
    if isinstance(error, Snooze):
        try:
            return Snoozed(check_delay_s(error.in_s, "Snooze"), _short(error.reason))
        except BaseException as wrong:  # whatever the handler passed: a failure, like any other mistake of its own
            wrong.__cause__ = error
            error = wrong
    text = describe(error)
    if isinstance(error, SoftTimeLimit) and not error.args:
        text = f"SoftTimeLimit: ran longer than time_limit_s={handler.time_limit_s}\n{text}"
    failures = claim.failures + 1
    kind = "time_limit" if isinstance(error, SoftTimeLimit) else type(error).__name__
    if not isinstance(error, Retry) and not is_shared and handler.retries.gives_up(error):
        return Dead(f"not retried: {kind}", text)
    if failures >= claim.failures_max:
        return Dead(f"failures_max reached: {kind}", text)
    delay_s, trouble = _delay_s(handler, failures, error, rng)
    return Failed(delay_s, text if trouble is None else f"{text}\n{trouble}")


def told(claim: Claim, handler: Handler[..., Any], said: object, *, rng: Random) -> Outcome:
    """The outcome of a task of which its handler has said, in its own words, that it has failed."""
    try:
        text = codec.storable(said if isinstance(said, str) else repr(said), characters_max=TRACEBACK_MAX)
    except BaseException:  # it is the user's object
        text = type(said).__name__
    failures = claim.failures + 1
    if failures >= claim.failures_max:
        return Dead("failures_max reached: its handler's verdict", text)
    delay_s, trouble = _delay_s(handler, failures, Retry(text), rng)
    return Failed(delay_s, text if trouble is None else f"{text}\n{trouble}")


def _delay_s(handler: Handler[..., Any], failures: int, error: BaseException, rng: Random) -> tuple[float, str | None]:
    """Seconds until the next attempt; and what was wrong with what the handler's own code says of it, if anything."""
    try:
        if isinstance(error, Retry) and error.in_s is not None:
            return check_delay_s(error.in_s, "Retry"), None
        return handler.retries.delay_s(failures, error, rng=rng), None
    except BaseException as wrong:  # it is the user's function: it may raise anything, and the task goes on
        trouble = f"(the default delay was taken: {_text_of(wrong)})"
        return Exponential().delay_s(failures, rng=rng), codec.storable(trouble, characters_max=REASON_MAX)


def _short(reason: object) -> str:
    """A reason of a handler's, which may have passed anything."""
    return codec.storable(reason, characters_max=REASON_MAX) if isinstance(reason, str) else ""


def describe(error: BaseException) -> str:
    """The error with the end of its traceback, never longer than a few kilobytes, and always valid text."""
    try:
        if _is_bushy(error):  # formatting visits every member of a group, and groups may contain groups
            text = f"{type(error).__name__}: {error}\n(of more than {MEMBERS_MAX} exceptions: not shown)"
        else:
            text = "".join(traceback.format_exception(error, limit=-20, chain=True)).rstrip()
    except BaseException as broken:  # an exception whose own __str__ raises is still a failure to record
        text = f"{type(error).__name__} (its text cannot be shown: {type(broken).__name__})"
    last = text.rsplit("\n", 1)[-1][:1000]
    shown = f"{last}\n\n{text[-TRACEBACK_MAX:]}" if "\n" in text else text
    return codec.storable(shown, characters_max=2 * TRACEBACK_MAX)


def _is_bushy(error: BaseException) -> bool:
    """Whether more exceptions hang together here than anybody reads."""
    found: list[BaseException | None] = [error]
    for visited in range(MEMBERS_MAX):
        if len(found) <= visited:
            return False
        one = found[visited]
        if one is not None:
            found += [one.__cause__, one.__context__]
            if isinstance(one, BaseExceptionGroup):
                found += one.exceptions
    return True


def _text_of(error: BaseException) -> str:
    try:
        return codec.storable(f"{type(error).__name__}: {error}", characters_max=1000)
    except BaseException:  # it is the user's class: its text may raise anything
        return type(error).__name__
