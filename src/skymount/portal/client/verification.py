"""What a portal proves of content: by its base sector (docs/wire.md 2.1, 4.7), which hashes to the
skylink and holds or names the rest, or for small content by all that makes the base sector.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import trio
from cachetools import LRUCache

from skymount.concurrency import off_loop
from skymount.errors import BadContentError, MalformedError, NotFoundError, PortalError
from skymount.policies import Verified, VerifyPolicy
from skymount.portal.client.base import check_range, content_request, fetch_sector, head
from skymount.portal.client.content_check import (
    NO_REST,
    NOT_OFFERED,
    ChunkCheck,
    DownloadCheck,
    PayloadCheck,
    SizeCheck,
)
from skymount.portal.http.client import HttpClient
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.revision_marks import RevisionMarks
from skymount.settings import PortalOptions
from skymount.wire import base_sector, merkle
from skymount.wire.http import requests
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.metadata import Metadata, parse_metadata, select
from skymount.wire.registry_proof import verified_hops
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_CACHE_SIZE = 32 << 20  # bytes of proofs that a client caches

_AS_STORED = ("", "concat")
"""Archive formats in which content is sent as it is stored."""

_OFF = "verification is off"
_NO_PROOF = "the portal hands out no proof of it, or has to decrypt it"
_NO_RESOLUTION_PROOF = "the portal does not prove where the link leads"
_PACKED = "it lies in a packed sector"
_NO_FILE = "it is not one file of the content as it is stored; name a file"
_TOO_LARGE = "its chunks are too large"
DOMAIN_UNVERIFIABLE = "what a domain leads to is the portal's word"


@dataclass(frozen=True, slots=True)
class ContentProof:
    """A verified base sector, and what was spilled from it."""

    layout: base_sector.Layout
    fanout: bytes
    metadata: bytes
    payload: bytes | None
    """The content, if the base sector holds it."""

    @property
    def size(self) -> int:
        return len(self.fanout) + len(self.metadata) + len(self.payload or b"")


class ContentProofs:
    """The proofs of one portal. Safe for many tasks at once."""

    def __init__(self, http: HttpClient, marks: RevisionMarks) -> None:
        self._http = http
        self._marks = marks
        self._cache: LRUCache[Skylink, ContentProof] = LRUCache(
            _CACHE_SIZE, getsizeof=lambda proof: proof.size
        )
        self._locks: WeakValueDictionary[Skylink, trio.Lock] = WeakValueDictionary()

    async def find(
        self, skylink: Skylink, call: PortalOptions
    ) -> tuple[Skylink, ContentProof | None, str]:
        """Return the skylink to ask for (v1, if provable), its proof, or the reason for none.

        BadContentError for a wrong proof, and for a missing one that is required.
        """
        target, proof, reason = await self._find(skylink, call)
        if proof is None:
            refuse_unverified(call, skylink, reason)
        return target, proof, reason

    async def _find(
        self, skylink: Skylink, call: PortalOptions
    ) -> tuple[Skylink, ContentProof | None, str]:
        if call.verify is VerifyPolicy.OFF:
            return skylink, None, _OFF
        if skylink.version != 1:
            target = await self._resolve(skylink, call)
            if target is None:
                return skylink, None, _NO_RESOLUTION_PROOF
            skylink = target
        if skylink.offset:
            return skylink, None, _PACKED
        async with self._locks.setdefault(skylink, trio.Lock()):
            proof = self._cache.get(skylink)
            if proof is None:
                proof = await _fetch_proof(self._http, skylink, call)
                if proof is not None and proof.size <= _CACHE_SIZE:
                    self._cache[skylink] = proof
        return skylink, proof, "" if proof else _NO_PROOF

    async def _resolve(self, link: Skylink, call: PortalOptions) -> Skylink | None:
        try:
            found = await head(self._http, link, call)
        except NOT_OFFERED:
            return None
        if found.proof is None or found.skylink is None or found.skylink.version != 1:
            return None
        try:
            hops = verified_hops(link, found.skylink, found.proof)
        except MalformedError as error:
            raise BadContentError(f"{link}: {error}", url=call.url) from None
        for hop in hops:
            entry_id = EntryId(hop.public_key, hop.entry.tweak)
            await self._marks.check(entry_id, hop, call.url, named=False)
        return found.skylink

    async def begin(
        self, skylink: Skylink, path: str, call: PortalOptions, archive: str = ""
    ) -> tuple[Skylink, DownloadCheck, ContentProof | None]:
        """Return the skylink to download, the check of the download, and the proof.

        Errors as of `find`; NotFoundError for a path that is provably absent, if proof is required.
        """
        if archive not in _AS_STORED:
            refuse_unverified(call, skylink, _NO_FILE)
            return skylink, DownloadCheck(_NO_FILE), None
        target, proof, reason = await self.find(skylink, call)
        check = DownloadCheck(reason)
        if proof is not None:
            check = await self._check(proof, target, path, archive, call)
        if check.verified is not Verified.YES:
            refuse_unverified(call, skylink, check.reason)
        return target, check, proof

    async def _check(
        self, proof: ContentProof, skylink: Skylink, path: str, archive: str, call: PortalOptions
    ) -> DownloadCheck:
        is_required = call.verify is VerifyPolicy.REQUIRE
        work = partial(_extent, proof, path, archive)
        try:
            extent = await off_loop(work, len(proof.metadata))
        except MalformedError as error:
            return DownloadCheck(str(error))
        except NotFoundError:
            if is_required:
                raise
            return DownloadCheck(_NO_FILE)  # the portal says it itself, or sends an error page
        if extent is None:
            return DownloadCheck(_NO_FILE)
        offset, size = extent
        if proof.payload is not None:
            return PayloadCheck(memoryview(proof.payload)[offset : offset + size])
        layout = proof.layout
        if not layout.is_verifiable:
            return SizeCheck(size, _TOO_LARGE)
        read = partial(_read_payload, self._http, call, skylink, layout.filesize)
        check = ChunkCheck(layout, proof.fanout, offset, size, read, is_required=is_required)
        try:
            await check.begin()
        except (BadContentError, *NOT_OFFERED):
            return DownloadCheck(NO_REST)
        return check


def refuse_unverified(call: PortalOptions, what: object, reason: str) -> None:
    """BadContentError if the options of a call require verified content."""
    if call.verify is VerifyPolicy.REQUIRE:
        raise BadContentError(f"{what}: it cannot be verified: {reason}", url=call.url)


async def _fetch_proof(
    http: HttpClient, skylink: Skylink, call: PortalOptions
) -> ContentProof | None:
    request = requests.base_sector(call.dialect, skylink)
    try:
        answer = await http.fetch(request, SECTOR_SIZE, call)
        layout = base_sector.Layout.parse(answer.body)
    except (MalformedError, *NOT_OFFERED):  # some portals answer unknown paths with a page
        return await _rebuilt_proof(http, skylink, call)
    if not layout.is_plain:
        return None
    with http.parsing(request, call, answer.status):
        if await off_loop(partial(merkle.sector_root, answer.body)) != skylink.root:
            raise MalformedError(f"{skylink}: the base sector is not the content")
        base = base_sector.parse_base_sector(answer.body)
        fanout, metadata = base.fanout, base.metadata
        if layout.is_extended:
            body = await _spilled_body(http, layout, base.roots, call)
            fanout, metadata = base_sector.split_body(layout, body)
        if not layout.is_inline:
            base_sector.check_fanout(layout, fanout)
    return ContentProof(layout, fanout, metadata, base.payload)


async def _spilled_body(
    http: HttpClient, layout: base_sector.Layout, roots: bytes, call: PortalOptions
) -> bytes:
    for size in base_sector.spilled_level_sizes(layout):
        level = bytearray()
        for _, root, length in base_sector.sectors_of_level(roots, size):
            level += await fetch_sector(http, root, length, call)
        roots = bytes(level)
    return roots


async def _rebuilt_proof(
    http: HttpClient, skylink: Skylink, call: PortalOptions
) -> ContentProof | None:
    """Build the base sector of small content from its parts; None for content of another kind.

    The size in the skylink tells: that of encrypted content is a whole sector.
    """
    try:
        found = await head(http, skylink, call)
        raw = found.metadata
        if raw is None:
            request = requests.metadata(call.dialect, skylink)
            raw = (await http.fetch(request, SECTOR_SIZE, call)).body
        size = found.size
        if len(raw) <= SECTOR_SIZE:
            stored = (await off_loop(partial(parse_metadata, raw), len(raw))).payload_size
            size = size if stored is None else stored
        if size is None or not base_sector.fits_inline(len(raw), size):
            return None
        used = base_sector.LAYOUT_SIZE + len(raw) + size
        if Skylink.v1(skylink.root, used).bitfield != skylink.bitfield:
            return None
        request = content_request(skylink, "")
        payload = (await http.fetch(request, size, call)).body
    except (PortalError, MalformedError):
        return None  # the download itself will report it
    if not await off_loop(partial(base_sector.is_inline, skylink.root, raw, payload)):
        raise http.bad(request, call, f"{skylink}: it is not the content", None)
    return ContentProof(base_sector.Layout(len(payload), len(raw)), b"", raw, payload)


async def _read_payload(
    http: HttpClient, call: PortalOptions, skylink: Skylink, size: int, wanted: ByteRange
) -> AsyncGenerator[bytes, None]:
    request = content_request(skylink, "")
    async with http.open(request, call, byte_range=wanted) as answer:
        check_range(answer, wanted, size, named=False)
        async with aclosing(answer.pieces(len(wanted))) as pieces:
            async for piece in pieces:
                yield piece


def _extent(proof: ContentProof, path: str, archive: str) -> tuple[int, int] | None:
    """Return (offset, size) in the payload of what portals send for a path; None if they choose it
    themselves, such as a start page. NotFoundError for a path that is not in the content.
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
