"""Looks up names in `/registry` and `/skydb`, and answers what is asked of their attributes."""

import errno
import logging
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

import trio

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    MalformedError,
    PortalError,
    SkymountError,
)
from skymount.fs.inode_space import DIRECTORY_INODES, PATHS, InodeSpace
from skymount.fs.registry.file_names import VIM_PROBE, KeyFileNames, is_scratch
from skymount.fs.registry.keyring_cache import KeyringCache
from skymount.fs.registry.listing_readahead import AHEAD, Walk
from skymount.fs.registry.nodes import (
    SCRATCH_MODE,
    EntryFile,
    KeyDirectory,
    KeyLink,
    KeyNode,
    LastContent,
    NodeTable,
    ScratchFile,
)
from skymount.fs.registry.poster import EntryPoster
from skymount.fs.registry.store import KeyFileStore, S, changed_ns
from skymount.fs.registry.write_buffer import FileData
from skymount.fs.subtree import (
    MUTABLE_TIMEOUT,
    UNCACHED_NO_ENTRY,
    InodeAttributes,
    Limit,
    RefusalError,
    Subtree,
    refuse,
)
from skymount.portal.ledger.entries import EntryId
from skymount.settings import DEFAULTS
from skymount.wire.registry_entry import DATA_LIMIT

log = logging.getLogger(__name__)

_MIN_SCRATCH_LIMIT = 1 << 20  # bytes
_USABLE = 0.75
"""Part of `ttl` after which what is fetched ahead is asked for again: it has to last a while."""

_UNREADABLE = (BadContentError, AccessDeniedError)
"""What is there but cannot be read: no later answer is waited for."""

_UNKNOWN_SIZE = DATA_LIMIT
"""Bytes of what was never read. Not 0: tar and rsync do not open a file that is empty."""

_PUBLIC_KEY = re.compile(rb"[0-9a-f]{64}")

_DIRECTORY = stat.S_IFDIR | 0o555
_OWN_DIRECTORY = stat.S_IFDIR | 0o755
_LINK = stat.S_IFLNK | 0o777
_FILE = stat.S_IFREG | 0o444
_OWN_FILE = stat.S_IFREG | 0o644


@dataclass(frozen=True, slots=True)
class RegistryDirectoryConfig:
    """One of the two subtrees. Times in seconds."""

    space: InodeSpace
    suffix: bytes = b""  # ends the names of its files
    ttl: float = DEFAULTS.registry_ttl  # how old what stat says may be
    grace: float = DEFAULTS.lookup_grace  # how long a lookup waits for a portal
    limit: Limit = partial(trio.fail_after, DEFAULTS.timeout)  # noqa: RUF009


@dataclass(slots=True)
class _Answer(Generic[S]):
    """What a lookup waits for, but not for long."""

    came: trio.Event = field(default_factory=trio.Event)
    state: S | None = None
    error: Exception | None = None

    async def wait(self) -> S | None:
        await self.came.wait()
        if self.error is not None:
            raise self.error
        return self.state


class KeyTreeLookup(Subtree, Generic[S]):
    """Names and attributes; `xattrs` returns extended ones by their names below user.skymount."""

    writable = True
    refusal = errno.EPERM

    def __init__(
        self,
        store: KeyFileStore[S],
        keys: KeyringCache,
        config: RegistryDirectoryConfig,
        xattrs: Callable[[S], Mapping[str, str]],
        nursery: trio.Nursery | None = None,
    ) -> None:
        """`nursery` is for what is fetched ahead; nothing is without one."""
        self._root = DIRECTORY_INODES[config.space]
        self._config = config
        self._store = store
        self._keys = keys
        self._xattrs = xattrs
        self._names = KeyFileNames(config.suffix)
        # a scratch file can become an entry, or be a copy of one
        scratch_limit = max(_MIN_SCRATCH_LIMIT, store.limit)
        self.nodes = NodeTable(config.space, self._names, scratch_limit)
        self._poster = EntryPoster(store, keys)
        self._nursery = nursery
        self._fetching = trio.CapacityLimiter(2 * AHEAD)  # a look-up and an open share a request

    def forget(self, inode: int, count: int) -> None:
        self.nodes.forget(inode, count)

    def path(self, inode: int) -> bytes:
        top = PATHS[self._config.space]
        if inode == self._root:
            return top
        node = self.nodes.get(inode)
        if isinstance(node, EntryFile | ScratchFile):
            return b"/".join((top, node.directory.name, node.name))
        return top + b"/" + node.name

    def child(self, parent: int, name: bytes) -> int:
        if parent == self._root:
            return 0
        directory = self.nodes.directory(parent)
        node = directory.scratch.get(name) or directory.files.get(name)
        return 0 if node is None else node.inode

    async def lookup(self, parent: int, name: bytes) -> InodeAttributes:
        await self._keys.refresh()
        if parent == self._root:
            return self.referred(self._key(name))
        directory = self.nodes.directory(parent)
        if is_scratch(name) or name == VIM_PROBE:
            return self.referred(directory.scratch.get(name))
        if name in directory.hidden or self.nodes.entry_file(directory, name) is None:
            return UNCACHED_NO_ENTRY
        self._look_up_in_turn(directory, name)
        with self._entry_file(directory, name, errno.ENOENT) as node:
            is_absent = await self._is_absent(node)
            return UNCACHED_NO_ENTRY if is_absent else self.referred(node)

    def _key(self, name: bytes) -> KeyNode | None:
        if _PUBLIC_KEY.fullmatch(name):
            return self.nodes.key_directory(name)
        public_key = self._keys.named(name)
        return None if public_key is None else self.nodes.key_link(name, public_key)

    async def getattr(self, inode: int) -> InodeAttributes:
        if inode == self._root:
            return InodeAttributes(inode, _DIRECTORY)
        await self._keys.refresh()
        node = self.nodes.get(inode)
        if isinstance(node, EntryFile) and node.last is None:
            is_local = node.buffer is not None or await self._is_local(node, self._config.ttl)
            return self._entry_attributes(node, None if is_local else await self._shown(node))
        return self.attributes(node)

    async def access(self, inode: int, mode: int) -> bool:
        if mode & os.W_OK:
            await self._check_key(self._node(inode, errno.EACCES))
        return (await self.getattr(inode)).allows(mode)

    async def readlink(self, inode: int) -> bytes:
        node = self._node(inode, errno.EINVAL)
        return node.target if isinstance(node, KeyLink) else refuse(errno.EINVAL)

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        node = None if inode == self._root else self.nodes.get(inode)
        if not isinstance(node, EntryFile) or node.is_new:
            return {}
        state = None if node.last is not None else await self._shown(node)
        return self._entry_xattrs(node, state)

    def _entry_xattrs(self, node: EntryFile, state: S | None) -> Mapping[bytes, bytes]:
        if node.last is not None:
            return node.last.xattrs
        found = {} if state is None else dict(self._xattrs(state))
        if node.entry_id.data_key is not None:
            found["data_key"] = node.entry_id.data_key
        return {
            f"user.skymount.{name}".encode(): value.encode("utf-8", "surrogatepass")
            for name, value in found.items()
        }

    def _node(self, inode: int, at_root: int) -> KeyNode:
        return refuse(at_root) if inode == self._root else self.nodes.get(inode)

    def _directory(self, inode: int) -> KeyDirectory:
        return refuse(errno.EPERM) if inode == self._root else self.nodes.directory(inode)

    async def _check_key(self, node: KeyNode) -> None:
        """EACCES for a node of a public key whose private key is not in the keyring."""
        await self._keys.refresh()
        if isinstance(node, KeyDirectory):
            self._poster.pair(node.public_key)
        elif isinstance(node, EntryFile):
            self._poster.pair(node.entry_id.public_key)

    @contextmanager
    def _entry_file(
        self, directory: KeyDirectory, name: bytes, invalid: int
    ) -> Iterator[EntryFile]:
        """Hold the node of an entry; OSError with `invalid` if the name stands for no data key."""
        node = self.nodes.entry_file(directory, name) or refuse(invalid)
        node.references += 1
        try:
            yield node
        finally:
            self.nodes.forget(node.inode, 1)

    def attributes(self, node: KeyNode) -> InodeAttributes:
        match node:
            case KeyLink():
                size = len(node.target)
                return InodeAttributes(node.inode, _LINK, size, MUTABLE_TIMEOUT, MUTABLE_TIMEOUT)
            case KeyDirectory():
                mode = _OWN_DIRECTORY if self._keys.pair(node.public_key) else _DIRECTORY
                return InodeAttributes(node.inode, mode, 0, MUTABLE_TIMEOUT, MUTABLE_TIMEOUT)
            case ScratchFile():
                size = len(node.data)
                nlink = 0 if node.is_removed else 1
                times = 0.0, 0.0, node.changed_ns
                return InodeAttributes(node.inode, SCRATCH_MODE, size, *times, nlink)
            case EntryFile():
                return self._entry_attributes(node)
        raise AssertionError(node)

    def _entry_attributes(self, node: EntryFile, state: S | None = None) -> InodeAttributes:
        """Return the attributes of an entry in a `state`, or else in the last that is known."""
        if node.last is not None:
            return node.last.attributes._replace(nlink=0 if node.is_removed else 1)
        mode = _OWN_FILE if self._keys.pair(node.entry_id.public_key) else _FILE
        buffer = node.buffer
        if buffer is not None:
            return InodeAttributes(node.inode, mode, len(buffer.data), 0.0, 0.0, buffer.changed_ns)
        state = state or self._store.recall(node.entry_id)
        timeout = 0.0 if state is None else min(self._time_left(state), MUTABLE_TIMEOUT)
        state = state or self._store.recall_entry(node.entry_id)
        size = 0 if node.is_new else _UNKNOWN_SIZE
        if state is None:
            return InodeAttributes(node.inode, mode, size, 0.0, 0.0)
        if state.data is not None:
            size = len(state.data)
        # no entry_timeout: the kernel takes an inode along when it is renamed
        return InodeAttributes(node.inode, mode, size, 0.0, timeout, changed_ns(state))

    def referred(self, node: KeyNode | None) -> InodeAttributes:
        if node is None:
            return UNCACHED_NO_ENTRY
        node.references += 1
        return self.attributes(node)

    def _time_left(self, state: S) -> float:
        return max(0.0, state.answered_at + self._config.ttl - trio.current_time())

    async def _present(
        self,
        node: EntryFile,
        max_age: float = 0.0,
        since: float = -math.inf,
        *,
        fresh: bool = False,
    ) -> S:
        """Return an entry's state, as `KeyFileStore.read`; ENOENT when it is absent."""
        state = await self._store.read(node.entry_id, max_age, since=since, fresh=fresh)
        return state if state.data is not None else refuse(errno.ENOENT)

    async def _shown(self, node: EntryFile) -> S | None:
        """Return the state that attributes show; ENOENT when the entry is absent.

        Of one that cannot be read, it is what is known of it: a program looks at a file before it
        opens it, or asks why it could not be opened.
        """
        try:
            return await self._present(node, self._config.ttl)
        except _UNREADABLE:
            return self._store.recall_entry(node.entry_id)
        except RefusalError:
            if node.last is None:
                raise
            return None  # it was removed meanwhile

    async def _is_there(
        self, node: EntryFile, max_age: float = 0.0, *, fresh: bool = False
    ) -> bool:
        """Whether there is an entry, even one that cannot be read."""
        try:
            state = await self._store.read(node.entry_id, max_age, fresh=fresh)
            return state.data is not None
        except _UNREADABLE:
            return True

    async def _is_local(self, node: EntryFile, max_age: float = 0.0) -> bool:
        """Whether a file is new and known to this mount only; asks if anyone else made it since."""
        if node.is_new and node.buffer is None:
            with suppress(PortalError):
                node.is_new = not await self._is_there(node, max_age)
        return node.is_new

    async def _exists(self, directory: KeyDirectory, name: bytes) -> bool:
        """Whether a name is taken, as the portal says now and this mount shows it."""
        if is_scratch(name):
            return name in directory.scratch
        if name in directory.hidden:
            return False
        with self._entry_file(directory, name, errno.EINVAL) as node:
            if node.is_new or node.buffer is not None:
                return True
            return await self._is_there(node, fresh=True)

    async def _is_absent(self, node: EntryFile) -> bool:
        """Whether an entry is known not to be there; asks when nothing is known, but not for long.

        What could not be asked in time counts as present: the next request for it finds out.
        """
        if node.buffer is not None or node.is_new:
            return False
        state = self._store.recall(node.entry_id)
        if state is None or (state.data is None and not self._time_left(state)):
            state = await self._ask_briefly(node)
        return state is not None and state.data is None

    async def _ask_briefly(self, node: EntryFile) -> S | None:
        """Ask for at most `grace` seconds; None without an answer.

        The kernel sends one lookup at a time in a directory; others queue behind it. So after a
        lookup that got no answer in time, none asks for as long again, and the queue passes.
        """
        directory, grace = node.directory, self._config.grace
        if trio.current_time() < directory.silent_until:
            return None
        found: S | None = None
        with trio.move_on_after(grace) as scope, suppress(SkymountError):
            if self._nursery is None:
                found = await self._store.read(node.entry_id, self._config.ttl)
            else:
                answer = _Answer[S]()
                self._nursery.start_soon(self._ask, node.entry_id, answer)
                found = await answer.wait()
        if scope.cancelled_caught:
            directory.silent_until = trio.current_time() + grace
        return found

    async def _ask(self, entry_id: EntryId, answer: "_Answer[S]") -> None:
        """Go on after the lookup has ended: the next operation on the file waits for the same."""
        try:
            with suppress(trio.TooSlowError), self._config.limit():
                answer.state = await self._store.read(entry_id, self._config.ttl)
        except Exception as error:  # noqa: BLE001  # the lookup raises it
            answer.error = error
        finally:
            answer.came.set()

    # Fetching ahead

    def _look_up_in_turn(self, directory: KeyDirectory, name: bytes) -> None:
        """Note a lookup; a program that goes through a listing has the next names fetched."""
        if directory.readahead is not None and trio.current_time() >= directory.silent_until:
            self._start_fetching(directory, directory.readahead.lookups, name, -math.inf)

    def _open_in_turn(self, node: EntryFile) -> tuple[float, float]:
        """Note an open, in the same way; return how old the answer may be that it sees, and since
        when it must have been asked for.
        """
        ahead = node.directory.readahead
        if ahead is None:
            return 0.0, -math.inf
        max_age = self._config.ttl if ahead.opens.has_fetched(node.name) else 0.0
        self._start_fetching(node.directory, ahead.opens, node.name, ahead.opened_at)
        return max_age, ahead.opened_at

    def _start_fetching(
        self, directory: KeyDirectory, walk: Walk, name: bytes, since: float
    ) -> None:
        if self._nursery is None or not self._config.ttl or directory.readahead is None:
            return
        now = trio.current_time()
        names = walk.passed(name, now)
        if names:
            directory.readahead.used_at = now
            self._nursery.start_soon(self._fetch_all, self._nursery, directory, walk, names, since)

    async def _fetch_all(
        self,
        nursery: trio.Nursery,
        directory: KeyDirectory,
        walk: Walk,
        names: Iterable[bytes],
        since: float,
    ) -> None:
        """Begin in order: the next name is waited for, and connections may be too few for all."""
        for name in names:
            with suppress(MalformedError):  # a scratch file's name may be
                key = self._names.parse(name)
                entry_id = EntryId(directory.public_key, key.tweak, key.data_key)
                arrived = partial(walk.arrived, name)
                await self._fetching.acquire_on_behalf_of(arrived)
                nursery.start_soon(self._fetch, entry_id, since, arrived)

    async def _fetch(
        self, entry_id: EntryId, since: float, arrived: Callable[[float], None]
    ) -> None:
        try:
            with (
                suppress(trio.TooSlowError),
                self._config.limit(),
            ):  # operations wait for its answer
                await self._store.fetch_ahead(entry_id, self._config.ttl * _USABLE, since)
        except SkymountError as error:  # reported when the file is used
            log.debug("%s: not fetched ahead: %s", entry_id, error)
        except Exception:  # a bug that one entry brings out must not end the mount
            log.exception("%s: fetching ahead failed", entry_id)
        finally:
            self._fetching.release_on_behalf_of(arrived)
            arrived(trio.current_time())

    def _latest(self, node: EntryFile) -> FileData | None:
        if node.last is not None:
            return node.last.data
        if node.buffer is not None:
            return node.buffer.lend()
        state = self._store.recall(node.entry_id)
        return None if state is None else state.data

    async def _content(
        self,
        node: EntryFile,
        max_age: float = 0.0,
        since: float = -math.inf,
        *,
        fresh: bool = False,
    ) -> tuple[FileData, S | None]:
        """Return (content, its state); ENOENT when the entry is absent."""
        if node.buffer is not None:
            return node.buffer.lend(), node.buffer.base
        if await self._is_local(node):
            return b"", None
        state = await self._present(node, max_age, since, fresh=fresh)
        return state.data or b"", state

    @contextmanager
    def _removing(self, node: EntryFile) -> Iterator[None]:
        """Take the name from an entry's file, unless the block fails."""
        buffer = node.buffer
        state = self._store.recall(node.entry_id) if buffer is None else buffer.base
        xattrs = {} if node.is_new else self._entry_xattrs(node, state)
        data = b"" if node.is_new and buffer is None else self._latest(node)
        with self.nodes.removing(node, LastContent(self.attributes(node), data, xattrs)):
            yield
