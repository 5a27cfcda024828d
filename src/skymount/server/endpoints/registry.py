"""The registry endpoints and the resolve endpoint (contract 5 and 6, docs/wire.md 6, 4.7)."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from skymount.errors import BadSignatureError, MalformedError
from skymount.server.config import PortalConfig
from skymount.server.http import responses
from skymount.server.http.query_params import Params, form_params, number
from skymount.server.http.request_body import read_body
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.server.resolver import SkylinkResolver
from skymount.server.storage.interfaces import Entries
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
        return responses.json_body(found.encode_answer())

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
        return responses.BytesResponse(204, [])

    async def resolve(self, request: Request) -> Response:
        resolved = await self.resolver.resolve(request.path_params["link"])
        if not resolved.entries:
            raise HttpError(
                400, "failed to resolve skylink: wrong version: it is of version 1 already"
            )
        body = encode_resolved(resolved.skylink)
        return responses.json_body(body, headers=resolved.headers())


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
