"""What an upload reads: files, directories, bytes, file objects. Sizes are known beforehand, except
those of pipes.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from skymount.errors import MalformedError, WrongTypeError
from skymount.portal.client import arguments
from skymount.upload_selection.selection import FoundFile, Identity
from skymount.wire import media_types

UPLOAD_CHUNK_SIZE = 1 << 20
"""Bytes read at a time."""

Content = bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO
"""What can be uploaded as a file. A `str` is a path."""


@dataclass(slots=True)
class UploadSource:
    """One file to send: its path inside the upload, and its bytes."""

    origin: Path | bytes | BinaryIO = field(repr=False)
    name: str
    size: int | None
    """In bytes; None when the origin can be read only once."""
    mode: int = 0
    """Permission bits, or 0."""
    contenttype: str = ""
    """Media type; that of the name when empty."""
    start: int = 0
    """Position of a file object."""
    identity: Identity | None = None
    """Of a path: the file that was looked at, and so the one that is sent."""
    is_link: bool = False
    is_begun: bool = False
    """Whether reading has begun."""
    received: int = 0
    """Bytes that came from a pipe."""

    @classmethod
    def of_path(cls, file: Path, name: str = "") -> Self:
        """Describe a file; OSError when it cannot be read, MalformedError when it is none."""
        status = file.stat()
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(file))
        if not stat.S_ISREG(status.st_mode):
            raise MalformedError(f"{file}: only regular files can be uploaded")
        mode = stat.S_IMODE(status.st_mode) & 0o777
        name = checked_name(name or file.name, file)
        identity = (status.st_dev, status.st_ino)
        is_link = file.is_symlink()
        return cls(file, name, status.st_size, mode, identity=identity, is_link=is_link)

    @classmethod
    def of_found(cls, file: FoundFile) -> Self:
        """Describe a file of a folder; it is no link."""
        return cls(Path(file.path), file.name, file.size, file.mode, identity=file.identity)

    @classmethod
    def of_bytes(cls, data: bytes, name: str, *, contenttype: str = "") -> Self:
        return cls(data, checked_name(name), len(data), contenttype=contenttype)

    @classmethod
    def of_file_object(cls, file: BinaryIO, name: str = "") -> Self:
        """Describe the rest of a file object; WrongTypeError for one in text mode."""
        if getattr(file, "closed", False):
            raise MalformedError("the file object is closed")
        if not isinstance(file.read(0), bytes):
            raise WrongTypeError("the file object must be open in binary mode")
        own = getattr(file, "name", "")
        name = name or (Path(own).name if isinstance(own, str) else "")
        if not name or name == "<stdin>":
            raise MalformedError("the file object has no name: give a file name with it")
        start, size = 0, None
        if hasattr(file, "seekable") and file.seekable():
            start = file.tell()
            size = max(0, file.seek(0, os.SEEK_END) - start)
            file.seek(start)
        return cls(file, checked_name(name), size, start=start)

    @classmethod
    def of(cls, content: Content, name: str = "") -> Self:
        """Describe whatever can be uploaded as a file; WrongTypeError for anything else."""
        if isinstance(content, bytes | bytearray | memoryview):
            if not name:
                raise MalformedError("bytes have no name: give a file name with them")
            return cls.of_bytes(bytes(content), name)
        if isinstance(content, str | os.PathLike):
            return cls.of_path(arguments.local_path(content, "file"), name)
        if hasattr(content, "read"):
            return cls.of_file_object(content, name)
        raise WrongTypeError(
            "a file must be a path, bytes or a binary file object, not " + type(content).__name__
        )

    @classmethod
    def of_pipe(cls, pipe: BinaryIO, name: str) -> Self:
        return cls(pipe, checked_name(name), None)

    @property
    def is_spent(self) -> bool:
        """Whether it cannot be read any more, or not from its start."""
        return self.size is None and self.is_begun

    @property
    def length(self) -> int:
        """In bytes; of a pipe, of what was read."""
        return self.received if self.size is None else self.size

    @property
    def is_shared(self) -> bool:
        """Whether it can be read several times at once."""
        return isinstance(self.origin, Path | bytes)

    @property
    def media_type(self) -> str:
        """Empty where the name tells none: then portals look at the content."""
        return self.contenttype or media_types.of_name(self.name)

    def held(self) -> Self:
        """Return it with its content in memory, as it is now."""
        return replace(self, origin=b"".join(self.read()))

    def read(self) -> Iterator[bytes]:
        """Yield exactly `size` bytes; OSError if the file changed its size."""
        self.is_begun = True
        if isinstance(self.origin, bytes):
            for at in range(0, len(self.origin), UPLOAD_CHUNK_SIZE):
                yield self.origin[at : at + UPLOAD_CHUNK_SIZE]
        elif isinstance(self.origin, Path):
            with open(self.origin, "rb", buffering=0, opener=self._opened) as file:
                yield from _read(file, self.size, str(self.origin))
        else:
            if self.size is not None:
                self.origin.seek(self.start)
            for data in _read(self.origin, self.size, self.name):
                self.received += len(data)
                yield data

    def _opened(self, path: str, flags: int) -> int:
        """Open the file that was looked at; OSError if another one is in its place."""
        error = OSError(f"{path}: another file is in its place now")
        try:
            file = os.open(path, flags | os.O_NONBLOCK | (0 if self.is_link else os.O_NOFOLLOW))
        except OSError as failure:
            if failure.errno == errno.ELOOP:
                raise error from None
            raise
        found = os.fstat(file)
        if (found.st_dev, found.st_ino) != self.identity:
            os.close(file)
            raise error
        return file


def _read(file: Any, size: int | None, name: str) -> Iterator[bytes]:
    left = size
    while left is None or left:
        data = file.read(UPLOAD_CHUNK_SIZE if left is None else min(UPLOAD_CHUNK_SIZE, left))
        if not isinstance(data, bytes):
            raise WrongTypeError(f"{name}: read() must return bytes, not {type(data).__name__}")
        if not data:
            if left is None:
                return
            raise OSError(f"{name}: became shorter while it was read")
        if left is not None:
            left -= len(data)
        yield data
    if file.read(1):  # it grew, or like files of /proc it does not tell its size
        raise OSError(f"{name}: holds more than its size of {size} bytes")


def checked_name(name: str, file: Path | None = None) -> str:
    """Return a name that can be sent; MalformedError when it is not valid UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raw = os.fsencode(file) if file else name.encode("utf-8", "backslashreplace")
        shown = raw.decode("utf-8", "backslashreplace")
        raise MalformedError(f"{shown}: the name is not valid UTF-8") from None
    return name


def mapping_sources(files: Mapping[str, Content]) -> list[UploadSource]:
    """Describe files by their paths inside the upload."""
    found = []
    for name, content in files.items():
        if not isinstance(name, str):
            raise WrongTypeError(f"a path must be a text (str), not {type(name).__name__}")
        if not name:
            raise MalformedError("a path must not be empty")
        found.append(UploadSource.of(content, name))
    return found
