"""The first page: upload, what was uploaded just now, and what is stored; and signing in."""

import logging
from dataclasses import dataclass

import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount.errors import MalformedError, StorageError
from skymount.server.config import PortalConfig
from skymount.server.http import responses
from skymount.server.http.query_params import Params, form_params, parse_query
from skymount.server.http.request_body import read_body
from skymount.server.http.requester import REQUESTER, takes_page
from skymount.server.pages.listing import page_number
from skymount.server.pages.rendering import render_page
from skymount.server.pages.sessions import TOKEN_FIELD, Sessions
from skymount.server.storage.catalogue_rows import ListPage
from skymount.server.storage.interfaces import Catalogue, ContentStore
from skymount.wire.skylink import Skylink

ROWS = 50
_FOR_PROGRAMS = b"A skymount portal. Browsers get a page here; programs start at /skynet/.\n"

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
        if not takes_page(request):
            headers: responses.HeaderList = [("Content-Type", "text/plain; charset=utf-8")]
            names = ", ".join(request.scope[REQUESTER].shown_by)
            return responses.BytesResponse(200, [*headers, ("Vary", names)], _FOR_PROGRAMS)
        session = await self.sessions.find(request)
        if session is None:
            return await self.ask_password(request)
        query = parse_query(request.scope["query_string"])
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
        response = _to_home(self.sessions.sign_out(request))
        # Nothing else is cleared: other programs of this host may have cookies and storage there.
        response.headers["Clear-Site-Data"] = '"cache"'
        return response

    async def _form(self, request: Request) -> Params:
        body = await read_body(request, _FORM_LIMIT, self.config.body_timeout)
        return form_params(request, body)


def _to_home(cookie: str) -> Response:
    return responses.BytesResponse(303, [("Location", "/"), ("Set-Cookie", cookie)])
