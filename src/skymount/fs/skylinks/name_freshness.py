"""What a name shows now, and for how long that surely holds; brings names up to date."""

import trio

from skymount.errors import NotFoundError
from skymount.fs.skylinks.mounted_name import LoadState, MountedName, TreeVersion
from skymount.fs.skylinks.name_loader import NameLoader
from skymount.fs.skylinks.name_table import NameTable
from skymount.fs.skylinks.revalidation import BackgroundRevalidation
from skymount.fs.subtree import IMMUTABLE_TIMEOUT
from skymount.portal.registry.name_resolver import NEGATIVE_TTL, NameResolver


class NameFreshness:
    """The freshness of the names in one table."""

    def __init__(
        self, table: NameTable, loader: NameLoader, resolver: NameResolver, nursery: trio.Nursery
    ) -> None:
        self._table = table
        self._loader = loader
        self._resolver = resolver
        self._background = BackgroundRevalidation(
            nursery, resolver, table.is_listed, loader.start_load
        )

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
        is_shown = mounted.version.target == version.target and self._table.is_listed(mounted)
        return mounted.moves and not (is_shown and not self._resolver.cached(mounted.goal).stale)

    async def revalidate(self, mounted: MountedName, limit: float) -> None:
        """Bring a name up to date; wait for `limit` seconds at most, once for each load.

        Afterwards its version is what to show; PortalError when there is nothing.
        """
        mounted.was_used = True
        self._table.touch(mounted.version)
        if self.ttl(mounted):
            self._background.schedule(mounted)
            return
        self._check_not_absent(mounted)
        ended = self._loader.start_load(mounted)
        if mounted.load_state is not LoadState.SLOW:
            await self._loader.wait(mounted, limit)
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
            self._loader.load_failed(mounted, error)
            raise error
