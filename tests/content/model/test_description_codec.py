"""Descriptions as they are stored: what was written is read, and nothing else."""

import struct
from dataclasses import replace

import pytest

from skymount.content.model import description_codec
from skymount.content.model.skyfile import LoadedSkyfile, Skyfile, Verified
from skymount.errors import MalformedError
from skymount.wire.base_sector import Layout
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import describe, listing_of, noise

LINK = Skylink.v1(bytes(32), 4096)
SMALL = {"a/x": b"hello", "b": b""}
PLAIN = Skyfile(LINK, listing_of(describe(SMALL), 5), 5, "http://portal.example", Verified.NO)

DESCRIPTIONS = {
    "one portal's word": LoadedSkyfile(PLAIN),
    "inline": LoadedSkyfile(replace(PLAIN, verified=Verified.YES, inline=True), b"hello"),
    "inline and empty": LoadedSkyfile(
        Skyfile(LINK, listing_of(b"{}", 0), 0, "http://p", Verified.YES, inline=True), b""
    ),
    "chunks": LoadedSkyfile(
        replace(PLAIN, verified=Verified.PARTLY, fanout=noise(64), layout=Layout(5, 2, 64))
    ),
}


def stored(loaded: LoadedSkyfile) -> bytes:
    return b"".join(bytes(part) for part in description_codec.parts(loaded))


@pytest.mark.parametrize("loaded", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_round_trip(loaded: LoadedSkyfile):
    """All that is told of a skyfile comes back, and its payload if it came with it."""
    found = description_codec.restore(LINK, memoryview(stored(loaded)))
    skyfile, expected = found.skyfile, loaded.skyfile
    assert bytes(skyfile.listing.packed) == bytes(expected.listing.packed)
    assert bytes(skyfile.fanout) == bytes(expected.fanout)
    for name in ("skylink", "size", "portal", "verified", "layout", "inline", "identity"):
        assert getattr(skyfile, name) == getattr(expected, name)
    payload = None if found.payload is None else bytes(found.payload)
    assert payload == loaded.payload


@pytest.mark.parametrize("loaded", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_another_length(loaded: LoadedSkyfile):
    """What is cut off anywhere, or has something behind it, is refused."""
    data = stored(loaded)
    for wrong in [data + b"\0", *(data[:length] for length in range(len(data)))]:
        with pytest.raises(MalformedError):
            description_codec.restore(LINK, memoryview(wrong))


def test_head_that_makes_no_sense():
    """A trust that there is not, a payload of another size, an address that is no text."""
    data = stored(DESCRIPTIONS["inline"])
    at_size = struct.calcsize("<B?")
    for wrong in (
        b"\x03" + data[1:],
        data[:at_size] + (6).to_bytes(8, "little") + data[at_size + 8 :],
        data[:1] + b"\0" + data[2:],  # not inline, but with a payload
        data[:-1] + b"\xff",
    ):
        assert len(wrong) == len(data)
        with pytest.raises(MalformedError):
            description_codec.restore(LINK, memoryview(wrong))


def test_a_part_does_not_keep_the_whole_in_memory():
    """The listing of a skyfile with a large payload is a copy of its own; the payload is not."""
    payload = noise(100_000)
    skyfile = replace(PLAIN, size=len(payload), verified=Verified.YES, inline=True)
    data = memoryview(stored(LoadedSkyfile(skyfile, payload)))
    found = description_codec.restore(LINK, data)
    whole = data.obj
    assert isinstance(found.payload, memoryview)
    assert found.payload.obj is whole
    packed = found.skyfile.listing.packed
    assert not isinstance(packed, memoryview) or packed.obj is not whole
