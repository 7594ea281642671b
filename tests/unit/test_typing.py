"""What a user's editor knows: a wrong call of a task is a type error before it is a run-time error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SAMPLE = """
from workq import WorkQueue

wq = WorkQueue()


@wq.task(name="shop.reindex", queue="reindex", failures_max=5, time_limit_s=60)
def reindex(product_id: int) -> None: ...


@wq.task(name="shop.notify")
async def notify(user: str, *, urgent: bool = False) -> str:
    return user


@wq.task(name="search.index", batch=100, linger_s=0.5, failures_max=3)
def index(ids: list[int]) -> dict[int, str]:
    return {}


@wq.task(batch=10)
async def notify_all(users: list[str]) -> None: ...


@wq.task
def bare(number: int) -> str:
    return ""


@wq.job
def bare_job(items: list[int]) -> None: ...


@wq.job(chunk=10)
def job(items: list[int]) -> None: ...


bare.enqueue(1).id.upper()
bare(1).upper()
bare_job.run().id.upper()
job.run().id.upper()
answer: dict[int, str] = index([1, 2])
index.enqueue(42).id.upper()
index.options(delay_s=30).enqueue(42)
notify_all.enqueue("u")
reindex(1)
reindex.enqueue(42).id.upper()
reindex.options(delay_s=30).enqueue(42)
reindex.enqueue_many({"product_id": number} for number in range(10))
notify.options(key="k").enqueue("u", urgent=True)


async def use() -> None:
    created: bool = (await reindex.aenqueue(42)).created
    text: str = await notify("u")
    await notify_all(["u"])
"""

WRONG = """
reindex.enqueue("42")
reindex.enqueue()
reindex.options(delay_s=30).enqueue(42, 43)
notify.enqueue("u", urgently=True)
reindex.options(delay=30)
index.enqueue([42])
index("42")
wq.task(linger_s=1.0)
bare.enqueue("1")
wq.job(chunks=10)
"""


def mypy(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "sample.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "sample.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=170,
    )


def test_right_calls_pass_strict_checks_and_each_wrong_call_is_an_error(tmp_path: Path) -> None:
    right = mypy(tmp_path, SAMPLE)
    assert right.returncode == 0, right.stdout

    wrong = mypy(tmp_path, SAMPLE + WRONG)
    first = SAMPLE.count("\n") + 2
    found = {int(line.split(":")[1]) for line in wrong.stdout.splitlines() if "error:" in line}
    assert found == set(range(first, first + 10)), wrong.stdout
