"""The endpoints of registry entries and names, of skykeys, and of sectors, which clients verify
content with.

They are 5 to 12 of the contract, and the one that deletes a skykey; docs/wire.md 4.7, 6, 7 and 8.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import unquote

from skymount.errors import BadSignatureError, MalformedError, StorageError
from skymount.server.config import PortalConfig
from skymount.server.http.forms import Params, check_timeout, form_params, number, parse_query
from skymount.server.http.messages import (
    FIRST_PIECE,
    JSON_TYPE,
    Pieces,
    Request,
    Response,
    cache_control,
    fields,
    is_unchanged,
    json_response,
    read_body,
)
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.server.resolver import ResolvedSkylink, SkylinkResolver
from skymount.server.storage.disk_errors import StorageUnavailableError
from skymount.server.storage.interfaces import Entries, Names, Skykeys
from skymount.server.storage.skyfile_index import SkyfileIndex
from skymount.server.storage.stored_range import (
    StoredRange,
    fetch_range,
    read_chunks,
    read_range,
)
from skymount.wire.hns import DomainRecord, SkylinkRecord, encode_resolution, parse_domain
from skymount.wire.http.responses import encode_resolved, etag
from skymount.wire.registry_entry import (
    UPDATE_LIMIT,
    SignedEntry,
    parse_public_key,
    parse_tweak,
)
from skymount.wire.skykey import Kind, Skykey, check_id, check_name, encode_list
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE
from skymount.wording import readable_size

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


_BINARY = fields(("Content-Type", "application/octet-stream"))


@dataclass(frozen=True, slots=True)
class SectorEndpoints:
    """The endpoints of one portal's sectors."""

    index: SkyfileIndex
    resolver: SkylinkResolver

    async def metadata(self, request: Request) -> Response:
        resolved = await self.resolver.resolve(request.variables["link"])
        skyfile = await self.index.find(resolved.skylink)
        if skyfile.is_encrypted:
            skyfile = (await self.index.load(resolved.skylink)).stored
        cache = cache_control(may_move=bool(resolved.entries), is_decrypted=skyfile.is_encrypted)
        response = _tagged(request, etag(resolved.skylink, "metadata", ""), cache, resolved)
        if response.status == 200:
            response.fields += fields(("Content-Type", JSON_TYPE))
            stored = skyfile.metadata
            if stored.is_in_memory:
                response.body = read_range(stored)
            else:
                response.body = Pieces(read_chunks(stored, size=FIRST_PIECE), stored.length)
        return response

    async def base_sector(self, request: Request) -> Response:
        """Answer with the base sector, up to the fetch size of the skylink."""
        check_timeout(parse_query(request.query))
        resolved = await self.resolver.resolve(request.variables["link"])
        skyfile = await self.index.find(resolved.skylink)
        cache = cache_control(may_move=bool(resolved.entries))
        response = _tagged(request, etag(resolved.skylink, "basesector", ""), cache, resolved)
        if response.status == 200:
            size = skyfile.skylink.fetch_size
            used = replace(skyfile.base, length=min(size, skyfile.base.length))
            response.fields += _BINARY
            response.body = (await fetch_range(used)).ljust(size, b"\0")
        return response

    async def root(self, request: Request) -> Response:
        params = parse_query(request.query)
        check_timeout(params)
        try:
            root = bytes.fromhex(params.get("root", ""))
        except ValueError:
            root = b""
        if len(root) != ROOT_SIZE:
            raise HttpError(400, "unable to parse 'root' parameter: not 64 hex digits")
        offset, length = number(params, "offset"), number(params, "length")
        if offset is None or length is None:
            raise HttpError(400, "'offset' and 'length' parameters are needed")
        if offset + length > SECTOR_SIZE:
            size = readable_size(SECTOR_SIZE)
            raise HttpError(400, f"offset and length go beyond the sector of {size}")
        stored = await self.index.sector(root)
        tag = f'"{root.hex()}-{offset}-{length}"'
        response = _tagged(request, tag, cache_control(may_move=False))
        if response.status == 200:
            used = max(0, min(length, stored.length - offset))
            wanted = StoredRange(stored.source, stored.offset + offset, used)
            data = await fetch_range(wanted) if used else b""
            response.fields += _BINARY
            response.body = data.ljust(length, b"\0")
        return response


def _tagged(
    request: Request, tag: str, cache: str, resolved: ResolvedSkylink | None = None
) -> Response:
    """Return the beginning of an answer: 304 if the client has it already, else 200."""
    status = 304 if is_unchanged(request.headers, tag) else 200
    known, skylink = (resolved.fields, str(resolved.skylink)) if resolved else (b"", "")
    return Response(status, known + fields(("ETag", tag)), cache=cache, skylink=skylink)
