"""Makes responses of templates, with the headers that keep pages safe; the importer of jinja2.

jinja2 is imported, and a template compiled, when the first page is asked for: in a thread, as all
rendering is.
"""

import html
import time
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount.server.http import responses
from skymount.server.http.host_header import RequestHost
from skymount.server.http.proxies import WrongHost
from skymount.server.http.requester import ASSETS, HOST, PORTAL_URL, REQUESTER, WRONG_HOST
from skymount.server.pages.assets import asset_url
from skymount.server.pages.content_hosts import portal_url
from skymount.wording import visible

SANDBOX: responses.HeaderList = [
    (
        "Content-Security-Policy",
        "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts",
    ),
    ("X-Content-Type-Options", "nosniff"),
]
"""For content under the portal's own host: its origin is then that of nothing else."""

NAME_LIMIT = 255
"""Characters of a name that are shown; links have all of it."""

_MARK = '<span class="unseen">{}</span>'
_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")
_LAST_TIME = 253402300799  # of the year 9999; files may have later ones
_COMMON: responses.HeaderList = [
    ("Content-Type", "text/html; charset=utf-8"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]


async def render_page(
    request: Request,
    template: str,
    *,
    status: int = 200,
    headers: responses.HeaderList | None = None,
    frames: str = "",
    **values: Any,
) -> Response:
    """Answer with a page. `frames` is the authority whose pages it may have in a frame."""
    portal = portal_url(request)
    host: RequestHost | None = request.scope.get(HOST)
    wrong: WrongHost | None = request.scope.get(WRONG_HOST)
    values |= {
        "wrong_host": wrong or (WrongHost(host.authority, "") if host else ""),
        "is_host_wrong": wrong is not None,
        "portal": portal,
        "asset": lambda name: portal + asset_url(name),
        "at_portal": f" --portal {request.scope.get(PORTAL_URL, '')}",
    }
    body = await trio.to_thread.run_sync(_render, template, values)
    policy = ("Content-Security-Policy", _policy(request, portal, frames))
    negotiated = ("Vary", ", ".join(request.scope[REQUESTER].shown_by))
    return responses.BytesResponse(status, [*(headers or []), *_COMMON, policy, negotiated], body)


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
    host: RequestHost | None = request.scope.get(HOST)
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
