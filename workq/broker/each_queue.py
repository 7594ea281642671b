"""Each queue by itself: hints of many queues are published together, and one that is refused keeps no other waiting.

A broker refuses a queue (it exists with other arguments, or may not be used) by an error of the whole call. Then each
queue is sent its own once more: what had gone out already comes twice, which is harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from workq.broker import Broker, Hint
from workq.errors import ConfigError


def publish_each(
    broker: Broker,
    hints: Sequence[Hint],
    *,
    deadline_s: float,
    refused: Callable[[str, ConfigError], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[bool]:
    """As `Broker.publish`; `refused` is told of each queue that the broker refuses, whose hints are not confirmed."""
    ends = clock() + deadline_s
    queues = list(dict.fromkeys(one.queue for one in hints))
    try:
        return broker.publish(hints, deadline_s=deadline_s)
    except ConfigError as error:
        if len(queues) == 1:
            refused(queues[0], error)
            return [False] * len(hints)
    answers = [False] * len(hints)
    for queue in queues:
        left_s = ends - clock()
        if left_s <= 0.0:
            break
        places = [place for place, one in enumerate(hints) if one.queue == queue]
        try:
            confirmed = broker.publish([hints[place] for place in places], deadline_s=left_s)
        except ConfigError as error:
            refused(queue, error)
            continue
        for place, is_confirmed in zip(places, confirmed, strict=True):
            answers[place] = is_confirmed
    return answers
