"""Names and attributes of `/registry`, as the kernel asks for them."""

import errno
import os
import stat

import pytest
import trio

from skymount.errors import AccessDeniedError, RolledBackError, UnavailableError
from skymount.fs.inode_space import REGISTRY, InodeSpace, space_of
from skymount.fs.subtree import MUTABLE_TIMEOUT, InodeAttributes
from tests.fakes.refusal import refused
from tests.fakes.registry_mount import (
    CREATE,
    HOME,
    OTHERS,
    OWN,
    TTL,
    RegistryMount,
    ref,
)


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


async def test_lookups_of_a_silent_portal(autojump_clock: object, mount: RegistryMount):
    """G3: A lookup waits at most `lookup_grace` (0.5 s) for a portal. Further lookups do not queue
    for a silent one.
    """
    mount.store.delay = 30
    directory, begun = await mount.directory(), trio.current_time()
    for number in range(100):
        await mount.lookup(directory, b"%d" % number)
    assert trio.current_time() - begun == pytest.approx(0.5)
    assert len(mount.store.asked) == 1
    mount.store.delay = 0.4
    await trio.sleep(0.5)
    for number in range(100, 105):
        await refused(errno.ENOENT, mount.lookup(directory, b"%d" % number))


async def test_silence_in_another_directory(autojump_clock: object, mount: RegistryMount):
    """G3: Further lookups in the same directory do not wait; those in another one do."""
    mount.store.delay = 30
    await mount.find("x")
    mount.store.delay = 0.4
    await refused(errno.ENOENT, mount.find("x", OTHERS))


async def test_new_files_over_a_slow_portal(autojump_clock: object, mount: RegistryMount):
    """G3: However many lookups were answered, the next one still waits for its answer.

    So files that must be new (O_EXCL) can be made one after the other.
    """
    mount.store.delay = 0.4
    directory = await mount.directory()
    for number in range(20):
        await refused(errno.ENOENT, mount.lookup(directory, b"%d" % number))
    for number in range(20):
        await mount.write(f"new {number}", b"data", CREATE | os.O_EXCL)


async def test_failing_portal_is_not_silent(autojump_clock: object, mount: RegistryMount):
    """G3: If the portals fail, the name counts as present; the next lookup asks again."""
    mount.store.error = UnavailableError("down")
    await mount.find("x")
    mount.store.error = None
    await refused(errno.ENOENT, mount.find("y"))


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


async def test_inode_numbers_stay(autojump_clock: object, mount: RegistryMount):
    """A node that was forgotten has the same number again."""
    mount.store.put(ref("x"), b"data")
    before = [(await mount.find("x")).inode, await mount.directory()]
    assert await mount.forget_everything() == 0
    assert [(await mount.find("x")).inode, await mount.directory()] == before


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


async def test_forgotten_files(autojump_clock: object, mount: RegistryMount):
    """G17: What the kernel has forgotten is dropped, and has the same number when it is back."""
    names = [f"entry {number}" for number in range(1000)]
    for name in names:
        mount.store.put(ref(name), b"x")
    found = {name: (await mount.find(name)).inode for name in names}
    assert len(set(found.values())) == 1000
    assert len(list(mount.tree.nodes)) == 1001
    assert await mount.forget_everything() == 0
    assert {name: (await mount.find(name)).inode for name in names} == found


@pytest.mark.parametrize("error", [RolledBackError("old"), AccessDeniedError("blocked")])
async def test_what_cannot_be_read(autojump_clock: object, mount: RegistryMount, error: Exception):
    """G4: stat works, as does asking for `last_error`: it shows what was known last, or 113 bytes
    if nothing was.
    """
    mount.store.put(ref("known"), b"data")
    known = await mount.find("known")
    await trio.sleep(TTL + 1)
    mount.store.error = error
    unknown = await mount.find("unknown")
    for found, size in ((known, 4), (unknown, 113)):
        shown = await mount.tree.getattr(found.inode)
        assert (shown.size, shown.mode, shown.attr_timeout) == (size, stat.S_IFREG | 0o644, 0.0)
        await mount.tree.xattrs(found.inode)
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
            with pytest.raises(type(error)):
                await mount.tree.open(found.inode, flags)
    mount.store.error = None
    await refused(errno.ENOENT, mount.tree.getattr(unknown.inode))
