"""Run one attempt: from a claim to an outcome. A handler's exception becomes an outcome here and goes no further.

Wrong arguments are the caller's mistake and do not get better by repeating: the task is dead at once. A result that
JSON cannot carry does not undo the work that was done: the task has succeeded, with a note instead of the result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import Any

from workq.errors import Cancel, Retry, Snooze, SoftTimeLimit
from workq.handlers import answer, context
from workq.handlers.context import Desk
from workq.handlers.forks import end_if_child, handlers_code
from workq.handlers.handler import Handler
from workq.handlers.retry import Exponential
from workq.handlers.said import (
    REASON_MAX,
    TRACEBACK_MAX,
    describe,
    encoded,
    is_a,
    kind_named,
    line_of,
    short,
    tell,
    text_of,
)
from workq.jobs.values import Full
from workq.values import codec
from workq.values.names import check_delay_s
from workq.values.task import Cancelled, Claim, Dead, Delivered, Done, Failed, Outcome, Snoozed, Unhandled, Worked

log = logging.getLogger("workq.run")

NO_HANDLER_ERROR = "no handler is registered under the name"
"""How the error of a task begins that found no handler in its worker."""
ALIKE = "; names there that end alike:"
"""What it goes on with, if there are any."""
NO_HANDLER_LOOK_S = 30.0
"""How often a worker looks at it, at most; half as long at least."""


def run_sync(claim: Claim, handler: Handler[..., Any], arguments: Any, desk: Desk) -> Any:
    """Call a plain function in this thread; what it returns or raises is the caller's."""
    entered = context.enter(claim, desk)
    try:
        value = handler.function(*arguments["a"], **arguments["k"])
        end_if_child()
        return None if value is None else answer.finished(value, desk.wait_for)
    except BaseException as error:
        end_if_child(error)
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
        with handlers_code:
            return await answer.finished_async(await handler.function(*arguments["a"], **arguments["k"]))
    try:
        async with asyncio.timeout(handler.time_limit_s) as limit:
            with handlers_code:
                return await answer.finished_async(await handler.function(*arguments["a"], **arguments["k"]))
    except TimeoutError as error:
        if limit.expired():
            raise SoftTimeLimit(f"ran longer than time_limit_s={handler.time_limit_s}") from error
        raise


def _raised_late(claim: Claim, error: BaseException) -> None:
    """A handler whose `transaction()` stands has raised: its task has succeeded all the same."""
    tell(log, "task.raised_after_success", error, task=claim.task_id, attempt=claim.attempt)


def prepare(
    claim: Claim,
    handler: Handler[..., Any] | None,
    *,
    rng: Random,
    no_handler_wait_s: float,
    alike: Sequence[str] = (),
) -> tuple[Any, Outcome | None]:
    """The decoded arguments, or the outcome when the attempt cannot start.

    Without a handler the task waits for a worker that has one, for `no_handler_wait_s` seconds from the first look.
    `alike`: names of this worker's that end as the one that it does not know.
    """
    if handler is None:
        look_s = NO_HANDLER_LOOK_S * rng.uniform(0.5, 1.0)
        error = f"{NO_HANDLER_ERROR} {claim.name!r}" + (f"{ALIKE} {', '.join(alike)}" if alike else "")
        return None, Unhandled(look_s, no_handler_wait_s, error)
    try:
        arguments = codec.decode(claim.payload)
        args, kwargs = tuple(arguments["a"]), dict(arguments["k"])
    except Exception as error:  # whatever stands there: too deep for the parser, not JSON, another shape
        return None, Dead("bad_payload", f"the recorded payload is not ours: {line_of(error)}", failed=True)
    mismatch = handler.fits(args, kwargs)
    if mismatch is not None:
        return None, Dead(
            "bad_arguments", codec.storable(f"{claim.name}: {mismatch}", characters_max=TRACEBACK_MAX), failed=True
        )
    return {"a": args, "k": kwargs}, None


def returned(result: Any) -> Done | Worked | Delivered:
    """The outcome of a handler that returned.

    Raises:
        NotRun: it has answered with work that it has only created.
    """
    if result is None:
        return Done()
    if is_a(result, Worked) or is_a(result, Delivered):
        return result  # a job's handler has told of each item, or that of webhooks how it went
    text, trouble = encoded(result)
    if trouble is not None:
        answer.check(result)
    return Done(text, trouble)


def raised(
    claim: Claim, handler: Handler[..., Any], error: BaseException, *, rng: Random, is_shared: bool = False
) -> Outcome:
    """The outcome of a handler that raised: cancelled or snoozed by itself, another attempt, or dead.

    `is_shared`: other tasks were in its call, so that this may be the error of another (see batch.py).
    """
    try:
        return _raised(claim, handler, error, rng=rng, is_shared=is_shared)
    except BaseException:  # its class may do anything when it is looked at: a failure without any question to it
        failures = claim.failures + 1
        if failures >= claim.failures_max:
            return Dead(f"failures_max reached: {kind_named(error)}", describe(error))
        return Failed(Exponential().delay_s(failures, rng=rng), describe(error))


def _raised(claim: Claim, handler: Handler[..., Any], error: BaseException, *, rng: Random, is_shared: bool) -> Outcome:
    if is_a(error, Cancel):
        reason: object = error.reason  # whatever the handler passed
        return Cancelled(short(reason) if is_a(reason, str) else "cancelled by its handler")
    if is_a(error, Snooze):
        try:
            return Snoozed(check_delay_s(error.in_s, "Snooze"), short(error.reason), is_a(error, Full))
        except BaseException as wrong:  # whatever the handler passed: a failure, like any other mistake of its own
            wrong.__cause__ = error
            error = wrong
    text = describe(error)
    if is_a(error, SoftTimeLimit) and not error.args:
        text = f"SoftTimeLimit: ran longer than time_limit_s={handler.time_limit_s}\n{text}"
    failures = claim.failures + 1
    kind = "time_limit" if is_a(error, SoftTimeLimit) else kind_named(error)
    if not is_a(error, Retry) and not is_shared and handler.retries.gives_up(error):
        return Dead(f"not retried: {kind}", text)
    if failures >= claim.failures_max:
        return Dead(f"failures_max reached: {kind}", text)
    delay_s, trouble = _delay_s(handler, failures, error, rng)
    return Failed(delay_s, text if trouble is None else f"{text}\n{trouble}")


def told(claim: Claim, handler: Handler[..., Any], said: object, *, rng: Random) -> Outcome:
    """The outcome of a task of which its handler has said, in its own words, that it has failed."""
    text = codec.storable(text_of(said), characters_max=TRACEBACK_MAX)
    failures = claim.failures + 1
    if failures >= claim.failures_max:
        return Dead("failures_max reached: its handler's verdict", text)
    delay_s, trouble = _delay_s(handler, failures, Retry(text), rng)
    return Failed(delay_s, text if trouble is None else f"{text}\n{trouble}")


def _delay_s(handler: Handler[..., Any], failures: int, error: BaseException, rng: Random) -> tuple[float, str | None]:
    """Seconds until the next attempt; and what was wrong with what the handler's own code says of it, if anything."""
    try:
        if is_a(error, Retry) and error.in_s is not None:
            return check_delay_s(error.in_s, "Retry"), None
        return handler.retries.delay_s(failures, error, rng=rng), None
    except BaseException as wrong:  # it is the user's function: it may raise anything, and the task goes on
        trouble = f"(the default delay was taken: {line_of(wrong)})"
        return Exponential().delay_s(failures, rng=rng), codec.storable(trouble, characters_max=REASON_MAX)
