"""A real portal for the tests of the client library."""

from collections.abc import Iterator

import pytest

from tests.portal_process import PortalProcess, portal_process


@pytest.fixture(scope="session")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    """A portal that all tests share."""
    with portal_process(tmp_path_factory.mktemp("portal") / "data") as running:
        yield running
