"""SkyDB documents as text to read and write, verified like all content."""

import math
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import trio
from cachetools import LRUCache

from skymount.concurrency import in_thread, in_turns
from skymount.content.fetch.reader import ContentReader
from skymount.content.model.skyfile import Skyfile, Verified, VerifyPolicy
from skymount.content.skydb.document_text import TEXT_LIMIT, as_text, written
from skymount.errors import (
    BadContentError,
    InvalidDocumentError,
    MalformedError,
    NoDocumentError,
    NotFoundError,
    SkymountError,
)
from skymount.policies import WritePolicy
from skymount.portal.client.upload import UploadBody
from skymount.portal.failover.portals import Portals
from skymount.portal.http.connection_pool import in_background
from skymount.portal.ledger.entries import EntryId
from skymount.portal.registry.entry_reader import EntryState
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.portal.uploads.upload import upload_with_entry
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import linked_skylink
from skymount.wire.skydb_document import document_name
from skymount.wire.skylink import Skylink
from skymount.wording import readable_size

_LOOKUP_LIMIT = 256  # unknown entries that a listing looks up
_LOOKUP_TIME = 2.0  # seconds that this may take
_FETCHED_AHEAD = 128 << 10  # bytes of a document that is fetched before it is read

_PATIENCE = 1.5
"""Seconds after which a portal that takes nothing is left, once enough others have a document."""

_NO_DOCUMENTS = 1000  # skylinks of which it is remembered that they lead to none
_TEXT_OVERHEAD = 512  # bytes that a cached text takes besides its characters


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it was read."""

    entry: EntryState
    data: bytes | None
    """JSON over several lines, ending with a line feed; None when there is no document."""
    verified: Verified = Verified.NO
    is_own: bool = False
    """Whether the text was written by this mount and not read back."""

    @property
    def revision(self) -> int:
        return self.entry.revision

    @property
    def answered_at(self) -> float:
        """When the answer about the entry came, by trio's clock."""
        return self.entry.answered_at

    @property
    def seen_at(self) -> float:
        """When this machine first saw this revision, in seconds since 1970."""
        return self.entry.seen_at


class _Text(NamedTuple):
    data: bytes
    verified: Verified = Verified.NO
    is_own: bool = False
    """Whether it was written by this mount and not read back: the skylink is the portal's word."""


class Documents:
    """The documents of all registry keys."""

    limit = TEXT_LIMIT

    def __init__(
        self,
        entries: VerifiedRegistry,
        reader: ContentReader,
        portals: Portals,
        policy: VerifyPolicy = VerifyPolicy.AVAILABLE,
        *,
        cache: int,
        writes: WritePolicy = WritePolicy.ANY,
    ) -> None:
        """`cache` bounds the texts kept in memory, in bytes, with what each takes besides; `writes`
        says how many portals must have a document that is written.
        """
        self._entries = entries
        self._reader = reader
        self._portals = portals
        self._policy = policy
        self._writes = writes
        self._texts: LRUCache[Skylink, _Text] = LRUCache(cache, getsizeof=_size)
        self._no_documents: LRUCache[Skylink, str] = LRUCache(_NO_DOCUMENTS)
        """Why proved content is no document."""
        self._ahead: dict[Skylink, trio.Event] = {}  # set at its end
        self._parsing = trio.CapacityLimiter(1)  # a parsed document may take 200 MiB

    async def public_keys(self) -> list[bytes]:
        return await self._entries.public_keys()

    async def names(self, public_key: bytes) -> list[EntryId]:
        """Return the entries used here that may be documents; unknown ones are looked up."""
        found = await self._entries.names(public_key)
        unknown = [ref async for ref in in_turns(found) if self._entries.recall(ref) is None]
        with trio.move_on_after(_LOOKUP_TIME), in_background():
            async with trio.open_nursery() as nursery:
                for ref in unknown[:_LOOKUP_LIMIT]:
                    nursery.start_soon(self._ask, ref)
        return [ref async for ref in in_turns(found) if self._may_be_document(ref)]

    async def _ask(self, ref: EntryId) -> None:
        with suppress(SkymountError):  # reported when the file is used
            await self._entries.read(ref, math.inf)

    def _may_be_document(self, ref: EntryId) -> bool:
        state = self._entries.recall(ref)
        return state is None or _skylink_in(state) is not None

    def recall(self, ref: EntryId) -> Document | None:
        """Return a document as it was last known, however old. No IO."""
        state = self._entries.recall(ref)
        if state is None:
            return None
        skylink = _skylink_in(state)
        if skylink is None:
            return Document(state, None)
        text = self._texts.get(skylink)
        return None if text is None else Document(state, *text)

    def recall_entry(self, ref: EntryId) -> Document | None:
        """Return the entry's own data in place of the text, whatever it leads to. No IO."""
        state = self._entries.recall(ref)
        return None if state is None else Document(state, state.data)

    async def read(
        self, ref: EntryId, max_age: float = 0.0, *, since: float = -math.inf
    ) -> Document:
        """Return a document; the arguments are those of `EntryReader.read`.

        NoDocumentError when the entry's skylink leads to something else. An entry without a skylink
        is no document.
        """
        state = await self._entries.read(ref, max_age, since=since)
        skylink = _skylink_in(state)
        if skylink is None:
            return Document(state, None)
        if skylink.version != 1:
            raise _no_document(ref, skylink, "the skylink of another entry")
        text = self._read_back(skylink)
        if text is None and skylink in self._ahead:
            await self._ahead[skylink].wait()
            text = self._read_back(skylink)
        return Document(state, *(text or await self._fetch(skylink, ref)))

    async def fetch_ahead(self, ref: EntryId, max_age: float, since: float = -math.inf) -> None:
        """Fetch a document that will be read, unless it is a large one."""
        with in_background():
            await self._fetch_ahead(ref, max_age, since)

    async def _fetch_ahead(self, ref: EntryId, max_age: float, since: float) -> None:
        skylink = _skylink_in(await self._entries.read(ref, max_age, since=since))
        if skylink is None or skylink.version != 1 or skylink in self._ahead:
            return
        if self._read_back(skylink) is None:
            ended = self._ahead[skylink] = trio.Event()
            try:
                await self._fetch(skylink, ref, _FETCHED_AHEAD)
            finally:
                del self._ahead[skylink]
                ended.set()

    def _read_back(self, skylink: Skylink) -> _Text | None:
        """Return a text that is known, unless it was only written here."""
        text = self._texts.get(skylink)
        return None if text is None or text.is_own else text

    async def _fetch(self, skylink: Skylink, ref: EntryId, limit: int = TEXT_LIMIT) -> _Text:
        if (reason := self._no_documents.get(skylink)) is not None:
            raise _no_document(ref, skylink, reason)
        skyfile = None
        try:
            skyfile = await self._reader.load(skylink)
            if skyfile.size > limit:
                raise _no_document(ref, skylink, f"longer than {readable_size(limit)}")
            text = _Text(await self._text(skyfile), skyfile.verified)
        except MalformedError as error:
            reason = str(error)
            if skyfile is not None and skyfile.verified is Verified.YES:
                self._no_documents[skylink] = reason  # it is read once: a stat needs to know
            raise _no_document(ref, skylink, reason) from None
        except NotFoundError as error:  # the name is there: its entry is
            message = f"the document of {ref} is at no portal: {error.message}"
            raise BadContentError(message, url=error.url) from None
        if not skyfile.provisional:
            self._keep(skylink, text)
        return text

    async def _text(self, skyfile: Skyfile) -> bytes:
        body = await self._reader.read(skyfile, 0, skyfile.size) if skyfile.size else b""
        async with self._parsing:
            return await in_thread(partial(as_text, bytes(body)))

    def _keep(self, skylink: Skylink, text: _Text) -> None:
        if _size(text) <= self._texts.maxsize:
            self._texts[skylink] = text

    async def write(
        self, ref: EntryId, pair: SigningKeyPair, data: bytes | bytearray, base: Document | None
    ) -> Document:
        """Upload a document, then point its entry at it; as `VerifiedRegistry.write`.

        InvalidDocumentError when it is not JSON, BadContentError when it is made from a text that
        was not verified; then nothing is sent.
        """
        if base is not None:
            self.check(ref, base)
        try:
            async with self._parsing:
                body, text = await in_thread(partial(written, data))
        except MalformedError as error:
            raise InvalidDocumentError(str(error)) from None
        hashed = ref.data_key is None
        name = document_name(ref.tweak.hex() if hashed else str(ref.data_key), hashed)

        before = None if base is None else base.entry

        async def write(skylink: Skylink, lacking: Collection[str]) -> tuple[Skylink, EntryState]:
            data = bytes(skylink)
            return skylink, await self._entries.write(ref, pair, data, before, lacking=lacking)

        skylink, state = await upload_with_entry(
            self._portals,
            UploadBody.of_document(body, name),
            self._writes.needed(len(self._portals.writable().clients)),
            write,
            patience=_PATIENCE,
            rounds=self._portals.config.rounds,
        )
        own = _Text(text, is_own=True)
        self._keep(skylink, own)
        return Document(state, *own)

    async def has_pending(self, ref: EntryId) -> bool:
        return await self._entries.has_pending(ref)

    def check(self, ref: EntryId, base: Document) -> None:
        """BadContentError if an edit of a document must not be signed, as it was not verified."""
        is_known = base.data is None or base.is_own or base.verified is Verified.YES
        if not is_known and self._policy is not VerifyPolicy.OFF:
            raise BadContentError(
                f"the document of {ref} could not be checked against its skylink: no change of a "
                "part of it is signed; write it as a whole"
            )

    async def delete(self, ref: EntryId, pair: SigningKeyPair) -> EntryState:
        return await self._entries.delete(ref, pair)


def _skylink_in(state: EntryState) -> Skylink | None:
    return None if state.data is None else linked_skylink(state.data)


def _no_document(ref: EntryId, skylink: Skylink, reason: str) -> NoDocumentError:
    return NoDocumentError(
        f"the entry {ref} leads to skylinks/{skylink}, which is no JSON document: {reason}"
    )


def _size(text: _Text) -> int:
    return len(text.data) + _TEXT_OVERHEAD
