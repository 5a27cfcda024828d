"""What the mount knows of a name in `skylinks` or `hns`, and of each tree that the name led to."""

import math
from dataclasses import dataclass, field
from enum import Enum, auto

import trio

from skymount.errors import PortalError
from skymount.fs.inode_space import node_inode
from skymount.fs.skylinks.tree import Tree
from skymount.fs.subtree import MTIME_NS
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.skylink import Skylink

PROVISIONAL_TIMEOUT = 30.0  # seconds for which a provisional tree is shown unless asked for again


class TreeState(Enum):
    """What is known of the tree of a version.

    EMPTY ──> FINAL
      └─────> PROVISIONAL ──> PROVED
                   └────────> DISPROVED
    """

    EMPTY = auto()  # it was never loaded
    FINAL = auto()  # it never changes
    PROVISIONAL = auto()  # A portal that failed might prove another one (docs/semantics.md, T6)
    PROVED = auto()  # it was provisional, and a portal proved it
    DISPROVED = auto()  # it was provisional, and a portal proved another one: its inodes are stale


@dataclass(eq=False, repr=False, slots=True)
class TreeVersion:
    """A name and one tree that it leads to, once that is known."""

    mounted: "MountedName"
    number: int  # its tree number (`inode_space`)
    target: Skylink | None  # the v1 skylink of the tree; none until a name that moves is resolved
    mtime_ns: int = MTIME_NS  # since when a name that moves leads there
    tree: Tree | None = None  # none while it is not in memory
    state: TreeState = TreeState.EMPTY
    fingerprint: bytes = b""  # of the tree (`Skyfile.fingerprint`)
    nodes: int = 0  # files and directories of the tree
    size: int = 0  # bytes of its content
    expires: float = math.inf  # when a provisional tree is no longer shown, by trio's clock
    verified: bool = True  # whether the name is proved to lead here; a domain's record is no proof
    references: int = 0  # lookups that the kernel has not forgotten
    handles: int = 0  # files and directories of it that are open
    waiting: int = 0  # tasks that wait for the tree, and will refer to the version

    def set_tree(self, tree: Tree, fingerprint: bytes = b"") -> None:
        """Show a tree: the first, or the same one as it was loaded again."""
        self.tree, self.fingerprint = tree, fingerprint
        self.nodes, self.size = len(tree), tree.skyfile.size
        if tree.skyfile.is_provisional:
            self.state = TreeState.PROVISIONAL
            self.expires = trio.current_time() + PROVISIONAL_TIMEOUT
        else:
            self.state = TreeState.PROVED if self.was_provisional else TreeState.FINAL
            self.expires = math.inf

    def show_as(self, other: "TreeVersion") -> None:
        """Show what another version does: the name was resolved after this one was handed out."""
        self.tree, self.target, self.verified = other.tree, other.target, other.verified
        self.mtime_ns = other.mtime_ns
        self.state, self.expires = other.state, other.expires
        self.fingerprint, self.nodes, self.size = other.fingerprint, other.nodes, other.size

    @property
    def shown(self) -> Tree | None:
        """Its tree, unless that was provisional and has expired."""
        return None if self.expires <= trio.current_time() else self.tree

    @property
    def is_empty(self) -> bool:
        return self.state is TreeState.EMPTY

    @property
    def is_evicted(self) -> bool:
        """Whether its tree was evicted; the same one can be loaded again."""
        return self.tree is None and self.state in (TreeState.FINAL, TreeState.PROVED)

    @property
    def is_known(self) -> bool:
        """Whether there is a tree to show, in memory or not."""
        return self.is_evicted or self.shown is not None

    @property
    def is_used(self) -> bool:
        return self.references > 0 or self.handles > 0

    @property
    def is_provisional(self) -> bool:
        return self.state is TreeState.PROVISIONAL

    @property
    def was_provisional(self) -> bool:
        """Whether it is or was provisional: the kernel must not keep its pages."""
        return self.state not in (TreeState.EMPTY, TreeState.FINAL)

    def shows(self, name: str, target: Skylink, mtime_ns: int) -> bool:
        """Whether it is what a name shows for good while it leads to that target."""
        is_final = self.state is TreeState.FINAL and self.mtime_ns == mtime_ns
        return is_final and self.mounted.name == name and self.target == target

    def inode(self, index: int = 0) -> int:
        return node_inode(self.number, index)


class LoadState(Enum):
    """Whether the tree of a name is being loaded."""

    IDLE = auto()
    LOADING = auto()
    SLOW = auto()  # a lookup waited as long as it may, so the next ones do not wait at all


@dataclass(eq=False, repr=False, slots=True)
class MountedName:
    """A name, and the version of its tree that it shows now."""

    name: str
    goal: ResolvableName  # the skylink or domain that the name stands for
    version: TreeVersion = field(init=False)
    error: PortalError | None = None  # why there is nothing to show
    refresh_error: PortalError | None = None  # why the last load failed, if an older tree is shown
    load_state: LoadState = LoadState.IDLE
    load_ended: trio.Event = field(default_factory=trio.Event)  # set when no load is in flight
    waiting: int = 0  # tasks that wait for the load, and will refer to the version
    resolved_at: float = 0.0  # when the resolution that is shown was asked for, by trio's clock
    provisional: list[TreeVersion] = field(
        default_factory=list
    )  # show the target's provisional tree
    rechecks: int = 0  # how often that tree was asked for again
    is_recheck_scheduled: bool = False
    was_used: bool = False  # since the last recheck
    is_revalidation_scheduled: bool = False  # in the background
    held_until: float = -math.inf  # how long it shows what it does while that is going on

    def add_provisional(self, version: TreeVersion) -> None:
        if version not in self.provisional:
            self.provisional.append(version)

    @property
    def is_loading(self) -> bool:
        return self.load_state is not LoadState.IDLE

    @property
    def moves(self) -> bool:
        """Whether it may lead to another tree some day: a domain or a v2 skylink."""
        return not isinstance(self.goal, Skylink) or self.goal.version == 2
