"""A portal that the tests of a worker share."""

from collections.abc import Iterator

import pytest

from tests.portal_process import running_portal


@pytest.fixture(scope="session")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL."""
    with running_portal(tmp_path_factory.mktemp("portal")) as url:
        yield url
