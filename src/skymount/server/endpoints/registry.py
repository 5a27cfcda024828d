"""The endpoints of registry entries and names: what each holds, and what it leads to.

They are 5, 6, 11 and 12 of the contract; docs/wire.md 4.7, 6 and 8.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from skymount.errors import BadSignatureError, MalformedError, StorageError
from skymount.server.config import PortalConfig
from skymount.server.http.forms import Params, form_params, number
from skymount.server.http.messages import Request, Response, json_response, read_body
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.server.resolver import SkylinkResolver
from skymount.server.storage.disk_errors import StorageUnavailableError
from skymount.server.storage.interfaces import Entries, Names
from skymount.wire.hns import DomainRecord, SkylinkRecord, encode_resolution, parse_domain
from skymount.wire.http.responses import encode_resolved
from skymount.wire.registry_entry import (
    UPDATE_LIMIT,
    SignedEntry,
    parse_public_key,
    parse_tweak,
)

_TIMEOUT_LIMIT = 300  # seconds; also the default
_TOO_BIG = "Registry data is too big"  # a message of the codec that needs no prefix
_FAILED = "Unable to update the registry: "


@dataclass(frozen=True, slots=True)
class RegistryEndpoints:
    """The registry endpoints of one portal."""

    config: PortalConfig
    entries: Entries
    resolver: SkylinkResolver

    async def get(self, request: Request) -> Response:
        """Answer with a signed entry. ``timeout`` has no effect."""
        body = await read_body(request, UPDATE_LIMIT, self.config.body_timeout)
        public_key, tweak = parse_entry_key(form_params(request, body))
        found = await self.entries.read(public_key, tweak)
        if found is None:
            raise HttpError(404, "registry entry not found")
        return json_response(found.encode_answer())

    async def post(self, request: Request) -> Response:
        body = await read_body(request, UPDATE_LIMIT, self.config.body_timeout)
        try:
            signed = SignedEntry.parse_update(body)
        except MalformedError as error:
            message = str(error)
            prefix = "" if message.startswith(_TOO_BIG) else "Failed to decode request: "
            raise HttpError(400, prefix + message) from None
        try:
            await self.entries.update(signed)
        except BadSignatureError:
            raise HttpError(400, f"{_FAILED}invalid signature") from None
        except MalformedError as error:  # the revision, as a rule
            raise HttpError(400, f"{_FAILED}{error}") from None
        return Response(204)

    async def resolve(self, request: Request) -> Response:
        resolved = await self.resolver.resolve(request.variables["link"])
        if not resolved.entries:
            raise HttpError(
                400, "failed to resolve skylink: wrong version: it is of version 1 already"
            )
        body = encode_resolved(resolved.skylink)
        return json_response(body, more=resolved.fields, skylink=str(resolved.skylink))


def parse_entry_key(params: Params) -> tuple[bytes, bytes]:
    """Parse public key and hashed data key; HttpError 400."""
    with refuse_malformed(400, "Unable to parse publickey param: "):
        public_key = parse_public_key(params.get("publickey", ""))
    with refuse_malformed(400, "Unable to decode dataKey param: "):
        tweak = parse_tweak(params.get("datakey", ""))
    timeout = number(params, "timeout")
    if timeout is not None and not 1 <= timeout <= _TIMEOUT_LIMIT:
        raise HttpError(
            400,
            f"Invalid 'timeout' parameter, needs to be between 1s and {_TIMEOUT_LIMIT}s",
        )
    return public_key, tweak


_log = logging.getLogger(__name__)

_name_error = partial(HttpError, plain_text=True)


@dataclass(frozen=True, slots=True)
class HnsEndpoints:
    """The endpoints of one portal's names."""

    zone: Names
    content: Callable[[Request], Awaitable[Response]]
    """Answers with the content that the variables `link` and `path` of a request name."""

    async def resolve(self, request: Request) -> Response:
        return json_response(encode_resolution(await self._find(request)))

    async def get(self, request: Request) -> Response:
        """Answer with the content of a domain. Redirects are relative: they stay within it."""
        record = await self._find(request)
        path = request.variables.get("path", "")
        if not path and isinstance(record, SkylinkRecord):
            path = record.path.removeprefix("/")
        request.variables = {"link": str(record.skylink), "path": path}
        return await self.content(request)

    async def _find(self, request: Request) -> DomainRecord:
        try:
            domain = parse_domain(unquote(request.variables["domain"], errors="strict"))
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
