"""Servers for the whole session: started once, by the one worker that has these tests."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from skymount.server.config import ClusterSettings
from skymount.server.storage.cluster.content_store import SharedContent
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.cluster.objects import Objects
from tests.portal_process import PortalProcess, portal_process
from tests.server.storage.cluster.servers import (
    BUCKET,
    CREDENTIALS,
    S3RVER,
    Postgres,
    Shared,
    postgres_programs,
    running_moto,
    running_postgres,
    running_s3rver,
)

StartPortal = Callable[..., AbstractContextManager[PortalProcess]]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with running_postgres(programs) as server:
        yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_moto(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture(scope="session")
def s3rver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("node") is None:
        pytest.skip("node is not installed: apt-get install npm")
    if not S3RVER.exists():
        pytest.skip("s3rver is not installed: npm install --prefix .venvs/s3rver s3rver@3.7.1")
    with running_s3rver(tmp_path_factory.mktemp("s3rver")) as url:
        yield url


@pytest.fixture
def shared(s3rver: str, postgres: Postgres, tmp_path: Path) -> Shared:
    return Shared.new(s3rver, postgres, tmp_path)


@pytest.fixture(params=["moto", "s3rver"])
def shared_on_each(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Shared:
    """The same on each of the object stores."""
    return Shared.new(request.getfixturevalue(request.param), postgres, tmp_path)


@contextmanager
def opened_content(shared: Shared) -> Iterator[SharedContent]:
    """Open shared content as a portal does, with a cache and connections of its own."""
    url = shared.postgres.url(shared.database)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        objects = Objects(ClusterSettings(BUCKET, shared.prefix, url, shared.endpoint))
    with (
        closing(Database.open(url, Tables.UPDATE)) as database,
        closing(SharedContent(objects, database)) as opened,
    ):
        yield opened


@pytest.fixture
def content(shared: Shared) -> Iterator[SharedContent]:
    with opened_content(shared) as opened:
        yield opened


def running(shared: Shared, directory: Path, *more: str) -> AbstractContextManager[PortalProcess]:
    arguments = (*shared.arguments, *more)
    return portal_process(directory / "unused", *arguments, environment=CREDENTIALS)


@pytest.fixture
def start(tmp_path: Path) -> StartPortal:
    """Starts a portal on shared storage."""

    return lambda shared, *more: running(shared, tmp_path, *more)
