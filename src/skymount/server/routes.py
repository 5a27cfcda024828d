"""The routes of the portal: which URL leads to which endpoint, in every dialect.

Paths are matched as sent, still percent-encoded; endpoints decode what they need.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import trio
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from skymount.errors import StorageError
from skymount.server.config import PortalConfig
from skymount.server.download.endpoint import DownloadEndpoint
from skymount.server.endpoints.hns import HnsEndpoints
from skymount.server.endpoints.registry import RegistryEndpoints
from skymount.server.endpoints.sectors import SectorEndpoints
from skymount.server.endpoints.skykeys import SkykeyEndpoints
from skymount.server.endpoints.stats import StatsEndpoints
from skymount.server.http import responses
from skymount.server.http.access_rules import AccessMiddleware, AccessRules
from skymount.server.http.page_requests import wants_page
from skymount.server.http.request_body import DrainBodyMiddleware
from skymount.server.http_error import HttpError
from skymount.server.pages.assets import get_asset
from skymount.server.pages.content_hosts import ContentHosts
from skymount.server.pages.errors import error_page
from skymount.server.pages.home import HomePage
from skymount.server.pages.listing import ContentPages
from skymount.server.pages.registry_page import RegistryPage
from skymount.server.pages.sessions import Sessions
from skymount.server.pages.upload_form import UploadForm
from skymount.server.resolver import SkylinkResolver
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.skyfile_index import SkyfileIndex
from skymount.server.upload.endpoint import UploadEndpoint
from skymount.wire import merkle
from skymount.wire.dialect import PRESETS

_log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


class _SkylinkConvertor(StringConvertor):
    """A path segment that has the length of a skylink (wire notes 4.1)."""

    regex = "[A-Za-z0-9_-]{46}|[A-Za-z0-9]{55}"


register_url_convertor("skylink", _SkylinkConvertor())


@dataclass(frozen=True, slots=True)
class MethodRouter:
    """An ASGI application that picks a handler by the method; 405 for any other."""

    handlers: Mapping[str, Handler]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        handler = self.handlers.get(method)
        if handler is None:
            allowed = [*self.handlers, *(["HEAD"] if "GET" in self.handlers else [])]
            raise HTTPException(405, headers={"Allow": ", ".join(allowed)})
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)


def _route(path: str, **handlers: Handler) -> Route:
    return Route(path, MethodRouter(handlers))


def build_routes(config: PortalConfig, storage: PortalStorage) -> Iterator[Route]:
    """Yield every route. The first that matches a path answers it."""
    store, skykeys, entries = storage.content, storage.skykeys, storage.entries
    listed, zone = storage.listed, storage.names
    index = SkyfileIndex(store, skykeys, config.header_limit)
    threads = (os.cpu_count() or 1) if merkle.COMPILED else 1  # else it holds the interpreter lock
    hashing = trio.CapacityLimiter(threads)
    resolver = SkylinkResolver(entries)
    uploading = UploadEndpoint(config, store, index, skykeys, hashing, listed)
    upload = uploading.post
    download = DownloadEndpoint(config, index, resolver)
    content = ContentPages(download, ContentHosts(config.content_host))
    hns = HnsEndpoints(zone, content.get)
    sessions = Sessions(config.password)
    home = HomePage(config, sessions, store, listed)
    registry_page = RegistryPage(home, entries, zone)
    registry = RegistryEndpoints(config, entries, resolver)
    sectors = SectorEndpoints(index, resolver)
    skykey = SkykeyEndpoints(config, skykeys)
    stats = StatsEndpoints(index, resolver, entries)
    yield _route("/", GET=home.get)
    yield _route("/-/registry", GET=registry_page.get)
    yield _route("/-/upload", POST=UploadForm(uploading, sessions).post)
    yield _route("/-/sign-in", POST=home.sign_in)
    yield _route("/-/sign-out", POST=home.sign_out)
    yield _route("/-/view/{link}", GET=content.view)
    yield _route("/-/view/{link}/{path:path}", GET=content.view)
    yield _route("/-/assets/{name}", GET=get_asset)
    for path in (dialect.path for dialect in PRESETS.values()):
        yield _route(path("registry"), GET=registry.get, POST=registry.post)
        yield _route(path("resolve", "{link}"), GET=registry.resolve)
        yield _route(path("stats"), GET=stats.stats)
        yield _route(path("pin", "{link}"), POST=stats.pin)
        yield _route(path("blocklist"), GET=stats.blocklist)
        yield _route(path("portals"), GET=stats.portals)
        yield _route(path("createskykey"), POST=skykey.create)
        yield _route(path("addskykey"), POST=skykey.add)
        yield _route(path("deleteskykey"), POST=skykey.delete)
        yield _route(path("skykey"), GET=skykey.get)
        yield _route(path("skykeys"), GET=skykey.list)
        yield _route(path("skyfile"), POST=upload)
        yield _route(path("skyfile", "{file_path:path}"), POST=upload)
        yield _route(path("skylink", "{link}"), GET=content.get)
        yield _route(path("skylink", "{link}", "{path:path}"), GET=content.get)
        yield _route(path("metadata", "{link}"), GET=sectors.metadata)
        yield _route(path("basesector", "{link}"), GET=sectors.base_sector)
        yield _route(path("trustless", "basesector", "{link}"), GET=sectors.base_sector)
        yield _route(path("root"), GET=sectors.root)
        yield _route(path("{file_path:path}"), POST=upload, GET=_not_found)
    for slash in ("", "/"):
        yield _route("/hnsres/{domain}" + slash, GET=hns.resolve)
    yield _route("/hns/{domain}", GET=hns.get)
    yield _route("/hns/{domain}/{path:path}", GET=hns.get)
    for prefix, handler in (("", content.get), ("/file", partial(content.get, attachment=True))):
        yield _route(prefix + "/{link:skylink}", GET=handler)
        yield _route(prefix + "/{link:skylink}/{path:path}", GET=handler)


async def _not_found(request: Request) -> Response:
    raise HTTPException(404)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    if wants_page(request):
        return await error_page(request, error.status, error.message, [*error.headers])
    return responses.of_http_error(error)


async def _on_routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers: responses.HeaderList = list((error.headers or {}).items())
    return await _error(request, error.status_code, error.detail, headers)


async def _on_storage_error(request: Request, error: Exception) -> Response:
    _log.error("%s %r: %s", request.method, request.scope["path"], error)
    return await _error(request, 500, str(error))


async def _on_bug(request: Request, error: Exception) -> Response:
    return await _error(request, 500, "internal error")


async def _error(
    request: Request, status: int, message: str, headers: responses.HeaderList | None = None
) -> Response:
    if wants_page(request):
        return await error_page(request, status, message, headers)
    return responses.error(status, message, headers)


def build_app(config: PortalConfig, storage: PortalStorage, rules: AccessRules) -> ASGIApp:
    """Return the ASGI application of one portal."""
    app = Starlette(
        routes=list(build_routes(config, storage)),
        exception_handlers={
            HttpError: _on_http_error,
            HTTPException: _on_routing_error,
            StorageError: _on_storage_error,
            OSError: _on_storage_error,
            Exception: _on_bug,
        },
    )
    app.router.redirect_slashes = False
    portal = DrainBodyMiddleware(AccessMiddleware(app, rules, _on_http_error))

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode("latin-1")
        try:
            await portal(scope, receive, send)
        except ClientDisconnect:
            pass

    return entry
