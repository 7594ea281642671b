"""What every in-flight store promises. A subclass says only how to open one: see test_inflight_contract.py."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from tests.contract.given import at_once
from workq.errors import LeaseLost
from workq.inflight import Entry, InFlight

LONG_S = 600.0
"""A lease that does not end while a test runs."""


@dataclass(frozen=True)
class World:
    """One store, empty and only for this test, and what a test may do to it from outside.

    `wipe` empties it as a lost disk would. `disagreements` lists what its hash and its indexes say differently.
    `neighbour` is another namespace on the same server.
    """

    inflight: InFlight
    neighbour: InFlight
    wipe: Callable[[], None]
    disagreements: Callable[[], list[str]]
    product: str

    def entries(self, count: int, *, queue: str = "mail", attempt: int | None = None) -> list[Entry]:
        return [Entry(str(uuid.uuid4()), queue, attempt) for _ in range(count)]

    def worker(self, name: str) -> str:
        """The name of an incarnation that has just joined."""
        self.inflight.join(name, lease_s=LONG_S)
        return name

    def expire(self, worker: str) -> None:
        """End the lease of a worker and wait until it has ended."""
        assert self.inflight.extend(worker, lease_s=0.001)
        until(lambda: self.inflight.leases()[worker].left_s < 0, f"the lease of {worker} has ended")

    def held(self, worker: str) -> dict[str, int | None]:
        return {hold.task_id: hold.attempt for hold in self.inflight.held_by(worker)}


def until(condition: Callable[[], bool], what: str, *, limit_s: float = 20.0) -> None:
    """Wait until the condition holds; fail after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.002)


def ids(entries: Sequence[Entry]) -> set[str]:
    return {entry.task_id for entry in entries}


def pairs(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    return [(entry.task_id, entry.queue) for entry in entries]


def claimed(entries: Sequence[Entry], attempt: int | None) -> list[Entry]:
    return [Entry(entry.task_id, entry.queue, attempt) for entry in entries]


class InFlightContract:
    """What every in-flight store promises. A subclass gives the fixture `world`."""

    # Holding needs a lease.

    def test_without_a_lease_nothing_is_held(self, world: World) -> None:
        entries = world.entries(3)

        with pytest.raises(LeaseLost, match="ada"):
            world.inflight.hold(entries, by="ada")

        assert world.inflight.holds("mail") == []

    def test_with_an_expired_lease_nothing_is_held(self, world: World) -> None:
        ada = world.worker("ada")
        world.expire(ada)

        with pytest.raises(LeaseLost):
            world.inflight.hold(world.entries(3), by=ada)

        assert world.inflight.holds("mail") == []

    def test_a_lease_is_granted_by_joining_and_joining_again_keeps_it(self, world: World) -> None:
        world.inflight.join("ada", lease_s=LONG_S)
        world.inflight.join("ada", lease_s=LONG_S)

        leases = world.inflight.leases()

        assert list(leases) == ["ada"]
        assert leases["ada"].worker == "ada"
        assert LONG_S - 60 < leases["ada"].left_s <= LONG_S

    def test_what_is_held_is_answered_and_found_by_worker_and_by_queue(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(3)

        assert world.inflight.hold(entries, by=ada) == ids(entries)

        by_worker, by_queue = world.inflight.held_by(ada), world.inflight.holds("mail")
        assert {hold.task_id for hold in by_worker} == {hold.task_id for hold in by_queue} == ids(entries)
        for hold in by_worker + by_queue:
            assert (hold.worker, hold.queue, hold.attempt) == (ada, "mail", None)
            assert 0 <= hold.since_s < 60

    def test_holding_twice_is_the_same_as_once(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(3)
        world.inflight.hold(entries, by=ada)

        assert world.inflight.hold(entries, by=ada) == ids(entries)

        assert world.held(ada) == dict.fromkeys(ids(entries))
        assert world.disagreements() == []

    def test_an_id_given_twice_in_one_call_is_held_once(self, world: World) -> None:
        ada = world.worker("ada")
        (entry,) = world.entries(1)

        assert world.inflight.hold([entry, entry], by=ada) == {entry.task_id}

        assert len(world.inflight.held_by(ada)) == len(world.inflight.holds("mail")) == 1

    def test_holding_nothing_is_allowed(self, world: World) -> None:
        assert world.inflight.hold([], by=world.worker("ada")) == set()

    def test_one_call_holds_tasks_of_several_queues(self, world: World) -> None:
        ada = world.worker("ada")
        mail, index = world.entries(2, queue="mail"), world.entries(3, queue="index.pages")

        assert world.inflight.hold(mail + index, by=ada) == ids(mail + index)

        assert {hold.task_id for hold in world.inflight.holds("mail")} == ids(mail)
        assert {hold.task_id for hold in world.inflight.holds("index.pages")} == ids(index)
        assert {(hold.task_id, hold.queue) for hold in world.inflight.held_by(ada)} == set(pairs(mail + index))

    def test_a_known_attempt_is_stored_and_a_hold_that_knows_none_keeps_it(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(2)
        world.inflight.hold(claimed(entries, 7), by=ada)

        world.inflight.hold(entries, by=ada)

        assert world.held(ada) == dict.fromkeys(ids(entries), 7)

    # Who holds what others want.

    def test_an_entry_of_a_live_other_stays_its_own(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        first, rest = world.entries(2), world.entries(2)
        world.inflight.hold(claimed(first, 1), by=ada)

        assert world.inflight.hold(first + rest, by=bob) == ids(rest)

        assert world.held(ada) == dict.fromkeys(ids(first), 1)
        assert world.held(bob) == dict.fromkeys(ids(rest))

    def test_an_entry_of_an_expired_other_is_taken_over(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        entries = world.entries(3)
        world.inflight.hold(claimed(entries, 4), by=ada)
        world.expire(ada)

        assert world.inflight.hold(entries, by=bob) == ids(entries)

        assert world.held(bob) == dict.fromkeys(ids(entries))  # the attempt was the other's
        assert world.held(ada) == {}
        assert world.disagreements() == []

    def test_holds_of_the_same_ids_at_once_give_each_to_exactly_one(self, world: World) -> None:
        workers = [world.worker(f"worker-{number}") for number in range(8)]
        entries = world.entries(40)

        def hold(number: int) -> set[str]:
            mine = random.Random(number).sample(entries, len(entries))
            return world.inflight.hold(mine, by=workers[number])

        answers = at_once(8, hold)

        assert sum(map(len, answers)) == len(entries)
        assert set().union(*answers) == ids(entries)
        for worker, answer in zip(workers, answers, strict=True):
            assert set(world.held(worker)) == answer
        assert world.disagreements() == []

    def test_entries_of_the_dead_taken_over_at_once_go_each_to_exactly_one(self, world: World) -> None:
        dead = world.worker("dead")
        workers = [world.worker(f"worker-{number}") for number in range(8)]
        entries = world.entries(40)
        world.inflight.hold(entries, by=dead)
        world.expire(dead)

        answers = at_once(8, lambda number: world.inflight.hold(entries, by=workers[number]))

        assert sum(map(len, answers)) == len(entries)
        assert set().union(*answers) == ids(entries)
        for worker, answer in zip(workers, answers, strict=True):
            assert set(world.held(worker)) == answer
        assert world.held(dead) == {}
        assert world.disagreements() == []

    # Beats.

    def test_a_beat_renews_an_expired_lease_that_nobody_has_reaped(self, world: World) -> None:
        ada = world.worker("ada")
        world.expire(ada)

        assert world.inflight.beat(ada, lease_s=LONG_S, entries=[]).restored == 0

        assert world.inflight.leases()[ada].left_s > LONG_S - 60
        assert len(world.inflight.hold(world.entries(1), by=ada)) == 1

    def test_a_beat_of_what_is_there_restores_nothing(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(3)
        world.inflight.hold(entries, by=ada)

        assert world.inflight.beat(ada, lease_s=LONG_S, entries=entries).restored == 0

    def test_a_beat_writes_the_attempts_that_were_claimed_meanwhile(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(3)
        world.inflight.hold(entries, by=ada)

        beat = world.inflight.beat(ada, lease_s=LONG_S, entries=claimed(entries[:2], 5) + entries[2:])

        assert beat.restored == 0
        assert world.held(ada) == {entries[0].task_id: 5, entries[1].task_id: 5, entries[2].task_id: None}

    def test_a_beat_takes_an_attempt_back_that_is_over(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(1)
        world.inflight.hold(claimed(entries, 5), by=ada)

        world.inflight.beat(ada, lease_s=LONG_S, entries=entries)

        assert world.held(ada) == {entries[0].task_id: None}

    def test_a_beat_keeps_entries_that_it_does_not_name(self, world: World) -> None:
        ada = world.worker("ada")
        first, meanwhile = world.entries(2), world.entries(2)
        world.inflight.hold(first + meanwhile, by=ada)

        world.inflight.beat(ada, lease_s=LONG_S, entries=first)

        assert set(world.held(ada)) == ids(first + meanwhile)

    def test_a_beat_does_not_make_an_entry_younger(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(1)
        world.inflight.hold(entries, by=ada)
        until(lambda: world.inflight.held_by(ada)[0].since_s >= 0.02, "the entry has an age")

        world.inflight.beat(ada, lease_s=LONG_S, entries=claimed(entries, 1))
        world.inflight.hold(entries, by=ada)

        assert world.inflight.held_by(ada)[0].since_s >= 0.02

    def test_after_a_wipe_a_beat_grants_the_lease_anew_and_restores_all_with_their_attempts(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(2, attempt=3) + world.entries(2, queue="index", attempt=None)
        world.inflight.hold(entries, by=ada)
        world.wipe()
        assert world.inflight.leases() == {}

        assert world.inflight.beat(ada, lease_s=LONG_S, entries=entries).restored == 4

        assert world.inflight.leases()[ada].left_s > 0
        assert world.held(ada) == {entry.task_id: entry.attempt for entry in entries}
        assert len(world.inflight.holds("mail")) == len(world.inflight.holds("index")) == 2
        assert world.disagreements() == []

    def test_a_beat_restores_only_what_is_missing(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(5)
        world.inflight.hold(entries, by=ada)
        world.inflight.release(pairs(entries[:2]), by=ada)

        assert world.inflight.beat(ada, lease_s=LONG_S, entries=entries).restored == 2

        assert set(world.held(ada)) == ids(entries)

    def test_a_beat_leaves_what_another_live_worker_holds_by_now(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        entries = world.entries(3)
        world.inflight.hold(entries, by=ada)
        world.expire(ada)
        world.inflight.hold(entries[:2], by=bob)

        assert world.inflight.beat(ada, lease_s=LONG_S, entries=claimed(entries, 1)).restored == 0

        assert world.held(bob) == dict.fromkeys(ids(entries[:2]))
        assert world.held(ada) == {entries[2].task_id: 1}
        assert world.disagreements() == []

    def test_a_beat_takes_back_what_an_expired_other_holds(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        entries = world.entries(2)
        world.inflight.hold(entries, by=bob)
        world.expire(bob)

        assert world.inflight.beat(ada, lease_s=LONG_S, entries=claimed(entries, 2)).restored == 2

        assert world.held(ada) == dict.fromkeys(ids(entries), 2)
        assert world.held(bob) == {}

    def test_a_beat_of_a_stranger_grants_a_lease(self, world: World) -> None:
        """After a wipe nobody can tell a stranger from a worker that joined before it."""
        world.inflight.beat("ada", lease_s=LONG_S, entries=[])

        assert world.inflight.leases()["ada"].left_s > 0

    # Extending.

    def test_a_lease_is_extended_only_where_there_is_one(self, world: World) -> None:
        ada = world.worker("ada")

        assert world.inflight.extend("nobody", lease_s=LONG_S) is False
        assert world.inflight.extend(ada, lease_s=2 * LONG_S) is True

        leases = world.inflight.leases()
        assert list(leases) == [ada]
        assert leases[ada].left_s > LONG_S

    def test_an_expired_lease_can_be_extended(self, world: World) -> None:
        ada = world.worker("ada")
        world.expire(ada)

        assert world.inflight.extend(ada, lease_s=LONG_S) is True

        assert world.inflight.leases()[ada].left_s > 0

    def test_a_lease_that_was_wiped_is_not_extended(self, world: World) -> None:
        """Only a beat brings it back, together with the entries."""
        ada = world.worker("ada")
        world.wipe()

        assert world.inflight.extend(ada, lease_s=LONG_S) is False

        assert world.inflight.leases() == {}

    # Releasing and leaving.

    def test_released_entries_are_gone_and_releasing_again_drops_nothing(self, world: World) -> None:
        ada = world.worker("ada")
        entries, other = world.entries(3), world.entries(2, queue="index")
        world.inflight.hold(entries + other, by=ada)

        assert world.inflight.release(pairs(entries[:2] + other), by=ada) == 4
        assert world.inflight.release(pairs(entries[:2] + other), by=ada) == 0

        assert set(world.held(ada)) == {entries[2].task_id}
        assert world.inflight.holds("index") == []
        assert world.disagreements() == []

    def test_only_ones_own_entries_can_be_released(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        entries = world.entries(2)
        world.inflight.hold(entries, by=ada)

        assert world.inflight.release(pairs(entries), by=bob) == 0

        assert set(world.held(ada)) == ids(entries)

    def test_releasing_names_the_queue(self, world: World) -> None:
        ada = world.worker("ada")
        (entry,) = world.entries(1)
        world.inflight.hold([entry], by=ada)

        assert world.inflight.release([(entry.task_id, "index")], by=ada) == 0

        assert set(world.held(ada)) == {entry.task_id}
        assert world.disagreements() == []

    def test_releasing_needs_no_lease(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(2)
        world.inflight.hold(entries, by=ada)
        world.expire(ada)

        assert world.inflight.release(pairs(entries), by=ada) == 2
        assert world.inflight.release([], by=ada) == 0

    def test_what_was_released_can_be_held_by_another(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        entries = world.entries(2)
        world.inflight.hold(entries, by=ada)
        world.inflight.release(pairs(entries), by=ada)

        assert world.inflight.hold(entries, by=bob) == ids(entries)

    def test_leaving_drops_the_lease_and_everything_held_and_nothing_of_others(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        mine, theirs = world.entries(2) + world.entries(2, queue="index"), world.entries(1)
        world.inflight.hold(mine, by=ada)
        world.inflight.hold(theirs, by=bob)

        world.inflight.leave(ada)
        world.inflight.leave(ada)

        assert list(world.inflight.leases()) == [bob]
        assert world.held(ada) == {}
        assert world.held(bob) == dict.fromkeys(ids(theirs))
        assert {hold.task_id for hold in world.inflight.holds("mail")} == ids(theirs)
        assert world.disagreements() == []
        with pytest.raises(LeaseLost):
            world.inflight.hold(mine, by=ada)

    # Looking.

    def test_a_lease_shows_how_long_ago_it_ended(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        world.expire(ada)

        until(lambda: world.inflight.leases()[ada].left_s < -0.05, "the end moves into the past")

        assert world.inflight.leases()[bob].left_s > 0

    def test_an_empty_store_shows_nothing(self, world: World) -> None:
        assert world.inflight.leases() == {}
        assert world.inflight.held_by("nobody") == []
        assert world.inflight.holds("nothing") == []

    def test_two_namespaces_on_one_server_do_not_see_each_other(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(2)
        world.inflight.hold(entries, by=ada)

        assert world.neighbour.leases() == {}
        assert world.neighbour.held_by(ada) == world.neighbour.holds("mail") == []
        world.neighbour.join("bob", lease_s=LONG_S)
        assert world.neighbour.hold(entries, by="bob") == ids(entries)
        assert world.neighbour.release(pairs(entries), by=ada) == 0
        world.neighbour.forget(ada)

        assert set(world.held(ada)) == ids(entries)
        assert world.inflight.beat(ada, lease_s=LONG_S, entries=entries).restored == 0

    # Forgetting.

    def test_forgetting_drops_the_lease_and_the_holds_and_counts_them(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        mine, theirs = world.entries(3), world.entries(1)
        world.inflight.hold(mine, by=ada)
        world.inflight.hold(theirs, by=bob)
        world.expire(ada)

        assert world.inflight.forget(ada) == 3
        assert world.inflight.forget(ada) == 0

        assert list(world.inflight.leases()) == [bob]
        assert world.held(ada) == {}
        assert {hold.task_id for hold in world.inflight.holds("mail")} == ids(theirs)
        assert world.disagreements() == []

    def test_whoever_was_forgotten_cannot_come_back(self, world: World) -> None:
        ada = world.worker("ada")
        entries = world.entries(2)
        world.inflight.hold(entries, by=ada)
        world.inflight.forget(ada)

        with pytest.raises(LeaseLost):
            world.inflight.beat(ada, lease_s=LONG_S, entries=entries)
        with pytest.raises(LeaseLost):
            world.inflight.hold(entries, by=ada)
        with pytest.raises(LeaseLost):
            world.inflight.join(ada, lease_s=LONG_S)
        assert world.inflight.extend(ada, lease_s=LONG_S) is False
        world.inflight.leave(ada)
        with pytest.raises(LeaseLost):
            world.inflight.beat(ada, lease_s=LONG_S, entries=entries)

        assert world.inflight.leases() == {}
        assert world.inflight.holds("mail") == []

    def test_whoever_was_forgotten_without_a_lease_cannot_come_back_either(self, world: World) -> None:
        """Redis was wiped, its worker died before the next beat, and was reaped by the ledger alone."""
        world.inflight.forget("ada")

        with pytest.raises(LeaseLost):
            world.inflight.beat("ada", lease_s=LONG_S, entries=[])

        assert world.inflight.leases() == {}

    def test_another_incarnation_takes_the_place_of_a_forgotten_one(self, world: World) -> None:
        world.worker("ada.1")
        entries = world.entries(2)
        world.inflight.hold(entries, by="ada.1")
        world.inflight.forget("ada.1")

        world.inflight.join("ada.2", lease_s=LONG_S)

        assert world.inflight.hold(entries, by="ada.2") == ids(entries)

    def test_a_wipe_also_forgets_who_was_forgotten(self, world: World) -> None:
        """In a new epoch a zombie may beat again; the ledger's fence refuses what it settles."""
        world.inflight.forget(world.worker("ada"))
        world.wipe()

        world.inflight.beat("ada", lease_s=LONG_S, entries=[])

        assert world.inflight.leases()["ada"].left_s > 0

    # The epoch.

    def test_the_epoch_grows_older(self, world: World) -> None:
        before = world.inflight.epoch_age_s()

        until(lambda: world.inflight.epoch_age_s() >= before + 0.05, "the epoch is older")

        assert before >= 0

    def test_the_epoch_begins_with_the_first_lease_and_stays(self, world: World) -> None:
        ada = world.worker("ada")
        until(lambda: world.inflight.epoch_age_s() >= 0.05, "the epoch is older")

        world.inflight.beat(ada, lease_s=LONG_S, entries=[])
        world.worker("bob")

        assert world.inflight.epoch_age_s() >= 0.05

    @pytest.mark.parametrize("first", ["beat", "join", "leases", "epoch_age_s"])
    def test_after_a_wipe_the_epoch_is_young_whoever_comes_first(self, world: World, first: str) -> None:
        world.worker("ada")
        until(lambda: world.inflight.epoch_age_s() >= 0.05, "the epoch is older")
        wiped_at = time.monotonic()
        world.wipe()

        match first:
            case "beat":
                world.inflight.beat("ada", lease_s=LONG_S, entries=world.entries(1))
            case "join":
                world.inflight.join("bob", lease_s=LONG_S)
            case "leases":
                world.inflight.leases()
            case "epoch_age_s":
                world.inflight.epoch_age_s()
        noticed_at = time.monotonic()
        until(lambda: time.monotonic() > noticed_at + 0.05, "some time has passed")
        age_s = world.inflight.epoch_age_s()

        assert age_s >= 0.04  # it began when the first call noticed the wipe
        assert age_s <= time.monotonic() - wiped_at + 0.01  # and not before the wipe

    # Size, order, and what else may come.

    def test_a_thousand_entries_are_held_beaten_and_released_in_one_call_each(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        entries = world.entries(1001)

        assert world.inflight.hold(entries, by=ada) == ids(entries)
        assert world.inflight.hold(entries, by=bob) == set()
        assert world.inflight.beat(ada, lease_s=LONG_S, entries=claimed(entries, 1)).restored == 0
        assert world.held(ada) == dict.fromkeys(ids(entries), 1)
        world.wipe()
        assert world.inflight.beat(ada, lease_s=LONG_S, entries=entries).restored == 1001
        assert len(world.inflight.holds("mail")) == 1001
        assert world.inflight.release(pairs(entries), by=ada) == 1001

        assert world.inflight.holds("mail") == []
        assert world.disagreements() == []

    def test_nine_thousand_entries_of_the_dead_are_taken_over_and_forgotten(self, world: World) -> None:
        ada, bob = world.worker("ada"), world.worker("bob")
        entries = world.entries(9000)
        world.inflight.hold(entries, by=ada)
        world.expire(ada)

        assert world.inflight.hold(entries, by=bob) == ids(entries)
        assert world.inflight.forget(ada) == 0
        assert world.inflight.forget(bob) == 9000

        assert world.inflight.holds("mail") == []
        assert world.disagreements() == []

    @pytest.mark.parametrize("seed", range(2))
    def test_after_any_sequence_of_calls_hash_and_indexes_agree(self, world: World, seed: int) -> None:
        """And they say what a model of the promises says, which knows nothing of any store."""
        rng = random.Random(seed)
        model = Model()
        tasks = world.entries(6, queue="mail") + world.entries(6, queue="index")

        for step in range(60):
            act = rng.choice(["join", "hold", "hold", "beat", "beat", "release", "leave", "forget", "expire", "wipe"])
            worker = rng.choice(["ada", "bob", "cyd", "dan"])
            chosen = [
                Entry(task.task_id, task.queue, rng.choice([None, 1, 2]))
                for task in rng.sample(tasks, rng.randint(0, 8))
            ]
            if act == "expire" and worker not in model.leases:
                continue
            if act in ("forget", "wipe") and rng.random() < 0.5:
                continue

            seen, expected = answer_of(world, act, worker, chosen), model.answer(act, worker, chosen)

            where = f"step {step} of seed {seed}: {act} by {worker}"
            assert seen == expected, where
            assert world.disagreements() == [], where
            found = {
                (hold.queue, hold.task_id): (hold.worker, hold.attempt)
                for queue in ("mail", "index")
                for hold in world.inflight.holds(queue)
            }
            assert found == model.held, where
            leases = world.inflight.leases()
            assert {name: lease.left_s > 0 for name, lease in leases.items()} == model.leases, where

    def test_a_check_names_the_server_and_its_version(self, world: World) -> None:
        name, _, version = world.inflight.check().partition(" ")

        assert name == world.product
        assert [part.isdecimal() for part in version.split(" ")[0].split(".")[:2]] == [True, True]

    def test_closing_is_repeatable(self, world: World) -> None:
        world.inflight.leases()

        world.inflight.close()
        world.inflight.close()


@dataclass
class Model:
    """The promises of the port, in a dictionary: what each call must answer and leave behind."""

    leases: dict[str, bool] = field(default_factory=dict)  # whether it is live
    lost: set[str] = field(default_factory=set)
    held: dict[tuple[str, str], tuple[str, int | None]] = field(default_factory=dict)

    def answer(self, act: str, worker: str, entries: Sequence[Entry]) -> object:
        match act:
            case "join" | "beat" if worker in self.lost:
                return "lease lost"
            case "join":
                self.leases[worker] = True
                return None
            case "hold":
                if not self.leases.get(worker):
                    return "lease lost"
                self._take(worker, entries, exact=False)
                return {entry.task_id for entry in entries if self._holder(entry) == worker}
            case "beat":
                self.leases[worker] = True
                return self._take(worker, entries, exact=True)
            case "release":
                own = [entry for entry in entries if self._holder(entry) == worker]
                for entry in own:
                    del self.held[entry.queue, entry.task_id]
                return len(own)
            case "leave" | "forget":
                if act == "forget":
                    self.lost.add(worker)
                self.leases.pop(worker, None)
                left = {key: value for key, value in self.held.items() if value[0] != worker}
                dropped, self.held = len(self.held) - len(left), left
                return dropped if act == "forget" else None
            case "expire":
                self.leases[worker] = False
            case "wipe":
                self.leases, self.lost, self.held = {}, set(), {}
        return None

    def _holder(self, entry: Entry) -> str | None:
        found = self.held.get((entry.queue, entry.task_id))
        return found[0] if found else None

    def _take(self, worker: str, entries: Sequence[Entry], *, exact: bool) -> int:
        gained = 0
        for entry in entries:
            holder = self._holder(entry)
            if holder == worker:
                if exact or entry.attempt is not None:
                    self.held[entry.queue, entry.task_id] = (worker, entry.attempt)
            elif holder is None or not self.leases.get(holder):
                gained += 1
                self.held[entry.queue, entry.task_id] = (worker, entry.attempt)
        return gained


def answer_of(world: World, act: str, worker: str, entries: Sequence[Entry]) -> object:
    """What the store answers to the same call as the model's."""
    try:
        match act:
            case "join":
                world.inflight.join(worker, lease_s=LONG_S)
            case "hold":
                return world.inflight.hold(entries, by=worker)
            case "beat":
                return world.inflight.beat(worker, lease_s=LONG_S, entries=entries).restored
            case "release":
                return world.inflight.release(pairs(entries), by=worker)
            case "leave":
                world.inflight.leave(worker)
            case "forget":
                return world.inflight.forget(worker)
            case "expire":
                world.expire(worker)
            case "wipe":
                world.wipe()
    except LeaseLost:
        return "lease lost"
    return None
