"""A real portal, and a site and names in it, for all acceptance tests of a worker."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from skymount.portal import PortalClient, SyncPortalClient
from skymount.server.storage import zone_file
from tests.portal_process import portal_process

FILES = {"a.txt": b"first\n", "dir/b c+%.json": b'{"n": 9007199254740993}', "dir/d.bin": bytes(9)}
API_KEY = "the pass word"
LAST = 2**64 - 1
"""The last revision."""


@dataclass(frozen=True)
class Ready:
    """A running portal with content."""

    url: str
    skylink: str
    """Of a directory ``site`` with `FILES`."""
    domain: str
    """Leads to it."""


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    """A portal with a password, and with content."""
    directory = tmp_path_factory.mktemp("contract")
    secret = Path(directory / "password")
    secret.touch(0o600)
    secret.write_text(API_KEY)
    with portal_process(directory / "data", "--password-file", str(secret)) as portal:
        with SyncPortalClient(portal.url, api_key=API_KEY) as client:
            skylink = str(client.upload_directory(FILES, custom_dirname="site").skylink)
        zone_file.change(
            portal.data, lambda found: found.with_record("example", f"svc://{skylink}")
        )
        yield Ready(portal.url, skylink, "example")


@pytest.fixture
async def client(ready: Ready) -> AsyncIterator[PortalClient]:
    async with PortalClient(ready.url, api_key=API_KEY) as connected:
        yield connected
