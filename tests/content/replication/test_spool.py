"""What is fetched for a portal is kept until it is not needed (docs/semantics.md, W6)."""

from pathlib import Path

import pytest

from skymount.content.model.skyfile import LoadedSkyfile, Skyfile, Verified
from skymount.content.replication.spool import clear_spools, open_spool
from skymount.errors import CacheError
from tests.fakes.skyfiles import listing_of, of_files

CONTENT = of_files({"a": b"content"})
SKYFILE = Skyfile(CONTENT.skylink, listing_of(CONTENT.metadata), 7, "http://portal", Verified.YES)


async def test_what_is_kept_until_it_is_done(tmp_path: Path) -> None:
    """W6: it is there at the next attempt; afterwards nothing is left."""
    place = tmp_path / "pin"
    async with open_spool(place, CONTENT.skylink) as spool:
        await spool.disk.store_description(LoadedSkyfile(SKYFILE))
        spool.disk.store_unit(SKYFILE, SKYFILE.unit, 0, b"content")
    async with open_spool(place, CONTENT.skylink) as spool:
        loaded = await spool.disk.load_description(CONTENT.skylink)
        assert loaded is not None
        assert await spool.disk.load_units(loaded.skyfile, SKYFILE.unit, [0]) == [b"content"]
        spool.is_done = True
    assert list(place.iterdir()) == []


async def test_all_of_it_is_cleared(tmp_path: Path) -> None:
    """W6: as `skymount cache clear` does."""
    place = tmp_path / "pin"
    clear_spools(place)
    async with open_spool(place, CONTENT.skylink):
        assert place.exists()
    clear_spools(place)
    assert not place.exists()


async def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    place = tmp_path / "pin"
    place.write_text("in the way")
    with pytest.raises(CacheError, match="not usable as a cache"):
        async with open_spool(place, CONTENT.skylink):
            pass
    with pytest.raises(CacheError, match="cannot be removed"):
        clear_spools(place)
