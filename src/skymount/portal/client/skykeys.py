"""Owns a node's skykeys as a client uses them: create, add, get, list, delete (contract 7-10)."""

import re

from skymount.errors import MalformedError, NotFoundError, PortalError
from skymount.portal import validation
from skymount.portal.http.client import HttpClient
from skymount.portal.http.response import Response
from skymount.portal.options import PortalOptions
from skymount.wire import requests, responses, skykey
from skymount.wire.skykey import Kind, Skykey

_UNKNOWN = ("No Skykey with that name", "No Skykey is associated with that ID")
_SHOWN = len("skykey:") + 16  # characters of a key's text that give hardly any of it away


class Skykeys:
    """The skykeys of one node. Real nodes answer 500 to almost every mistake (wire notes 7)."""

    def __init__(self, node: HttpClient) -> None:
        self._node = node

    async def create(self, name: str, kind: str, call: PortalOptions) -> Skykey:
        """Make a key; `kind` is ``public-id`` or ``private-id``."""
        named = _name(name)
        checked = Kind.parse(validation.text(kind, "type"))
        body = requests.form(name=named, type=checked.value)
        request = requests.create_skykey(call.dialect)
        return await self._record(request, call, body)

    async def add(self, text: str, call: PortalOptions) -> None:
        """Hand a key over, written ``skykey:<base64>?name=<name>``."""
        key = Skykey.parse(validation.text(text, "skykey"))
        body = requests.form(skykey=key.text)
        try:
            await self._fetch(requests.add_skykey(call.dialect), call, body)
        except PortalError as error:
            raise _without(key, error) from None

    async def get_by_name(self, name: str, call: PortalOptions) -> Skykey:
        """Return the key of that name; NotFoundError when there is none."""
        named = _name(name)
        request = requests.get_skykey(call.dialect, name=named)
        return await self._record(request, call)

    async def get_by_id(self, key_id: str, call: PortalOptions) -> Skykey:
        """Return the key of that id (base64 of 16 bytes); NotFoundError when there is none."""
        checked = skykey.check_id(validation.text(key_id, "id"))
        request = requests.get_skykey(call.dialect, key_id=checked)
        return await self._record(request, call)

    async def list(self, call: PortalOptions) -> tuple[Skykey, ...]:
        """Return every key, in the order in which the node lists them."""
        request = requests.list_skykeys(call.dialect)
        answer = await self._node.fetch(request, skykey.LIST_LIMIT, call)
        try:
            return skykey.parse_list(answer.body)
        except MalformedError as error:
            raise self._node.bad(request, call, str(error), answer.status) from None

    async def delete(self, name: str, key_id: str, call: PortalOptions) -> None:
        """Forget the key of that name or id: exactly one of the two."""
        if bool(validation.text(name, "name")) == bool(validation.text(key_id, "id")):
            raise MalformedError("you must specify either the name or ID of the skykey, not both")
        fields = {"name": _name(name)} if name else {"id": skykey.check_id(key_id)}
        await self._fetch(requests.delete_skykey(call.dialect), call, requests.form(**fields))

    async def _record(
        self, request: requests.Request, call: PortalOptions, body: bytes | None = None
    ) -> Skykey:
        answer = await self._fetch(request, call, body)
        try:
            return Skykey.parse_record(answer.body)
        except MalformedError as error:
            raise self._node.bad(request, call, str(error), answer.status) from None

    async def _fetch(
        self, request: requests.Request, call: PortalOptions, body: bytes | None = None
    ) -> Response:
        """Send a request; NotFoundError for a node's words that say so, whatever the status."""
        try:
            return await self._node.fetch(request, responses.RESPONSE_LIMIT, call, content=body)
        except PortalError as error:
            if not any(words in error.message for words in _UNKNOWN):
                raise
            raise NotFoundError(
                error.message, status=error.status, method=error.method, url=error.url
            ) from None


def _name(value: object) -> str:
    name = skykey.check_name(validation.text(value, "name"))
    if not name:
        raise MalformedError("you must specify the name of the skykey")
    return name


def _without(key: Skykey, error: PortalError) -> PortalError:
    """Return an error like that, which does not hold the key if the node's words repeat it."""
    beginning = key.text[:_SHOWN].removeprefix("skykey:")
    message = re.sub(re.escape(beginning) + r"[A-Za-z0-9_-]*", "***", error.message)
    return type(error)(message, status=error.status, method=error.method, url=error.url)
