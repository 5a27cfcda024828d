"""Owns the table of a skyfile's files: which there are, where in the payload, in what directories.

One row for each file and directory, in columns, as it is stored and as it is used: a million files
are one block of memory of some 60 MB, not four million objects. `tabulate` makes it. No IO.
"""

import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, overload

from skymount.errors import MalformedError

DIRECTORY = 1 << 15
"""In the column of modes: the row is a directory."""

_MAGIC = f"listing 1 {sys.byteorder}".encode().ljust(20)
"""The format's version, and the order of bytes: columns are stored as the processor reads them."""

_CHECKED = struct.Struct("=20sI")
"""Magic, and the CRC-32 of all that follows it."""

_NUMBERS = struct.Struct("=QQQQQ")
"""Length of all of it, payload size, records in the metadata, rejected ones, mode."""

_Kind: TypeAlias = Literal["B", "H", "I", "Q"]
_COLUMNS: tuple[_Kind, ...] = (
    *("B", "B", "I", "I", "I", "H", "I", "Q", "Q"),  # what is shown
    *("B", "I", "B", "I", "I", "H", "Q", "Q"),  # content types; what is hidden
    *("B", "I", "I"),  # the reasons; the cover
)
"""The type of each column, as `array` names them, in the order of `Columns`."""

_LENGTHS = struct.Struct(f"={len(_COLUMNS)}Q")
"""Bytes in each column; each begins at a multiple of 8, the first after this table."""

_START = _CHECKED.size + _NUMBERS.size + _LENGTHS.size

_SHORTEST_RUN, _RUN_GROWTH, _LONGEST_RUN = 8, 4, 512
"""Rows that are listed together; the kernel takes 20 to 500 names at a time."""

Numbers: TypeAlias = "array[int]"
Column: TypeAlias = "bytes | bytearray | array[int]"
Packed: TypeAlias = bytes | memoryview


class Texts:
    """Many short texts one after another; text i lies between starts i and i + 1."""

    __slots__ = ("_blob", "_starts")

    def __init__(self, blob: memoryview, starts: memoryview) -> None:
        self._blob = blob
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._blob[self._starts[index] : self._starts[index + 1]])

    def run(self, rows: range) -> list[bytes]:
        """Return neighbouring ones: many for little more than one costs."""
        starts = self._starts[rows.start : rows.stop + 1].tolist()
        first = starts[0]
        blob = bytes(self._blob[first : starts[-1]])
        return [blob[start - first : stop - first] for start, stop in pairwise(starts)]

    def text(self, index: int) -> str:
        """Return one as it stood in the metadata, which may be no valid Unicode."""
        return self[index].decode("utf-8", "surrogatepass")


def encode(text: str) -> bytes:
    """Return the bytes of a text as `Texts` holds them."""
    return text.encode("utf-8", "surrogatepass")


class Hidden(Sequence[tuple[str, str]]):
    """(path, reason) of each file that cannot be shown."""

    __slots__ = ("_paths", "_reasons", "_why")

    def __init__(self, paths: Texts, why: memoryview, reasons: Texts) -> None:
        self._paths = paths
        self._why = why
        self._reasons = reasons

    def __len__(self) -> int:
        return len(self._why)

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, str]]: ...

    def __getitem__(self, index: int | slice) -> tuple[str, str] | list[tuple[str, str]]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return self.path(at), self._reasons.text(self._why[at])

    def path(self, index: int) -> str:
        """Return the path alone."""
        return self._paths.text(index)


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """The files of a skyfile, and the directories that their paths make.

    Row 0 is the root. What a directory holds follows it, each directory sorted by the names' bytes,
    so a row's number depends on nothing but the metadata. Columns are indexed by row.
    """

    packed: memoryview
    """All of it, to be stored; `unpack` reads it."""
    size: int
    """Bytes in the payload."""
    records: int
    """Files that the metadata lists, whether they can be shown or not; 0 for a raw upload."""
    rejected: int
    """How many of them make no sense: the first that are hidden, without an extent."""
    filename: str
    """Of the whole skyfile, whatever it holds."""
    mode: int
    """Permission bits of the whole skyfile; 0 when there are none."""
    names: Texts
    parents: memoryview
    """Row of the directory above; the root is its own."""
    ends: memoryview
    """The row after all that the row holds; for a file the next row."""
    modes: memoryview
    """Permission bits as the metadata has them, 0 for none; or `DIRECTORY`."""
    offsets: memoryview
    """Of files, in bytes of the payload."""
    sizes: memoryview
    hidden: Hidden
    _types: memoryview
    _type_names: Texts
    _hidden_modes: memoryview
    _hidden_offsets: memoryview
    _hidden_sizes: memoryview
    _cover: memoryview
    """Rows, and behind them the hidden files, that cover the payload: by offset, none of them
    inside another, so that both their offsets and their ends ascend."""

    def __len__(self) -> int:
        return len(self.parents)

    def content_type(self, row: int) -> str:
        """Return a file's content type; empty when there is none."""
        return self._type_names.text(self._types[row])

    def find(self, directory: int, name: bytes) -> int | None:
        """Return the row of a name in a directory: a binary search."""
        low, high = directory + 1, self.ends[directory]
        while low < high:
            row = self._above((low + high) // 2, directory)
            found = self.names[row]
            if found == name:
                return row
            if found < name:
                low = self.ends[row]
            else:
                high = row
        return None

    def children(self, directory: int, start: int = 0) -> Iterator[int]:
        """Yield the rows of what lies directly in a directory, from a row on."""
        ends = self.ends
        stop = ends[directory]
        row = max(start, directory + 1)
        if row < stop:  # who seeks in a directory may come with any number
            row = self._above(row, directory)
        while row < stop:
            yield row
            row = ends[row]

    def runs(self, directory: int, start: int = 0) -> Iterator[range]:
        """Yield the same as runs of neighbours; only the last row of a run may be a directory.

        The first ones are short: who lists may want no more than a few.
        """
        modes, ends = self.modes, self.ends
        stop = ends[directory]
        row = max(start, directory + 1)
        if row < stop:
            row = self._above(row, directory)
        length = _SHORTEST_RUN
        while row < stop:
            found = modes[row : min(row + length, stop)].tolist()
            if DIRECTORY in found:
                length = _SHORTEST_RUN
                run = range(row, row + found.index(DIRECTORY) + 1)
            else:
                length = min(length * _RUN_GROWTH, _LONGEST_RUN)
                run = range(row, row + len(found))
            yield run
            row = ends[run[-1]]

    def _above(self, row: int, directory: int) -> int:
        """Return what lies directly in a directory and is, or holds, a row somewhere below it."""
        parents = self.parents
        while (parent := parents[row]) != directory:
            row = parent
        return row

    def path(self, row: int) -> bytes:
        """Return the path of a row; empty for the root."""
        names: list[bytes] = []
        while row:
            names.append(self.names[row])
            row = self.parents[row]
        return b"/".join(reversed(names))

    def record(self, path: str) -> tuple[int, int, int] | None:
        """Return (offset, size, mode) of a file by its path, whether it is shown or not."""
        row = 0
        for name in encode(path).split(b"/"):
            found = self.find(row, name)
            if found is None:
                break
            row = found
        else:
            if self.modes[row] != DIRECTORY:
                return self.offsets[row], self.sizes[row], self.modes[row]
        for at in range(self.rejected, len(self.hidden)):
            if self.hidden.path(at) == path:
                return self._hidden_offsets[at], self._hidden_sizes[at], self._hidden_modes[at]
        return None

    def extents_from(self, position: int) -> Iterator[tuple[str, int, int]]:
        """Yield (path, offset, size) of the files that hold the payload from a position on.

        In order, and as far as there are any: there may be gaps.
        """
        cover, rows = self._cover, len(self)

        def end(at: int) -> int:
            offset, size = self._extent(cover[at])
            return offset + size

        for at in range(bisect_right(range(len(cover)), position, key=end), len(cover)):
            number = cover[at]
            shown = number < rows
            path = self.path(number).decode() if shown else self.hidden.path(number - rows)
            yield path, *self._extent(number)

    def _extent(self, number: int) -> tuple[int, int]:
        """Return (offset, size) of a row or, behind the rows, of a hidden file."""
        rows = len(self)
        if number < rows:
            return self.offsets[number], self.sizes[number]
        return self._hidden_offsets[number - rows], self._hidden_sizes[number - rows]


class TextColumn:
    """Texts that are being collected, one after another: as objects they would take far more."""

    def __init__(self) -> None:
        self._blob = bytearray()
        self._starts: Numbers = array("I", [0])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._blob[self._starts[index] : self._starts[index + 1]])

    def append(self, text: bytes) -> None:
        """Add a text."""
        self._blob += text
        self._starts.append(len(self._blob))

    def pop(self) -> None:
        """Take the last one out."""
        self._starts.pop()
        del self._blob[self._starts[-1] :]

    def numbers(self) -> tuple[bytearray, Numbers]:
        """Return the two columns that hold them."""
        return self._blob, self._starts


class DistinctTexts(TextColumn):
    """The same of texts that mostly repeat each other; each has its number."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text, a new one if it is new."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self)
            self.append(encode(text))
        return found


def pack(
    size: int, records: int, rejected: int, mode: int, columns: Sequence[Column]
) -> list[Column]:
    """Return the parts of what `unpack` reads, which are to be joined; columns in its order."""
    parts: list[Column] = []
    lengths = [memoryview(column).nbytes for column in columns]
    for column, length in zip(columns, lengths, strict=True):
        parts += [column, bytes(-length % 8)]
    total = _START + sum(length + -length % 8 for length in lengths)
    head = _NUMBERS.pack(total, size, records, rejected, mode) + _LENGTHS.pack(*lengths)
    check = zlib.crc32(head)
    for part in parts:
        check = zlib.crc32(part, check)
    return [_CHECKED.pack(_MAGIC, check), head, *parts]


def unpack(data: Packed, *, is_checked: bool = False) -> Listing:
    """Read a packed listing, which stays in use; MalformedError when it is damaged or another's.

    Takes time for the check sum, 50 ms for a million files, in which other threads go on; none for
    what `is_checked` already, or was never out of our hands.
    """
    view = memoryview(data).toreadonly().cast("B")
    if len(view) < _START:
        raise MalformedError("a listing was cut off")
    magic, check = _CHECKED.unpack_from(view)
    if magic != _MAGIC:
        raise MalformedError("it is no listing, or one of another version")
    total, size, records, rejected, mode = _NUMBERS.unpack_from(view, _CHECKED.size)
    if total != len(view) or not (is_checked or zlib.crc32(view[_CHECKED.size :]) == check):
        raise MalformedError("a listing is damaged")
    lengths = _LENGTHS.unpack_from(view, _CHECKED.size + _NUMBERS.size)
    at, columns = _START, []
    try:
        for kind, length in zip(_COLUMNS, lengths, strict=True):
            columns.append(view[at : at + length].cast(kind))
            at += length + -length % 8
        return _listing(view, (size, records, rejected, mode), columns)
    except (TypeError, ValueError):  # half a number in a column, a file name that is no text
        raise MalformedError("a listing makes no sense") from None


def _listing(
    packed: memoryview, numbers: tuple[int, int, int, int], columns: Sequence[memoryview]
) -> Listing:
    """Give each number and each column its name."""
    size, records, rejected, mode = numbers
    filename, names, name_starts, parents, ends, modes, types, offsets, sizes = columns[:9]
    type_names, type_starts, hidden, hidden_starts, why, *of_hidden = columns[9:17]
    reasons, reason_starts, cover = columns[17:]
    return Listing(
        packed=packed,
        size=size,
        records=records,
        rejected=rejected,
        filename=bytes(filename).decode("utf-8", "surrogatepass"),
        mode=mode,
        names=Texts(names, name_starts),
        parents=parents,
        ends=ends,
        modes=modes,
        offsets=offsets,
        sizes=sizes,
        hidden=Hidden(Texts(hidden, hidden_starts), why, Texts(reasons, reason_starts)),
        _types=types,
        _type_names=Texts(type_names, type_starts),
        _hidden_modes=of_hidden[0],
        _hidden_offsets=of_hidden[1],
        _hidden_sizes=of_hidden[2],
        _cover=cover,
    )
