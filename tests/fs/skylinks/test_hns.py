"""The directory ``hns`` at the level of its meaning, without a kernel."""

import errno
import os
import stat

import pytest
import trio

from skymount.errors import BadContentError, UnavailableError
from skymount.fs.static_tree import HNS
from skymount.fs.subtree import MUTABLE_TIMEOUT, InodeAttributes
from tests.fakes.in_memory_mount import (
    FILES,
    InMemoryMount,
    Listed,
    listing,
    lookup,
    open_in_memory_mount,
)
from tests.fakes.refusal import refused


def publish(mount: InMemoryMount, domain: str = "example", files: dict[str, bytes] = FILES) -> None:
    """Let a domain lead to files."""
    mount.names.leads[domain] = mount.reader.add(files)


async def test_tree_of_a_domain(autojump_clock: object):
    """H1: `hns/<domain>/` is the tree of the skylink that the domain resolves to."""
    async with open_in_memory_mount() as mount:
        publish(mount)
        file = await lookup(mount, "hns", "example", "d", "b.bin")
        assert (file.mode, file.size) == (stat.S_IFREG | 0o444, 2048)
        opened = await mount.operations.open(file.inode, os.O_RDONLY)
        assert opened.keep
        assert await mount.operations.read(opened.handle, 0, 4096) == FILES["d/b.bin"]
        assert await mount.operations.getattr(file.inode) == file
        assert await mount.operations.getattr(HNS) == InodeAttributes(HNS, stat.S_IFDIR | 0o555)
        assert await mount.operations.xattrs(HNS) == {}
        await refused(errno.EISDIR, mount.operations.open(HNS, os.O_RDONLY))
        await refused(errno.EROFS, mount.files.subtree(HNS).create(HNS, b"new", os.O_WRONLY))


async def test_spellings_share_one_tree(autojump_clock: object):
    """H1: Case, a trailing dot and the Unicode form do not matter."""
    async with open_in_memory_mount() as mount:
        publish(mount, "xn--bcher-kva")
        names = ["bücher", "BÜCHER", "Bu\u0308cher.", "xn--bcher-kva", "XN--bcher-KVA."]
        found = {(await lookup(mount, "hns", name)).inode for name in names}
        assert len(found) == 1
        assert [child.name for child in await listing(mount, HNS)] == [b"xn--bcher-kva"]
        assert mount.names.asked == ["xn--bcher-kva"]


@pytest.mark.parametrize(
    "name", [b".git", b"", b" example", b"example ", b"a b", b"\xff\xfe", b"a\0", b"-x", b"x" * 64]
)
async def test_what_is_no_domain(name: bytes, autojump_clock: object):
    """H1: Unknown domains are ENOENT.

    What cannot be a domain never exists, and nobody is asked.
    """
    async with open_in_memory_mount() as mount:
        assert await mount.operations.lookup(HNS, name) == InodeAttributes(0)
        assert mount.names.asked == []


async def test_unknown_domain(autojump_clock: object):
    """H1: Unknown domains are ENOENT, and asked for again after 5 s."""
    async with open_in_memory_mount() as mount:
        assert await mount.operations.lookup(HNS, b"new") == InodeAttributes(
            0, entry_timeout=MUTABLE_TIMEOUT
        )
        publish(mount, "new")
        await trio.sleep(4.5)
        assert await mount.operations.lookup(HNS, b"NEW") == InodeAttributes(0, entry_timeout=0.5)
        await trio.sleep(0.5)
        assert (await lookup(mount, "hns", "new", "a.txt")).size == 5
        assert mount.names.asked == ["new"] * 2


async def test_domain_of_content_that_is_not_there(autojump_clock: object):
    """A domain that leads to nothing is not there; it is once its content is, without asking."""
    async with open_in_memory_mount() as mount:
        publish(mount)
        content = dict(mount.reader.content)
        mount.reader.content.clear()
        entry = await mount.operations.lookup(HNS, b"example")
        assert entry == InodeAttributes(0, entry_timeout=MUTABLE_TIMEOUT)
        mount.reader.content |= content
        assert (await lookup(mount, "hns", "example")).entry_timeout == MUTABLE_TIMEOUT
        assert mount.names.asked == ["example"]


async def test_listing_is_the_domains_used(autojump_clock: object):
    """H1: The listing of `hns` is the domains used."""
    async with open_in_memory_mount() as mount:
        assert await listing(mount, HNS) == []
        for domain in ("one", "two", "three"):
            publish(mount, domain)
        await lookup(mount, "hns", "two", "d")
        await lookup(mount, "hns", "one")
        await mount.operations.lookup(HNS, b"unknown")
        assert [child.name for child in await listing(mount, HNS)] == [b"two", b"one"]
        handle = await mount.operations.opendir(HNS)
        version = mount.domains.get_or_add("one").version
        before = version.references
        mount.operations.referred(handle, 0, 2, 2)
        assert version.references == before + 1
        for child in map(Listed.of, mount.operations.readdir(handle, 0)):
            assert child.inode == (await lookup(mount, "hns", child.name.decode())).inode


async def test_domain_that_is_gone_is_not_listed(autojump_clock: object):
    """A domain whose record was taken away is left out, also of a listing that is open."""
    async with open_in_memory_mount() as mount:
        for domain in ("one", "two"):
            publish(mount, domain)
            await lookup(mount, "hns", domain)
        handle = await mount.operations.opendir(HNS)
        del mount.names.leads["one"]
        await trio.sleep(60)
        assert (await mount.operations.lookup(HNS, b"one")).inode == 0
        assert [name for name, *_ in mount.operations.readdir(handle, 0)] == [b"two"]


@pytest.mark.parametrize("error", [UnavailableError("down"), BadContentError("a lie")])
async def test_failing_resolver(error: Exception, autojump_clock: object):
    """H1: Unknown domains are ENOENT.

    A domain that nobody can tell of is an error, in the lookup or inside, and the next try is new.
    """
    async with open_in_memory_mount() as mount:
        publish(mount)
        good = mount.names.leads["example"]
        mount.names.leads["example"] = error
        with pytest.raises(type(error)):
            await lookup(mount, "hns", "example")
        mount.names.delays["example"] = 5
        entry = await lookup(mount, "hns", "example")
        assert (entry.entry_timeout, entry.attr_timeout) == (0, 0)
        with pytest.raises(type(error)):
            await mount.operations.opendir(entry.inode)
        mount.names.leads["example"] = good
        assert await listing(mount, entry.inode)
        assert await mount.operations.getattr((await lookup(mount, "hns", "example", "d")).inode)


async def test_last_good_answer(autojump_clock: object):
    """H3: While the resolver fails, the last good tree is served, and `user.skymount.stale` says
    so.
    """
    async with open_in_memory_mount() as mount:
        publish(mount)
        file = await lookup(mount, "hns", "example", "a.txt")
        good = mount.names.leads["example"]
        for fault, stale in ((UnavailableError("down"), b"yes"), (good, b"no")):
            mount.names.leads["example"] = fault
            await trio.sleep(60)
            assert await lookup(mount, "hns", "example", "a.txt") == file
            assert (await mount.operations.xattrs(file.inode))[b"user.skymount.stale"] == stale


async def test_resolver_that_hangs(autojump_clock: object):
    """H3: While the resolver fails, the last good tree is served.

    Only the first lookup waits for one that says nothing, and no longer than `lookup_grace`.
    """
    async with open_in_memory_mount(lookup_grace=0.5) as mount:
        publish(mount)
        file = await lookup(mount, "hns", "example", "a.txt")
        mount.names.delays["example"] = 1e6
        await trio.sleep(60)
        for _ in range(10):
            assert await lookup(mount, "hns", "example", "a.txt") == file
            assert trio.current_time() == 60.5
        [child] = await listing(mount, HNS)
        assert child.entry_timeout == 0


async def test_proof(autojump_clock: object):
    """H4: with `user.skymount.verified` = `no`.

    Content that is checked is not verified where nobody proves that the name leads to it.
    """
    async with open_in_memory_mount() as mount:
        publish(mount, "proven")
        publish(mount, "unproven")
        mount.names.unproven.add("unproven")
        for domain, verified in (("proven", b"yes"), ("unproven", b"no")):
            file = await lookup(mount, "hns", domain, "a.txt")
            found = await mount.operations.xattrs(file.inode)
            assert found[b"user.skymount.verified"] == verified


async def test_skylinks_say_nothing_of_staleness(autojump_clock: object):
    """What can never lead elsewhere is not stale, nor the contrary."""
    async with open_in_memory_mount() as mount:
        file = await lookup(mount, "skylinks", str(mount.reader.add(FILES)), "a.txt")
        assert b"user.skymount.stale" not in await mount.operations.xattrs(file.inode)


# --- what is learnt before the time is over


async def test_name_that_moves_before_its_time(autojump_clock: object):
    """H5: What this mount learns earlier counts within a second.

    What is open stays on the old tree.
    """
    async with open_in_memory_mount() as mount:
        publish(mount)
        old = await lookup(mount, "hns", "example", "a.txt")
        mount.names.move("example", mount.reader.add({"a.txt": b"another"}))
        assert (await lookup(mount, "hns", "example", "a.txt")).size == 7
        assert (await lookup(mount, "hns", "example")).entry_timeout == MUTABLE_TIMEOUT == 1
        assert await mount.operations.getattr(old.inode) == old
        assert mount.names.asked == ["example"] * 2


async def test_name_that_moves_while_it_is_asked_for(autojump_clock: object):
    """H5: An answer that was on its way is no better."""
    async with open_in_memory_mount(lookup_grace=20) as mount:
        publish(mount)
        mount.names.delays["example"] = 5
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lookup, mount, "hns", "example")
            await trio.sleep(1)
            mount.names.move("example", mount.reader.add({"a.txt": b"another"}))
        assert (await lookup(mount, "hns", "example", "a.txt")).size == 7
        assert mount.names.asked == ["example"] * 2


async def test_name_that_moves_while_it_is_not_there(autojump_clock: object):
    """H5: Also what was not there is looked for again."""
    async with open_in_memory_mount() as mount:
        assert (await mount.operations.lookup(HNS, b"example")).inode == 0
        mount.names.move("example", mount.reader.add(FILES))
        assert (await lookup(mount, "hns", "example", "a.txt")).size == 5
