"""`workq doctor`: versions, servers, settings, and what they promise."""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from workq.cli import exits
from workq.cli.group import Command
from workq.cli.session import Session, pass_session
from workq.cli.show import Column, answer, record, table, write
from workq.config import Settings
from workq.diagnose.bounds import Bounds
from workq.diagnose.doctor import examine
from workq.diagnose.doctor.absence import why_unwatched
from workq.diagnose.doctor.check import Check, Level
from workq.errors import ConfigError

_BOUNDS = {
    "local_crash_s": "a worker process dies",
    "dead_host_s": "a whole host dies",
    "absent_host_s": "such a host, gone from all stores",
    "unpublished_s": "a hint was not confirmed",
    "inflight_wiped_s": "Redis is wiped, a worker dies",
    "dead_fleet_s": "most workers die at once",
    "forgotten_s": "the ledger is restored",
    "purge_s": "the broker loses its hints",
    "everything_s": "all but the ledger is gone",
}

_WELL = {Level.OK, Level.UNCHECKED}


@click.command(cls=Command, examples="workq doctor\nworkq doctor --app shop.tasks:wq -o json")
@pass_session
def doctor(session: Session) -> int:
    """Check versions, servers and settings, and print how long recoveries take with them.

    Changes nothing. Exit 3 with findings, 4 when a server is unreachable, 2 when the ledger's file is not there.
    """
    queues: tuple[str, ...] = ()
    before: list[Check] = []
    try:
        settings = session.settings()
        queues = tuple(session.queue().registry.queues())
    except ConfigError as error:
        settings = Settings.load()  # wrong settings raise again; an application that cannot be imported is a finding
        before.append(Check("app", Level.ERROR, " ".join(str(error).split())))
    session.say_default(settings)
    checks = [*before, *examine(settings, queues=queues)]
    is_watched = why_unwatched(settings) is None
    bounds = Bounds.of(settings.times if is_watched else replace(settings.times, absence_s=0.0))
    levels = {check.level for check in checks}
    has_ledger = not any(check.area == "ledger" and check.level is Level.UNCHECKED for check in checks)
    document = {
        "ok": levels <= _WELL and has_ledger,
        "checks": [asdict(check) for check in checks],
        "recovery_s": asdict(bounds),
    }

    def show() -> None:
        table(
            session,
            [Column("area"), Column("result"), Column("found")],
            [(check.area, check.level, check.message) for check in checks],
        )
        write("\nrecovery, at most, when")
        shown = {name: text for name, text in _BOUNDS.items() if name != "absent_host_s" or is_watched}
        record([(text, f"{getattr(bounds, name):.0f} s") for name, text in shown.items()])

    answer(session, document, show)
    if Level.UNREACHABLE in levels:
        return exits.UNREACHABLE
    if not levels <= _WELL:
        return exits.FINDINGS
    return exits.DONE if has_ledger else exits.USAGE
