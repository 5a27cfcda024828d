"""Loads the trees of names: finds out what a name leads to, and shows that once all of it is there.

Trees that were evicted are left to `tree_restorer`.
"""

import errno
import logging
import math
from functools import partial
from hashlib import blake2b

import trio

from skymount.concurrency import off_loop
from skymount.errors import BadContentError, NotFoundError, PortalError, UnavailableError
from skymount.fs.skylinks.mounted_name import LoadState, MountedName, TreeState, TreeVersion
from skymount.fs.skylinks.name_table import NameTable
from skymount.fs.skylinks.name_times import NameTimes
from skymount.fs.skylinks.tree import Tree
from skymount.fs.skylinks.tree_restorer import SkyfileSource, TreeRestorer, fingerprint_of
from skymount.fs.subtree import refuse
from skymount.portal.registry.name_resolver import NameResolver

log = logging.getLogger(__name__)

_LOGGED_PATH = 200  # characters

# Seconds before each further load of a provisional tree; the last one is repeated.
_RECHECK_DELAYS = (1.0, 2.0, 4.0, 8.0, 15.0)


class NameLoader:
    """Loads the trees of the names in one table, each once for all who wait."""

    def __init__(
        self,
        table: NameTable,
        source: SkyfileSource,
        resolver: NameResolver,
        nursery: trio.Nursery,
        times: NameTimes,
    ) -> None:
        self._times = times
        self._table = table
        self._source = source
        self._resolver = resolver
        self._nursery = nursery
        self._restorer = TreeRestorer(source, nursery, table.set_tree, table.replace)

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
                    await self.wait(mounted)
                    error = mounted.error or mounted.refresh_error
                if version.state is TreeState.DISPROVED:
                    refuse(errno.ESTALE)
                if version.shown is None and error is not None:  # else another load has begun
                    raise error
        finally:
            version.waiting -= 1
            if self._table.has(version):
                self._table.touch(version)
        return tree

    async def wait(self, mounted: MountedName, limit: float = math.inf) -> None:
        """Wait for the end of the load of a name, for so many seconds at most."""
        ended = self.start_load(mounted)
        mounted.waiting += 1
        try:
            with trio.move_on_after(limit):
                await ended.wait()
        finally:
            mounted.waiting -= 1
            if self._table.is_listed(mounted):
                self._table.touch(mounted.version)

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
                self.load_failed(mounted, mounted.error)
            mounted.load_state = LoadState.IDLE
            mounted.load_ended.set()
            if self._table.is_listed(mounted):
                self._table.touch(mounted.version)
            if mounted.version.is_provisional and not mounted.is_recheck_scheduled:
                mounted.is_recheck_scheduled = True
                self._nursery.start_soon(self._recheck, mounted)

    def load_failed(self, mounted: MountedName, error: PortalError) -> None:
        """Go on showing the tree that was there, unless the name is gone."""
        if mounted.version.is_empty:
            if not mounted.version.is_used:
                self._table.remove(mounted)
        elif isinstance(error, NotFoundError):
            self._table.remove(mounted)
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
                mtime_ns = await self._times.mtime_ns(mounted, found.skylink)
                version = self._table.version_for(mounted, found.skylink, mtime_ns)
            version.verified = found.verified
        if version.is_empty or version.is_provisional:
            version = await self._load_version(mounted, version)
        self._table.show(mounted, version)

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
                self._table.drop_if_unused(version)
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
                self._table.set_tree(each, tree, fingerprint)
            else:
                each.state = TreeState.DISPROVED
        if not version.is_empty and not (is_same and is_provisional):
            version = self._table.new_version(mounted, version.target, version.mtime_ns)
        self._table.set_tree(version, tree, fingerprint)
        if is_provisional:
            mounted.provisional = earlier if is_same else []
            version.mounted.add_provisional(version)
        else:
            mounted.provisional, mounted.rechecks = [], 0
        return version

    async def _recheck(self, mounted: MountedName) -> None:
        """Load a provisional tree again: a few times, and then only as long as it is used."""
        last = len(_RECHECK_DELAYS) - 1
        await trio.sleep(_RECHECK_DELAYS[min(mounted.rechecks, last)])
        mounted.is_recheck_scheduled = False
        is_wanted = mounted.rechecks <= last or mounted.was_used
        if is_wanted and self._table.is_listed(mounted) and mounted.version.is_provisional:
            mounted.rechecks += 1
            mounted.was_used = False
            self.start_load(mounted)


async def _is_same(version: TreeVersion, tree: Tree) -> bool:
    """Whether a tree has the files that a version shows: same names, sizes and places."""
    assert version.tree is not None
    both = (version.tree.skyfile.listing.packed, tree.skyfile.listing.packed)
    if len(both[0]) != len(both[1]):
        return False
    one, other = [await off_loop(partial(blake2b, each), len(each)) for each in both]
    return one.digest() == other.digest()
