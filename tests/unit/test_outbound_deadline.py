"""A deadline ends what takes longer, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from workq.outbound.deadline import Deadline

LONG_S = 30.0


async def waited(deadline_s: float, takes_s: float) -> str:
    with Deadline(asyncio.get_running_loop(), deadline_s):
        await asyncio.sleep(takes_s)
    return "done"


async def wound_up(deadline_s: float, takes_s: float) -> None:
    """As `waited`, with something to put in order afterwards."""
    with Deadline(asyncio.get_running_loop(), deadline_s):
        try:
            await asyncio.sleep(takes_s)
        finally:
            await asyncio.sleep(0.05)


def test_what_takes_longer_is_late_and_its_task_goes_on() -> None:
    async def run() -> list[str]:
        said = []
        for _ in range(2):
            try:
                await waited(0.01, LONG_S)
            except TimeoutError:
                said.append("late")
        return [*said, await waited(LONG_S, 0.0)]

    assert asyncio.run(run()) == ["late", "late", "done"]


def test_what_has_ended_in_time_is_not_cancelled_later() -> None:
    async def run() -> str:
        said = await waited(0.05, 0.0)
        await asyncio.sleep(0.15)
        return said

    assert asyncio.run(run()) == "done"


def test_what_it_raises_is_not_changed() -> None:
    async def run() -> None:
        with Deadline(asyncio.get_running_loop(), LONG_S):
            raise ConnectionResetError("the other end")

    with pytest.raises(ConnectionResetError, match="the other end"):
        asyncio.run(run())


def test_whom_others_cancel_is_cancelled_and_not_late() -> None:
    async def run() -> tuple[bool, int]:
        task = asyncio.create_task(waited(LONG_S, LONG_S))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled(), task.cancelling()

    assert asyncio.run(run()) == (True, 1)


def test_whom_others_cancel_while_the_deadline_ends_it_is_cancelled() -> None:
    async def run() -> bool:
        task = asyncio.create_task(wound_up(0.01, LONG_S))
        await asyncio.sleep(0.03)  # it is late, and puts things in order
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(run())


def test_of_two_deadlines_the_inner_one_is_late_alone() -> None:
    async def run() -> str:
        with Deadline(asyncio.get_running_loop(), LONG_S):
            try:
                await waited(0.01, LONG_S)
            except TimeoutError:
                await asyncio.sleep(0.01)
                return "the inner one"
        return "none"

    assert asyncio.run(run()) == "the inner one"


def test_it_is_for_tasks() -> None:
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(RuntimeError, match="in a task"), Deadline(loop, 1.0):
            pass
    finally:
        loop.close()
