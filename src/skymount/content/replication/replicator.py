"""Brings content to a further portal, where it gets the same skylink."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial

import trio
from cachetools import LRUCache

from skymount.concurrency import in_thread, off_loop
from skymount.content.cache.memory_cache import Data
from skymount.content.fetch.reader import ContentFile, ContentReader
from skymount.content.model.skyfile import Skyfile, Verified
from skymount.content.replication.sector_layout import mismatch, uses_one_piece
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
from skymount.wire.base_sector import CIPHER_PLAIN
from skymount.wire.http.responses import UploadResult
from skymount.wire.skylink import Skylink
from skymount.wording import readable_size

SIZE_LIMIT = 64 << 30
"""Bytes of content that are brought to a further portal; more is not sent."""

_SMALL_METADATA = 48 << 10
"""Bytes of metadata that are planned with in a thread, which holds the GIL. Longer ones go to a
worker process.
"""

_READ_SIZE = 1 << 20  # bytes of the payload that are read at a time
_REMEMBERED = 1024  # contents that a portal stores under another skylink
_PIECE = 128 << 10  # bytes of the body that are sent at a time; the time-out is for each

Progress = Callable[[int, int | None], None]
"""Told how many bytes of how many have been sent."""


class Replicator:
    """Uploads what the portals have, one content at a time, in little memory."""

    def __init__(
        self,
        portals: Portals,
        reader: ContentReader,
        size_limit: int = SIZE_LIMIT,
    ) -> None:
        self._portals = portals
        self._reader = reader
        self._size_limit = size_limit
        self._slot = trio.CapacityLimiter(1)
        self._renamed: LRUCache[tuple[Skylink, PortalReader], str] = LRUCache(_REMEMBERED)
        """What portals store under another skylink: it is not sent to them again."""
        self._use_one_piece: dict[PortalReader, bool | None] = {}

    async def replicate(self, skylink: Skylink, portal: PortalReader) -> None:
        """Bring content to a portal, unless it has it already.

        UnreplicableError if it cannot be read, or cannot keep its skylink there; PortalError if the
        portal does not take it.
        """
        if await self._has(portal, skylink):
            return
        self._check_link(skylink, portal)
        async with self._slot:
            try:
                skyfile = await self._reader.load(skylink)
            except PortalError as error:
                raise _unreadable(skylink, error) from None
            await self.send(skyfile, portal, self._reader)

    async def send(
        self,
        skyfile: Skyfile,
        portal: PortalReader,
        reader: ContentReader,
        progress: Progress | None = None,
    ) -> None:
        """Send content to a portal, whether it has it or not; errors are those of `replicate`."""
        skylink = skyfile.skylink
        self.check(skyfile, portal)
        await self._check_layout(skyfile, portal)
        result = await self._upload(skyfile, portal, reader, progress)
        if result.skylink != skylink:
            reason = f"{portal.url} stores {skylink} as {result.skylink}"
            self._renamed[skylink, portal] = reason
            raise UnreplicableError(reason)

    def _check_link(self, skylink: Skylink, portal: PortalReader) -> None:
        """UnreplicableError for a skylink that no upload to the portal gets."""
        if (skylink, portal) in self._renamed:
            raise UnreplicableError(self._renamed[skylink, portal])
        if skylink.version != 1 or skylink.offset:
            reason = "it is no content" if skylink.version != 1 else "it lies in a packed sector"
            raise _cannot(skylink, reason)

    async def _has(self, portal: PortalReader, skylink: Skylink) -> bool:
        try:
            await self._portals.attempt(portal, lambda client: client.head(skylink))
        except NotFoundError:
            return False
        return True

    async def _upload(
        self,
        skyfile: Skyfile,
        portal: PortalReader,
        reader: ContentReader,
        progress: Progress | None,
    ) -> UploadResult:
        async with AsyncExitStack() as stack:
            try:
                plan = await stack.enter_async_context(self._planned(skyfile))
            except PortalError as error:
                raise _unreadable(skyfile.skylink, error) from None
            payload = stack.enter_context(closing(reader.open(skyfile, 0, skyfile.size)))
            try:
                return await self._portals.attempt(portal, _Body(plan, payload, progress).post)
            except _SourceError as error:
                raise _unreadable(skyfile.skylink, error.reason) from None

    def check(self, skyfile: Skyfile, portal: PortalReader) -> None:
        """UnreplicableError unless the content is proved, is not too large, and can keep its
        skylink as far as that is known without asking the portal.
        """
        skylink, layout = skyfile.skylink, skyfile.layout
        self._check_link(skylink, portal)
        if skyfile.verified is not Verified.YES or skyfile.is_provisional:
            raise _cannot(skylink, "no portal proves that it is the content")
        if skyfile.size > self._size_limit:
            raise _cannot(
                skylink,
                f"it has more than {readable_size(self._size_limit)}",
            )
        if layout is not None and layout.cipher != CIPHER_PLAIN:
            raise _cannot(skylink, "it is stored as uploads before April 2020 were")

    async def _check_layout(self, skyfile: Skyfile, portal: PortalReader) -> None:
        """UnreplicableError if the portal is known to store large content in another layout."""
        if skyfile.inline or skyfile.layout is None:
            return
        if portal not in self._use_one_piece:
            self._use_one_piece[portal] = await self._portals.attempt(portal, uses_one_piece)
        reason = mismatch(skyfile.layout, self._use_one_piece[portal])
        if reason:
            raise _cannot(skyfile.skylink, f"{reason} ({portal.url})")

    @asynccontextmanager
    async def _planned(self, skyfile: Skyfile) -> AsyncIterator[UploadPlan]:
        boundary = secrets.token_hex(16)
        async with open_memory_file() as planned:
            async with self._reader.loader.open_metadata(skyfile) as (metadata, start):
                try:
                    await _plan(metadata, start, planned, skyfile.size, boundary)
                except MalformedError as error:
                    raise _cannot(skyfile.skylink, str(error)) from None
            yield UploadPlan.read(planned.get, len(planned))


def _cannot(skylink: Skylink, reason: str) -> UnreplicableError:
    return UnreplicableError(f"{skylink} cannot be uploaded again: {reason}")


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
    progress: Progress | None
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
        report = None if self.progress is None else partial(self._report, self.progress)
        return _BodyStream(self.plan.parts(), self.payload, report)

    def _report(self, progress: Progress, sent: int) -> None:
        progress(sent, self.size)

    async def post(self, portal: PortalReader) -> UploadResult:
        return await post(portal.http, self, portal.options)


class _BodyStream:
    """An iteration over a body. Not a generator, as httpx does not close it when sending fails."""

    def __init__(
        self,
        parts: Iterator[tuple[bytes, int]],
        payload: ContentFile,
        report: Callable[[int], None] | None,
    ) -> None:
        self._parts = parts
        self._payload = payload
        self._report = report
        self._sent = 0
        self._left = 0  # bytes of the payload until the next text
        self._offset = 0  # in the payload, of what is read next
        self._held: Data = b""

    def __aiter__(self) -> "_BodyStream":
        return self

    async def __anext__(self) -> bytes:
        if self._sent and self._report is not None:  # the previous bytes have been sent
            self._report(self._sent)
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
        self._sent += len(piece)
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
