"""An incarnation is one life of one worker process: no two lives share a name."""

from __future__ import annotations

import os

from workq.values.incarnation import ID_MAX, Incarnation


def test_two_lives_of_one_process_have_two_names() -> None:
    """The same host, boot, pid and start: a process that begins anew within its own life is another incarnation."""
    lives = [Incarnation.of_this_process() for _ in range(100)]

    assert len({one.id for one in lives}) == len(lives)
    assert {(one.host, one.pid, one.machine, one.parent) for one in lives} == {
        (lives[0].host, os.getpid(), lives[0].machine, os.getppid())
    }


def test_a_name_says_which_process_it_was_and_fits_its_column() -> None:
    me = Incarnation.of_this_process()

    assert me.id.startswith(f"{me.host}.")
    assert f".{os.getpid()}." in me.id
    assert len(me.id) <= ID_MAX
