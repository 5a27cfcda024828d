"""Owns the border to the kernel: pyfuse3's types on one side, `FileSystem` on the other.

The only importer of pyfuse3. Every exception becomes an errno here, by one table.
"""

import errno
import logging
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import pyfuse3
import trio

from skymount.concurrency import in_turns
from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    FrozenEntryError,
    MountError,
    NotFoundError,
    PortalTimeoutError,
    SkymountError,
    StaleEntryError,
)
from skymount.fs.dispatcher import FileSystem, Opened
from skymount.fs.skylinks.mounted_name import merged
from skymount.fs.subtree import (
    UNCHANGING,
    Answer,
    Changes,
    Entry,
    Terms,
    asker,
    is_later,
    refuse,
    settled,
)

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

SUBTYPE = "skymount"
"""The mount's type is ``fuse.skymount``: indexers can be told to stay out (PRUNEFS)."""

_TASKS = 1000
"""Requests handled at once. pyfuse3's own 99 would let slow reads starve a stat from memory."""

_BLOCK_SIZE = 4096  # bytes, of statfs; f_bsize and f_frsize must agree or df misreads them
_SECTOR = 512  # bytes, the unit of st_blocks
_PREFERRED_IO = 128 << 10  # bytes, st_blksize: what the kernel asks for at a time

ERRNO: Sequence[tuple[type[SkymountError], int]] = (
    (NotFoundError, errno.ENOENT),  # every portal said so; never the result of a failure
    (AccessDeniedError, errno.EACCES),  # credentials, payment or a blocklist
    (PortalTimeoutError, errno.ETIMEDOUT),
    (StaleEntryError, errno.ESTALE),  # somebody else changed the entry since it was opened
    (FrozenEntryError, errno.EPERM),
    (BadContentError, errno.EIO),  # EBADMSG would be more exact, but tools print EIO better
    (SkymountError, errno.EIO),
)
"""What each error means to a program; the first match counts."""


@dataclass(frozen=True, slots=True)
class FuseConfig:
    """How to mount."""

    mountpoint: str
    allow_other: bool = False
    deadline: float = 30.0
    """Seconds after which any operation fails with ETIMEDOUT."""


def errno_of(error: Exception) -> int:
    """Return the errno for an exception; EIO for what nobody foresaw."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if isinstance(error, trio.TooSlowError):
        return errno.ETIMEDOUT
    return next((number for kind, number in ERRNO if isinstance(error, kind)), errno.EIO)


def _handler(
    work: Callable[Concatenate["FuseAdapter", P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["FuseAdapter", P], Coroutine[Any, Any, R]]:
    """Count an operation, and turn whatever it raises into a FUSEError."""
    name = work.__name__

    async def handle(self: "FuseAdapter", /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.counts[name] += 1
        try:
            return await work(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # pyfuse3 ends the mount on any other
            raise _refusal(name, error) from None

    return handle


def _refusal(operation: str, error: Exception) -> pyfuse3.FUSEError:
    """Return what to tell the kernel of an exception; anything else would end the mount."""
    if isinstance(error, pyfuse3.FUSEError):
        return error
    number = errno_of(error)
    if not isinstance(error, SkymountError | OSError | trio.TooSlowError):
        log.error("%s failed", operation, exc_info=error)
    elif number not in (errno.ENOENT, errno.EROFS):
        log.warning("%s: %s", operation, str(error) or os.strerror(number))
    return pyfuse3.FUSEError(number)


class FuseAdapter(pyfuse3.Operations):
    """Speaks with the kernel; decides nothing."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, operations: FileSystem, config: FuseConfig) -> None:
        super().__init__()
        self._operations = operations
        self.counts = Counter[str]()
        """How many requests of each kind came."""
        self._deadline = config.deadline
        self._forgetting = trio.Lock()
        self._uid, self._gid = os.getuid(), os.getgid()

    async def _answered(self, answer: Answer[R]) -> R:
        """Return an answer; one that must be waited for has a deadline."""
        return await self._in_time(answer) if is_later(answer) else answer  # type: ignore[return-value]

    async def _in_time(self, work: Coroutine[Any, Any, R]) -> R:
        with trio.fail_after(self._deadline):
            return await work

    def _attributes(self, entry: Entry) -> pyfuse3.EntryAttributes:
        found = self._new_attributes(entry)
        found.st_ino, found.st_mode, found.st_size = entry.inode, entry.mode, entry.size
        found.st_blocks = -(-entry.size // _SECTOR)
        return found

    def _new_attributes(self, terms: Entry | Terms) -> pyfuse3.EntryAttributes:
        """Return attributes that lack what differs between the children of one directory.

        The number of links is 1, also of a directory: «not counted», so that find looks at each
        child.
        """
        found = pyfuse3.EntryAttributes()
        found.st_uid, found.st_gid = self._uid, self._gid
        found.st_blksize = _PREFERRED_IO
        found.entry_timeout, found.attr_timeout = terms.entry_ttl, terms.attr_ttl
        found.st_mtime_ns = found.st_ctime_ns = found.st_atime_ns = terms.mtime_ns
        return found

    @_handler
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        asker.set(ctx.pid)
        entry = await self._answered(self._operations.lookup(parent_inode, name))
        return self._attributes(entry)

    @_handler
    async def getattr(
        self, inode: int, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        return self._attributes(await self._answered(self._operations.getattr(inode)))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self.counts["forget"] += 1
        async with self._forgetting:  # one after another, or all of them would have a turn in each
            async for inode, count in in_turns(merged(inode_list)):
                self._operations.forget(inode, count)

    @_handler
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        if mode & os.W_OK:
            self._only_owner(ctx, inode)
        return await self._answered(self._operations.access(inode, mode))

    @_handler
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._in_time(self._operations.readlink(inode))

    def _only_owner(self, ctx: pyfuse3.RequestContext, inode: int) -> None:
        """EACCES for anybody else where one can write: the keys that sign are the owner's."""
        if not self._may_write(ctx, inode):
            raise pyfuse3.FUSEError(errno.EACCES)

    def _may_write(self, ctx: pyfuse3.RequestContext, inode: int) -> bool:
        return not self._operations.is_writable(inode) or ctx.uid in (self._uid, 0)

    async def _open_for_anybody(self, inode: int, flags: int) -> Opened:
        """Open what everybody may read: a scratch file is its owner's."""
        entry = await settled(self._operations.getattr(inode))
        if not entry.mode & stat.S_IROTH:
            refuse(errno.EACCES)
        return await settled(self._operations.open(inode, flags))

    @_handler
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        self._only_owner(ctx, inode)
        changes = Changes(attr.st_size if fields.update_size else None)
        entry = await self._in_time(self._operations.setattr(inode, changes, fh))
        return self._attributes(entry)

    @_handler
    async def create(
        self,
        parent_inode: int,
        name: bytes,
        mode: int,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        self._only_owner(ctx, parent_inode)
        created = self._operations.create(parent_inode, name, flags)
        entry, handle, keep = await self._in_time(created)
        info = pyfuse3.FileInfo(fh=handle, keep_cache=keep, direct_io=not keep)
        return info, self._attributes(entry)

    @_handler
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._only_owner(ctx, parent_inode)
        await self._in_time(self._operations.unlink(parent_inode, name))

    @_handler
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        self._only_owner(ctx, parent_inode_old)
        old, new = (parent_inode_old, name_old), (parent_inode_new, name_new)
        await self._in_time(self._operations.rename(*old, *new, flags))

    @_handler
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> NoReturn:
        await self._make(parent_inode, name)

    @_handler
    async def mknod(
        self,
        parent_inode: int,
        name: bytes,
        mode: int,
        rdev: int,
        ctx: pyfuse3.RequestContext,
    ) -> NoReturn:
        await self._make(parent_inode, name)

    @_handler
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> NoReturn:
        await self._make(parent_inode, name)

    @_handler
    async def link(
        self,
        inode: int,
        new_parent_inode: int,
        new_name: bytes,
        ctx: pyfuse3.RequestContext,
    ) -> NoReturn:
        await self._make(new_parent_inode, new_name)

    @_handler
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> NoReturn:
        await self._make(parent_inode, name)

    async def _make(self, parent: int, name: bytes) -> NoReturn:
        """Refuse what no part of the tree can hold."""
        await self._in_time(self._operations.make(parent, name))
        raise pyfuse3.FUSEError(errno.EPERM)

    @_handler
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return await self._answered(self._operations.opendir(inode))

    @_handler
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        reached, count = start_id, 0
        known, attributes = UNCHANGING, self._new_attributes(UNCHANGING)
        for name, inode, mode, size, position, terms in self._operations.readdir(fh, start_id):
            if terms is not known:
                known, attributes = terms, self._new_attributes(terms)
            attributes.st_ino, attributes.st_mode, attributes.st_size = inode, mode, size
            attributes.st_blocks = -(-size // _SECTOR)
            if not pyfuse3.readdir_reply(token, name, attributes, position):
                break
            reached = position
            count += 1
        self._operations.referred(fh, start_id, reached, count)

    @_handler
    async def releasedir(self, fh: int) -> None:
        self._operations.releasedir(fh)

    @_handler
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        is_writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC)
        if is_writing:
            self._only_owner(ctx, inode)
        if is_writing or self._may_write(ctx, inode):
            opened = self._operations.open(inode, flags)
        else:
            opened = self._open_for_anybody(inode, flags)
        handle, keep, content = await self._answered(opened)
        if content:
            with suppress(OSError):  # it will ask, then
                pyfuse3.notify_store(inode, 0, content)  # type: ignore[arg-type]  # any buffer
        return pyfuse3.FileInfo(fh=handle, keep_cache=keep, direct_io=not keep)

    @_handler
    async def read(  # type: ignore[override]  # pyfuse3 takes any buffer
        self, fh: int, off: int, size: int
    ) -> bytes | memoryview:
        return await self._answered(self._operations.read(fh, off, size))

    @_handler
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return self._operations.write(fh, off, buf)

    @_handler
    async def release(self, fh: int) -> None:
        await self._answered(self._operations.release(fh))

    @_handler
    async def flush(self, fh: int) -> None:
        """Must exist, also where nothing is ever unwritten: ENOSYS would be remembered for ever."""
        await self._answered(self._operations.flush(fh))

    @_handler
    async def fsync(self, fh: int, datasync: bool) -> None:
        """As flush."""
        await self._in_time(self._operations.fsync(fh))

    @_handler
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """As flush."""

    @_handler
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        if not name.startswith(b"user."):
            # «not supported» makes ls stop asking for each file's labels and ACLs
            raise pyfuse3.FUSEError(errno.EOPNOTSUPP)
        value = (await self._answered(self._operations.xattrs(inode))).get(name)
        if value is None:
            raise pyfuse3.FUSEError(pyfuse3.ENOATTR)
        return value

    @_handler
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        return list(await self._answered(self._operations.xattrs(inode)))

    @_handler
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        size, files = self._operations.usage()
        found = pyfuse3.StatvfsData()
        found.f_bsize = found.f_frsize = _BLOCK_SIZE
        found.f_blocks = max(1, -(-size // _BLOCK_SIZE))  # of none at all, df would say nothing
        found.f_bfree = found.f_bavail = 0
        found.f_files = max(1, files)
        found.f_ffree = found.f_favail = 0
        found.f_namemax = 255
        return found

    @_handler
    async def setxattr(
        self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext
    ) -> NoReturn:
        self._refuse_xattr(inode, name)

    @_handler
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> NoReturn:
        self._refuse_xattr(inode, name)

    def _refuse_xattr(self, inode: int, name: bytes) -> NoReturn:
        """Refuse so that programs that copy labels and attributes go on without them."""
        is_read_only = name.startswith(b"user.") and not self._operations.is_writable(inode)
        raise pyfuse3.FUSEError(errno.EROFS if is_read_only else errno.EOPNOTSUPP)


def attach(adapter: FuseAdapter, config: FuseConfig) -> None:
    """Mount; the kernel's requests wait until `run`. MountError when the mount is refused."""
    options = set(pyfuse3.default_options)
    options |= {"fsname=skymount", f"subtype={SUBTYPE}", "nosuid", "nodev", "noatime"}
    options.discard("default_permissions")  # writing is EROFS to everyone, not EACCES to some
    if config.allow_other:
        options.add("allow_other")
    with tempfile.TemporaryFile() as words:
        try:
            with _stderr_to(words.fileno()):
                pyfuse3.init(adapter, config.mountpoint, options)
        except RuntimeError as error:
            words.seek(0)
            said = " ".join(words.read(2000).decode(errors="replace").split())
            raise MountError(f"{config.mountpoint}: {said or error}") from None


@contextmanager
def _stderr_to(descriptor: int) -> Iterator[None]:
    """Send what libfuse and fusermount3 print to a file: it is the only reason they give."""
    saved = os.dup(2)
    try:
        os.dup2(descriptor, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


async def run() -> None:
    """Answer the kernel until the file system is unmounted or the task is cancelled."""
    await pyfuse3.main(min_tasks=1, max_tasks=_TASKS)


def stop() -> None:
    """Take no more requests; `run` returns when those under way are answered."""
    pyfuse3.terminate()


def detach() -> None:
    """Unmount, lazily if something is still using it; call once after `attach`."""
    pyfuse3.close(unmount=True)
