"""Opens everything that a portal keeps on this disk."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import trio

from skymount.server.storage.entry_store import EntryStore
from skymount.server.storage.local_catalogue import LocalCatalogue
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.retention.pin_store import PinStore
from skymount.server.storage.retention.retention import Retention
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.server.storage.zone_file import ZoneFile


@asynccontextmanager
async def _alone() -> AsyncIterator[bool]:
    """Say that no other process sweeps: the directory is locked."""
    await trio.lowlevel.checkpoint()
    yield True


@asynccontextmanager
async def open_local(data: Path, keep: float = 0) -> AsyncIterator[PortalStorage]:
    """Lock the data directory and open what is in it; StorageError.

    What is older than `keep` seconds is swept away; 0 keeps everything.
    """
    content = await trio.to_thread.run_sync(SkyfileStore.open, data)
    with closing(content):
        skykeys = await trio.to_thread.run_sync(SkykeyStore.open, data)
        entries = await trio.to_thread.run_sync(EntryStore.open, data)
        with (
            closing(entries),
            closing(await trio.to_thread.run_sync(PinStore.open, data)) as pins,
            closing(await trio.to_thread.run_sync(LocalCatalogue.open, data, content)) as catalogue,
        ):
            retention = Retention(content, catalogue, pins)
            background: list[Callable[[], Awaitable[None]]] = [catalogue.maintain]
            if keep:
                background.append(partial(retention.keep_sweeping, keep, _alone))

            def check_reading() -> None:
                content.check_reading()
                entries.check_reading()

            yield PortalStorage(
                content,
                entries,
                skykeys,
                ZoneFile(data),
                catalogue,
                retention,
                check_reading,
                content.check_storing,
                tuple(background),
            )
