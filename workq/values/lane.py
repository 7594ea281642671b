"""Bands: a queue may have three lines, one of each priority, and each is a queue of its own to everything inside.

    mail~high      priority high
    mail           priority normal: what every task has that is given none
    mail~low       priority low

This is what stands in the ledger's column `queue`, in hints and markers, and in the names of RabbitMQ's queues, so that
relay, marker, sweep, audit and retry know nothing of priorities. `~` is in no queue's name: nothing can clash. RabbitMQ
has priorities of its own, and workq does not use them: they reorder a queue, and the marker proves a loss by its order.

People name a queue and mean all of its bands, or name one: `mail~high`, `mail~low`, or `mail~normal` for the middle one
alone.
"""

from __future__ import annotations

from typing import Final

from workq.errors import ConfigError
from workq.values.names import check_choice, check_queue
from workq.values.task import Priority

NAME_MAX: Final = 100
"""Of the column. Where a band's name would be longer, the queue has no such band."""
_MARK: Final = "~"


def check_priority(value: object) -> Priority:
    """A priority.

    Raises:
        ConfigError: it is none of the three words. Numbers are none.
    """
    return check_choice(value, Priority, "priority")


def check_band(name: object) -> str:
    """What a person calls a queue or one of its bands, unchanged.

    Raises:
        ConfigError: it is no name of a queue, or what follows the `~` is no priority.
    """
    if not isinstance(name, str) or _MARK not in name:
        return check_queue(name)
    queue, _, word = name.partition(_MARK)
    return f"{check_queue(queue)}{_MARK}{check_priority(word)}"


def physical(queue: str, priority: Priority) -> str:
    """The line of a queue's tasks of one priority.

    Raises:
        ConfigError: its name would be too long.
    """
    if priority is Priority.NORMAL:
        return queue
    name = f"{queue}{_MARK}{priority}"
    if len(name) > NAME_MAX:
        raise ConfigError(
            f"priority: queue {queue!r} has too long a name to have any but {Priority.NORMAL}: "
            f"with '{_MARK}{priority}' it must not be longer than {NAME_MAX} characters"
        )
    return name


def split(name: str) -> tuple[str, Priority]:
    """Whose line this is, and for which priority."""
    queue, mark, word = name.partition(_MARK)
    return queue, Priority(word) if mark else Priority.NORMAL


def queue_of(name: str) -> str:
    """Whose line this is."""
    return name.partition(_MARK)[0]


def is_extra(name: str) -> bool:
    """Whether it is a band that its queue has only once it is used: any but the normal one."""
    return _MARK in name


def all_of(queue: str) -> tuple[str, ...]:
    """Every line that a queue can have, the highest first."""
    names = (f"{queue}{_MARK}{Priority.HIGH}", queue, f"{queue}{_MARK}{Priority.LOW}")
    return tuple(name for name in names if len(name) <= NAME_MAX)


def meant(name: str) -> tuple[str, ...]:
    """The lines that a person means: of a queue all, of a band this one."""
    if _MARK not in name:
        return all_of(name)
    return (name.removesuffix(f"{_MARK}{Priority.NORMAL}"),)
