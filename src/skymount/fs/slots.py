"""Owns the skylinks that the mount knows: which are loaded, loading or needed no more, and how
inode numbers stand for their files.

An inode number is the slot's number, then the node's index in its tree: 39 and 24 bits. The slot's
number is a hash of the name, so the numbers are the same after a remount, and no table of them
is kept.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from hashlib import blake2b

import trio

from skymount.content.loader import off_loop
from skymount.content.skyfile import Skyfile
from skymount.errors import BadContentError, PortalError, UnavailableError
from skymount.fs.tree import Node, Tree, build_tree
from skymount.wire.skylink import Skylink, parse_skylink

log = logging.getLogger(__name__)

INDEX_BITS = 24
_NUMBER_BITS = 39
_LOGGED = 200  # characters of a path in the log
_KEPT = 64  # trees kept though nothing refers to them: what was just looked at is looked at again


class Slot:
    """A name in ``/skylinks`` and the tree behind it, once it is known."""

    __slots__ = (
        "error",
        "loaded_at",
        "loading",
        "name",
        "number",
        "references",
        "skylink",
        "tree",
        "waiting",
    )

    def __init__(self, name: str, number: int, skylink: Skylink) -> None:
        self.name = name
        self.number = number
        self.skylink = skylink
        self.tree: Tree | None = None
        self.error: PortalError | None = None
        self.loading: trio.Event | None = None
        """Set when the load that is under way ends."""
        self.loaded_at = 0.0
        """When the tree was loaded, by trio's clock."""
        self.references = 0
        """Lookups that the kernel has not forgotten, and open handles."""
        self.waiting = 0
        """Tasks that wait for the tree, and will refer to it."""

    def inode(self, index: int = 0) -> int:
        """Return the inode number of a node of its tree; the root is 0."""
        return self.number << INDEX_BITS | index


class Slots:
    """The slots by name and by inode number. Loads run in the nursery given."""

    def __init__(
        self, load: Callable[[Skylink], Awaitable[Skyfile]], nursery: trio.Nursery
    ) -> None:
        self._load = load
        self._nursery = nursery
        self._by_name: dict[str, Slot] = {}
        self._by_number: dict[int, Slot] = {}
        self._prune_at = _KEPT

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def slot(self, name: str) -> Slot:
        """Return the slot of a name, made if need be; MalformedError when it is no skylink."""
        found = self._by_name.get(name)
        if found is None:
            found = Slot(name, self._free_number(name), parse_name(name))
            self._prune()
            self._by_name[name] = self._by_number[found.number] = found
        return found

    def of_inode(self, inode: int) -> tuple[Slot, int]:
        """Return (slot, index) of an inode number of a skylink; KeyError when there is none."""
        return self._by_number[inode >> INDEX_BITS], inode & (1 << INDEX_BITS) - 1

    def start(self, slot: Slot) -> trio.Event:
        """Begin to load a slot unless that is under way; the event is set at its end."""
        if slot.loading is None:
            slot.loading = trio.Event()
            slot.error = None
            self._nursery.start_soon(self._fill, slot, slot.loading)
        return slot.loading

    async def wait(self, slot: Slot, limit: float = math.inf) -> None:
        """Wait for the end of a load, begun if need be, for so many seconds at most."""
        done = self.start(slot)
        slot.waiting += 1
        try:
            with trio.move_on_after(limit):
                await done.wait()
        finally:
            slot.waiting -= 1

    async def tree(self, slot: Slot) -> Tree:
        """Return a slot's tree, loading it first if need be; PortalError when that fails."""
        while (tree := slot.tree) is None:
            await self.wait(slot)
            if slot.error is not None:  # else it is there, or somebody began another load already
                raise slot.error
        return tree

    async def node(self, inode: int) -> tuple[Slot, Tree, Node]:
        """Return what an inode number stands for; KeyError when it stands for nothing."""
        slot, index = self.of_inode(inode)
        tree = await self.tree(slot)
        if index >= len(tree.nodes):
            raise KeyError(inode)
        return slot, tree, tree.nodes[index]

    def refer(self, slot: Slot, count: int = 1) -> None:
        """Count references to a slot, negative to give them back."""
        slot.references += count
        self._drop_if_expired(slot)

    def forget(self, inode: int, count: int) -> None:
        """Take note that the kernel dropped so many lookups of an inode."""
        slot = self._by_number.get(inode >> INDEX_BITS)
        if slot is not None:
            slot.references = max(0, slot.references - count)
            self._drop_if_expired(slot)

    def expire(self, slot: Slot) -> None:
        """Let a name be resolved anew; what refers to its present tree keeps that."""
        if self._by_name.get(slot.name) is slot:
            del self._by_name[slot.name]
        self._drop_if_expired(slot)

    def usage(self) -> tuple[int, int]:
        """Return (bytes, files and directories) of the trees that are loaded."""
        trees = [slot.tree for slot in self._by_name.values() if slot.tree is not None]
        return sum(tree.skyfile.size for tree in trees), sum(len(tree.nodes) for tree in trees)

    def _drop_if_expired(self, slot: Slot) -> None:
        if not slot.references and self._by_name.get(slot.name) is not slot:
            self._drop(slot)

    async def _fill(self, slot: Slot, done: trio.Event) -> None:
        try:
            skyfile = await self._load(slot.skylink)
            slot.tree = await off_loop(partial(build_tree, skyfile))
            slot.loaded_at = trio.current_time()
            self._report_hidden(slot, slot.tree)
        except PortalError as error:
            slot.error = error
            log.info("%s: %s", slot.name, error)
        except Exception:  # one skylink's surprise must not end the mount
            slot.error = BadContentError(f"{slot.name}: loading failed, see the log")
            log.exception("%s: loading failed", slot.name)
        finally:
            if slot.tree is None:
                slot.error = slot.error or UnavailableError("the loading was stopped")
                if not slot.references:
                    self._drop(slot)
            slot.loading = None
            done.set()

    @staticmethod
    def _report_hidden(slot: Slot, tree: Tree) -> None:
        if tree.hidden:
            path, reason = tree.hidden[0]
            log.warning(
                "%s: %d of its files cannot be shown, the first is %r: %s",
                slot.name,
                len(tree.hidden),
                path[:_LOGGED],
                reason,
            )

    def _free_number(self, name: str) -> int:
        """Hash a name to a number that is not 0 and not taken."""
        digest = blake2b(name.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big") >> (64 - _NUMBER_BITS)
        while number == 0 or number in self._by_number:
            number = (number + 1) & (1 << _NUMBER_BITS) - 1
        return number

    def _prune(self) -> None:
        """Drop the oldest of the slots that nothing refers to, beyond those that are kept.

        Looked at only when their number has grown by as many again.
        """
        if len(self._by_name) < self._prune_at:
            return
        idle = [
            slot
            for slot in self._by_name.values()
            if slot.references == slot.waiting == 0 and slot.loading is None
        ]
        for slot in idle[: max(0, len(idle) - _KEPT)]:
            self._drop(slot)
        self._prune_at = len(self._by_name) + _KEPT

    def _drop(self, slot: Slot) -> None:
        if self._by_name.get(slot.name) is slot:
            del self._by_name[slot.name]
        if self._by_number.get(slot.number) is slot:
            del self._by_number[slot.number]


def parse_name(name: str) -> Skylink:
    """Read a name in ``/skylinks``: any form of a link that is a single path element."""
    return parse_skylink(name)
