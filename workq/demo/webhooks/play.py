"""The run of the demo: an application sends events to five receivers, and then those are asked what has arrived.

The events are sent in the transactions of the application's own rows; one of these is rolled back. A real worker
delivers them. One of its processes is killed with SIGKILL while it does; one receiver leaves for good (410), so that
its endpoint is disabled and the rest is held, until it is brought back, enabled, and what was held is released. What it
had refused is sent again.

Everything is private to one run (demo/stage.py). Who decides: the receivers, at the end (proof.py). The ledger's counts
only feed the progress and say when to stop waiting.

What happens on each failure: nothing arrives for two minutes, or the worker leaves by itself: the run stops there and
counts what has arrived, and the report says what was seen last. Whatever ends the run, Ctrl-C included: the worker, its
processes, the servers, the receivers and the folder are gone when `play` has returned or raised.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from workq.demo.stage import (
    STALL_S,
    Freed,
    GaveUp,
    Killed,
    WorkerNarrator,
    WorkWatch,
    folder_for,
    freed_after_s,
    kill_one,
    private_servers,
    working,
    write_settings,
)
from workq.demo.webhooks.proof import ReceiverTally, Recorded, tally
from workq.demo.webhooks.roles import EVENTS, LEAVING, SLOW, STEADY, Role, UntilItLeaves, the_five
from workq.demo.webhooks.shop import Move, Shop, moves_of
from workq.errors import MissingExtra
from workq.lab.fleet import only_workq_variables
from workq.ledger.engine.migrate import migrate
from workq.outbound.signing import new_secret
from workq.values.task import Task
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import DELIVERY_OPEN, QUEUE, TASK_NAME, DeliveryState, EndpointState, WhichDeliveries

if TYPE_CHECKING:
    from workq.app import WorkQueue
    from workq.demo.webhooks.receivers import Receivers
    from workq.webhooks.outbox import Outbox

KILL_AT: Final = 0.3
"""The part of the events that has arrived when a process is killed."""
AT_ONCE: Final = 20
"""Events of one transaction."""
PER_S: Final = 150.0
"""Events a second, at most: the application, the worker and the receivers share one machine, and one SQLite file."""
BACK_TO_S: Final = 86_400.0
_APP: Final = "workq.demo.webhooks.application:wq"


@dataclass(frozen=True, slots=True)
class WebhookWishes:
    """What was asked for. `keep` is a folder that stays; `servers` means RabbitMQ, Redis and PostgreSQL of our own."""

    events: int = EVENTS
    servers: bool = False
    processes: int = 2
    threads: int = 32
    keep: Path | None = None
    kill: bool = True
    stall_s: float = STALL_S


@dataclass(frozen=True, slots=True)
class WebhookScene:
    """What is about to happen."""

    events: int
    roles: Mapping[str, Role]
    processes: int
    threads: int
    kill: bool
    folder: Path


@dataclass(frozen=True, slots=True)
class Returned:
    """The receiver that had left is back: so many deliveries were held and released, and so many refused for good."""

    released: int
    recovered: int


@dataclass(frozen=True, slots=True)
class WebhookReport:
    """The outcome. `seconds`: from the first event sent to the last one taken.

    `tallies`: of each receiver. `rolled_back`: events that must not have arrived anywhere. `returned` None: it did not
    come so far.
    """

    scene: WebhookScene
    stores: str
    tallies: tuple[ReceiverTally, ...]
    rolled_back: int
    killed: Killed | None
    freed: Freed | None
    returned: Returned | None
    seconds: float
    trouble: str | None
    """Why the run was given up; None when it went as it should."""

    @property
    def is_proved(self) -> bool:
        """Whether every event has arrived, and nothing else, and nobody who was quick has waited for the slow."""
        went_well = self.trouble is None and self.returned is not None and self.returned.recovered > 0
        return went_well and all(one.is_right for one in self.tallies) and self.is_unhindered

    @property
    def is_unhindered(self) -> bool:
        """Whether `steady` waited for less time than `slow` needed for its own."""
        found = {one.name: one for one in self.tallies}
        waits = found[STEADY].waits
        return waits is not None and waits.most_undisturbed_s < found[SLOW].span_s


class WebhookNarrator(WorkerNarrator, Protocol):
    """Who tells the user what happens. Called from one thread."""

    def begins(self, scene: WebhookScene) -> None:
        """What is about to happen. Nothing runs yet."""
        ...

    def rolled_back(self, events: int) -> None:
        """A transaction with so many events was rolled back."""
        ...

    def sent(self, events: int) -> None:
        """All of them are recorded."""
        ...

    def freed(self, freed: Freed) -> None:
        """What it had in hand is nobody's any more, or somebody else's."""
        ...

    def left(self, why: str) -> None:
        """A receiver wants no more: its endpoint is disabled."""
        ...

    def returned(self, returned: Returned) -> None:
        """It is back, and everything is sent to it."""
        ...


def play(wishes: WebhookWishes, narrator: WebhookNarrator) -> WebhookReport:
    """Run the demo from start to end; nothing is left behind but what `wishes.keep` names.

    Once in the life of a process: the application reads its settings when it is imported.

    Raises:
        MissingExtra: aiohttp or standardwebhooks is not installed.
        ConfigError: the folder to keep is not empty, or the binaries of the servers are not there.
    """
    try:
        from workq.demo.webhooks.receivers import Receivers
    except ImportError:
        raise MissingExtra("webhooks need aiohttp and standardwebhooks: install the extra [webhooks]") from None
    roles = the_five(-(-wishes.events // 5))
    secrets = {name: new_secret() for name in roles}
    with ExitStack() as stack:
        folder = stack.enter_context(folder_for(wishes.keep))
        scene = WebhookScene(wishes.events, roles, wishes.processes, wishes.threads, wishes.kill, folder)
        narrator.begins(scene)
        stores, urls = "SQLite: ledger, hints and leases in one file", {"ledger": f"sqlite:///{folder / 'workq.db'}"}
        if wishes.servers:
            narrator.starts_servers()
            stores, urls = stack.enter_context(private_servers())
        receivers = stack.enter_context(Receivers(roles, secrets))
        where = {"webhook_allow": "loopback", "webhook_ports": str(receivers.port)}
        stack.enter_context(only_workq_variables({"WORKQ_CONFIG": str(write_settings(folder, urls | where))}))
        from workq.demo.webhooks import application  # not before: it reads its settings now

        wq, outbox = stack.enter_context(application.wq), application.webhooks
        with closing(wq.database()) as database:
            migrate(database)
            shop = stack.enter_context(Shop(database.url, outbox))
        for one in roles.values():
            outbox.endpoints.add(
                receivers.url(one.name),
                endpoint_id=one.name,
                types=[one.event_type],
                secret=secrets[one.name],
                **one.options,
            )
        narrator.starts_worker(stores)
        trouble = None
        with working(folder, app=_APP, queues=QUEUE, processes=wishes.processes, threads=wishes.threads) as worker:
            watch = WorkWatch(worker, folder, wishes.events, "deliveries have succeeded", wishes.stall_s)
            run = _WebhookRun(wq, outbox, shop, watch, scene, narrator)
            try:
                run.send()
                run.wait()
            except GaveUp as error:
                trouble = str(error)
        narrator.counting()
        return WebhookReport(
            scene=scene,
            stores=stores,
            tallies=_tallies(roles, receivers, outbox, shop, run.in_hand),
            rolled_back=run.rolled_back,
            killed=run.killed,
            freed=run.freed,
            returned=run.returned,
            seconds=_seconds(receivers, shop),
            trouble=trouble,
        )


# -- the run


class _WebhookRun:
    """What is done, and what was seen of it."""

    def __init__(
        self,
        wq: WorkQueue,
        outbox: Outbox,
        shop: Shop,
        watch: WorkWatch,
        scene: WebhookScene,
        narrator: WebhookNarrator,
    ) -> None:
        self._wq = wq
        self._outbox = outbox
        self._shop = shop
        self._watch = watch
        self._scene = scene
        self._narrator = narrator
        self._has_left = False
        self._is_sent = False
        self.rolled_back = 0
        self.killed: Killed | None = None
        self.freed: Freed | None = None
        self.in_hand: frozenset[str] = frozenset()
        """The events that the killed process had in hand, by webhook-id."""
        self.returned: Returned | None = None

    def send(self) -> None:
        """Send everything, in many transactions, while the worker delivers.

        Raises:
            GaveUp: the worker is no help.
        """
        scene, ledger = self._scene, self._wq.stores.ledger
        event_types = [one.event_type for one in scene.roles.values()]
        self._watch.until(lambda: len(ledger.questions.workers()) >= scene.processes)
        moves = list(moves_of(scene.events, event_types))
        batches = list(_pages(moves))
        began = time.monotonic()
        for number, batch in enumerate(batches):
            time.sleep(max(0.0, began + number * AT_ONCE / PER_S - time.monotonic()))
            if number == len(batches) // 2:
                never = list(moves_of(AT_ONCE, event_types, first_order=moves[-1].order_number + 1))
                self._shop.record_and_roll_back(never)
                self.rolled_back = len(never)
                self._narrator.rolled_back(len(never))
            self._shop.record(batch)
            self._look()
            self._watch.check()
        self._is_sent = True
        self._narrator.sent(scene.events)

    def wait(self) -> None:
        """Until everything has arrived, and see to what a person would see to.

        Raises:
            GaveUp: it does not.
        """
        self._watch.until(self._look)

    def _look(self) -> bool:
        """Whether everything has ended; and what is to be done about it now."""
        watch = self._watch
        counts = self._wq.stores.ledger.part(WebhookLedger).deliveries.delivery_counts(WhichDeliveries())
        is_over = self._is_sent and self.returned is not None and not DELIVERY_OPEN & counts.keys()
        watch.saw(counts.get(DeliveryState.SUCCEEDED, 0))
        self._narrator.progress(watch.done, watch.total)
        if self._scene.kill and self.killed is None:
            if watch.total > watch.done >= KILL_AT * watch.total:
                self._kill()
        elif self.killed is not None and self.freed is None:
            self._look_at_the_dead(self.killed)
        if not self._has_left:
            self._look_at_the_leaving()
        elif self._is_sent and self.returned is None:
            self._bring_back()
        return is_over and (self.killed is None or self.freed is not None)

    def _kill(self) -> None:
        watch, ledger = self._watch, self._wq.stores.ledger
        self.killed = kill_one(self._wq, watch.worker, watch.folder, counts=_is_delivery)
        if self.killed is None:
            return
        tasks = [self._wq.get(task_id) for task_id in self.killed.attempts]
        rows = [ledger.part(WebhookLedger).deliveries.delivery(str(task.args[0])) for task in tasks if task is not None]
        self.in_hand = frozenset(row.webhook_id for row in rows if row is not None)
        self._narrator.killed(self.killed)

    def _look_at_the_dead(self, killed: Killed) -> None:
        seconds = freed_after_s(self._wq, killed)
        if seconds is not None:
            self.freed = Freed(len(killed.attempts), seconds)
            self._narrator.freed(self.freed)

    def _look_at_the_leaving(self) -> None:
        found = self._outbox.endpoints.get(LEAVING)
        if found.state is EndpointState.DISABLED:
            self._has_left = True
            self._watch.moved()
            self._narrator.left(found.why or "")

    def _bring_back(self) -> None:
        """When all is held that waits for it: what two people would do, at the receiver and here."""
        counts = self._wq.stores.ledger.part(WebhookLedger).deliveries.delivery_counts(
            WhichDeliveries(endpoint_id=LEAVING)
        )
        if counts.get(DeliveryState.PENDING):
            return
        manner = self._scene.roles[LEAVING].manner
        if isinstance(manner, UntilItLeaves):
            manner.bring_back()
        endpoints = self._outbox.endpoints
        endpoints.enable(LEAVING, why="they are back")
        released = endpoints.release(LEAVING)
        self.returned = Returned(released, self._outbox.recover(LEAVING, since_s=BACK_TO_S))
        self._watch.moved()
        self._narrator.returned(self.returned)


def _is_delivery(task: Task) -> bool:
    return task.name == TASK_NAME


def _pages(moves: Sequence[Move]) -> Iterator[list[Move]]:
    rest = iter(moves)
    while page := list(islice(rest, AT_ONCE)):
        yield page


# -- what came of it


def _tallies(
    roles: Mapping[str, Role], receivers: Receivers, outbox: Outbox, shop: Shop, in_hand: frozenset[str]
) -> tuple[ReceiverTally, ...]:
    """Of each receiver: its log, against the application's rows and the ledger."""
    wanted: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for move in shop.recorded():
        wanted[move.event_type][move.event_id] = shop.sent_at[move.event_id]
    return tuple(
        tally(
            one.name,
            one.event_type,
            sent_at=wanted[one.event_type],
            requests=receivers.log[one.name],
            recorded={
                row.webhook_id: Recorded(row.state is DeliveryState.SUCCEEDED, row.attempts)
                for row in outbox.deliveries(endpoint=one.name)
            },
            in_hand=in_hand,
        )
        for one in roles.values()
    )


def _seconds(receivers: Receivers, shop: Shop) -> float:
    taken_at = [one.answered_at for log in receivers.log.values() for one in log if one.is_taken]
    return max(taken_at) - min(shop.sent_at.values()) if taken_at else 0.0
