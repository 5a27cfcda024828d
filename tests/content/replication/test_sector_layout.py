"""What a dry run tells of a portal, and what follows for content (docs/semantics.md, W5)."""

from pathlib import Path
from typing import Unpack

import httpx
import pytest

from skymount.content.replication.sector_layout import mismatch, uses_one_piece
from skymount.errors import PortalError, ReadOnlyPortalError, UnavailableError
from skymount.portal.failover.portals import open_portals
from skymount.settings import ClientOptions, PortalOptions
from skymount.wire.base_sector import Layout
from tests.fakes.portal import FakePortal, running, status
from tests.fakes.skyfiles import of_files
from tests.portal_process import running_portal

ONE = Layout(9 << 20, 100, 96, 1, 0)
TEN = Layout(9 << 20, 100, 960, 10, 20)


@pytest.mark.parametrize(
    ("layout", "one_piece", "reason"),
    [
        (ONE, True, ""),
        (ONE, None, ""),
        (ONE, False, "it has one data piece"),
        (TEN, False, ""),
        (TEN, None, ""),
        (TEN, True, "it is spread over 10 data pieces"),
        (Layout(9 << 20, 100, 96, 1, 9), True, "it is spread over 1 data pieces"),
    ],
)
def test_what_keeps_its_skylink(layout: Layout, one_piece: bool | None, reason: str) -> None:
    """W5: content of one piece needs such a portal; of another portal little is known."""
    assert mismatch(layout, one_piece).startswith(reason)
    assert bool(mismatch(layout, one_piece)) == bool(reason)


async def asked(url: str, **options: Unpack[ClientOptions]) -> bool | None:
    """Ask a portal once."""
    async with open_portals({url: PortalOptions.parse(url, **options)}, 20) as portals:
        try:
            return await portals.attempt(portals.clients[0], uses_one_piece)
        except PortalError as error:  # bare, outside of the nursery
            failure = error
    raise failure


async def test_the_embedded_portal(tmp_path: Path) -> None:
    """W5: it stores large content in one piece; the dry run stores nothing."""
    with running_portal(tmp_path) as url:
        assert await asked(url)
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}/svc/stats")).json()["numfiles"] == 0


async def test_another_portal() -> None:
    """W5: it may store it otherwise, know no dry run, or fail."""
    async with running(FakePortal(has_other_layout=True)) as fake:
        fake.add(of_files({"a": b"what it answers every upload with"}))
        assert await asked(fake.url) is False
        fake.fault(status(400))
        assert await asked(fake.url) is None
        fake.heal()
        fake.fault(status(503))
        with pytest.raises(UnavailableError):
            await asked(fake.url)


async def test_a_read_only_portal() -> None:
    """W2: not even a dry run is sent there."""
    async with running(FakePortal()) as fake:
        with pytest.raises(ReadOnlyPortalError):
            await asked(fake.url, read_only=True)
        assert fake.requests == []
