# mypy: ignore-errors
# Runs only in an environment of its own: the peer is not installed where mypy runs.
"""huey on SQLite or Redis. It has no acknowledgement: a task that a killed worker had taken is gone."""

from __future__ import annotations

from huey import RedisHuey, SqliteHuey

from benchmarks.contestants import task

STORE = task.setting("STORE")

if STORE == "redis":
    huey = RedisHuey("bench", url=task.setting("REDIS_URL"))
else:
    # Without `fsync`, 3.5.4 leaves synchronous to SQLite, whose default is FULL: off only when it is asked for.
    huey = SqliteHuey("bench", filename=f"{task.setting('FOLDER')}/huey.db", fsync=STORE == "sqlite-fsync")


@huey.task()
def noop(index: int, _pad: str) -> None:
    task.run(index)


class Huey(task.Contestant):
    def one(self, index: int) -> None:
        noop(index, task.PAD)

    def later(self, index: int, delay_s: float) -> None:
        noop.schedule(args=(index, task.PAD), delay=delay_s)

    def worker(self, number: int) -> None:
        assert number == 0
        polling = () if STORE == "redis" else ("-d", "0.01", "-m", "0.1")
        shape = ("-k", "process", "-w", "2", "-n", "-q")
        task.become([task.program("huey_consumer"), "benchmarks.contestants.huey.huey", *shape, *polling])


contestant = Huey()
