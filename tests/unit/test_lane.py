"""Bands: what they are called, inside and by people, and what cannot be one."""

from __future__ import annotations

import pytest

from workq.errors import ConfigError
from workq.values.lane import all_of, check_band, check_priority, is_extra, meant, physical, queue_of, split
from workq.values.names import check_queue
from workq.values.task import Priority

LONG = "q" * 97


@pytest.mark.parametrize("priority", list(Priority))
def test_a_band_has_a_name_of_its_own_that_tells_its_queue_and_priority(priority: Priority) -> None:
    name = physical("mail", priority)

    assert split(name) == ("mail", priority)
    assert queue_of(name) == "mail"
    assert is_extra(name) == (priority is not Priority.NORMAL)
    assert name in all_of("mail")


def test_normal_tasks_wait_under_the_name_of_their_queue() -> None:
    assert physical("mail", Priority.NORMAL) == "mail"
    assert all_of("mail") == ("mail~high", "mail", "mail~low")


def test_no_queue_can_be_called_as_a_band_is() -> None:
    with pytest.raises(ConfigError, match="must match"):
        check_queue("mail~high")


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("mail", ("mail~high", "mail", "mail~low")),
        ("mail~high", ("mail~high",)),
        ("mail~normal", ("mail",)),
        ("mail~low", ("mail~low",)),
    ],
)
def test_people_mean_a_queue_with_all_of_its_bands_or_one_of_them(said: str, lines: tuple[str, ...]) -> None:
    assert check_band(said) == said
    assert meant(said) == lines


@pytest.mark.parametrize("said", ["mail~", "~low", "mail~LOW", "mail~low~low", "mail~1", "no queue~low", "", 5, None])
def test_anything_else_names_no_band(said: object) -> None:
    with pytest.raises(ConfigError):
        check_band(said)


@pytest.mark.parametrize(
    "value", ["", "High", "LOW", "urgent", "0", 0, 5, 255, -1, True, False, 1.5, None, ["low"], b"low"]
)
def test_only_three_words_are_priorities(value: object) -> None:
    with pytest.raises(ConfigError, match="priority: need one of high, normal, low"):
        check_priority(value)


def test_a_queue_whose_name_is_too_long_has_no_other_band() -> None:
    assert physical(LONG, Priority.NORMAL) == LONG
    assert all_of(LONG) == (LONG,)
    assert all_of(LONG[2:]) == (f"{LONG[2:]}~high", LONG[2:], f"{LONG[2:]}~low")
    with pytest.raises(ConfigError, match="too long a name"):
        physical(LONG, Priority.LOW)
