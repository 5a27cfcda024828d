"""Makes the listing of metadata: which paths can be files, and which directories they make.

What cannot be shown is hidden with a reason, never dropped silently and never altered. Pure, except
that `main` is the program of a worker process.
"""

import re
import sys
from array import array
from collections.abc import Callable, Iterable
from functools import partial

from skymount.content.model.listing import (
    DIRECTORY,
    Column,
    Columns,
    DistinctTexts,
    Numbers,
    TextColumn,
    encode,
    pack,
)
from skymount.content.worker.worker_main import run
from skymount.errors import MalformedError
from skymount.wire.metadata import (
    INTEGER_LIMIT,
    Outline,
    Subfile,
    outline_metadata,
)

NAME_LIMIT = 255
"""Bytes in one name (NAME_MAX)."""

PATH_LIMIT = 4095
"""Bytes in a path inside a skylink (PATH_MAX); a longer one could be listed but not opened."""

ROWS_LIMIT = 3 << 19
"""Files and directories of one listing; more are hidden. A few bytes of metadata can ask for two
thousand directories.
"""

_BAD_ELEMENT = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)")
_LOST = "there is a directory of the same name"


def tabulate(
    raw: bytes,
    size: int | None = None,
    default_size: int | None = None,
    rows_limit: int = ROWS_LIMIT,
) -> bytes:
    """Return the packed listing of metadata JSON; MalformedError when none can be made.

    `size` is that of the payload, if known. `default_size` is used where the metadata has none.
    """
    return b"".join(_packed(lambda: raw, size, default_size, rows_limit))


def _packed(
    read: Callable[[], bytes | memoryview],
    size: int | None,
    default_size: int | None,
    rows_limit: int,
) -> list[Column]:
    """Return it in parts. The metadata is freed early, so the caller must not hold it."""
    outline = outline_metadata(read())
    files = _Files(outline.files)
    if size is None:
        size = files.end if files.has_any and not outline.length else outline.length
    if size is None:
        size = default_size
    if size is None:
        raise MalformedError("neither the metadata nor the answer tells the size")
    if size >= INTEGER_LIMIT:
        raise MalformedError("a size that no file can have")
    return _listed(outline, files, size, rows_limit)


def _listed(outline: Outline, files: "_Files", size: int, rows_limit: int) -> list[Column]:
    rows = _Rows(size, rows_limit, files.type_names)
    records = len(files.paths) + len(files.odd) + len(files.rejected)
    for path, reason in files.rejected:
        rows.hide(encode(path), reason)
    if not records:
        files.add(outline.filename, Subfile(mode=outline.mode, len=size))
    for path, reason, sub in files.odd:
        rows.hide(encode(path), reason, sub.offset, sub.len, sub.mode)
    rows.add_all(files)
    return rows.parts(outline, records, len(files.rejected))


class _Files:
    """The files of metadata in columns; as objects they would take three times the memory."""

    def __init__(self, found: Iterable[tuple[str, Subfile | str]]) -> None:
        self.paths: list[bytes | None] = []
        """With NUL for each slash, so that they sort by path element."""
        self.modes: Numbers = array("H")
        self.types: Numbers = array("I")
        self.offsets: Numbers = array("Q")
        self.sizes: Numbers = array("Q")
        self.type_names = DistinctTexts()
        self.end = 0
        self.odd: list[tuple[str, str, Subfile]] = []
        """Path, reason and record of files whose path no file can have."""
        self.rejected: list[tuple[str, str]] = []
        for path, sub in found:
            if isinstance(sub, str):
                self.rejected.append((path, sub))
            else:
                self.add(path, sub)

    @property
    def has_any(self) -> bool:
        return bool(self.paths or self.odd)

    def add(self, path: str, sub: Subfile) -> None:
        self.end = max(self.end, sub.offset + sub.len)
        if "\0" in path:
            self.odd.append((path, "the path has a NUL in it", sub))
            return
        try:
            raw = path.encode()
        except UnicodeEncodeError:
            self.odd.append((path, "the path is not valid UTF-8", sub))
            return
        self.paths.append(raw.replace(b"/", b"\0"))
        self.modes.append(sub.mode)
        self.types.append(self.type_names.number(sub.contenttype))
        self.offsets.append(sub.offset)
        self.sizes.append(sub.len)


def _objection(path: bytes) -> str | None:
    """Return why no file can have a path; None if one can."""
    if len(path) > PATH_LIMIT:
        return f"the path is longer than {PATH_LIMIT} bytes"
    if len(path) > NAME_LIMIT and max(map(len, path.split(b"/"))) > NAME_LIMIT:
        return f"a name in it is longer than {NAME_LIMIT} bytes"
    if _BAD_ELEMENT.search(path):
        return "the path has an empty, '.' or '..' element"
    return None


class _Rows:
    """Collects the rows. Files must come sorted by the elements of their paths."""

    def __init__(self, size: int, limit: int, type_names: DistinctTexts) -> None:
        self._size = size
        self._limit = limit
        self._names = TextColumn()
        self._parents: Numbers = array("I")
        self._ends: Numbers = array("I")
        self._modes: Numbers = array("H")
        self._types: Numbers = array("I")
        self._offsets: Numbers = array("Q")
        self._sizes: Numbers = array("Q")
        self._type_names = type_names
        self._hidden = TextColumn()
        self._hidden_reasons: Numbers = array("I")
        self._hidden_modes: Numbers = array("H")
        self._hidden_offsets: Numbers = array("Q")
        self._hidden_sizes: Numbers = array("Q")
        self._reasons = DistinctTexts()
        self._parent = b""
        self._open: list[int] = []
        self._open_directory(0, b"")

    def hide(self, path: bytes, reason: str, offset: int = 0, size: int = 0, mode: int = 0) -> None:
        self._hidden.append(path)
        self._hidden_reasons.append(self._reasons.number(reason))
        self._hidden_modes.append(mode)
        self._hidden_offsets.append(offset)
        self._hidden_sizes.append(size)

    def add_all(self, files: _Files) -> None:
        """Add files; their paths are freed meanwhile."""
        paths = files.paths
        for at in sorted(range(len(paths)), key=paths.__getitem__):  # type: ignore[arg-type]
            path = paths[at]
            assert path is not None
            paths[at] = None
            extent = files.offsets[at], files.sizes[at], files.modes[at]
            self._add(path.replace(b"\0", b"/"), *extent, files.types[at])

    def _add(self, path: bytes, offset: int, size: int, mode: int, type_number: int) -> None:
        reason = "it reaches beyond the content" if offset + size > self._size else None
        reason = reason or _objection(path)
        parent, _, name = path.rpartition(b"/")
        is_full = len(self._parents) >= self._limit
        if reason is None and (is_full or (parent != self._parent and not self._enter(parent))):
            reason = f"the tree has more than {self._limit} files and directories"
        if reason is not None:
            self.hide(path, reason, offset, size, mode)
            return
        self._append(self._open[-1], name, mode)
        self._types.append(type_number)
        self._offsets.append(offset)
        self._sizes.append(size)

    def _append(self, parent: int, name: bytes, mode: int) -> None:
        self._names.append(name)
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
        """Open the directories of a path and close all others; False when there are too many."""
        elements = path.split(b"/") if path else []
        names, shared = self._names, 0
        for row, element in zip(self._open[1:], elements, strict=False):
            if names[row] != element:
                break
            shared += 1
        if len(self._parents) + len(elements) - shared >= self._limit:
            return False
        self._close(shared + 1)
        for element in elements[shared:]:
            self._drop_file(element)
            self._open_directory(self._open[-1], element)
        self._parent = path
        return True

    def _close(self, depth: int) -> None:
        """Complete all open directories but the first `depth`."""
        for row in self._open[depth:]:
            self._ends[row] = len(self._parents)
        del self._open[depth:]

    def _drop_file(self, name: bytes) -> None:
        """Hide the last file if a directory has its name; sorted, they are neighbours."""
        last = len(self._parents) - 1
        is_file = self._modes[last] != DIRECTORY
        if is_file and self._parents[last] == self._open[-1] and self._names[last] == name:
            above = [self._names[row] for row in self._open[1:]]
            offset, size = self._offsets[last], self._sizes[last]
            self.hide(b"/".join([*above, name]), _LOST, offset, size, self._modes[last])
            self._names.pop()
            for column in (self._parents, self._ends, self._modes):
                column.pop()
            for column in (self._types, self._offsets, self._sizes):
                column.pop()

    def parts(self, outline: Outline, records: int, rejected: int) -> list[Column]:
        self._close(0)
        names, name_starts = self._names.columns()
        type_names, type_starts = self._type_names.columns()
        hidden_paths, hidden_starts = self._hidden.columns()
        reasons, reason_starts = self._reasons.columns()
        columns: Columns[Column] = Columns(
            filename=encode(outline.filename),
            names=names,
            name_starts=name_starts,
            parents=self._parents,
            ends=self._ends,
            modes=self._modes,
            types=self._types,
            offsets=self._offsets,
            sizes=self._sizes,
            type_names=type_names,
            type_starts=type_starts,
            hidden_paths=hidden_paths,
            hidden_starts=hidden_starts,
            hidden_reasons=self._hidden_reasons,
            hidden_modes=self._hidden_modes,
            hidden_offsets=self._hidden_offsets,
            hidden_sizes=self._hidden_sizes,
            reasons=reasons,
            reason_starts=reason_starts,
            cover=_cover(self._offsets + self._hidden_offsets, self._sizes + self._hidden_sizes),
        )
        return pack(self._size, records, rejected, outline.mode, columns)


def _cover(offsets: Numbers, sizes: Numbers) -> Numbers:
    """Return the extents by offset, without those that are empty or inside another."""
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
    size, default_size = (int(text) if text else None for text in sys.argv[1:3])
    work = partial(_packed, size=size, default_size=default_size, rows_limit=ROWS_LIMIT)
    return run(work, "reading the metadata")


if __name__ == "__main__":
    sys.exit(main())
