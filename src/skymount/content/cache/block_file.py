"""The files of blocks: written whole or not at all, read whole and checked.

Large blocks bypass the page cache (O_DIRECT) where the file system allows it: the kernel has the
pages of what is read through the mount already, and a second copy costs more than the disk does.
The file of such a block is whole pages, with zeros before the seal.
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
from skymount.content.cache import block_format
from skymount.content.cache.block_format import MAX_BLOCK, SEAL
from skymount.content.cache.buffer_pool import BufferPool
from skymount.errors import CacheError
from skymount.storage.atomic_file import write_all

TEMPORARY = ".tmp"
"""Suffix of files that are being written."""

PAGE = mmap.PAGESIZE

_MIN_DIRECT = 256 << 10  # bytes of content from which on a block bypasses the page cache
_TOUCH_INTERVAL = 60.0  # seconds; the use of a block is noted at most this often
_SECTOR = 512  # bytes, what st_blocks counts
_DISK_BLOCK = 4096  # bytes; file systems that pack or compress may say less, until they have not
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PROCESS = secrets.token_hex(8)  # in the names of the files that this process writes
_numbers = count()


def is_own(found: os.stat_result) -> bool:
    """Whether it is a plain file of ours, not of somebody who could write to it."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def bytes_on_disk(length: int) -> int:
    """Return the least that a file of that length takes."""
    return -(-length // _DISK_BLOCK) * _DISK_BLOCK


def size_of(found: os.stat_result) -> int:
    """Return the bytes that a file takes on disk."""
    return max(found.st_blocks * _SECTOR, bytes_on_disk(found.st_size))


def is_direct(length: int) -> bool:
    """Whether a block of so many bytes of content bypasses the page cache: it is whole pages."""
    return length >= _MIN_DIRECT and length % PAGE == 0


def read(
    path: str, identity: bytes, length: int, buffers: BufferPool, *, touch: bool
) -> memoryview | None:
    """Return the content of a block, None when there is none; OSError when it is damaged.

    `length` is the content's likely length in bytes. `touch` notes the use of the block.
    """
    direct = os.O_DIRECT if is_direct(length) else 0
    try:
        fd = _open(path, direct)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(fd)
        if not is_own(found) or not SEAL <= found.st_size <= MAX_BLOCK + PAGE:
            raise _damage()
        if is_direct(found.st_size - PAGE):
            if not direct:
                _set_direct(fd, os.O_DIRECT)
            data = _read_direct(fd, found.st_size - PAGE, identity, buffers)
        else:
            if direct:
                _set_direct(fd, 0)
            data = _read_packed(fd, found.st_size - SEAL, identity, buffers)
        if touch and abs(time.time() - found.st_mtime) > _TOUCH_INTERVAL:
            with suppress(OSError):  # it can be read all the same
                os.utime(fd)
        return data.toreadonly()
    finally:
        os.close(fd)


def _open(path: str, direct: int) -> int:
    try:
        return os.open(path, _READ | direct)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, _READ)  # a file system that always uses the page cache


def _set_direct(fd: int, flag: int) -> None:
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETFL, flag)


def _read_direct(fd: int, length: int, identity: bytes, buffers: BufferPool) -> memoryview:
    """Read whole pages of content, and the page that ends with the seal."""
    last = mmap.mmap(-1, PAGE)
    data = buffers.take(length)
    if os.preadv(fd, [data, last], 0) != length + PAGE:
        raise _damage()
    if last[PAGE - SEAL :] != block_format.seal(identity, data):
        raise _damage()
    return data


def _read_packed(fd: int, length: int, identity: bytes, buffers: BufferPool) -> memoryview:
    """Read content with the seal right behind it. Memory is taken only for a block."""
    seal = os.pread(fd, SEAL, length)
    if not seal.startswith(block_format.claim(identity, length)):
        raise _damage()
    data = buffers.take(length)
    done = 0
    while done < length:
        count = os.preadv(fd, [data[done:]], done)
        if not count:
            raise _damage()
        done += count
    if seal != block_format.seal(identity, data):
        raise _damage()
    return data


def _damage() -> OSError:
    return OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))


def write(path: str, identity: bytes, data: bytes | memoryview) -> bool:
    """Write a block; False when something is in its way, which is removed, if it can be.

    The file is not synced: if a power cut damages it, its checksum tells.
    """
    try:
        try:
            _write(path, identity, data)
        except FileNotFoundError:
            file_permissions.make_directory(Path(path).parent)
            _write(path, identity, data)
        return True
    except IsADirectoryError:
        remove(path)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.isdir(os.path.dirname(path)):
            remove(os.path.dirname(path))
    return False


def _write(path: str, identity: bytes, data: bytes | memoryview) -> None:
    temporary = f"{path}.{_PROCESS}-{next(_numbers)}{TEMPORARY}"
    try:
        if not (_can_bypass(data) and _write_direct(temporary, identity, data)):
            _write_packed(temporary, identity, data)
        os.rename(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def _write_direct(path: str, identity: bytes, data: bytes | memoryview) -> bool:
    """Write whole pages, and one that ends with the seal; False if the file system cannot."""
    last = mmap.mmap(-1, PAGE)
    last[PAGE - SEAL :] = block_format.seal(identity, data)
    try:
        fd = os.open(path, _CREATE | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        remove(path)  # such a file system makes the file all the same
        return False
    try:
        done = os.writev(fd, [data, last])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        done = 0
    finally:
        os.close(fd)
    if done != len(data) + PAGE:
        remove(path)
    return done == len(data) + PAGE


def _write_packed(path: str, identity: bytes, data: bytes | memoryview) -> None:
    """Write content with the seal right behind it, or zeros to the end of the page before it."""
    fd = os.open(path, _CREATE, 0o600)
    try:
        write_all(fd, data)
        if is_direct(len(data)):
            write_all(fd, bytes(PAGE - SEAL))
        write_all(fd, block_format.seal(identity, data))
    finally:
        os.close(fd)


def _can_bypass(data: bytes | memoryview) -> bool:
    """Whether content is whole pages of memory that begins at a page, as that of a map does."""
    owner = data.obj if isinstance(data, memoryview) else None
    return is_direct(len(data)) and isinstance(owner, mmap.mmap) and len(owner) == len(data)


def remove(path: str) -> bool:
    """Remove whatever is there; return whether it is gone."""
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
