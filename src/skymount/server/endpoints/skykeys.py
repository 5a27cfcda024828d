"""The endpoints of skykeys: 7 to 10 of the contract, and the one that deletes (docs/wire.md 7)."""

from dataclasses import dataclass

from skymount.server.config import PortalConfig
from skymount.server.http.forms import Params, form_params
from skymount.server.http.messages import Request, Response, json_response, read_body
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.server.storage.interfaces import Skykeys
from skymount.wire.skykey import Kind, Skykey, check_id, check_name, encode_list

_BODY_LIMIT = 64 << 10  # bytes of a form; the text of a skykey has at most 4 KiB

_NOT_BOTH = "you must specify either the name or ID of the skykey, not both"
_NEITHER = "you must specify the name or ID of the skykey"


@dataclass(frozen=True, slots=True)
class SkykeyEndpoints:
    """The endpoints of one portal's skykeys."""

    config: PortalConfig
    skykeys: Skykeys

    async def create(self, request: Request) -> Response:
        params = await self._params(request)
        name, kind = params.get("name", ""), params.get("type", "")
        if not name:
            raise HttpError(400, "you must specify the name of the skykey")
        if not kind:
            raise HttpError(400, "you must specify the type of the skykey")
        with refuse_malformed(400):
            parsed = Kind.parse(kind)
        with refuse_malformed(400, "failed to create skykey: "):
            return json_response((await self.skykeys.create(name, parsed)).encode_record())

    async def add(self, request: Request) -> Response:
        text = (await self._params(request)).get("skykey", "")
        if not text:
            raise HttpError(400, "you must specify the skykey")
        with refuse_malformed(400, "failed to add skykey: "):
            await self.skykeys.add(Skykey.parse(text))
        return Response(204)

    async def get(self, request: Request) -> Response:
        name, key_id = await self._name_and_id(request)
        with refuse_malformed(400, "failed to retrieve skykey: "):
            return json_response(
                (await self.skykeys.find(name=name, key_id=key_id)).encode_record()
            )

    async def list(self, request: Request) -> Response:
        return json_response(encode_list(await self.skykeys.all()))

    async def delete(self, request: Request) -> Response:
        name, key_id = await self._name_and_id(request)
        with refuse_malformed(400):
            check_id(key_id) if key_id else check_name(name)
        with refuse_malformed(400, "failed to delete skykey: "):
            await self.skykeys.delete(name=name, key_id=key_id)
        return Response(204)

    async def _name_and_id(self, request: Request) -> tuple[str, str]:
        params = await self._params(request)
        name, key_id = params.get("name", ""), params.get("id", "")
        if bool(name) == bool(key_id):
            raise HttpError(400, _NOT_BOTH if name else _NEITHER)
        return name, key_id

    async def _params(self, request: Request) -> Params:
        body = await read_body(request, _BODY_LIMIT, self.config.body_timeout)
        return form_params(request, body)
