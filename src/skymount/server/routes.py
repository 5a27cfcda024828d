"""The routes of the portal: which URL leads to which endpoint, in every dialect.

Paths are matched as sent, still percent-encoded; endpoints decode what they need.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skymount.errors import StorageError
from skymount.server.config import PortalConfig
from skymount.server.download.endpoint import DownloadEndpoint
from skymount.server.endpoints.health import HealthEndpoint
from skymount.server.endpoints.hns import HnsEndpoints
from skymount.server.endpoints.metrics import Metrics, MetricsEndpoint
from skymount.server.endpoints.registry import RegistryEndpoints
from skymount.server.endpoints.sectors import SectorEndpoints
from skymount.server.endpoints.skykeys import SkykeyEndpoints
from skymount.server.endpoints.stats import StatsEndpoints
from skymount.server.http import responses
from skymount.server.http.access_rules import AccessMiddleware, AccessRules
from skymount.server.http.passwords import Passwords
from skymount.server.http.requester import HEALTH, METRICS, wants_page
from skymount.server.http.router import Handler, Route, Router
from skymount.server.http_error import HttpError
from skymount.server.pages.assets import NOT_INDEXED, get_asset, get_robots
from skymount.server.pages.content_hosts import ContentHosts
from skymount.server.pages.errors import error_page
from skymount.server.pages.home import HomePage
from skymount.server.pages.listing import ContentPages
from skymount.server.pages.registry_page import RegistryPage
from skymount.server.pages.sessions import Sessions
from skymount.server.pages.upload_form import UploadForm
from skymount.server.resolver import SkylinkResolver
from skymount.server.storage.disk_errors import StorageUnavailableError
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.skyfile_index import SkyfileIndex
from skymount.server.upload.endpoint import UploadEndpoint
from skymount.server.upload.pin_endpoint import PinEndpoint
from skymount.server.upload.quota import Quota
from skymount.server.upload.sector_writer import UploadLimits
from skymount.wire.dialect import PRESETS

_log = logging.getLogger(__name__)


def _route(path: str, **handlers: Handler) -> Route:
    return path, handlers


def build_routes(
    config: PortalConfig, storage: PortalStorage, passwords: Passwords, metrics: Metrics | None
) -> Iterator[Route]:
    """Yield every route. The first that matches a path answers it."""
    store, skykeys, entries = storage.content, storage.skykeys, storage.entries
    catalogue, zone = storage.catalogue, storage.names
    index = SkyfileIndex(store, catalogue, skykeys, config.header_limit)
    storage.retention.on_change(index.forget)
    resolver = SkylinkResolver(entries)
    quota = Quota(config.max_storage, catalogue)
    uploading = UploadEndpoint(
        config, store, skykeys, UploadLimits(), catalogue, quota, storage.retention.changed
    )
    upload = uploading.post
    download = DownloadEndpoint(config, index, resolver)
    content = ContentPages(download, ContentHosts(config.content_host))
    hns = HnsEndpoints(zone, content.get)
    sessions = Sessions.of(passwords, config.password, storage.secret)
    home = HomePage(config, sessions, store, catalogue)
    registry_page = RegistryPage(home, entries, zone)
    registry = RegistryEndpoints(config, entries, resolver)
    sectors = SectorEndpoints(index, resolver)
    skykey = SkykeyEndpoints(config, skykeys)
    stats = StatsEndpoints(index, entries)
    has_upstream = bool(config.upstream)
    pins = PinEndpoint(resolver, storage.retention, index, store, catalogue, quota, has_upstream)
    yield _route("/", GET=home.get)
    yield _route(HEALTH, GET=HealthEndpoint(storage, quota.check).get)
    yield _route("/-/registry", GET=registry_page.get)
    yield _route("/-/upload", POST=UploadForm(uploading, sessions).post)
    yield _route("/-/sign-in", POST=home.sign_in)
    yield _route("/-/sign-out", POST=home.sign_out)
    yield _route("/-/view/{link}", GET=content.view)
    yield _route("/-/view/{link}/{path:path}", GET=content.view)
    yield _route("/-/assets/{name}", GET=get_asset)
    if config.noindex:
        yield _route("/robots.txt", GET=get_robots)
    if metrics is not None:
        yield _route(METRICS, GET=MetricsEndpoint(metrics, index).get)
    for path in (dialect.path for dialect in PRESETS.values()):
        yield _route(path("registry"), GET=registry.get, POST=registry.post)
        yield _route(path("resolve", "{link}"), GET=registry.resolve)
        yield _route(path("stats"), GET=stats.stats)
        yield _route(path("pin", "{link}"), POST=pins.post)
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
    raise HttpError(404, "Not Found")


_Failure = HttpError | StorageError | OSError


async def _on_failure(request: Request, error: _Failure) -> Response:
    if isinstance(error, HttpError):
        return await _on_http_error(request, error)
    _log.error("%s %r: %s", request.method, request.scope["path"], error)
    status = 503 if isinstance(error, StorageUnavailableError) else 500
    return await _on_http_error(request, HttpError(status, str(error)))


async def _on_http_error(request: Request, error: HttpError) -> Response:
    if wants_page(request):
        return await error_page(request, error.status, error.message, [*error.headers])
    return responses.of_http_error(error)


async def _respond(router: Router, request: Request) -> Response:
    """Return what a request is answered with; ClientDisconnect when its client has gone."""
    try:
        handler, path_params = router.find(request.method, request.scope["path"])
        request.scope["path_params"] = path_params
        return await handler(request)
    except (HttpError, StorageError, OSError) as error:
        return await _on_failure(request, error)
    except ClientDisconnect:
        raise
    except Exception:  # noqa: BLE001  # a bug in one endpoint must not end the connection
        _log.exception("%s %r failed", request.method, request.scope["path"])
        return await _on_http_error(request, HttpError(500, "internal error"))


def build_app(
    config: PortalConfig,
    storage: PortalStorage,
    rules: AccessRules,
    metrics: Metrics | None = None,
) -> ASGIApp:
    """Return the ASGI application of one portal."""
    router = Router(build_routes(config, storage, rules.passwords, metrics))

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await _respond(router, request)
        try:
            await response(scope, receive, send)
        except (HttpError, StorageError, OSError) as error:  # before anything was sent
            response = await _on_failure(request, error)
            await response(scope, receive, send)

    portal = AccessMiddleware(respond, rules, _on_http_error)

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_not_indexed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], NOT_INDEXED]}
            await send(message)

        with suppress(ClientDisconnect):
            await portal(scope, receive, send_not_indexed if config.noindex else send)

    return entry
