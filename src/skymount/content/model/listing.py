"""The table of a skyfile's files and directories, used in the form in which it is stored. No IO.

A million files are one block of memory of some 60 MB, not four million objects.
"""

import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

from skymount.errors import MalformedError

DIRECTORY = 1 << 15
"""In the column of modes: the row is a directory."""

_MAGIC = f"listing 1 {sys.byteorder}".encode().ljust(20)
"""Version of the format, and byte order: columns are stored as the processor reads them."""

_CHECKED = struct.Struct("=20sI")
"""Magic, and the CRC-32 of everything after it."""

_NUMBERS = struct.Struct("=QQQQQ")
"""Length of the packed listing, payload size, records, rejected records, mode."""

_FIRST_RUN, _RUN_GROWTH, _LONGEST_RUN = 8, 4, 512
"""Rows that are listed together; the kernel takes 20 to 500 names at a time."""

Numbers: TypeAlias = "array[int]"
Column: TypeAlias = "bytes | bytearray | array[int]"
Packed: TypeAlias = bytes | memoryview

C = TypeVar("C")


class Columns(NamedTuple, Generic[C]):
    """The columns of a listing, in the order in which they are stored."""

    filename: C
    names: C
    name_starts: C
    parents: C
    ends: C
    modes: C
    types: C
    offsets: C
    sizes: C
    type_names: C
    type_starts: C
    hidden_paths: C
    hidden_starts: C
    hidden_reasons: C
    hidden_modes: C
    hidden_offsets: C
    hidden_sizes: C
    reasons: C
    reason_starts: C
    cover: C


_Kind: TypeAlias = Literal["B", "H", "I", "Q"]
_KINDS: Columns[_Kind] = Columns(*"BBIIIHIQQBIBIIHQQBII")
"""The type of each column, as `array` names it."""

_LENGTHS = struct.Struct(f"={len(_KINDS)}Q")
"""Bytes in each column. Each begins at a multiple of 8, the first one after this table."""

_START = _CHECKED.size + _NUMBERS.size + _LENGTHS.size


class Texts:
    """Short texts in one buffer; text i lies between starts i and i + 1."""

    __slots__ = ("_blob", "_starts")

    def __init__(self, blob: memoryview, starts: memoryview) -> None:
        self._blob = blob
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._blob[self._starts[index] : self._starts[index + 1]])

    def run(self, rows: range) -> list[bytes]:
        """Return the texts of neighbouring rows; that costs little more than one."""
        starts = self._starts[rows.start : rows.stop + 1].tolist()
        first = starts[0]
        blob = bytes(self._blob[first : starts[-1]])
        return [blob[start - first : stop - first] for start, stop in pairwise(starts)]

    def text(self, index: int) -> str:
        """Return a text as it stood in the metadata; it may have lone surrogates."""
        return self[index].decode("utf-8", "surrogatepass")


def encode(text: str) -> bytes:
    """Encode a text as `Texts` holds it."""
    return text.encode("utf-8", "surrogatepass")


class Hidden:
    """(path, reason) of each file that cannot be shown."""

    def __init__(self, paths: Texts, reason_numbers: memoryview, reasons: Texts) -> None:
        self._paths = paths
        self._reason_numbers = reason_numbers
        self._reasons = reasons

    def __len__(self) -> int:
        return len(self._reason_numbers)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> tuple[str, str]:
        return self.path(index), self._reasons.text(self._reason_numbers[index])

    def path(self, index: int) -> str:
        return self._paths.text(index)


class Listing:
    """The files of a skyfile, and the directories that their paths make.

    Row 0 is the root. The content of a directory follows it, sorted by the names' bytes, so row
    numbers depend on the metadata only. Columns are indexed by row.
    """

    def __init__(
        self, packed: memoryview, numbers: Sequence[int], columns: Columns[memoryview]
    ) -> None:
        self.packed = packed
        """All of it, as it is stored."""
        self.size, self.records, self.rejected, self.mode = numbers
        """Bytes in the payload; files in the metadata, 0 for a raw upload; how many of them were
        rejected, which are the first hidden ones and have no extent; permission bits of the whole
        skyfile, 0 for none.
        """
        self.filename = bytes(columns.filename).decode("utf-8", "surrogatepass")
        self.names = Texts(columns.names, columns.name_starts)
        self.parents = columns.parents
        """Row of the directory above; the root is its own."""
        self.ends = columns.ends
        """The row after everything below a row."""
        self.modes = columns.modes
        """Permission bits as in the metadata, 0 for none; or `DIRECTORY`."""
        self.offsets = columns.offsets
        self.sizes = columns.sizes
        reasons = Texts(columns.reasons, columns.reason_starts)
        paths = Texts(columns.hidden_paths, columns.hidden_starts)
        self.hidden = Hidden(paths, columns.hidden_reasons, reasons)
        self._type_names = Texts(columns.type_names, columns.type_starts)
        self.columns = columns

    def __len__(self) -> int:
        return len(self.parents)

    def content_type(self, row: int) -> str:
        return self._type_names.text(self.columns.types[row])

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
        """Yield the rows directly in a directory, from row `start` on."""
        return chain.from_iterable(self.runs(directory, start))

    def runs(self, directory: int, start: int = 0) -> Iterator[range]:
        """Yield the same as runs of neighbours; only the last row of a run may be a directory. The
        first runs are short, as the caller may want only a few rows.
        """
        modes, ends = self.modes, self.ends
        stop = ends[directory]
        row = max(start, directory + 1)
        if row < stop:  # a seek may come with any number
            row = self._above(row, directory)
        length = _FIRST_RUN
        while row < stop:
            found = modes[row : min(row + length, stop)].tolist()
            if DIRECTORY in found:
                length = _FIRST_RUN
                run = range(row, row + found.index(DIRECTORY) + 1)
            else:
                length = min(length * _RUN_GROWTH, _LONGEST_RUN)
                run = range(row, row + len(found))
            yield run
            row = ends[run[-1]]

    def _above(self, row: int, directory: int) -> int:
        """Return the row directly in a directory that is, or contains, a row below it."""
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
        """Return (offset, size, mode) of a file, shown or hidden, by its path."""
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
                return *self._extent(len(self) + at), self.columns.hidden_modes[at]
        return None

    def extents_from(self, position: int) -> Iterator[tuple[str, int, int]]:
        """Yield (path, offset, size) of files from a position on, in order; there may be gaps."""
        cover, rows = self.columns.cover, len(self)

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
        columns, at = self.columns, number - rows
        return columns.hidden_offsets[at], columns.hidden_sizes[at]


class TextColumn:
    """Collects texts in one buffer; as objects they would take far more memory."""

    def __init__(self) -> None:
        self._blob = bytearray()
        self._starts: Numbers = array("I", [0])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._blob[self._starts[index] : self._starts[index + 1]])

    def append(self, text: bytes) -> None:
        self._blob += text
        self._starts.append(len(self._blob))

    def pop(self) -> None:
        self._starts.pop()
        del self._blob[self._starts[-1] :]

    def columns(self) -> tuple[bytearray, Numbers]:
        """Return the texts' buffer and their starts."""
        return self._blob, self._starts


class DistinctTexts(TextColumn):
    """Collects texts that mostly repeat; each distinct text has a number."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self)
            self.append(encode(text))
        return found


def pack(
    size: int, records: int, rejected: int, mode: int, columns: Columns[Column]
) -> list[Column]:
    """Return what `unpack` reads, as parts to be joined."""
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
    """Read a packed listing, which stays in use; MalformedError when it is damaged.

    The checksum of a million files takes 50 ms without the GIL. `is_checked` skips it.
    """
    view = memoryview(data).toreadonly().cast("B")
    if len(view) < _START:
        raise MalformedError("a listing was cut off")
    magic, check = _CHECKED.unpack_from(view)
    if magic != _MAGIC:
        raise MalformedError("it is no listing, or one of another version")
    total, *numbers = _NUMBERS.unpack_from(view, _CHECKED.size)
    if total != len(view) or not (is_checked or zlib.crc32(view[_CHECKED.size :]) == check):
        raise MalformedError("a listing is damaged")
    lengths = _LENGTHS.unpack_from(view, _CHECKED.size + _NUMBERS.size)
    at, columns = _START, []
    try:
        for kind, length in zip(_KINDS, lengths, strict=True):
            columns.append(view[at : at + length].cast(kind))
            at += length + -length % 8
        return Listing(view, numbers, Columns(*columns))
    except (TypeError, ValueError):  # half a number in a column, a file name that is no text
        raise MalformedError("a listing makes no sense") from None
