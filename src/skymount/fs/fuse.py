"""Answers the kernel's FUSE requests: pyfuse3's types on one side, subtrees on the other.

Every exception becomes an errno here, by the table `ERRNO`. The only module that imports pyfuse3.
"""

import errno
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import pyfuse3
import trio

from skymount.concurrency import in_turns
from skymount.errors import (
    AccessDeniedError,
    FrozenEntryError,
    InvalidDocumentError,
    NotFoundError,
    PortalTimeoutError,
    ReadOnlyPortalError,
    SkymountError,
    StaleEntryError,
)
from skymount.fs.dispatcher import FileSystem
from skymount.fs.failures import FailureLog, describe
from skymount.fs.inode_space import merge_forgets
from skymount.fs.obstacles import refusal
from skymount.fs.subtree import (
    COPIED,
    IMMUTABLE,
    LIVE,
    NAME_MAX,
    InodeAttributes,
    Limit,
    OpenFile,
    RefusalError,
    Subtree,
)
from skymount.settings import DEFAULTS

P = ParamSpec("P")
R = TypeVar("R")

_MAX_TASKS = 1000  # at once; with pyfuse3's default of 99, slow reads block a stat from memory
_BLOCK_SIZE = 4096  # bytes; statfs: df expects f_bsize and f_frsize to be equal
_SECTOR = 512  # bytes, the unit of st_blocks
_PREFERRED_IO = 128 << 10  # bytes, st_blksize
_LAST_ERROR = b"user.skymount.last_error"

_BY_HANDLE = frozenset({"read", "write", "flush", "fsync", "release"})
_BY_DIRECTORY_HANDLE = frozenset({"readdir", "releasedir", "fsyncdir"})
_BY_NAME = {"lookup": 0, "create": 0, "unlink": 0, "rename": 2}
"""The operations on a name in a directory, and where both are among the arguments."""

# The errno of each error; the first match counts.
ERRNO: Sequence[tuple[type[SkymountError], int]] = (
    (NotFoundError, errno.ENOENT),  # every portal said so; a failure never counts as that
    (AccessDeniedError, errno.EACCES),  # credentials, payment or a blocklist
    (PortalTimeoutError, errno.ETIMEDOUT),
    (ReadOnlyPortalError, errno.EROFS),  # all portals are read-only
    (StaleEntryError, errno.ESTALE),  # someone else changed the entry since it was opened
    (FrozenEntryError, errno.EPERM),  # the entry has the last revision
    (InvalidDocumentError, errno.EINVAL),  # what was written to a file of skydb is no JSON
    (SkymountError, errno.EIO),
)


@dataclass(frozen=True, slots=True)
class FuseConfig:
    """How to mount."""

    mountpoint: str
    allow_other: bool = False
    deadline: float = DEFAULTS.timeout  # seconds after which any operation fails with ETIMEDOUT
    options: tuple[str, ...] = ()  # further ones of mount(8)


def errno_of(error: Exception) -> int:
    """Return the errno for an exception; EIO if it is unexpected."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if isinstance(error, trio.TooSlowError):
        return errno.ETIMEDOUT
    return next((number for kind, number in ERRNO if isinstance(error, kind)), errno.EIO)


def _handler(
    work: Callable[Concatenate["FuseAdapter", P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["FuseAdapter", P], Coroutine[Any, Any, R]]:
    """Count a request, and turn whatever it raises into a FUSEError."""
    name = work.__name__

    async def handle(self: "FuseAdapter", /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.counts[name] += 1
        begun = trio.current_time()
        number = next(self._numbers)
        self.under_way[number] = name, begun
        try:
            found = await work(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # pyfuse3 ends the mount on any other
            raise self._fuse_error(name, args, error, begun) from None
        finally:
            del self.under_way[number]
        if self.failures:
            self._note_success(name, args)
        return found

    return handle


def _refuse(number: int) -> NoReturn:
    """Refuse a request that is no failure: nothing is logged."""
    raise pyfuse3.FUSEError(number)


def _check_length(name: bytes) -> None:
    if len(name) > NAME_MAX:
        _refuse(errno.ENAMETOOLONG)


def _never_possible(name: str, parent: int = 0) -> Any:
    """Refuse a request; `parent` is the position of the directory's inode among its arguments."""

    async def refuse_it(self: "FuseAdapter", *args: Any) -> NoReturn:
        _refuse(self.files.subtree(args[parent]).refusal)

    refuse_it.__name__ = name
    return _handler(refuse_it)


class FuseAdapter(pyfuse3.Operations):
    """Translates each request for the subtree that it concerns, and the answer for the kernel."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self,
        files: FileSystem,
        config: FuseConfig,
        waited_for: Callable[[], Sequence[str]] = tuple,
        limit: Limit | None = None,
    ) -> None:
        """`waited_for` names the portals that an operation which is out of time waited for. The
        `limit` of operations is the configured time, unless it is given.
        """
        super().__init__()
        self._waited_for = waited_for
        self.files = files
        self.counts = Counter[str]()  # requests by kind
        self.under_way: dict[int, tuple[str, float]] = {}
        """Kind and beginning, by trio's clock, of the requests that are not answered yet; the
        oldest first.
        """
        self._numbers = count()
        self.failures = FailureLog()
        self._deadline = config.deadline
        self._limit = limit or partial(trio.fail_after, config.deadline)
        self._forget_lock = trio.Lock()
        self._uid, self._gid = os.getuid(), os.getgid()

    def _limited(self, subject: Subtree | OpenFile) -> AbstractContextManager[object]:
        return nullcontext() if subject.has_own_deadline else self._limit()

    def _attributes(self, found: InodeAttributes) -> pyfuse3.EntryAttributes:
        attributes = self._new_attributes(found.entry_timeout, found.attr_timeout, found.mtime_ns)
        attributes.st_ino, attributes.st_mode, attributes.st_size = found[:3]
        attributes.st_nlink = found.nlink
        attributes.st_blocks = -(-found.size // _SECTOR)
        return attributes

    def _new_attributes(
        self, entry_timeout: float, attr_timeout: float, mtime_ns: int
    ) -> pyfuse3.EntryAttributes:
        """Return attributes without inode, mode and size, which a listing reuses for many names.

        st_nlink stays 1, for a directory too, so that find looks at each child.
        """
        attributes = pyfuse3.EntryAttributes()
        attributes.st_uid, attributes.st_gid = self._uid, self._gid
        attributes.st_blksize = _PREFERRED_IO
        attributes.entry_timeout, attributes.attr_timeout = entry_timeout, attr_timeout
        attributes.st_mtime_ns = attributes.st_ctime_ns = attributes.st_atime_ns = mtime_ns
        return attributes

    # Failures

    def _fuse_error(
        self, operation: str, args: Sequence[Any], error: Exception, begun: float
    ) -> pyfuse3.FUSEError:
        """Turn an exception into a FUSEError, and record it if it is a failure."""
        if isinstance(error, pyfuse3.FUSEError):
            return error
        number = errno_of(error)
        if isinstance(error, NotFoundError | RefusalError):
            return pyfuse3.FUSEError(number)
        bug = None
        if isinstance(error, trio.TooSlowError):
            error = self._out_of_time()
        if isinstance(error, SkymountError | OSError):
            reason = str(error) or os.strerror(number)
        else:
            bug, reason = error, f"unforeseen {type(error).__name__}"
        inode, path = 0, b""
        with suppress(Exception):  # nothing may go wrong here
            inode = self._inode(operation, args)
            path = self._path(operation, args, inode)
            if operation == "lookup":
                inode = inode or args[0]  # a name without an inode has no attributes to ask for
        seconds = trio.current_time() - begun
        failure = describe(operation, path or b"?", reason, error, number, seconds)
        self.failures.add(failure, inode, bug)
        return pyfuse3.FUSEError(number)

    def _out_of_time(self) -> PortalTimeoutError:
        """Return the error of an operation that took too long."""
        portals = self._waited_for()
        text = f"not done within {self._deadline:g} s"
        if len(portals) == 1:
            return PortalTimeoutError(text, url=portals[0])
        waited = f", waiting for {' and '.join(portals)}" if portals else ""
        return PortalTimeoutError(text + waited)

    def _inode(self, operation: str, args: Sequence[Any]) -> int:
        """Return the inode number of what an operation is done to, 0 if it is unknown."""
        files = self.files
        if operation in _BY_NAME:
            parent, name = args[_BY_NAME[operation] :][:2]
            return files.subtree(parent).child(parent, name)
        if operation in _BY_HANDLE:
            return files.open_files[args[0]].inode
        if operation in _BY_DIRECTORY_HANDLE:
            return files.open_directories[args[0]].inode
        return int(args[0])

    def _path(self, operation: str, args: Sequence[Any], inode: int) -> bytes:
        if operation not in _BY_NAME:
            return self.files.subtree(inode).path(inode)
        parent, name = args[_BY_NAME[operation] :][:2]
        return self.files.subtree(parent).path(parent) + b"/" + bytes(name)

    def _note_success(self, operation: str, args: Sequence[Any]) -> None:
        with suppress(Exception):  # the operation was done, whatever is known of its path
            if operation != "flush" or self.files.open_files[args[0]].posts:
                self.failures.succeeded(operation, self._inode(operation, args))

    # Names and attributes

    @_handler
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        _check_length(name)
        subtree = self.files.subtree(parent_inode)
        with self._limited(subtree):
            return self._attributes(await subtree.lookup(parent_inode, name))

    @_handler
    async def getattr(
        self, inode: int, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        subtree = self.files.subtree(inode)
        with self._limited(subtree):
            return self._attributes(await subtree.getattr(inode))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self.counts["forget"] += 1
        async with self._forget_lock:  # one list at a time, else each would take a turn
            async for inode, count in in_turns(merge_forgets(inode_list)):
                self.files.subtree(inode).forget(inode, count)

    @_handler
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        if mode & os.W_OK:
            self._check_owner(ctx, inode)
        subtree = self.files.subtree(inode)
        with self._limited(subtree):
            return await subtree.access(inode, mode)

    @_handler
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        subtree = self.files.subtree(inode)
        with self._limited(subtree):
            return await subtree.readlink(inode)

    @_handler
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        if not name.startswith(b"user."):
            _refuse(
                errno.EOPNOTSUPP
            )  # so that ls does not ask for the labels and ACLs of each file
        if name == _LAST_ERROR:
            value = self.failures.last_error(inode)
        else:
            value = (await self._xattrs(inode)).get(name)
        return value if value is not None else _refuse(pyfuse3.ENOATTR)

    @_handler
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        subtree = self.files.subtree(inode)
        with self._limited(subtree):
            return await subtree.listed_xattrs(inode)

    async def _xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        subtree = self.files.subtree(inode)
        with self._limited(subtree):
            return await subtree.xattrs(inode)

    @_handler
    async def setxattr(
        self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext
    ) -> None:
        self._change_xattr(inode, name, ctx)

    @_handler
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._change_xattr(inode, name, ctx)

    def _change_xattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Accept, without effect, what a copy may have of ours; refuse others with the errno after
        which programs that copy attributes go on without them.
        """
        if name.startswith(b"user.") and not self.files.subtree(inode).writable:
            _refuse(errno.EROFS)
        if not name.startswith(LIVE.encode()) and name not in COPIED:
            _refuse(errno.EOPNOTSUPP)
        self._check_owner(ctx, inode)

    # Changes

    def _check_owner(self, ctx: pyfuse3.RequestContext, inode: int) -> None:
        """EACCES for other users where one can write: the signing keys are the owner's."""
        if not self._may_write(ctx, inode):
            _refuse(errno.EACCES)

    def _may_write(self, ctx: pyfuse3.RequestContext, inode: int) -> bool:
        return not self.files.subtree(inode).writable or ctx.uid in (self._uid, 0)

    @_handler
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        self._check_owner(ctx, inode)
        size = attr.st_size if fields.update_size else None
        opened = None if fh is None else self.files.open_files[fh]
        with self._limit():
            found = await self.files.subtree(inode).setattr(inode, size, opened)
        return self._attributes(found)

    @_handler
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        self._check_owner(ctx, parent_inode)
        _check_length(name)
        with self._limit():
            subtree = self.files.subtree(parent_inode)
            found, opened = await subtree.create(parent_inode, name, flags)
        return self._file_info(opened, found.inode), self._attributes(found)

    @_handler
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a regular file: tar does so before it sets attributes."""
        subtree = self.files.subtree(parent_inode)
        if not stat.S_ISREG(mode):
            _refuse(subtree.refusal)
        self._check_owner(ctx, parent_inode)
        _check_length(name)
        with self._limit():
            found, opened = await subtree.create(parent_inode, name, os.O_WRONLY)
            await opened.release()
        return self._attributes(found)

    @_handler
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._check_owner(ctx, parent_inode)
        with self._limit():
            await self.files.subtree(parent_inode).unlink(parent_inode, name)

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
        self._check_owner(ctx, parent_inode_old)
        _check_length(name_new)
        subtree = self.files.subtree(parent_inode_old)
        if self.files.subtree(parent_inode_new) is not subtree:
            is_writable = subtree.writable and self.files.subtree(parent_inode_new).writable
            _refuse(errno.EXDEV if is_writable else errno.EROFS)
        old, new = (parent_inode_old, name_old), (parent_inode_new, name_new)
        with self._limit():
            await subtree.rename(*old, *new, flags)

    mkdir = _never_possible("mkdir")
    symlink = _never_possible("symlink")
    rmdir = _never_possible("rmdir")
    link = _never_possible("link", parent=1)

    # Directories

    @_handler
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        subtree = self.files.subtree(inode)
        with self._limited(subtree):
            opened = await subtree.opendir(inode)
            opened.parent = subtree.parent(inode)
            return self.files.add_directory(opened, inode)

    @_handler
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        directory = self.files.open_directories[fh]
        dots = ((b".", directory.inode), (b"..", directory.parent))
        if start_id < len(dots):
            itself = self._new_attributes(0.0, 0.0, 0)
            itself.st_mode = stat.S_IFDIR
            for position, (name, inode) in enumerate(dots[start_id:], start_id + 1):
                itself.st_ino = inode  # which the kernel neither keeps nor counts
                if not pyfuse3.readdir_reply(token, name, itself, position):
                    return
        start = last = max(0, start_id - len(dots))
        listed = 0
        known, attributes = IMMUTABLE, self._new_attributes(*IMMUTABLE)
        for name, inode, mode, size, position, validity in directory.readdir(start):
            if validity is not known:
                known, attributes = validity, self._new_attributes(*validity)
            attributes.st_ino, attributes.st_mode, attributes.st_size = inode, mode, size
            attributes.st_blocks = -(-size // _SECTOR)
            if not pyfuse3.readdir_reply(token, name, attributes, position + len(dots)):
                break
            last = position
            listed += 1
        directory.referred(start, last, listed)

    @_handler
    async def releasedir(self, fh: int) -> None:
        self.files.open_directories.pop(fh).release()

    @_handler
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Must exist, as `flush`."""

    # Files

    @_handler
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        subtree = self.files.subtree(inode)
        is_writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC)
        if is_writing:
            self._check_owner(ctx, inode)
        with self._limited(subtree):
            if not is_writing and not self._may_write(ctx, inode):
                mode = (await subtree.getattr(inode)).mode
                if not mode & stat.S_IROTH:  # one of the owner's scratch files
                    _refuse(errno.EACCES)
            opened = await subtree.open(inode, flags)
        if content := opened.preload():
            with suppress(OSError):  # then the kernel will ask for it
                pyfuse3.notify_store(inode, 0, content)  # type: ignore[arg-type]  # any buffer
                self.failures.succeeded("read", inode)
        return self._file_info(opened, inode)

    def _file_info(self, opened: OpenFile, inode: int) -> pyfuse3.FileInfo:
        keep = opened.keep_cache
        return pyfuse3.FileInfo(
            fh=self.files.add_file(opened, inode), keep_cache=keep, direct_io=not keep
        )

    @_handler
    async def read(  # type: ignore[override]  # pyfuse3 takes any buffer
        self, fh: int, off: int, size: int
    ) -> bytes | memoryview:
        opened = self.files.open_files[fh]
        with self._limited(opened):
            return await opened.read(off, size)

    @_handler
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return self.files.open_files[fh].write(off, buf)

    @_handler
    async def flush(self, fh: int) -> None:
        """Must exist, also for files that are never written: the kernel remembers ENOSYS."""
        opened = self.files.open_files[fh]
        with self._limited(opened):
            await opened.flush()

    @_handler
    async def fsync(self, fh: int, datasync: bool) -> None:
        opened = self.files.open_files[fh]
        with self._limited(opened):
            await opened.fsync()

    @_handler
    async def release(self, fh: int) -> None:
        opened, begun = self.files.open_files[fh], trio.current_time()
        try:
            with self._limited(opened):
                await opened.release()
        except Exception as error:  # noqa: BLE001  # recorded while it is known what `fh` is
            raise self._fuse_error("release", (fh,), error, begun) from None
        finally:
            del self.files.open_files[fh]

    @_handler
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        size, files = self.files.usage()
        found = pyfuse3.StatvfsData()
        found.f_bsize = found.f_frsize = _BLOCK_SIZE
        found.f_blocks = max(1, -(-size // _BLOCK_SIZE))  # df leaves out a file system of size 0
        found.f_files = max(1, files)
        found.f_namemax = NAME_MAX
        return found


def attach(adapter: FuseAdapter, config: FuseConfig) -> None:
    """Mount; the kernel's requests wait until `run`. MountError when the mount is refused."""
    options = set(pyfuse3.default_options)
    options |= {"fsname=skymount", "subtype=skymount", "nosuid", "nodev", "noatime"}
    options.discard("default_permissions")  # so that a write is EROFS for every user
    options |= set(config.options)
    if config.allow_other:
        options.add("allow_other")
    with tempfile.TemporaryFile() as output:
        try:
            with _stderr_to(output.fileno()):
                pyfuse3.init(adapter, config.mountpoint, options)
        except RuntimeError as error:
            output.seek(0)
            message = " ".join(output.read(2000).decode(errors="replace").split())
            raise refusal(config.mountpoint, message or str(error)) from None


@contextmanager
def _stderr_to(descriptor: int) -> Iterator[None]:
    """Redirect what libfuse and fusermount3 print: the only place where they give a reason."""
    saved = os.dup(2)
    try:
        os.dup2(descriptor, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


async def run() -> None:
    """Answer the kernel until the file system is unmounted or the task is cancelled."""
    try:
        await pyfuse3.main(min_tasks=1, max_tasks=_MAX_TASKS)
    except* ConnectionAbortedError:
        pass  # in place of ENODEV: the end came while the kernel handed out a request


def stop() -> None:
    """Take no more requests; `run` returns once those in flight are answered."""
    pyfuse3.terminate()


def detach() -> None:
    """Unmount, lazily if something is still using it; call once after `attach`."""
    pyfuse3.close(unmount=True)
