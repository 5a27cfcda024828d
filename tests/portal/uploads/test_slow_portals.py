"""Uploads to portals that are slow, but work (docs/semantics.md, R2, R10, W3, W4)."""

import pytest
import trio

from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import UploadBody, send
from skymount.portal.client.upload_source import UploadSource
from skymount.portal.failover.contestants import Outages
from skymount.portal.failover.health import Rank
from skymount.portal.uploads.upload import upload_copies, upload_to_all
from tests.fakes.portal import FakePortal, running, status, waits
from tests.fakes.skyfiles import noise, of_files
from tests.portal.uploads.several import FILE, UPLOAD, body, several


@pytest.mark.parametrize("seconds", [2.0, 3.0])
async def test_a_slow_portal_is_not_left_for_one_that_fails(seconds: float):
    """Whatever it is asked it answers late, as through Tor, or while its one thread hashes."""
    async with several(2) as found:
        found.fakes[0].fault(waits(seconds))
        found.fakes[1].fault(status(503), UPLOAD)
        assert await found.upload(body()) is found.portals.clients[0]


async def test_a_slow_portal_gets_its_copy_in_the_time_that_a_command_waits():
    async with several(2) as found:
        found.fakes[1].fault(waits(1.0))
        copies = await upload_to_all(found.portals, body(), 1, patience=10.0, extra=1.0)
        assert not copies.failures


async def test_what_the_kernel_holds_is_taken_as_time_passes():
    """R14: time without progress. It takes 20 KB/s; what it has not taken yet is in our kernel."""
    slow = FakePortal(takes=(2048, 0.1))
    slow.add(FILE)
    async with running(slow), PortalReader(slow.url, retries=0, timeout=5) as client:
        await send(client.http, UploadBody([UploadSource.of_bytes(bytes(300 << 10), "a.txt")]))


async def test_a_portal_whose_skylink_is_disproved_later_comes_last():
    right, wrong = (of_files({"a.txt": noise(9 << 20, seed)}) for seed in (1, 2))
    async with several(2) as found:
        for fake, held in zip(found.fakes, (wrong, right), strict=True):
            fake._content = {held.skylink: held}
        large = UploadBody([UploadSource.of_bytes(noise(9 << 20, 1), "a.txt")])
        await upload_copies(found.portals, large, 2, found.note)
        assert found.portals.rank(found.portals.clients[0]) is Rank.LYING


async def test_wait_for_portal_is_not_added_while_another_portal_works():
    async with several(2) as found:
        portals = found.portals
        object.__setattr__(portals, "outages", Outages(300.0))
        await portals.poll(lambda client: client.head(FILE.skylink))
        health, now = portals.health(portals.clients[0]), trio.current_time()
        health.outage, health._refused_at = 300.0, now
        assert portals.has_working()
        with pytest.raises(trio.TooSlowError), portals.limit(2.0):
            await trio.sleep(40)
        assert trio.current_time() - now < 30
