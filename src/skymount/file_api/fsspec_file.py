"""An open file of a file system of fsspec."""

from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.spec import AbstractBufferedFile

from skymount.file_api.location import SKYLINK, Location
from skymount.file_api.open_file import OpenFile

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_LINE = 8 << 10
"""Bytes in which the end of a line is looked for at a time; `OpenFile` has larger buffers."""


class SkylinkFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec has no types
    """Reads a file. Without a `cache_type` of the caller's, `OpenFile` does all that is needed.

    A caching file system may put a cache of its own into `cache`, which fetches from here.
    """

    def __init__(
        self,
        fs: "AbstractFileSystem",
        path: str,
        file: OpenFile,
        block_size: int | None = None,
        cache_type: str | None = None,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._file = file
        super().__init__(
            fs,
            path,
            "rb",
            block_size or "default",
            cache_type=cache_type or "none",
            cache_options=cache_options,
            size=file.size,
            **kwargs,
        )
        self.details = file.entry.info()

    def __reduce__(self) -> Any:
        """Reopen what was opened, also when its name has moved."""
        reopen, (fs, path, *others) = super().__reduce__()
        entry = self._file.entry
        opened = Location(entry.tree.skyfile.skylink, entry.location.names)
        if opened.root != entry.location.root:
            fs = fsspec.filesystem(SKYLINK, *fs.storage_args, **fs.storage_options)
            path = opened.path
        return reopen, (fs, path, *others)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self._file.read(start, end))

    def readinto(self, buffer: Any) -> int:
        if self.closed or self.cache.name != "none":
            return int(super().readinto(buffer))
        count = self._file.read_into(self.loc, memoryview(buffer).cast("B"))
        self.loc += count
        return count

    def readuntil(self, char: bytes = b"\n", blocks: int | None = None) -> bytes:
        return bytes(super().readuntil(char, blocks or _LINE))

    def readline(self, size: int | None = -1) -> bytes:
        line = self.readuntil()
        if size is None or not 0 <= size < len(line):
            return line
        self.seek(size - len(line), 1)
        return line[:size]

    def close(self) -> None:
        super().close()
        self._file.close()
