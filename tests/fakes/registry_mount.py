"""`/registry` over a store in memory, used as the kernel does it, without a kernel."""

import errno
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import trio

from skymount.errors import BadContentError, FrozenEntryError, StaleEntryError
from skymount.fs.inode_space import REGISTRY, InodeSpace
from skymount.fs.registry.directory import RegistryDirectory
from skymount.fs.registry.lookup import RegistryDirectoryConfig
from skymount.fs.subtree import InodeAttributes, OpenFile
from skymount.portal.ledger.entries import EntryId
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import MAX_REVISION, hash_data_key

OWN, OTHERS = SigningKeyPair.from_seed("own"), SigningKeyPair.from_seed("others")
HOME = b"home"
TTL = 2.0
CREATE = os.O_WRONLY | os.O_CREAT
REWRITE = os.O_WRONLY | os.O_TRUNC


@dataclass(frozen=True)
class Held:
    """What the fake portal holds, or was seen to hold."""

    data: bytes | None = None
    revision: int = -1
    requested_at: float = 0.0
    answered_at: float = 0.0
    seen_at: float = 0.0


@dataclass
class FakeStore:
    """A store of entries in memory, which takes its time and fails as it is told."""

    limit: int = 113
    delay: float = 0.0
    connections: float = math.inf
    error: Exception | None = None
    held: dict[EntryId, Held] = field(default_factory=dict)
    remembered: dict[EntryId, Held] = field(default_factory=dict)
    known: list[EntryId] = field(default_factory=list)
    asked: list[EntryId] = field(default_factory=list)
    """Each request for an entry."""
    begun: list[EntryId] = field(default_factory=list)
    """Each post that was begun."""
    posts: list[tuple[EntryId, bytes | None]] = field(default_factory=list)
    pending: set[EntryId] = field(default_factory=set)
    doubtful: bytes = b"doubtful"
    """Content from which nothing is to be made."""
    _limiters: dict[float, trio.CapacityLimiter] = field(default_factory=dict)
    _locks: dict[EntryId, trio.Lock] = field(default_factory=dict)
    """Those that ask for an entry at once share an answer."""

    def recall(self, ref: EntryId) -> Held | None:
        return self.remembered.get(ref)

    recall_entry = recall

    async def read(
        self,
        ref: EntryId,
        max_age: float = 0.0,
        *,
        since: float = -math.inf,
        fresh: bool = False,
    ) -> Held:
        if not max_age:
            return await self._ask(ref)
        answered = trio.current_time() - max_age
        if (old := self._remembered_since(ref, answered, since)) is not None:
            return old
        async with self._locks.setdefault(ref, trio.Lock()):
            return self._remembered_since(ref, answered, since) or await self._ask(ref)

    def _remembered_since(self, ref: EntryId, answered: float, requested: float) -> Held | None:
        old = self.remembered.get(ref)
        if old is None or old.answered_at < answered or old.requested_at < requested:
            return None
        return old

    async def _ask(self, ref: EntryId) -> Held:
        self.asked.append(ref)
        asked = trio.current_time()
        async with self._limiters.setdefault(
            self.connections, trio.CapacityLimiter(self.connections)
        ):
            await self._work()
        held, now = self.held.get(ref, Held()), trio.current_time()
        self.remembered[ref] = replace(held, requested_at=asked, answered_at=now)
        return self.remembered[ref]

    async def fetch_ahead(self, ref: EntryId, max_age: float, since: float = -math.inf) -> None:
        await self.read(ref, max_age, since=since)

    async def _work(self) -> None:
        await trio.sleep(self.delay)
        if self.error is not None:
            raise self.error

    async def write(
        self, ref: EntryId, pair: SigningKeyPair, data: bytes, base: Held | None
    ) -> Held:
        return await self._post(ref, pair, data, base)

    def check(self, ref: EntryId, base: Held) -> None:
        if base.data == self.doubtful:
            raise BadContentError("not checked")

    async def delete(self, ref: EntryId, pair: SigningKeyPair) -> Held:
        return await self._post(ref, pair, None, None)

    async def has_pending(self, ref: EntryId) -> bool:
        return ref in self.pending

    async def _post(
        self, ref: EntryId, pair: SigningKeyPair, data: bytes | None, base: Held | None
    ) -> Held:
        assert pair.public_key == ref.public_key
        self.begun.append(ref)
        await self._work()
        now = self.held.get(ref, Held())
        if now.revision == MAX_REVISION:
            raise FrozenEntryError("the last one")
        if base is not None and base.revision != now.revision:
            raise StaleEntryError("changed")
        self.posts.append((ref, data))
        self.pending.discard(ref)
        self.put(ref, data)
        now = trio.current_time()
        self.remembered[ref] = replace(self.held[ref], requested_at=now, answered_at=now)
        return self.remembered[ref]

    def put(self, ref: EntryId, data: bytes | None) -> None:
        """Hold an entry, as somebody else's."""
        revision = self.held.get(ref, Held()).revision + 1
        self.held[ref] = Held(data, revision, seen_at=1000.0 + revision)

    async def public_keys(self) -> list[bytes]:
        return list({ref.public_key for ref in self.known})

    async def names(self, public_key: bytes) -> list[EntryId]:
        return [ref for ref in self.known if ref.public_key == public_key]


class FakeKeys:
    """A keyring with one key, unless it is changed."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, SigningKeyPair] = {HOME: OWN}

    async def refresh(self) -> None:
        await trio.lowlevel.checkpoint()

    def pair(self, public_key: bytes) -> SigningKeyPair | None:
        found = [pair for pair in self.pairs.values() if pair.public_key == public_key]
        return found[0] if found else None

    def named(self, name: bytes) -> bytes | None:
        return self.pairs[name].public_key if name in self.pairs else None

    def names(self) -> Iterable[bytes]:
        return self.pairs

    def public_keys(self) -> Iterable[bytes]:
        return [pair.public_key for pair in self.pairs.values()]


def revision_of(state: Held) -> Mapping[str, str]:
    return {"revision": str(state.revision)}


def ref(name: str, key: SigningKeyPair = OWN) -> EntryId:
    return EntryId(key.public_key, hash_data_key(name), name)


class RegistryMount:
    """A tree over a fake store, used as the kernel does it."""

    def __init__(self, suffix: bytes = b"", nursery: trio.Nursery | None = None) -> None:
        self.store = FakeStore()
        self.keys = FakeKeys()
        config = RegistryDirectoryConfig(InodeSpace.REGISTRY, suffix=suffix, ttl=TTL)
        self.tree: RegistryDirectory[Held] = RegistryDirectory(
            self.store,
            self.keys,  # type: ignore[arg-type]
            config,
            revision_of,
            nursery,
        )
        self.references: dict[int, int] = {}
        self.open_files: list[OpenFile] = []

    async def lookup(self, parent: int, name: bytes) -> InodeAttributes:
        """Look a name up; ENOENT as the kernel says it."""
        entry = await self.tree.lookup(parent, name)
        if not entry.inode:
            raise FileNotFoundError(errno.ENOENT, "none")
        self._referred(entry)
        return entry

    def _referred(self, entry: InodeAttributes) -> None:
        self.references[entry.inode] = self.references.get(entry.inode, 0) + 1

    async def directory(self, key: SigningKeyPair = OWN) -> int:
        """Return the inode of a key's directory."""
        return (await self.lookup(REGISTRY, key.public_hex.encode())).inode

    async def find(self, name: str, key: SigningKeyPair = OWN) -> InodeAttributes:
        """Look a file up."""
        return await self.lookup(await self.directory(key), name.encode())

    async def open(
        self, name: str, flags: int = os.O_RDONLY, key: SigningKeyPair = OWN
    ) -> OpenFile:
        """Open a file, as open(2) does, with one new look when it is ESTALE."""
        parent = await self.directory(key)
        for attempt in range(2):
            try:
                entry = await self.tree.lookup(parent, name.encode())
                if not entry.inode and not flags & os.O_CREAT:
                    raise FileNotFoundError(errno.ENOENT, "none")
                if not entry.inode:
                    entry, opened = await self.tree.create(parent, name.encode(), flags)
                    self._referred(entry)
                else:
                    self._referred(entry)
                    opened = await self.tree.open(entry.inode, flags & ~os.O_CREAT)
            except OSError as error:
                if error.errno != errno.ESTALE or attempt:
                    raise
            else:
                self.open_files.append(opened)
                return opened
        raise AssertionError

    async def close(self, opened: OpenFile) -> None:
        """Close a file; its last descriptor."""
        try:
            await opened.flush()
        finally:
            await self.release(opened)

    async def release(self, opened: OpenFile) -> None:
        """Let go of a file."""
        self.open_files.remove(opened)
        await opened.release()

    async def write(
        self, name: str, data: bytes, flags: int = REWRITE, key: SigningKeyPair = OWN
    ) -> None:
        """Open, write, close: by default as `>` does."""
        opened = await self.open(name, flags | os.O_CREAT, key)
        if data:
            try:
                opened.write(0, data)
            except OSError:
                await self.close(opened)
                raise
        await self.close(opened)

    async def read(self, name: str, key: SigningKeyPair = OWN) -> bytes:
        """Open, read, close."""
        opened = await self.open(name, key=key)
        data = await opened.read(0, 1000)
        await self.release(opened)
        return bytes(data)

    async def rename(self, name: str, new_name: str, flags: int = 0) -> None:
        """Rename within the own directory."""
        parent = await self.directory()
        await self.tree.rename(parent, name.encode(), parent, new_name.encode(), flags)

    async def unlink(self, name: str) -> None:
        """Remove from the own directory."""
        await self.find(name)
        await self.tree.unlink(await self.directory(), name.encode())

    async def listing(self, inode: int) -> dict[str, int]:
        """List a directory: modes by names."""
        opened = await self.tree.opendir(inode)
        children = list(opened.readdir(0))
        assert children[1:] == list(opened.readdir(1))
        opened.release()
        return {name.decode(): mode for name, _, mode, *_ in children}

    async def names(self) -> list[str]:
        """List the own directory."""
        return list(await self.listing(await self.directory()))

    @property
    def posted(self) -> list[bytes | None]:
        """What was posted; None for a deletion."""
        return [data for _, data in self.store.posts]

    async def forget_everything(self) -> int:
        """Close all and drop the kernel's references; return how many nodes are left."""
        for opened in list(self.open_files):
            await self.close(opened)
        for inode, count in self.references.items():
            self.tree.forget(inode, count)
        self.references.clear()
        return len(list(self.tree.nodes))
