"""Plan: what a sweep would recover and why, written down, so that a person may look before it is done (apply.py).

A plan reads. It is one document: which ledger, when, by whom, and one row for each decision, with the fence of what it
is about (state, attempt, a hash of the token, times) and the reason in words. It grants nothing: whoever applies it
makes the same decisions as a sweep, and refuses each row whose fence has moved since.

The limit comes first: a plan looks once and notes nothing. A worker that nobody has suspected yet is named under
`suspects`, not planned; after one pass of a sweep, and a beat later, a plan has it. What is no recovery is left to the
next sweep: schedules tick, order keys and limits go on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, Literal, TypeAlias, assert_never

import msgspec

from workq.config import Settings, masked
from workq.errors import ConfigError, InFlightUnavailable, Refused
from workq.ledger import Fence, Foreseen, Foresight, Prunable
from workq.recovery.deaths import Suspicions, gone_from_here, look_for_the_dead, of_absence, of_silence, remains_of
from workq.recovery.lost_hints import markers_by_queue, proofs, slack_s
from workq.recovery.sweep import STEPS
from workq.stores import Stores
from workq.values.incarnation import this_person
from workq.values.task import State

VERSION: Final = 1


# ------------------------------------------------------------------------------------------------------ the document


class _Row(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """One decision. `why` is for people."""

    why: str


class Expire(_Row, frozen=True, kw_only=True, tag="expire"):
    """A task that nobody started in its time is cancelled."""

    fence: Fence


class RelayHint(_Row, frozen=True, kw_only=True, tag="relay"):
    """A task that is due and has no confirmed hint gets one."""

    fence: Fence


class Reap(_Row, frozen=True, kw_only=True, tag="reap"):
    """An incarnation and its claims end. `silent`: its lease is over; `gone`: this machine says that it is dead."""

    foresight: Foresight
    how: Literal["silent", "gone"]


class Rehint(_Row, frozen=True, kw_only=True, tag="rehint"):
    """A dead incarnation held this task and had not claimed it: it gets a new hint."""

    fence: Fence
    worker: str


class Orphan(_Row, frozen=True, kw_only=True, tag="orphan"):
    """A task that runs under an incarnation which is not live is returned."""

    foreseen: Foreseen


class Promote(_Row, frozen=True, kw_only=True, tag="promote"):
    """A waiting task whose time has come becomes ready."""

    fence: Fence


class Lost(_Row, frozen=True, kw_only=True, tag="lost"):
    """A marker proves that the task's hint is lost: it is sent again."""

    fence: Fence
    marker: str


class Prune(_Row, frozen=True, kw_only=True, tag="prune"):
    """Rows beyond their retention are removed."""

    rows: Prunable


Row: TypeAlias = Expire | RelayHint | Reap | Rehint | Orphan | Promote | Lost | Prune
KINDS: Final = ("expire", "relay", "reap", "rehint", "orphan", "promote", "lost", "prune")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass would do. `cut` names the steps that had more rows than `limit`, `away` the stores that were away.

    `suspects` are live by the ledger and have no lease, but nobody has looked at them twice.
    """

    workq_plan: int = VERSION
    namespace: str
    ledger: str
    ledger_began_at: datetime
    made_at: datetime
    made_by: str
    limit: int
    cut: tuple[str, ...] = ()
    away: tuple[str, ...] = ()
    quiet: bool = False
    braked: bool = False
    blind: bool = False
    suspects: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()


class _Head(msgspec.Struct, frozen=True):
    workq_plan: int


def encode(plan: Plan) -> bytes:
    """The document: JSON, a line for each row."""
    rows = plan.rows
    head = msgspec.json.encode(msgspec.structs.replace(plan, rows=()))
    lines = b",\n".join(msgspec.json.encode(row) for row in rows)
    return head.removesuffix(b"]}") + (b"\n" + lines + b"\n" if rows else b"") + b"]}\n"


def decode(body: bytes) -> Plan:
    """The plan that a document holds.

    Raises:
        ConfigError: it is no plan, or a damaged one. Refused: a newer workq made it.
    """
    try:
        version = msgspec.json.decode(body, type=_Head).workq_plan
        if version > VERSION:
            raise Refused(
                f"this plan has version {version}, and this workq reads {VERSION}; apply it with the newer one"
            )
        if version < 1:
            raise ConfigError(f"this is no plan of a sweep (version {version}); make one: workq sweep --plan FILE")
        return msgspec.json.decode(body, type=Plan)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ConfigError(
            f"this is no plan of a sweep, or a damaged one ({error}); make one: workq sweep --plan FILE"
        ) from error


def digest(body: bytes) -> str:
    """What events call this plan."""
    return hashlib.sha256(body).hexdigest()[:16]


def name_of(ledger_url: str) -> str:
    """A ledger's URL as plans keep it: without user and password, which do not tell one ledger from another."""
    scheme, separator, rest = masked(ledger_url).partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def rows_of(row: Row) -> Iterator[tuple[str, str]]:
    """The (kind, id) of all that a row would change."""
    match row:
        case Expire() | RelayHint() | Rehint() | Promote() | Lost():
            yield str(row.__struct_config__.tag), row.fence.task_id
        case Reap():
            yield "reap", row.foresight.worker
        case Orphan():
            yield "orphan", row.foreseen.fence.task_id
        case Prune():
            yield from (("prune", one) for one in row.rows.ids)
        case _:
            assert_never(row)


def counts(plan: Plan) -> dict[str, int]:
    """How many changes of each kind a plan holds."""
    found = Counter(kind for row in plan.rows for kind, _ in rows_of(row))
    return {kind: found[kind] for kind in KINDS}


# ------------------------------------------------------------------------------------------------------------- plan


def make(
    stores: Stores, settings: Settings, *, only: Iterable[str] = STEPS, limit: int = 1000, who: str | None = None
) -> Plan:
    """Look, and change nothing. Each step has at most `limit` rows. Ticks are left to a sweep: they are no repairs.

    Raises:
        LedgerUnavailable: nothing can be planned. An in-flight store that is away is named in `away` instead.
    """
    chosen = set(only)
    draft = _Draft(stores, settings, limit)
    if "expire" in chosen:
        draft.expire()
    if "relay" in chosen:
        draft.relay()
    if "reap" in chosen:
        draft.as_far_as_possible(draft.reap)
    if "orphans" in chosen:
        draft.orphans()
    if "promote" in chosen:
        draft.promote()
    if "mark" in chosen:
        draft.as_far_as_possible(draft.lost)
    if "prune" in chosen:
        draft.prune()
    return Plan(
        namespace=settings.namespace,
        ledger=name_of(settings.ledger),
        ledger_began_at=stores.ledger.plans.began_at(),
        made_at=draft.now,
        made_by=this_person() if who is None else who,
        limit=limit,
        cut=tuple(draft.cut),
        away=tuple(draft.away),
        quiet=draft.look.is_quiet,
        braked=draft.look.is_braked,
        blind=draft.is_blind,
        suspects=tuple(one for one in draft.look.missing if one not in draft.reaped),
        rows=tuple(draft.rows),
    )


class _Draft:
    """A plan in the making."""

    def __init__(self, stores: Stores, settings: Settings, limit: int) -> None:
        self.stores, self.settings, self.limit = stores, settings, limit
        self.now = stores.ledger.questions.clock()
        self.rows: list[Row] = []
        self.cut: list[str] = []
        self.away: list[str] = []
        self.look = Suspicions({}, {})
        self.reaped: set[str] = set()
        self.is_blind = False

    def as_far_as_possible(self, step: Callable[[], None]) -> None:
        """The in-flight store being away ends a step, not the plan."""
        try:
            step()
        except InFlightUnavailable as error:
            if str(error) not in self.away:
                self.away.append(str(error))

    def relay(self) -> None:
        times = self.settings.times
        rows = self.stores.ledger.hints.take_unpublished(
            limit=self.limit + 1,
            grace_s=times.unpublished_grace_s,
            horizon_s=self.stores.broker.horizon_s,
            dry_run=True,
        )
        for fence in self._fences("relay", [row.task_id for row in rows]):
            if fence.published_at is None:
                queued, due = self._ago(fence.queued_at), self._ago(fence.due_at)
                self.rows.append(RelayHint(why=f"queued {queued}, due {due}, without a confirmed hint", fence=fence))

    def reap(self) -> None:
        for row in gone_from_here(self.stores):
            evidence = remains_of(row, of_absence(row)).evidence
            if (foresight := self.stores.ledger.plans.foresee(row.id, evidence)) is not None:
                self._reap(foresight, "gone", evidence.cause)
        self.look = look_for_the_dead(self.stores, self.settings, dry_run=True)
        for worker in self.look.confirmed:
            row = self.look.live[worker]
            evidence = remains_of(row, of_silence(row, has_lease=worker in self.look.leases)).evidence
            foresight = self.stores.ledger.plans.foresee(worker, evidence) if worker not in self.reaped else None
            if foresight is not None and foresight.suspected_at is not None:
                since = f"suspected {self._ago(foresight.suspected_at)}"
                self._reap(foresight, "silent", f"{evidence.cause}, {since}")
        for worker in self.look.half_reaped:
            self._rehint(worker, [], f"held by {worker}, which has ended, and not claimed")

    def _reap(self, foresight: Foresight, how: Literal["silent", "gone"], why: str) -> None:
        if len(self.reaped) >= self.limit:
            self._is_cut("reap")
            return
        self.reaped.add(foresight.worker)
        ends = Counter(one.becomes.value for one in foresight.claims)
        told = ", ".join(f"{count} {state}" for state, count in sorted(ends.items()))
        self.rows.append(Reap(why=f"{why}; claims: {told or 'none'}", foresight=foresight, how=how))
        claimed = [one.fence.task_id for one in foresight.claims]
        self._rehint(foresight.worker, claimed, f"held by {foresight.worker}, which is to be reaped, and not claimed")

    def _rehint(self, worker: str, claimed: Sequence[str], why: str) -> None:
        known = {*claimed, *(row.fence.task_id for row in self.rows if isinstance(row, RelayHint | Rehint))}
        held = [one.task_id for one in self.stores.inflight.held_by(worker) if one.task_id not in known]
        for fence in self._fences("reap", held):
            if fence.state in (State.READY, State.WAITING):
                self.rows.append(Rehint(why=why, fence=fence, worker=worker))

    def orphans(self) -> None:
        found = self.stores.ledger.plans.orphaned(limit=self.limit + 1)
        for foreseen in found[: self.limit]:
            fence = foreseen.fence
            why = f"it runs under {fence.worker}, which is not live; it becomes {foreseen.becomes}"
            self.rows.append(Orphan(why=why, foreseen=foreseen))
        if len(found) > self.limit:
            self._is_cut("orphans")

    def promote(self) -> None:
        for fence in self._fences("promote", self.stores.ledger.plans.promotable(limit=self.limit + 1)):
            if fence.state is State.WAITING:
                self.rows.append(Promote(why=f"due {self._ago(fence.due_at)}, and still waiting", fence=fence))

    def expire(self) -> None:
        for fence in self._fences("expire", self.stores.ledger.plans.expirable(limit=self.limit + 1)):
            if fence.state in (State.READY, State.WAITING):
                self.rows.append(Expire(why="it was not started in its time", fence=fence))

    def lost(self) -> None:
        times = self.settings.times
        proven = proofs(markers_by_queue(self.stores).values(), times)
        if proven and self.stores.inflight.epoch_age_s() < times.fills_s:
            self.is_blind = True
            return
        for marker in proven:
            held = {hold.task_id for hold in self.stores.inflight.holds(marker.queue)}
            rows = self.stores.ledger.markers.lost(
                marker, held=held, slack_s=slack_s(times), limit=self.limit + 1, dry_run=True
            )
            for fence in self._fences("mark", [row.task_id for row in rows]):
                if fence.published_at is not None:
                    sent = self._ago(fence.published_at)
                    why = f"its hint was confirmed {sent}, before marker {marker.id} was sent, which is back"
                    self.rows.append(Lost(why=why, fence=fence, marker=marker.id))

    def prune(self) -> None:
        settings = self.settings
        found = self.stores.ledger.plans.prunable(
            limit=self.limit, retention_s=settings.retention_s, dead_retention_s=settings.dead_retention_s
        )
        for rows in found:
            why = f"{len(rows.ids)} {rows.what} beyond their retention: until {rows.before:%Y-%m-%d %H:%M:%S}Z"
            self.rows.append(Prune(why=why, rows=rows))
            if len(rows.ids) >= self.limit:
                self._is_cut("prune")

    def _fences(self, step: str, task_ids: Sequence[str]) -> Iterator[Fence]:
        """Where those tasks stand now, at most `limit` of them, in the order given."""
        if len(task_ids) > self.limit:
            self._is_cut(step)
        found = self.stores.ledger.plans.fences(islice(task_ids, self.limit))
        return (found[one] for one in islice(task_ids, self.limit) if one in found)

    def _is_cut(self, step: str) -> None:
        if step not in self.cut:
            self.cut.append(step)

    def _ago(self, at: datetime) -> str:
        seconds = (self.now - at).total_seconds()
        return f"{seconds:.0f} s ago" if seconds >= 0 else f"in {-seconds:.0f} s"
