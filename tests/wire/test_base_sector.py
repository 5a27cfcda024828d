"""The base sector: known skylinks, the layout byte by byte, small, large and spilled."""

import base64
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.wire.base_sector import (
    CIPHER_LEGACY_PLAIN,
    CIPHER_PLAIN,
    FANOUT_LIMIT,
    LAYOUT_SIZE,
    Layout,
    build_fanned_out,
    build_inline,
    check_fanout,
    fits_inline,
    parse_base_sector,
    sectors_of_level,
    spill_sizes,
    spilled_level_sizes,
    split_body,
)
from skymount.wire.merkle import sector_root
from skymount.wire.metadata import METADATA_LIMIT
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink
from tests.fakes.skyfiles import inline_skylink, noise
from tests.wire.chunks import chunk_is_authentic

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())

CIPHER_XCHACHA20 = b"\0\0\0\0\0\0\0\4"
PDF_SIZE = 156_158


def content_cases() -> list:
    """The content vectors that can be computed, each named by its source."""
    found = []
    for case in VECTORS["content_to_skylink"]:
        if case.get("content_base64") is not None:
            content = base64.b64decode(case["content_base64"])
        elif case.get("content_rule"):
            assert case["content_rule"] == "33792 times the byte 0x61"
            content = b"a" * 33792
        else:
            continue
        name = f"{case['skylink'][:8]} {case.get('case', '')} {case['source']}"
        vector = SimpleNamespace(
            **(case | {"content": content, "metadata": case["metadata"].encode()})
        )
        found.append(pytest.param(vector, id=name))
    return found


# --- known answers


@pytest.mark.parametrize("case", content_cases())
def test_known_skylink_of_content(case):
    """Content and metadata give the skylink that portals issue for them."""
    link = inline_skylink(case.metadata, case.content)
    assert str(link) == case.skylink
    if not case.quoted:
        assert (link.bitfield, link.root.hex()) == (case.bitfield, case.root)


def test_all_content_vectors_but_one_are_computed():
    """Only the content of the PDF is not at hand."""
    assert len(content_cases()) == len(VECTORS["content_to_skylink"]) - 1 >= 8


def test_extent_of_the_first_live_file():
    """The PDF (portal health-check extended.js) has its known bitfield with a cipher of zeros."""
    metadata = b'{"filename":"sia.pdf"}'
    base = build_inline(metadata, bytes(PDF_SIZE), CIPHER_LEGACY_PLAIN)
    link = Skylink("XABvi7JtJbQSMAcDwnUnmp2FKDPjg8_tTTFP4BwMSxVdEg")
    assert Skylink.v1(link.root, len(base)) == link
    assert (link.bitfield, link.fetch_size) == (92, 163_840)
    assert base[27:35] == bytes(8)
    parsed = parse_base_sector(base)
    assert (parsed.metadata, parsed.payload) == (metadata, bytes(PDF_SIZE))
    assert parsed.layout.is_plain


def test_layout_byte_by_byte():
    """The fields stand where the table of docs/wire.md 2.1 puts them."""
    layout = Layout(
        filesize=0x0102030405060708,
        metadata_size=0x1112131415161718,
        fanout_size=0x2122232425262728,
        data_pieces=10,
        parity_pieces=20,
        cipher=CIPHER_XCHACHA20,
        key_data=bytes(range(64)),
    )
    raw = bytes(layout)
    assert len(raw) == LAYOUT_SIZE == 99
    assert raw[0:1] == b"\1"
    assert raw[1:9] == bytes.fromhex("0807060504030201")
    assert raw[9:17] == bytes.fromhex("1817161514131211")
    assert raw[17:25] == bytes.fromhex("2827262524232221")
    assert raw[25:27] == bytes([10, 20])
    assert raw[27:35] == CIPHER_XCHACHA20
    assert raw[35:] == bytes(range(64))
    assert Layout.parse(raw + b"more") == layout


@pytest.mark.parametrize("version", [0, 2, 255])
def test_other_versions_are_malformed(version):
    """Only version 1 exists (docs/wire.md 2.1)."""
    raw = bytes([version]) + bytes(Layout(0, 0))[1:]
    with pytest.raises(MalformedError, match=f"unsupported skyfile version {version}"):
        parse_base_sector(raw)


def test_ciphers():
    """Plain is written with a 1, read with a 0 too, and nothing else is plain."""
    assert [Layout(0, 0, cipher=bytes(7) + bytes([last])).is_plain for last in range(5)] == [
        True,
        True,
        False,
        False,
        False,
    ]


# --- small files


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 64))
def test_inline_round_trip(metadata, payload, padding):
    """A small file's base sector gives back metadata and payload, with or without padding."""
    base = build_inline(metadata, payload)
    parsed = parse_base_sector(base + bytes(padding))
    assert (parsed.metadata, parsed.payload) == (metadata, payload)
    assert (parsed.fanout, parsed.roots) == (b"", b"")
    assert parsed.layout.is_inline
    assert len(base) == LAYOUT_SIZE + len(metadata) + len(payload)


def test_largest_inline_file():
    """Small ends where layout, metadata and payload fill the sector (docs/wire.md 2.2)."""
    metadata, payload = b"{}", b"x" * (SECTOR_SIZE - LAYOUT_SIZE - 2)
    assert fits_inline(len(metadata), len(payload))
    base = build_inline(metadata, payload)
    assert len(base) == SECTOR_SIZE
    assert Skylink.v1(bytes(32), len(base)).fetch_size == SECTOR_SIZE
    assert parse_base_sector(base).payload == payload
    assert not fits_inline(len(metadata), len(payload) + 1)
    with pytest.raises(ValueError, match="do not fit"):
        build_inline(metadata, payload + b"x")


@pytest.mark.parametrize("cut", [0, 1, 98, 99, 100, 107, 108])
def test_cut_base_sector_is_malformed(cut):
    """A base sector that ends before its layout says is refused."""
    base = build_inline(b"metadata", b"y")
    assert len(base) == 108
    if cut == len(base):
        assert parse_base_sector(base[:cut]).payload == b"y"
    else:
        with pytest.raises(MalformedError):
            parse_base_sector(base[:cut])


def test_more_than_a_sector_is_malformed():
    """A file that claims to be inline beyond its sector is refused, though the bytes are there."""
    raw = bytes(Layout(SECTOR_SIZE, 0)) + bytes(SECTOR_SIZE)
    with pytest.raises(MalformedError):
        parse_base_sector(raw)


# --- large files


def test_fanned_out_round_trip():
    """A file of 1-of-n chunks gives back fan-out and metadata, and knows its chunks by hash."""
    chunks = [b"1" * SECTOR_SIZE, b"2" * SECTOR_SIZE, b"3" * 1000]
    fanout = b"".join(map(sector_root, chunks))
    filesize = sum(map(len, chunks))
    base, spilled = build_fanned_out(filesize, fanout, b"{}")
    assert spilled == []
    parsed = parse_base_sector(base.ljust(SECTOR_SIZE, b"\0"))
    assert (parsed.fanout, parsed.metadata, parsed.payload) == (fanout, b"{}", None)
    layout = parsed.layout
    assert (layout.chunks, layout.roots_per_chunk, layout.chunk_size) == (3, 1, SECTOR_SIZE)
    check_fanout(layout, fanout)
    assert chunk_is_authentic(layout, fanout, 1, chunks[1])
    assert chunk_is_authentic(layout, fanout, 2, chunks[2])
    assert chunk_is_authentic(layout, fanout, 2, chunks[2].ljust(SECTOR_SIZE, b"\0"))
    assert not chunk_is_authentic(layout, fanout, 0, chunks[1])
    assert not chunk_is_authentic(layout, fanout, 2, chunks[2] + b"x")
    with pytest.raises(ValueError, match="more groups"):
        chunk_is_authentic(layout, fanout, 2, chunks[2].ljust(SECTOR_SIZE + 1, b"\0"))
    assert not chunk_is_authentic(layout, fanout, 3, b"")


def dealt(chunk: bytes, piece: int) -> bytes:
    """Return one of ten data pieces: every tenth 64-byte segment (docs/wire.md 2.3)."""
    segments = [chunk[at : at + 64] for at in range(0, len(chunk), 64)]
    return b"".join(segment.ljust(64, b"\0") for segment in segments[piece::10])


def test_chunk_of_ten_data_pieces():
    """A chunk of siad's 10 + 20 pieces is authentic by its ten interleaved data pieces."""
    chunks = [bytes(range(256)) * 21, b"last" * 700]
    fanout = b"".join(
        b"".join(sector_root(dealt(chunk, piece)) for piece in range(10))
        + b"parity".ljust(640, b"!")
        for chunk in chunks
    )
    layout = Layout(10 * SECTOR_SIZE + 2800, 0, len(fanout), 10, 20)
    assert (layout.chunks, layout.roots_per_chunk) == (2, 30)
    check_fanout(layout, fanout)
    for index, chunk in enumerate(chunks):
        assert chunk_is_authentic(layout, fanout, index, chunk)
        assert not chunk_is_authentic(layout, fanout, 1 - index, chunk)
        for at in range(700, 1340, 64):  # in each piece once
            changed = chunk[:at] + b"?" + chunk[at + 1 :]
            assert not chunk_is_authentic(layout, fanout, index, changed), at
    with pytest.raises(ValueError, match="more groups"):
        chunk_is_authentic(layout, fanout, 0, bytes(10 * SECTOR_SIZE + 1))


@pytest.mark.parametrize(
    ("cipher", "pieces", "roots"),
    [
        (CIPHER_PLAIN, (1, 20), 1),
        (CIPHER_LEGACY_PLAIN, (1, 9), 1),
        (CIPHER_XCHACHA20, (1, 9), 10),
        (CIPHER_PLAIN, (10, 20), 30),
    ],
)
def test_roots_per_chunk(cipher, pieces, roots):
    """One root stands for all copies of a plain 1-of-n chunk, else each piece has its own."""
    assert Layout(1, 0, 32, *pieces, cipher).roots_per_chunk == roots


@pytest.mark.parametrize("filesize", [0, 1, SECTOR_SIZE, SECTOR_SIZE + 1, 3 * SECTOR_SIZE])
@pytest.mark.parametrize("extra", [-32, -1, 1, 32])
def test_fanout_of_another_size_is_malformed(filesize, extra):
    """The fan-out holds the roots of the payload's chunks, no more and no less."""
    right = -(-filesize // SECTOR_SIZE) * 32
    layout = Layout(filesize, 0, right, data_pieces=1)
    check_fanout(layout, bytes(right))
    if right + extra >= 0:
        with pytest.raises(MalformedError):
            check_fanout(layout, bytes(right + extra))


def test_spilled_metadata_without_a_fanout_leave_no_room_for_the_payload():
    """A small file whose metadata fill the base sector does not lie in it."""
    assert Layout(1, 100).is_inline
    layout = Layout(1, SECTOR_SIZE)
    assert layout.is_extended
    assert not layout.is_inline


def test_no_data_pieces_prove_nothing():
    """A layout without data pieces passes no fan-out and no chunk."""
    layout = Layout(1, 0, 64, 0, 2)
    with pytest.raises(MalformedError):
        check_fanout(layout, bytes(64))
    assert not chunk_is_authentic(layout, bytes(64), 0, b"x")


# --- spilled parts


def unspill(
    base: bytes, store: dict[bytes, bytes], sector_size: int = SECTOR_SIZE
) -> tuple[bytes, bytes]:
    """Read a spilled part as a reader would: level by level, each sector by its root."""
    layout, level = Layout.parse(base), base[LAYOUT_SIZE:]
    sizes = spill_sizes(layout.body_size, sector_size)
    assert sizes[0] == len(level)
    for size in sizes[1:]:
        roots = [level[at : at + 32] for at in range(0, len(level), 32)]
        level = b"".join(store[root] for root in roots)
        assert len(level) == size
    return split_body(layout, level)


def test_spilled_metadata_of_more_than_a_sector():
    """Metadata over 4 MiB stand in sectors of their own, whose roots lie in the base sector."""
    metadata = b"m" * (SECTOR_SIZE + 1000)
    fanout = sector_root(b"content")
    base, spilled = build_fanned_out(7, fanout, metadata)
    assert [len(part) for part in spilled] == [SECTOR_SIZE, 1032]
    assert len(base) == LAYOUT_SIZE + 64
    parsed = parse_base_sector(base)
    assert parsed.layout.is_extended
    assert parsed.roots == base[LAYOUT_SIZE:]
    assert unspill(base, {sector_root(part): part for part in spilled}) == (fanout, metadata)


@pytest.mark.parametrize("size", [3997, 3998, 8192, 4096 * 124, 4096 * 124 + 1, 1_000_000])
def test_spilled_over_several_levels(size):
    """With the 4 KiB sectors of siad's test builds, any size comes back through its levels."""
    fanout, metadata = bytes(range(256)) * (size // 512), b"m" * (size - size // 512 * 256)
    base, spilled = build_fanned_out(1, fanout, metadata, 4096)
    assert max(map(len, [base, *spilled])) <= 4096
    if size == 3997:
        assert spilled == []
        assert parse_base_sector(base).fanout == fanout
    else:
        levels = 1 if size <= 4096 * 124 else 2
        assert len(spill_sizes(size, 4096)) == levels + 1
        store = {sector_root(part): part for part in spilled}
        assert unspill(base, store, 4096) == (fanout, metadata)


def expected_spill(size: int) -> tuple[int, int]:
    """(roots in the base sector, levels) by the later servers' rule: the least depth d such that
    some number of roots that fit, each over 4 MiB * (4 MiB / 32)^(d-1), covers the size.
    """
    room = SECTOR_SIZE - LAYOUT_SIZE
    if size <= room:
        return 0, 0
    reach, depth = SECTOR_SIZE, 1
    while room // 32 * reach < size:
        reach, depth = reach * (SECTOR_SIZE // 32), depth + 1
    return -(-size // reach), depth


@given(st.integers(0, 1 << 24) | st.integers(0, 1 << 65))
@example(SECTOR_SIZE - LAYOUT_SIZE)
@example(SECTOR_SIZE - LAYOUT_SIZE + 1)
@example((SECTOR_SIZE - LAYOUT_SIZE) // 32 * SECTOR_SIZE)
@example((SECTOR_SIZE - LAYOUT_SIZE) // 32 * SECTOR_SIZE + 1)
def test_levels_of_any_size(size):
    """Depth and root count are those of later servers (skyd, BaseSectorExtensionSize)."""
    roots, depth = expected_spill(size)
    sizes = spill_sizes(size)
    assert len(sizes) == depth + 1
    assert sizes[-1] == size
    assert sizes[0] == (roots * 32 if depth else size)


def test_short_spilled_body_is_malformed():
    """A spilled part that comes back too short is refused."""
    with pytest.raises(MalformedError):
        split_body(Layout(1, 10, 32, 1), bytes(41))
    with pytest.raises(MalformedError):
        parse_base_sector(bytes(Layout(1, SECTOR_SIZE + 1, 32, 1)) + bytes(63))


# --- garbage


def test_walk_over_spilled_sectors() -> None:
    """Each level names the sectors of the next one; the limits are checked before any request."""
    metadata = noise(9 * SECTOR_SIZE + 5)
    base, spilled = build_fanned_out(10, bytes(ROOT_SIZE), metadata)
    layout = Layout.parse(base)
    sectors = {sector_root(each): each for each in spilled}
    level = parse_base_sector(base).roots
    for size in spilled_level_sizes(layout):
        found = [(at, sectors[root][:length]) for at, root, length in sectors_of_level(level, size)]
        assert [at for at, _ in found] == [n * SECTOR_SIZE for n in range(len(found))]
        level = b"".join(data for _, data in found)
        assert len(level) == size
    assert level == bytes(ROOT_SIZE) + metadata
    for fanout, length in ((FANOUT_LIMIT + 1, 0), (0, METADATA_LIMIT + 1)):
        with pytest.raises(MalformedError, match="over its limit"):
            spilled_level_sizes(Layout(1, length, fanout))
