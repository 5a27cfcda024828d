"""The portal's own pages: what is stored, signing in, uploads, names and registry entries.

JavaScript sends uploads, and shows their progress, or the browser itself.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import msgspec
import trio

from skymount.errors import MalformedError, StorageError
from skymount.server.config import PortalConfig
from skymount.server.http.forms import Params, form_params, parse_query
from skymount.server.http.messages import (
    Request,
    Response,
    fields,
    json_response,
    read_body,
    text_response,
)
from skymount.server.http.passwords import TOKEN_FIELD, TOKEN_HEADER, Sessions
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.server.pages.listing import page_number
from skymount.server.pages.rendering import render_page
from skymount.server.storage.catalogue_rows import ListPage
from skymount.server.storage.interfaces import Catalogue, ContentStore, Entries, Names
from skymount.server.storage.zone_file import Zone
from skymount.server.upload.endpoint import UploadEndpoint
from skymount.server.upload.rules import (
    DIRECTORY_FIELD,
    FILE_FIELD,
    PartList,
    UploadQuery,
    is_form_type,
)
from skymount.wire.hns import RegistryRecord, SkylinkRecord
from skymount.wire.http.multipart import PartHeader
from skymount.wire.metadata import Metadata
from skymount.wire.registry_entry import (
    ALGORITHM,
    SignedEntry,
    linked_skylink,
    parse_public_key,
    parse_tweak,
)
from skymount.wire.skylink import Skylink

ROWS = 50
_FOR_PROGRAMS = "A skymount portal. Browsers get a page here; programs start at /skynet/.\n"

_log = logging.getLogger(__name__)

_FORM_LIMIT = 16 << 10  # bytes of the form with the password
_SEARCH_LIMIT = 200  # characters


@dataclass(frozen=True, slots=True)
class Stored:
    """What `/?stored=` asks about."""

    link: str
    is_here: bool
    name: str = ""
    size: int = 0
    files: int = 0
    mount_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HomePage:
    """The first page of one portal."""

    config: PortalConfig
    sessions: Sessions
    store: ContentStore
    catalogue: Catalogue

    async def get(self, request: Request) -> Response:
        if not request.asker.takes_page:
            return text_response(200, _FOR_PROGRAMS, vary=request.asker.requester.shown_by)
        session = await self.sessions.find(request)
        if session is None:
            return await self.ask_password(request)
        query = parse_query(request.query)
        search = query.get("q", "")[:_SEARCH_LIMIT].strip()
        number = page_number(query.get("page", ""))
        found = await self._listed(search, (number - 1) * ROWS)
        return await render_page(
            request,
            "home.html",
            found=found,
            number=number,
            pages=max(1, -(-found.total // ROWS)) if found else 1,
            search=search,
            stored=await self._stored(query),
            token=self.sessions.token(session),
            limit=self.config.max_upload,
            signed_in=bool(session),
        )

    async def _listed(self, search: str, start: int) -> ListPage | None:
        """Return rows of the list; None if it cannot be read, as one can upload without it."""
        try:
            return await self.catalogue.page(search, start, ROWS)
        except StorageError as error:
            _log.warning("the list cannot be shown: %s", error)
            return None

    async def _stored(self, query: Params) -> Stored | None:
        link = query.get("stored", "")
        if not link:
            return None
        try:
            skylink = Skylink(link)
        except MalformedError:
            return Stored(link[:_SEARCH_LIMIT], is_here=False)
        link = str(skylink)
        if await trio.to_thread.run_sync(self.store.find, skylink) is None:
            return Stored(link, is_here=False)
        mounts = await trio.to_thread.run_sync(self.config.find_mounts)
        paths = tuple(f"{path}/skylinks/{link}" for path in sorted(mounts))
        try:
            row = await self.catalogue.find(skylink)
        except StorageError as error:
            _log.warning("the list cannot be read: %s", error)
            row = None
        if row is None:
            return Stored(link, is_here=True, mount_paths=paths)
        return Stored(link, True, row.name, row.size, row.files, paths)

    async def ask_password(self, request: Request, *, is_wrong: bool = False) -> Response:
        """Answer with the form to sign in, which leads back to where the request was for."""
        token = self.sessions.token("")
        return await render_page(
            request,
            "sign_in.html",
            status=403 if is_wrong else 200,
            token=token,
            is_wrong=is_wrong,
        )

    async def sign_in(self, request: Request) -> Response:
        form = await self._form(request)
        self.sessions.check(request, "", form.get(TOKEN_FIELD, ""))
        cookie = await self.sessions.sign_in(request, form.get("password", "").encode())
        return _to_home(cookie) if cookie else await self.ask_password(request, is_wrong=True)

    async def sign_out(self, request: Request) -> Response:
        form = await self._form(request)
        session = await self.sessions.find(request)
        self.sessions.check(request, session or "", form.get(TOKEN_FIELD, ""))
        # Nothing else is cleared: other programs of this host may have cookies and storage there.
        return _to_home(self.sessions.sign_out(request), ("Clear-Site-Data", '"cache"'))

    async def _form(self, request: Request) -> Params:
        body = await read_body(request, _FORM_LIMIT, self.config.body_timeout)
        return form_params(request, body)


def _to_home(cookie: str, *more: tuple[str, str]) -> Response:
    return Response(303, fields(("Location", "/"), ("Set-Cookie", cookie), *more))


_SEVERAL = "files"  # the name of a directory of files that were chosen one by one


class PageParts(PartList):
    """The parts of a page's form: its token, then files.

    Files that are all in one folder are stored as that folder, with paths below it.
    """

    def __init__(self, config: PortalConfig, check: Callable[[str], None] | None) -> None:
        """`check` is called with the token before the first file is taken; HttpError."""
        super().__init__(config)
        self._check = check
        self._token = bytearray()
        self._folders: set[str] = set()
        self._has_files = False

    def begin(self, part: PartHeader, offset: int) -> bytearray | None:
        if part.field == TOKEN_FIELD:
            self._token = bytearray()
            return self._token
        if self._check is not None:
            self._check(self._token.decode(errors="replace"))
            self._check = None
        if part.field in (FILE_FIELD, DIRECTORY_FIELD) and not part.filename:
            return bytearray()  # of an input in which nothing was chosen
        folder, slash, _ = part.filename.partition("/")
        self._folders.add(folder if slash else "")
        self._has_files = True
        field = DIRECTORY_FIELD if slash else FILE_FIELD  # only several files make a directory
        return super().begin(replace(part, field=field), offset)

    def metadata(self, query: UploadQuery, length: int) -> Metadata:
        if self._check is not None:
            self._check(self._token.decode(errors="replace"))
        if not self._has_files:
            raise MalformedError("no file was chosen")
        found = super().metadata(replace(query, filename=_SEVERAL), length)
        if len(self._folders) == 1:
            (folder,) = self._folders
            if folder:
                return _without_folder(found, folder)
        if len(found.subfiles) == 1:
            return msgspec.structs.replace(found, filename=next(iter(found.subfiles)))
        return found


def _without_folder(metadata: Metadata, folder: str) -> Metadata:
    start = len(folder) + 1
    subfiles = {
        path[start:]: msgspec.structs.replace(sub, filename=path[start:])
        for path, sub in metadata.subfiles.items()
    }
    return msgspec.structs.replace(metadata, filename=folder, subfiles=subfiles)


@dataclass(frozen=True, slots=True)
class UploadForm:
    """The upload of one portal's pages."""

    upload: UploadEndpoint
    sessions: Sessions

    async def post(self, request: Request) -> Response:
        """Store what a form brings, and lead to the page that shows it."""
        session = await self.sessions.find(request)
        if session is None:
            raise HttpError(401, "sign in first, then upload again")
        content_type = request.headers.get("content-type", "").encode("latin-1")
        if not is_form_type(content_type):
            raise HttpError(400, "failed to upload: the form has to be multipart/form-data")
        header = request.headers.get(TOKEN_HEADER)
        check = None
        if header is None:

            def check(token: str) -> None:
                self.sessions.check(request, session, token)

        else:
            self.sessions.check(request, session, header)
        with refuse_malformed(400, "failed to upload: "):
            query = UploadQuery.parse({}, content_type=content_type, force_disabled=True)
            parts = PageParts(self.upload.config, check)
            skylink = await self.upload.receive(request, query, content_type, parts)
        target = f"/?stored={skylink}"
        if request.asker.takes_page:
            return Response(303, fields(("Location", target)), skylink=str(skylink))
        body = msgspec.json.encode({"skylink": str(skylink), "page": target})
        return json_response(body, skylink=str(skylink))


PATH = "/-/registry"


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """A registry entry, or the place of one."""

    link: str  # its v2 skylink
    tweak: str = ""
    revision: int | None = None
    target: str = ""  # the skylink that it leads to
    text: str = ""  # its data, if that is no skylink
    is_deleted: bool = False

    @classmethod
    def of(cls, signed: SignedEntry) -> "ShownEntry":
        entry = signed.entry
        target = None if entry.is_deleted else linked_skylink(entry.data)
        text = ""
        if target is None and not entry.is_deleted:
            text = entry.data.decode(errors="backslashreplace")
        return cls(
            str(signed.link),
            entry.tweak.hex(),
            entry.revision,
            str(target or ""),
            text,
            entry.is_deleted,
        )


@dataclass(frozen=True, slots=True)
class ShownName:
    """A name, and what it leads to."""

    domain: str
    value: str
    target: str = ""  # of a skylink
    path: str = ""
    entry: ShownEntry | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RegistryPage:
    """The page of one portal."""

    home: HomePage
    entries: Entries
    zone: Names

    async def get(self, request: Request) -> Response:
        if not request.asker.takes_page:
            raise HttpError(404, "Not Found")
        session = await self.home.sessions.find(request)
        if session is None:
            return await self.home.ask_password(request)
        query = parse_query(request.query)
        shown = {"token": self.home.sessions.token(session), "signed_in": bool(session)}
        if key := query.get("key", "").strip():
            return await self._key(request, query, key, shown)
        return await self._names(request, query, shown)

    async def _key(
        self, request: Request, query: Params, key: str, shown: dict[str, Any]
    ) -> Response:
        with refuse_malformed(400):
            public_key = parse_public_key(key)
            after = parse_tweak(query["after"]) if query.get("after") else b""
        found = await self.entries.entries_of(public_key, after, ROWS + 1)
        more = ""
        if len(found) > ROWS:
            last = found[ROWS - 1].entry.tweak.hex()
            more = f"{PATH}?{urlencode({'key': public_key.hex(), 'after': last})}"
        return await render_page(
            request,
            "key.html",
            key=f"{ALGORITHM}:{public_key.hex()}",
            entries=[ShownEntry.of(signed) for signed in found[:ROWS]],
            more=more,
            **shown,
        )

    async def _names(self, request: Request, query: Params, shown: dict[str, Any]) -> Response:
        search = query.get("q", "")[:200].strip()
        number = page_number(query.get("page", ""))
        problem, domains, names = "", list[str](), list[ShownName]()
        try:
            zone = await trio.to_thread.run_sync(self.zone.current)
            domains = [each for each in zone.domains if search.casefold() in each]
            start = (number - 1) * ROWS
            names = [await self._name(zone, each) for each in domains[start : start + ROWS]]
        except StorageError as error:
            problem = str(error)
        with refuse_malformed(400):
            after = parse_public_key(query["after"]) if query.get("after") else b""
        keys = await self.entries.keys(after, ROWS + 2)
        more = ""
        if len(keys) > ROWS:
            more = f"{PATH}?{urlencode({'q': search, 'after': keys[ROWS - 1].hex()})}#keys"
        return await render_page(
            request,
            "registry.html",
            names=names,
            total=len(domains),
            number=number,
            pages=max(1, -(-len(domains) // ROWS)),
            search=search,
            problem=problem,
            keys=[f"{ALGORITHM}:{key.hex()}" for key in keys[:ROWS]],
            more=more,
            **shown,
        )

    async def _name(self, zone: Zone, domain: str) -> ShownName:
        value = zone.value(domain)
        try:
            record = zone.find(domain)
        except MalformedError as error:
            return ShownName(domain, value, problem=str(error))
        if isinstance(record, SkylinkRecord):
            return ShownName(domain, value, str(record.skylink), record.path)
        assert isinstance(record, RegistryRecord)
        found = await self.entries.find(record.skylink.root)
        link = str(record.skylink)
        entry = ShownEntry(link) if found is None else ShownEntry.of(found)
        return ShownName(domain, value, entry=entry)
