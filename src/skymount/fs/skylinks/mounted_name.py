"""What the mount knows of a name in `skylinks` or `hns`, and of each tree that the name led to.

`NameTable` decides what happens to them.
"""

import math
from enum import Enum, auto

import trio

from skymount.errors import PortalError
from skymount.fs.inode_space import node_inode
from skymount.fs.skylinks.tree import Tree
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.skylink import Skylink

PROVISIONAL_TIMEOUT = 30.0
"""Seconds for which a provisional tree is shown without being asked for again."""


class TreeState(Enum):
    """What is known of the tree of a version.

    EMPTY ──> FINAL
      └─────> PROVISIONAL ──> PROVED
                   └────────> DISPROVED
    """

    EMPTY = auto()  # it is not loaded
    FINAL = auto()  # it never changes
    PROVISIONAL = auto()  # A portal that failed might prove another one (docs/semantics.md, T6)
    PROVED = auto()  # it was provisional, and a portal proved it
    DISPROVED = auto()  # it was provisional, and a portal proved another one: its inodes are stale


class TreeVersion:
    """A name and one tree that it leads to, once that is known."""

    __slots__ = (
        "expires",
        "mounted",
        "number",
        "references",
        "state",
        "target",
        "tree",
        "verified",
    )

    def __init__(self, mounted: "MountedName", number: int, target: Skylink | None) -> None:
        self.mounted = mounted
        self.number = number  # its tree number (`inode_space`)
        self.target = target  # the v1 skylink of the tree; None until a name that moves is resolved
        self.tree: Tree | None = None
        self.state = TreeState.EMPTY
        self.expires = math.inf  # when a provisional tree is no longer shown, by trio's clock
        self.verified = True
        """Whether it is proved that the name leads here; a domain's record is no proof."""
        self.references = 0  # lookups that the kernel has not forgotten, and open handles

    def set_tree(self, tree: Tree) -> None:
        """Show a tree: the first, or the same one as it was loaded again."""
        self.tree = tree
        if tree.skyfile.is_provisional:
            self.state = TreeState.PROVISIONAL
            self.expires = trio.current_time() + PROVISIONAL_TIMEOUT
        else:
            self.state = TreeState.PROVED if self.was_provisional else TreeState.FINAL
            self.expires = math.inf

    def show_as(self, other: "TreeVersion") -> None:
        """Show what another version does: the name was resolved after this one was handed out."""
        self.tree, self.target, self.verified = other.tree, other.target, other.verified
        self.state, self.expires = other.state, other.expires

    @property
    def shown(self) -> Tree | None:
        """Its tree; None while there is none, and once a provisional one has expired."""
        return None if self.expires <= trio.current_time() else self.tree

    @property
    def is_provisional(self) -> bool:
        return self.state is TreeState.PROVISIONAL

    @property
    def was_provisional(self) -> bool:
        """Whether it is or was provisional: the kernel must not keep its pages."""
        return self.state not in (TreeState.EMPTY, TreeState.FINAL)

    def inode(self, index: int = 0) -> int:
        return node_inode(self.number, index)


class LoadState(Enum):
    """Whether the tree of a name is being loaded."""

    IDLE = auto()
    LOADING = auto()
    SLOW = auto()
    """A lookup waited for the load as long as it may, so the next ones do not wait at all."""


class MountedName:
    """A name, and the version of its tree that it shows now."""

    __slots__ = (
        "error",
        "goal",
        "is_recheck_scheduled",
        "load_ended",
        "load_state",
        "name",
        "provisional",
        "rechecks",
        "refresh_error",
        "resolved_at",
        "version",
        "waiting",
        "was_used",
    )

    version: TreeVersion

    def __init__(self, name: str, goal: ResolvableName) -> None:
        self.name = name
        self.goal = goal  # the skylink or domain that the name stands for
        self.error: PortalError | None = None  # why there is nothing to show
        self.refresh_error: PortalError | None = None
        """Why the last load failed, if an older tree is still shown."""
        self.load_state = LoadState.IDLE
        self.load_ended = trio.Event()  # set at the end of the load in flight, or of the last one
        self.waiting = 0  # tasks that wait for the load, and will refer to the version
        self.resolved_at = 0.0  # when the resolution that is shown was asked for, by trio's clock
        self.provisional: list[TreeVersion] = []
        """The versions that show the provisional tree of the present target."""
        self.rechecks = 0  # how often that tree was asked for again
        self.is_recheck_scheduled = False
        self.was_used = False  # whether the name was used since the last recheck

    @property
    def is_loading(self) -> bool:
        return self.load_state is not LoadState.IDLE

    @property
    def moves(self) -> bool:
        """Whether it may lead to another tree some day: a domain or a v2 skylink."""
        return not isinstance(self.goal, Skylink) or self.goal.version == 2
