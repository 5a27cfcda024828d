"""The styles, scripts and pictures of pages."""

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
