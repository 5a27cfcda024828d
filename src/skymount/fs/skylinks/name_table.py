"""The names used in `skylinks` or `hns`, and the versions of their trees. No IO: `name_loader`
loads the trees, and `name_freshness` says for how long a name shows one.

Which trees stay in memory is left to `tree_cache`. What the kernel still refers to is not lost when
a tree is evicted: the version stays without its tree, or the name is parked (`parked_names`).
"""

import errno
from collections.abc import Callable, Iterator

from skymount.content.model.skyfile import Skyfile
from skymount.fs.inode_space import (
    InodeSpace,
    first_tree_number,
    next_tree_number,
    split_node_inode,
)
from skymount.fs.skylinks.mounted_name import MountedName, TreeState, TreeVersion
from skymount.fs.skylinks.parked_names import ParkedName, ParkedNames
from skymount.fs.skylinks.tree import Tree
from skymount.fs.skylinks.tree_cache import TreeCache
from skymount.fs.subtree import MTIME_NS, refuse
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.skylink import Skylink


class NameTable:
    """The names of one subtree, and the versions of their trees by tree number.

    `parse` returns (the spelling under which a name is kept, what it stands for), or raises
    MalformedError. `forget` is called with each description that is dropped. `tree_number` makes
    the first number to try for a tree.
    """

    def __init__(
        self,
        parse: Callable[[str], tuple[str, ResolvableName]],
        space: InodeSpace,
        cache: TreeCache,
        forget: Callable[[Skyfile], None],
        tree_number: Callable[[InodeSpace, str], int] = first_tree_number,
    ) -> None:
        self._parse = parse
        self.space = space
        self._cache = cache
        self._forget_skyfile = forget
        self._tree_number = tree_number
        self._names: dict[str, MountedName] = {}
        self._versions: dict[int, TreeVersion] = {}
        self._parked = ParkedNames()

    def __iter__(self) -> Iterator[MountedName]:
        return iter(self._names.values())

    def __len__(self) -> int:
        return len(self._names) + len(self._parked)

    def get_or_add(self, name: str) -> MountedName:
        """Return a name; MalformedError when it stands for nothing."""
        found = self._names.get(name)
        if found is None:
            canonical, goal = self._parse(name)
            found = self._names.get(canonical) or self._add(canonical, goal)
        return found

    def _add(self, name: str, goal: ResolvableName) -> MountedName:
        mounted = MountedName(name, goal)
        target = goal if isinstance(goal, Skylink) and not mounted.moves else None
        number = self._first_number(mounted, target)
        parked = self._parked.get(number)
        if parked is not None and parked.name == name:
            return self._unpark(number)
        mounted.version = self.new_version(mounted, target)
        self._names[name] = mounted
        self.touch(mounted.version)
        self._cache.evict()
        return mounted

    def _first_number(self, mounted: MountedName, target: Skylink | None) -> int:
        text = f"{mounted.name}\0{target or ''}" if mounted.moves else mounted.name
        return self._tree_number(self.space, text)

    def new_version(
        self, mounted: MountedName, target: Skylink | None, mtime_ns: int = MTIME_NS
    ) -> TreeVersion:
        number = self._first_number(mounted, target)
        while number in self._versions or number in self._parked:
            number = next_tree_number(number)
        version = self._versions[number] = TreeVersion(mounted, number, target, mtime_ns)
        return version

    def version_for(self, mounted: MountedName, target: Skylink, mtime_ns: int) -> TreeVersion:
        """Return the version for a target: the one that was shown before, if still in use."""
        number = self._first_number(mounted, target)
        while number in self._versions or number in self._parked:
            version = self._versions.get(number)
            if version is not None and version.shows(mounted.name, target, mtime_ns):
                version.mounted = mounted
                return version
            number = next_tree_number(number)
        return self.new_version(mounted, target, mtime_ns)

    def listed(self) -> list[str | int]:
        """Return what `ls` shows: names, and the tree numbers of parked ones."""
        found: list[str | int] = [each.name for each in self if not each.version.is_empty]
        return found + list(self._parked)

    def find(self, listed: str | int) -> MountedName | ParkedName | None:
        """Return one of `listed`, by now perhaps parked or no longer so; None if it is gone."""
        if isinstance(listed, int):
            parked = self._parked.get(listed)
            version = self._versions.get(listed)
            mounted = None if version is None else version.mounted
        else:
            parked = None
            mounted = self._names.get(listed)
            if mounted is None:
                parked = self._parked.get(self._tree_number(self.space, listed))
                parked = parked if parked is not None and parked.name == listed else None
        if mounted is None:
            return parked
        return mounted if not mounted.version.is_empty and self.is_listed(mounted) else None

    def node_of(self, inode: int) -> tuple[TreeVersion, int]:
        """Return (version, index) of an inode number; ESTALE when there is none."""
        number, index = split_node_inode(inode)
        if number in self._parked:
            self._unpark(number)
        version = self._versions.get(number)
        if version is None or version.state is TreeState.DISPROVED:
            refuse(errno.ESTALE)
        version.mounted.was_used = True
        self.touch(version)
        return version, index

    def has(self, version: TreeVersion) -> bool:
        return self._versions.get(version.number) is version

    def is_listed(self, mounted: MountedName) -> bool:
        return self._names.get(mounted.name) is mounted

    # What a name shows

    def set_tree(self, version: TreeVersion, tree: Tree, fingerprint: bytes) -> None:
        version.set_tree(tree, fingerprint)
        self._cache.loaded(version, tree.skyfile)
        self.touch(version)
        self._cache.evict()

    def show(self, mounted: MountedName, version: TreeVersion) -> None:
        """Show a version; one that had no tree yet may be in use, and shows the same tree."""
        before, mounted.version = mounted.version, version
        if before is not version:
            if before.is_empty:
                before.show_as(version)
                if before.tree is not None:
                    self._cache.loaded(before, before.tree.skyfile)
                if before.is_provisional:
                    before.mounted.add_provisional(before)
            self.drop_if_unused(before)
            self.drop_if_unused(version)  # if the name was removed meanwhile

    def replace(self, version: TreeVersion) -> None:
        """Let a name show another tree than one that was evicted and is described differently."""
        version.state = TreeState.DISPROVED
        mounted = version.mounted
        if mounted.version is version and self.is_listed(mounted):
            mounted.version = self.new_version(mounted, version.target, version.mtime_ns)
            self.touch(mounted.version)
            self.drop_if_unused(version)

    # Evicted trees

    def touch(self, version: TreeVersion) -> None:
        self._cache.touch(version, self._evict)

    def _evict(self, version: TreeVersion) -> None:
        """Take a tree out of memory, unless it is waited for, or provisional and known outside."""
        mounted = version.mounted
        is_shown = mounted.version is version and self.is_listed(mounted)
        is_awaited = is_shown and (mounted.waiting or mounted.is_loading)
        if version.waiting or is_awaited:
            return
        if not version.is_used:
            if is_shown:
                self.remove(mounted)
            return
        if version.state not in (TreeState.FINAL, TreeState.PROVED):
            return
        if is_shown and self._is_parkable(mounted, version):
            self._park(mounted, version)
        else:
            self._unload(version)

    def _unload(self, version: TreeVersion) -> None:
        if version.tree is not None:
            self._forget_skyfile(version.tree.skyfile)
            version.tree = None
        self._cache.forget(version)

    def _is_parkable(self, mounted: MountedName, version: TreeVersion) -> bool:
        """Whether a name says all that is known of its version, so that it can be made again."""
        is_first = version.number == self._first_number(mounted, version.target)
        return is_first and not mounted.moves and version.state is TreeState.FINAL

    def _park(self, mounted: MountedName, version: TreeVersion) -> None:
        self._unload(version)
        del self._names[mounted.name], self._versions[version.number]
        counts = version.references, version.nodes, version.size
        self._parked.add(ParkedName(version.number, mounted.name, *counts, version.fingerprint))
        del mounted.version  # or the cycle of both would wait for the garbage collector

    def _unpark(self, number: int) -> MountedName:
        parked = self._parked.pop(number)
        assert parked is not None
        mounted = MountedName(*self._parse(parked.name))
        assert isinstance(mounted.goal, Skylink)
        version = mounted.version = TreeVersion(mounted, number, mounted.goal)
        version.state, version.fingerprint = TreeState.FINAL, parked.fingerprint
        version.references, version.nodes = parked.references, parked.nodes
        version.size = parked.size
        self._names[mounted.name], self._versions[number] = mounted, version
        self.touch(version)
        self._cache.evict()
        return mounted

    # References

    def add_references(self, version: TreeVersion, count: int = 1) -> None:
        version.references += count
        if not version.references:
            self.drop_if_unused(version)

    def refer(self, listed: str | int) -> None:
        """Count a reference to one of `listed`, if it is still there."""
        found = self.find(listed)
        if isinstance(found, MountedName):
            self.add_references(found.version)
        elif found is not None:
            self._parked.refer(found.number, 1)

    def add_handle(self, version: TreeVersion) -> None:
        version.handles += 1
        self._cache.pin(version)

    def remove_handle(self, version: TreeVersion) -> None:
        version.handles -= 1
        if not version.handles:
            self.touch(version)
            self.drop_if_unused(version)
            self._cache.evict()

    def forget(self, inode: int, count: int) -> None:
        number = split_node_inode(inode)[0]
        version = self._versions.get(number)
        if version is None:
            self._parked.refer(number, -count)
        else:
            version.references = max(0, version.references - count)
            self.drop_if_unused(version)

    def usage(self) -> tuple[int, int]:
        """Return (bytes, files and directories) of the trees that names show."""
        versions = [mounted.version for mounted in self if not mounted.version.is_empty]
        size = sum(version.size for version in versions)
        return size + self._parked.size, sum(each.nodes for each in versions) + self._parked.nodes

    def drop_if_unused(self, version: TreeVersion) -> None:
        mounted = version.mounted
        is_shown = mounted.version is version and self.is_listed(mounted)
        if not version.is_used and not is_shown:
            self._versions.pop(version.number, None)
            self._cache.forget(version)

    def remove(self, mounted: MountedName) -> None:
        """Forget a name; versions that are in use stay."""
        if self.is_listed(mounted):
            del self._names[mounted.name]
        self.drop_if_unused(mounted.version)
