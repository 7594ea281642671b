"""The promises about markers on each database."""

from __future__ import annotations

import pytest

from tests.contract.databases import OnMariaDB, OnPostgreSQL, OnSQLite

pytest.register_assert_rewrite("tests.contract.marks")

from tests.contract.marks import MarksContract  # noqa: E402 - its assertions explain themselves from here on


class TestSQLite(OnSQLite, MarksContract):
    pass


class TestPostgreSQL(OnPostgreSQL, MarksContract):
    pass


class TestMariaDB(OnMariaDB, MarksContract):
    pass
