"""Files that are there whole or not at all, also after a power cut.

Who may use a file is decided in `private`; errors are the callers' to translate.
"""

import errno
import os
import select
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from skymount import file_permissions

# What file systems without hard links answer.
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

_NAME_LIMIT = 200  # bytes of a file's name in that of the new file beside it


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes, also to a pipe that another process made non-blocking."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            waiting = select.poll()
            waiting.register(descriptor, select.POLLOUT)
            waiting.poll()


def write_all_at(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all bytes at an offset of a file."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def create(path: str | Path, data: bytes, *, mode: int = 0o600, within: int | None = None) -> None:
    """Make a new file and sync it; one that cannot be written is removed. Its name is not synced:
    see `sync_directory`.

    `mode` holds whatever the umask; `within` is the descriptor of the directory of a relative path.
    """
    file = file_permissions.create_file(path, within)
    try:
        os.fchmod(file, mode)
        write_all(file, data)
        os.fsync(file)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(path, dir_fd=within)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    finally:
        os.close(file)


def replace(
    path: str | Path,
    data: bytes,
    *,
    temporary: str | Path | None = None,
    mode: int = 0o600,
    within: int | None = None,
    force: bool = True,
) -> None:
    """Put a file in place of the one at `path`, if there is one; durable once this returns.

    FileExistsError if there is one and `force` is off. Writers take turns: the caller holds a lock.
    The file is made as `temporary`, by default ``<path>.new``; what a killed writer left there is
    removed.
    """
    temporary = f"{path}.new" if temporary is None else temporary
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=within)
    try:
        create(temporary, data, mode=mode, within=within)
        move(temporary, path, source=within, target=within, force=force)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=within)
        raise
    if within is None:
        sync_directory(Path(path).parent)
    else:
        os.fsync(within)


def move(
    old: str | bytes | Path,
    new: str | bytes | Path,
    *,
    source: int | None = None,
    target: int | None = None,
    force: bool,
) -> None:
    """Move a file, between open directories if given; FileExistsError for a name that is taken,
    without `force`.
    """
    if force:
        os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)
        return
    try:
        os.link(old, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        os.unlink(old, dir_fd=source)
    except OSError as error:
        if error.errno != errno.EEXIST and error.errno not in _NO_HARD_LINKS:
            raise
        with suppress(FileNotFoundError):
            os.lstat(new, dir_fd=target)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new)) from None
        os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)


def sync_directory(path: str | Path) -> None:
    """Make the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Replacement:
    """A new file that takes the place of the one at a path once it is complete.

    A symbolic link is followed, and the permissions of the old file are kept. An OSError names the
    path; IsADirectoryError or FileExistsError for what is no regular file. As a context manager it
    is finished by a block that succeeds, and discarded by one that fails.
    """

    def __init__(self, path: str | Path) -> None:
        self._named = str(path)
        self._path = os.path.realpath(path)
        directory, name = os.path.split(self._path)
        short = os.fsdecode(os.fsencode(name)[:_NAME_LIMIT])
        self._aside = os.path.join(directory, f".{short}.{os.urandom(6).hex()}.part")
        self._file = -1
        self.size = 0
        with self._naming():
            mode = _replaceable_mode(self._path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.open(self._aside, flags, 0o666)
            if mode is not None:
                os.fchmod(self._file, mode)

    def write(self, data: bytes | memoryview) -> None:
        with self._naming():
            write_all(self._file, data)
        self.size += len(data)

    def restart(self) -> None:
        """Forget what was written."""
        with self._naming():
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
        self.size = 0

    def finish(self, *, synced: bool = False) -> None:
        """Take the place of the old file; after a power cut too, if it is `synced`."""
        with self._naming():
            if synced:
                os.fsync(self._file)
            self._close()
            os.replace(self._aside, self._path)

    def discard(self) -> None:
        self._close()
        with suppress(OSError):
            os.unlink(self._aside)

    def _close(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.discard()

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.discard()
            raise OSError(error.errno, error.strerror, self._named) from None


def _replaceable_mode(path: str) -> int | None:
    """Return the permissions of a file that is there."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise FileExistsError(errno.EEXIST, "Is not a regular file")
    return stat.S_IMODE(mode) & 0o777
