"""Owns SkyDB as a mount sees it: the JSON document behind a registry entry, as text to read and to
write, verified like all content.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

import trio
from cachetools import LRUCache

from skymount.concurrency import in_thread, in_turns
from skymount.content.fetch.reader import ContentReader
from skymount.content.model.skyfile import Skyfile, Verified, VerifyPolicy
from skymount.content.skydb.document_text import READING, WRITING, as_text, split, written
from skymount.content.worker.shared_memory import (
    LongText,
    MemoryFile,
    open_memory_file,
    text_of,
)
from skymount.content.worker.worker_process import run_worker
from skymount.errors import BadContentError, InvalidDocumentError, MalformedError, SkymountError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import UploadBody, send
from skymount.portal.failover import Portals
from skymount.portal.registry.entry_state import EntryState
from skymount.portal.registry.revision_marks import EntryId
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import linked_skylink
from skymount.wire.skydb_document import DOCUMENT_LIMIT, document_name
from skymount.wire.skylink import Skylink

_ASKED = 256  # entries of a listing of which nothing is known that are asked for
_ASKING = 2.0  # seconds that this may take
_TEXTS = "skymount.content.skydb.document_text"
_READ_SIZE = 1 << 20  # bytes of a document that are read at once

_SMALL = 128 << 10
"""Bytes of a document that a thread takes: json lets nobody else run meanwhile, for 2 ms. More is
for a worker process, whose start costs 0.1 s.
"""

_CACHE = 64 << 20  # bytes of documents' text that are kept in memory

Text = bytes | LongText


@dataclass(frozen=True, slots=True)
class Document:
    """A document at some time: its entry, and its text."""

    entry: EntryState
    data: Text | None
    """JSON over several lines, with a line feed at its end; None when there is no document."""
    verified: Verified = Verified.NO
    """How far the text was checked against the skylink in the entry."""
    is_own: bool = False
    """Whether the text was written here and not read back."""

    @property
    def revision(self) -> int:
        """The entry's revision, -1 when it is absent."""
        return self.entry.revision

    @property
    def requested_at(self) -> float:
        """When the request for the entry was begun, by trio's clock."""
        return self.entry.requested_at

    @property
    def seen_at(self) -> float:
        """When this machine first saw this revision, in seconds since 1970."""
        return self.entry.seen_at


class _Text(NamedTuple):
    """The text of a document, and how far that was checked."""

    data: Text
    verified: Verified = Verified.NO
    is_own: bool = False
    """Whether it was written here and not read back: the skylink is the portal's word so far."""


class Documents:
    """The documents of all registry keys."""

    limit = DOCUMENT_LIMIT
    """Bytes of one document's text."""

    def __init__(
        self,
        entries: VerifiedRegistry,
        reader: ContentReader,
        portals: Portals,
        policy: VerifyPolicy = VerifyPolicy.AVAILABLE,
        cache: int = _CACHE,
    ) -> None:
        self._entries = entries
        self._reader = reader
        self._portals = portals
        self._policy = policy
        self._texts: LRUCache[Skylink, _Text] = LRUCache(cache, getsizeof=_size)
        self._in_use: WeakValueDictionary[tuple[Skylink, Verified], LongText]
        self._in_use = WeakValueDictionary()
        self._turn = trio.CapacityLimiter(1)  # a large document takes a gigabyte, and a processor

    async def public_keys(self) -> list[bytes]:
        """Return the keys of which entries were used here."""
        return await self._entries.public_keys()

    async def names(self, public_key: bytes) -> list[EntryId]:
        """Return the entries of a key that were used here, less those that are no documents.

        What is not known of them is asked for, but not for long.
        """
        found = await self._entries.names(public_key)
        unknown = [ref async for ref in in_turns(found) if self._entries.recall(ref) is None]
        with trio.move_on_after(_ASKING):
            async with trio.open_nursery() as nursery:
                for ref in unknown[:_ASKED]:
                    nursery.start_soon(self._ask, ref)
        return [ref async for ref in in_turns(found) if self._may_be_document(ref)]

    async def _ask(self, ref: EntryId) -> None:
        with suppress(SkymountError):  # what fails here is reported where the file is used
            await self._entries.read(ref, math.inf)

    def _may_be_document(self, ref: EntryId) -> bool:
        state = self._entries.recall(ref)
        return state is None or (state.data is not None and linked_skylink(state.data) is not None)

    def recall(self, ref: EntryId) -> Document | None:
        """Return what is remembered of a document, of any age. No IO."""
        state = self._entries.recall(ref)
        if state is None:
            return None
        skylink = None if state.data is None else linked_skylink(state.data)
        if skylink is None:
            return Document(state, None)
        text = self._known(skylink)
        return None if text is None else Document(state, *text)

    async def read(self, ref: EntryId, max_age: float = 0.0) -> Document:
        """Return a document as of now, or as it was at most so many seconds ago.

        An entry that holds something else is no document. BadContentError when it leads to none.
        """
        state = await self._entries.read(ref, max_age)
        skylink = None if state.data is None else linked_skylink(state.data)
        if skylink is None:
            return Document(state, None)
        if skylink.version != 1:
            raise BadContentError(f"the entry {ref} does not lead to a document")
        text = self._known(skylink)
        if text is None or text.is_own:
            text = await self._fetch(skylink, ref)
        return Document(state, *text)

    def _known(self, skylink: Skylink) -> _Text | None:
        """Return a text that is kept, or that somebody has open."""
        if (text := self._texts.get(skylink)) is not None:
            return text
        for verified in Verified:
            if (data := self._in_use.get((skylink, verified))) is not None:
                return _Text(data, verified)
        return None

    async def _fetch(self, skylink: Skylink, ref: EntryId) -> _Text:
        skyfile = await self._reader.load(skylink)
        if skyfile.size > DOCUMENT_LIMIT:
            raise BadContentError(f"the document of {ref} is longer than {DOCUMENT_LIMIT} bytes")
        try:
            text = _Text(await self._text(skyfile), skyfile.verified)
        except MalformedError as error:
            raise BadContentError(f"the document of {ref}: {error}") from None
        if not skyfile.provisional:
            self._keep(skylink, text)
        return text

    async def _text(self, skyfile: Skyfile) -> Text:
        """Return the text of what was uploaded."""
        if skyfile.size <= _SMALL:
            body = await self._reader.read(skyfile, 0, skyfile.size) if skyfile.size else b""
            return await in_thread(partial(as_text, bytes(body)))
        async with open_memory_file() as file:
            for at in range(0, skyfile.size, _READ_SIZE):
                size = min(_READ_SIZE, skyfile.size - at)
                piece = await self._reader.read(skyfile, at, size)
                await in_thread(partial(file.put, piece, at))
            async with self._worker(file, READING) as found:
                return await in_thread(partial(text_of, found))

    @asynccontextmanager
    async def _worker(self, given: MemoryFile, work: str) -> AsyncIterator[MemoryFile]:
        """Yield what a worker makes of the content of a file."""
        async with open_memory_file() as output:
            async with self._turn:
                await run_worker(_TEXTS, "the document", given, output, work)
            yield output

    def _keep(self, skylink: Skylink, text: _Text) -> None:
        if isinstance(text.data, LongText) and not text.is_own:
            self._in_use[skylink, text.verified] = text.data
        if _size(text) <= self._texts.maxsize:
            self._texts[skylink] = text

    async def write(
        self, ref: EntryId, pair: SigningKeyPair, data: Text | bytearray, base: Document | None
    ) -> Document:
        """Upload a document, then point its entry at it; as `VerifiedRegistry.write`.

        InvalidDocumentError when it is not JSON, BadContentError when it is made from a text that
        was not verified; then nothing is sent.
        """
        if base is not None:
            self.check(ref, base)
        try:
            body, text = await self._written(data)
        except MalformedError as error:
            raise InvalidDocumentError(str(error)) from None
        hashed = ref.data_key is None
        name = document_name(ref.tweak.hex() if hashed else str(ref.data_key), hashed)

        async def upload(portal: PortalReader) -> Skylink:
            return (await send(portal.transport, UploadBody.of_document(body, name))).skylink

        skylink = await self._portals.first(upload)
        state = await self._entries.write(
            ref, pair, bytes(skylink), None if base is None else base.entry
        )
        own = _Text(text, is_own=True)
        self._keep(skylink, own)
        return Document(state, *own)

    async def has_pending(self, ref: EntryId) -> bool:
        """As `VerifiedRegistry.has_pending`."""
        return await self._entries.has_pending(ref)

    def check(self, ref: EntryId, base: Document) -> None:
        """BadContentError for a text that is not to be signed in part: it may be a portal's lie."""
        is_known = base.data is None or base.is_own or base.verified is Verified.YES
        if not is_known and self._policy is not VerifyPolicy.OFF:
            raise BadContentError(
                f"the document of {ref} could not be checked against its skylink: no change of a "
                "part of it is signed; write it as a whole"
            )

    async def _written(self, data: Text | bytearray) -> tuple[bytes, Text]:
        """Return what is uploaded for a text, and how that is shown."""
        if len(data) <= _SMALL:
            both = await in_thread(partial(written, bytes(data)))
            return split(lambda start, size: both[start : start + size], len(both))
        async with open_memory_file() as file:
            await in_thread(partial(file.put, data))
            async with self._worker(file, WRITING) as found:
                body, text = await in_thread(partial(split, found.get, len(found)))
        async with open_memory_file() as file:
            await in_thread(partial(file.put, text))
            return body, await in_thread(partial(text_of, file))

    async def delete(self, ref: EntryId, pair: SigningKeyPair) -> EntryState:
        """Delete a document's entry."""
        return await self._entries.delete(ref, pair)


def _size(text: _Text) -> int:
    return len(text.data)
