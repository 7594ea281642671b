"""`workq sweep`: one repair pass, or one every few seconds; or the same as a plan that a person may read first."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from workq.cli import exits
from workq.cli.group import Command
from workq.cli.inputs import Choices, Duration, WholeNumber
from workq.cli.session import Session, log_format_option
from workq.cli.show import Column, answer, in_json, instant, line, table, write
from workq.config import Settings
from workq.errors import BrokerUnavailable, ConfigError, LedgerReplaced, Refused, Unavailable
from workq.logs import printer
from workq.recovery.sweep import STEPS
from workq.recovery.sweep import sweep as one_pass
from workq.recovery.swept import Swept
from workq.stores import Stores
from workq.values.plural import counted

_EXAMPLES = """
workq sweep
workq sweep --dry-run
workq sweep --only relay,reap --limit 5000 -o json
workq sweep --every 5s
workq sweep --plan plan.json
workq sweep --apply plan.json --yes
"""
_COUNTS = (
    "ticked",
    "expired",
    "relayed",
    "reaped_workers",
    "returned",
    "rehinted",
    "dead",
    "orphans",
    "advanced",
    "admitted",
    "tended",
    "promoted",
    "lost",
    "pruned",
    "pruned_events",
    "pruned_ticks",
    "pruned_windows",
    "pruned_workers",
    "pruned_jobs",
    "pruned_webhooks",
    "pruned_messages",
    "markers",
)
_NEED_THE_BROKER = frozenset({"relay", "reap", "orphans", "mark"})
_PLAN_MAX_BYTES = 512 << 20
_SHOWN_MAX = 200
"""How many rows of a plan a table shows; the file has all."""


@click.command(cls=Command, runs_on=lambda given: given["every_s"] is not None, examples=_EXAMPLES)
@click.option("--every", "every_s", type=Duration(), metavar="TIME", help="run on, with a pass every 5s, 1m, ...")
@click.option("--dry-run", is_flag=True, help="the same counts, changing nothing; exit 3 when there is work")
@click.option(
    "--plan", "plan_to", metavar="FILE", help="write what would be done, and why, to a new file (- to stdout)"
)
@click.option(
    "--apply", "apply_from", metavar="FILE", help="do what a plan says (- from stdin), but what has moved since"
)
@click.option("--yes", is_flag=True, help="with --apply: do not ask")
@click.option("--only", type=Choices(STEPS), metavar="STEPS", help=f"some of {','.join(STEPS)}")
@click.option("--limit", type=WholeNumber(1, 1_000_000), help="rows of each step  [default: 1000]")
@log_format_option
@click.pass_context
def sweep(
    ctx: click.Context,
    every_s: float | None,
    dry_run: bool,
    plan_to: str | None,
    apply_from: str | None,
    yes: bool,
    only: list[str] | None,
    limit: int | None,
) -> int:
    """Repair what was lost: relay hints, end the claims of the dead, return orphans, promote, send lost hints, prune.

    What is due by a schedule becomes a task, order keys and limits go on (only by a pass: no plan has these).

    Workers sweep too; this is for cron, and for the day when no worker runs. Any number may run at once. A store that
    is away ends the steps that need it; the others are done, and the exit status is 4.

    --plan only looks, and writes each decision with its reason. --apply makes those decisions and no others: what has
    moved since is refused, with the reason (exit 3); a plan for another ledger is refused as a whole (exit 6). Each
    change is kept as an event `manual` with your name.
    """
    modes = {"--every": every_s is not None, "--dry-run": dry_run, "--plan": plan_to, "--apply": apply_from}
    given = [name for name, is_given in modes.items() if is_given]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)}: give one of them", ctx)
    if apply_from is not None and (only or limit):
        raise click.UsageError("--only and --limit belong to the plan: it says what is done", ctx)
    if yes and apply_from is None:
        raise click.UsageError("--yes belongs to --apply", ctx)
    session = ctx.ensure_object(Session)
    session.configure_log(logging.INFO if session.is_verbose else logging.ERROR)
    steps = only or list(STEPS)
    if apply_from is not None:
        return _apply(session, apply_from, yes=yes)
    if plan_to is not None:
        return _plan(session, plan_to, steps, limit or 1000)
    if every_s is not None:
        return _run_on(session, every_s, steps, limit or 1000)
    return _once(session, steps, limit or 1000, dry_run=dry_run)


def _once(session: Session, steps: list[str], limit: int, *, dry_run: bool) -> int:
    stores, settings = session.stores(), session.settings()
    away: list[str] = []
    if _NEED_THE_BROKER.intersection(steps):
        with _noting(away):
            stores.broker.check()  # one pass and no second try: a broker that is away is part of the answer
    done = one_pass(stores, settings, only=steps, limit=limit, dry_run=dry_run, broker_is_away=bool(away))
    away.extend(one for one in done.away if one not in away)
    done.away = away
    rows = [(name.replace("_", " "), getattr(done, name)) for name in _COUNTS]
    answer(
        session,
        {"dry_run": dry_run, **_counts(done)},
        lambda: table(session, [Column("would do" if dry_run else "done"), Column("count", is_number=True)], rows),
    )
    _note(session, is_quiet=done.is_quiet, is_braked=done.is_braked)
    if done.is_blind and not away:
        session.note("no marker was sent, or no loss proved: the broker is away, or the in-flight store young")
    if done.unconfirmed:
        session.warn(
            f"{counted(done.unconfirmed, 'hint was', 'hints were')} not confirmed; the next pass sends what is left"
        )
    for one in away:
        session.warn(f"{one.rstrip('.')}; what needs it waits for another pass")
    if away:
        return exits.UNREACHABLE
    return exits.FINDINGS if dry_run and done.changes else exits.DONE


@contextlib.contextmanager
def _noting(away: list[str]) -> Iterator[None]:
    """A broker that is away is no error, but part of the answer."""
    try:
        yield
    except BrokerUnavailable as error:
        away.append(str(error))


def _note(session: Session, *, is_quiet: bool, is_braked: bool) -> None:
    if is_quiet:
        session.note("the in-flight store is young: nobody is reaped for three beats")
    if is_braked:
        session.warn(
            "more than half of the fleet looks dead at once: nobody is reaped before one more look, a beat later"
        )


# ----------------------------------------------------------------------------------------------------- plan and apply


def _plan(session: Session, target: str, steps: list[str], limit: int) -> int:
    from workq.recovery.plan import counts, encode, make, rows_of

    path = None if target == "-" else Path(target)
    if path is not None and _is_taken(path):
        raise click.UsageError(f"--plan: {path} exists; a plan is written to a new file")
    plan = make(session.stores(), session.settings(), only=steps, limit=limit)
    body = encode(plan)
    if path is None:
        write(body.decode(), is_raw=True)
    else:
        _save(path, body)
        rows = [(kind, task_id, row.why) for row in plan.rows for kind, task_id in rows_of(row)]
        columns = [Column("kind"), Column("what", is_whole=True), Column("why")]
        answer(
            session,
            {"plan": str(path), "rows": counts(plan), "cut": plan.cut, "suspects": plan.suspects, "away": plan.away},
            lambda: table(session, columns, rows[:_SHOWN_MAX], empty="nothing to do"),
        )
        if len(rows) > _SHOWN_MAX:
            session.note(f"and {len(rows) - _SHOWN_MAX} more, in {path}")
        if rows:
            session.note(f"{counted(len(rows), 'change')}; to apply the plan: workq sweep --apply {path}")
    if plan.cut:
        session.warn(f"cut at {limit} rows of a step: {', '.join(plan.cut)}; there is more (--limit)")
    if plan.suspects:
        count = len(plan.suspects)
        session.note(
            f"{counted(count, 'worker has', 'workers have')} no lease, but no second look yet; "
            "a pass of `workq sweep` notes the first"
        )
    _note(session, is_quiet=plan.quiet, is_braked=plan.braked)
    for one in plan.away:
        session.warn(f"{one.rstrip('.')}; what needs it is not in the plan")
    return exits.UNREACHABLE if plan.away else exits.DONE


def _is_taken(path: Path) -> bool:
    try:
        path.lstat()
    except OSError:  # not there; or it cannot be written either, and `_save` says why
        return False
    return True


def _save(path: Path, body: bytes) -> None:
    """All of it or nothing: whoever applies it must not read a half."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)  # unlike a rename, never over a file that came meanwhile
    except FileExistsError:
        raise click.UsageError(f"--plan: {path} exists; a plan is written to a new file") from None
    except OSError as error:
        raise ConfigError(f"--plan: cannot write {path} ({error.strerror}); name another file, or - ") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _read(source: str) -> bytes:
    try:
        with contextlib.ExitStack() as opened:
            file = sys.stdin.buffer if source == "-" else opened.enter_context(Path(source).open("rb"))
            body = file.read(_PLAN_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--apply: cannot read {source} ({error.strerror})") from error
    if len(body) > _PLAN_MAX_BYTES:
        raise ConfigError(f"--apply: {source} has more than {_PLAN_MAX_BYTES >> 20} MiB, and is no plan")
    return body


def _apply(session: Session, source: str, *, yes: bool) -> int:
    from workq.recovery.apply import AppliedPlan, apply, check
    from workq.recovery.plan import counts, decode, digest

    body = _read(source)
    done = AppliedPlan()
    try:
        plan = decode(body)
        stores, settings = session.stores(), session.settings()
        check(plan, stores, settings)
        planned = counts(plan)
        if any(planned.values()):
            stores.broker.check()
            stores.inflight.epoch_age_s()
            if not yes and not _is_confirmed(session, planned, is_readable=source != "-"):
                return exits.REFUSED
        try:
            apply(stores, settings, plan, plan_digest=digest(body), done=done)
        finally:
            if done.applied or done.refused or not any(planned.values()):
                _report(session, done, planned, digest(body))
    except Refused as error:
        session.warn(f"{error}; nothing was changed. Make one here: workq sweep --plan FILE")
        return exits.REFUSED
    return exits.FINDINGS if done.refused else exits.DONE


def _report(session: Session, done: Any, planned: dict[str, int], plan_digest: str) -> None:
    refused = [{"kind": kind, "id": one, "why": why} for kind, one, why in done.refused]
    applied = {kind: done.applied[kind] for kind in planned}
    document = {"plan": plan_digest, "applied": applied, "refused": refused, "unconfirmed": done.unconfirmed}

    def tell() -> None:
        of_kind = {kind: sum(one["kind"] == kind for one in refused) for kind in planned}
        rows = [(kind, planned[kind], applied[kind], of_kind[kind]) for kind in planned if planned[kind]]
        columns = [Column("kind"), *(Column(name, is_number=True) for name in ("planned", "applied", "refused"))]
        table(session, columns, rows, empty="the plan is empty: nothing to do")
        for one in refused:
            line(session, one, f"refused: {one['kind']} {one['id']}: {one['why']}")

    answer(session, document, tell)
    if done.unconfirmed:
        session.warn(
            f"{counted(done.unconfirmed, 'hint was', 'hints were')} not confirmed; the sweep sends what is left"
        )


def _is_confirmed(session: Session, planned: dict[str, int], *, is_readable: bool) -> bool:
    told = ", ".join(f"{count} {kind}" for kind, count in planned.items() if count)
    if not (is_readable and sys.stdin.isatty() and sys.stderr.isatty()):
        session.warn(f"the plan has {told}; refused without --yes")
        return False
    try:
        return click.confirm(f"apply {told}?", err=True)
    except click.Abort:
        return False


# ------------------------------------------------------------------------------------------------------------ run on


def _run_on(session: Session, every_s: float, steps: list[str], limit: int) -> int:
    """Until SIGTERM or SIGINT. A store that is away is one line when it goes and one when it is back.

    No pass waits for a reader: what is not taken in time is dropped, and counted.
    """
    from workq.supervisor.ticker import run_every

    is_json = session.output == "json"
    out, err = printer(1, is_json=is_json), printer(2, is_json=False)
    session.say = err.say  # also of the error that ends it

    ends: list[str] = []
    """Why it ends. No lock: a signal handler may run in the middle of whatever takes one."""
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: ends.append("a signal"))
    settings: Settings = session.settings()
    away: list[str] = []
    failures: list[Exception] = []

    def once(was_away: bool) -> tuple[Swept | None, list[str]]:
        """A pass as far as it goes, and what was away."""
        missing: list[str] = []
        try:
            stores: Stores = session.stores()
            if was_away:
                with _noting(missing):
                    stores.broker.check()
            done = one_pass(stores, settings, only=steps, limit=limit, broker_is_away=bool(missing))
        except LedgerReplaced:
            raise
        except Unavailable as error:
            return None, [*missing, str(error)]
        if done.unconfirmed:
            missing.append(f"broker: {counted(done.unconfirmed, 'hint was', 'hints were')} not confirmed")
        return done, [*missing, *done.away]

    def tick() -> None:
        try:
            done, missing = once(bool(away))
        except Exception as error:  # in the ticker's thread nobody would hear of it
            failures.append(error)
            ends.append("an error")
            return
        if missing and not away:
            err.say(f"workq: warning: sweep waits: {missing[0]}")
        elif away and not missing and not session.is_quiet:
            err.say("workq: sweep goes on")
        away[:] = missing
        if done is not None and done.changes:
            document = {"at": datetime.now(UTC), **_counts(done)}
            counts = " ".join(f"{name}={getattr(done, name)}" for name in _COUNTS if getattr(done, name))
            out.say(json.dumps(in_json(document)) if is_json else f"{instant(datetime.now(UTC))} {counts}")
        if not out.has_reader:
            ends.append("it has seen enough")

    run_every(tick, every_s=every_s, is_over=lambda: bool(ends))
    if failures:
        raise failures[0]
    return exits.DONE


def _counts(done: Swept) -> dict[str, Any]:
    return {
        **{name: getattr(done, name) for name in _COUNTS},
        "suspected_workers": done.suspected_workers,
        "quiet": done.is_quiet,
        "braked": done.is_braked,
        "blind": done.is_blind,
        "away": done.away,
    }
