"""Since when a name that moves leads where it does: the time of its files (semantics.md, S7)."""

import logging
import math
import time
from collections.abc import Awaitable, Callable

import trio
from cachetools import LRUCache

from skymount.errors import StorageError
from skymount.fs.skylinks.mounted_name import MountedName
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)

NameSince = Callable[[str, str], Awaitable[int]]
"""Notes that a name leads to a skylink; returns since when, in seconds, and may raise StorageError.
"""

_KNOWN_LIMIT = 10_000  # names whose time is in memory
_LIMIT = 2.0  # seconds to wait for it to be kept


class NameTimes:
    """The times of the names of one subtree, which `since` keeps."""

    def __init__(
        self, since: NameSince, directory: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._since = since
        self._directory = directory
        self._clock = clock
        self._mounted_at = math.ceil(clock())
        self._known: LRUCache[str, tuple[Skylink, int]] = LRUCache(_KNOWN_LIMIT)

    async def mtime_ns(self, mounted: MountedName, target: Skylink) -> int:
        """Return the time of what a name leads to now; that of the mount if none can be kept."""
        name = f"{self._directory}/{mounted.name}"
        seconds = None
        with trio.move_on_after(_LIMIT):
            try:
                seconds = await self._since(name, str(target))
            except StorageError as error:
                log.warning("%s: its time is not kept: %s", mounted.name, error)
        if seconds is None:
            seconds = self._of_this_mount(name, mounted, target)
        self._known[name] = target, seconds
        return seconds * 10**9

    def _of_this_mount(self, name: str, mounted: MountedName, target: Skylink) -> int:
        before, seconds = self._known.get(name, (None, 0))
        if before == target:
            return seconds
        if before is None and mounted.version.is_empty:
            return self._mounted_at
        shown = mounted.version.mtime_ns // 10**9
        return max(seconds + 1, shown + 1, math.ceil(self._clock()))
