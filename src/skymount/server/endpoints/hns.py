"""The endpoints of names (contract 11 and 12, docs/wire.md 8): a name's record, and its content."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from skymount.errors import MalformedError, StorageError
from skymount.server.http import caching, responses
from skymount.server.http_error import HttpError
from skymount.server.storage.disk_errors import StorageUnavailableError
from skymount.server.storage.interfaces import Names
from skymount.wire.hns import DomainRecord, SkylinkRecord, encode_resolution, parse_domain

_log = logging.getLogger(__name__)

_name_error = partial(HttpError, plain_text=True)


@dataclass(frozen=True, slots=True)
class HnsEndpoints:
    """The endpoints of one portal's names."""

    zone: Names
    download: Callable[[Request], Awaitable[Response]]

    async def resolve(self, request: Request) -> Response:
        return responses.json_body(encode_resolution(await self._find(request)))

    async def get(self, request: Request) -> Response:
        """Answer with the content of a domain. Redirects are relative: they stay within it."""
        record = await self._find(request)
        path = request.path_params.get("path", "")
        if not path and isinstance(record, SkylinkRecord):
            path = record.path.removeprefix("/")
        path_params = {"link": str(record.skylink), "path": path}
        scope = {**request.scope, "path_params": path_params}
        return caching.revalidated(await self.download(Request(scope, request.receive)))

    async def _find(self, request: Request) -> DomainRecord:
        try:
            domain = parse_domain(unquote(request.path_params["domain"], errors="strict"))
        except (MalformedError, UnicodeDecodeError) as error:
            reason = error if isinstance(error, MalformedError) else "not valid UTF-8"
            raise _name_error(400, f"Handshake error: {reason}") from None
        try:
            record = await self.zone.find(domain)
        except StorageError as error:
            _log.error("%s", error)
            status = 503 if isinstance(error, StorageUnavailableError) else 500
            raise _name_error(status, "Handshake error: the zone cannot be used") from None
        except MalformedError as error:
            raise _name_error(500, f"Handshake error: {error}") from None
        if record is None:
            raise _name_error(404, f"No records found for {domain}")
        return record
