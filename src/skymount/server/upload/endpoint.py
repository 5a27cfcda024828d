"""The upload endpoint (contract 1 and 2).

The body is cut into sectors, hashed and written as it arrives. Its metadata and base sector
follow after the last byte; then all of it is published in one step.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from skymount.errors import MalformedError
from skymount.server.config import PortalConfig
from skymount.server.http.forms import FormReader, parse_query
from skymount.server.http.messages import (
    Request,
    Response,
    json_response,
    skylink_fields,
    stream_body,
)
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.server.storage.catalogue_rows import NewSkyfile
from skymount.server.storage.disk_errors import DiskFullError
from skymount.server.storage.interfaces import Catalogue, ContentStore, Skykeys
from skymount.server.upload.quota import Quota, QuotaError, Reservation
from skymount.server.upload.rules import PartList, UploadQuery, describe_upload
from skymount.server.upload.sector_writer import UploadLimits, open_sector_writer
from skymount.wire.base_sector import fits_inline
from skymount.wire.dialect import PRESETS
from skymount.wire.http.responses import UploadResult
from skymount.wire.skyfile_encryption import SkyfileKey
from skymount.wire.skykey import NONCE_SIZE
from skymount.wire.skylink import Skylink

_log = logging.getLogger(__name__)

_FAILED = "failed to upload file: "


@dataclass(frozen=True, slots=True)
class UploadEndpoint:
    """The upload endpoint of one portal."""

    config: PortalConfig
    store: ContentStore
    skykeys: Skykeys
    limits: UploadLimits
    catalogue: Catalogue
    quota: Quota
    stored: Callable[[Skylink], None]
    """Called with each skyfile that was stored."""

    async def post(self, request: Request) -> Response:
        content_type = request.headers.get("content-type", "").encode("latin-1")
        if not content_type:
            raise HttpError(400, "failed parsing 'Content-Type' header")
        with refuse_malformed(400, _FAILED):
            query = UploadQuery.parse(
                parse_query(request.query),
                content_type=content_type,
                force_disabled=any(
                    request.headers.get(dialect.disable_force_header.lower(), "").lower() == "true"
                    for dialect in PRESETS.values()
                ),
            )
            skylink = await self.receive(request, query, content_type, PartList(self.config))
        body, more = UploadResult(skylink).encode(), skylink_fields(skylink)
        return json_response(body, more=more, skylink=str(skylink))

    async def receive(
        self, request: Request, query: UploadQuery, content_type: bytes, parts: PartList
    ) -> Skylink:
        """Store the body of a request; MalformedError, or HttpError 507 when the disk is full."""
        try:
            with self.quota.reserving() as room:
                return await self._receive(request, query, content_type, parts, room)
        except QuotaError as error:
            raise HttpError(507, f"{_FAILED}{error}") from None
        except DiskFullError as error:
            _log.error("%s", error)
            raise HttpError(507, f"{_FAILED}the disk of this portal is full ({error})") from None

    async def _receive(
        self,
        request: Request,
        query: UploadQuery,
        content_type: bytes,
        parts: PartList,
        room: Reservation,
    ) -> Skylink:
        config = self.config
        agent = request.headers.get("user-agent", "")
        form = FormReader(content_type, parts, agent) if query.is_form else None
        body = stream_body(request, config.max_upload, config.body_timeout, failed=_FAILED)
        keep, key = not query.dryrun, await self._key(query)
        stated = int(request.headers.get("content-length", "0"))
        if keep and 0 < stated <= config.max_upload:
            room.need(stated, is_encrypted=query.is_encrypted)
        async with open_sector_writer(self.store, self.limits, keep=keep, key=key) as writer:
            async for data in body:
                if keep:
                    room.need(writer.size + len(data), is_encrypted=query.is_encrypted)
                if form is None:
                    await writer.write(data)
                    continue
                for index, content in enumerate(form.content(data)):
                    if index:  # many tiny parts: let other requests run in between
                        await trio.lowlevel.checkpoint()
                    await writer.write(content)
            if form is not None:
                form.finish()
            describe = partial(describe_upload, query, parts, writer.size)
            metadata, name, files = (
                describe() if parts.is_short else await trio.to_thread.run_sync(describe)
            )
            built, skylink = await writer.build(metadata)
            if keep:
                room.take(built.disk_size(writer.size))
                await room.confirm()
                is_small = fits_inline(len(metadata), writer.size)
                new = NewSkyfile(skylink, name, files, writer.size, query.is_encrypted, is_small)
                with trio.CancelScope(shield=True):  # what is published is recorded, too
                    await writer.publish(built, skylink)
                    self.stored(skylink)
                    await self.catalogue.add(new)
        return skylink

    async def _key(self, query: UploadQuery) -> SkyfileKey | None:
        if not query.is_encrypted:
            return None
        try:
            skykey = await self.skykeys.find(name=query.skykey_name, key_id=query.skykey_id)
        except MalformedError as error:
            raise MalformedError(f"unable to get skykey: {error}") from None
        return SkyfileKey.of(skykey, secrets.token_bytes(NONCE_SIZE))
