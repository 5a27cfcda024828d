"""What file systems of fsspec do with many files at once: patterns, and reads."""

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from glob import has_magic
from typing import Any

from fsspec import AbstractFileSystem

from skymount.errors import MalformedError
from skymount.file_api.bulk_reads import read_many
from skymount.file_api.entry import Entry
from skymount.file_api.files import Files
from skymount.file_api.location import Location
from skymount.file_api.os_errors import os_error, translated
from skymount.file_api.session import Extent
from skymount.file_api.sessions import SESSIONS

Bytes = bytes | Exception


class BulkOperations(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """Paths, and reads of many files."""

    files: Files

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return a path as `info` and `find` write it; text that is no link as it is."""
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        plain = super()._strip_protocol(path)
        root, _, rest = plain.partition("/")
        try:
            if ":" in root and (found := Location.parse(plain)).protocol == cls.protocol:
                return found.path
            location = Location.parse_plain(root, cls.protocol)
        except MalformedError:
            return plain
        return "/".join((location.path, *filter(None, rest.split("/"))))

    def locate(self, path: str | os.PathLike[str]) -> Location:
        """Return where a path leads; ValueError when it is none."""
        return Location.parse_plain(self._strip_protocol(path), self.protocol)

    def entry(self, path: str | os.PathLike[str]) -> Entry:
        return self.files.find(self.locate(path))

    def expand_path(
        self,
        path: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        assume_literal: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """Return all paths that are meant. A name that is there is no pattern, whatever it has."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        given = [path] if isinstance(path, str | os.PathLike) else list(path)
        found: set[str] = set()
        for each in map(self._strip_protocol, given):
            if not (assume_literal or not has_magic(each) or self.exists(each)):
                with suppress(FileNotFoundError):
                    found |= set(super().expand_path([each], recursive, maxdepth, **kwargs))
                continue
            if recursive:
                found |= set(self.find(each, maxdepth=maxdepth, withdirs=True))
            if not recursive or self.exists(each):
                found.add(each)
        if not found:
            shown = ", ".join(map(str, given))
            raise FileNotFoundError(*os_error(2, shown).args, shown)
        return sorted(found)

    # Reading

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        """Return the bytes of a file; `start` and `end` are those of a slice."""
        entry = self.entry(path)
        begin, stop, _ = slice(start, end).indices(entry.size)
        file = self.files.open_entry(entry)
        try:
            return bytes(file.read(begin, stop))
        finally:
            file.close()

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: int | Sequence[int | None] | None,
        ends: int | Sequence[int | None] | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Bytes]:
        """Read ranges of files, all at once; those at most `max_gap` bytes apart are one read."""
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        count = len(paths)
        first = list(starts) if isinstance(starts, Sequence) else [starts] * count
        last = list(ends) if isinstance(ends, Sequence) else [ends] * count
        if not len(first) == len(last) == count:
            raise ValueError("there must be as many starts and ends as paths")
        found = self._read(paths, [slice(*each) for each in zip(first, last, strict=True)], max_gap)
        for each in found:
            if isinstance(each, Exception) and on_error != "return":
                raise each
        return found

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any
    ) -> bytes | dict[str, Bytes]:
        """Return the bytes of a file, or those of many by their paths, which are read at once."""
        paths = self.expand_path(path, recursive=recursive)
        is_single = isinstance(path, str | os.PathLike) and paths == [self._strip_protocol(path)]
        if is_single and not (recursive and self.isdir(paths[0])):
            return self.cat_file(paths[0], **kwargs)
        if recursive:
            paths = [each for each in paths if not self.isdir(each)]
        part = slice(kwargs.get("start"), kwargs.get("end"))
        found = dict(zip(paths, self._read(paths, [part] * len(paths)), strict=True))
        failures = [each for each in found.values() if isinstance(each, Exception)]
        if failures and on_error == "raise":
            raise failures[0]
        if on_error == "omit":
            return {name: each for name, each in found.items() if isinstance(each, bytes)}
        return found

    def _read(
        self, paths: Sequence[str], parts: Sequence[slice], max_gap: int | None = None
    ) -> list[Bytes]:
        """Read a part of each file, or return why that cannot be done."""
        entries = self.files.find_all([self.locate(path) for path in paths])
        wanted: dict[int, tuple[Extent, int, int]] = {}
        result: list[Bytes] = [b""] * len(paths)
        for number, (entry, part) in enumerate(zip(entries, parts, strict=True)):
            try:
                if isinstance(entry, Exception):
                    raise entry
                begin, stop, _ = part.indices(entry.file.size)
                extent = Extent(entry.tree.skyfile, entry.file.offset, entry.file.size)
                wanted[number] = extent, begin, max(0, stop - begin)
            except OSError as error:
                result[number] = error
        if wanted:
            read = partial(read_many, wanted=list(wanted.values()), max_gap=max_gap)
            found = SESSIONS.run(self.files.options.settings(), read, paths[0])
            for number, each in zip(wanted, found, strict=True):
                link = self.unstrip_protocol(paths[number])
                result[number] = each if isinstance(each, bytes) else translated(each, link)
        return result
