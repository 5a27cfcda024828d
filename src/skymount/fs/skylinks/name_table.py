"""Owns the names that the mount knows in a directory of trees: which are loaded, loading or needed
no more, and which of its trees a name that moves, or is provisional, shows now.
"""

import errno
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from hashlib import blake2b

import trio

from skymount.concurrency import off_loop
from skymount.content.model.skyfile import Skyfile
from skymount.errors import BadContentError, NotFoundError, PortalError, UnavailableError
from skymount.fs.skylinks.mounted_name import INDEX_BITS, NUMBER_BITS, MountedName, TreeVersion
from skymount.fs.skylinks.tree import Tree
from skymount.fs.subtree import FOREVER, refuse
from skymount.portal.registry.name_resolver import NEGATIVE_TTL, Goal, NameResolver
from skymount.wire.skylink import Skylink, parse_skylink

log = logging.getLogger(__name__)

_LOGGED = 200  # characters of a path in the log
_KEPT = 64  # trees kept though nothing refers to them: what was just looked at is looked at again

_PROVISIONAL = 30.0
"""Seconds for which a provisional tree is shown without being asked for again."""

_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each further load of what is provisional; the last one again and again."""


class NameTable:
    """The names of one directory, and their slots by inode number.

    `parse` gives the one spelling under which a name is kept, and what it leads to; MalformedError
    when it is none. Loads run in the nursery given. Each `NameTable` has its own inode numbers.
    """

    def __init__(
        self,
        load: Callable[[Skylink], Awaitable[Skyfile]],
        nursery: trio.Nursery,
        names: NameResolver,
        parse: Callable[[str], tuple[str, Goal]],
        space: int = 0,
    ) -> None:
        self._load = load
        self._nursery = nursery
        self._names = names
        self._parse = parse
        self._space = space
        self._points: dict[str, MountedName] = {}
        self._by_number: dict[int, TreeVersion] = {}
        self._prune_at = _KEPT

    def __iter__(self) -> Iterator[MountedName]:
        return iter(self._points.values())

    def __len__(self) -> int:
        return len(self._points)

    def point(self, name: str) -> MountedName:
        """Return the point of a name, made if need be; MalformedError when the name is none."""
        found = self._points.get(name)
        if found is None:
            kept, goal = self._parse(name)
            found = self._points.get(kept)
            if found is None:
                found = self._new_point(kept, goal)
        return found

    def _new_point(self, name: str, goal: Goal) -> MountedName:
        point = MountedName(name, goal)
        target = None if point.moves else goal
        assert not isinstance(target, str)
        point.slot = self._new_slot(point, target)
        self._prune()
        self._points[name] = point
        return point

    def _new_slot(self, point: MountedName, target: Skylink | None) -> TreeVersion:
        number = self._first_number(point, target)
        while number == 0 or number in self._by_number:
            number = self._next_number(number)
        slot = self._by_number[number] = TreeVersion(point, number, target)
        return slot

    def find(self, name: str) -> MountedName | None:
        """Return the point of a name as it is kept, if its tree is loaded."""
        point = self._points.get(name)
        return None if point is None or point.slot.tree is None else point

    def of_inode(self, inode: int) -> tuple[TreeVersion, int]:
        """Return (slot, index) of an inode number; KeyError when there is none."""
        slot = self._by_number[inode >> INDEX_BITS]
        if slot.changed:
            raise KeyError(inode)
        slot.point.used = True
        return slot, inode & (1 << INDEX_BITS) - 1

    # What a name shows

    def ttl(self, point: MountedName) -> float:
        """Return the seconds for which a name surely shows what it does; 0: it is to be asked."""
        if point.slot.tree is None or point.loading is not None:
            return 0.0
        left = max(0.0, point.slot.expires - trio.current_time())
        if not point.moves:
            return min(FOREVER, left)
        known = self._names.known(point.goal)
        return min(left, self._names.pause(point.goal)) if known.asked == point.seen else 0.0

    def negative_ttl(self, point: MountedName) -> float:
        """Return the seconds for which it holds that there is no such name."""
        known = self._names.known(point.goal) if point.moves else None
        return self._names.pause(point.goal) if known and known.absent else NEGATIVE_TTL

    def is_stale(self, slot: TreeVersion) -> bool:
        """Whether the name may lead elsewhere by now: asking failed, or it does already."""
        point = slot.point
        is_shown = point.slot.target == slot.target and self._points.get(point.name) is point
        return point.moves and not (is_shown and not self._names.known(point.goal).stale)

    async def settle(self, point: MountedName, limit: float) -> None:
        """Bring a name up to date, but wait for so many seconds at most, once for each load.

        Afterwards its slot is what to show; PortalError when there is nothing.
        """
        point.used = True
        if self.ttl(point):
            return
        done = self.start(point)
        if not point.slow:
            await self._wait(point, limit)
            if not done.is_set():
                point.slow = True
        if point.error is not None:
            raise point.error

    def start(self, point: MountedName) -> trio.Event:
        """Begin to load a name unless that is under way; the event is set at its end."""
        if point.loading is None:
            point.loading = trio.Event()
            point.error = point.failure = None
            point.slow = False
            self._nursery.start_soon(self._fill, point, point.loading)
        return point.loading

    async def _wait(self, point: MountedName, limit: float = math.inf) -> None:
        done = self.start(point)
        point.waiting += 1
        try:
            with trio.move_on_after(limit):
                await done.wait()
        finally:
            point.waiting -= 1

    async def tree(self, slot: TreeVersion) -> Tree:
        """Return a slot's tree, loading it first if need be; PortalError when that fails.

        OSError (ESTALE) if it was provisional and proves to be another.
        """
        while (tree := self.shown(slot)) is None:
            point = slot.point
            await self._wait(point)
            if slot.changed:
                refuse(errno.ESTALE)
            failure = point.error or point.failure
            if self.shown(slot) is None and failure is not None:  # else another load has begun
                raise failure
        return tree

    @staticmethod
    def shown(slot: TreeVersion) -> Tree | None:
        """Return a slot's tree; None while it has none, and if it expired."""
        return None if slot.has_expired(trio.current_time()) else slot.tree

    # References

    def refer(self, slot: TreeVersion, count: int = 1) -> None:
        """Count references to a slot, negative to give them back."""
        slot.references += count
        if not slot.references:
            self._drop_if_unused(slot)

    def forget(self, inode: int, count: int) -> None:
        """Take note that the kernel dropped so many lookups of an inode."""
        slot = self._by_number.get(inode >> INDEX_BITS)
        if slot is not None:
            slot.references = max(0, slot.references - count)
            self._drop_if_unused(slot)

    def usage(self) -> tuple[int, int]:
        """Return (bytes, files and directories) of the trees that names show."""
        trees = [point.slot.tree for point in self if point.slot.tree is not None]
        return sum(tree.skyfile.size for tree in trees), sum(map(len, trees))

    def _drop_if_unused(self, slot: TreeVersion) -> None:
        """Drop a slot that neither a name shows nor anybody refers to."""
        point = slot.point
        is_shown = point.slot is slot and self._points.get(point.name) is point
        if not slot.references and not is_shown:
            self._by_number.pop(slot.number, None)

    def _remove(self, point: MountedName) -> None:
        """Forget a name; what refers to its tree keeps that."""
        if self._points.get(point.name) is point:
            del self._points[point.name]
        self._drop_if_unused(point.slot)

    # Loading

    async def _fill(self, point: MountedName, done: trio.Event) -> None:
        try:
            await self._refresh(point)
        except PortalError as error:
            point.error = error
            log.info("%s: %s", point.name, error)
        except Exception:  # one name's surprise must not end the mount
            point.error = BadContentError(f"{point.name}: loading failed, see the log")
            log.exception("%s: loading failed", point.name)
        finally:
            if point.slot.tree is None and point.error is None:
                point.error = UnavailableError("the loading was stopped")
            if point.error is not None:
                self._failed(point, point.error)
            point.loading = None
            done.set()
            if point.slot.is_provisional and not point.repeating:
                point.repeating = True
                self._nursery.start_soon(self._ask_again, point)

    def _failed(self, point: MountedName, error: PortalError) -> None:
        """Go on after a failure: a tree that was there is still shown, unless the name is gone."""
        is_gone = isinstance(error, NotFoundError)
        if point.slot.tree is None:
            if not point.slot.references:
                self._remove(point)
        elif is_gone:
            self._remove(point)
        else:
            if point.moves:
                self._set_back(point)
            point.error, point.failure = None, error

    def _set_back(self, point: MountedName) -> None:
        """Keep showing what is shown for a while, and say that it is stale."""
        if not self._names.known(point.goal).failures:
            self._names.set_back(point.goal)
        point.seen = self._names.known(point.goal).asked

    async def _refresh(self, point: MountedName) -> None:
        """Find out what a name leads to, and show that once all of it is there."""
        slot, found = point.slot, None
        if point.moves:
            found = await self._names.resolve(point.goal)
            point.seen = found.at
            if slot.tree is None or slot.target != found.skylink:
                slot = self._slot_of(point, found.skylink)
            slot.verified = found.verified
        if slot.tree is None or slot.is_provisional:
            assert slot.target is not None
            try:
                tree = Tree(await self._load(slot.target))
                slot = await self._loaded(point, slot, tree)
            except NotFoundError as error:
                if point.slot.tree is not None:  # the name is still there, and led elsewhere before
                    raise UnavailableError(f"{slot.target}: {error}") from None
                raise
            finally:
                if slot.tree is None and slot is not point.slot:
                    self._drop_if_unused(slot)
            if not point.repetitions:
                self._report_hidden(point, tree)
        self._show(point, slot)

    async def _loaded(self, point: MountedName, slot: TreeVersion, tree: Tree) -> TreeVersion:
        """Put a tree into the slot that is to show it, and return that: the one given, or a new one
        if this shows what was provisional.

        The kernel knows the files of a slot that has shown a tree, so that one gets no other names
        or sizes.
        """
        is_provisional = tree.skyfile.is_provisional
        expires = trio.current_time() + _PROVISIONAL if is_provisional else math.inf
        earlier = [each for each in point.provisional if each.target == slot.target]
        is_same = bool(earlier) and await _is_same(earlier[0], tree)
        for each in earlier:
            if is_same:
                each.tree, each.expires = tree, expires
            else:
                each.changed = True
        if slot.tree is not None and not (is_same and is_provisional):
            slot = self._new_slot(point, slot.target)
        slot.tree, slot.expires = tree, expires
        point.provisional = [each for each in earlier if is_same and is_provisional]
        if is_provisional:
            self._note_provisional(slot)
        else:
            point.repetitions = 0
        return slot

    @staticmethod
    def _note_provisional(slot: TreeVersion) -> None:
        slot.was_provisional = True
        if slot not in slot.point.provisional:
            slot.point.provisional.append(slot)

    async def _ask_again(self, point: MountedName) -> None:
        """Load what is provisional once more: a few times, and then as long as it is used."""
        await trio.sleep(_PAUSES[min(point.repetitions, len(_PAUSES) - 1)])
        point.repeating = False
        is_shown = self._points.get(point.name) is point and point.slot.is_provisional
        if not is_shown or (point.repetitions >= len(_PAUSES) and not point.used):
            return
        point.repetitions += 1
        point.used = False
        self.start(point)

    def _slot_of(self, point: MountedName, target: Skylink) -> TreeVersion:
        """Return the slot for what a name leads to: the one from before, if that is in use."""
        number = self._first_number(point, target)
        while (slot := self._by_number.get(number)) is not None:
            is_it = slot.point.name == point.name and slot.target == target
            if is_it and slot.tree is not None and not slot.was_provisional:
                slot.point = point
                return slot
            number = self._next_number(number)
        return self._new_slot(point, target)

    def _show(self, point: MountedName, slot: TreeVersion) -> None:
        """Let a name show a slot; one that had no tree yet, and may be open, shows it as well."""
        before, point.slot = point.slot, slot
        if before is not slot:
            if before.tree is None:
                before.tree, before.target = slot.tree, slot.target
                before.expires = slot.expires
                before.verified = slot.verified
                if slot.is_provisional:
                    self._note_provisional(before)
            self._drop_if_unused(before)
            self._drop_if_unused(slot)  # unless the name is there no more

    @staticmethod
    def _report_hidden(point: MountedName, tree: Tree) -> None:
        if tree.hidden:
            path, reason = tree.hidden[0]
            log.warning(
                "%s: %d of its files cannot be shown, the first is %r: %s",
                point.name,
                len(tree.hidden),
                path[:_LOGGED],
                reason,
            )

    # Numbers

    def _first_number(self, point: MountedName, target: Skylink | None) -> int:
        """Hash a name, with what it leads to where that can change."""
        text = f"{point.name}\0{target or ''}" if point.moves else point.name
        digest = blake2b(text.encode(), digest_size=8).digest()
        return self._in_space(int.from_bytes(digest, "big") >> (64 - NUMBER_BITS))

    def _next_number(self, number: int) -> int:
        return self._in_space(number + 1 & (1 << NUMBER_BITS) - 1)

    def _in_space(self, number: int) -> int:
        return self._space << NUMBER_BITS | number

    # Keeping and dropping

    def _prune(self) -> None:
        """Drop the oldest of the names that nothing refers to, beyond those that are kept.

        Looked at only when their number has grown by as many again.
        """
        if len(self._points) < self._prune_at:
            return
        idle = [
            point
            for point in self
            if point.slot.references == point.waiting == 0 and point.loading is None
        ]
        for point in idle[: max(0, len(idle) - _KEPT)]:
            self._remove(point)
        self._prune_at = len(self._points) + _KEPT


async def _is_same(slot: TreeVersion, tree: Tree) -> bool:
    """Whether a tree has the files of the one that a slot shows: same names, sizes and places."""
    assert slot.tree is not None
    both = (slot.tree.skyfile.listing.packed, tree.skyfile.listing.packed)
    if len(both[0]) != len(both[1]):
        return False
    one, other = [await off_loop(partial(_digest, each), len(each)) for each in both]
    return one == other


def _digest(data: memoryview) -> bytes:
    return blake2b(data).digest()


def parse_name(name: str) -> tuple[str, Goal]:
    """Read a name in ``/skylinks``: any form of a link that is a single path element.

    Each spelling is a name of its own.
    """
    return name, parse_skylink(name)
