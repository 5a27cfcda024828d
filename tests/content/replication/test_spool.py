"""What is fetched for a portal is kept until it is not needed (docs/semantics.md, W6)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skymount.content.model.skyfile import LoadedSkyfile, Skyfile, Verified
from skymount.content.opening import Content
from skymount.content.replication.spool import clear_spools, open_spool
from skymount.errors import CacheError
from tests.fakes.content_stack import open_at
from tests.fakes.skyfiles import listing_of, of_files

CONTENT = of_files({"a": b"content"})
SKYFILE = Skyfile(CONTENT.skylink, listing_of(CONTENT.metadata), 7, "http://portal", Verified.YES)


@pytest.fixture
async def content() -> AsyncIterator[Content]:
    async with open_at("http://portal.example") as opened:
        yield opened


async def test_what_is_kept_until_it_is_done(content: Content, tmp_path: Path) -> None:
    """W6: it is there at the next attempt; afterwards nothing is left."""
    place = tmp_path / "pin"
    async with open_spool(content, place, CONTENT.skylink) as spool:
        disk = spool.reader.disk
        assert disk is not None
        await disk.store_description(LoadedSkyfile(SKYFILE))
        disk.store_unit(SKYFILE, SKYFILE.unit, 0, b"content")
    async with open_spool(content, place, CONTENT.skylink) as spool:
        disk = spool.reader.disk
        assert disk is not None
        loaded = await disk.load_description(CONTENT.skylink)
        assert loaded is not None
        assert await disk.load_units(loaded.skyfile, SKYFILE.unit, [0]) == [b"content"]
        spool.is_done = True
    assert list(place.iterdir()) == []


async def test_all_of_it_is_cleared(content: Content, tmp_path: Path) -> None:
    """W6: as `skymount cache clear` does."""
    place = tmp_path / "pin"
    clear_spools(place)
    async with open_spool(content, place, CONTENT.skylink):
        assert place.exists()
    clear_spools(place)
    assert not place.exists()


async def test_a_directory_that_cannot_be_used(content: Content, tmp_path: Path) -> None:
    place = tmp_path / "pin"
    place.write_text("in the way")
    with pytest.raises(CacheError, match="not usable as a cache"):
        async with open_spool(content, place, CONTENT.skylink):
            pass
    with pytest.raises(CacheError, match="cannot be removed"):
        clear_spools(place)
