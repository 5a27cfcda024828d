"""The table of a skyfile's files: what went in comes out, and damage is found, never believed."""

import zlib
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skymount.content.model.listing import DIRECTORY, Listing, unpack
from skymount.errors import MalformedError
from skymount.wire.metadata import Metadata, Subfile
from tests.fakes.skyfiles import listing_of

SIZE = 1000
ELEMENTS = st.sampled_from(["a", "b", "a b", "é", "..", "", "c\0", "x" * 256, "\ud800"])
PATHS = st.lists(ELEMENTS, min_size=1, max_size=4).map("/".join)
EXTENTS = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE))
FILES = st.dictionaries(
    PATHS, st.tuples(EXTENTS, st.sampled_from([0, 0o644, 0o755]), st.text(max_size=5)), max_size=12
)


def of(files: dict[str, tuple[tuple[int, int], int, str]]) -> Listing:
    """Return the listing of files: extent, mode and content type by path."""
    subfiles = {
        path: Subfile(mode, path, contenttype, *extent)
        for path, (extent, mode, contenttype) in files.items()
    }
    return listing_of(Metadata("site", SIZE, subfiles=subfiles), SIZE)


def shown(found: Listing) -> dict[str, int]:
    """Return the rows of the files by their paths."""
    return {
        found.path(row).decode(): row for row in range(len(found)) if found.modes[row] != DIRECTORY
    }


@settings(derandomize=True, database=None, deadline=None)
@given(files=FILES)
def test_round_trip(files: dict[str, tuple[tuple[int, int], int, str]]):
    """What the metadata says of a file is what the listing says, shown or not."""
    found = of(files)
    rows = shown(found)
    if files:
        assert sorted([*rows, *(path for path, _ in found.hidden)]) == sorted(files)
    for path, (extent, mode, contenttype) in files.items():
        assert found.record(path) == (*extent, mode)
        if path in rows:
            assert found.content_type(rows[path]) == contenttype
    again = unpack(bytes(found.packed))
    assert (again.filename, again.size, again.records) == ("site", SIZE, len(files))
    assert shown(again) == rows
    assert list(again.hidden) == list(found.hidden)


@settings(derandomize=True, database=None, deadline=None)
@given(files=FILES)
def test_directories(files: dict[str, tuple[tuple[int, int], int, str]]):
    """Each directory lists what lies in it, by name, and finds that and nothing else."""
    found = of(files)
    reached = {0}
    for row in range(len(found)):
        children = list(found.children(row))
        names = [found.names[child] for child in children]
        assert names == sorted(set(names))
        assert [found.find(row, name) for name in names] == children
        assert found.find(row, b"nothing") is None
        assert all(found.parents[child] == row for child in children)
        reached.update(children)
    assert reached == set(range(len(found)))


@settings(derandomize=True, database=None, deadline=None)
@given(files=FILES, start=st.integers(0, 100))
def test_listing_goes_on_anywhere(files: dict[str, tuple[tuple[int, int], int, str]], start: int):
    """Whoever seeks to a number that no listing gave still sees children of the directory only."""
    found = of(files)
    for row in range(len(found)):
        children = list(found.children(row))
        rest = [child for child in children if found.ends[child] > start]
        assert list(found.children(row, start)) == rest
        assert [child for run in found.runs(row, start) for child in run] == rest


def test_runs_of_neighbours():
    """Files that lie side by side are listed together, a directory with those before it."""
    names = [f"{number:04}" for number in range(3000)]
    directories = set(names[100:110] + names[-1:])
    paths = [f"{name}/x" if name in directories else name for name in names]
    found = of(dict.fromkeys(paths, ((0, 1), 420, "")))
    runs = list(found.runs(0))
    rows = list(found.children(0))
    assert [row for run in runs for row in run] == rows
    assert [name.decode() for run in runs for name in found.names.run(run)] == names
    assert len(runs) < 30
    for run in runs:
        assert all(found.modes[row] != DIRECTORY for row in run[:-1])


@settings(derandomize=True, database=None, deadline=None)
@given(files=FILES, position=st.integers(0, 2 * SIZE))
def test_extents_cover_what_the_files_cover(
    files: dict[str, tuple[tuple[int, int], int, str]], position: int
):
    """From any position on: every byte that lies in a file lies in one of the extents, in order."""
    if not files:  # then there is a file without a record
        return
    found = list(of(files).extents_from(position))
    offsets, ends = [at for _, at, _ in found], [at + size for _, at, size in found]
    assert offsets == sorted(offsets)
    assert ends == sorted(set(ends))
    for path, offset, size in found:
        assert files[path][0] == (offset, size)
    for (offset, size), _, _ in files.values():
        for byte in range(max(offset, position), offset + size):
            at = bisect_right(ends, byte)
            assert offsets[at] <= byte < ends[at]


PACKED = bytes(of({"a/b": ((0, 5), 0o644, "text/plain"), "..": ((5, 5), 0, "")}).packed)


def test_cut_off():
    """A listing that was cut off anywhere is not read."""
    for length in range(len(PACKED)):
        with pytest.raises(MalformedError):
            unpack(PACKED[:length])


def test_damaged():
    """Neither is one with any bit changed."""
    for at in range(8 * len(PACKED)):
        damaged = bytearray(PACKED)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(MalformedError):
            unpack(bytes(damaged))


@settings(derandomize=True, database=None, deadline=None)
@given(data=st.binary(max_size=500))
def test_garbage(data: bytes):
    """Neither is anything else, nor one with something behind it."""
    for wrong in (data, PACKED + (data or b"\0"), PACKED[:24] + data):
        with pytest.raises(MalformedError):
            unpack(wrong)


@pytest.mark.parametrize("at", range(64, 64 + 20 * 8, 8), ids=lambda at: f"column {(at - 64) // 8}")
def test_senseless_length(at: int):
    """A length that makes no sense is refused or changes nothing, also if the checksum is right."""
    for length in (1, 7, 1 << 40):
        senseless = bytearray(PACKED)
        senseless[at : at + 8] = length.to_bytes(8, "little")
        senseless[20:24] = zlib.crc32(senseless[24:]).to_bytes(4, "little")
        try:
            assert bytes(unpack(bytes(senseless)).packed) == senseless
        except MalformedError:
            pass


@pytest.mark.parametrize("path", ["{n:07}.jpeg", "d{d}/f{n}"], ids=["flat", "in directories"])
def test_bytes_of_an_entry(path: str):
    """S10: In memory a file or directory takes 40 bytes and its name."""
    count = 20_000
    subfiles = {path.format(n=n, d=n // 100): Subfile(offset=n, len=1) for n in range(count)}
    found = listing_of(Metadata("d", count, subfiles=subfiles))
    assert len(found) > count
    names = sum(len(found.names[row]) for row in range(len(found)))
    assert len(found.packed) - names < 40 * len(found) + 1000


class Counted:
    """A column that counts how often it is looked at."""

    looks = 0

    def __init__(self, column: memoryview) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: int) -> int:
        Counted.looks += 1
        found: int = self._column[index]
        return found


@pytest.mark.parametrize("count", [1_000, 100_000])
def test_looks_at_few_rows(count: int):
    """A lookup looks at as many rows as the number of files has bits, a listing at each once."""
    subfiles = {f"{n:07}": Subfile(offset=n, len=1) for n in range(count)}
    found = listing_of(Metadata("d", count, subfiles=subfiles))
    counted = {name: Counted(getattr(found.columns, name)) for name in ("parents", "ends", "cover")}
    numbers = (found.size, found.records, found.rejected, found.mode)
    found = Listing(found.packed, numbers, found.columns._replace(**counted))

    def looks() -> int:
        before, Counted.looks = Counted.looks, 0
        return before

    looks()
    for n in range(0, count, 997):
        assert found.find(0, b"%07d" % n) == n + 1
        assert looks() <= 3 * count.bit_length() + 3
        assert next(found.extents_from(n))[1] == n
        assert looks() <= 3 * count.bit_length() + 3
    assert sum(1 for _ in found.children(0)) == count
    assert looks() <= count + 3
