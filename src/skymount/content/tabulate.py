"""Owns making a listing of metadata: which paths can be files, which directories they make, and why
what is left out is. Pure, but for `main`, with which it is a program of its own.

What cannot be shown is listed with the reason, never dropped in silence, never altered.
"""

import re
import sys
from array import array
from collections.abc import Iterable
from functools import partial

from skymount.content.listing import (
    DIRECTORY,
    Column,
    DistinctTexts,
    Numbers,
    TextColumn,
    encode,
    pack,
)
from skymount.content.program import run
from skymount.errors import MalformedError
from skymount.wire.metadata import INTEGER_LIMIT, Metadata, Subfile, parse_metadata

NAME_LIMIT = 255
"""Bytes in one name (NAME_MAX)."""

PATH_LIMIT = 4095
"""Bytes in a path inside a skylink (PATH_MAX); one beyond it could be listed but not opened."""

ROWS_LIMIT = 3 << 19
"""Files and directories of one listing; what is over it is listed as not shown. A few bytes of
metadata can ask for two thousand directories.
"""

_BAD_ELEMENT = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)")
_LOST = "there is a directory of the same name"


def tabulate(raw: bytes, size: int | None = None, answered: int | None = None) -> bytes:
    """Return the packed listing of metadata JSON; MalformedError when there is no making it.

    `size` is the payload's when that is known, `answered` what it is believed to be where the
    metadata does not say.
    """
    metadata = parse_metadata(raw)
    if size is None:
        size = metadata.payload_size if metadata.payload_size is not None else answered
    if size is None:
        raise MalformedError("neither the metadata nor the answer tells the size")
    if size >= INTEGER_LIMIT:
        raise MalformedError("a size that no file can have")
    return listing_of(metadata, size)


def listing_of(metadata: Metadata, size: int) -> bytes:
    """Return the packed listing of metadata, and a payload of `size` bytes."""
    rows = _Rows(size)
    for path, reason in metadata.rejected:
        rows.hide(path, reason)
    for path, sub in _files(metadata, size):
        rows.add(path, sub)
    return rows.pack(metadata)


def _files(metadata: Metadata, size: int) -> Iterable[tuple[str, Subfile]]:
    """Return each file by its path, those that share a directory one after another.

    Sorted by element: the order of a directory's listing, whatever the order in the JSON.
    """
    if metadata.subfiles:
        return sorted(metadata.subfiles.items(), key=lambda item: item[0].replace("/", "\0"))
    if metadata.rejected:  # there were some, so this is not a single file
        return []
    name = metadata.filename
    return [(name, Subfile(mode=metadata.mode, filename=name, len=size))]


def _objection(path: bytes) -> str | None:
    """Return why no file can have that path; whether it is UTF-8 is known before."""
    if len(path) > PATH_LIMIT:
        return f"the path is longer than {PATH_LIMIT} bytes"
    if len(path) > NAME_LIMIT and max(map(len, path.split(b"/"))) > NAME_LIMIT:
        return f"a name in it is longer than {NAME_LIMIT} bytes"
    if b"\0" in path:
        return "the path has a NUL in it"
    if _BAD_ELEMENT.search(path):
        return "the path has an empty, '.' or '..' element"
    return None


class _Rows:
    """The rows that are there so far. Files must come sorted by the elements of their paths."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._names = TextColumn()
        self._parents: Numbers = array("I")
        self._ends: Numbers = array("I")
        self._modes: Numbers = array("H")
        self._types: Numbers = array("I")
        self._offsets: Numbers = array("Q")
        self._sizes: Numbers = array("Q")
        self._type_names = DistinctTexts()
        self._hidden = TextColumn()
        self._why: Numbers = array("I")
        self._hidden_modes: Numbers = array("H")
        self._hidden_offsets: Numbers = array("Q")
        self._hidden_sizes: Numbers = array("Q")
        self._reasons = DistinctTexts()
        self._parent = b""
        """Path of the directory that the last file was added to."""
        self._open: list[int] = []
        """Rows of the directories from the root to that one."""
        self._open_directory(0, b"")

    def hide(self, path: str, reason: str, sub: Subfile | None = None) -> None:
        """Take note of a file that cannot be shown."""
        self._hidden.texts.append(encode(path))
        self._why.append(self._reasons.number(reason))
        self._hidden_modes.append(sub.mode if sub else 0)
        self._hidden_offsets.append(sub.offset if sub else 0)
        self._hidden_sizes.append(sub.len if sub else 0)

    def add(self, path: str, sub: Subfile) -> None:
        """Add a file, and the directories above it, or hide it with the reason."""
        reason = "it reaches beyond the content" if sub.offset + sub.len > self._size else None
        try:
            raw = path.encode()
        except UnicodeEncodeError:
            self.hide(path, reason or "the path is not valid UTF-8", sub)
            return
        reason = reason or _objection(raw)
        parent, _, name = raw.rpartition(b"/")
        is_full = len(self._parents) >= ROWS_LIMIT
        if reason is None and (is_full or (parent != self._parent and not self._enter(parent))):
            reason = f"the tree has more than {ROWS_LIMIT} files and directories"
        if reason is not None:
            self.hide(path, reason, sub)
            return
        self._append(self._open[-1], name, sub.mode)
        self._types.append(self._type_names.number(sub.contenttype))
        self._offsets.append(sub.offset)
        self._sizes.append(sub.len)

    def _append(self, parent: int, name: bytes, mode: int) -> None:
        self._names.texts.append(name)
        self._parents.append(parent)
        self._modes.append(mode)
        self._ends.append(len(self._parents))

    def _open_directory(self, parent: int, name: bytes) -> None:
        self._open.append(len(self._parents))
        self._append(parent, name, DIRECTORY)
        self._types.append(self._type_names.number(""))
        self._offsets.append(0)
        self._sizes.append(0)

    def _enter(self, path: bytes) -> bool:
        """Open the directories of a path, close all others; False when those are too many."""
        elements = path.split(b"/") if path else []
        texts, shared = self._names.texts, 0
        for row, element in zip(self._open[1:], elements, strict=False):
            if texts[row] != element:
                break
            shared += 1
        if len(self._parents) + len(elements) - shared >= ROWS_LIMIT:
            return False
        self._close(shared + 1)
        for element in elements[shared:]:
            self._drop_file(element)
            self._open_directory(self._open[-1], element)
        self._parent = path
        return True

    def _close(self, depth: int) -> None:
        """Close all directories but the first ones: what they hold is complete."""
        for row in self._open[depth:]:
            self._ends[row] = len(self._parents)
        del self._open[depth:]

    def _drop_file(self, name: bytes) -> None:
        """Hide the last file if a directory comes in its place: they are neighbours, so sorted."""
        last = len(self._parents) - 1
        is_file = self._modes[last] != DIRECTORY
        if is_file and self._parents[last] == self._open[-1] and self._names.texts[last] == name:
            above = [self._names.texts[row] for row in self._open[1:]]
            offset, size = self._offsets[last], self._sizes[last]
            sub = Subfile(mode=self._modes[last], offset=offset, len=size)
            self.hide(b"/".join([*above, name]).decode(), _LOST, sub)
            del self._names.texts[last]
            for column in (self._parents, self._ends, self._modes):
                column.pop()
            for column in (self._types, self._offsets, self._sizes):
                column.pop()

    def pack(self, metadata: Metadata) -> bytes:
        """Return all of it, packed."""
        self._close(0)
        columns: list[Column] = [
            encode(metadata.filename),
            *self._names.numbers(),
            self._parents,
            self._ends,
            self._modes,
            self._types,
            self._offsets,
            self._sizes,
            *self._type_names.numbers(),
            *self._hidden.numbers(),
            self._why,
            self._hidden_modes,
            self._hidden_offsets,
            self._hidden_sizes,
            *self._reasons.numbers(),
            _cover(self._offsets + self._hidden_offsets, self._sizes + self._hidden_sizes),
        ]
        rejected = len(metadata.rejected)
        records = len(metadata.subfiles) + rejected
        return pack(self._size, records, rejected, metadata.mode, columns)


def _cover(offsets: Numbers, sizes: Numbers) -> Numbers:
    """Return the extents by their offsets, without those that are empty or inside another."""
    found: Numbers = array("I")
    reached = 0
    order = [at for at, size in enumerate(sizes) if size]
    order.sort(key=offsets.__getitem__)
    for at in order:
        end = offsets[at] + sizes[at]
        if end > reached:
            found.append(at)
            reached = end
    return found


def main() -> int:
    """Read metadata from stdin, write its listing to stdout; arguments are those of `tabulate`."""
    size, answered = (int(text) if text else None for text in sys.argv[1:3])
    return run(partial(tabulate, size=size, answered=answered), "reading the metadata")


if __name__ == "__main__":
    sys.exit(main())
