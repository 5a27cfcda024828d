"""The calls for metadata, and for whole files in memory."""

import json
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import trio

from skymount.concurrency import off_loop
from skymount.errors import (
    MalformedError,
    NotFoundError,
    PortalError,
    RequestRefusedError,
)
from skymount.policies import Verified
from skymount.portal.client.base import is_without_headers
from skymount.portal.client.content_check import DownloadCheck
from skymount.portal.client.verification import ContentProof
from skymount.portal.http.client import HttpClient
from skymount.portal.http.response import Headers, Response
from skymount.settings import PortalOptions
from skymount.wire.http import requests
from skymount.wire.metadata import (
    METADATA_LIMIT,
    encode_metadata,
    parse_metadata,
    select,
    subpath_metadata,
)
from skymount.wire.skylink import Skylink

CONTENT_LIMIT = 256 << 20
"""Bytes of a file that is read into memory, by default."""


@dataclass(frozen=True, slots=True)
class MetadataResult:
    """The metadata of content."""

    metadata: dict[str, Any]
    """The metadata object; for a path, that of what it selects (docs/wire.md 4.5)."""
    content_type: str
    skylink: str
    """``<scheme>://<skylink>`` of the content; a v2 skylink is resolved."""
    verified: Verified = Verified.NO
    """``yes`` or ``no``."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """A whole file."""

    data: Any = field(repr=False)
    """The parsed value where the content type is JSON, else bytes."""
    content_type: str
    metadata: dict[str, Any] | None
    """None if the portal does not send it along."""
    skylink: str
    """``<scheme>://<skylink>`` of the content; a v2 skylink is resolved."""
    verified: Verified = Verified.NO
    """``yes``, ``partly`` or ``no``: how far the bytes were compared with the skylink."""


def _as_object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MalformedError("the metadata is not a JSON object")
    return found


def _selected(raw: bytes, path: str) -> dict[str, Any]:
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
    """Return the link of the content: the requested one if it is proved, else the portal's."""
    told = "" if proof else headers.get(call.dialect.skylink_header, "")
    return call.dialect.link(Skylink(told) if told else asked)


async def get_metadata(
    http: HttpClient,
    skylink: Skylink,
    path: str,
    call: PortalOptions,
    proof: ContentProof | None = None,
) -> MetadataResult:
    """Ask for metadata by HEAD, or at its endpoint if the header is missing or too long.

    The metadata of a proof are preferred.
    """
    request = requests.download(skylink, path, method="HEAD")
    try:
        answer = await _head(http, request, skylink, path, call)
    except PortalError as error:
        if not is_without_headers(error):
            raise
        answer = Response(HTTPStatus.OK, Headers(), b"")
    headers = answer.headers
    raw = headers.raw(call.dialect.metadata_header)
    with http.parsing(request, call, answer.status):
        link = _link_of(headers, call, skylink, proof)
        if proof is not None:
            metadata = await off_loop(partial(_selected, proof.metadata, path), len(proof.metadata))
        elif raw is None:
            request = requests.metadata(call.dialect, skylink)
            answer = await http.fetch(request, METADATA_LIMIT, call)
            with http.parsing(request, call, answer.status):
                metadata = await off_loop(partial(_selected, answer.body, path), len(answer.body))
        else:
            metadata = await off_loop(partial(_as_object, raw), len(raw))
    verified = Verified.NO if proof is None else Verified.YES
    return MetadataResult(metadata, headers.get("content-type", ""), link, verified)


async def _head(
    http: HttpClient,
    request: requests.Request,
    skylink: Skylink,
    path: str,
    call: PortalOptions,
) -> Response:
    """Ask for headers; again with a format if the portal needs one to choose a file."""
    try:
        return await http.fetch(request, 0, call)
    except RequestRefusedError as error:
        if error.status != HTTPStatus.BAD_REQUEST:
            raise
    request = requests.download(skylink, path, method="HEAD", archive="concat")
    return await http.fetch(request, 0, call)


async def get_file_content(
    http: HttpClient,
    skylink: Skylink,
    request: requests.Request,
    path: str,
    limit: int,
    call: PortalOptions,
    check: DownloadCheck,
    proof: ContentProof | None,
) -> FileContent:
    """Download a file into memory; BadContentError beyond `limit` bytes, and for other content.

    The metadata of a proof are preferred, if the content could be checked.
    """
    answer = await http.fetch(request, limit, call)
    with http.parsing(request, call, answer.status):
        await trio.to_thread.run_sync(check.update, answer.body)
        await check.finish()
    known = None if check.verified is Verified.NO else proof
    content_type = answer.headers.get("content-type", "")
    raw = answer.headers.raw(call.dialect.metadata_header)
    data: Any = answer.body
    if is_json(content_type):
        data = await off_loop(partial(_parsed, data), len(data))
    with http.parsing(request, call, answer.status):
        metadata: dict[str, Any] | None = None
        if known is not None:
            metadata = await off_loop(partial(_selected, known.metadata, path), len(known.metadata))
        elif raw is not None:
            metadata = await off_loop(partial(_as_object, raw), len(raw))
        link = _link_of(answer.headers, call, skylink, known)
    return FileContent(data, content_type, metadata, link, check.verified)


def _parsed(body: bytes) -> Any:
    """Return the JSON value, or the bytes if they are not JSON after all."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body
