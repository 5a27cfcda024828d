"""Owns the way from a skylink of a URL to the v1 skylink of content: v2 skylinks name registry
entries, which name the next skylink (wire notes 1.4). Whether the content is here is `catalog`'s.
"""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from skymount.errors import MalformedError
from skymount.server.http import responses
from skymount.server.http_error import HttpError
from skymount.server.storage.entry_store import EntryStore
from skymount.wire.dialect import PRESETS
from skymount.wire.registry_entry import SignedEntry, linked_skylink
from skymount.wire.registry_proof import HOPS, encode_proof
from skymount.wire.responses import encode_resolved
from skymount.wire.skylink import Skylink

_FAILED = "failed to resolve skylink: "


@dataclass(frozen=True, slots=True)
class ResolvedSkylink:
    """A skylink and where it leads."""

    requested: Skylink
    skylink: Skylink
    """A v1 skylink: the requested one, if that is one."""
    hops: tuple[SignedEntry, ...]
    """The entries on the way; none for a v1 skylink."""

    def headers(self) -> responses.Headers:
        """Name the v1 skylink; for a v2 one also name that and prove where it led."""
        headers = responses.skylink_headers(self.skylink)
        if self.hops:
            proof = encode_proof(self.hops)
            for dialect in PRESETS.values():
                headers.append((dialect.requested_skylink_header, str(self.requested)))
                headers.append((dialect.proof_header, proof))
        return headers


def _following(hop: SignedEntry | None) -> Skylink:
    """Return the skylink that an entry names; HttpError when it names none."""
    if hop is None:
        raise HttpError(404, f"{_FAILED}registry entry not found")
    if hop.entry.is_deleted:
        raise HttpError(404, f"{_FAILED}root not found")
    if not hop.entry.data:
        raise HttpError(500, f"{_FAILED}the registry entry is empty")
    if hop.entry.kind != 1:  # clients take no proof with one
        raise HttpError(400, f"{_FAILED}unsupported registry type {hop.entry.kind}")
    skylink = linked_skylink(hop.entry.data)
    if skylink is None:
        raise HttpError(400, f"{_FAILED}the data of the registry entry is a malformed skylink")
    return skylink


@dataclass(frozen=True, slots=True)
class SkylinkResolver:
    """Resolves the skylinks of one portal, and answers the resolve endpoint (wire notes 4.7)."""

    entries: EntryStore

    async def resolve(self, link: str) -> ResolvedSkylink:
        """Read the skylink of a URL and follow it.

        HttpError 400 when it is none or leads to none, 404 when an entry is absent or deleted, 500
        when one is empty or there are more than `HOPS` of them.
        """
        try:
            requested = Skylink.parse(link)
        except MalformedError as error:
            raise HttpError(400, f"error parsing skylink: {error}") from None
        at, hops = requested, list[SignedEntry]()
        while at.version == 2:
            if len(hops) == HOPS:
                raise HttpError(500, f"{_FAILED}skylink is nested more times than is supported")
            hop = await self.entries.find(at.root)
            at = _following(hop)
            assert hop is not None
            hops.append(hop)
        return ResolvedSkylink(requested, at, tuple(hops))

    async def get(self, request: Request) -> Response:
        """Answer with the v1 skylink of a v2 one."""
        resolved = await self.resolve(request.path_params["link"])
        if not resolved.hops:
            raise HttpError(400, f"{_FAILED}wrong version: it is of version 1 already")
        body = encode_resolved(resolved.skylink)
        return responses.json_body(body, headers=resolved.headers())
