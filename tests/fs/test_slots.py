"""The skylinks that the mount knows: loads, references, what is kept and what is dropped."""

import pytest
import trio

from skymount.errors import BadContentError, MalformedError, NotFoundError, UnavailableError
from skymount.fs.slots import INDEX_BITS, Point, Slot
from skymount.wire.skylink import Skylink
from tests.fakes.kit import FILES, Kit, open_kit
from tests.fakes.skyfiles import resolver


def links(kit: Kit, count: int) -> list[Skylink]:
    """Publish so many skylinks."""
    return [kit.reader.add({"f": str(n).encode()}) for n in range(count)]


def at(kit: Kit, name: object) -> Point:
    """Return the point of a name in ``skylinks``."""
    return kit.slots.point(str(name))


# --- loading


async def test_loaded_once(autojump_clock: object):
    """However many tasks want a tree, it is loaded once; later ones get it without a wait."""
    async with open_kit() as kit:
        slot = kit.slots.slot(str(kit.reader.add(FILES)))
        kit.reader.delays[slot.skylink] = 5
        trees = []

        async def want() -> None:
            trees.append(await kit.slots.tree(slot))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(want)
        assert len(set(map(id, trees))) == 1
        assert len(kit.reader.loads) == 1
        assert await kit.slots.tree(slot) is trees[0]
        assert trio.current_time() == 5


async def test_load_again_after_an_error(autojump_clock: object):
    """A load that failed is an error for all who waited; who asks later starts another."""
    async with open_kit() as kit:
        slot = kit.slots.slot(str(kit.reader.add(FILES)))
        kit.slots.refer(slot)
        kit.reader.errors[slot.skylink] = UnavailableError("down")
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await kit.slots.tree(slot)
        kit.reader.errors.clear()
        await kit.slots.tree(slot)
        assert len(kit.reader.loads) == 3
        assert slot.error is None


async def test_failure_is_never_taken_for_absence(autojump_clock: object):
    """L4: A portal that fails, times out or refuses is never reported as ENOENT.

    Tasks that wait for a load that fails, while others begin the next one at once, get the error or
    the tree: never «not found».
    """
    async with open_kit() as kit:
        slot = kit.slots.slot(str(kit.reader.add(FILES)))
        kit.slots.refer(slot)
        kit.reader.errors[slot.skylink] = UnavailableError("down")
        outcomes: list[object] = []

        async def want() -> None:
            try:
                outcomes.append(await kit.slots.tree(slot))
            except UnavailableError as error:
                outcomes.append(error)

        async def restart() -> None:
            await kit.slots.wait(slot)
            kit.reader.errors.clear()
            kit.slots.start(slot)

        async with trio.open_nursery() as nursery:
            for n in range(30):
                nursery.start_soon(restart if n % 3 == 0 else want)
        assert len(outcomes) == 20


async def test_unforeseen_error(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    """A bug in a load is the error of that skylink; the nursery lives on."""
    async with open_kit() as kit:
        good, bad = links(kit, 2)
        kit.reader.errors[bad] = ZeroDivisionError()
        with pytest.raises(BadContentError):
            await kit.slots.tree(kit.slots.slot(str(bad)))
        assert "ZeroDivisionError" in caplog.text
        await kit.slots.tree(kit.slots.slot(str(good)))


async def test_waiting_has_a_limit(autojump_clock: object):
    """A wait can be bounded; the load goes on."""
    async with open_kit() as kit:
        slot = kit.slots.slot(str(kit.reader.add(FILES)))
        kit.reader.delays[slot.skylink] = 10
        await kit.slots.wait(slot, 2)
        assert trio.current_time() == 2
        assert slot.tree is None
        await kit.slots.tree(slot)
        assert trio.current_time() == 10
        assert len(kit.reader.loads) == 1


async def test_cancelled_waiter_leaves_the_load(autojump_clock: object):
    """A task that gives up does not end the load that others wait for."""
    async with open_kit() as kit:
        slot = kit.slots.slot(str(kit.reader.add(FILES)))
        kit.reader.delays[slot.skylink] = 10
        with trio.move_on_after(1):
            await kit.slots.tree(slot)
        assert slot.waiting == 0
        await kit.slots.tree(slot)
        assert len(kit.reader.loads) == 1


async def test_shutdown_ends_waiting():
    """When the daemon's nursery is cancelled in the middle of a load, its event is set."""
    async with open_kit() as kit:
        slot = kit.slots.slot(str(kit.reader.add(FILES)))
        kit.reader.delays[slot.skylink] = 1000
        done = kit.slots.start(slot)
        await trio.testing.wait_all_tasks_blocked()
    assert done.is_set()
    assert slot.error is not None


# --- names and numbers


async def test_names(autojump_clock: object):
    """S2: Each spelling is a directory of its own, with inode numbers of its own.

    Each form of a skylink is a slot of its own; what is no skylink is malformed.
    """
    async with open_kit() as kit:
        link = kit.reader.add(FILES)
        forms = [str(link), link.base32, link.base32.upper(), f"svc:{link}", f"sia:{link}"]
        slots = {kit.slots.slot(form) for form in forms}
        assert len(slots) == len(forms)
        assert {slot.skylink for slot in slots} == {link}
        for name in ("", "x", str(link)[1:], "w" * 55):
            with pytest.raises(MalformedError):
                kit.slots.slot(name)
        assert len(kit.slots) == len(forms)


async def test_numbers_are_stable():
    """S5: Inode numbers are the same after a remount.

    A name's inode numbers are the same in another daemon, and none of the fixed ones.
    """
    numbers = []
    for _ in range(2):
        async with open_kit() as kit:
            numbers.append([kit.slots.slot(str(link)).inode(5) for link in links(kit, 50)])
    assert numbers[0] == numbers[1]
    assert len(set(numbers[0])) == 50
    assert all(1 << INDEX_BITS <= number < 1 << 63 for number in numbers[0])


async def test_inode_and_back(autojump_clock: object):
    """An inode number leads back to slot, tree and node; a number of nobody is a KeyError."""
    async with open_kit() as kit:
        slot = kit.slots.slot(str(kit.reader.add(FILES)))
        tree = await kit.slots.tree(slot)
        for index, node in enumerate(tree.nodes):
            assert kit.slots.of_inode(slot.inode(index)) == (slot, index)
            assert await kit.slots.node(slot.inode(index)) == (slot, tree, node)
        for inode in (0, 7, slot.inode(len(tree.nodes)), slot.inode((1 << INDEX_BITS) - 1)):
            with pytest.raises(KeyError):
                await kit.slots.node(inode)


async def test_colliding_numbers(monkeypatch: pytest.MonkeyPatch, autojump_clock: object):
    """Names whose hashes collide get numbers of their own."""
    monkeypatch.setattr("skymount.fs.slots._NUMBER_BITS", 4)
    async with open_kit() as kit:
        slots = [kit.slots.slot(str(link)) for link in links(kit, 15)]
        assert {slot.number for slot in slots} == set(range(1, 16))
        for slot in slots:
            assert kit.slots.of_inode(slot.inode()) == (slot, 0)


# --- keeping and dropping


async def load(kit: Kit, link: Skylink) -> Slot:
    """Load a skylink as a look at it would."""
    slot = kit.slots.slot(str(link))
    await kit.slots.tree(slot)
    return slot


async def test_idle_slots_are_pruned(autojump_clock: object):
    """Looking at very many skylinks keeps a bounded number; the latest are among them."""
    async with open_kit() as kit:
        for link in links(kit, 1000):
            slot = await load(kit, link)
            assert len(kit.slots) <= 200
        assert kit.slots.of_inode(slot.inode()) == (slot, 0)


async def test_slots_in_use_are_not_pruned(autojump_clock: object):
    """What the kernel refers to, and what is loading, stays however much else is looked at."""
    async with open_kit() as kit:
        used, loading, *others = links(kit, 600)
        slot = await load(kit, used)
        kit.slots.refer(slot)
        busy = kit.slots.slot(str(loading))
        kit.reader.delays[loading] = 1e6
        kit.slots.start(busy)
        for link in others:
            await load(kit, link)
        assert kit.slots.of_inode(slot.inode(1)) == (slot, 1)
        assert kit.slots.of_inode(busy.inode()) == (busy, 0)
        kit.slots.forget(slot.inode(), 1)
        for link in links(kit, 600)[2:]:
            await load(kit, link)
        with pytest.raises(KeyError):
            kit.slots.of_inode(slot.inode())


async def test_slot_that_somebody_waits_for_is_not_pruned(autojump_clock: object):
    """A tree that just arrived is there for the task that waited for it, even if very many others
    are looked at in the same moment.
    """
    async with open_kit() as kit:
        link, *others = links(kit, 500)
        kit.reader.delays[link] = 3
        for other in others[:200]:
            await load(kit, other)
        slot = kit.slots.slot(str(link))
        found: list[Slot] = []

        async def wait() -> None:
            await kit.slots.tree(slot)
            found.append(kit.slots.of_inode(slot.inode())[0])

        async def crowd() -> None:
            await kit.slots.start(slot).wait()
            for other in others:
                kit.slots.slot(str(other))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(crowd)
                nursery.start_soon(wait)
        assert found == [slot] * 10


async def test_failed_slot_without_references_is_dropped(autojump_clock: object):
    """A name that does not exist leaves nothing behind."""
    async with open_kit() as kit:
        for n in range(300):
            slot = kit.slots.slot(str(Skylink.v1(n.to_bytes(32, "big"), 1)))
            with pytest.raises(NotFoundError):
                await kit.slots.tree(slot)
        assert len(kit.slots) == 0
        assert kit.slots._by_number == {}


async def test_forget_what_is_not_there():
    """Forgetting an inode of nobody, or more often than it was counted, is harmless."""
    async with open_kit() as kit:
        slot = kit.slots.slot(str(kit.reader.add(FILES)))
        kit.slots.forget(1, 1)
        kit.slots.forget(999 << INDEX_BITS, 1)
        kit.slots.refer(slot)
        kit.slots.forget(slot.inode(), 5)
        assert slot.references == 0


async def test_expired_slot_stays_while_it_is_used(autojump_clock: object):
    """An expired name is resolved anew, under another number; what is open keeps its tree, and is
    dropped with its last reference.
    """
    async with open_kit() as kit:
        link = kit.reader.add({"f": b"old"}, resolver())
        old = await load(kit, link)
        kit.slots.refer(old, 2)
        kit.slots.expire(old)
        kit.reader.add({"f": b"new"}, link)
        new = await load(kit, link)
        assert new is not old
        assert new.inode() != old.inode()
        assert kit.slots.of_inode(old.inode(1)) == (old, 1)
        kit.slots.forget(old.inode(), 1)
        kit.slots.refer(old, -1)
        with pytest.raises(KeyError):
            kit.slots.of_inode(old.inode())
        assert kit.slots.of_inode(new.inode()) == (new, 0)


async def test_expiring_again_and_again_leaks_nothing(autojump_clock: object):
    """A name that is resolved anew a thousand times leaves one slot, and its number comes back."""
    async with open_kit() as kit:
        link = kit.reader.add({"f": b"x"}, resolver())
        numbers = set()
        for n in range(1000):
            slot = await load(kit, link)
            kit.slots.refer(slot)
            numbers.add(slot.number)
            kit.slots.expire(slot)
            if n % 2:
                kit.slots.forget(slot.inode(), 1)
            else:
                kit.slots.refer(slot, -1)
        assert len(numbers) == 1
        assert kit.slots._by_number == {}


async def test_hidden_files_are_logged(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    """N5: and the log has a line.

    A tree that does not show everything says so in the log, in one line of bounded length.
    """
    async with open_kit() as kit:
        files = {"good": b"1", "../" + "x\n" * 5000: b"2", "../b": b"3"}
        await load(kit, kit.reader.add(files))
        [record] = caplog.records
        text = record.getMessage()
        assert "2 of its files cannot be shown" in text
        assert "\n" not in text
        assert len(text) < 1000
