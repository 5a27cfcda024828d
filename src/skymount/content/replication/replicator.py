"""Brings content to a further portal, where it gets the same skylink."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial

import trio
from cachetools import LRUCache

from skymount.concurrency import in_thread, off_loop
from skymount.content.cache.memory_cache import Data
from skymount.content.fetch.reader import ContentFile, ContentReader
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import Skyfile, Verified
from skymount.content.replication.upload_plan import PLANNING, UploadPlan, plan_upload
from skymount.content.worker.shared_memory import MemoryFile, open_memory_file
from skymount.content.worker.worker_process import run_worker
from skymount.errors import (
    MalformedError,
    NotFoundError,
    PortalError,
    SkymountError,
    UnreplicableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import post
from skymount.portal.failover.portals import Portals
from skymount.wire.http.responses import UploadResult
from skymount.wire.skylink import Skylink

SIZE_LIMIT = 64 << 30
"""Bytes of content that are brought to a further portal; more is not sent."""

_SMALL_METADATA = 48 << 10
"""Bytes of metadata that are planned with in a thread, which holds the GIL. Longer ones go to a
worker process.
"""

_READ_SIZE = 1 << 20  # bytes of the payload that are read at a time
_REMEMBERED = 1024  # contents that a portal stores under another skylink
_PIECE = 128 << 10  # bytes of the body that are sent at a time; the time-out is for each


class Replicator:
    """Uploads what the portals have, one content at a time, in little memory."""

    def __init__(
        self,
        portals: Portals,
        reader: ContentReader,
        loader: SkyfileLoader,
        size_limit: int = SIZE_LIMIT,
    ) -> None:
        self._portals = portals
        self._reader = reader
        self._loader = loader
        self._size_limit = size_limit
        self._slot = trio.CapacityLimiter(1)
        self._renamed: LRUCache[tuple[Skylink, PortalReader], str] = LRUCache(_REMEMBERED)
        """What portals store under another skylink: it is not sent to them again."""

    async def replicate(self, skylink: Skylink, portal: PortalReader) -> None:
        """Bring content to a portal, unless it has it already.

        UnreplicableError if it cannot be read, or cannot keep its skylink there; PortalError if the
        portal does not take it.
        """
        if await self._has(portal, skylink):
            return
        if (skylink, portal) in self._renamed:
            raise UnreplicableError(self._renamed[skylink, portal])
        if skylink.version != 1 or skylink.offset:
            reason = "it is no content" if skylink.version != 1 else "it lies in a packed sector"
            raise UnreplicableError(f"{skylink} cannot be uploaded again: {reason}")
        async with self._slot:
            result = await self._upload(skylink, portal)
        if result.skylink != skylink:
            reason = f"{portal.url} stores {skylink} as {result.skylink}"
            self._renamed[skylink, portal] = reason
            raise UnreplicableError(reason)

    async def _has(self, portal: PortalReader, skylink: Skylink) -> bool:
        try:
            await self._portals.ask_once(portal, lambda client: client.head(skylink))
        except NotFoundError:
            return False
        return True

    async def _upload(self, skylink: Skylink, portal: PortalReader) -> UploadResult:
        async with AsyncExitStack() as stack:
            try:
                skyfile = await self._reader.load(skylink)
                self._check(skyfile)
                plan = await stack.enter_async_context(self._planned(skyfile))
            except PortalError as error:
                raise _unreadable(skylink, error) from None
            payload = stack.enter_context(closing(self._reader.open(skyfile, 0, skyfile.size)))
            try:
                return await self._portals.ask_once(portal, _Body(plan, payload).post)
            except _SourceError as error:
                raise _unreadable(skylink, error.reason) from None

    def _check(self, skyfile: Skyfile) -> None:
        """UnreplicableError unless the content is proved, and not too large."""
        cannot = f"{skyfile.skylink} cannot be uploaded again"
        if skyfile.verified is not Verified.YES or skyfile.is_provisional:
            raise UnreplicableError(f"{cannot}: no portal proves that it is the content")
        if skyfile.size > self._size_limit:
            limit = f"more than {self._size_limit}"
            raise UnreplicableError(f"{cannot}: it has {skyfile.size} bytes, {limit}")

    @asynccontextmanager
    async def _planned(self, skyfile: Skyfile) -> AsyncIterator[UploadPlan]:
        boundary = secrets.token_hex(16)
        async with open_memory_file() as planned:
            async with self._loader.open_metadata(skyfile) as (metadata, start):
                try:
                    await _plan(metadata, start, planned, skyfile.size, boundary)
                except MalformedError as error:
                    raise UnreplicableError(
                        f"{skyfile.skylink} cannot be uploaded again: {error}"
                    ) from None
            yield UploadPlan.read(planned.get, len(planned))


def _unreadable(skylink: Skylink, error: SkymountError) -> UnreplicableError:
    return UnreplicableError(f"{skylink} cannot be read: {error}")


async def _plan(
    metadata: MemoryFile, start: int, planned: MemoryFile, size: int, boundary: str
) -> None:
    length = len(metadata) - start
    if length > _SMALL_METADATA:
        what = (str(size), boundary)
        await run_worker(PLANNING, "the metadata", metadata, planned, *what, start=start)
        return
    raw = metadata.get(start, length)
    made = await off_loop(partial(_joined_plan, raw, size, boundary), length)
    await in_thread(partial(planned.put, made))


def _joined_plan(raw: bytes, size: int, boundary: str) -> bytes:
    return b"".join(plan_upload(raw, size, boundary))


class _SourceError(Exception):
    """The content could not be read: not the fault of the portal that it is sent to."""

    def __init__(self, reason: SkymountError) -> None:
        super().__init__()
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Body:
    """The body of a planned upload; each iteration reads the content again."""

    plan: UploadPlan
    payload: ContentFile
    dirname: str = ""

    @property
    def query(self) -> tuple[tuple[str, str], ...]:
        return self.plan.query

    @property
    def size(self) -> int:
        return self.plan.size

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": self.plan.media_type, "Content-Length": str(self.size)}

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _BodyStream(self.plan.parts(), self.payload)

    async def post(self, portal: PortalReader) -> UploadResult:
        return await post(portal.http, self, portal.options)


class _BodyStream:
    """An iteration over a body. Not a generator, as httpx does not close it when sending fails."""

    def __init__(self, parts: Iterator[tuple[bytes, int]], payload: ContentFile) -> None:
        self._parts = parts
        self._payload = payload
        self._left = 0  # bytes of the payload until the next text
        self._offset = 0  # in the payload, of what is read next
        self._held: Data = b""

    def __aiter__(self) -> "_BodyStream":
        return self

    async def __anext__(self) -> bytes:
        piece = bytearray()
        while len(piece) < _PIECE:
            if self._left:
                data = await self._take(min(self._left, _PIECE - len(piece)))
                self._left -= len(data)
                piece += data
                continue
            text, self._left = next(self._parts, (b"", 0))
            if not text and not self._left:
                break
            piece += text
        if not piece:
            raise StopAsyncIteration
        return bytes(piece)

    async def _take(self, most: int) -> memoryview:
        """Return at least one byte of the payload."""
        if not self._held:
            try:
                found = self._payload.ready(self._offset, _READ_SIZE)
                if found is None:
                    found = await self._payload.wait(self._offset, _READ_SIZE)
            except SkymountError as error:
                raise _SourceError(error) from error
            self._offset += len(found)
            self._held = found
        held = memoryview(self._held)
        self._held = held[most:]
        return held[:most]
