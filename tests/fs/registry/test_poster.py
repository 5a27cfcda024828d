"""What is posted when a file of `/registry` is closed, synced or written by two."""

import errno
import os

import pytest
import trio

from skymount.errors import StaleEntryError, UnavailableError
from tests.fakes.refusal import refused
from tests.fakes.registry_mount import (
    CREATE,
    REWRITE,
    TTL,
    RegistryMount,
    ref,
)


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


async def test_empty_new_file_supersedes_what_is_pending(
    autojump_clock: object, mount: RegistryMount
):
    """G12: also one without content, which would not be posted otherwise (G15)."""
    mount.store.pending.add(ref("x"))
    await mount.write("x", b"", CREATE | os.O_TRUNC)
    assert mount.posted == [b""]


async def test_rewrite_with_what_was_there_a_moment_ago(
    autojump_clock: object, mount: RegistryMount
):
    """G10: a rewrite of the whole content wins, also with what this mount had seen last."""
    mount.store.put(ref("x"), b"old")
    await mount.read("x")
    mount.store.put(ref("x"), b"somebody else's")
    await mount.write("x", b"old")
    assert mount.posted == [b"old"]


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


async def test_rewrite_that_begins_while_a_post_is_under_way(
    autojump_clock: object, mount: RegistryMount
):
    """G10: It wins too, though somebody else changed the entry after that post."""
    first = await mount.open("x", CREATE)
    first.write(0, b"one")
    mount.store.delay = 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.flush)
        await trio.sleep(0.5)
        second = await mount.open("x", REWRITE)
    mount.store.put(ref("x"), b"theirs")
    second.write(0, b"two")
    await mount.close(second)
    await mount.release(first)
    assert mount.posted == [b"one", b"two"]
