"""Owns the files that blocks lie in: written whole or not at all, read whole and checked; and the
directories they are in, which are the owner's alone.

Large blocks go past the page cache (O_DIRECT), where the file system lets them: what is read
through the mount is in the kernel's pages already, and a second copy of it costs more than the disk
does. Such a file is whole pages, with zeros before the seal. `pages` has a short way for them.
"""

import errno
import fcntl
import mmap
import os
import secrets
import shutil
import stat
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

from skymount import file_permissions
from skymount.content.cache import block_format, direct_io
from skymount.content.cache.buffer_pool import BufferPool
from skymount.content.cache.direct_io import PAGE
from skymount.errors import CacheError
from skymount.storage.atomic_file import write_all

TEMPORARY = ".tmp"
"""How the names of files end that are being written."""

_TOUCHED = 60.0  # seconds; a block that is read is noted as used at most this often
_SECTOR = 512  # bytes, what st_blocks counts
_DISK_BLOCK = 4096  # bytes; file systems that pack or compress may say less, until they have not
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OURS = secrets.token_hex(8)  # in the names of the files that this process writes
_numbers = count()


def is_own(found: os.stat_result) -> bool:
    """Whether it is a plain file of ours, not of somebody who could write to it."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def bytes_on_disk(length: int) -> int:
    """Return what a file of that length takes at least."""
    return -(-length // _DISK_BLOCK) * _DISK_BLOCK


def size_of(found: os.stat_result) -> int:
    """Return the bytes that a file takes on disk."""
    return max(found.st_blocks * _SECTOR, bytes_on_disk(found.st_size))


def read(
    path: str, identity: bytes, length: int, buffers: BufferPool, *, touch: bool
) -> memoryview | None:
    """Return the content of a block, None when there is none; OSError when it is damaged.

    `length` is the bytes that it is likely to have. `touch` notes that it was used.
    """
    if direct_io.fit(length):
        data = buffers.take(length)
        found = direct_io.load(path, identity, data, touch=touch)
        if found:
            return data.toreadonly()
        buffers.give_back(data)
        if found is None:
            return None
    try:
        fd = os.open(path, _READ)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        data = _checked(fd, status, identity, buffers)
        if touch and abs(time.time() - status.st_mtime) > _TOUCHED:
            with suppress(OSError):  # it can be read all the same
                os.utime(fd)
        return data
    finally:
        os.close(fd)


def _checked(fd: int, found: os.stat_result, identity: bytes, buffers: BufferPool) -> memoryview:
    """Return the content of an open block."""
    if not is_own(found) or not block_format.SEAL <= found.st_size <= block_format.MAX_BLOCK + PAGE:
        raise _damage()
    if direct_io.fit(found.st_size - PAGE):
        data, seal = _read_pages(fd, found.st_size - PAGE, identity, buffers)
    else:
        data, seal = _read_packed(fd, found.st_size - block_format.SEAL, identity, buffers)
    if block_format.seal(identity, data) != seal:
        raise _damage()
    return data.toreadonly()


def _read_pages(
    fd: int, length: int, identity: bytes, buffers: BufferPool
) -> tuple[memoryview, bytes]:
    """Read a block of whole pages, and the page with its seal."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
    last = mmap.mmap(-1, PAGE)
    data = buffers.take(length)
    if os.preadv(fd, [data, last], 0) != length + PAGE:
        raise _damage()
    seal = last[PAGE - block_format.SEAL :]
    if not seal.startswith(block_format.claim(identity, length)):
        raise _damage()
    return data, seal


def _read_packed(
    fd: int, length: int, identity: bytes, buffers: BufferPool
) -> tuple[memoryview, bytes]:
    """Read a block with its seal right behind it; memory is taken when it is known to be one."""
    seal = os.pread(fd, block_format.SEAL, length)
    if not seal.startswith(block_format.claim(identity, length)):
        raise _damage()
    data = buffers.take(length)
    done = 0
    while done < length:
        count = os.preadv(fd, [data[done:]], done)
        if not count:
            raise _damage()
        done += count
    return data, seal


def _damage() -> OSError:
    return OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))


def write(path: str, identity: bytes, data: bytes | memoryview) -> int | None:
    """Write a block; return the bytes that it takes, None when something is in its way.

    That is removed, if it can be. The file is not synced: what a power cut leaves of it has
    another checksum.
    """
    try:
        try:
            return _write(path, identity, data)
        except FileNotFoundError:
            file_permissions.make_directory(Path(path).parent)
            return _write(path, identity, data)
    except IsADirectoryError:
        remove(path)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.isdir(os.path.dirname(path)):
            remove(os.path.dirname(path))
    return None


def _write(path: str, identity: bytes, data: bytes | memoryview) -> int:
    temporary = f"{path}.{_OURS}-{next(_numbers)}{TEMPORARY}"
    size = direct_io.store(temporary, path, identity, data) if direct_io.fit(len(data)) else 0
    return size or _write_step_by_step(temporary, path, identity, data)


def _write_step_by_step(
    temporary: str, path: str, identity: bytes, data: bytes | memoryview
) -> int:
    fd = file_permissions.create_file(temporary)
    try:
        if not _write_pages(fd, identity, data):
            write_all(fd, data)
            write_all(fd, block_format.seal(identity, data))
        size = size_of(os.fstat(fd))
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    finally:
        os.close(fd)
    return size


def _write_pages(fd: int, identity: bytes, data: bytes | memoryview) -> bool:
    """Write a block past the page cache; False when it is not of the kind, or that cannot be."""
    if not direct_io.fit(len(data)) or not direct_io.is_aligned(data):
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
    except OSError:
        return False
    last = mmap.mmap(-1, PAGE)
    last[PAGE - block_format.SEAL :] = block_format.seal(identity, data)
    try:
        done = os.writev(fd, [data, last])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        done = -1
    if done == len(data) + PAGE:
        return True
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    os.ftruncate(fd, 0)
    return False


def remove(path: str) -> bool:
    """Remove whatever is there; say whether it is gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)
        return not os.path.lexists(path)
    except OSError:
        return False
    return True


def check_private(path: Path) -> None:
    """CacheError unless a directory is the user's own, and nobody else can write to it."""
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError(f"{path}: not usable as a cache: it is no directory")
    if objection := file_permissions.permission_problem(path, found, file_permissions.WRITE_ACCESS):
        raise CacheError(f"{path}: not usable as a cache: {objection}")
