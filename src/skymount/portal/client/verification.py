"""Owns what a portal proves of content, and the comparison of a download with that while it comes.

The base sector (wire notes 2.1, 4.7) hashes to the skylink, and holds or names all the rest. Small
content is proved without it: metadata and content make the base sector. A proof holds for whoever
has the skylink, so it is remembered. Files, requests for content and results are not known here.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import trio
from cachetools import LRUCache

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    MalformedError,
    NotFoundError,
    PortalError,
    RequestRefusedError,
)
from skymount.portal.client.base import check_range, content_request, head
from skymount.portal.http.client import HttpClient
from skymount.portal.options import PortalOptions
from skymount.portal.registry.name_resolver import proven_way
from skymount.portal.registry.revision_marks import EntryId, RevisionMarks
from skymount.portal.verify_policy import Verified, VerifyPolicy
from skymount.wire import base_sector, merkle, requests
from skymount.wire.byte_range import ByteRange
from skymount.wire.metadata import METADATA_LIMIT, Metadata, parse_metadata, select
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

T = TypeVar("T")

_KEPT = 32 << 20  # bytes of proofs that a client remembers
_FANOUT_LIMIT = 64 << 20  # bytes; the roots of 8 TiB of content
_CHUNK_LIMIT = 64 << 20  # bytes; real portals need 40 MiB (wire notes 2.3)
_AT_ONCE = 16 << 10  # bytes of metadata that are parsed without a thread

_LACKING = (NotFoundError, RequestRefusedError, AccessDeniedError)
"""What a portal says that does not give something out, whatever the reason."""

_PLAIN = ("", "concat")
"""Forms in which content is sent as it is stored."""

_OFF = "verification is off"
_NO_PROOF = "the portal hands out no proof of it, or has to decrypt it"
_NO_WAY = "the portal does not prove where the link leads"
_PACKED = "it lies in a packed sector"
_NO_FILE = "it is not one file of the content as it is stored; name a file"
_NO_REST = "the portal does not send the rest of its chunks"
_TOO_LARGE = "its chunks are too large"
NO_NAME = "what a domain leads to is the portal's word"


@dataclass(frozen=True, slots=True)
class Proof:
    """A base sector, and what was spilled from it."""

    layout: base_sector.Layout
    fanout: bytes
    metadata: bytes
    payload: bytes | None
    """The whole content, where the base sector holds it."""

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.fanout) + len(self.metadata) + len(self.payload or b"")


class Check:
    """What a download is compared with, piece by piece: this one with nothing.

    MalformedError of any method: it is not the content, or `finish` cannot find out and must.
    """

    verified = Verified.NO

    def __init__(self, why: str = "") -> None:
        self.why = why
        """Why nothing is compared, or not all of it."""

    def update(self, piece: bytes) -> None:
        """Compare the next bytes. CPU-bound: for a thread."""

    def restart(self) -> None:
        """Begin again: the first byte comes next."""

    async def finish(self) -> None:
        """Compare what is left when the last byte has come."""


class _Sized(Check):
    """Compares the number of bytes."""

    verified = Verified.PARTLY

    def __init__(self, size: int, why: str = "") -> None:
        super().__init__(why)
        self._size = size
        self._received = 0

    def update(self, piece: bytes) -> None:
        self._received += len(piece)
        if self._received > self._size:
            raise MalformedError(f"it is not the content: more than {self._size} bytes")

    def restart(self) -> None:
        self._received = 0

    async def finish(self) -> None:
        if self._received < self._size:
            missing = self._size - self._received
            raise MalformedError(f"it is not the content: {missing} bytes too few")


class _OfPayload(_Sized):
    """Compares with bytes that are here."""

    verified = Verified.YES

    def __init__(self, content: memoryview) -> None:
        super().__init__(len(content))
        self._content = content

    def update(self, piece: bytes) -> None:
        at = self._received
        super().update(piece)
        if self._content[at : self._received] != piece:
            raise MalformedError("it is not the content")


class _OfChunks(_Sized):
    """Compares chunk by chunk with the fan-out; fetches what the first and the last chunk have
    beside the extent.
    """

    verified = Verified.YES

    def __init__(
        self, proof: Proof, skylink: Skylink, offset: int, size: int, source: "_Source"
    ) -> None:
        super().__init__(size)
        self._proof = proof
        self._skylink = skylink
        self._source = source
        self._part_size = base_sector.part_size(proof.layout)
        self._offset = offset
        self._at = offset // proof.layout.chunk_size * proof.layout.chunk_size
        self._part = bytearray()
        self._hashes: list[tuple[bytes, ...]] = []
        self._begun = (self._at, b"", tuple(self._hashes))

    async def begin(self) -> None:
        """Fetch what the first chunk has before the extent."""
        if self._size:
            await self._fetch(self._offset)
        self._begun = (self._at, bytes(self._part), tuple(self._hashes))

    def update(self, piece: bytes) -> None:
        super().update(piece)
        self._feed(piece)

    def restart(self) -> None:
        super().restart()
        self._at, part, hashes = self._begun
        self._part, self._hashes = bytearray(part), list(hashes)

    async def finish(self) -> None:
        await super().finish()
        if self._part or self._hashes:
            try:
                await self._fetch(self._end)
            except (BadContentError, *_LACKING):
                if self._source.call.verify is VerifyPolicy.REQUIRE:
                    raise MalformedError(f"it cannot be verified: {_NO_REST}") from None
                self.verified, self.why = Verified.NO, _NO_REST

    @property
    def _end(self) -> int:
        """The byte after the chunk that the next byte belongs to."""
        layout = self._proof.layout
        return min((self._at // layout.chunk_size + 1) * layout.chunk_size, layout.filesize)

    async def _fetch(self, stop: int) -> None:
        """Take in the content up to a place."""
        if self._at < stop:
            wanted = ByteRange(self._at, stop)
            pieces = self._source.content(self._skylink, wanted, self._proof.layout.filesize)
            async with aclosing(pieces):
                async for piece in pieces:
                    await trio.to_thread.run_sync(self._feed, piece)

    def _feed(self, piece: bytes) -> None:
        """Hash the next bytes of the payload, which do not reach beyond it."""
        rest = memoryview(piece)
        while rest:
            end = self._end
            taken = rest[: min(self._part_size - len(self._part), end - self._at)]
            rest = rest[len(taken) :]
            index = self._at // self._proof.layout.chunk_size
            self._part += taken
            self._at += len(taken)
            if len(self._part) == self._part_size or self._at == end:
                self._hashes.append(base_sector.hash_part(self._proof.layout, bytes(self._part)))
                self._part.clear()
            if self._at == end:
                self._settle(index)

    def _settle(self, index: int) -> None:
        proof, hashes = self._proof, self._hashes
        self._hashes = []
        if not base_sector.is_authentic(proof.layout, proof.fanout, index, hashes):
            raise MalformedError(f"it is not the content: chunk {index} is another one")


@dataclass(frozen=True, slots=True)
class _Source:
    """Asks a portal for content, with the options of a call."""

    transport: HttpClient
    call: PortalOptions
    marks: RevisionMarks

    async def content(
        self, skylink: Skylink, wanted: ByteRange, size: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield a range of the payload, which has `size` bytes."""
        request = content_request(skylink, "")
        async with self.transport.open(request, self.call, byte_range=wanted) as answer:
            check_range(answer, wanted, size, named=False)
            async with aclosing(answer.pieces(len(wanted))) as pieces:
                async for piece in pieces:
                    yield piece

    async def proof(self, skylink: Skylink) -> Proof | None:
        """Ask for a proof; None when the portal gives none."""
        request = requests.base_sector(self.call.dialect, skylink)
        try:
            answer = await self.transport.fetch(request, SECTOR_SIZE, self.call)
            layout = base_sector.Layout.parse(answer.body)
        except (MalformedError, *_LACKING):  # some portals have a page for what they do not know
            return await self._rebuilt(skylink)
        if not layout.is_plain:
            return None
        try:
            return await self._checked(skylink, layout, answer.body)
        except MalformedError as error:
            raise self.transport.bad(request, self.call, str(error), answer.status) from None

    async def _checked(self, skylink: Skylink, layout: base_sector.Layout, data: bytes) -> Proof:
        if await trio.to_thread.run_sync(merkle.sector_root, data) != skylink.root:
            raise MalformedError(f"{skylink}: the base sector is not the content")
        base = base_sector.parse_base_sector(data)
        fanout, metadata = base.fanout, base.metadata
        if layout.is_extended:
            fanout, metadata = base_sector.split_body(
                layout, await self._spilled(layout, base.roots)
            )
        if not layout.is_inline:
            base_sector.check_fanout(layout, fanout)
        return Proof(layout, fanout, metadata, base.payload)

    async def _spilled(self, layout: base_sector.Layout, roots: bytes) -> bytes:
        """Fetch what did not fit the base sector, level by level, each sector checked."""
        if layout.metadata_size > METADATA_LIMIT or layout.fanout_size > _FANOUT_LIMIT:
            raise MalformedError("the metadata or the fan-out is over its limit")
        for size in base_sector.spill_sizes(layout.body_size)[1:]:
            level = bytearray()
            for at in range(0, len(roots), ROOT_SIZE):
                length = min(SECTOR_SIZE, size - len(level))
                level += await self._sector(roots[at : at + ROOT_SIZE], length)
            roots = bytes(level)
        return roots

    async def _sector(self, root: bytes, length: int) -> bytes:
        request = requests.sector(self.call.dialect, root, 0, length)
        data = (await self.transport.fetch(request, length, self.call)).body
        if len(data) != length or root != await trio.to_thread.run_sync(merkle.sector_root, data):
            raise MalformedError(f"sector {root.hex()} is not the content")
        return data

    async def _rebuilt(self, skylink: Skylink) -> Proof | None:
        """Make the base sector of small content from its parts; None when it is not of that kind.

        Its size tells whether it can be: what is encrypted has that of a whole sector.
        """
        try:
            found = await head(self.transport, skylink, self.call)
            raw = found.metadata
            if raw is None:
                request = requests.metadata(self.call.dialect, skylink)
                raw = (await self.transport.fetch(request, SECTOR_SIZE, self.call)).body
            told = found.size
            if len(raw) <= SECTOR_SIZE:
                told = (await _by_size(partial(parse_metadata, raw), len(raw))).payload_size
            size = found.size if told is None else told
            if size is None or not base_sector.fits_inline(len(raw), size):
                return None
            used = base_sector.LAYOUT_SIZE + len(raw) + size
            if Skylink.v1(skylink.root, used).bitfield != skylink.bitfield:
                return None
            request = content_request(skylink, "")
            payload = (await self.transport.fetch(request, size, self.call)).body
        except (PortalError, MalformedError):
            return None  # the download itself says what is wrong
        work = partial(base_sector.is_inline, skylink.root, raw, payload)
        if not await trio.to_thread.run_sync(work):
            text = f"{skylink}: it is not the content"
            raise self.transport.bad(request, self.call, text, None)
        return Proof(base_sector.Layout(len(payload), len(raw)), b"", raw, payload)

    async def resolved(self, link: Skylink) -> Skylink | None:
        """Ask where a v2 skylink leads; None when the portal does not prove it."""
        try:
            found = await head(self.transport, link, self.call)
        except _LACKING:
            return None
        if found.proof is None or found.skylink is None or found.skylink.version != 1:
            return None
        try:
            hops = proven_way(link, found.skylink, found.proof)
        except MalformedError as error:
            raise BadContentError(f"{link}: {error}", url=self.call.url) from None
        for hop in hops:
            ref = EntryId(hop.public_key, hop.entry.tweak)
            await self.marks.check(ref, hop, self.call.url, named=False)
        return found.skylink


class Proofs:
    """The proofs of one portal. Safe for many tasks at once."""

    def __init__(self, transport: HttpClient, marks: RevisionMarks) -> None:
        """`marks` are the revisions of registry entries that were seen before."""
        self._transport = transport
        self._marks = marks
        self._known: LRUCache[Skylink, Proof] = LRUCache(_KEPT, getsizeof=lambda proof: proof.size)
        self._turns: WeakValueDictionary[Skylink, trio.Lock] = WeakValueDictionary()

    async def find(
        self, skylink: Skylink, call: PortalOptions
    ) -> tuple[Skylink, Proof | None, str]:
        """Return the skylink to ask for, the proof of it, and why there is none.

        A v2 skylink is to be asked for as what it provably leads to. BadContentError for a proof
        that is none, and for want of one that is required.
        """
        target, found, why = await self._find(skylink, _Source(self._transport, call, self._marks))
        if found is None:
            demand(call, skylink, why)
        return target, found, why

    async def _find(self, skylink: Skylink, source: _Source) -> tuple[Skylink, Proof | None, str]:
        if source.call.verify is VerifyPolicy.OFF:
            return skylink, None, _OFF
        if skylink.version != 1:
            target = await source.resolved(skylink)
            if target is None:
                return skylink, None, _NO_WAY
            skylink = target
        if skylink.offset:
            return skylink, None, _PACKED
        async with self._turns.setdefault(skylink, trio.Lock()):
            found = self._known.get(skylink)
            if found is None:
                found = await source.proof(skylink)
                if found is not None and found.size <= _KEPT:
                    self._known[skylink] = found
        return skylink, found, "" if found else _NO_PROOF

    async def begin(
        self, skylink: Skylink, path: str, call: PortalOptions, archive: str = ""
    ) -> tuple[Skylink, Check, Proof | None]:
        """Return the skylink to download, what to compare the download with, and the proof.

        Errors as of `find`; NotFoundError for a path that is provably not there, if proof is
        required.
        """
        if archive not in _PLAIN:
            demand(call, skylink, _NO_FILE)
            return skylink, Check(_NO_FILE), None
        target, proof, why = await self.find(skylink, call)
        check = Check(why)
        if proof is not None:
            check = await self._check(
                proof, target, path, archive, _Source(self._transport, call, self._marks)
            )
        if check.verified is not Verified.YES:
            demand(call, skylink, check.why)
        return target, check, proof

    async def _check(
        self, proof: Proof, skylink: Skylink, path: str, archive: str, source: _Source
    ) -> Check:
        work = partial(_extent, proof, path, archive)
        try:
            extent = await _by_size(work, len(proof.metadata))
        except MalformedError as error:
            return Check(str(error))
        except NotFoundError:
            if source.call.verify is VerifyPolicy.REQUIRE:
                raise
            return Check(_NO_FILE)  # the portal says so itself, or sends a page for it
        if extent is None:
            return Check(_NO_FILE)
        offset, size = extent
        if proof.payload is not None:
            return _OfPayload(memoryview(proof.payload)[offset : offset + size])
        if proof.layout.chunk_size > _CHUNK_LIMIT:
            return _Sized(size, _TOO_LARGE)
        check = _OfChunks(proof, skylink, offset, size, source)
        try:
            await check.begin()
        except (BadContentError, *_LACKING):
            return Check(_NO_REST)
        return check


def demand(call: PortalOptions, what: object, why: str) -> None:
    """BadContentError if the options of a call require what is not proved."""
    if call.verify is VerifyPolicy.REQUIRE:
        raise BadContentError(f"{what}: it cannot be verified: {why}", url=call.url)


async def _by_size(work: Callable[[], T], size: int) -> T:
    """Parse metadata of so many bytes, many of them in a thread."""
    return work() if size <= _AT_ONCE else await trio.to_thread.run_sync(work)


def _extent(proof: Proof, path: str, archive: str) -> tuple[int, int] | None:
    """Return (offset, size) in the payload of what every portal sends for a path.

    None where each chooses for itself, as of a start page. NotFoundError for a path that is none
    of the content.
    """
    size = proof.layout.filesize
    metadata = parse_metadata(proof.metadata)
    found = _whole(metadata, size, archive) if not path else _file(metadata, path)
    return found if found is not None and sum(found) <= size else None


def _whole(metadata: Metadata, size: int, archive: str) -> tuple[int, int] | None:
    if metadata.rejected:
        return None
    if len(metadata.subfiles) == 1:
        return _file(metadata, next(iter(metadata.subfiles)))
    return (0, size) if archive or not metadata.subfiles else None


def _file(metadata: Metadata, path: str) -> tuple[int, int] | None:
    found = metadata.subfiles.get(path)
    is_whole = metadata.subfiles and not metadata.rejected and not metadata.tryfiles
    if is_whole and not select(metadata, path):
        raise NotFoundError(f"failed to download contents for path: /{path}", status=404)
    return None if found is None else (found.offset, found.len)
