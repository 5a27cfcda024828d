"""Since when a name that moves leads where it does: the time of its files (semantics.md, S7)."""

import logging
import math
import time
from collections.abc import Awaitable, Callable

from skymount.errors import StorageError
from skymount.fs.skylinks.mounted_name import MountedName
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)

NameSince = Callable[[str, str], Awaitable[int]]
"""Notes that a name leads to a skylink; returns since when, in seconds, and may raise StorageError.
"""


class NameTimes:
    """The times of the names of one subtree, which `since` keeps."""

    def __init__(
        self, since: NameSince, directory: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._since = since
        self._directory = directory
        self._clock = clock
        self._mounted_at = math.ceil(clock())

    async def mtime_ns(self, mounted: MountedName, target: Skylink) -> int:
        """Return the time of what a name leads to now; that of the mount if none can be kept."""
        try:
            seconds = await self._since(f"{self._directory}/{mounted.name}", str(target))
        except StorageError as error:
            log.warning("%s: its time is not kept: %s", mounted.name, error)
            seconds = self._mounted_at
        before = mounted.version
        if not before.is_empty and before.target != target:
            # Holds by itself where times are kept.
            least = before.mtime_ns // 10**9 + 1
            seconds = seconds if seconds >= least else max(least, math.ceil(self._clock()))
        return seconds * 10**9
