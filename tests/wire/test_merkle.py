"""The Merkle root of a sector, held against a tree that is hashed in full.

All of it holds for each form: the plain one, and each of the compiled ones that this CPU can run.
"""

import json
import runpy
import sys
import threading
import time
from functools import partial
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skymount.wire
from skymount.wire import merkle
from skymount.wire.merkle import (
    PLAIN,
    MerkleForm,
    joined_root,
    piece_groups,
    plain_groups,
    plain_join,
    sector_root,
)
from skymount.wire.skylink import SECTOR_SIZE

try:
    from skymount.wire import _merkle
except ImportError:
    _merkle = None

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())
ROOTS = {case["data"]: case["root"] for case in VECTORS["merkle_root"]}

SEGMENT = 64
GROUP = 256 * SEGMENT  # what the compiled form hashes at once
PATTERN = b"".join(blake2b(at.to_bytes(4, "big")).digest() for at in range(SECTOR_SIZE // SEGMENT))

needs_compiled = pytest.mark.skipif(_merkle is None, reason="skymount.wire._merkle is not built")


def needs_form(name):
    return pytest.mark.skipif(
        _merkle is None or name not in _merkle.FORMS, reason=f"_merkle is not built, or no {name}"
    )


COMPILED_FORMS = [
    pytest.param(name, marks=needs_form(name)) for name in ("portable", "avx2", "avx512")
]


def piece_root(chunk, piece, pieces, form):
    return joined_root([piece_groups(chunk, piece, pieces, form)], form)


def form_of(name):
    if name == "plain":
        return PLAIN
    number = _merkle.FORMS.index(name)
    return MerkleForm(
        lambda data, start, stride: _merkle.groups(data, start, stride, number),
        lambda roots: _merkle.join(roots, number),
    )


@pytest.fixture(params=["plain", *COMPILED_FORMS])
def form(request):
    return form_of(request.param)


def naive_root(sector: bytes) -> bytes:
    """Hash the whole tree from the top down, as the definition reads (docs/wire.md 2.4)."""
    assert len(sector) == SECTOR_SIZE
    return _naive_node(sector, {})


def _naive_node(data: bytes, known: dict[bytes, bytes]) -> bytes:
    if data not in known:
        half = len(data) // 2
        content = (
            b"\0" + data
            if len(data) == SEGMENT
            else b"\1" + _naive_node(data[:half], known) + _naive_node(data[half:], known)
        )
        known[data] = blake2b(content, digest_size=32).digest()
    return known[data]


def naive_piece(chunk: bytes, piece: int, pieces: int) -> bytes:
    """Deal a chunk's segments out like cards; return one hand as a sector (docs/wire.md 2.3)."""
    hand = bytearray()
    for number in range(0, len(chunk), SEGMENT):
        if number // SEGMENT % pieces == piece:
            hand += chunk[number : number + SEGMENT].ljust(SEGMENT, b"\0")
    return bytes(hand).ljust(SECTOR_SIZE, b"\0")


@pytest.mark.parametrize("data", [b"", bytes(1), bytes(SECTOR_SIZE)], ids=len)
def test_known_root_of_zeros(form, data):
    """A sector of zeros has the known root, however many of them are given (own computation)."""
    assert sector_root(data, form).hex() == ROOTS["sector of 4 MiB zero bytes"]


@pytest.mark.parametrize("data", [b"a", b"a".ljust(SECTOR_SIZE, b"\0")], ids=len)
def test_known_root_of_one_byte(form, data):
    """One byte has the known root, with and without its padding (own computation)."""
    assert sector_root(data, form).hex() == ROOTS["one byte 0x61 then zeros to 4 MiB"]


@pytest.mark.parametrize(
    "size",
    [
        *(1, 63, 64, 65, 127, 128, 129, 192, 4096, 4097),
        *(GROUP - 64, GROUP - 1, GROUP, GROUP + 1, GROUP + 64, 99_999),
        *(SECTOR_SIZE // 2, SECTOR_SIZE // 2 + 1),
    ],
)
def test_root_of_short_data(form, size):
    """Data of any length has the root of its zero-padded sector."""
    data = PATTERN[:size]
    assert sector_root(data, form) == naive_root(data.ljust(SECTOR_SIZE, b"\0"))


@pytest.mark.parametrize("size", [SECTOR_SIZE - 1, SECTOR_SIZE])
def test_root_of_a_full_sector(form, size):
    """A sector without padding to speak of has the root of the whole tree."""
    data = PATTERN[:size]
    assert sector_root(data, form) == naive_root(data.ljust(SECTOR_SIZE, b"\0"))


@pytest.mark.parametrize("gap", [1, 64, 8192, 2 * GROUP, SECTOR_SIZE - 2])
def test_zeros_inside_the_data_count(form, gap):
    """Zeros between other bytes are content: only those at the end are padding."""
    data = b"x" + bytes(gap) + b"y"
    assert sector_root(data, form) == naive_root(data.ljust(SECTOR_SIZE, b"\0"))
    assert sector_root(data, form) != sector_root(b"x", form)


def test_more_than_a_sector_has_no_root(form):
    """A caller's mistake is not hashed."""
    with pytest.raises(ValueError, match="do not fit"):
        sector_root(bytes(SECTOR_SIZE + 1), form)
    with pytest.raises(ValueError, match="do not fit"):
        piece_root(bytes(2 * SECTOR_SIZE + 1), 1, 2, form)


@pytest.mark.parametrize(("piece", "pieces"), [(-1, 2), (2, 2), (0, 0)])
def test_there_is_no_such_piece(form, piece, pieces):
    with pytest.raises(ValueError, match="no piece"):
        piece_root(b"", piece, pieces, form)


@pytest.mark.parametrize("size", [0, 1, 577, 640, 641, 100_000])
@pytest.mark.parametrize("pieces", [1, 2, 10])
def test_piece_roots_of_a_short_chunk(form, pieces, size):
    """Each data piece has the root of the segments that are dealt to it."""
    chunk = PATTERN[:size]
    assert [piece_root(chunk, piece, pieces, form) for piece in range(pieces)] == [
        naive_root(naive_piece(chunk, piece, pieces)) for piece in range(pieces)
    ]


def test_piece_root_of_a_full_chunk(form):
    """The last piece of a full chunk of ten sectors is interleaved over all of it."""
    chunk = b"".join(bytes([number]) + PATTERN[1:] for number in range(10))
    assert piece_root(chunk, 9, 10, form) == naive_root(naive_piece(chunk, 9, 10))


@pytest.mark.parametrize("size", [0, 1, 4 * GROUP, 4 * GROUP + 1, 100_000])
@pytest.mark.parametrize("pieces", [1, 2, 10])
@pytest.mark.parametrize("zeros", [0, GROUP, 3 * GROUP])
def test_a_root_by_parts(form, pieces, size, zeros):
    """Parts of whole groups, each hashed by itself, make the root; also where one is all zeros."""
    chunk = PATTERN[:size] + bytes(zeros * pieces) + PATTERN[: size // 2]
    step = 2 * GROUP * pieces
    parts = [chunk[at : at + step] for at in range(0, len(chunk), step)]
    for piece in range(pieces):
        groups = [piece_groups(part, piece, pieces, form) for part in parts]
        assert joined_root(groups, form) == piece_root(chunk, piece, pieces, form)


def test_parts_of_more_than_a_sector_have_no_root(form):
    part = piece_groups(PATTERN, 0, 1, form)
    with pytest.raises(ValueError, match="more groups"):
        joined_root([part, part[:32]], form)


@pytest.mark.parametrize("size", [0, 1, 100, GROUP + 100])
@pytest.mark.parametrize("skip", range(9))
def test_any_buffer_at_any_address(form, skip, size):
    """A view into other bytes, however it lies in memory, has the root of what it shows."""
    whole = bytearray(PATTERN[: size + 20])
    view = memoryview(whole)[skip : skip + size]
    expected = sector_root(bytes(view), form)
    assert sector_root(view, form) == expected
    assert sector_root(bytearray(view), form) == expected
    assert sector_root(view.toreadonly(), form) == expected


def test_a_view_is_measured_in_bytes(form):
    """What counts is the number of bytes, not of the view's items."""
    view = memoryview(PATTERN[:800]).cast("Q")
    assert sector_root(view, form) == sector_root(PATTERN[:800], form)
    with pytest.raises(ValueError, match="do not fit"):
        sector_root(memoryview(bytes(SECTOR_SIZE + 8)).cast("Q"), form)


def near(*sizes):
    """Give sizes around the boundaries of blocks, of the compiled form's lanes, and of groups."""
    return st.sampled_from(sizes).flatmap(lambda size: st.integers(max(0, size - 130), size + 130))


@st.composite
def chunks(draw):
    """Runs of content and of zeros: most of the boundaries lie where one turns into the other."""
    chunk = b""
    for size in draw(st.lists(near(0, 256, GROUP, 2 * GROUP, 5 * GROUP), max_size=4)):
        chunk += draw(st.sampled_from([bytes(size), PATTERN[:size], b"\0x" * (size // 2)]))
    return chunk


@pytest.mark.parametrize("name", COMPILED_FORMS)
@given(chunk=chunks(), pieces=st.integers(1, 12), data=st.data())
def test_the_forms_agree(name, chunk, pieces, data):
    """The compiled form says what the plain one says, for any start, stride and size."""
    start = data.draw(st.integers(0, pieces - 1)) * SEGMENT
    stride = pieces * SEGMENT
    groups, join = form_of(name)
    expected = plain_groups(chunk, start, stride)
    assert groups(chunk, start, stride) == expected
    assert join(expected) == plain_join(expected)


@pytest.mark.parametrize("name", COMPILED_FORMS)
@given(
    size=near(SECTOR_SIZE // 2, SECTOR_SIZE).map(partial(min, SECTOR_SIZE)),
    hole=st.integers(0, SECTOR_SIZE),
    length=st.sampled_from([0, 1, SEGMENT, GROUP, SECTOR_SIZE // 2]),
)
@settings(max_examples=8)
def test_the_forms_agree_on_large_data(name, size, hole, length):
    content = bytearray(PATTERN[:size])
    content[hole : hole + length] = bytes(len(content[hole : hole + length]))
    groups, join = form_of(name)
    expected = plain_groups(content, 0, SEGMENT)
    assert groups(content, 0, SEGMENT) == expected
    assert join(expected) == plain_join(expected)


@needs_compiled
@pytest.mark.parametrize(
    ("size", "start", "stride"),
    [
        (0, -1, 64),
        (100, -64, 64),
        (100, 0, 63),
        (100, 0, 0),
        (100, 0, -64),
        (SECTOR_SIZE + 1, 0, 64),
    ],
)
def test_the_compiled_form_refuses_what_is_no_sector(size, start, stride):
    """It checks for itself what its memory depends on."""
    with pytest.raises(ValueError, match="not those of one sector"):
        _merkle.groups(bytes(size), start, stride)


@needs_compiled
@pytest.mark.parametrize("size", [1, 31, 33, 257 * 32])
def test_the_compiled_form_refuses_what_are_no_roots(size):
    with pytest.raises(ValueError, match="not those of one sector"):
        _merkle.join(bytes(size))


@needs_compiled
@pytest.mark.parametrize("start", [100, 101, sys.maxsize])
@pytest.mark.parametrize("stride", [64, sys.maxsize])
def test_the_compiled_form_finds_nothing_beyond_the_end(start, stride):
    assert _merkle.groups(b"x" * 100, start, stride) == b""
    assert _merkle.groups(b"x" * 64, 0, stride) == plain_groups(b"x" * 64, 0, SEGMENT)


@needs_compiled
def test_the_compiled_form_is_one_of_those_that_run_here():
    """The fastest one unless told otherwise; what every CPU can run is there, and is the last."""
    assert _merkle.FORMS[-1] == "portable"
    for number in (-1, len(_merkle.FORMS)):
        with pytest.raises(ValueError, match="no such form"):
            _merkle.groups(b"", 0, SEGMENT, number)
        with pytest.raises(ValueError, match="no such form"):
            _merkle.join(b"", number)


@needs_compiled
def test_the_compiled_form_takes_bytes_only():
    with pytest.raises(TypeError):
        _merkle.groups("text", 0, SEGMENT)
    with pytest.raises(TypeError):
        _merkle.join("text")
    with pytest.raises(OverflowError):
        _merkle.groups(b"", sys.maxsize + 1, SEGMENT)


@needs_compiled
def test_the_compiled_form_lets_other_threads_run():
    """A thread that waits for the interpreter gets it from a hash, long before its turn comes."""
    gate, ran = threading.Lock(), []

    def other():
        with gate:
            ran.append(True)

    interval = sys.getswitchinterval()
    gate.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    time.sleep(0.05)  # until it waits at the gate
    sys.setswitchinterval(1000)
    try:
        gate.release()
        for _ in range(100):
            _merkle.groups(PATTERN, 0, SEGMENT)
            if ran:
                break
        in_time = bool(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert in_time


@needs_compiled
def test_the_compiled_form_is_the_chosen_one():
    assert merkle.COMPILED


def test_the_plain_form_serves_where_nothing_was_compiled(monkeypatch):
    """Without the extension the module has the same functions with the same answers."""
    monkeypatch.setitem(sys.modules, "skymount.wire._merkle", None)
    monkeypatch.delattr(skymount.wire, "_merkle", raising=False)
    module = runpy.run_path(merkle.__file__)
    assert not module["COMPILED"]
    assert module["FASTEST"] == (module["plain_groups"], module["plain_join"])
    assert module["sector_root"](b"a").hex() == ROOTS["one byte 0x61 then zeros to 4 MiB"]
