"""The files of registry keys, operation by operation as the kernel asks, without a kernel."""

import errno
import os
import stat
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest
import trio

from skymount.errors import BadContentError, FrozenEntryError, StaleEntryError, UnavailableError
from skymount.fs.inode_space import REGISTRY, InodeSpace, space_of
from skymount.fs.registry.directory import RegistryDirectory
from skymount.fs.registry.lookup import RegistryDirectoryConfig
from skymount.fs.registry.nodes import SCRATCH_LIMIT
from skymount.fs.subtree import MUTABLE_TIMEOUT, InodeAttributes, OpenFile
from skymount.portal.ledger.revision_marks import EntryId
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
    seen_at: float = 0.0


@dataclass
class FakeStore:
    """A store of entries in memory, which takes its time and fails as it is told."""

    limit: int = 113
    delay: float = 0.0
    error: Exception | None = None
    held: dict[EntryId, Held] = field(default_factory=dict)
    remembered: dict[EntryId, Held] = field(default_factory=dict)
    known: list[EntryId] = field(default_factory=list)
    asked: list[EntryId] = field(default_factory=list)
    """Each request for an entry."""
    posts: list[tuple[EntryId, bytes | None]] = field(default_factory=list)
    pending: set[EntryId] = field(default_factory=set)
    doubtful: bytes = b"doubtful"
    """Content from which nothing is to be made."""

    def recall(self, ref: EntryId) -> Held | None:
        return self.remembered.get(ref)

    async def read(self, ref: EntryId, max_age: float = 0.0) -> Held:
        old = self.remembered.get(ref)
        if old is not None and max_age and old.requested_at + max_age >= trio.current_time():
            return old
        self.asked.append(ref)
        asked = trio.current_time()
        await self._work()
        self.remembered[ref] = replace(self.held.get(ref, Held()), requested_at=asked)
        return self.remembered[ref]

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
        await self._work()
        now = self.held.get(ref, Held())
        if now.revision == MAX_REVISION:
            raise FrozenEntryError("the last one")
        if base is not None and base.revision != now.revision:
            raise StaleEntryError("changed")
        self.posts.append((ref, data))
        self.pending.discard(ref)
        self.put(ref, data)
        self.remembered[ref] = replace(self.held[ref], requested_at=trio.current_time())
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
    """Return the attributes of a state."""
    return {"revision": str(state.revision)}


def ref(name: str, key: SigningKeyPair = OWN) -> EntryId:
    """Return the entry of a data key."""
    return EntryId(key.public_key, hash_data_key(name), name)


class RegistryMount:
    """A tree over a fake store, used as the kernel does it."""

    def __init__(self, suffix: bytes = b"") -> None:
        self.store = FakeStore()
        self.keys = FakeKeys()
        config = RegistryDirectoryConfig(InodeSpace.REGISTRY, suffix=suffix, ttl=TTL)
        self.tree: RegistryDirectory[Held] = RegistryDirectory(
            self.store,
            self.keys,  # type: ignore[arg-type]
            config,
            revision_of,
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


@pytest.fixture
def mount() -> RegistryMount:
    """A tree whose store is empty."""
    return RegistryMount()


async def refused(number: int, work: Awaitable[object]) -> None:
    """Expect an OSError of that number."""
    with pytest.raises(OSError) as caught:
        await work
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]


# --- keys


async def test_directory_of_any_key(autojump_clock: object, mount: RegistryMount):
    """G1: `registry/<name>` is a directory for every name of 64 hex digits, without any request."""
    for key, mode in ((OWN, 0o755), (OTHERS, 0o555)):
        entry = await mount.lookup(REGISTRY, key.public_hex.encode())
        assert entry.mode == stat.S_IFDIR | mode
        assert await mount.tree.getattr(entry.inode) == entry
        assert space_of(entry.inode) is InodeSpace.REGISTRY
    assert mount.store.asked == []


async def test_link_of_each_own_key(autojump_clock: object, mount: RegistryMount):
    """G1: and a symbolic link to one for each key of the keyring.

    A key that is added or removed is seen at once; the kernel keeps what was there for a second.
    """
    entry = await mount.lookup(REGISTRY, HOME)
    assert entry.mode == stat.S_IFLNK | 0o777
    assert await mount.tree.readlink(entry.inode) == OWN.public_hex.encode()
    assert (entry.entry_timeout, entry.attr_timeout) == (1.0, 1.0)
    await refused(errno.EINVAL, mount.tree.readlink(await mount.directory()))
    await refused(errno.ENOENT, mount.lookup(REGISTRY, b"new"))
    mount.keys.pairs = {b"new": OTHERS}
    other = await mount.lookup(REGISTRY, b"new")
    assert await mount.tree.readlink(other.inode) == OTHERS.public_hex.encode()
    await refused(errno.ENOENT, mount.lookup(REGISTRY, HOME))


@pytest.mark.parametrize(
    "name", ["x", "A" * 64, "a" * 63, "a" * 65, "g" * 64, "ed25519:" + "a" * 64]
)
async def test_no_other_name(autojump_clock: object, mount: RegistryMount, name: str):
    """G1: Any other name is ENOENT."""
    assert await mount.tree.lookup(REGISTRY, name.encode()) == InodeAttributes(0, entry_timeout=0.0)


async def test_listing_of_keys(autojump_clock: object, mount: RegistryMount):
    """G6: A listing of `registry` shows the keyring and the public keys used here."""
    mount.store.known = [ref("x", OTHERS)]
    assert await mount.listing(REGISTRY) == {
        "home": stat.S_IFLNK | 0o777,
        OWN.public_hex: stat.S_IFDIR | 0o755,
        OTHERS.public_hex: stat.S_IFDIR | 0o555,
    }
    third = SigningKeyPair.from_seed("third")
    await mount.directory(third)
    assert third.public_hex in await mount.listing(REGISTRY)


# --- reading


async def test_absent_and_deleted(autojump_clock: object, mount: RegistryMount):
    """G3: Absent and deleted entries are ENOENT."""
    await refused(errno.ENOENT, mount.read("none"))
    mount.store.put(ref("gone"), None)
    await refused(errno.ENOENT, mount.read("gone"))
    mount.store.put(ref("x"), b"data")
    found = await mount.find("x")
    mount.store.put(ref("x"), None)
    await trio.sleep(TTL + 1)
    await refused(errno.ENOENT, mount.tree.getattr(found.inode))
    await refused(errno.ENOENT, mount.tree.open(found.inode, os.O_RDONLY))
    await refused(errno.ENOENT, mount.tree.xattrs(found.inode))


async def test_failure_is_no_absence(autojump_clock: object, mount: RegistryMount):
    """G3: Every other failure is an error, never ENOENT."""
    mount.store.error = UnavailableError("down")
    unknown = await mount.find("x")
    for work in (mount.tree.getattr(unknown.inode), mount.tree.open(unknown.inode, 0)):
        with pytest.raises(UnavailableError):
            await work
    mount.store.error = None
    mount.store.put(ref("x"), b"data")
    found = await mount.find("x")
    mount.store.error = UnavailableError("down")
    await trio.sleep(TTL + 1)
    for work in (mount.tree.getattr(found.inode), mount.tree.open(found.inode, 0), mount.read("x")):
        with pytest.raises(UnavailableError):
            await work


async def test_close_to_open(autojump_clock: object, mount: RegistryMount):
    """G5: An open sees what the portal has at that time; what is open is not changed by that."""
    mount.store.put(ref("x"), b"one")
    first = await mount.open("x")
    assert await first.read(0, 100) == b"one"
    mount.store.put(ref("x"), b"two and more")
    assert await first.read(0, 100) == b"one"
    assert await mount.read("x") == b"two and more"
    assert await first.read(1, 100) == b"ne"


async def test_reading_on(autojump_clock: object, mount: RegistryMount):
    """Who reads on behind the end sees what was appended; who begins again sees the new content.

    Nobody gets a part of one content and a part of another.
    """
    mount.store.put(ref("x"), b"one")
    opened = await mount.open("x")
    assert await opened.read(0, 2) == b"on"
    mount.store.put(ref("x"), b"one two")
    await mount.read("x")
    assert await opened.read(2, 100) == b"e"
    assert await opened.read(3, 100) == b" two"
    mount.store.put(ref("x"), b"something else")
    await mount.read("x")
    assert await opened.read(7, 100) == b""
    assert await opened.read(0, 100) == b"something else"
    mount.store.put(ref("x"), None)
    with pytest.raises(FileNotFoundError):
        await mount.read("x")
    assert await opened.read(0, 100) == b"something else"


async def test_age_of_stat(autojump_clock: object, mount: RegistryMount):
    """G5: stat is at most `registry_ttl` (2 s) old.

    G5: A change by somebody else changes the modification time.
    """
    mount.store.put(ref("x"), b"one")
    found = await mount.find("x")
    assert (found.size, found.mtime_ns, found.attr_timeout) == (3, 1000 * 10**9, MUTABLE_TIMEOUT)
    assert found.entry_timeout == 0
    mount.store.put(ref("x"), b"longer")
    await trio.sleep(1.5)
    again = await mount.tree.getattr(found.inode)
    assert (again.size, again.attr_timeout) == (3, 0.5)
    await trio.sleep(1)
    again = await mount.tree.getattr(found.inode)
    assert (again.size, again.mtime_ns, again.attr_timeout) == (6, 1001 * 10**9, MUTABLE_TIMEOUT)
    assert len(mount.store.asked) == 2


async def test_attributes(autojump_clock: object, mount: RegistryMount):
    """Extended attributes tell the entry's revision and its data key."""
    mount.store.put(ref("a/b"), b"one")
    found = await mount.find("a%2Fb")
    assert await mount.tree.xattrs(found.inode) == {
        b"user.skymount.revision": b"0",
        b"user.skymount.data_key": b"a/b",
    }
    assert await mount.tree.xattrs(REGISTRY) == {}
    assert await mount.tree.xattrs(await mount.directory()) == {}


async def test_hashed_name(autojump_clock: object, mount: RegistryMount):
    """G2: A name of 64 hex digits in it is a hashed data key."""
    mount.store.put(ref("x"), b"one")
    assert await mount.read(hash_data_key("x").hex()) == b"one"


@pytest.mark.parametrize("name", [b"\xff", b"%FF"])
async def test_name_that_is_no_text(autojump_clock: object, mount: RegistryMount, name: bytes):
    """G2: Names that are not valid UTF-8 are ENOENT; making one is EINVAL."""
    directory = await mount.directory()
    await refused(errno.ENOENT, mount.lookup(directory, name))
    await refused(errno.EINVAL, mount.tree.create(directory, name, CREATE))
    assert mount.store.asked == []


async def test_slow_portal_holds_up_a_lookup_briefly(autojump_clock: object, mount: RegistryMount):
    """A name that nobody knew in time counts as there, and what is done with it finds out."""
    mount.store.delay = 10
    begun = trio.current_time()
    found = await mount.find("none")
    assert trio.current_time() - begun == 0.5
    assert (found.entry_timeout, found.attr_timeout) == (0, 0)
    await refused(errno.ENOENT, mount.tree.getattr(found.inode))


async def test_burst_of_lookups(autojump_clock: object, mount: RegistryMount):
    """G3: at most `lookup_grace` (0.5 s), which lookups without a pause between them share."""
    mount.store.delay = 0.2
    directory, begun = await mount.directory(), trio.current_time()
    for number in range(2):
        await refused(errno.ENOENT, mount.lookup(directory, b"%d" % number))
    for number in range(2, 100):
        await mount.lookup(directory, b"%d" % number)
    assert trio.current_time() - begun == pytest.approx(0.5)
    assert len(mount.store.asked) == 3
    await trio.sleep(0.3)
    await refused(errno.ENOENT, mount.lookup(directory, b"after a pause"))


async def test_lookups_of_one_program(autojump_clock: object, mount: RegistryMount):
    """A program that makes many files, each only if there is none (O_EXCL), always learns whether
    there is one: to post the files takes as long as to look them up.
    """
    mount.store.delay = 0.3
    directory = await mount.directory()
    for number in range(20):
        await refused(errno.ENOENT, mount.lookup(directory, b"%d" % number))
        await mount.write(f"new {number}", b"data", CREATE | os.O_EXCL)


# --- writing


async def test_write_is_posted_once(autojump_clock: object, mount: RegistryMount):
    """G8: posted, once, when the file is closed or synced."""
    opened = await mount.open("x", CREATE)
    opened.write(0, b"he")
    opened.write(2, b"llo")
    assert mount.posted == []
    await opened.fsync()
    await opened.flush()
    await opened.flush()
    await mount.close(opened)
    assert mount.posted == [b"hello"]
    assert await mount.read("x") == b"hello"


async def test_shells_redirection(autojump_clock: object, mount: RegistryMount):
    """`>` flushes a duplicate before it writes: the truncation alone is not posted then."""
    mount.store.put(ref("x"), b"old")
    opened = await mount.open("x", REWRITE)
    await opened.flush()
    opened.write(0, b"new")
    await mount.close(opened)
    assert mount.posted == [b"new"]


async def test_emptied_file(autojump_clock: object, mount: RegistryMount):
    """An entry that is only emptied is posted after the last close, or by fsync."""
    for way in ("close", "fsync"):
        mount.store.put(ref(way), b"old")
        opened = await mount.open(way, REWRITE)
        await opened.flush()
        assert mount.posted == []
        assert await mount.read(way) == b""
        await (opened.fsync() if way == "fsync" else mount.release(opened))
        assert mount.store.posts.pop() == (ref(way), b"")
        assert await mount.read(way) == b""


async def test_emptied_file_that_another_has_open(autojump_clock: object, mount: RegistryMount):
    """G8: posted after its last close: a close before that leaves it as it is."""
    mount.store.put(ref("x"), b"old")
    first, second = [await mount.open("x", REWRITE) for _ in range(2)]
    await mount.close(first)
    assert mount.posted == []
    second.write(0, b"new")
    await mount.close(second)
    assert mount.posted == [b"new"]


@pytest.mark.parametrize("flags", [REWRITE, os.O_RDWR])
async def test_same_content_is_not_posted(autojump_clock: object, mount: RegistryMount, flags: int):
    """G8: Nothing is posted when nothing has changed."""
    mount.store.put(ref("x"), b"old")
    await mount.read("x")
    await mount.write("x", b"old", flags)
    await mount.close(await mount.open("x", flags & ~os.O_TRUNC))
    assert mount.posted == []


@pytest.mark.parametrize("flags", [REWRITE, os.O_RDWR])
async def test_same_content_supersedes_what_is_pending(
    autojump_clock: object, mount: RegistryMount, flags: int
):
    """G12: While something is pending, a later write is posted even if that is there already."""
    mount.store.put(ref("x"), b"old")
    await mount.read("x")
    mount.store.pending.add(ref("x"))
    await mount.write("x", b"old", flags)
    await mount.write("x", b"old", flags)
    assert mount.posted == [b"old"]


async def test_scratch_file_of_the_same_content_supersedes_what_is_pending(
    autojump_clock: object, mount: RegistryMount
):
    """G12: also what is renamed onto an entry."""
    mount.store.put(ref("x"), b"old")
    await mount.read("x")
    await mount.write("new.tmp", b"old", CREATE)
    mount.store.pending.add(ref("x"))
    await mount.rename("new.tmp", "x")
    assert mount.posted == [b"old"]


async def test_empty_new_file_supersedes_what_is_pending(
    autojump_clock: object, mount: RegistryMount
):
    """G12: also one without content, which would not be posted otherwise (G15)."""
    mount.store.pending.add(ref("x"))
    await mount.write("x", b"", CREATE | os.O_TRUNC)
    assert mount.posted == [b""]


@pytest.mark.parametrize("how", ["unlink", "rename"])
async def test_local_file_that_is_pending_does_not_come_back(
    autojump_clock: object, mount: RegistryMount, how: str
):
    """G12: a deletion is posted even if the entry is absent, while its creation is pending."""
    opened = await mount.open("x", CREATE)
    opened.write(0, b"new")
    mount.store.error = UnavailableError("down")
    with pytest.raises(UnavailableError):
        await opened.fsync()
    mount.store.error = None
    mount.store.pending.add(ref("x"))
    await (mount.unlink("x") if how == "unlink" else mount.rename("x", "y"))
    assert mount.store.posts[-1] == (ref("x"), None)
    await mount.release(opened)


async def test_rewrite_with_what_was_there_a_moment_ago(
    autojump_clock: object, mount: RegistryMount
):
    """G10: a rewrite of the whole content wins, also with what this mount had seen last."""
    mount.store.put(ref("x"), b"old")
    await mount.read("x")
    mount.store.put(ref("x"), b"somebody else's")
    await mount.write("x", b"old")
    assert mount.posted == [b"old"]


async def test_new_file_is_local(autojump_clock: object, mount: RegistryMount):
    """G15: A new file is local and empty until it has content; if it never gets any, nothing is
    posted.
    """
    await mount.write("x", b"", CREATE)
    await mount.write("x", b"")
    assert (await mount.find("x")).size == 0
    assert await mount.read("x") == b""
    assert "x" in await mount.names()
    assert await mount.tree.xattrs((await mount.find("x")).inode) == {}
    await mount.rename("x", "y")
    assert await mount.names() == ["y"]
    await mount.write("y", b"data", os.O_WRONLY)
    assert mount.posted == [b"data"]
    await mount.write("z", b"", CREATE)
    await mount.unlink("z")
    await refused(errno.ENOENT, mount.find("z"))
    assert mount.posted == [b"data"]


async def test_new_file_that_somebody_else_makes_too(autojump_clock: object, mount: RegistryMount):
    """G5: An open sees what the portal has at that time, also of a file that is empty here."""
    await mount.write("x", b"", CREATE)
    mount.store.put(ref("x"), b"theirs")
    await trio.sleep(TTL + 1)
    assert (await mount.tree.getattr((await mount.find("x")).inode)).size == 6
    await mount.write("y", b"", CREATE)
    mount.store.put(ref("y"), b"theirs")
    assert await mount.read("y") == b"theirs"


async def test_new_file_while_the_portal_is_down(autojump_clock: object, mount: RegistryMount):
    """G15: A new file is local: it needs no portal."""
    await mount.write("x", b"", CREATE)
    mount.store.error = UnavailableError("down")
    await trio.sleep(TTL + 1)
    assert await mount.read("x") == b""
    await mount.unlink("x")


async def test_append(autojump_clock: object, mount: RegistryMount):
    """Appending goes to the end, wherever the kernel believes that to be."""
    mount.store.put(ref("x"), b"old")
    opened = await mount.open("x", os.O_WRONLY | os.O_APPEND)
    opened.write(0, b"+new")
    assert await opened.read(0, 100) == b"old+new"
    await mount.close(opened)
    assert mount.posted == [b"old+new"]


async def test_handles_share_their_content(autojump_clock: object, mount: RegistryMount):
    """Several writers of one file edit the same bytes, and readers in this mount see them."""
    mount.store.put(ref("x"), b"0123")
    one, two = [await mount.open("x", os.O_RDWR) for _ in range(2)]
    one.write(0, b"a")
    two.write(3, b"b")
    assert await one.read(0, 100) == await two.read(0, 100) == await mount.read("x") == b"a12b"
    assert (await mount.find("x")).size == 4
    await mount.close(one)
    await mount.close(two)
    assert mount.posted == [b"a12b"]


async def test_too_much(autojump_clock: object, mount: RegistryMount):
    """G9: More than 113 bytes are EFBIG at write, and the entry stays as it is."""
    await mount.write("x", b"x" * 113)
    for flags in (REWRITE, os.O_RDWR):
        opened = await mount.open("x", flags)
        opened.write(0, b"y")
        with pytest.raises(OSError, match="File too large"):
            opened.write(1, b"y" * 113)
        await opened.fsync()
        await mount.close(opened)
    entry = await mount.find("x")
    await refused(errno.EFBIG, mount.tree.setattr(entry.inode, 114, None))
    assert await mount.read("x") == b"x" * 113
    assert len(mount.posted) == 1


async def test_truncate(autojump_clock: object, mount: RegistryMount):
    """truncate(2) posts before it returns, ftruncate(2) leaves it to the close."""
    mount.store.put(ref("x"), b"0123456789")
    entry = await mount.find("x")
    assert (await mount.tree.setattr(entry.inode, 5, None)).size == 5
    assert mount.posted == [b"01234"]
    await mount.tree.setattr(entry.inode, 5, None)
    opened = await mount.open("x", os.O_RDWR)
    assert (await mount.tree.setattr(entry.inode, 2, opened)).size == 2
    assert mount.posted == [b"01234"]
    await mount.close(opened)
    await mount.tree.setattr(entry.inode, 0, None)
    assert mount.posted == [b"01234", b"01", b""]


async def test_change_of_mode_owner_and_times(autojump_clock: object, mount: RegistryMount):
    """G16: chmod, chown and times are accepted and mean nothing."""
    mount.store.put(ref("x"), b"old")
    entry = await mount.find("x")
    assert await mount.tree.setattr(entry.inode, None, None) == entry
    assert mount.posted == []


async def test_key_that_is_not_ours(autojump_clock: object, mount: RegistryMount):
    """G7: A file can be written if the keyring holds the private key; else its mode is 0444 and an
    open for writing is EACCES.
    """
    mount.store.put(ref("x"), b"mine")
    mount.store.put(ref("x", OTHERS), b"theirs")
    assert (await mount.find("x")).mode == stat.S_IFREG | 0o644
    entry = await mount.find("x", OTHERS)
    assert entry.mode == stat.S_IFREG | 0o444
    assert await mount.read("x", OTHERS) == b"theirs"
    directory = await mount.directory(OTHERS)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC):
        await refused(errno.EACCES, mount.tree.open(entry.inode, flags))
    for work in (
        mount.tree.create(directory, b"new", CREATE),
        mount.tree.unlink(directory, b"x"),
        mount.tree.rename(directory, b"x", directory, b"y", 0),
        mount.tree.setattr(entry.inode, None, None),
        mount.tree.setattr(entry.inode, 0, None),
        mount.tree.access(entry.inode, os.W_OK),
        mount.tree.access(directory, os.W_OK),
        mount.tree.access(REGISTRY, os.W_OK),
    ):
        await refused(errno.EACCES, work)
    assert await mount.tree.access(entry.inode, os.R_OK)
    assert await mount.tree.access((await mount.find("x")).inode, os.W_OK)
    assert not await mount.tree.access(entry.inode, os.X_OK)
    assert mount.posted == []


async def test_key_that_is_removed_while_writing(autojump_clock: object, mount: RegistryMount):
    """G7: without the private key nothing is signed: the close is EACCES."""
    opened = await mount.open("x", CREATE)
    opened.write(0, b"new")
    mount.keys.pairs.clear()
    await refused(errno.EACCES, mount.close(opened))


async def test_somebody_else_changes_it(autojump_clock: object, mount: RegistryMount):
    """G10: When somebody else has changed the entry since it was opened, a rewrite of the whole
    content wins with the next revision; a partial edit is ESTALE and changes nothing.
    """
    mount.store.put(ref("x"), b"old")
    rewriting = await mount.open("x", REWRITE)
    mount.store.put(ref("x"), b"theirs")
    rewriting.write(0, b"mine")
    await mount.close(rewriting)
    assert mount.posted == [b"mine"]
    editing = await mount.open("x", os.O_WRONLY | os.O_APPEND)
    mount.store.put(ref("x"), b"theirs")
    editing.write(0, b"!")
    for _ in range(2):
        with pytest.raises(StaleEntryError):
            await editing.flush()
    await mount.release(editing)
    assert await mount.read("x") == b"theirs"
    assert mount.posted == [b"mine"]


async def test_somebody_else_makes_it_while_we_do(autojump_clock: object, mount: RegistryMount):
    """G10: a partial edit is ESTALE: so is what was appended to a file that was not there."""
    opened = await mount.open("x", CREATE | os.O_APPEND)
    mount.store.put(ref("x"), b"theirs")
    opened.write(0, b"mine")
    with pytest.raises(StaleEntryError):
        await mount.close(opened)
    await trio.sleep(TTL + 1)
    assert await mount.read("x") == b"theirs"


async def test_somebody_else_removes_it(autojump_clock: object, mount: RegistryMount):
    """Appending to an entry that was there a moment ago makes it; an edit does not find it."""
    mount.store.put(ref("x"), b"old")
    await mount.find("x")
    mount.store.put(ref("x"), None)
    await refused(errno.ENOENT, mount.open("x", os.O_RDWR))
    mount.store.put(ref("x"), b"old")
    await trio.sleep(TTL + 1)
    await mount.read("x")
    mount.store.put(ref("x"), None)
    await mount.write("x", b"new", os.O_WRONLY | os.O_APPEND)
    assert mount.posted == [b"new"]


async def test_last_revision(autojump_clock: object, mount: RegistryMount):
    """G11: An entry of the last revision is frozen: EPERM."""
    mount.store.held[ref("x")] = Held(b"old", MAX_REVISION)
    await mount.read("x")
    for flags in (REWRITE, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(FrozenEntryError):
            await mount.open("x", flags)
    assert await mount.read("x") == b"old"


async def test_failed_post(autojump_clock: object, mount: RegistryMount):
    """G8: and the close or fsync has the result.

    It has it again until something else is written; then that is posted. Afterwards what the
    portal has is seen.
    """
    mount.store.put(ref("x"), b"old")
    opened = await mount.open("x", os.O_RDWR)
    opened.write(0, b"new")
    mount.store.error = UnavailableError("down")
    for work in (opened.flush, opened.fsync, opened.flush):
        with pytest.raises(UnavailableError):
            await work()
    mount.store.error = None
    with pytest.raises(UnavailableError):
        await opened.fsync()
    opened.write(0, b"NEW")
    await opened.fsync()
    assert mount.posted == [b"NEW"]
    opened.write(0, b"lost")
    mount.store.error = UnavailableError("down")
    with pytest.raises(UnavailableError):
        await mount.close(opened)
    with pytest.raises(UnavailableError):
        await mount.read("x")
    mount.store.error = None
    assert await mount.read("x") == b"NEW"


async def test_failed_post_of_a_new_file(autojump_clock: object, mount: RegistryMount):
    """A new file that could not be posted is not left behind, empty."""
    opened = await mount.open("x", CREATE)
    opened.write(0, b"new")
    mount.store.error = UnavailableError("down")
    await trio.sleep(TTL + 1)
    with pytest.raises(UnavailableError):
        await mount.close(opened)
    with pytest.raises(UnavailableError):
        await mount.read("x")
    mount.store.error = None
    await refused(errno.ENOENT, mount.read("x"))


async def test_deadline_while_posting(autojump_clock: object, mount: RegistryMount):
    """A post that took too long has failed for the next close too."""
    opened = await mount.open("x", CREATE)
    opened.write(0, b"new")
    mount.store.delay = 100
    with trio.move_on_after(30):
        await opened.flush()
    await refused(errno.ETIMEDOUT, opened.flush())
    await mount.release(opened)


async def test_written_while_a_post_is_under_way(autojump_clock: object, mount: RegistryMount):
    """What comes meanwhile is posted by its own close, as a change of what was posted."""
    mount.store.delay = 1
    opened = await mount.open("x", CREATE)
    async with trio.open_nursery() as nursery:
        opened.write(0, b"one")
        nursery.start_soon(opened.flush)
        await trio.sleep(0.5)
        opened.write(3, b", two")
        await opened.flush()
    await mount.close(opened)
    assert mount.posted == [b"one", b"one, two"]


async def test_modification_time_while_open(autojump_clock: object, mount: RegistryMount):
    """It is that of the last write, then that of the entry: editors look for it to stay."""
    mount.store.put(ref("x"), b"old")
    opened = await mount.open("x", os.O_RDWR)
    entry = await mount.find("x")
    assert entry.mtime_ns == 1000 * 10**9
    opened.write(0, b"new")
    entry = await mount.tree.getattr(entry.inode)
    assert entry.mtime_ns == (await mount.tree.getattr(entry.inode)).mtime_ns > 10**18
    await opened.flush()
    assert (await mount.tree.getattr(entry.inode)).mtime_ns == 1001 * 10**9
    await mount.close(opened)
    assert (await mount.tree.getattr(entry.inode)).mtime_ns == 1001 * 10**9


async def test_end_of_the_mount(autojump_clock: object, mount: RegistryMount):
    """What is still open is posted when the mount ends."""
    opened = await mount.open("x", CREATE)
    opened.write(0, b"new")
    await mount.tree.close()
    assert mount.posted == [b"new"]


async def test_end_of_the_mount_while_the_portal_is_silent(
    autojump_clock: object, mount: RegistryMount, monkeypatch: pytest.MonkeyPatch
):
    """G12: Whatever is still open reaches the store, which keeps what it could not post."""
    begun: list[EntryId] = []

    async def never(ref: EntryId, *_: object) -> Held:
        begun.append(ref)
        await trio.sleep_forever()
        raise AssertionError

    for name in ("x", "y", "z"):
        (await mount.open(name, CREATE)).write(0, b"new")
    monkeypatch.setattr(mount.store, "write", never)
    with trio.move_on_after(1):
        await mount.tree.close()
    assert set(begun) == {ref("x"), ref("y"), ref("z")}


# --- removing and renaming


async def test_unlink(autojump_clock: object, mount: RegistryMount):
    """G13: rm posts the deletion of the entry."""
    await mount.write("x", b"data")
    await mount.unlink("x")
    assert mount.posted == [b"data", None]
    await refused(errno.ENOENT, mount.find("x"))
    await refused(errno.ENOENT, mount.tree.unlink(await mount.directory(), b"x"))
    assert await mount.names() == []
    await mount.write("x", b"again")
    assert await mount.read("x") == b"again"


async def test_unlink_while_open(autojump_clock: object, mount: RegistryMount):
    """An entry that was removed does not come back by what is written to it later."""
    await mount.write("x", b"data")
    opened = await mount.open("x", os.O_RDWR)
    opened.write(0, b"late")
    await mount.unlink("x")
    with pytest.raises(OSError, match="Stale"):
        opened.write(0, b"later")
    await mount.write("x", b"another")
    await mount.close(opened)
    assert mount.posted == [b"data", None, b"another"]


async def test_close_of_what_was_removed(autojump_clock: object, mount: RegistryMount):
    """The last close of a file that was removed does not part those who write to a new one."""
    await mount.write("x", b"data")
    removed = await mount.open("x", os.O_RDWR)
    await mount.unlink("x")
    one = await mount.open("x", os.O_RDWR | os.O_CREAT)
    one.write(0, b"0123")
    await mount.release(removed)
    two = await mount.open("x", os.O_RDWR)
    two.write(3, b"b")
    assert await one.read(0, 100) == await two.read(0, 100) == b"012b"
    await mount.close(one)
    await mount.close(two)
    assert mount.posted == [b"data", None, b"012b"]


async def test_rename(autojump_clock: object, mount: RegistryMount):
    """G13: A rename within one key's directory posts the new entry, then deletes the old one."""
    await mount.write("x", b"data")
    await mount.rename("x", "y")
    assert mount.store.posts[1:] == [(ref("y"), b"data"), (ref("x"), None)]
    await mount.write("z", b"other")
    await refused(errno.EEXIST, mount.rename("y", "z", 1))
    await refused(errno.EINVAL, mount.rename("y", "z", 2))
    await mount.rename("y", "z")
    assert await mount.read("z") == b"data"
    await mount.rename("z", "free", 1)
    await refused(errno.ENOENT, mount.rename("none", "z"))
    await refused(errno.EINVAL, mount.rename("free", "%FF"))


async def test_rename_of_what_is_not_verified(autojump_clock: object, mount: RegistryMount):
    """D2: a text that was not checked against its skylink cannot be renamed, also while it is
    being edited: the owner's key would sign what a portal made up.
    """
    mount.store.put(ref("one"), mount.store.doubtful)
    with pytest.raises(BadContentError):
        await mount.rename("one", "two")
    opened = await mount.open("one", os.O_RDWR)
    opened.write(0, b"n")
    with pytest.raises(BadContentError):
        await mount.rename("one", "two")
    assert mount.posted == []
    opened.resize(0)
    await mount.close(opened)
    mount.store.posts.clear()
    await mount.write("one", b"known")
    await mount.rename("one", "two")
    assert mount.posted == [b"known", b"known", None]


async def test_rename_of_an_empty_entry(autojump_clock: object, mount: RegistryMount):
    """G13: What was posted is posted under its new name, though it is empty."""
    mount.store.put(ref("x"), b"")
    await mount.rename("x", "y")
    assert mount.store.posts == [(ref("y"), b""), (ref("x"), None)]


@pytest.mark.parametrize("spelling", ["%78", hash_data_key("x").hex()])
async def test_rename_to_another_spelling(
    autojump_clock: object, mount: RegistryMount, spelling: str
):
    """G13: Two names of one entry are as two links to one file: nothing is deleted."""
    await mount.write("x", b"data")
    await mount.rename("x", spelling)
    assert mount.posted == [b"data"]
    assert await mount.read("x") == await mount.read(spelling) == b"data"


async def test_rename_to_another_key(autojump_clock: object, mount: RegistryMount):
    """G13: across keys it is EXDEV."""
    await mount.write("x", b"data")
    own, other = await mount.directory(), await mount.directory(OTHERS)
    await refused(errno.EXDEV, mount.tree.rename(own, b"x", other, b"x", 0))


async def test_what_cannot_be_made(autojump_clock: object, mount: RegistryMount):
    """G13: Directories, links and devices cannot be made: EPERM."""
    own = await mount.directory()
    for work in (
        mount.tree.create(REGISTRY, b"x", CREATE),
        mount.tree.unlink(REGISTRY, HOME),
        mount.tree.rename(REGISTRY, HOME, REGISTRY, b"x", 0),
        mount.tree.rename(own, b"x", REGISTRY, b"x", 0),
        mount.tree.setattr(REGISTRY, None, None),
    ):
        await refused(errno.EPERM, work)
    assert mount.tree.refusal == errno.EPERM


async def test_rename_of_what_is_open(autojump_clock: object, mount: RegistryMount):
    """What was written goes along; what is written later has no name any more."""
    opened = await mount.open("x.new", CREATE)
    opened.write(0, b"data")
    await mount.rename("x.new", "x")
    assert await mount.read("x") == b"data"
    with pytest.raises(OSError, match="Stale"):
        opened.write(4, b"more")
    await mount.close(opened)
    assert mount.posted == [b"data"]
    await refused(errno.ENOENT, mount.find("x.new"))


async def test_wrong_kind(autojump_clock: object, mount: RegistryMount):
    """Directories are not read, files not listed; what is forgotten is ESTALE."""
    directory = await mount.directory()
    mount.store.put(ref("x"), b"data")
    file = (await mount.find("x")).inode
    await refused(errno.EISDIR, mount.tree.open(REGISTRY, 0))
    await refused(errno.EISDIR, mount.tree.open(directory, 0))
    await refused(errno.EISDIR, mount.tree.setattr(directory, 0, None))
    await refused(errno.ENOTDIR, mount.tree.opendir(file))
    await refused(errno.ENOTDIR, mount.tree.lookup(file, b"x"))
    await mount.forget_everything()
    await refused(errno.ESTALE, mount.tree.getattr(file))


# --- listing


async def test_listing_of_data_keys(autojump_clock: object, mount: RegistryMount):
    """G6: one of a key's directory the data keys known on this machine."""
    mount.store.known = [ref("x"), ref("a/b"), replace(ref("hashed"), data_key=None), ref("gone")]
    mount.store.put(ref("gone"), None)
    await refused(errno.ENOENT, mount.find("gone"))
    await mount.write("new", b"", CREATE)
    expected = {"x", "a%2Fb", hash_data_key("hashed").hex(), "new"}
    assert set(await mount.names()) == expected
    assert set((await mount.listing(await mount.directory())).values()) == {stat.S_IFREG | 0o644}


async def test_inode_numbers_stay(autojump_clock: object, mount: RegistryMount):
    """A node that was forgotten has the same number again."""
    mount.store.put(ref("x"), b"data")
    before = [(await mount.find("x")).inode, await mount.directory()]
    assert await mount.forget_everything() == 0
    assert [(await mount.find("x")).inode, await mount.directory()] == before


async def test_nothing_is_left_behind(autojump_clock: object, mount: RegistryMount):
    """When the kernel has forgotten all, no node is kept, whatever was done."""
    mount.store.known = [ref("x"), ref("gone")]
    mount.store.put(ref("gone"), None)
    await mount.lookup(REGISTRY, HOME)
    for name in ("gone", "none"):
        await refused(errno.ENOENT, mount.read(name))
    await mount.write("x", b"data")
    await mount.rename("x", "y")
    await mount.write("x~", b"scratch", CREATE)
    await mount.rename("x~", "z")
    await mount.rename("z", "z~")
    await mount.write("z", b"more")
    await mount.unlink("z~")
    await mount.listing(REGISTRY)
    await mount.names()
    await refused(errno.EEXIST, mount.rename("y", "z", 1))
    mount.store.error = UnavailableError("down")
    with pytest.raises(UnavailableError):
        await mount.rename("y", "w")
    opened = await mount.tree.opendir(REGISTRY)
    opened.referred(0, 1, 1)
    children = list(opened.readdir(0))
    opened.release()
    assert len(list(mount.tree.nodes)) > 0
    mount.tree.forget(children[0][1], 1)
    assert await mount.forget_everything() == 0


# --- scratch files


async def test_scratch_file(autojump_clock: object, mount: RegistryMount):
    """G14: Scratch files of editors live in memory, never posted."""
    await mount.write(".x.swp", b"swap", CREATE)
    await mount.write(".x.swp", b"S", os.O_RDWR)
    assert await mount.read(".x.swp") == b"Swap"
    assert (await mount.find(".x.swp")).mode == stat.S_IFREG | 0o600
    await mount.write(".x.swp", b"")
    assert await mount.read(".x.swp") == b""
    entry = await mount.find(".x.swp")
    assert (await mount.tree.setattr(entry.inode, 5, None)).size == 5
    assert await mount.names() == [".x.swp"]
    await mount.rename(".x.swp", "x~")
    assert await mount.names() == ["x~"]
    await mount.unlink("x~")
    await refused(errno.ENOENT, mount.find("x~"))
    await refused(errno.ENOENT, mount.tree.unlink(await mount.directory(), b"x~"))
    assert (mount.posted, mount.store.asked) == ([], [])


async def test_limits_of_scratch_files(autojump_clock: object, mount: RegistryMount):
    """G14: at most 256 for a key, of 1 MiB each and 4 MiB together."""
    for number in range(4):
        opened = await mount.open(f"{number}~", CREATE)
        opened.write(0, bytes(1 << 20))
        with pytest.raises(OSError, match="File too large"):
            opened.write(1 << 20, b"x")
    opened = await mount.open("4~", CREATE)
    with pytest.raises(OSError, match="No space left"):
        opened.write(0, b"x")
    await mount.unlink("0~")
    opened.write(0, b"x")
    for number in range(5, SCRATCH_LIMIT + 1):
        await mount.open(f"{number}~", CREATE)
    await refused(errno.ENOSPC, mount.open("one more~", CREATE))
    assert await mount.forget_everything() > 0


async def test_scratch_file_becomes_an_entry(autojump_clock: object, mount: RegistryMount):
    """G14: Renaming one onto an entry posts its content."""
    await mount.write("x", b"old")
    opened = await mount.open("sedabcdef", CREATE)
    opened.write(0, b"new")
    await mount.rename("sedabcdef", "x")
    assert await mount.read("x") == b"new"
    with pytest.raises(OSError, match="Stale"):
        opened.write(0, b"late")
    await mount.close(opened)
    await mount.write("x~", b"new", CREATE)
    await mount.rename("x~", "x")
    assert mount.posted == [b"old", b"new"]
    await mount.write("x~", b"x" * 114, CREATE)
    await refused(errno.EFBIG, mount.rename("x~", "x"))
    await refused(errno.ENOENT, mount.rename("y~", "x"))
    assert await mount.read("x") == b"new"


async def test_empty_scratch_file_becomes_an_entry(autojump_clock: object, mount: RegistryMount):
    """G15: A new file is local and empty, also if it was a scratch file; an old one is emptied."""
    await mount.write("x", b"old")
    for name in ("x", "y"):
        await mount.write("sedabcdef", b"", CREATE)
        await mount.rename("sedabcdef", name)
        assert await mount.read(name) == b""
    assert mount.store.posts == [(ref("x"), b"old"), (ref("x"), b"")]


async def test_entry_becomes_a_scratch_file(autojump_clock: object, mount: RegistryMount):
    """G14: renaming an entry onto one keeps a copy and posts nothing.

    So an editor's way of saving: move away, make anew.
    """
    await mount.write("x", b"old")
    await mount.rename("x", "x~")
    assert await mount.names() == ["x~"]
    assert await mount.read("x~") == b"old"
    await refused(errno.ENOENT, mount.find("x"))
    await mount.write("x", b"new")
    await mount.unlink("x~")
    assert await mount.read("x") == b"new"
    assert mount.posted == [b"old", b"new"]


async def test_copy_that_is_all_that_is_left(autojump_clock: object, mount: RegistryMount):
    """G14: posts nothing: the entry is seen again when the copy is removed, or moved back."""
    await mount.write("x", b"old")
    await mount.rename("x", "x~")
    await mount.unlink("x~")
    assert await mount.read("x") == b"old"
    await mount.rename("x", "x~")
    await mount.rename("x~", "x")
    assert await mount.read("x") == b"old"
    await mount.rename("x", "x~")
    await mount.write("x", b"old")
    assert mount.posted == [b"old"]
    await mount.write("x", b"")
    assert mount.posted == [b"old", b""]


async def test_probe_of_vim(autojump_clock: object, mount: RegistryMount):
    """G14: `4913` cannot be created."""
    await refused(errno.ENOENT, mount.find("4913"))
    await refused(errno.EPERM, mount.open("4913", CREATE))
    await mount.write("x~", b"data", CREATE)
    await refused(errno.EPERM, mount.rename("x~", "4913"))
    mount.store.put(ref("4913"), b"there")
    assert await mount.read("%34913") == b"there"


async def test_names_of_documents(autojump_clock: object):
    """D1: `skydb/<public key>/<data key>.json`: the suffix is no part of the data key."""
    mount = RegistryMount(b".json")
    mount.store.put(ref("doc"), b"{}")
    mount.store.known = [ref("doc"), ref("note~")]
    assert await mount.read("doc.json") == b"{}"
    assert await mount.names() == ["doc.json", "note~.json"]
    await refused(errno.ENOENT, mount.find("doc"))
    await refused(errno.EINVAL, mount.open("doc", CREATE))
    await refused(errno.EINVAL, mount.rename("doc.json", "doc"))
    await mount.write("doc.json~", b"scratch", CREATE)
    assert mount.posted == []


@pytest.mark.parametrize("name", ["x.tmp", "x"])
async def test_write_during_a_rename(autojump_clock: object, mount: RegistryMount, name: str):
    """G13: ESTALE for a write while the content is being posted: it would be lost."""
    await mount.write(name, b"data")
    opened = await mount.open(name, os.O_WRONLY)
    mount.store.delay = 1.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mount.rename, name, "y")
        await trio.sleep(0.5)
        with pytest.raises(OSError, match="Stale"):
            opened.write(4, b" more")
    await mount.close(opened)
    assert await mount.read("y") == b"data"


@pytest.mark.parametrize("name", ["x.tmp", "x"])
async def test_write_after_a_rename_that_failed(
    autojump_clock: object, mount: RegistryMount, name: str
):
    """A file that kept its name can be written again."""
    await mount.write(name, b"data")
    opened = await mount.open(name, os.O_WRONLY)
    mount.store.error = UnavailableError("down")
    with pytest.raises(UnavailableError):
        await mount.rename(name, "y")
    mount.store.error = None
    opened.write(4, b" more")
    await mount.close(opened)
    assert await mount.read(name) == b"data more"


async def test_listing_of_many_entries(mount: RegistryMount):
    """Names are listed a part at a time, and what nobody refers to is not kept."""
    names = [f"key {n:04}" for n in range(1000)]
    mount.store.known = [ref(name) for name in reversed(names)]
    opened = await mount.tree.opendir(await mount.directory())
    found, position = [], 0
    while children := list(opened.readdir(position)):
        assert len(children) < 200
        assert len(list(mount.tree.nodes)) < 200
        found += [name.decode() for name, *_ in children]
        position = children[-1][4]
    assert found == names
    first = next(iter(opened.readdir(0)))
    opened.referred(0, first[4], 1)
    opened.release()
    mount.tree.forget(first[1], 1)
    assert await mount.forget_everything() == 0


async def test_scratch_file_that_is_gone_while_listed(mount: RegistryMount):
    """What was removed since the directory was opened is not listed any more."""
    mount.store.known = [ref("x")]
    parent = await mount.directory()
    entry, handle = await mount.tree.create(parent, b".x.swp", os.O_RDWR)
    mount.references[entry.inode] = 1
    opened = await mount.tree.opendir(parent)
    await handle.release()
    await mount.tree.unlink(parent, b".x.swp")
    assert [name for name, *_ in opened.readdir(0)] == [b"x"]
    opened.release()
