"""A long command is ended by signals in order: at once where it waits, and behind what it has begun."""

from __future__ import annotations

import os
import signal

import pytest

from workq.cli.exits import ended_by_signals

ENDS = [
    pytest.param(signal.SIGINT, KeyboardInterrupt, id="SIGINT"),
    pytest.param(signal.SIGTERM, SystemExit, id="SIGTERM"),
    pytest.param(signal.SIGHUP, SystemExit, id="SIGHUP"),
]


@pytest.mark.parametrize(("number", "error"), ENDS)
def test_what_is_held_back_is_ended_first(number: signal.Signals, error: type[BaseException]) -> None:
    done: list[str] = []

    def command() -> None:
        with ended_by_signals() as ending:
            with ending.held_back():
                os.kill(os.getpid(), number)
                done.append("the page that was begun")
            done.append("another page")

    with pytest.raises(error):
        command()

    assert done == ["the page that was begun"]


@pytest.mark.parametrize(("number", "error"), ENDS)
def test_elsewhere_a_signal_ends_it_at_once(number: signal.Signals, error: type[BaseException]) -> None:
    done: list[str] = []

    def command() -> None:
        with ended_by_signals() as ending:
            with ending.held_back():
                done.append("a page")
            os.kill(os.getpid(), number)
            done.append("another page")

    with pytest.raises(error):
        command()

    assert done == ["a page"]


def test_afterwards_signals_do_what_they_did_before() -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    with ended_by_signals():
        pass

    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
