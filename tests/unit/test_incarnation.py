"""An incarnation is one life of one worker process: no two lives share a name."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest import mock

import psutil

from workq.values.incarnation import ID_MAX, Incarnation, is_gone


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


def test_a_process_that_proc_hides_is_not_gone() -> None:
    """With hidepid=2 a user does not see the processes of others."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with mock.patch("psutil.Process", side_effect=psutil.NoSuchProcess(process.pid)):
            assert not is_gone(process.pid)
        process.kill()
        process.wait()
    with (
        mock.patch("os.kill", side_effect=PermissionError),
        mock.patch("psutil.Process", side_effect=psutil.NoSuchProcess(1)),
    ):
        assert not is_gone(process.pid), "another user's"
    assert is_gone(process.pid)
    assert is_gone(0)
