"""The first page: what is stored, signing in, and uploads.

JavaScript sends them, and shows their progress, or the browser itself.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

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
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.server.pages.listing import page_number
from skymount.server.pages.rendering import render_page
from skymount.server.pages.sessions import TOKEN_FIELD, TOKEN_HEADER, Sessions
from skymount.server.storage.catalogue_rows import ListPage
from skymount.server.storage.interfaces import Catalogue, ContentStore
from skymount.server.upload.endpoint import UploadEndpoint
from skymount.server.upload.rules import (
    DIRECTORY_FIELD,
    FILE_FIELD,
    PartList,
    UploadQuery,
    is_form_type,
)
from skymount.wire.http.multipart import PartHeader
from skymount.wire.metadata import Metadata
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
