"""The table of servers that were tried: a row takes the place of an older one of its server, and no other's."""

from __future__ import annotations

from dataclasses import replace

from tests.tried import PAGE, Row, with_row


def test_a_row_takes_the_place_of_an_older_one_of_its_server_alone() -> None:
    page = PAGE.read_text(encoding="utf-8")
    mine = Row("Zredis 8.0.2", "Debian trixie", "contracts", 3, 1, "2026-01-01")
    newer = replace(mine, server="Zredis 8.0.6", passed=4, failed=0)
    elsewhere = replace(mine, of="Debian forky")
    together = replace(mine, server="Zredis 8.0.2 + Ypostgres 17.1")

    for row in (mine, elsewhere, together, newer):
        page = with_row(page, row)

    lines = page.splitlines()
    assert [line for line in lines if "Zredis" in line] == [str(elsewhere), str(newer), str(together)]
    kept = [line for line in lines if "Zredis" not in line]
    assert kept == PAGE.read_text(encoding="utf-8").splitlines(), "nothing else is changed"
