"""The names used in `skylinks` or `hns`: loads their trees, decides which version each shows.

Which trees stay in memory is left to `tree_cache`. What the kernel still refers to is not lost when
a tree is evicted: the version stays without its tree, or the name is parked (`parked_names`).
"""

import errno
import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b

import trio

from skymount.concurrency import off_loop
from skymount.errors import (
    BadContentError,
    MalformedError,
    NotFoundError,
    PortalError,
    UnavailableError,
)
from skymount.fs.inode_space import (
    InodeSpace,
    first_tree_number,
    next_tree_number,
    split_node_inode,
)
from skymount.fs.skylinks.mounted_name import LoadState, MountedName, TreeState, TreeVersion
from skymount.fs.skylinks.parked_names import ParkedName, ParkedNames
from skymount.fs.skylinks.revalidation import BackgroundRevalidation
from skymount.fs.skylinks.tree import Tree
from skymount.fs.skylinks.tree_cache import TreeCache
from skymount.fs.skylinks.tree_restorer import SkyfileSource, TreeRestorer, fingerprint_of
from skymount.fs.subtree import IMMUTABLE_TIMEOUT, refuse
from skymount.portal.registry.cached_resolution import NEGATIVE_TTL
from skymount.portal.registry.name_resolver import NameResolver, ResolvableName
from skymount.wire.hns import parse_domain
from skymount.wire.skylink import Skylink, parse_skylink

log = logging.getLogger(__name__)

_LOGGED_PATH = 200  # characters

# Seconds before each further load of a provisional tree; the last one is repeated.
_RECHECK_DELAYS = (1.0, 2.0, 4.0, 8.0, 15.0)


class NameTable:
    """The names of one subtree, and the versions of their trees by tree number.

    `parse` returns (the spelling under which a name is kept, what it stands for), or raises
    MalformedError. `tree_number` makes the first number to try for a tree.
    """

    def __init__(
        self,
        source: SkyfileSource,
        nursery: trio.Nursery,
        resolver: NameResolver,
        parse: Callable[[str], tuple[str, ResolvableName]],
        space: InodeSpace,
        cache: TreeCache,
        tree_number: Callable[[InodeSpace, str], int] = first_tree_number,
    ) -> None:
        self._source = source
        self._nursery = nursery
        self._resolver = resolver
        self._parse = parse
        self.space = space
        self._tree_number = tree_number
        self._names: dict[str, MountedName] = {}
        self._versions: dict[int, TreeVersion] = {}
        self._parked = ParkedNames()
        self._restorer = TreeRestorer(source, nursery, self._set, self._replace)
        self._cache = cache
        self._revalidation = BackgroundRevalidation(
            nursery, resolver, self._is_listed, self.start_load
        )

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
        target = None if mounted.moves else goal
        assert not isinstance(target, str)
        number = self._first_number(mounted, target)
        parked = self._parked.get(number)
        if parked is not None and parked.name == name:
            return self._unpark(number)
        mounted.version = self._new_version(mounted, target)
        self._names[name] = mounted
        self._touch(mounted.version)
        self._cache.evict()
        return mounted

    def _first_number(self, mounted: MountedName, target: Skylink | None) -> int:
        text = f"{mounted.name}\0{target or ''}" if mounted.moves else mounted.name
        return self._tree_number(self.space, text)

    def _new_version(self, mounted: MountedName, target: Skylink | None) -> TreeVersion:
        number = self._first_number(mounted, target)
        while number in self._versions or number in self._parked:
            number = next_tree_number(number)
        version = self._versions[number] = TreeVersion(mounted, number, target)
        return version

    def _version_for(self, mounted: MountedName, target: Skylink) -> TreeVersion:
        """Return the version for a target: the one that was shown before, if still in use."""
        number = self._first_number(mounted, target)
        while number in self._versions or number in self._parked:
            version = self._versions.get(number)
            if version is not None and version.shows(mounted.name, target):
                version.mounted = mounted
                return version
            number = next_tree_number(number)
        return self._new_version(mounted, target)

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
        return mounted if not mounted.version.is_empty and self._is_listed(mounted) else None

    def node_of(self, inode: int) -> tuple[TreeVersion, int]:
        """Return (version, index) of an inode number; ESTALE when there is none."""
        number, index = split_node_inode(inode)
        if number in self._parked:
            self._unpark(number)
        version = self._versions.get(number)
        if version is None or version.state is TreeState.DISPROVED:
            refuse(errno.ESTALE)
        version.mounted.was_used = True
        self._touch(version)
        return version, index

    # What a name shows, and for how long

    def ttl(self, mounted: MountedName) -> float:
        """Return the seconds for which a name surely shows what it does; 0: load it again."""
        if mounted.version.is_empty:
            return 0.0
        now = trio.current_time()
        left = max(0.0, mounted.version.expires - now)
        if now < mounted.held_until and not self._resolver.cached(mounted.goal).outdated:
            return min(left, mounted.held_until - now)
        if mounted.is_loading:
            return 0.0
        if not mounted.moves:
            return min(IMMUTABLE_TIMEOUT, left)
        known = self._resolver.cached(mounted.goal)
        is_shown = known.requested_at == mounted.resolved_at
        return min(left, self._resolver.revalidate_in(mounted.goal)) if is_shown else 0.0

    def negative_ttl(self, mounted: MountedName) -> float:
        """Return the seconds for which there is surely no such name."""
        if mounted.moves and self._resolver.cached(mounted.goal).absent:
            return self._resolver.revalidate_in(mounted.goal)
        return NEGATIVE_TTL

    def is_stale(self, version: TreeVersion) -> bool:
        """Whether the name may lead elsewhere: resolving it failed, or it shows another version."""
        mounted = version.mounted
        is_shown = mounted.version.target == version.target and self._is_listed(mounted)
        return mounted.moves and not (is_shown and not self._resolver.cached(mounted.goal).stale)

    def _is_listed(self, mounted: MountedName) -> bool:
        return self._names.get(mounted.name) is mounted

    async def revalidate(self, mounted: MountedName, limit: float) -> None:
        """Bring a name up to date; wait for `limit` seconds at most, once for each load.

        Afterwards its version is what to show; PortalError when there is nothing.
        """
        mounted.was_used = True
        self._touch(mounted.version)
        if self.ttl(mounted):
            self._revalidation.schedule(mounted)
            return
        self._check_not_absent(mounted)
        ended = self.start_load(mounted)
        if mounted.load_state is not LoadState.SLOW:
            await self._wait(mounted, limit)
            if not ended.is_set():
                mounted.load_state = LoadState.SLOW
        if mounted.error is not None:
            raise mounted.error

    def _check_not_absent(self, mounted: MountedName) -> None:
        """NotFoundError if it is still known that a name leads nowhere."""
        if not mounted.moves or mounted.is_loading:
            return
        if self._resolver.cached(mounted.goal).absent and self._resolver.revalidate_in(
            mounted.goal
        ):
            error = NotFoundError(f"{mounted.name}: there is no such name")
            self._load_failed(mounted, error)
            raise error

    async def load_tree(self, version: TreeVersion) -> Tree:
        """Return a version's tree, loaded first if need be; PortalError when that fails.

        ESTALE if it was provisional and another tree is proved.
        """
        version.waiting += 1
        try:
            while (tree := version.shown) is None:
                if version.is_evicted:
                    error = await self._restorer.restore(version)
                else:
                    mounted = version.mounted
                    await self._wait(mounted)
                    error = mounted.error or mounted.refresh_error
                if version.state is TreeState.DISPROVED:
                    refuse(errno.ESTALE)
                if version.shown is None and error is not None:  # else another load has begun
                    raise error
        finally:
            version.waiting -= 1
            if self._versions.get(version.number) is version:
                self._touch(version)
        return tree

    async def _wait(self, mounted: MountedName, limit: float = math.inf) -> None:
        ended = self.start_load(mounted)
        mounted.waiting += 1
        try:
            with trio.move_on_after(limit):
                await ended.wait()
        finally:
            mounted.waiting -= 1
            if self._is_listed(mounted):
                self._touch(mounted.version)

    # Loading

    def start_load(self, mounted: MountedName) -> trio.Event:
        """Begin to load a name, unless a load is in flight; the event is set at its end."""
        if not mounted.is_loading:
            mounted.load_state, mounted.load_ended = LoadState.LOADING, trio.Event()
            mounted.error = mounted.refresh_error = None
            self._nursery.start_soon(self._run_load, mounted)
        return mounted.load_ended

    async def _run_load(self, mounted: MountedName) -> None:
        try:
            await self._load_current(mounted)
        except PortalError as error:
            mounted.error = error
            log.info("%s: %s", mounted.name, error)
        except Exception:  # a bug that one name brings out must not end the mount
            mounted.error = BadContentError(f"{mounted.name}: loading failed, see the log")
            log.exception("%s: loading failed", mounted.name)
        finally:
            if mounted.version.is_empty and mounted.error is None:
                mounted.error = UnavailableError("the load was cancelled")
            if mounted.error is not None:
                self._load_failed(mounted, mounted.error)
            mounted.load_state = LoadState.IDLE
            mounted.load_ended.set()
            if self._is_listed(mounted):
                self._touch(mounted.version)
            if mounted.version.is_provisional and not mounted.is_recheck_scheduled:
                mounted.is_recheck_scheduled = True
                self._nursery.start_soon(self._recheck, mounted)

    def _load_failed(self, mounted: MountedName, error: PortalError) -> None:
        """Go on showing the tree that was there, unless the name is gone."""
        if mounted.version.is_empty:
            if not mounted.version.is_used:
                self._remove(mounted)
        elif isinstance(error, NotFoundError):
            self._remove(mounted)
        else:
            if mounted.moves:
                if not self._resolver.cached(mounted.goal).failures:
                    self._resolver.record_failure(mounted.goal)
                mounted.resolved_at = self._resolver.cached(mounted.goal).requested_at
            mounted.error, mounted.refresh_error = None, error

    async def _load_current(self, mounted: MountedName) -> None:
        """Find out what a name leads to, and show that once all of it is loaded."""
        version = mounted.version
        if mounted.moves:
            found = await self._resolver.resolve(mounted.goal)
            mounted.resolved_at = found.requested_at
            if version.is_empty or version.target != found.skylink:
                version = self._version_for(mounted, found.skylink)
            version.verified = found.verified
        if version.is_empty or version.is_provisional:
            version = await self._load_version(mounted, version)
        self._show(mounted, version)

    async def _load_version(self, mounted: MountedName, version: TreeVersion) -> TreeVersion:
        assert version.target is not None
        try:
            tree = Tree(await self._source.load(version.target))
            loaded = await self._set_tree(mounted, version, tree)
        except NotFoundError as error:
            if not mounted.version.is_empty:  # the name is there, but what it leads to is not
                raise UnavailableError(f"{version.target}: {error}") from None
            raise
        finally:
            if version.is_empty and version is not mounted.version:
                self._drop_if_unused(version)
        if tree.listing.hidden and not mounted.rechecks:
            path, reason = tree.listing.hidden[0]
            log.warning(
                "%s: %d of its files cannot be shown, the first is %r: %s",
                mounted.name,
                len(tree.listing.hidden),
                path[:_LOGGED_PATH],
                reason,
            )
        return loaded

    async def _set_tree(
        self, mounted: MountedName, version: TreeVersion, tree: Tree
    ) -> TreeVersion:
        """Set the tree of a version, or of a new one if that has shown a provisional tree.

        A version that has shown a tree never gets other names or sizes: the kernel knows them. A
        proved tree is a new version, whose pages the kernel may keep.
        """
        is_provisional = tree.skyfile.is_provisional
        fingerprint = await fingerprint_of(tree.skyfile)
        earlier = [each for each in mounted.provisional if each.target == version.target]
        is_same = bool(earlier) and await _is_same(earlier[0], tree)
        for each in earlier:
            if is_same:
                self._set(each, tree, fingerprint)
            else:
                each.state = TreeState.DISPROVED
        if not version.is_empty and not (is_same and is_provisional):
            version = self._new_version(mounted, version.target)
        self._set(version, tree, fingerprint)
        if is_provisional:
            mounted.provisional = earlier if is_same else []
            _add_provisional(version)
        else:
            mounted.provisional, mounted.rechecks = [], 0
        return version

    def _set(self, version: TreeVersion, tree: Tree, fingerprint: bytes) -> None:
        version.set_tree(tree, fingerprint)
        self._cache.loaded(version, tree.skyfile)
        self._touch(version)
        self._cache.evict()

    def _show(self, mounted: MountedName, version: TreeVersion) -> None:
        """Show a version; one that had no tree yet may be in use, and shows the same tree."""
        before, mounted.version = mounted.version, version
        if before is not version:
            if before.is_empty:
                before.show_as(version)
                if before.tree is not None:
                    self._cache.loaded(before, before.tree.skyfile)
                if before.is_provisional:
                    _add_provisional(before)
            self._drop_if_unused(before)
            self._drop_if_unused(version)  # if the name was removed meanwhile

    async def _recheck(self, mounted: MountedName) -> None:
        """Load a provisional tree again: a few times, and then only as long as it is used."""
        last = len(_RECHECK_DELAYS) - 1
        await trio.sleep(_RECHECK_DELAYS[min(mounted.rechecks, last)])
        mounted.is_recheck_scheduled = False
        is_wanted = mounted.rechecks <= last or mounted.was_used
        if is_wanted and self._is_listed(mounted) and mounted.version.is_provisional:
            mounted.rechecks += 1
            mounted.was_used = False
            self.start_load(mounted)

    # Evicted trees

    def _replace(self, version: TreeVersion) -> None:
        """Let a name show another tree than one that was evicted and is described differently."""
        version.state = TreeState.DISPROVED
        mounted = version.mounted
        if mounted.version is version and self._is_listed(mounted):
            mounted.version = self._new_version(mounted, version.target)
            self._touch(mounted.version)
            self._drop_if_unused(version)

    def _touch(self, version: TreeVersion) -> None:
        self._cache.touch(version, self._evict)

    def _evict(self, version: TreeVersion) -> None:
        """Take a tree out of memory, unless it is waited for, or provisional and known outside."""
        mounted = version.mounted
        is_shown = mounted.version is version and self._is_listed(mounted)
        is_awaited = is_shown and (mounted.waiting or mounted.is_loading)
        if version.waiting or is_awaited or version in self._restorer:
            return
        if not version.is_used:
            if is_shown:
                self._remove(mounted)
            return
        if version.state not in (TreeState.FINAL, TreeState.PROVED):
            return
        if is_shown and self._is_parkable(mounted, version):
            self._park(mounted, version)
        else:
            self._unload(version)

    def _unload(self, version: TreeVersion) -> None:
        if version.tree is not None:
            self._source.forget(version.tree.skyfile)
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
        self._touch(version)
        self._cache.evict()
        return mounted

    # References

    def add_references(self, version: TreeVersion, count: int = 1) -> None:
        version.references += count
        if not version.references:
            self._drop_if_unused(version)

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
            self._touch(version)
            self._drop_if_unused(version)
            self._cache.evict()

    def forget(self, inode: int, count: int) -> None:
        number = split_node_inode(inode)[0]
        version = self._versions.get(number)
        if version is None:
            self._parked.refer(number, -count)
        else:
            version.references = max(0, version.references - count)
            self._drop_if_unused(version)

    def usage(self) -> tuple[int, int]:
        """Return (bytes, files and directories) of the trees that names show."""
        versions = [mounted.version for mounted in self if not mounted.version.is_empty]
        size = sum(version.size for version in versions)
        return size + self._parked.size, sum(each.nodes for each in versions) + self._parked.nodes

    def _drop_if_unused(self, version: TreeVersion) -> None:
        mounted = version.mounted
        is_shown = mounted.version is version and self._is_listed(mounted)
        if not version.is_used and not is_shown:
            self._versions.pop(version.number, None)
            self._cache.forget(version)

    def _remove(self, mounted: MountedName) -> None:
        """Forget a name; versions that are in use stay."""
        if self._is_listed(mounted):
            del self._names[mounted.name]
        self._drop_if_unused(mounted.version)


def _add_provisional(version: TreeVersion) -> None:
    if version not in version.mounted.provisional:
        version.mounted.provisional.append(version)


async def _is_same(version: TreeVersion, tree: Tree) -> bool:
    """Whether a tree has the files that a version shows: same names, sizes and places."""
    assert version.tree is not None
    both = (version.tree.skyfile.listing.packed, tree.skyfile.listing.packed)
    if len(both[0]) != len(both[1]):
        return False
    one, other = [await off_loop(partial(blake2b, each), len(each)) for each in both]
    return one.digest() == other.digest()


def parse_skylink_name(name: str) -> tuple[str, ResolvableName]:
    """Read a name in ``skylinks``: any form of a skylink, each a name of its own."""
    return name, parse_skylink(name)


def parse_domain_name(name: str) -> tuple[str, ResolvableName]:
    """Read a name in ``hns``: a domain, all spellings of which are the same name."""
    if name != name.strip():
        raise MalformedError(f"not a domain: {name[:80]!a}")
    domain = parse_domain(name)
    return domain, domain
