"""Owns the portal's skykeys: the file that they are kept in, and the endpoints 7 to 10 of the
contract with the one that deletes (wire notes 7).

What is encrypted with them is not its matter. No key is ever logged or put into a message.
"""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount import file_permissions
from skymount.errors import MalformedError, StorageError
from skymount.server.config import PortalConfig
from skymount.server.http import responses
from skymount.server.http.query_params import Params, form_params
from skymount.server.http.request_body import read_body
from skymount.server.http_error import HttpError
from skymount.storage import atomic_file
from skymount.wire.skykey import (
    KEY_SIZE,
    NONCE_SIZE,
    Kind,
    Skykey,
    check_id,
    check_name,
    encode_list,
)

FILE = "skykeys.json"
"""Name of the file in the portal's data directory."""

SKYKEYS_LIMIT = 1000
"""Skykeys of one portal; all are tried on a download whose key is not named."""

_VERSION = 1
_FILE_LIMIT = 1 << 20  # bytes; 1000 keys of the longest names take under half of it
_BODY_LIMIT = 64 << 10  # bytes of a form; a skykey's text has at most 4 KiB

_NOT_BOTH = "you must specify either the name or ID of the skykey, not both"
_NEITHER = "you must specify the name or ID of the skykey"


class _File(msgspec.Struct):
    version: int
    skykeys: list[str]


def _parse_file(raw: bytes) -> tuple[Skykey, ...]:
    try:
        found = msgspec.json.decode(raw, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MalformedError("it is not a list of skykeys") from None
    if found.version != _VERSION:
        raise MalformedError(f"its version is {str(found.version)[:20]}, not {_VERSION}")
    return tuple(map(Skykey.parse, found.skykeys))


def _read_file(path: Path) -> bytes | None:
    """Return the content of a file that only its owner may read, None when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        if objection := file_permissions.permission_problem(path, os.fstat(fd)):
            raise StorageError(f"{path}, which holds keys, cannot be used: {objection}")
        raw = file.read(_FILE_LIMIT + 1)
    if len(raw) > _FILE_LIMIT:
        raise StorageError(f"{path} is over {_FILE_LIMIT} bytes")
    return raw


def _save(path: Path, keys: tuple[Skykey, ...]) -> None:
    raw = msgspec.json.encode(_File(_VERSION, [key.text for key in keys]))
    try:
        atomic_file.replace(path, raw + b"\n")
    except OSError as error:
        raise StorageError(f"cannot write skykeys: {error.strerror or error}") from error


def check_addition(keys: tuple[Skykey, ...], new: Skykey) -> None:
    """Refuse a skykey whose name or id is taken; keys without a name may be many."""
    if new.name and any(key.name == new.name for key in keys):
        raise MalformedError("Skykey name already used by another key")
    if any(key.id == new.id for key in keys):
        raise MalformedError("Skykey ID already exists")
    if len(keys) >= SKYKEYS_LIMIT:
        raise MalformedError(f"there are {SKYKEYS_LIMIT} skykeys already")


def choose(keys: tuple[Skykey, ...], name: str, key_id: str) -> Skykey:
    """Return the key of that name or id, of which exactly one is given; MalformedError if none."""
    if key_id:
        wanted = check_id(key_id)
        found = next((key for key in keys if key.id == wanted), None)
        if found is None:
            raise MalformedError("No Skykey is associated with that ID")
        return found
    found = next((key for key in keys if key.name == name), None)
    if found is None:
        raise MalformedError("No Skykey with that name")
    return found


class SkykeyStore:
    """The skykeys of one portal. Use `open`; one at a time for a data directory."""

    def __init__(self, path: Path, keys: tuple[Skykey, ...]) -> None:
        self._path = path
        self._keys = keys
        self._writing = trio.Lock()

    @classmethod
    def open(cls, data: Path) -> Self:
        """Read the keys in a portal's data directory. Blocks on the disk.

        StorageError when they cannot be read, are damaged, or others may read them.
        """
        path = data / FILE
        try:
            raw = _read_file(path)
            return cls(path, _parse_file(raw) if raw is not None else ())
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
        except MalformedError as error:
            raise StorageError(f"{path} is damaged: {error}") from None

    async def all(self) -> tuple[Skykey, ...]:
        """Return every key, the oldest first."""
        return self._keys

    async def find(self, *, name: str = "", key_id: str = "") -> Skykey:
        """Return the key of that name or of that id; HttpError 500 (wire notes 7)."""
        if name and key_id:
            raise HttpError(500, _NOT_BOTH)
        if not name and not key_id:
            raise HttpError(500, _NEITHER)
        try:
            return choose(self._keys, name, key_id)
        except MalformedError as error:
            raise HttpError(500, f"failed to retrieve skykey: {error}") from None

    async def create(self, name: str, kind: Kind) -> Skykey:
        """Make a new key and keep it; HttpError 500 when the name will not do."""
        try:
            key = Skykey(kind, secrets.token_bytes(KEY_SIZE), secrets.token_bytes(NONCE_SIZE), name)
            await self._change(lambda keys: _with(keys, key))
        except MalformedError as error:
            raise HttpError(500, f"failed to create skykey: {error}") from None
        return key

    async def add(self, skykey: Skykey) -> None:
        """Keep a key that was made elsewhere; HttpError 500 when its name or id is taken."""
        try:
            await self._change(lambda keys: _with(keys, skykey))
        except MalformedError as error:
            raise HttpError(500, f"failed to add skykey: {error}") from None

    async def delete(self, *, name: str = "", key_id: str = "") -> None:
        """Forget a key for good; HttpError 400 for wrong arguments, 500 when there is none."""
        if bool(name) == bool(key_id):
            raise HttpError(400, _NOT_BOTH if name else _NEITHER)
        try:
            check_id(key_id) if key_id else check_name(name)
        except MalformedError as error:
            raise HttpError(400, str(error)) from None
        try:
            await self._change(lambda keys: _without(keys, name, key_id))
        except MalformedError as error:
            raise HttpError(500, f"failed to delete skykey: {error}") from None

    async def _change(self, change: Callable[[tuple[Skykey, ...]], tuple[Skykey, ...]]) -> None:
        """Put other keys in place of those there, on disk first."""
        async with self._writing:
            keys = change(self._keys)
            await trio.to_thread.run_sync(_save, self._path, keys)
            self._keys = keys


def _with(keys: tuple[Skykey, ...], new: Skykey) -> tuple[Skykey, ...]:
    check_addition(keys, new)
    return (*keys, new)


def _without(keys: tuple[Skykey, ...], name: str, key_id: str) -> tuple[Skykey, ...]:
    gone = choose(keys, name, key_id)
    return tuple(key for key in keys if key is not gone)


@dataclass(frozen=True, slots=True)
class SkykeyEndpoints:
    """The endpoints of one portal's skykeys."""

    config: PortalConfig
    skykeys: SkykeyStore

    async def create(self, request: Request) -> Response:
        """Answer with a new key, of the given name and type (contract 7)."""
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
        return _record(await self.skykeys.create(name, parsed))

    async def add(self, request: Request) -> Response:
        """Keep the key that is handed over (contract 8)."""
        text = (await self._params(request)).get("skykey", "")
        if not text:
            raise HttpError(500, "you must specify the skykey")
        try:
            skykey = Skykey.parse(text)
        except MalformedError as error:
            raise HttpError(500, f"failed to add skykey: {error}") from None
        await self.skykeys.add(skykey)
        return Response(status_code=204)

    async def get(self, request: Request) -> Response:
        """Answer with the key of a name or an id (contract 9)."""
        params = await self._params(request)
        found = await self.skykeys.find(name=params.get("name", ""), key_id=params.get("id", ""))
        return _record(found)

    async def list(self, request: Request) -> Response:
        """Answer with every key (contract 10)."""
        return _secret(encode_list(await self.skykeys.all()))

    async def delete(self, request: Request) -> Response:
        """Forget the key of a name or an id."""
        params = await self._params(request)
        await self.skykeys.delete(name=params.get("name", ""), key_id=params.get("id", ""))
        return Response(status_code=204)

    async def _params(self, request: Request) -> Params:
        body = await read_body(request, _BODY_LIMIT, self.config.body_timeout)
        return form_params(request, body)


def _record(skykey: Skykey) -> Response:
    return _secret(skykey.encode_record())


def _secret(body: bytes) -> Response:
    """Answer with keys, which no cache is to keep."""
    return responses.json_body(body, headers=[("Cache-Control", "no-store")])
