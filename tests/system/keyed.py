"""A producer that enqueues under many keys, as one of many processes. Prints each answer as a line: key, id, created.

python -m tests.system.keyed KEYS DRAWS SEED
"""

from __future__ import annotations

import random
import sys

from tests.system.witness import wq


def main(keys: int, draws: int, seed: int) -> None:
    note = wq.handler("witness.note")
    rng = random.Random(seed)
    lines = []
    for _ in range(draws):
        key = rng.randrange(keys)
        answer = note.options(key=f"order {key}").enqueue(key)
        lines.append(f"{key} {answer.id} {int(answer.created)}")
    print("\n".join(lines))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
