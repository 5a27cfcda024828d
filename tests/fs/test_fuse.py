"""The border to the kernel: every exception becomes an errno, every operation has a limit."""

import errno
import os
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import TypeVar

import pyfuse3
import pytest
import trio

from skymount import errors
from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    ConfigError,
    FrozenEntryError,
    InvalidDocumentError,
    MalformedError,
    MountError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    SkymountError,
    StorageError,
    UnavailableError,
)
from skymount.fs.dispatcher import FileSystem
from skymount.fs.fuse import ERRNO, FuseAdapter, FuseConfig, errno_of
from skymount.fs.inode_space import ROOT, SKYLINKS, InodeSpace
from skymount.fs.subtree import (
    IMMUTABLE_TIMEOUT,
    InodeAttributes,
    OpenDirectory,
    OpenFile,
    Subtree,
)
from tests.fakes.in_memory_mount import FILES, InMemoryMount, open_in_memory_mount

T = TypeVar("T")


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (NotFoundError("x"), errno.ENOENT),
        (AccessDeniedError("x"), errno.EACCES),
        (PortalTimeoutError("x"), errno.ETIMEDOUT),
        (UnavailableError("x"), errno.EIO),
        (RequestRefusedError("x"), errno.EIO),
        (BadContentError("x"), errno.EIO),
        (PortalError("x"), errno.EIO),
        (MalformedError("x"), errno.EIO),
        (FrozenEntryError("x"), errno.EPERM),
        (InvalidDocumentError("x"), errno.EINVAL),
        (ConfigError("x"), errno.EIO),
        (MountError("x"), errno.EIO),
        (StorageError("x"), errno.EIO),
        (SkymountError("x"), errno.EIO),
        (trio.TooSlowError(), errno.ETIMEDOUT),
        (OSError(errno.EROFS, "x"), errno.EROFS),
        (OSError(errno.EMFILE, "x"), errno.EMFILE),
        (FileNotFoundError(errno.ENOENT, "x"), errno.ENOENT),
        (OSError("without a number"), errno.EIO),
        (OSError(0, "zero"), errno.EIO),
        (KeyError(5), errno.EIO),
        (ZeroDivisionError(), errno.EIO),
        (MemoryError(), errno.EIO),
        (RecursionError(), errno.EIO),
        (ExceptionGroup("x", [NotFoundError("x")]), errno.EIO),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_errno(error: Exception, number: int):
    """Every exception has an errno; «no such file» only where every portal said so."""
    assert errno_of(error) == number


ERRNO_NUMBERS = {number for _, number in ERRNO}


def test_every_error_of_ours_has_an_errno():
    """Whatever is derived from our root is in the table."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert SkymountError in kinds
    for kind in kinds:
        assert errno_of(kind("x")) in ERRNO_NUMBERS


def adapter(mount: InMemoryMount, deadline: float = 30.0) -> FuseAdapter:
    """Return the border of a file system that is mounted nowhere."""
    return FuseAdapter(mount.files, FuseConfig("/nowhere", deadline=deadline))


async def refused(number: int, work: Awaitable[object]) -> None:
    """Expect a FUSEError of that number."""
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await work
    assert caught.value.errno == number


CTX: pyfuse3.RequestContext = SimpleNamespace(pid=1, uid=os.getuid())  # type: ignore[assignment]


async def test_entries(autojump_clock: object):
    """Entries carry owner, times, sizes in blocks, and how long they hold."""
    async with open_in_memory_mount() as mount:
        fuse = adapter(mount)
        name = str(mount.reader.add(FILES)).encode()
        top = await fuse.lookup(SKYLINKS, name, CTX)
        file = await fuse.lookup(top.st_ino, b"a.txt", CTX)
        assert (file.st_uid, file.st_gid) == (os.getuid(), os.getgid())
        assert (file.st_size, file.st_blocks, file.st_nlink) == (5, 1, 1)
        assert file.st_mtime_ns == file.st_ctime_ns > 0
        assert (file.entry_timeout, file.attr_timeout) == (IMMUTABLE_TIMEOUT, IMMUTABLE_TIMEOUT)
        assert (await fuse.getattr(file.st_ino, CTX)).st_mode == file.st_mode
        absent = await fuse.lookup(top.st_ino, b"no", CTX)
        assert (absent.st_ino, absent.entry_timeout) == (0, IMMUTABLE_TIMEOUT)
        await refused(errno.ENAMETOOLONG, fuse.lookup(top.st_ino, b"x" * 256, CTX))


class BrokenSubtree(Subtree):
    """Fails at whatever it is asked."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def lookup(self, parent: int, name: bytes) -> InodeAttributes:
        raise self._error

    async def getattr(self, inode: int) -> InodeAttributes:
        raise self._error

    async def opendir(self, inode: int) -> OpenDirectory:
        raise self._error

    async def open(self, inode: int, flags: int) -> OpenFile:
        raise self._error

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        raise self._error

    async def listed_xattrs(self, inode: int) -> Sequence[bytes]:
        raise self._error

    def usage(self) -> tuple[int, int]:
        raise self._error


class BrokenFile(OpenFile):
    """Cannot be read."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def read(self, offset: int, length: int) -> bytes:
        raise self._error


@pytest.mark.parametrize(
    "operation",
    ["lookup", "getattr", "access", "opendir", "open", "getxattr", "listxattr", "statfs", "read"],
)
@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), KeyError("x"), ExceptionGroup("x", [OSError()])]
)
async def test_unforeseen_errors(
    operation: str, error: Exception, caplog: pytest.LogCaptureFixture
):
    """A bug in any operation is EIO with a traceback in the log: anything else ends the mount."""
    broken = BrokenSubtree(error)
    files = FileSystem(broken, {InodeSpace.HNS: broken})
    opened = files.add_file(BrokenFile(error))
    arguments = {
        "lookup": (1, b"x", CTX),
        "access": (1, os.X_OK, CTX),
        "open": (1, 0, CTX),
        "getxattr": (1, b"user.x", CTX),
        "statfs": (CTX,),
        "read": (opened, 0, 1),
    }.get(operation, (1, CTX))
    fuse = FuseAdapter(files, FuseConfig("/nowhere"))
    await refused(errno.EIO, getattr(fuse, operation)(*arguments))
    assert type(error).__name__ in caplog.text


async def test_unforeseen_error_of_a_read_from_memory(caplog: pytest.LogCaptureFixture):
    """The short way of a read is guarded too, and so is a handle that nobody has."""
    async with open_in_memory_mount() as mount:
        await refused(errno.EIO, adapter(mount).read(12345, 0, 10))
        await refused(errno.EIO, adapter(mount).release(12345))
        await refused(errno.EIO, adapter(mount).releasedir(12345))
    assert "KeyError" in caplog.text


async def test_every_operation_has_a_limit(autojump_clock: object):
    """R2: Every operation ends within `timeout` (30 s), at the latest with ETIMEDOUT.

    What waits for a portal ends with ETIMEDOUT when its time is over.
    """
    async with open_in_memory_mount(deadline=7) as mount:
        fuse = adapter(mount, deadline=7)
        link = mount.reader.add(FILES)
        mount.reader.delays[link] = 1e9
        top = await fuse.lookup(SKYLINKS, str(link).encode(), CTX)
        for work in (
            fuse.opendir(top.st_ino, CTX),
            fuse.lookup(top.st_ino, b"a.txt", CTX),
            fuse.getattr(top.st_ino + 1, CTX),
            fuse.open(top.st_ino + 1, os.O_RDONLY, CTX),
            fuse.listxattr(top.st_ino, CTX),
            fuse.getxattr(top.st_ino, b"user.x", CTX),
        ):
            begun = trio.current_time()
            await refused(errno.ETIMEDOUT, work)
            assert trio.current_time() == begun + 7


async def test_read_has_a_limit(autojump_clock: object):
    """R2: Every operation ends within `timeout` (30 s), at the latest with ETIMEDOUT.

    So does a read that has to wait.
    """
    async with open_in_memory_mount(deadline=0.5) as mount:
        fuse = adapter(mount, deadline=0.5)
        link = mount.reader.add(FILES)
        top = await fuse.lookup(SKYLINKS, str(link).encode(), CTX)
        file = await fuse.lookup(top.st_ino, b"a.txt", CTX)
        info = await fuse.open(file.st_ino, os.O_RDONLY, CTX)
        assert bytes(await fuse.read(info.fh, 1, 3)) == b"ell"
        mount.reader.cold = True
        await refused(errno.ETIMEDOUT, fuse.read(info.fh, 1, 3))


@pytest.mark.parametrize(
    ("portals", "reason", "portal"),
    [
        ([], "not done within 7 s", ""),
        (["http://a"], "not done within 7 s (http://a)", "http://a"),
        (["http://a", "http://b"], "not done within 7 s, waiting for http://a and http://b", ""),
    ],
)
async def test_portals_that_were_waited_for(
    portals: list[str],
    reason: str,
    portal: str,
    autojump_clock: object,
    caplog: pytest.LogCaptureFixture,
):
    """E1, E2: the error of the time-out names them."""
    async with open_in_memory_mount(deadline=7) as mount:
        fuse = FuseAdapter(mount.files, FuseConfig("/nowhere", deadline=7), lambda: portals)
        link = mount.reader.add(FILES)
        mount.reader.delays[link] = 1e9
        top = await fuse.lookup(SKYLINKS, str(link).encode(), CTX)
        await refused(errno.ETIMEDOUT, fuse.opendir(top.st_ino, CTX))
        [failure] = fuse.failures.recent()
        assert (failure["reason"], failure["portal"]) == (reason, portal)
        assert caplog.messages[-1].endswith(f": opendir failed after 7.0 s: {reason}")
        assert fuse.failures.last_error(top.st_ino).decode().endswith(reason)


async def test_cancellation_passes():
    """A handler that is cancelled, as at shutdown, is not turned into an errno."""
    async with open_in_memory_mount() as mount:
        link = mount.reader.add(FILES)
        mount.reader.delays[link] = 1e9
        with trio.move_on_after(0.01) as scope:
            await adapter(mount).lookup(SKYLINKS, str(link).encode(), CTX)
        assert scope.cancelled_caught


CHANGES = {
    "setattr": (1, pyfuse3.EntryAttributes(), SimpleNamespace(update_size=False), None, CTX),
    "create": (1, b"x", 0o644, 0, CTX),
    "mkdir": (1, b"x", 0o755, CTX),
    "mknod": (1, b"x", 0o644, 0, CTX),
    "symlink": (1, b"x", b"y", CTX),
    "link": (1, 1, b"x", CTX),
    "unlink": (1, b"x", CTX),
    "rmdir": (1, b"x", CTX),
    "rename": (1, b"x", 1, b"y", 0, CTX),
    "setxattr": (1, b"user.x", b"y", CTX),
    "removexattr": (1, b"user.x", CTX),
}


@pytest.mark.parametrize("operation", CHANGES)
async def test_changes_are_refused(operation: str):
    """W1: Every attempt to change anything is EROFS.

    Everything is read-only.
    """
    async with open_in_memory_mount() as mount:
        await refused(errno.EROFS, getattr(adapter(mount), operation)(*CHANGES[operation]))


async def test_flush_and_fsync_exist():
    """They answer: «not implemented» would be remembered by the kernel for ever."""
    async with open_in_memory_mount() as mount:
        fuse = adapter(mount)
        control = await fuse.lookup(ROOT, b".skymount", CTX)
        status = await fuse.lookup(control.st_ino, b"status.json", CTX)
        opened = await fuse.open(status.st_ino, os.O_RDONLY, CTX)
        await fuse.flush(opened.fh)
        await fuse.fsync(opened.fh, False)
        await fuse.fsyncdir(1, False)
        assert await fuse.read(opened.fh, 0, 100) == b'{"pid": 1}'


async def test_access(autojump_clock: object):
    """Reading is open to all, writing to nobody, executing as the mode says."""
    async with open_in_memory_mount() as mount:
        fuse = adapter(mount)
        top = await fuse.lookup(SKYLINKS, str(mount.reader.add(FILES)).encode(), CTX)
        file = await fuse.lookup(top.st_ino, b"a.txt", CTX)
        assert await fuse.access(file.st_ino, os.R_OK, CTX)
        assert await fuse.access(top.st_ino, os.X_OK, CTX)
        assert not await fuse.access(file.st_ino, os.X_OK, CTX)
        await refused(errno.EROFS, fuse.access(file.st_ino, os.R_OK | os.W_OK, CTX))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (b"security.selinux", errno.EOPNOTSUPP),
        (b"system.posix_acl_access", errno.EOPNOTSUPP),
        (b"trusted.x", errno.EOPNOTSUPP),
        (b"user.unknown", errno.ENODATA),
        (b"user.", errno.ENODATA),
        (b"", errno.EOPNOTSUPP),
    ],
)
async def test_unknown_attributes(name: bytes, number: int, caplog: pytest.LogCaptureFixture):
    """A2: Attributes outside `user.` are not supported (EOPNOTSUPP).

    Name spaces that are not ours are not supported, names in ours that we lack have no data. The
    log says nothing: `ls` asks so for each file.
    """
    async with open_in_memory_mount() as mount:
        await refused(number, adapter(mount).getxattr(ROOT, name, CTX))
    assert caplog.text == ""


async def test_statfs(autojump_clock: object):
    """A3: and nothing as free.

    The numbers of df are sane, with and without content.
    """
    async with open_in_memory_mount() as mount:
        fuse = adapter(mount)
        for _ in range(2):
            found = await fuse.statfs(CTX)
            assert found.f_bsize == found.f_frsize == 4096
            assert found.f_blocks >= 1
            assert found.f_bfree == found.f_bavail == found.f_ffree == 0
            assert found.f_namemax == 255
            await fuse.lookup(SKYLINKS, str(mount.reader.add(FILES)).encode(), CTX)


async def test_forget_never_raises():
    """Forgetting whatever the kernel names is harmless."""
    async with open_in_memory_mount() as mount:
        await adapter(mount).forget([(1, 1), (2, 5), (99 << 24, 1), ((1 << 63) - 1, 1 << 40)])


def at_once(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine that does not wait for anything, outside of any event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


async def test_answers_from_memory(autojump_clock: object):
    """What is asked of a tree that is loaded is answered without waiting, whatever the deadline."""
    async with open_in_memory_mount() as mount:
        fuse = adapter(mount, deadline=0)
        top = await mount.operations.lookup(SKYLINKS, str(mount.reader.add(FILES)).encode())
        file = at_once(fuse.lookup(top.inode, b"a.txt", CTX))
        assert at_once(fuse.lookup(top.inode, b"nothing", CTX)).st_ino == 0
        assert at_once(fuse.getattr(file.st_ino, CTX)).st_size == 5
        assert at_once(fuse.access(file.st_ino, os.R_OK, CTX))
        assert at_once(fuse.getxattr(file.st_ino, b"user.skymount.verified", CTX)) == b"yes"
        opened = at_once(fuse.open(file.st_ino, os.O_RDONLY, CTX)).fh
        assert at_once(fuse.read(opened, 0, 4096)) == b"hello"
        at_once(fuse.flush(opened))
        at_once(fuse.release(opened))
        at_once(fuse.releasedir(at_once(fuse.opendir(top.inode, CTX))))
        assert fuse.counts["lookup"] == 2


async def test_only_what_waits_has_a_deadline(autojump_clock: object):
    """R2: Every operation ends within `timeout`, a read that has to wait as well."""
    async with open_in_memory_mount(deadline=0.5) as mount:
        fuse = adapter(mount, deadline=0.5)
        top = await mount.operations.lookup(SKYLINKS, str(mount.reader.add(FILES)).encode())
        file = await fuse.lookup(top.inode, b"a.txt", CTX)
        opened = await fuse.open(file.st_ino, os.O_RDONLY, CTX)
        mount.reader.cold = True
        await refused(errno.ETIMEDOUT, fuse.read(opened.fh, 0, 4096))
