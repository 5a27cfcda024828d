"""Files that are there whole or not at all, also after a power cut.

Who may use a file is decided in `private`; errors are the callers' to translate.
"""

import errno
import os
import select
from contextlib import suppress
from pathlib import Path

from skymount import file_permissions

# What file systems without hard links answer.
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


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
