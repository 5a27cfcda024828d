"""What a browser gets for a skylink or a name: a listing, a preview, or the content at its host."""

from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote

import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount.server.download.endpoint import (
    DownloadEndpoint,
    OpenDownload,
    read_content_type,
)
from skymount.server.download.path_selection import index_of
from skymount.server.http import responses
from skymount.server.http.host_header import RequestHost
from skymount.server.http.query_params import parse_query
from skymount.server.http.requester import (
    HAS_PAGES,
    HOST,
    IS_ISOLATED,
    REQUESTER,
    Kind,
    takes_page,
)
from skymount.server.http_error import HttpError
from skymount.server.pages import directory
from skymount.server.pages.content_hosts import ContentHosts, portal_url
from skymount.server.pages.media import essence, is_inert, preview_kind
from skymount.server.pages.rendering import SANDBOX, render_page
from skymount.server.storage.stored_range import read_chunks
from skymount.wire.metadata import Metadata, is_single

VIEW = "/-/view"

_TEXT_LIMIT = 256 << 10  # bytes of a text that are shown
_NUMBER_DIGITS = 9


def page_number(text: str) -> int:
    """Return the number of a page in a query; 1 for what is no number."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS
    return max(1, int(text)) if is_number else 1


@dataclass(frozen=True, slots=True)
class ContentPages:
    """The pages about content of one portal."""

    download: DownloadEndpoint
    hosts: ContentHosts

    async def get(self, request: Request, *, attachment: bool = False) -> Response:
        """Answer GET and HEAD of a skylink or a path inside, or of a name."""
        if takes_page(request):
            response = await self._for_browser(request, attachment=attachment)
        else:
            response = await self._without_pages(request, attachment=attachment)
        names = request.scope[REQUESTER].shown_by
        if not request.scope[HOST].content:  # where Service Workers are refused
            names += ("Service-Worker",)
        _add(response, [("Vary", ", ".join(names))])
        return response

    async def _for_browser(self, request: Request, *, attachment: bool) -> Response:
        opened = await self.download.load(request, attachment=attachment)
        query, portal = opened.request.query, portal_url(request)
        if not portal and _is_directory(opened):
            page = await self._listing(request, opened, _base(request))
            if page is not None:
                return page
        opened = await self.download.select(opened)
        content = opened.content
        if content is not None and content.archive:
            if portal and not query.archive and not query.attachment:  # at a host of content
                return _redirect(portal + quote(request.scope["path"], safe="/%+"))
            return await self.download.serve(request, opened)
        return await self._content(request, opened)

    async def _without_pages(self, request: Request, *, attachment: bool) -> Response:
        """Answer as the contract says; a browser has to sandbox what could run.

        Whoever asks is told so, as a cache may give the answer to a browser.
        """
        opened = await self.download.load(request, attachment=attachment)
        may_be_index = _may_be_index(request) and _is_directory(opened)
        opened = await self.download.select(opened)
        is_found = opened.content is not None and opened.content.status == 200
        may_be_index = may_be_index and is_found
        if may_be_index and request.scope[REQUESTER].kind in (Kind.PART, Kind.PROGRAM):
            return await self._index(request, opened)
        response = await self.download.serve(request, opened)
        if may_be_index:
            _add(response, _told_by(request))
        if opened.content is None or not _is_isolated(request):
            return response
        if not is_inert(response.headers.get("content-type", "")):  # 304 has none
            _add(response, SANDBOX)
        return response

    async def _content(self, request: Request, opened: OpenDownload) -> Response:
        """Answer with content: at its own host, or sandboxed."""
        if not _is_isolated(request):
            return await self.download.serve(request, opened)
        query, content = opened.request.query, opened.content
        kind = (
            ""
            if content is None
            else await read_content_type(opened.skyfile, content, self.download.guessed)
        )
        if not is_inert(kind) and not query.attachment:
            if target := self.hosts.url(request):
                return _redirect(target)
            if essence(kind) == "application/pdf":  # browsers show none in a sandbox
                query = replace(query, attachment=True)
                opened = replace(opened, request=replace(opened.request, query=query))
        response = await self.download.serve(request, opened)
        _add(response, SANDBOX)
        return response

    async def view(self, request: Request) -> Response:
        """Answer with the listing of a directory, or the preview of a file."""
        if not takes_page(request):
            raise HttpError(404, "Not Found")
        opened = await self.download.load(request)
        query = replace(opened.request.query, archive="", range_header="")
        opened = replace(opened, request=replace(opened.request, query=query))
        base = f"{VIEW}/{request.path_params['link']}"
        path = opened.request.path
        metadata = opened.skyfile.metadata
        if not metadata.subfiles and path:
            raise HttpError(404, f"there is no /{path} in this skylink, which is a single file")
        if path in metadata.subfiles or (not path and is_single(metadata)):
            return await self._preview(request, opened, base)
        page = await self._listing(request, opened, base)
        if page is None:
            raise HttpError(404, f"there is no /{path} in this skylink")
        return page

    async def _listing(self, request: Request, opened: OpenDownload, base: str) -> Response | None:
        """Answer with the listing of a directory; None if there is none at the path."""
        query = parse_query(request.scope["query_string"])
        search, sort = query.get("q", "")[:200].strip(), query.get("sort", "name")
        if sort.removeprefix("-") not in directory.SORTS:
            sort = "name"
        path = opened.request.path.strip("/")
        metadata = opened.skyfile.metadata

        def make() -> tuple[directory.DirectoryPage, list[tuple[str, str]]] | None:
            found = directory.find_directory(metadata, path)
            if found is None:
                return None
            number = page_number(query.get("page", ""))
            return directory.page_of(found, search, sort, number), directory.parents_of(path)

        made = await trio.to_thread.run_sync(make)
        if made is None:
            return None
        found, parents = made
        skylink = opened.resolved.skylink
        return await render_page(
            request,
            "listing.html",
            headers=opened.resolved.headers(),
            found=found,
            search=search,
            sort=sort,
            path=path,
            parents=parents,
            name=metadata.filename,
            skylink=str(skylink),
            site=f"/{opened.resolved.requested}/" if _is_site(metadata) else "",
            base=base,
            view=f"{VIEW}/{skylink}",
            readable_type=directory.readable_type,
        )

    async def _index(self, request: Request, opened: OpenDownload) -> Response:
        """Answer with all names of a directory, as links to what they are; for programs."""
        headers = self.download.headers(request, opened)
        headers += [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Security-Policy", "sandbox; default-src 'none'"),
            *_told_by(request),
        ]
        path = opened.request.path.strip("/")
        find = partial(directory.find_directory, opened.skyfile.metadata, path)
        found = await trio.to_thread.run_sync(find)
        if found is None:
            raise HttpError(404, f"there is no /{path} in this skylink")
        return responses.StreamedResponse(200, headers, directory.index_chunks(found), None)

    async def _preview(self, request: Request, opened: OpenDownload, base: str) -> Response:
        opened = await self.download.select(opened)
        content, skyfile = opened.content, opened.skyfile
        if content is None:
            raise HttpError(404, "Not Found")
        path, skylink = opened.request.path, opened.resolved.skylink
        kind = await read_content_type(skyfile, content, self.download.guessed)
        shown, text = preview_kind(kind), ""
        if shown == "text":
            start = content.extents[0][0]
            part = [(start, min(content.size, _TEXT_LIMIT))]
            read = partial(read_chunks, skyfile.stored.payload, part)
            text = await trio.to_thread.run_sync(lambda: b"".join(read()).decode(errors="replace"))
        frame = self.hosts.url_of(request, skylink, path) if shown == "pdf" else ""
        parent = path.rpartition("/")[0]

        def surroundings() -> tuple[tuple[str, str], list[tuple[str, str]]]:
            found = directory.find_directory(skyfile.metadata, parent)
            near = ("", "") if found is None else found.neighbours(path.rpartition("/")[2])
            return near, directory.parents_of(parent)

        (before, after), parents = await trio.to_thread.run_sync(surroundings)
        return await render_page(
            request,
            "preview.html",
            headers=opened.resolved.headers(),
            frames=frame.removeprefix("//").partition("/")[0],
            name=content.name,
            path=path,
            parents=parents,
            parent=parent,
            before=before,
            after=after,
            root=skyfile.metadata.filename,
            size=content.size,
            kind=kind.partition(";")[0],
            shown=shown,
            text=text,
            text_limit=_TEXT_LIMIT,
            frame=frame,
            skylink=str(skylink),
            raw=f"/{skylink}" + (f"/{quote(path)}" if path else ""),
            base=base,
            view=f"{VIEW}/{skylink}",
            runs=not is_inert(kind),
            is_directory=not is_single(skyfile.metadata),
        )


def _is_directory(opened: OpenDownload) -> bool:
    """Whether a path is none of a file, and has no index page."""
    metadata, path, query = opened.skyfile.metadata, opened.request.path, opened.request.query
    if query.archive or query.attachment or path in metadata.subfiles:
        return False
    if not metadata.subfiles or (not path and is_single(metadata)):
        return False
    return not index_of(metadata, path)


def _may_be_index(request: Request) -> bool:
    """Whether a directory is a listing for programs that load what its links lead to."""
    is_below_portal = not request.scope[HOST].content and bool(request.scope[HAS_PAGES])
    return is_below_portal and str(request.scope["path"]).endswith("/")


def _told_by(request: Request) -> responses.HeaderList:
    return [("Vary", ", ".join(request.scope[REQUESTER].told_by))]


def _is_isolated(request: Request) -> bool:
    """Whether content is under the portal's own host, and must not have its origin."""
    host: RequestHost = request.scope[HOST]
    return not host.content and bool(request.scope[IS_ISOLATED])


def _add(response: Response, headers: responses.HeaderList) -> None:
    response.raw_headers = [*response.raw_headers, *responses.encode_headers(headers)]


def _is_site(metadata: Metadata) -> bool:
    """Whether a skylink shows a page of its own."""
    if metadata.tryfiles:
        return any(name.removeprefix("/") in metadata.subfiles for name in metadata.tryfiles)
    if metadata.disabledefaultpath:
        return False
    return bool(metadata.defaultpath) or "index.html" in metadata.subfiles


def _base(request: Request) -> str:
    """Return the URL of the root directory of what a request is about."""
    path = request.scope["path"]
    if path.startswith("/hns/"):
        return "/".join(path.split("/")[:3])
    return f"/{request.path_params['link']}"


def _redirect(target: str) -> Response:
    return responses.BytesResponse(307, [("Location", target.encode("ascii", "replace"))])
