"""Encrypted content of a real portal, as the mount sees it."""

from pathlib import Path

import pytest

from skymount.content.cache.memory_cache import MemoryCache
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import Verified, VerifyPolicy
from skymount.errors import BadContentError
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.portals import Portals
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.fakes.content_stack import open_reader
from tests.portal_process import portal_process
from tests.server.http_client import Client


@pytest.mark.parametrize("size", [1000, SECTOR_SIZE + 1000], ids=["small", "large"])
@pytest.mark.parametrize("kind", ["public-id", "private-id"])
async def test_encrypted_content_of_a_portal(tmp_path: Path, kind: str, size: int):
    """It is read through the portal, unverified; a mount that requires verification refuses it."""
    content = bytes(n % 251 for n in range(size))
    with (
        portal_process(tmp_path) as portal,
        Client(base_url=portal.url, timeout=60) as uploader,
    ):
        uploader.post("/svc/createskykey", data={"name": "k", "type": kind}).raise_for_status()
        skylink = Skylink(uploader.upload_file("f", content, skykeyname="k"))
        async with PortalClient(portal.url, retries=0) as client:
            portals = Portals([client])
            loader = SkyfileLoader(portals, VerifyPolicy.AVAILABLE)
            async with open_reader(portals, loader, MemoryCache(1 << 24)) as reader:
                found = await reader.load(skylink)
                assert found.verified is Verified.NO
                assert bytes(await reader.read(found, 700, 50)) == content[700:750]
                assert bytes(await reader.read(found, 0, found.size)) == content
            with pytest.raises(BadContentError):
                await SkyfileLoader(portals, VerifyPolicy.REQUIRE).load(skylink)
