"""What leaves the portal, and what must stay: pins, removals, and the sweep of what is old."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import trio

from skymount.errors import StorageError
from skymount.server.storage.interfaces import Catalogue, ContentStore
from skymount.wire.skylink import Skylink
from skymount.wording import counted, readable_size

_log = logging.getLogger(__name__)

_STEP = 50  # skyfiles that are looked at before other work goes on
_PAUSE = (1.0, 3600.0)  # seconds between two sweeps, at least and at most
_PER_KEEP = 20  # sweeps in the time that content is kept


@dataclass(slots=True)
class Swept:
    """What a sweep removed."""

    skyfiles: int = 0
    bytes: int = 0


class Pins(Protocol):
    """What must stay; `pin_store` keeps it on this disk. Everything blocks; StorageError."""

    def pin(self, skylink: Skylink, reason: str, pinned: float | None = None) -> bool:
        """Return False if the skyfile is known not to be here; then nothing is pinned."""

    def unpin(self, skylink: Skylink) -> bool:
        """Return whether it was pinned."""

    def is_pinned(self, skylink: Skylink) -> bool: ...


class Retention:
    """Decides for one portal. Pins and removals wait for each other: nothing pinned is removed.

    Where other processes decide as well, `store` and `pins` see to that.
    """

    def __init__(self, store: ContentStore, catalogue: Catalogue, pins: Pins) -> None:
        self._store = store
        self._catalogue = catalogue
        self._pins = pins
        self._deciding = trio.Lock()
        self._watchers: list[Callable[[Skylink], None]] = []

    def on_change(self, forget: Callable[[Skylink], None]) -> None:
        """Have a function called with each skyfile that was removed or stored just now."""
        self._watchers.append(forget)

    def changed(self, skylink: Skylink) -> None:
        """Say that what was read of a skyfile before may be out of date."""
        for forget in self._watchers:
            forget(skylink)

    async def pin(self, skylink: Skylink, reason: str = "", pinned: float | None = None) -> bool:
        """Pin a skyfile; False if it is not here. Durable once this returns."""

        def pin() -> bool:
            if self._store.find(skylink) is None:
                return False
            return self._pins.pin(skylink, reason, pinned)

        async with self._deciding:
            return await trio.to_thread.run_sync(pin)

    async def unpin(self, skylink: Skylink) -> bool:
        """Return whether it was pinned."""
        async with self._deciding:
            return await trio.to_thread.run_sync(self._pins.unpin, skylink)

    async def remove(self, skylink: Skylink, *, even_pinned: bool = False) -> str:
        """Remove a skyfile, and its pin; return "removed", "absent" or "pinned"."""
        async with self._deciding:
            if even_pinned:
                await trio.to_thread.run_sync(self._pins.unpin, skylink)
            elif await trio.to_thread.run_sync(self._pins.is_pinned, skylink):
                return "pinned"
            is_removed = await self._remove(skylink)
        return "removed" if is_removed else "absent"

    async def _remove(self, skylink: Skylink, before: float | None = None) -> bool:
        is_removed = await self._catalogue.remove(skylink, before)
        self.changed(skylink)
        return is_removed

    async def sweep(self, before: float) -> Swept:
        """Remove what was stored before a time and is not pinned, a few at a time. The time is
        that of this machine's clock, even if it is wrong.

        What cannot be removed is passed over; then StorageError at the end.
        """
        before += await self._catalogue.clock_ahead()
        swept, failures = Swept(), list[StorageError]()
        after: tuple[float, Skylink] | None = None
        while rows := await self._catalogue.older(before, after, _STEP):
            for row in rows:
                try:
                    is_removed = await self._sweep_one(row.skylink, before)
                except StorageError as error:
                    failures.append(error)
                    continue
                if is_removed:
                    swept.skyfiles += 1
                    swept.bytes += row.disk
            after = rows[-1].stored, rows[-1].skylink
        if failures:
            raise StorageError(
                f"removed {counted(swept.skyfiles, 'skyfile')}, {len(failures)} could not be "
                f"removed: {failures[0]}"
            )
        return swept

    async def _sweep_one(self, skylink: Skylink, before: float) -> bool:
        async with self._deciding:
            if await trio.to_thread.run_sync(self._pins.is_pinned, skylink):
                return False
            return await self._remove(skylink, before)

    async def keep_sweeping(
        self, keep: float, alone: Callable[[], AbstractAsyncContextManager[bool]]
    ) -> None:
        """Sweep what is older than `keep` seconds, again and again, unless `alone` says that
        another process is at it.
        """
        while True:
            await self._catalogue.wait_complete()
            swept = Swept()
            try:
                async with alone() as is_alone:
                    if is_alone:
                        swept = await self.sweep(time.time() - keep)
            except StorageError as error:
                _log.warning("what is old could not be removed: %s", error)
            else:
                if swept.skyfiles:
                    skyfiles = counted(swept.skyfiles, "skyfile")
                    _log.info("removed %s, %s", skyfiles, readable_size(swept.bytes))
            await trio.sleep(min(max(keep / _PER_KEEP, _PAUSE[0]), _PAUSE[1]))
