"""The tables of the core and of the slices: made once, when they are asked for, and put together for the whole."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.sql_files import SQL
from workq.jobs.ledger.tables import JobTables
from workq.ledger.columns import DIALECTS, TableSpace
from workq.ledger.schema import Tables, shared_tables
from workq.slices import every_table

WAIT_S = 60.0


def test_the_tables_of_a_slice_are_made_once_for_each_database() -> None:
    shop, mail = Tables("shop", "sqlite"), Tables("mail", "sqlite")

    assert shop.part(JobTables) is shop.part(JobTables)
    assert shop.part(JobTables).job.name == "shop_job"
    assert mail.part(JobTables).job.name == "mail_job"


def test_who_opens_such_a_database_again_has_the_tables_that_were_made() -> None:
    assert shared_tables("shop", "sqlite").task is shared_tables("shop", "sqlite").task
    assert shared_tables("mail", "sqlite").task.name == "mail_task"
    assert shared_tables("shop", "mysql").task is not shared_tables("shop", "sqlite").task


def test_threads_that_ask_at_once_get_the_same_tables() -> None:
    tables, together = Tables("shop", "sqlite"), threading.Barrier(4)

    def made(space: TableSpace) -> JobTables:
        together.wait(WAIT_S)  # all of them have found none
        return JobTables(space)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: tables.part(made), range(4)))

    assert len({id(one) for one in found}) == 1
    assert tables.part(made) is found[0]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_whole_schema_has_the_tables_of_the_core_and_of_each_slice(dialect: str) -> None:
    text = (SQL / dialect / "schema.sql").read_text(encoding="utf-8")
    written = re.findall(r"^CREATE TABLE (?:IF NOT EXISTS )?workq_(\w+) ", text, flags=re.MULTILINE)

    whole = every_table(Tables("shop", dialect)).tables

    assert list(whole) == [f"shop_{name}" for name in written]
    assert {"shop_task", "shop_job", "shop_delivery", "shop_permit", "shop_position", "shop_schedule"} <= set(whole)
