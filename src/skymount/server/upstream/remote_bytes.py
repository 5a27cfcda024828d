"""Bytes of upstream portals, behind the interface of stored ones. Reading blocks, for threads."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from skymount.content.cache.memory_cache import Data
from skymount.content.fetch.reader import ContentFile
from skymount.server.storage.stored_range import OpenBytes
from skymount.server.upstream.sectors import SectorCache
from skymount.server.upstream.waiting_threads import WaitingThreads
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE

_AHEAD = 2  # sectors that are fetched ahead
_ABSENT = "upstream does not have all of this content any more"


@dataclass(frozen=True, slots=True)
class SectorBytes:
    """A base sector, or another single sector."""

    name: str
    threads: WaitingThreads
    get: Callable[[], Awaitable[Data]]

    def open(self) -> OpenBytes:
        return self

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.threads.run(self.get, _ABSENT)[offset : offset + length])

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class JoinedSectors:
    """Consecutive sectors, by their joined Merkle roots."""

    name: str
    threads: WaitingThreads
    sectors: SectorCache
    roots: Callable[[], bytes]
    """Blocks."""

    def open(self) -> "_OpenSectors":
        return _OpenSectors(self, self.roots())


@dataclass(frozen=True, slots=True)
class _OpenSectors:
    source: JoinedSectors
    roots: bytes

    def read(self, offset: int, length: int) -> bytes:
        index, start = divmod(offset, SECTOR_SIZE)
        if index * ROOT_SIZE >= len(self.roots):
            return b""
        data = self.source.threads.run(partial(self._sector, index), _ABSENT)
        return bytes(data[start : start + length])

    async def _sector(self, index: int) -> Data:
        first, *ahead = (
            self.roots[at : at + ROOT_SIZE]
            for at in range(index * ROOT_SIZE, len(self.roots), ROOT_SIZE)[: 1 + _AHEAD]
        )
        self.source.sectors.fetch_ahead(ahead)
        return await self.source.sectors.sector(first)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class PayloadBytes:
    """A payload that is proved chunk by chunk."""

    name: str
    threads: WaitingThreads
    open_file: Callable[[], Awaitable[ContentFile]]
    wait_for_disk: Callable[[], Awaitable[None]]
    """Waits until what was fetched before can be kept."""

    def open(self) -> "_OpenPayload":
        return self.threads.run(self._open, _ABSENT)

    async def _open(self) -> "_OpenPayload":
        file = await self.open_file()
        return _OpenPayload(self, file, trio.lowlevel.current_trio_token())


@dataclass(frozen=True, slots=True)
class _OpenPayload:
    source: PayloadBytes
    file: ContentFile
    token: trio.lowlevel.TrioToken

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.source.threads.run(partial(self._read, offset, length), _ABSENT))

    async def _read(self, offset: int, length: int) -> Data:
        found = self.file.ready(offset, length)
        if found is not None:
            return found
        await self.source.wait_for_disk()
        return await self.file.wait(offset, length)

    def close(self) -> None:
        """Close the file, from any thread, or from the event loop."""
        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(self.file.close)
