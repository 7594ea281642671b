"""Where private servers find their programs: here, or in a folder with another Debian; and which product is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from workq.lab.servers import ServerMissing
from workq.lab.servers.programs import PRODUCTS, ROOT, Programs, is_chosen


def debian(root: Path) -> Programs:
    """A folder that looks like one."""
    for folder in ("etc", "usr/bin", "usr/lib/postgresql/17/bin"):
        (root / folder).mkdir(parents=True)
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\npostgres:x:90101:90102::/var:/bin/sh\n")
    return Programs(root)


def test_a_program_of_a_folder_is_found_there_alone_and_named_as_it_is_inside(tmp_path: Path) -> None:
    programs = debian(tmp_path)
    (tmp_path / "usr" / "bin" / "mariadb").symlink_to("/etc/alternatives/of-that-debian")

    assert programs.find("mariadb", package="mariadb-client") == "/usr/bin/mariadb"
    assert programs.folders("usr/lib/postgresql/*/bin") == [Path("/usr/lib/postgresql/17/bin")]
    with pytest.raises(ServerMissing, match="has no package coreutils"):
        programs.find("sleep", package="coreutils")


def test_an_account_has_the_numbers_of_its_own_debian(tmp_path: Path) -> None:
    programs = debian(tmp_path)

    assert programs.account("postgres") == (90101, 90102)
    assert "--reuid=90101" in programs.command(["initdb"], run_as=programs.account("postgres"))
    with pytest.raises(ServerMissing, match="no account 'mysql'"):
        programs.account("mysql")


def test_a_folder_that_is_no_debian_and_a_product_that_is_unknown_are_refused(tmp_path: Path) -> None:
    assert Programs.chosen({}) == Programs() == Programs.chosen({ROOT: ""})
    with pytest.raises(ServerMissing, match="has no Debian in it"):
        Programs.chosen({ROOT: str(tmp_path)})
    assert is_chosen("valkey", {PRODUCTS: "mysql,valkey"})
    assert not is_chosen("valkey", {})
    with pytest.raises(ServerMissing, match="unknown product dragonfly; known: valkey, mysql"):
        is_chosen("valkey", {PRODUCTS: "dragonfly"})
