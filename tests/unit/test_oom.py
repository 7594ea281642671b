"""Out of memory: the kernel's counters are found and read, and each kill is blamed on one dead child at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from workq.supervisor.oom import Kills, MemoryGroup, offer_as_victim
from workq.values.certificate import OutOfMemory

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
V2 = "low 0\nhigh 0\nmax 31\noom 2\noom_kill {}\noom_group_kill 0\n"


class Machine:
    """A control group and a machine whose counters a test moves."""

    def __init__(self, folder: Path) -> None:
        self.group = MemoryGroup((folder / "memory.oom_control", "oom_kill"), folder / "memory.limit_in_bytes")
        self.vmstat = folder / "vmstat"
        self.group.limit.write_text(f"{512 << 20}\n")
        self.kills(0, 0)

    def kills(self, group: int, machine: int) -> None:
        self.group.kills[0].write_text(V1.format(group))
        self.vmstat.write_text(f"nr_free_pages 17\noom_kill {machine}\npgfault 99\n")

    def watch(self) -> Kills:
        return Kills(self.group, vmstat=self.vmstat)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_kill_since_the_last_looks_is_blamed_on_the_child_that_died(machine: Machine) -> None:
    machine.kills(5, 9)
    kills = machine.watch()
    kills.look()
    machine.kills(6, 10)

    assert kills.blame() == OutOfMemory(1, 1, 512 << 20)


def test_one_kill_is_blamed_on_one_child(machine: Machine) -> None:
    kills = machine.watch()
    machine.kills(1, 1)
    first = kills.blame()
    kills.look()

    second = kills.blame()

    assert (first.group_kills, second.group_kills) == (1, 0)


def test_two_kills_are_blamed_on_two_children(machine: Machine) -> None:
    kills = machine.watch()
    machine.kills(2, 2)

    blamed = [kills.blame().group_kills for _ in range(3)]

    assert blamed == [2, 1, 0]


def test_a_kill_between_a_look_and_the_burial_is_still_blamed(machine: Machine) -> None:
    """The kernel counts before the process has ended: a look may come between."""
    kills = machine.watch()
    machine.kills(1, 1)
    kills.look()

    assert kills.blame().group_kills == 1


def test_a_kill_that_was_looked_at_before_its_burial_does_not_hide_the_next(machine: Machine) -> None:
    kills = machine.watch()
    machine.kills(1, 1)
    kills.look()
    first = kills.blame()
    kills.look()
    machine.kills(2, 2)

    second = kills.blame()

    assert (first.group_kills, second.group_kills) == (1, 1)


def test_of_two_kills_the_one_after_the_look_is_blamed_after_the_next(machine: Machine) -> None:
    kills = machine.watch()
    machine.kills(1, 1)
    kills.look()
    machine.kills(2, 2)
    first = kills.blame()
    kills.look()

    second = kills.blame()

    assert (first.group_kills, second.group_kills) == (2, 1)


def test_a_kill_that_no_child_died_of_is_forgotten(machine: Machine) -> None:
    kills = machine.watch()
    machine.kills(1, 1)
    kills.look()
    kills.look()

    assert kills.blame() == OutOfMemory(0, 0, 512 << 20)


def test_a_kill_elsewhere_on_the_machine_is_told_apart(machine: Machine) -> None:
    kills = machine.watch()
    machine.kills(0, 1)

    assert kills.blame() == OutOfMemory(0, 1, 512 << 20)


def test_without_a_group_only_the_machine_counts(machine: Machine) -> None:
    kills = Kills(None, vmstat=machine.vmstat)
    machine.kills(7, 1)

    assert kills.blame() == OutOfMemory(None, 1, None)


def test_counters_that_cannot_be_read_are_unknown_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("nonsense\noom_kill many\n")
    group = MemoryGroup((tmp_path / "memory.events", "oom_kill"), tmp_path / "missing")

    kills = Kills(group, vmstat=tmp_path / "missing")
    kills.look()

    assert kills.blame() == OutOfMemory(None, None, None)


def test_a_counter_that_appears_later_does_not_count_what_was_before(machine: Machine) -> None:
    machine.group.kills[0].unlink()
    kills = machine.watch()
    machine.kills(40, 0)

    assert kills.blame().group_kills is None


@pytest.mark.parametrize("text", ["max\n", f"{1 << 62}\n", ""], ids=["v2", "v1", "empty"])
def test_no_limit_is_none(machine: Machine, text: str) -> None:
    machine.group.limit.write_text(text)

    assert machine.watch().blame().limit_bytes is None


@pytest.mark.parametrize(("before", "after"), [("0", "200"), ("-500", "-300"), ("900", "1000"), ("?", "?")])
def test_a_worker_process_is_offered_to_the_kernel_before_its_supervisor(
    tmp_path: Path, before: str, after: str
) -> None:
    score = tmp_path / "7" / "oom_score_adj"
    score.parent.mkdir()
    score.write_text(before)

    offer_as_victim(7, tmp_path)
    offer_as_victim(8, tmp_path)

    assert score.read_text() == after


def proc(folder: Path, cgroup: str, mounts: list[str]) -> Path:
    """What /proc/self says."""
    (folder / "proc").mkdir()
    (folder / "proc/cgroup").write_text(cgroup)
    (folder / "proc/mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    return folder / "proc"


def group(folder: Path, file: str, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / file).write_text(text)


def test_a_group_of_version_1_is_found(tmp_path: Path) -> None:
    group(tmp_path / "memory/mine", "memory.oom_control", V1.format(3))
    of = proc(
        tmp_path,
        "9:name=systemd:/\n4:cpu,memory:/mine\n0::/\n",
        [
            "22 1 0:20 / /proc rw - proc proc rw",
            f"30 25 0:26 / {tmp_path}/unified rw shared:9 - cgroup2 cgroup2 rw",
            f"31 25 0:27 / {tmp_path}/memory rw shared:10 - cgroup cgroup rw,memory",
        ],
    )

    found = MemoryGroup.of_this_process(of)

    folder = tmp_path / "memory/mine"
    assert found == MemoryGroup((folder / "memory.oom_control", "oom_kill"), folder / "memory.limit_in_bytes")


@pytest.mark.parametrize("file", ["memory.events.local", "memory.events"])
def test_a_group_of_version_2_is_found(tmp_path: Path, file: str) -> None:
    group(tmp_path / "unified/user/mine", file, V2.format(3))
    of = proc(tmp_path, "0::/user/mine\n", [f"30 25 0:26 / {tmp_path}/unified rw - cgroup2 cgroup2 rw"])

    found = MemoryGroup.of_this_process(of)

    folder = tmp_path / "unified/user/mine"
    assert found == MemoryGroup((folder / file, "oom_kill"), folder / "memory.max")


def test_a_container_whose_group_is_the_root_of_its_mount_finds_it(tmp_path: Path) -> None:
    group(tmp_path / "memory", "memory.oom_control", V1.format(0))
    of = proc(
        tmp_path, "4:memory:/docker/4b1d\n", [f"31 25 0:27 /docker/4b1d {tmp_path}/memory rw - cgroup cgroup rw,memory"]
    )

    found = MemoryGroup.of_this_process(of)

    assert found is not None
    assert found.kills[0] == tmp_path / "memory/memory.oom_control"


def test_where_there_is_no_group_there_is_none(tmp_path: Path) -> None:
    of = proc(tmp_path, "0::/\n", [f"30 25 0:26 / {tmp_path}/unified rw - cgroup2 cgroup2 rw"])

    assert MemoryGroup.of_this_process(of) is None
    assert MemoryGroup.of_this_process(tmp_path / "nowhere") is None
