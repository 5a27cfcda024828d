"""A portal that runs for the whole session, and a client of it."""

from collections.abc import Iterator

import pytest

from tests.portal_process import PortalProcess, portal_process
from tests.server.http_client import Client


@pytest.fixture(scope="session")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    """A portal that all tests share."""
    with portal_process(tmp_path_factory.mktemp("portal") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def client(portal: PortalProcess) -> Iterator[Client]:
    with Client(base_url=portal.url, timeout=60) as connected:
        yield connected
