"""Owns receiving an upload over HTTP: body in, limits kept, skylink out.

Rules of names and metadata are `upload`'s, bytes on disk `intake`'s.
"""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from skymount.errors import MalformedError
from skymount.server.config import PortalConfig
from skymount.server.http import responses
from skymount.server.http.query_params import parse_query
from skymount.server.http_error import HttpError
from skymount.server.storage.skyfile_index import SkyfileIndex
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.server.upload.multipart_reader import (
    MANY_EVENTS,
    FormReader,
    PartBegins,
    is_multipart,
)
from skymount.server.upload.rules import PartList, UploadQuery, raw_metadata
from skymount.server.upload.sector_writer import SectorWriter, receiving
from skymount.wire.dialect import PRESETS
from skymount.wire.responses import UploadResult
from skymount.wire.skyfile_encryption import SkyfileKey
from skymount.wire.skykey import NONCE_SIZE
from skymount.wire.skylink import Skylink

_FAILED = "failed to upload file: "


@dataclass(frozen=True, slots=True)
class UploadEndpoint:
    """The upload endpoint of one portal (contract endpoints 1 and 2)."""

    config: PortalConfig
    store: SkyfileStore
    catalog: SkyfileIndex
    skykeys: SkykeyStore
    hashing: trio.CapacityLimiter

    async def post(self, request: Request) -> Response:
        """Store the body of the request."""
        content_type = dict(request.scope["headers"]).get(b"content-type", b"").strip()
        if not content_type:
            raise HttpError(400, "failed parsing 'Content-Type' header")
        query = UploadQuery.parse(
            parse_query(request.scope["query_string"]),
            multipart=is_multipart(content_type),
            force_disabled=any(
                request.headers.get(dialect.disable_force_header, "").lower() == "true"
                for dialect in PRESETS.values()
            ),
        )
        try:
            skylink = await self._receive(request, query, content_type)
        except MalformedError as error:
            raise HttpError(400, f"{_FAILED}{error}") from None
        if not query.dryrun:
            await self.catalog.added(skylink)
        return responses.json_body(
            UploadResult(skylink).encode(), headers=responses.skylink_headers(skylink)
        )

    async def _receive(self, request: Request, query: UploadQuery, content_type: bytes) -> Skylink:
        form = FormReader(content_type) if is_multipart(content_type) else None
        if form is None:
            raw_metadata(query, 0)  # refuse a bad name before the body comes
        key = await self._key(query) if query.is_encrypted else None
        async with receiving(self.store, self.hashing, keep=not query.dryrun, key=key) as intake:
            body = self._body(request)
            if form is None:
                async for data in body:
                    await intake.write(data)
                return await intake.finish(raw_metadata(query, intake.size))
            parts = PartList(self.config)
            async for data in body:
                await _read_form(form, data, parts, intake)
            form.finish()
            metadata = await trio.to_thread.run_sync(parts.metadata, query, intake.size)
            if len(metadata) > self.config.metadata_limit:
                raise MalformedError("the metadata of the upload is too large")
            return await intake.finish(metadata)

    async def _key(self, query: UploadQuery) -> SkyfileKey:
        """Return a new key for one skyfile, made of the skykey that the query names."""
        try:
            skykey = await self.skykeys.find(name=query.skykey_name, key_id=query.skykey_id)
        except HttpError as refusal:
            reason = refusal.message.removeprefix("failed to retrieve skykey: ")
            raise HttpError(400, f"{_FAILED}unable to get skykey: {reason}") from None
        return SkyfileKey.of(skykey, secrets.token_bytes(NONCE_SIZE))

    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body piece by piece, within the limits of size and time."""
        limit = self.config.max_upload
        refusal = HttpError(413, f"{_FAILED}the body is over the limit of {limit} bytes")
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            raise refusal
        size, more = 0, True
        while more:
            try:
                with trio.fail_after(self.config.body_timeout):
                    message = await request.receive()
            except trio.TooSlowError:
                raise HttpError(408, f"{_FAILED}the body did not come in time") from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            more = message.get("more_body", False)
            size += len(message["body"])
            if size > limit:
                raise refusal
            yield message["body"]


async def _read_form(form: FormReader, data: bytes, parts: PartList, intake: SectorWriter) -> None:
    """Take the next bytes of a form; with tiny parts the event loop gets a turn in between."""
    for events in form.events(data):
        for event in events:
            if isinstance(event, PartBegins):
                parts.begin(event.part, intake.size)
            else:
                await intake.write(event.data)
        if len(events) >= MANY_EVENTS:
            await trio.lowlevel.checkpoint()
