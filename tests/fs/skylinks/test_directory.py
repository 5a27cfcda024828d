"""Trees of skylinks, as the kernel asks for them, without a kernel."""

import errno
import os
import stat

import pytest
import trio

from skymount.errors import AccessDeniedError, BadContentError, UnavailableError
from skymount.fs.inode_space import HNS, SKYLINKS
from skymount.fs.subtree import (
    IMMUTABLE_TIMEOUT,
    MUTABLE_TIMEOUT,
    InodeAttributes,
)
from skymount.portal.registry.name_resolver import NEGATIVE_TTL, ResolvableName
from skymount.wire.skylink import Skylink
from tests.fakes.in_memory_mount import (
    FILES,
    Listed,
    Opened,
    listing,
    lookup,
    open_in_memory_mount,
    push_out,
)
from tests.fakes.refusal import refused
from tests.fakes.skyfiles import resolver

# --- looking up


async def test_lookup_in_a_tree(autojump_clock: object):
    """S4: The kernel may keep names, attributes and pages for ever.

    Names in a tree are found at once and for ever; so is that there is no such name.
    """
    async with open_in_memory_mount() as mount:
        link = mount.reader.add(FILES)
        entry = await lookup(mount, "skylinks", str(link), "d", "b.bin")
        assert (entry.mode, entry.size) == (stat.S_IFREG | 0o444, 2048)
        assert entry.entry_timeout == entry.attr_timeout == IMMUTABLE_TIMEOUT
        top = await lookup(mount, "skylinks", str(link))
        assert await mount.operations.lookup(top.inode, b"nothing") == InodeAttributes(0)
        assert await mount.operations.lookup(top.inode, b"..") == InodeAttributes(0)
        await refused(errno.ENOTDIR, mount.operations.lookup(entry.inode, b"x"))


@pytest.mark.parametrize("name", [b"x", b"", b"\xff\xfe", b"A" * 45, b"w" * 55, b"..", b"a\nb"])
async def test_malformed_skylink(name: bytes, autojump_clock: object):
    """S3: Anything else in `skylinks` is ENOENT, without any network traffic.

    A name that is no skylink does not exist, for ever, and nobody is asked.
    """
    async with open_in_memory_mount() as mount:
        assert await mount.operations.lookup(SKYLINKS, name) == InodeAttributes(0)
        assert mount.reader.loads == []
        assert len(mount.table) == 0


async def test_absent_skylink(autojump_clock: object):
    """L1: is ENOENT and is remembered for 5 s.

    A definite «no» is a negative entry for a short time: it may be uploaded any moment.
    """
    async with open_in_memory_mount() as mount:
        name = str(Skylink.v1(bytes(32), 1)).encode()
        entry = await mount.operations.lookup(SKYLINKS, name)
        assert (entry.inode, entry.entry_timeout) == (0, NEGATIVE_TTL)


async def test_slow_skylink(autojump_clock: object):
    """L2: Without an answer by then the name is reported as a directory that nobody may cache.

    Without an answer in time a name is a directory that is remembered for no time; what is done
    inside it waits for the answer.
    """
    async with open_in_memory_mount(lookup_grace=0.5) as mount:
        link = mount.reader.add(FILES)
        mount.reader.delays[link] = 10
        entry = await lookup(mount, "skylinks", str(link))
        assert trio.current_time() == 0.5
        assert stat.S_ISDIR(entry.mode)
        assert (entry.entry_timeout, entry.attr_timeout) == (0, 0)
        assert await mount.operations.getattr(entry.inode) == entry
        assert trio.current_time() == 0.5
        again = await lookup(mount, "skylinks", str(link))
        assert trio.current_time() == 0.5, "it was waited for before"
        assert again == entry
        found = await mount.operations.lookup(entry.inode, b"a.txt")
        assert trio.current_time() == 10
        assert found.size == 5
        assert (await lookup(mount, "skylinks", str(link))).entry_timeout == IMMUTABLE_TIMEOUT
        assert len(mount.reader.loads) == 1


async def test_many_slow_skylinks(autojump_clock: object):
    """L1: all lookups in `skylinks` together wait at most that long in each second.

    L2: So many skylinks that are used at once are loaded at once.

    The kernel sends one lookup after the other, but what is done inside at once.
    """
    async with open_in_memory_mount(lookup_grace=0.5) as mount:
        links = [mount.reader.add({"f": b"%d" % number}) for number in range(30)]
        mount.reader.delays = dict.fromkeys(links, 0.2)
        entries = [await lookup(mount, "skylinks", str(link)) for link in links]
        assert trio.current_time() == pytest.approx(0.5)
        assert [entry.entry_timeout for entry in entries] == [IMMUTABLE_TIMEOUT] * 2 + [0] * 28
        async with trio.open_nursery() as nursery:
            for entry in entries:
                nursery.start_soon(mount.operations.opendir, entry.inode)
        assert trio.current_time() == pytest.approx(0.7)
        assert len(mount.reader.loads) == 30


async def test_lookups_wait_again_a_second_later(autojump_clock: object):
    """L1: in each second."""
    async with open_in_memory_mount(lookup_grace=0.5) as mount:
        mount.reader.delays = dict.fromkeys(
            (mount.reader.add({"f": b"%d" % n}) for n in range(3)), 0.4
        )
        one, two, three = map(str, mount.reader.delays)
        await lookup(mount, "skylinks", one)
        await lookup(mount, "skylinks", two)
        assert trio.current_time() == pytest.approx(0.5)
        await trio.sleep(1)
        entry = await lookup(mount, "skylinks", three)
        assert (trio.current_time(), entry.entry_timeout) == (pytest.approx(1.9), IMMUTABLE_TIMEOUT)


async def test_malformed_name_waits_for_nobody(autojump_clock: object):
    """L2: A name that is not a skylink or a domain waits for no portal itself."""
    async with open_in_memory_mount(lookup_grace=0.5) as mount:
        link = mount.reader.add(FILES)
        mount.reader.delays[link] = 10
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lookup, mount, "skylinks", str(link))
            await trio.sleep(0.1)
            assert await mount.operations.lookup(SKYLINKS, b"notaskylink") == InodeAttributes(0)
            assert trio.current_time() == pytest.approx(0.1)


async def test_unknown_domain_among_slow_ones(autojump_clock: object):
    """L4: what is known not to exist is ENOENT also where nothing may be waited for."""
    async with open_in_memory_mount(lookup_grace=0.5) as mount:
        assert (await mount.operations.lookup(HNS, b"none")).inode == 0
        mount.names.delays["slow"] = 10
        assert (await mount.operations.lookup(HNS, b"slow")).inode
        assert trio.current_time() == pytest.approx(0.5)
        assert (await mount.operations.lookup(HNS, b"none")).inode == 0
        assert len(mount.domains) == 1
        assert mount.names.asked == ["none", "slow"]


async def test_slow_skylink_that_is_not_there(autojump_clock: object):
    """L2: waits for the answer, and gets ENOENT or EIO when that is the answer.

    Inside a directory that turns out not to exist there is nothing; then the name is gone.
    """
    async with open_in_memory_mount() as mount:
        link = Skylink.v1(bytes(32), 1)
        mount.reader.delays[link] = 5
        entry = await lookup(mount, "skylinks", str(link))
        for work in (
            mount.operations.opendir(entry.inode),
            mount.operations.lookup(entry.inode, b"x"),
            mount.operations.xattrs(entry.inode),
        ):
            with pytest.raises(Exception, match="not here"):
                await work
        mount.reader.delays.clear()
        gone = await mount.operations.lookup(SKYLINKS, str(link).encode())
        assert gone.inode == 0


@pytest.mark.parametrize(
    "error", [UnavailableError("down"), BadContentError("a lie"), AccessDeniedError("blocked")]
)
async def test_failing_skylink(error: Exception, autojump_clock: object):
    """A failure is the error of the lookup, or of what is done inside; the next try is new."""
    async with open_in_memory_mount() as mount:
        link = mount.reader.add(FILES)
        mount.reader.errors[link] = error
        with pytest.raises(type(error)):
            await lookup(mount, "skylinks", str(link))
        mount.reader.delays[link] = 5
        entry = await lookup(mount, "skylinks", str(link))
        with pytest.raises(type(error)):
            await mount.operations.opendir(entry.inode)
        mount.reader.errors.clear()
        assert await listing(mount, entry.inode)


async def test_lookups_do_not_wait_for_one_another(autojump_clock: object):
    """L1: A lookup in `skylinks` waits for a portal at most `lookup_grace` (0.5 s).

    A slow skylink delays nobody but those who look at it, and them not for long.
    """
    async with open_in_memory_mount() as mount:
        slow, quick = mount.reader.add({"f": b"s"}), mount.reader.add({"f": b"q"})
        mount.reader.delays[slow] = 1000
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(lookup, mount, "skylinks", str(slow))
            await lookup(mount, "skylinks", str(quick))
            assert trio.current_time() == 0
        assert trio.current_time() == 0.5


@pytest.mark.parametrize("goal", [resolver(), "example.org"])
async def test_name_that_moves(goal: ResolvableName, autojump_clock: object):
    """S8: A v2 (resolver) skylink is the directory of what it resolves to.

    H1: `hns/<domain>/` is the tree of the skylink that the domain resolves to.

    H2: open files and directory scans stay on the old one.
    """
    async with open_in_memory_mount(ttl=60) as mount:
        where = "skylinks" if isinstance(goal, Skylink) else "hns"
        directory = (await lookup(mount, where)).inode
        mount.names.leads[goal] = mount.reader.add({f"{n:02}": b"old" for n in range(10)})
        entry = await lookup(mount, where, str(goal))
        assert entry.entry_timeout == MUTABLE_TIMEOUT
        file = await lookup(mount, where, str(goal), "05")
        handle = (await mount.operations.open(file.inode, os.O_RDONLY)).handle
        scan = await mount.operations.opendir(entry.inode)
        first = list(mount.operations.readdir(scan, 0))[:4]
        mount.names.leads[goal] = mount.reader.add({"newer": b"newer"})
        await trio.sleep(54.5)
        assert (await lookup(mount, where, str(goal))).entry_timeout == MUTABLE_TIMEOUT
        [child] = await listing(mount, directory)
        assert (child.name.decode(), child.entry_timeout) == (str(goal), MUTABLE_TIMEOUT)
        await trio.sleep(1)
        newer = await lookup(mount, where, str(goal), "newer")
        assert newer.size == 5
        assert newer.inode not in range(entry.inode, entry.inode + 20)
        assert await mount.operations.read(handle, 0, 100) == b"old"
        assert (await mount.operations.getattr(file.inode)).size == 3
        rest = list(mount.operations.readdir(scan, first[-1][4]))
        assert [name for name, *_ in first + rest] == [b"%02d" % n for n in range(10)]
        assert (await mount.operations.lookup(entry.inode, b"07")).size == 3
        stale = b"user.skymount.stale"
        assert (await mount.operations.xattrs(file.inode))[stale] == b"yes"
        assert (await mount.operations.xattrs(newer.inode))[stale] == b"no"


# --- attributes and directories


async def test_attributes(autojump_clock: object):
    """Attributes are those of the lookup."""
    async with open_in_memory_mount() as mount:
        link = mount.reader.add(FILES)
        for path in ([], ["a.txt"], ["d"], ["d", "b.bin"]):
            entry = await lookup(mount, "skylinks", str(link), *path)
            assert await mount.operations.getattr(entry.inode) == entry


async def test_listing_continues_anywhere(autojump_clock: object):
    """A listing goes on behind any position, in the same order, and ends."""
    async with open_in_memory_mount() as mount:
        files = {f"{n:03}": b"" for n in range(100)}
        entry = await lookup(mount, "skylinks", str(mount.reader.add(files)))
        whole = await listing(mount, entry.inode)
        assert [child.name.decode() for child in whole] == list(files)
        for n in range(0, 101, 7):
            position = whole[n - 1].position if n else 0
            assert await listing(mount, entry.inode, position) == whole[n:]
        assert await listing(mount, entry.inode, 10_000) == []
        for child in whole:
            assert await mount.operations.lookup(entry.inode, child.name) == InodeAttributes(
                child.inode, child.mode, child.size, child.entry_timeout, child.attr_timeout
            )


async def test_listing_of_skylinks(autojump_clock: object):
    """S9: `ls skylinks` lists the skylinks that were used in this mount.

    What was used is listed, as it was when the directory was opened; what was dropped since is left
    out.
    """
    async with open_in_memory_mount() as mount:
        names = [str(mount.reader.add({"f": bytes([n])})) for n in range(5)]
        for name in names[:3]:
            await lookup(mount, "skylinks", name)
        handle = await mount.operations.opendir(SKYLINKS)
        await lookup(mount, "skylinks", names[3])
        assert [name.decode() for name, *_ in mount.operations.readdir(handle, 0)] == names[:3]
        mount.table.forget(mount.table.get_or_add(names[1]).version.inode(), 1)
        push_out(mount.table)
        rest = list(mount.operations.readdir(handle, 1))
        assert [name.decode() for name, *_ in rest] == [names[2]]
        mount.operations.referred(handle, 0, 3, 3)
        assert mount.table.get_or_add(names[0]).version.references == 2
        assert len(await listing(mount, SKYLINKS)) == 3


async def test_listing_counts_references(autojump_clock: object):
    """What a listing handed to the kernel counts, so that the tree stays until it is forgotten."""
    async with open_in_memory_mount() as mount:
        entry = await lookup(mount, "skylinks", str(mount.reader.add(FILES)))
        version, _ = mount.table.node_of(entry.inode)
        handle = await mount.operations.opendir(entry.inode)
        assert (version.references, version.handles) == (1, 1)
        *_, last = map(Listed.of, mount.operations.readdir(handle, 0))
        mount.operations.referred(handle, 0, last.position, 2)
        assert version.references == 3
        mount.operations.releasedir(handle)
        mount.operations.forget(version.inode(1), 2)
        mount.operations.forget(entry.inode, 1)
        assert (version.references, version.handles) == (0, 0)


# --- files


async def test_reading(autojump_clock: object):
    """Reads give the file's bytes, short only at its end."""
    async with open_in_memory_mount() as mount:
        link = mount.reader.add(FILES)
        file = await lookup(mount, "skylinks", str(link), "d", "b.bin")
        handle, keep, _ = await mount.operations.open(file.inode, os.O_RDONLY)
        assert keep
        assert mount.reader.open_files == 1
        content = FILES["d/b.bin"]
        for offset, length in [(0, 10), (2040, 100), (2048, 10), (5000, 10), (0, 1 << 20), (7, 0)]:
            expected = content[offset : offset + length]
            now = trio.current_time()
            assert await mount.operations.read(handle, offset, length) == expected
            assert trio.current_time() == now
            if expected:
                mount.reader.cold = True
                assert await mount.operations.read(handle, offset, length) == expected
                assert trio.current_time() == now + 1
        await mount.operations.release(handle)
        assert mount.reader.open_files == 0


async def test_content_with_the_open(autojump_clock: object):
    """R9: A small file in memory is handed over when it is opened, unless it is open already."""
    files = {"small": b"x" * (64 << 10), "large": b"y" * ((64 << 10) + 1), "other": b"z"}
    async with open_in_memory_mount() as mount:
        link = str(mount.reader.add(files))
        small, large, other = [
            await lookup(mount, "skylinks", link, name) for name in ("small", "large", "other")
        ]

        async def opened(entry: InodeAttributes) -> Opened:
            return await mount.operations.open(entry.inode, os.O_RDONLY)

        assert (await opened(large)).content is None
        first = await opened(small)
        assert first.content == files["small"]
        second = await opened(small)
        assert second.content is None
        assert (await opened(other)).content == b"z"
        for handle in (first.handle, second.handle):
            assert (await opened(small)).content is None
            await mount.operations.release(handle)


async def test_content_with_the_open_after_the_last_close(autojump_clock: object):
    """R9: What was open counts no more once it is closed; what is not in memory is not awaited."""
    async with open_in_memory_mount() as mount:
        file = await lookup(mount, "skylinks", str(mount.reader.add(FILES)), "a.txt")
        for cold in (False, True, False):
            mount.reader.cold = cold
            opened = await mount.operations.open(file.inode, os.O_RDONLY)
            assert opened.content == (None if cold else b"hello")
            await mount.operations.release(opened.handle)


async def test_reading_an_empty_file(autojump_clock: object):
    """An empty file is at its end at once, without a request."""
    async with open_in_memory_mount() as mount:
        mount.reader.cold = True
        link = mount.reader.add(FILES)
        file = await lookup(mount, "skylinks", str(link), "d", "empty")
        handle = (await mount.operations.open(file.inode, os.O_RDONLY)).handle
        assert await mount.operations.read(handle, 0, 4096) == b""


async def test_failing_read(autojump_clock: object):
    """What goes wrong with a read is its error; the file stays open."""
    async with open_in_memory_mount() as mount:
        link = mount.reader.add(FILES)
        file = await lookup(mount, "skylinks", str(link), "a.txt")
        handle = (await mount.operations.open(file.inode, os.O_RDONLY)).handle
        mount.reader.errors[link] = BadContentError("a lie")
        mount.reader.cold = True
        with pytest.raises(BadContentError):
            await mount.operations.read(handle, 0, 5)
        mount.reader.errors.clear()
        assert await mount.operations.read(handle, 0, 5) == b"hello"


@pytest.mark.parametrize(
    "flags",
    [
        os.O_WRONLY,
        os.O_RDWR,
        os.O_RDONLY | os.O_TRUNC,
        os.O_WRONLY | os.O_APPEND,
        os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    ],
)
async def test_opening_to_write(flags: int, autojump_clock: object):
    """Nothing can be opened to be changed."""
    async with open_in_memory_mount() as mount:
        link = mount.reader.add(FILES)
        entry = await lookup(mount, "skylinks", str(link), "a.txt")
        await refused(errno.EROFS, mount.operations.open(entry.inode, flags))


@pytest.mark.parametrize("flags", [0, os.O_APPEND, os.O_NONBLOCK, os.O_NOATIME, os.O_DIRECT])
async def test_opening_to_read(flags: int, autojump_clock: object):
    """Other flags do not matter."""
    async with open_in_memory_mount() as mount:
        file = await lookup(mount, "skylinks", str(mount.reader.add(FILES)), "a.txt")
        opened = await mount.operations.open(file.inode, os.O_RDONLY | flags)
        assert await mount.operations.read(opened.handle, 0, 100) == b"hello"


async def test_opening_directories(autojump_clock: object):
    """A directory is not a file, and the other way round."""
    async with open_in_memory_mount() as mount:
        link = str(mount.reader.add(FILES))
        for path in ([], ["skylinks"], ["skylinks", link], ["skylinks", link, "d"]):
            entry = await lookup(mount, *path)
            await refused(errno.EISDIR, mount.operations.open(entry.inode, os.O_RDONLY))
        file = await lookup(mount, "skylinks", link, "a.txt")
        await refused(errno.ENOTDIR, mount.operations.opendir(file.inode))


async def test_open_file_keeps_its_tree(autojump_clock: object):
    """While a file is open its tree stays, though the kernel forgot every name and very many other
    skylinks are looked at.
    """
    async with open_in_memory_mount() as mount:
        link = str(mount.reader.add(FILES))
        file = await lookup(mount, "skylinks", link, "a.txt")
        handle = (await mount.operations.open(file.inode, os.O_RDONLY)).handle
        mount.operations.forget(file.inode, 100)
        version, _ = mount.table.node_of(file.inode)
        mount.table.add_references(version)  # what open counted and the excess of forget took away
        for n in range(500):
            top = await lookup(mount, "skylinks", str(mount.reader.add({"f": str(n).encode()})))
            mount.operations.forget(top.inode, 1)
        assert await mount.operations.read(handle, 0, 5) == b"hello"
        assert await mount.operations.getattr(file.inode)
        await mount.operations.release(handle)


async def test_xattrs(autojump_clock: object):
    """Each node of a tree says where it is from."""
    async with open_in_memory_mount() as mount:
        link = mount.reader.add(FILES)
        file = await lookup(mount, "skylinks", str(link), "d", "b.bin")
        found = await mount.operations.xattrs(file.inode)
        assert found[b"user.xdg.origin.url"] == f"http://p/{link}/d/b.bin".encode()
        assert found[b"user.mime_type"] == b"text/plain"
        assert await mount.operations.xattrs(SKYLINKS) == {}
