"""The skykey calls of the client: create, add, get, list, delete (contract, endpoints 7 to 10)."""

import copy
import re
from typing import Unpack

from skymount.errors import MalformedError, NotFoundError, PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.http.response import Response
from skymount.settings import CommonOptions, PortalOptions
from skymount.values import text
from skymount.wire import skykey
from skymount.wire.http import requests, responses
from skymount.wire.skykey import Kind, Skykey

_NOT_FOUND_WORDS = ("No Skykey with that name", "No Skykey is associated with that ID")
_SHOWN = len("skykey:") + 16  # characters of a key's text that reveal hardly any of it


class SkykeyCalls(PortalReader):
    """Skykeys at the node. Real nodes answer 500 to almost every mistake (docs/wire.md 7)."""

    async def create_skykey(
        self,
        name: str,
        type: str = Kind.PRIVATE.value,  # noqa: A002 - the contract's name
        **options: Unpack[CommonOptions],
    ) -> Skykey:
        """Make a skykey of type ``public-id`` or ``private-id``."""
        call = self.options.overridden(**options)
        body = requests.form(name=_name(name), type=Kind.parse(text(type, "type")).value)
        return await self._skykey(requests.create_skykey(call.dialect), call, body)

    async def add_skykey(self, skykey: str, **options: Unpack[CommonOptions]) -> None:
        """Hand over a skykey, written ``skykey:<base64>?name=<name>``."""
        call = self.options.overridden(**options)
        key = Skykey.parse(text(skykey, "skykey"))
        body = requests.form(skykey=key.text)
        try:
            await self._fetch_from_node(requests.add_skykey(call.dialect), call, body)
        except PortalError as error:
            raise _without_key(key, error) from None

    async def get_skykey_by_name(self, name: str, **options: Unpack[CommonOptions]) -> Skykey:
        """Return the skykey of that name; NotFoundError when there is none."""
        call = self.options.overridden(**options)
        return await self._skykey(requests.get_skykey(call.dialect, name=_name(name)), call)

    async def get_skykey_by_id(
        self,
        id: str,  # noqa: A002 - the contract's name
        **options: Unpack[CommonOptions],
    ) -> Skykey:
        """Return the skykey of that id (base64 of 16 bytes); NotFoundError when there is none."""
        call = self.options.overridden(**options)
        key_id = skykey.check_id(text(id, "id"))
        return await self._skykey(requests.get_skykey(call.dialect, key_id=key_id), call)

    async def get_skykeys(self, **options: Unpack[CommonOptions]) -> tuple[Skykey, ...]:
        """Return every skykey, in the order of the node."""
        call = self.options.overridden(**options)
        request = requests.list_skykeys(call.dialect)
        answer = await self.node.fetch(request, skykey.LIST_LIMIT, call)
        with self.node.parsing(request, call, answer.status):
            return skykey.parse_list(answer.body)

    async def delete_skykey(
        self,
        *,
        name: str = "",
        id: str = "",  # noqa: A002 - as in `get_skykey_by_id`
        **options: Unpack[CommonOptions],
    ) -> None:
        """Make the node forget a skykey: exactly one of `name` and `id`."""
        call = self.options.overridden(**options)
        if bool(text(name, "name")) == bool(text(id, "id")):
            raise MalformedError("you must specify either the name or ID of the skykey, not both")
        fields = {"name": _name(name)} if name else {"id": skykey.check_id(id)}
        request = requests.delete_skykey(call.dialect)
        await self._fetch_from_node(request, call, requests.form(**fields))

    async def _skykey(
        self, request: requests.Request, call: PortalOptions, body: bytes | None = None
    ) -> Skykey:
        answer = await self._fetch_from_node(request, call, body)
        with self.node.parsing(request, call, answer.status):
            return Skykey.parse_record(answer.body)

    async def _fetch_from_node(
        self, request: requests.Request, call: PortalOptions, body: bytes | None = None
    ) -> Response:
        """Send a request; NotFoundError when the node's words say so, whatever the status."""
        try:
            return await self.node.fetch(request, responses.RESPONSE_LIMIT, call, content=body)
        except PortalError as error:
            if not any(words in error.message for words in _NOT_FOUND_WORDS):
                raise
            raise NotFoundError(
                error.message, status=error.status, method=error.method, url=error.url
            ) from None


def _name(value: object) -> str:
    name = skykey.check_name(text(value, "name"))
    if not name:
        raise MalformedError("you must specify the name of the skykey")
    return name


def _without_key(key: Skykey, error: PortalError) -> PortalError:
    """Return the same error without the key, which the node's words may repeat."""
    beginning = key.text[:_SHOWN].removeprefix("skykey:")
    found = copy.copy(error)
    found.message = re.sub(re.escape(beginning) + r"[A-Za-z0-9_-]*", "***", error.message)
    return found
