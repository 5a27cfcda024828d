"""Owns the routes of the portal: which URL leads to which endpoint, in every dialect at once.

Paths are matched as sent, still percent-encoded; endpoints decode what they need.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

import trio
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
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
from skymount.server.endpoints.stats import StatsEndpoints
from skymount.server.http import responses
from skymount.server.http.access_rules import AccessMiddleware, AccessRules
from skymount.server.http.request_body import DrainBodyMiddleware
from skymount.server.http_error import HttpError
from skymount.server.resolver import SkylinkResolver
from skymount.server.storage.entry_store import EntryStore
from skymount.server.storage.skyfile_index import SkyfileIndex
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.skykey_store import SkykeyEndpoints, SkykeyStore
from skymount.server.storage.zone_file import ZoneFile
from skymount.server.upload.endpoint import UploadEndpoint
from skymount.wire import merkle
from skymount.wire.dialect import PRESETS, Dialect

_log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


class _LinkConvertor(Convertor[str]):
    """A path segment that has the length of a skylink (wire notes 4.1)."""

    regex = "[A-Za-z0-9_-]{46}|[A-Za-z0-9]{55}"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("skylink", _LinkConvertor())


@dataclass(frozen=True, slots=True)
class MethodRouter:
    """An ASGI application that picks a handler by the method; 405 for any other."""

    handlers: Mapping[str, Handler]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        handler = self.handlers.get(method)
        if handler is None:
            allowed = [*self.handlers, *(["HEAD"] if "GET" in self.handlers else [])]
            raise HTTPException(405, headers={"Allow": ", ".join(allowed)})
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)


def _hashing_threads() -> int:
    """Return how many threads hash at once: one if the hash holds the interpreter lock."""
    return (os.cpu_count() or 1) if merkle.COMPILED else 1


def build_routes(
    config: PortalConfig, store: SkyfileStore, skykeys: SkykeyStore, entries: EntryStore
) -> Iterator[Route]:
    """Yield every route. The first that matches a path answers it."""
    catalog = SkyfileIndex(store, skykeys, config.header_limit)
    uploads = UploadEndpoint(
        config, store, catalog, skykeys, trio.CapacityLimiter(_hashing_threads())
    )
    resolver = SkylinkResolver(entries)
    downloads = DownloadEndpoint(config, catalog, resolver)
    inspections = SectorEndpoints(catalog, resolver)
    reports = StatsEndpoints(catalog, resolver, entries)
    for dialect in PRESETS.values():
        yield from _registry_routes(dialect, RegistryEndpoints(config, entries), resolver)
        yield from _report_routes(dialect, reports)
        yield from _skykey_routes(dialect, SkykeyEndpoints(config, skykeys))
        yield from _service_routes(dialect, uploads, downloads, inspections)
    yield from _name_routes(HnsEndpoints(ZoneFile(config.data), downloads))
    for prefix, handler in (("", downloads.get), ("/file", downloads.get_attachment)):
        yield Route(prefix + "/{link:skylink}", MethodRouter({"GET": handler}))
        yield Route(prefix + "/{link:skylink}/{path:path}", MethodRouter({"GET": handler}))


def _skykey_routes(dialect: Dialect, endpoints: SkykeyEndpoints) -> Iterator[Route]:
    """Yield the routes of skykeys below the prefix of one dialect."""
    yield Route(dialect.path("createskykey"), MethodRouter({"POST": endpoints.create}))
    yield Route(dialect.path("addskykey"), MethodRouter({"POST": endpoints.add}))
    yield Route(dialect.path("deleteskykey"), MethodRouter({"POST": endpoints.delete}))
    yield Route(dialect.path("skykey"), MethodRouter({"GET": endpoints.get}))
    yield Route(dialect.path("skykeys"), MethodRouter({"GET": endpoints.list}))


def _name_routes(names: HnsEndpoints) -> Iterator[Route]:
    """Yield the routes of names. They have no prefix and so no dialect."""
    for slash in ("", "/"):
        yield Route("/hnsres/{domain}" + slash, MethodRouter({"GET": names.resolve}))
    yield Route("/hns/{domain}", MethodRouter({"GET": names.get}))
    yield Route("/hns/{domain}/{path:path}", MethodRouter({"GET": names.get}))


def _registry_routes(
    dialect: Dialect, registry: RegistryEndpoints, resolver: SkylinkResolver
) -> Iterator[Route]:
    """Yield the routes of the registry below the prefix of one dialect."""
    endpoint = MethodRouter({"GET": registry.get, "POST": registry.post})
    yield Route(dialect.path("registry"), endpoint)
    yield Route(dialect.path("resolve", "{link}"), MethodRouter({"GET": resolver.get}))


def _report_routes(dialect: Dialect, reports: StatsEndpoints) -> Iterator[Route]:
    """Yield the routes about the portal itself below the prefix of one dialect."""
    yield Route(dialect.path("stats"), MethodRouter({"GET": reports.stats}))
    yield Route(dialect.path("pin", "{link}"), MethodRouter({"POST": reports.pin}))
    yield Route(dialect.path("blocklist"), MethodRouter({"GET": reports.blocklist}))
    yield Route(dialect.path("portals"), MethodRouter({"GET": reports.portals}))


def _service_routes(
    dialect: Dialect,
    uploads: UploadEndpoint,
    downloads: DownloadEndpoint,
    inspections: SectorEndpoints,
) -> Iterator[Route]:
    """Yield the routes below the prefix of one dialect."""
    path, upload = dialect.path, MethodRouter({"POST": uploads.post})
    download = MethodRouter({"GET": downloads.get})
    base_sector = MethodRouter({"GET": inspections.base_sector})
    yield Route(path("skyfile"), upload)
    yield Route(path("skyfile", "{file_path:path}"), upload)
    yield Route(path("skylink", "{link}"), download)
    yield Route(path("skylink", "{link}", "{path:path}"), download)
    yield Route(path("metadata", "{link}"), MethodRouter({"GET": inspections.metadata}))
    yield Route(path("basesector", "{link}"), base_sector)
    yield Route(path("trustless", "basesector", "{link}"), base_sector)
    yield Route(path("root"), MethodRouter({"GET": inspections.root}))
    yield Route(path("{file_path:path}"), MethodRouter({"POST": uploads.post, "GET": _unknown}))


async def _unknown(request: Request) -> Response:
    raise HTTPException(404)


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return responses.error(error.status, error.message, list(error.headers))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers: responses.Headers = list((error.headers or {}).items())
    return responses.error(error.status_code, error.detail, headers)


async def _on_storage_error(request: Request, error: Exception) -> Response:
    _log.error("%s %r: %s", request.method, request.scope["path"], error)
    return responses.error(500, str(error))


async def _on_bug(request: Request, error: Exception) -> Response:
    return responses.error(500, "internal error")


def build_app(
    config: PortalConfig,
    store: SkyfileStore,
    skykeys: SkykeyStore,
    entries: EntryStore,
    rules: AccessRules,
) -> ASGIApp:
    """Return the ASGI application of one portal."""
    app = Starlette(
        routes=list(build_routes(config, store, skykeys, entries)),
        exception_handlers={
            HttpError: _on_refusal,
            HTTPException: _on_http_error,
            StorageError: _on_storage_error,
            OSError: _on_storage_error,
            Exception: _on_bug,
        },
    )
    app.router.redirect_slashes = False
    portal = DrainBodyMiddleware(AccessMiddleware(app, rules))

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode("latin-1")
        try:
            await portal(scope, receive, send)
        except ClientDisconnect:
            pass

    return entry


__all__ = ["build_app"]
