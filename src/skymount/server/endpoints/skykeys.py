"""The endpoints of skykeys: 7 to 10 of the contract, and the one that deletes (wire notes 7)."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from skymount.errors import MalformedError
from skymount.server.config import PortalConfig
from skymount.server.http import responses
from skymount.server.http.query_params import Params, form_params
from skymount.server.http.request_body import read_body
from skymount.server.http_error import HttpError
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.wire.skykey import Kind, Skykey, check_id, check_name, encode_list

_BODY_LIMIT = 64 << 10  # bytes of a form; the text of a skykey has at most 4 KiB

_NOT_BOTH = "you must specify either the name or ID of the skykey, not both"
_NEITHER = "you must specify the name or ID of the skykey"


@dataclass(frozen=True, slots=True)
class SkykeyEndpoints:
    """The endpoints of one portal's skykeys. Most errors have status 500, as on other portals."""

    config: PortalConfig
    skykeys: SkykeyStore

    async def create(self, request: Request) -> Response:
        """Make a key of the given name and type, and answer with it (contract 7)."""
        params = await self._params(request)
        name, kind = params.get("name", ""), params.get("type", "")
        if not name:
            raise HttpError(500, "you must specify the name of the skykey")
        if not kind:
            raise HttpError(500, "you must specify the type of the skykey")
        try:
            parsed = Kind.parse(kind)
        except MalformedError as error:
            raise HttpError(500, str(error)) from None
        try:
            return _secret((await self.skykeys.create(name, parsed)).encode_record())
        except MalformedError as error:
            raise HttpError(500, f"failed to create skykey: {error}") from None

    async def add(self, request: Request) -> Response:
        """Store a key that was made elsewhere (contract 8)."""
        text = (await self._params(request)).get("skykey", "")
        if not text:
            raise HttpError(500, "you must specify the skykey")
        try:
            await self.skykeys.add(Skykey.parse(text))
        except MalformedError as error:
            raise HttpError(500, f"failed to add skykey: {error}") from None
        return Response(status_code=204)

    async def get(self, request: Request) -> Response:
        name, key_id = await self._name_and_id(request, 500)
        try:
            return _secret(self.skykeys.find(name=name, key_id=key_id).encode_record())
        except MalformedError as error:
            raise HttpError(500, f"failed to retrieve skykey: {error}") from None

    async def list(self, request: Request) -> Response:
        return _secret(encode_list(self.skykeys.all()))

    async def delete(self, request: Request) -> Response:
        name, key_id = await self._name_and_id(request, 400)
        try:
            check_id(key_id) if key_id else check_name(name)
        except MalformedError as error:
            raise HttpError(400, str(error)) from None
        try:
            await self.skykeys.delete(name=name, key_id=key_id)
        except MalformedError as error:
            raise HttpError(500, f"failed to delete skykey: {error}") from None
        return Response(status_code=204)

    async def _name_and_id(self, request: Request, status: int) -> tuple[str, str]:
        """Return name and id, of which one is empty; HttpError with that status otherwise."""
        params = await self._params(request)
        name, key_id = params.get("name", ""), params.get("id", "")
        if bool(name) == bool(key_id):
            raise HttpError(status, _NOT_BOTH if name else _NEITHER)
        return name, key_id

    async def _params(self, request: Request) -> Params:
        body = await read_body(request, _BODY_LIMIT, self.config.body_timeout)
        return form_params(request, body)


def _secret(body: bytes) -> Response:
    """Answer with keys, which no cache may store."""
    return responses.json_body(body, headers=[("Cache-Control", "no-store")])
