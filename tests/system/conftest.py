"""The legs, and the stages of demos, as fixtures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.legs import Leg
from tests.system.stage import Stage
from tests.zygote import forking
from workq.config import LEDGER

OpenLeg = Callable[..., Leg]


@pytest.fixture
def open_leg(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLeg]:
    """Call it with `sqlite`, `postgres`, `mariadb` or `servers` (and what `Leg.open` takes) to get a fresh leg.

    `servers` are those of the session, but for the `ledger`, `broker` or `inflight` whose URL is given.
    """
    opened: list[Leg] = []
    fixtures = {"ledger": "postgres_server", "broker": "rabbitmq_server", "inflight": "redis_server"}

    def open_one(
        name: str, *, divide: float = 1.0, queue_type: str = "quorum", ladder: str = LEDGER, **own: str
    ) -> Leg:
        if name == "sqlite":
            leg = Leg.open(name, tmp_path, ledger=f"sqlite:///{tmp_path / 'workq.db'}", divide=divide)
        elif name in ("postgres", "mariadb"):  # that database alone is ledger, broker and in-flight store
            server = request.getfixturevalue(f"{name}_server")
            leg = Leg.open(name, tmp_path, ledger=server.url, divide=divide)
        else:
            urls = {store: own.get(store) or request.getfixturevalue(one).url for store, one in fixtures.items()}
            leg = Leg.open(name, tmp_path, divide=divide, queue_type=queue_type, ladder=ladder, **urls)
        opened.append(leg)
        return leg

    yield open_one
    for leg in opened:
        leg.close()


@pytest.fixture(params=["sqlite", "servers"])
def leg(request: pytest.FixtureRequest, open_leg: OpenLeg) -> Leg:
    """Each leg in turn, with the default times."""
    return open_leg(request.param)


@pytest.fixture(params=["sqlite", "servers"])
def fast_leg(request: pytest.FixtureRequest, open_leg: OpenLeg) -> Leg:
    """Each leg in turn, with a tenth of the default times."""
    return open_leg(request.param, divide=10.0)


@pytest.fixture
def forked() -> Iterator[None]:
    """The processes of a bench or a certify run that this process makes itself are forked."""
    with forking():
        yield


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and one for temporary files, so that what is left is seen."""
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A place for one run of a demo."""
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def open_stage() -> Iterator[Stage]:
    """The same where others may enter: PostgreSQL runs under another account when we are root."""
    with tempfile.TemporaryDirectory(prefix="workq-demo-test-") as folder:
        made = Stage(Path(folder))
        made.folder.chmod(0o755)
        yield made
        made.close()
