"""Owns what a client asks of content at a portal: its metadata, and whole files into memory.

What they are compared with comes from ``portal.client.verification``.
"""

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import trio

from skymount.errors import (
    MalformedError,
    NotFoundError,
    PortalError,
    RequestRefusedError,
)
from skymount.portal.client.base import is_without_headers
from skymount.portal.client.content_check import DownloadCheck
from skymount.portal.client.verification import ContentProof
from skymount.portal.http.client import HttpClient
from skymount.portal.http.response import Headers, Response
from skymount.portal.options import PortalOptions
from skymount.portal.verify_policy import Verified
from skymount.wire import requests
from skymount.wire.metadata import (
    METADATA_LIMIT,
    encode_metadata,
    parse_metadata,
    select,
    subpath_metadata,
)
from skymount.wire.skylink import Skylink

CONTENT_LIMIT = 256 << 20
"""Bytes of a file that is read into memory, unless the caller says otherwise."""

_INLINE = 16 << 10  # bytes of JSON that are parsed without a thread


@dataclass(frozen=True, slots=True)
class MetadataResult:
    """What a portal says about content."""

    metadata: dict[str, Any]
    """The metadata object; of a sub-path, that of what it selects (wire notes 4.5)."""
    content_type: str
    skylink: str
    """``<scheme>://<skylink>`` of the content; a v2 skylink is resolved."""
    verified: Verified = Verified.NO
    """Whether the metadata are proved: ``yes`` or ``no``."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """A whole file."""

    data: Any = field(repr=False)
    """The parsed value where the content type is JSON, else bytes."""
    content_type: str
    metadata: dict[str, Any] | None
    """None where the portal does not send it along."""
    skylink: str
    """``<scheme>://<skylink>`` of the content; a v2 skylink is resolved."""
    verified: Verified = Verified.NO
    """How far the bytes were compared with the skylink: ``yes``, ``partly`` or ``no``."""


def _as_object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MalformedError("the metadata is not a JSON object")
    return found


def _selected(raw: bytes, path: str) -> dict[str, Any]:
    """Return the metadata of a path inside, from that of the whole."""
    if not path:
        return _as_object(raw)
    chosen = select(parse_metadata(raw), path)
    if not chosen:
        raise NotFoundError(f"failed to download contents for path: /{path}", status=404)
    return _as_object(encode_metadata(subpath_metadata(path, chosen)))


def is_json(content_type: str) -> bool:
    """Whether a media type says that the content is JSON (RFC 6839: ``+json`` too)."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def _link_of(
    headers: Headers, call: PortalOptions, asked: Skylink, proof: ContentProof | None
) -> str:
    """Return the link of what was served: as asked if that is proved, else as the portal says."""
    told = "" if proof else headers.get(call.dialect.skylink_header, "")
    return call.dialect.link(Skylink.parse(told) if told else asked)


async def get_metadata(
    transport: HttpClient,
    skylink: Skylink,
    path: str,
    call: PortalOptions,
    proof: ContentProof | None = None,
) -> MetadataResult:
    """Ask for metadata: by HEAD, and where its header is missing or cannot be sent by the metadata
    endpoint.

    Those of the proof count, if there is one.
    """
    request = requests.download(skylink, path, method="HEAD")
    try:
        answer = await _head(transport, request, skylink, path, call)
    except PortalError as error:
        if not is_without_headers(error):
            raise
        answer = Response(HTTPStatus.OK, Headers(), b"")
    headers = answer.headers
    raw = headers.raw(call.dialect.metadata_header)
    try:
        link = _link_of(headers, call, skylink, proof)
        if proof is not None:
            metadata = await trio.to_thread.run_sync(_selected, proof.metadata, path)
        elif raw is None:
            request = requests.metadata(call.dialect, skylink)
            answer = await transport.fetch(request, METADATA_LIMIT, call)
            metadata = await trio.to_thread.run_sync(_selected, answer.body, path)
        else:
            metadata = await trio.to_thread.run_sync(_as_object, raw)
    except MalformedError as error:
        raise transport.bad(request, call, str(error), answer.status) from None
    verified = Verified.NO if proof is None else Verified.YES
    return MetadataResult(metadata, headers.get("content-type", ""), link, verified)


async def _head(
    transport: HttpClient,
    request: requests.Request,
    skylink: Skylink,
    path: str,
    call: PortalOptions,
) -> Response:
    """Ask for headers; again with a format if the portal cannot choose a file without one."""
    try:
        return await transport.fetch(request, 0, call)
    except RequestRefusedError as error:
        if error.status != HTTPStatus.BAD_REQUEST:
            raise
    request = requests.download(skylink, path, method="HEAD", archive="concat")
    return await transport.fetch(request, 0, call)


async def get_file_content(
    transport: HttpClient,
    skylink: Skylink,
    request: requests.Request,
    path: str,
    limit: int,
    call: PortalOptions,
    check: DownloadCheck,
    proof: ContentProof | None,
) -> FileContent:
    """Download a file into memory; BadContentError beyond `limit` bytes, and if it is not what
    `check` says. The metadata are those of the proof, if there is one for what was sent.
    """
    answer = await transport.fetch(request, limit, call)
    try:
        await trio.to_thread.run_sync(check.update, answer.body)
        await check.finish()
    except MalformedError as error:
        raise transport.bad(request, call, str(error), answer.status) from None
    known = None if check.verified is Verified.NO else proof
    content_type = answer.headers.get("content-type", "")
    raw = answer.headers.raw(call.dialect.metadata_header)
    data: Any = answer.body
    if is_json(content_type):
        if len(data) <= _INLINE:
            data = _parsed(data)
        else:
            data = await trio.to_thread.run_sync(_parsed, data)
    try:
        metadata: dict[str, Any] | None = None
        if known is not None:
            metadata = await trio.to_thread.run_sync(_selected, known.metadata, path)
        elif raw is not None:
            metadata = await trio.to_thread.run_sync(_as_object, raw)
        link = _link_of(answer.headers, call, skylink, known)
    except MalformedError as error:
        raise transport.bad(request, call, str(error), answer.status) from None
    return FileContent(data, content_type, metadata, link, check.verified)


def _parsed(body: bytes) -> Any:
    """Return what JSON says, or the bytes when they only claim to be JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body
