"""What tests of several calls of the client use."""

import secrets
from collections.abc import AsyncIterator

import pytest

from skymount.portal import PortalClient
from tests.portal_process import PortalProcess


@pytest.fixture
async def client(portal: PortalProcess) -> AsyncIterator[PortalClient]:
    async with PortalClient(portal.url) as connected:
        yield connected


@pytest.fixture
def data_key() -> str:
    """A data key that no other test uses."""
    return f"key {secrets.token_hex(8)}"
