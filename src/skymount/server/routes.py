"""What answers the requests of one portal: access, then the route of a URL, in every dialect.

Paths are matched as sent, still percent-encoded; endpoints decode what they need.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial

from skymount.errors import StorageError
from skymount.server.config import PortalConfig
from skymount.server.download.endpoint import DownloadEndpoint
from skymount.server.endpoints import (
    HnsEndpoints,
    RegistryEndpoints,
    SectorEndpoints,
    SkykeyEndpoints,
)
from skymount.server.http.access import Access
from skymount.server.http.clients import HEALTH, METRICS
from skymount.server.http.messages import ClientGoneError, Request, Response, error_response
from skymount.server.http.passwords import Passwords, Sessions
from skymount.server.http_error import HttpError
from skymount.server.monitoring import (
    HealthEndpoint,
    Metrics,
    MetricsEndpoint,
    StatsEndpoints,
)
from skymount.server.pages.home import HomePage, RegistryPage, UploadForm
from skymount.server.pages.listing import ContentHosts, ContentPages
from skymount.server.pages.rendering import error_page, get_asset, get_robots
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


Handler = Callable[[Request], Awaitable[Response]]
Route = tuple[str, Mapping[str, Handler]]
"""A pattern like ``/a/{link:skylink}/{path:path}``, and a handler for each method."""

_VARIABLE = re.compile(r"\{([a-z_]+)(?::([a-z]+))?\}")
_FORMS = {
    None: "[^/]+",
    "path": ".*",
    "skylink": "[A-Za-z0-9_-]{46}|[A-Za-z0-9]{55}",  # by its length (docs/wire.md 4.1)
}


class Router:
    """The routes of a portal. The first pattern that a whole path matches counts."""

    def __init__(self, routes: Iterable[Route]) -> None:
        patterns = list[str]()
        self._found = dict[int, tuple[Mapping[str, Handler], list[str]]]()  # by number of the group
        group = 1
        for pattern, handlers in routes:
            names = [name for name, _ in _VARIABLE.findall(pattern)]
            patterns.append(f"({_expression(pattern)})")
            self._found[group] = (handlers, names)
            group += 1 + len(names)
        self._expression = re.compile("|".join(patterns))

    def find(self, request: Request) -> Handler:
        """Return the handler of a request, which gets its variables; HttpError 404 or 405."""
        method = request.method
        match = self._expression.fullmatch(request.path)
        if match is None or match.lastindex is None:
            raise HttpError(404, "Not Found")
        handlers, names = self._found[match.lastindex]
        handler = handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = [*handlers, *(["HEAD"] if "GET" in handlers else [])]
            raise HttpError(405, "Method Not Allowed", (("Allow", ", ".join(allowed)),))
        first = match.lastindex + 1
        request.variables = {name: match[first + at] for at, name in enumerate(names)}
        return handler


def _expression(pattern: str) -> str:
    parts, end = list[str](), 0
    for variable in _VARIABLE.finditer(pattern):
        parts.append(re.escape(pattern[end : variable.start()]))
        parts.append(f"({_FORMS[variable[2]]})")
        end = variable.end()
    return "".join([*parts, re.escape(pattern[end:])])


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
    hns = HnsEndpoints(zone, partial(content.get, may_move=True))
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


class PortalApp:
    """Answers the requests of one portal."""

    def __init__(
        self,
        config: PortalConfig,
        storage: PortalStorage,
        access: Access,
        metrics: Metrics | None = None,
    ) -> None:
        self._router = Router(build_routes(config, storage, access.rules.passwords, metrics))
        self._access = access
        self.varies = access.varies

    async def answer(self, request: Request) -> Response:
        """Answer a request, be it with an error; ClientGoneError when its client has gone."""
        try:
            preflight = await self._access.decide(request)
            if preflight is not None:
                return preflight
            return await self._router.find(request)(request)
        except ClientGoneError:
            raise
        except Exception as error:  # noqa: BLE001  # a bug in one must not end the connection
            return await self.failed(request, error)

    async def failed(self, request: Request, error: Exception) -> Response:
        """Return the answer that says why there is no other."""
        if not isinstance(error, HttpError):
            error = _logged(request, error)
        if request.wants_page:
            return await error_page(request, error)
        return error_response(error)


def _logged(request: Request, error: Exception) -> HttpError:
    if isinstance(error, StorageError | OSError):
        _log.error("%s %r: %s", request.method, request.path, error)
        return HttpError(503 if isinstance(error, StorageUnavailableError) else 500, str(error))
    _log.error("%s %r failed", request.method, request.path, exc_info=error)
    return HttpError(500, "internal error")
