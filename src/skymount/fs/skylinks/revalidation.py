"""Resolves names in use again before their time is over, so that no lookup waits for it."""

import math
from collections.abc import Callable

import trio

from skymount.fs.skylinks.mounted_name import MountedName
from skymount.portal.registry.name_resolver import NameResolver


class BackgroundRevalidation:
    """The names of one table. `start_load` shows what a name leads to, once that is loaded."""

    def __init__(
        self,
        nursery: trio.Nursery,
        resolver: NameResolver,
        is_listed: Callable[[MountedName], bool],
        start_load: Callable[[MountedName], trio.Event],
    ) -> None:
        self._nursery = nursery
        self._resolver = resolver
        self._is_listed = is_listed
        self._start_load = start_load

    def schedule(self, mounted: MountedName) -> None:
        """Have a name that was looked up resolved again, once, shortly before its time is over."""
        if mounted.moves and not mounted.is_revalidation_scheduled:
            mounted.is_revalidation_scheduled = True
            self._nursery.start_soon(self._run, mounted)

    async def _run(self, mounted: MountedName) -> None:
        known = self._resolver.cached(mounted.goal)
        delay = self._resolver.refresh_in(mounted.goal)
        try:
            if delay is None:
                return
            await trio.sleep(delay)
            is_same = self._resolver.cached(mounted.goal) is known  # else it was resolved meanwhile
            if is_same and self._is_listed(mounted) and not mounted.is_loading:
                await self._revalidate(mounted)
        finally:
            mounted.is_revalidation_scheduled = False
            mounted.held_until = -math.inf

    async def _revalidate(self, mounted: MountedName) -> None:
        """Resolve it and load its new tree, if it leads elsewhere; it shows the old one so long."""
        left = self._resolver.revalidate_in(mounted.goal)
        mounted.held_until = trio.current_time() + left
        await self._resolver.refresh(mounted.goal)
        if self._is_listed(mounted):
            await self._start_load(mounted).wait()
