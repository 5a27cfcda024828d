"""Owns what the mount knows of a name in a directory of trees, and how inode numbers stand for the
files of its trees. What is done with it is decided in `slots`.

An inode number is the slot's number, then the node's index in its tree: 38 and 24 bits. The slot's
number is a hash of the name, and of what it leads to where that can change, so the numbers are the
same after a remount, and no table of them is kept.
"""

import math
from collections.abc import Iterable

import trio

from skymount.errors import PortalError
from skymount.fs.skylinks.tree import Tree
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.skylink import Skylink

INDEX_BITS = 24
NUMBER_BITS = 37

SPACES = 2
"""How many `Slots` can have inode numbers of their own."""


def space_of(inode: int) -> int:
    """Return which `Slots` an inode number belongs to."""
    return inode >> (INDEX_BITS + NUMBER_BITS) & SPACES - 1


def merged(inodes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return references to inodes that are given back with those to a slot's files as one.

    The kernel gives back thousands at a time, and all of them are the slot's.
    """
    found: list[tuple[int, int]] = []
    counts: dict[int, int] = {}
    for inode, count in inodes:
        number = inode >> INDEX_BITS
        if number >> NUMBER_BITS < SPACES:
            counts[number] = counts.get(number, 0) + count
        else:  # another realm's
            found.append((inode, count))
    found.extend((number << INDEX_BITS, count) for number, count in counts.items())
    return found


class TreeVersion:
    """A name and one tree that it leads to, once that is known."""

    __slots__ = (
        "changed",
        "expires",
        "number",
        "point",
        "references",
        "target",
        "tree",
        "verified",
        "was_provisional",
    )

    tree: Tree | None

    def __init__(self, point: "MountedName", number: int, target: Skylink | None) -> None:
        self.point = point
        self.number = number
        self.target = target
        """The v1 skylink of the tree; None until a name that moves is resolved."""
        self.tree = None
        self.verified = True
        """Whether it is verified that the name leads here; a domain's record does not count."""
        self.references = 0
        """Lookups that the kernel has not forgotten, and open handles."""
        self.expires = math.inf
        """Until when a provisional tree may be shown, by trio's clock."""
        self.was_provisional = False
        """Whether it shows or showed a provisional tree: the kernel may keep none of its pages."""
        self.changed = False
        """Whether its tree turned out to be another than it showed while that was provisional."""

    @property
    def is_provisional(self) -> bool:
        """Whether a portal that failed might prove something else (docs/semantics.md, T6)."""
        return self.tree is not None and self.tree.skyfile.is_provisional

    def has_expired(self, now: float) -> bool:
        """Whether what it shows was provisional, and was not asked for again in time."""
        return self.expires <= now

    def inode(self, index: int = 0) -> int:
        """Return the inode number of a node of its tree; the root is 0."""
        return self.number << INDEX_BITS | index


class MountedName:
    """A name, and the slot that it shows now."""

    __slots__ = (
        "error",
        "failure",
        "goal",
        "loading",
        "name",
        "provisional",
        "repeating",
        "repetitions",
        "seen",
        "slot",
        "slow",
        "used",
        "waiting",
    )

    slot: TreeVersion

    def __init__(self, name: str, goal: ResolvableName) -> None:
        self.name = name
        self.goal = goal
        self.error: PortalError | None = None
        """Why there is nothing to show."""
        self.failure: PortalError | None = None
        """Why the last load failed, if what was there is still shown."""
        self.loading: trio.Event | None = None
        """Set when the load that is under way ends."""
        self.waiting = 0
        """Tasks that wait for the load, and will refer to the slot."""
        self.slow = False
        """Whether a lookup has already waited for this load for as long as it may."""
        self.seen = 0.0
        """When the resolution was asked for that was looked at last, by trio's clock."""
        self.provisional: list[TreeVersion] = []
        """The slots that show the provisional tree of its present target."""
        self.repetitions = 0
        """How often that was asked for again."""
        self.repeating = False
        """Whether a task waits to do so."""
        self.used = False
        """Whether it was used since then."""

    @property
    def moves(self) -> bool:
        """Whether what it leads to can change."""
        return not isinstance(self.goal, Skylink) or self.goal.version == 2
