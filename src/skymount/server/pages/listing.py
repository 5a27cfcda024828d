"""What a browser gets for a skylink or a name: a listing, a preview, or the content.

Content that could run is shown under a host where its skylink has an origin of its own.
"""

import re
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote, unquote

import trio

from skymount.errors import MalformedError
from skymount.server.download.content import SelectedContent, index_of
from skymount.server.download.endpoint import Download, DownloadEndpoint
from skymount.server.http.clients import Kind, RequestHost
from skymount.server.http.forms import parse_query
from skymount.server.http.messages import Pieces, Request, Response, fields
from skymount.server.http_error import HttpError
from skymount.server.pages import directory
from skymount.server.pages.rendering import portal_url, render_page
from skymount.server.storage.stored_range import read_chunks
from skymount.wire.dialect import PRESETS
from skymount.wire.hns import parse_domain
from skymount.wire.metadata import Metadata, is_single
from skymount.wire.skylink import Skylink

SANDBOX = fields(
    (
        "Content-Security-Policy",
        "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts",
    ),
    ("X-Content-Type-Options", "nosniff"),
)
"""For content under the portal's own host: its origin is then that of nothing else."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_BY_SKYLINK = ("/file/", *(f"{dialect.path('skylink')}/" for dialect in PRESETS.values()), "/")


@dataclass(frozen=True, slots=True)
class ContentHosts:
    """Finds the host of content. URLs have no scheme, as a proxy may speak TLS for the portal."""

    name: str
    """Below it are the hosts of content, where the portal is not used by loopback; or empty."""

    def url(self, request: Request) -> str:
        """Return where the content of a request is under a host of its own, or empty."""
        if not is_isolated(request):
            return ""
        path = request.path
        if path.startswith("/hns/"):
            domain, _, below = path.removeprefix("/hns/").partition("/")
            try:
                domain = parse_domain(unquote(domain, errors="strict"))
            except (MalformedError, UnicodeDecodeError):
                return ""
            label, content = f"{domain}.hns", f"/hns/{domain}"
        else:
            prefix = next(each for each in _BY_SKYLINK if path.startswith(each))
            link, _, below = path.removeprefix(prefix).partition("/")
            label = Skylink(link).base32
            content = f"/{label}"
        target = f"/{below}" + (f"?{request.query}" if request.query else "")
        return self._join(request, label, content, target)

    def url_of(self, request: Request, skylink: Skylink, path: str) -> str:
        """Return where a file of a skylink is under a host of its own, or empty."""
        if not request.asker.is_isolated:
            return ""
        label = skylink.base32
        return self._join(request, label, f"/{label}", f"/{quote(path)}")

    def _join(self, request: Request, label: str, content: str, target: str) -> str:
        host = request.asker.host
        if host is None:
            return ""
        if host.name in _LOOPBACK or host.name.endswith(".localhost"):
            # Behind a proxy that would be the visitor's own machine.
            parent = "" if request.asker.is_proxied else "localhost"
        else:
            parent = self.name
        if not parent:
            return ""
        authority = f"{label}.{parent}" + (f":{host.port}" if host.port else "")
        try:
            selected = RequestHost.parse(authority).content
        except MalformedError:  # a domain with longer labels than a host name may have
            return ""
        if selected != content:  # a domain with labels that select something else
            return ""
        return f"//{authority}{target}"


def is_isolated(request: Request) -> bool:
    """Whether content is under the portal's own host, and must not have its origin."""
    return request.asker.content_host is None and request.asker.is_isolated


_INERT_KINDS = ("audio/", "video/")
_INERT = frozenset(
    {
        *(f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp", "avif", "bmp", "x-icon")),
        *(f"text/{kind}" for kind in ("plain", "css", "csv", "markdown", "javascript")),
        *(f"application/{kind}" for kind in ("octet-stream", "json", "javascript", "wasm")),
        *(f"application/{kind}" for kind in ("zip", "gzip", "x-gzip", "x-tar", "x-bzip2")),
        "image/vnd.microsoft.icon",
        "application/ogg",
    }
)
_TEXT = frozenset(
    {
        *(f"application/{kind}" for kind in ("json", "javascript", "xml", "x-sh", "sql", "toml")),
        *(f"application/{kind}" for kind in ("x-yaml", "yaml", "x-python", "x-ndjson")),
        "image/svg+xml",
    }
)
_ESSENCE = re.compile(r"([a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+)[\t ]*(?:;[^,]*)?", re.IGNORECASE)


def essence(content_type: str) -> str:
    """Return a type without its parameters; empty for what browsers could read otherwise."""
    match = _ESSENCE.fullmatch(content_type.strip())
    return match[1].lower() if match else ""


def is_inert(content_type: str) -> bool:
    """Whether nothing of such content can run in a browser that is sent to it."""
    found = essence(content_type)
    return found in _INERT or found.startswith(_INERT_KINDS)


def preview_kind(content_type: str) -> str:
    """Return how content is previewed: image, audio, video, pdf, text, or empty for not at all."""
    found = essence(content_type)
    if found == "application/ogg":
        return "audio"
    for kind in ("image", "audio", "video"):
        if found.startswith(f"{kind}/") and (kind != "image" or found in _INERT):
            return kind
    if found == "image/svg+xml":
        return "image"
    if found == "application/pdf":
        return "pdf"
    is_text = found.startswith("text/") or found in _TEXT or found.endswith(("+json", "+xml"))
    return "text" if is_text else ""


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

    async def get(
        self, request: Request, *, attachment: bool = False, may_move: bool = False
    ) -> Response:
        """Answer GET and HEAD of a skylink or a path inside, or of a name, which may lead to other
        content later.
        """
        download = await self.download.load(request, attachment=attachment, may_move=may_move)
        if request.asker.takes_page:
            response = await self._for_browser(request, download)
        else:
            response = await self._without_pages(request, download)
        response.vary += request.asker.requester.shown_by
        if response.status == 200:
            response.skylink = str(download.resolved.skylink)
        if request.asker.content_host is None:  # where Service Workers are refused
            response.vary += ("Service-Worker",)
        return response

    async def _for_browser(self, request: Request, download: Download) -> Response:
        query, portal = download.query, portal_url(request)
        if not portal and _is_directory(download):
            page = await self._listing(request, download, _base(request))
            if page is not None:
                return page
        content = await self.download.select(download)
        if content is not None and content.archive:
            if portal and not query.archive and not query.attachment:  # at a host of content
                return _redirect(portal + quote(request.path, safe="/%+"))
            return await self.download.respond(request, download, content)
        if not is_isolated(request):
            return await self.download.respond(request, download, content)
        kind = "" if content is None else await self.download.kind(download, content)
        if not is_inert(kind) and not query.attachment:
            if target := self.hosts.url(request):
                return _redirect(target)
            if essence(kind) == "application/pdf":  # browsers show none in a sandbox
                download = replace(download, query=replace(query, attachment=True))
        return await self.download.respond(request, download, content, lambda kind: SANDBOX)

    async def _without_pages(self, request: Request, download: Download) -> Response:
        """Answer as the contract says; a browser has to sandbox what could run.

        Whoever asks is told so, as a cache may give the answer to a browser.
        """
        may_be_index = _may_be_index(request) and _is_directory(download)
        content = await self.download.select(download)
        requester = request.asker.requester
        may_be_index = may_be_index and content is not None and content.status == 200
        if may_be_index and content and requester.kind in (Kind.PART, Kind.PROGRAM):
            response = await self._index(request, download, content)
        elif is_isolated(request):
            response = await self.download.respond(request, download, content, _sandbox)
        else:
            response = await self.download.respond(request, download, content)
        if may_be_index:
            response.vary += requester.told_by
        return response

    async def view(self, request: Request) -> Response:
        """Answer with the listing of a directory, or the preview of a file."""
        if not request.asker.takes_page:
            raise HttpError(404, "Not Found")
        download = await self.download.load(request)
        query = replace(download.query, archive="", range_header="")
        download = replace(download, query=query)
        base = f"{VIEW}/{request.variables['link']}"
        path, metadata = download.path, download.skyfile.metadata
        if not metadata.subfiles and path:
            raise HttpError(404, f"there is no /{path} in this skylink, which is a single file")
        if path in metadata.subfiles or (not path and is_single(metadata)):
            page: Response | None = await self._preview(request, download, base)
        else:
            page = await self._listing(request, download, base)
        if page is None:
            raise HttpError(404, f"there is no /{path} in this skylink")
        page.skylink = str(download.resolved.skylink)
        return page

    async def _listing(self, request: Request, download: Download, base: str) -> Response | None:
        """Answer with the listing of a directory; None if there is none at the path."""
        query = parse_query(request.query)
        search, sort = query.get("q", "")[:200].strip(), query.get("sort", "name")
        if sort.removeprefix("-") not in directory.SORTS:
            sort = "name"
        path = download.path.strip("/")
        metadata = download.skyfile.metadata

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
        skylink = download.resolved.skylink
        return await render_page(
            request,
            "listing.html",
            headers=download.resolved.fields,
            found=found,
            search=search,
            sort=sort,
            path=path,
            parents=parents,
            name=metadata.filename,
            skylink=str(skylink),
            site=f"/{download.resolved.requested}/" if _is_site(metadata) else "",
            base=base,
            view=f"{VIEW}/{skylink}",
            readable_type=directory.readable_type,
        )

    async def _index(
        self, request: Request, download: Download, content: SelectedContent
    ) -> Response:
        """Answer with all names of a directory, as links to what they are; for programs."""
        known, vary = self.download.about(request, download, content)
        known += fields(
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Security-Policy", "sandbox; default-src 'none'"),
        )
        path = download.path.strip("/")
        find = partial(directory.find_directory, download.skyfile.metadata, path)
        found = await trio.to_thread.run_sync(find)
        if found is None:
            raise HttpError(404, f"there is no /{path} in this skylink")
        return Response(200, known, Pieces(directory.index_pieces(found)), vary=vary)

    async def _preview(self, request: Request, download: Download, base: str) -> Response:
        content, skyfile = await self.download.select(download), download.skyfile
        if content is None:
            raise HttpError(404, "Not Found")
        path, skylink = download.path, download.resolved.skylink
        kind = await self.download.kind(download, content)
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
            headers=download.resolved.fields,
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


def _is_directory(download: Download) -> bool:
    """Whether a path is none of a file, and has no index page."""
    metadata, path, query = download.skyfile.metadata, download.path, download.query
    if query.archive or query.attachment or path in metadata.subfiles:
        return False
    if not metadata.subfiles or (not path and is_single(metadata)):
        return False
    return not index_of(metadata, path)


def _may_be_index(request: Request) -> bool:
    """Whether a directory is a listing for programs that load what its links lead to."""
    asker = request.asker
    return asker.content_host is None and asker.has_pages and request.path.endswith("/")


def _sandbox(kind: str) -> bytes:
    return b"" if is_inert(kind) else SANDBOX


def _is_site(metadata: Metadata) -> bool:
    """Whether a skylink shows a page of its own."""
    if metadata.tryfiles:
        return any(name.removeprefix("/") in metadata.subfiles for name in metadata.tryfiles)
    if metadata.disabledefaultpath:
        return False
    return bool(metadata.defaultpath) or "index.html" in metadata.subfiles


def _base(request: Request) -> str:
    """Return the URL of the root directory of what a request is about."""
    if request.path.startswith("/hns/"):
        return "/".join(request.path.split("/")[:3])
    return f"/{request.variables['link']}"


def _redirect(target: str) -> Response:
    return Response(307, fields(("Location", target.encode("ascii", "replace"))))
