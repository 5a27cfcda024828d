"""Resolves the skylink of a URL to the v1 skylink of content (docs/wire.md 1.4)."""

from dataclasses import dataclass
from functools import lru_cache

from skymount.errors import MalformedError
from skymount.server.http.messages import fields, skylink_fields
from skymount.server.http_error import HttpError
from skymount.server.storage.interfaces import Entries
from skymount.wire.dialect import PRESETS
from skymount.wire.registry_entry import SignedEntry, linked_skylink
from skymount.wire.registry_proof import HOPS, encode_proof
from skymount.wire.skylink import Skylink

_PARSED = 4096  # skylinks of URLs that are remembered
_FAILED = "failed to resolve skylink: "


@dataclass(frozen=True, slots=True)
class ResolvedSkylink:
    """The skylink of a URL, and the one it leads to."""

    requested: Skylink
    skylink: Skylink
    entries: tuple[SignedEntry, ...]  # those that were followed; none for a v1 skylink

    @property
    def fields(self) -> bytes:
        """Headers that name the v1 skylink; for a v2 one also that and the proof."""
        named = skylink_fields(self.skylink)
        if not self.entries:
            return named
        proof = encode_proof(self.entries)
        return named + fields(
            *((each.requested_skylink_header, str(self.requested)) for each in PRESETS.values()),
            *((each.proof_header, proof) for each in PRESETS.values()),
        )


_parse = lru_cache(_PARSED)(Skylink)


def _next_skylink(signed: SignedEntry) -> Skylink:
    entry = signed.entry
    if entry.is_deleted:
        raise HttpError(404, f"{_FAILED}root not found")
    if not entry.data:
        raise HttpError(500, f"{_FAILED}the registry entry is empty")
    if entry.kind != 1:  # clients accept no proof with one
        raise HttpError(400, f"{_FAILED}unsupported registry type {entry.kind}")
    skylink = linked_skylink(entry.data)
    if skylink is None:
        raise HttpError(400, f"{_FAILED}the data of the registry entry is a malformed skylink")
    return skylink


@dataclass(frozen=True, slots=True)
class SkylinkResolver:
    """Resolves the skylinks of one portal."""

    entry_store: Entries

    async def resolve(self, link: str) -> ResolvedSkylink:
        """Parse the skylink of a URL and follow it; HttpError 400, 404 or 500."""
        try:
            requested = _parse(link)
        except MalformedError as error:
            raise HttpError(400, f"error parsing skylink: {error}") from None
        skylink, entries = requested, list[SignedEntry]()
        while skylink.version == 2:
            if len(entries) == HOPS:
                raise HttpError(500, f"{_FAILED}skylink is nested more times than is supported")
            entry = await self.entry_store.find(skylink.root)
            if entry is None:
                raise HttpError(404, f"{_FAILED}registry entry not found")
            skylink = _next_skylink(entry)
            entries.append(entry)
        return ResolvedSkylink(requested, skylink, tuple(entries))
