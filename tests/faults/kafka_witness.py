"""HintWitness: which hints stood in a topic of Kafka, and which of them vanished before the group was done with them.

An independent reader: plain confluent-kafka and JSON, in no group. It reads all partitions all the time, and from the
beginning again whenever the topic is another one, has more partitions, or `take_stock` is called. What stood somewhere
and does not any more has vanished: deleted, cut off, or gone with its topic. It is missing unless the group had
committed an offset behind it. So is what was written below the offset of the group (after a log was cut off), and which
the group never went back to: nobody reads it.

What was written and vanished before this reader saw it is not counted.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.system.fleet import wait_until

LOOK_EVERY_S: Final = 0.3
"""For the topic's id and its partitions."""
SAMPLE_EVERY_S: Final = 0.1
"""For what is committed."""
ASK_S: Final = 2.0
STOCK_S: Final = 120.0
BEGIN_AGAIN_S: Final = 15.0
"""A reading that has not come to its end by then is begun again: the end may have moved back."""
GONE: Final[tuple[str, list[int]]] = ("", [])
"""Of a topic that is not there."""
ABSENT_MIN: Final = 3
"""So many times in turn that has to be said."""
Place = tuple[int, int]
"""Partition and offset."""


class _SeenHint:
    """One record as it was read."""

    __slots__ = ("at", "ids", "look")

    def __init__(self, ids: tuple[str, ...], at: float, look: int) -> None:
        self.ids = ids
        self.at = at
        """When it was produced."""
        self.look = look
        """In which reading from the beginning it was seen last."""


class HintWitness:
    """Of one topic and one group. Its figures stand still between two calls of `take_stock` but for a topic's end."""

    def __init__(self, conf: dict[str, Any], *, topic: str, group: str) -> None:
        self.missing: Counter[str] = Counter()
        """How often the hint of a task was missing."""
        self.offsets_missing = 0
        self.offsets_below = 0
        """Of these: written below the group's offset."""
        self.seen = 0
        """Records in all."""
        self._conf = {**conf, "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
        self._conf |= {"topic.metadata.refresh.interval.ms": 1000, "fetch.error.backoff.ms": 100}
        self._topic, self._group = topic, group
        self._lock = threading.Lock()
        self._records: dict[Place, _SeenHint] = {}
        self._committed: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        """Of each partition: when what was committed, each change."""
        self._kept: dict[int, tuple[tuple[int, int, str], list[int], list[bool]]] = {}
        """Of each partition: what `_from_each` answered last, and to what."""
        self._topic_id = ""
        self._parts: list[int] = []
        self._look = 0
        self._ends: dict[int, int] = {}
        """How far this reading from the beginning must come, to be a stock."""
        self._stocks_wanted = self._stocks_taken = 0
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._read, self._sample)]
        for one in self._threads:
            one.start()

    def take_stock(self) -> None:
        """Read all that is there from the beginning, and return when what has vanished until now is counted."""
        self._stocks_wanted = wanted = self._stocks_wanted + 1
        wait_until(lambda: self._stocks_taken >= wanted, timeout_s=STOCK_S, what="the witness has read all")

    def standing(self) -> set[str]:
        """The tasks that have a hint there now, as far as it was read."""
        with self._lock:
            return {task_id for one in self._records.values() for task_id in one.ids}

    def close(self) -> None:
        """End it; what is there and below the group's offset is counted first, if `take_stock` was called before."""
        self._is_over.set()
        for one in self._threads:
            one.join()
        with self._lock:
            below = [one for one in self._records.items() if self._verdict(one[0], one[1].at) == "below"]
            self._miss(below, below=len(below))

    # On the thread that reads

    def _read(self) -> None:
        admin: Any = AdminClient(self._conf)
        reader = None
        look_at, begin_again_at, begun, absent = 0.0, 0.0, 0, 0
        while not self._is_over.is_set():
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_EVERY_S
                found = self._asked(admin)
                absent = absent + 1 if found == GONE else 0
                if found is None:
                    admin = AdminClient(self._conf)  # it goes on to ask nodes that are dead
                elif found == GONE and absent < ABSENT_MIN:
                    pass
                elif found[0] != self._topic_id or found[1] != self._parts:
                    self._turn_to(*found)
                    reader = None
            if not self._parts:
                if absent >= ABSENT_MIN:
                    self._stocks_taken = begun = self._stocks_wanted
                time.sleep(0.05)
                continue
            is_late = self._stocks_taken < begun and time.monotonic() > begin_again_at
            if reader is None or begun < self._stocks_wanted or is_late:
                begun = self._stocks_wanted
                begin_again_at = time.monotonic() + BEGIN_AGAIN_S
                self._look += 1
                self._ends = {}
                if reader is not None:
                    reader.close()
                reader = Consumer({**self._conf, "group.id": f"{self._group}-witness"})
                reader.assign([TopicPartition(self._topic, one, OFFSET_BEGINNING) for one in self._parts])
            for message in reader.consume(1000, 0.1):
                if message.error() is None:
                    self._see(message)
            if self._stocks_taken < begun:
                with contextlib.suppress(KafkaException):
                    self._stock(reader, begun)
        if reader is not None:
            reader.close()

    def _asked(self, admin: Any) -> tuple[str, list[int]] | None:
        """The topic's id and partitions, or `GONE`; None: nobody has answered."""
        try:
            asked = admin.describe_topics(TopicCollection([self._topic]), request_timeout=ASK_S)
            found = asked[self._topic].result(ASK_S + 1.0)
        except TimeoutError:
            return None
        except KafkaException as error:
            return GONE if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART else None
        return str(found.topic_id), sorted(one.id for one in found.partitions)

    def _turn_to(self, topic_id: str, parts: list[int]) -> None:
        """The topic is another one, or has more partitions."""
        with self._lock:
            if topic_id != self._topic_id:
                self._vanished(self._records)
                self._records = {}
                self._committed.clear()
            self._topic_id, self._parts = topic_id, parts

    def _see(self, message: Any) -> None:
        place = message.partition(), message.offset()
        ids, at = tuple(json.loads(message.value()).get("ids", ())), message.timestamp()[1] / 1000
        with self._lock:
            before = self._records.get(place)
            if before is not None and (before.ids, before.at) == (ids, at):
                before.look = self._look
                return
            if before is not None:
                self._vanished([place])
            self._records[place] = _SeenHint(ids, at, self._look)
            self.seen += 1

    def _stock(self, reader: Consumer, number: int) -> None:
        """When this reading has come to the end: what it did not see again has vanished."""
        if not self._ends:
            places = [TopicPartition(self._topic, one) for one in self._parts]
            found = {one.partition: reader.get_watermark_offsets(one, timeout=ASK_S) for one in places}
            if any(one is None for one in found.values()):
                return
            self._ends = {part: high if high > low else 0 for part, (low, high) in found.items()}
        left = {part for part, end in self._ends.items() if end}
        with self._lock:
            reached = reader.position([TopicPartition(self._topic, one) for one in left])
            if any(one.offset < self._ends[one.partition] for one in reached):
                return
            gone = [place for place, one in self._records.items() if one.look < self._look]
            self._vanished(gone)
            for place in gone:
                del self._records[place]
        self._stocks_taken = number

    # On the thread that asks what is committed

    def _sample(self) -> None:
        asker = Consumer({**self._conf, "group.id": self._group})
        while not self._is_over.wait(SAMPLE_EVERY_S):
            topic_id, parts = self._topic_id, self._parts
            if not parts:
                continue
            try:
                found = asker.committed([TopicPartition(self._topic, one) for one in parts], timeout=ASK_S)
            except KafkaException:  # its coordinator moves
                continue
            now = time.time()
            with self._lock:
                for one in found if topic_id == self._topic_id else ():
                    told = self._committed[one.partition]
                    offset = max(0, one.offset)  # of a topic that was deleted Kafka forgets them, a moment later
                    if one.error is None and offset != (told[-1][1] if told else 0):
                        told.append((now, offset))
        asker.close()

    # Under the lock

    def _vanished(self, places: Iterable[Place]) -> None:
        """These records are not there any more."""
        verdicts = {place: self._verdict(place, self._records[place].at) for place in places}
        gone = [(place, self._records[place]) for place, verdict in verdicts.items() if verdict != "done"]
        self._miss(gone, below=sum(verdict == "below" for verdict in verdicts.values()))

    def _miss(self, found: Iterable[tuple[Place, _SeenHint]], *, below: int) -> None:
        self.offsets_below += below
        for _, one in found:
            self.offsets_missing += 1
            self.missing.update(one.ids)

    def _verdict(self, place: Place, at: float) -> str:
        """`done`: the group was done with it; `open`: it was not; `below`: it was written below the group's offset, to
        which the group did not go back."""
        part, offset = place
        told = self._committed.get(part, [])
        first = bisect_right(told, (at, 1 << 62))
        most, goes_back = self._from_each(part)
        if first > 0 and told[first - 1][1] > offset and not (first < len(told) and goes_back[first]):
            return "below"
        return "done" if first < len(told) and most[first] > offset else "open"

    def _from_each(self, part: int) -> tuple[list[int], list[bool]]:
        """The most that was committed from each change on, and whether it was less than before at one of them."""
        told = [offset for _, offset in self._committed.get(part, [])]
        key = (part, len(told), self._topic_id)
        kept = self._kept.get(part)
        if kept is None or kept[0] != key:
            most = list(accumulate(reversed(told), max))[::-1]
            back = [after < before for before, after in pairwise([0, *told])]
            kept = self._kept[part] = key, most, list(accumulate(reversed(back), max))[::-1]
        return kept[1], kept[2]
