"""Owns the endpoints of names (contract 11 and 12, wire notes 8): what a domain leads to, and that
content itself.

What names there are is the zone's matter; the content is answered by `downloading`.
"""

import logging
from dataclasses import dataclass
from urllib.parse import unquote

import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount.errors import MalformedError, StorageError
from skymount.server.download.endpoint import DownloadEndpoint
from skymount.server.http import responses
from skymount.server.storage.zone_file import ZoneFile
from skymount.wire.hns import DomainRecord, SkylinkRecord, encode_resolution, parse_domain

_log = logging.getLogger(__name__)

_TEXT_TYPE = "text/plain; charset=utf-8"


class _NoAnswerError(Exception):
    """A domain leads nowhere: status and text of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text

    def answer(self) -> Response:
        headers: responses.Headers = [("Content-Type", _TEXT_TYPE)]
        return responses.BytesResponse(self.status, headers, self.text.encode())


@dataclass(frozen=True, slots=True)
class HnsEndpoints:
    """The endpoints of one portal's names."""

    zone: ZoneFile
    downloads: DownloadEndpoint

    async def resolve(self, request: Request) -> Response:
        """Answer with what a domain's record says."""
        try:
            record = await self._find(request)
        except _NoAnswerError as error:
            return error.answer()
        return responses.json_body(encode_resolution(record))

    async def get(self, request: Request) -> Response:
        """Answer with the content that a domain leads to, as if its skylink had been asked for.

        A redirect is relative to the URL, and so stays within the domain.
        """
        try:
            record = await self._find(request)
        except _NoAnswerError as error:
            return error.answer()
        path = request.path_params.get("path", "")
        if not path and isinstance(record, SkylinkRecord):
            path = record.path.removeprefix("/")
        place = {"link": str(record.skylink), "path": path}
        scope = {**request.scope, "path_params": place}
        return await self.downloads.get(Request(scope, request.receive))

    async def _find(self, request: Request) -> DomainRecord:
        """Return the record of the domain in the URL."""
        try:
            domain = parse_domain(unquote(request.path_params["domain"], errors="strict"))
        except (MalformedError, UnicodeDecodeError) as error:
            reason = error if isinstance(error, MalformedError) else "not valid UTF-8"
            raise _NoAnswerError(400, f"Handshake error: {reason}") from None
        try:
            zone = await trio.to_thread.run_sync(self.zone.current)
            record = zone.find(domain)
        except StorageError as error:
            _log.error("%s", error)
            raise _NoAnswerError(500, "Handshake error: the zone cannot be used") from None
        except MalformedError as error:
            raise _NoAnswerError(500, f"Handshake error: {error}") from None
        if record is None:
            raise _NoAnswerError(404, f"No records found for {domain}")
        return record
