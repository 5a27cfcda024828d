"""The styles, scripts and pictures of pages, and what search engines are told."""

import hashlib
from functools import cache
from importlib import resources

import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount.server.http import caching, responses
from skymount.server.http.requester import ASSETS
from skymount.server.http_error import HttpError
from skymount.wire import media_types

_TABLE = "mime.types"
_TYPES = {
    _TABLE: "text/plain; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "script.js": "text/javascript; charset=utf-8",
    **{f"{name}.svg": "image/svg+xml" for name in ("icon", "file", "folder", "locked", "up")},
}

NOT_INDEXED = (b"x-robots-tag", b"noindex, nofollow")
"""The header of all that search engines are asked not to list."""


@cache
def _content(name: str) -> bytes:
    if name == _TABLE:
        return media_types.table_text().encode()
    return (resources.files(__package__) / "static" / name).read_bytes()


@cache
def asset_url(name: str) -> str:
    """Return the URL of an asset, another one after each change."""
    return f"{ASSETS}{name}?{hashlib.sha256(_content(name)).hexdigest()[:12]}"


async def get_asset(request: Request) -> Response:
    """Answer with an asset, whose URL changes with it: browsers keep it."""
    name = request.path_params["name"]
    if name not in _TYPES:
        raise HttpError(404, "no such file")
    content = await trio.to_thread.run_sync(_content, name)
    headers: responses.HeaderList = [
        ("Content-Type", _TYPES[name]),
        ("Cache-Control", caching.IMMUTABLE),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox"),
    ]
    return responses.BytesResponse(200, headers, content)


async def get_robots(request: Request) -> Response:
    """Ask programs that collect pages to stay away (RFC 9309)."""
    text_type = ("Content-Type", "text/plain; charset=utf-8")
    return responses.BytesResponse(200, [text_type], b"User-agent: *\nDisallow: /\n")
