"""Makes answers of templates, with the headers that keep pages safe; serves styles and scripts.

jinja2 is imported, and a template compiled, when the first page is asked for: in a thread, as all
rendering is.
"""

import hashlib
import html
import time
from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import Any
from urllib.parse import quote

import trio

from skymount.server.http.clients import ASSETS, WrongHost
from skymount.server.http.messages import (
    IMMUTABLE,
    TEXT_TYPE,
    Request,
    Response,
    fields,
    text_response,
)
from skymount.server.http_error import HttpError
from skymount.wire import media_types
from skymount.wording import visible

NAME_LIMIT = 255
"""Characters of a name that are shown; links have all of it."""

_MARK = '<span class="unseen">{}</span>'
_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")
_LAST_TIME = 253402300799  # of the year 9999; files may have later ones
_COMMON = fields(
    ("Content-Type", "text/html; charset=utf-8"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


async def render_page(
    request: Request,
    template: str,
    *,
    status: int = 200,
    headers: bytes = b"",
    frames: str = "",
    **values: Any,
) -> Response:
    """Answer with a page. `headers` are further ones, encoded; `frames` is the authority whose
    pages it may have in a frame.
    """
    asker = request.asker
    host, wrong = asker.host, asker.wrong_host
    portal = portal_url(request)
    values |= {
        "wrong_host": wrong or (WrongHost(host.authority, "") if host else ""),
        "is_host_wrong": wrong is not None,
        "portal": portal,
        "asset": lambda name: portal + asset_url(name),
        "at_portal": f" --portal {asker.portal_url}",
    }
    body = await trio.to_thread.run_sync(_render, template, values)
    policy = fields(("Content-Security-Policy", _policy(request, portal, frames)))
    return Response(status, headers + _COMMON + policy, body, vary=asker.requester.shown_by)


def portal_url(request: Request) -> str:
    """Return the URL of the portal itself for a page at a host of content; else empty."""
    host = request.asker.content_host
    return f"//{host.authority}" if host is not None else ""


def _render(template: str, values: dict[str, Any]) -> bytes:
    text: str = _environment().get_template(template).render(values)
    return text.encode(errors="replace")


@cache
def _environment() -> Any:
    import jinja2
    from markupsafe import Markup

    def marked(text: str) -> Markup:
        return Markup(visible(html.escape(text), _MARK))

    def load(name: str) -> str:
        return (resources.files(__package__) / "templates" / name).read_text()

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        autoescape=True,
        auto_reload=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": readable_size,
        "when": readable_time,
        "url": quote,
        "short": lambda text: visible(shortened(text)),
        "name": lambda text: Markup("<bdi>{}</bdi>").format(marked(shortened(text))),
        "marked": marked,
    }
    return environment


def shortened(text: str) -> str:
    """Return the beginning of a text that is too long to be read."""
    return text if len(text) <= NAME_LIMIT else text[: NAME_LIMIT - 1] + "…"


def readable_size(size: int) -> str:
    """Return a size for people: ``3.2 MB``, by powers of 1000."""
    if size < 1000:
        return f"{size} byte" + ("" if size == 1 else "s")
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if value < 9.95 else f"{value:.0f} {_UNITS[unit]}"


def readable_time(seconds: float) -> str:
    """Return a time of UTC in the form of a `time` element."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(seconds, 0), _LAST_TIME)))


def _policy(request: Request, portal: str, frames: str) -> str:
    host = request.asker.host
    own = "'self'"
    if host is not None and "[" not in host.authority:  # a policy has no IPv6 addresses
        own = host.authority + ASSETS
    rules = [
        "default-src 'none'",
        f"script-src {own}",
        f"style-src {own}",
        f"img-src 'self' {own}" if portal else "img-src 'self'",
        "media-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        f"frame-src {frames}" if frames else "frame-src 'none'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
    ]
    return "; ".join(rules)


_TABLE = "mime.types"
_TYPES = {
    _TABLE: TEXT_TYPE,
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
    name = request.variables["name"]
    if name not in _TYPES:
        raise HttpError(404, "no such file")
    content = await trio.to_thread.run_sync(_content, name)
    known = fields(
        ("Content-Type", _TYPES[name]),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox"),
    )
    return Response(200, known, content, IMMUTABLE)


async def get_robots(request: Request) -> Response:
    """Ask programs that collect pages to stay away (RFC 9309)."""
    return text_response(200, "User-agent: *\nDisallow: /\n")


_EXPLAINED = {
    400: ("This cannot be understood", "Check the address, or what you sent."),
    401: ("The password is needed", "Sign in on the first page."),
    403: ("This is not allowed", ""),
    404: ("Not found", "Check the address. Perhaps the content is at another portal."),
    405: ("This cannot be done here", ""),
    408: ("The upload stopped", "No data came for too long. Upload it again."),
    410: ("It is gone", "It was here, and is no more."),
    412: ("It has changed", "Load the page again."),
    413: ("This is too large", "Nothing was stored. Upload less at once, or raise --max-upload."),
    416: ("There is no such part", "The content is shorter than what was asked for."),
    421: ("This portal has another name", "Use its own address, or allow this name."),
    429: ("Too many requests", "Wait a moment, then try again."),
    500: ("The portal failed", "Its log says more."),
    503: ("The portal is busy", "Wait a moment, then try again."),
    507: ("The disk is full", "Nothing of the upload was kept. Make room, then upload it again."),
}


def title_of(status: int) -> str:
    """Return what an error is called, for people."""
    if status in _EXPLAINED:
        return _EXPLAINED[status][0]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "An error"


async def error_page(request: Request, error: HttpError) -> Response:
    """Answer with an error as a page."""
    status, message = error.status, error.message
    title, advice = title_of(status), _EXPLAINED.get(status, ("", ""))[1]
    return await render_page(
        request,
        "error.html",
        status=status,
        headers=fields(*error.headers),
        code=status,
        title=title,
        message="" if message.casefold() == title.casefold() else message,
        advice=advice,
    )
