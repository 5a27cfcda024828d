"""What identifies a skyfile, and in which units its content is fetched."""

from dataclasses import replace

import pytest

from skymount.content.model.skyfile import BLOCK_SIZE, Skyfile, Verified
from skymount.wire.base_sector import Layout
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.fakes.skyfiles import listing_of

ROOT = bytes(range(32))
SKYFILE = Skyfile(
    Skylink.v1(ROOT, 4096), listing_of(b"{}", 9 << 20), 9 << 20, "http://one", Verified.YES
)


def test_proven_content_is_the_same_from_every_portal():
    """Its units are kept for all portals; what is not proven is one portal's word."""
    assert replace(SKYFILE, portal="http://two").identity == SKYFILE.identity
    words = [
        replace(SKYFILE, portal=portal, verified=verified)
        for portal in ("http://one", "http://two")
        for verified in (Verified.NO, Verified.PARTLY)
    ]
    assert len({each.identity for each in (SKYFILE, *words)}) == 3


def test_each_provisional_description_has_an_identity_of_its_own():
    """T6: units of one are not taken for another's."""
    word = replace(SKYFILE, verified=Verified.NO)
    provisional = [replace(word, provisional=number) for number in (1, 2)]
    assert len({each.identity for each in (word, *provisional)}) == 3
    assert [each.is_provisional for each in (word, *provisional)] == [False, True, True]
    assert replace(word, is_unconfirmed=True).is_provisional


@pytest.mark.parametrize(
    ("change", "unit", "divisible"),
    [
        ({}, BLOCK_SIZE, True),
        ({"block_size": 4096}, 4096, True),
        ({"layout": Layout(9 << 20, 2)}, BLOCK_SIZE, True),
        ({"layout": Layout(9 << 20, 2, 96), "fanout": bytes(96)}, SECTOR_SIZE, False),
        (
            {"layout": Layout(9 << 20, 2, 960, 10, 20), "fanout": bytes(960)},
            10 * SECTOR_SIZE,
            False,
        ),
        ({"inline": True}, SECTOR_SIZE, False),
    ],
    ids=["plain", "small blocks", "no fan-out", "chunks", "chunks of ten", "inline"],
)
def test_units(change: dict[str, object], unit: int, divisible: bool):
    """A chunk where hashes are known, the whole of a small skyfile, else a block; only a block may
    be fetched in parts.
    """
    skyfile = replace(SKYFILE, **change)  # type: ignore[arg-type]
    assert (skyfile.unit, skyfile.divisible) == (unit, divisible)
    assert skyfile.block_size % skyfile.small_block_size == 0
