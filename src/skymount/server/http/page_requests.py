"""Which requests are for pages: those of a browser that shows what it gets to its user."""

import re
from collections.abc import Mapping

from starlette.requests import Request

PAGES = "/-/"
"""Below it are the portal's own pages, besides ``/``. No skylink begins so."""
ASSETS = f"{PAGES}assets/"
"""Below it are the pages' styles and scripts, the same for everybody."""
HOST, IS_ISOLATED, HAS_PAGES = "skymount.host", "skymount.is_isolated", "skymount.has_pages"
"""Keys of a scope: the `RequestHost`, whether content is kept off the portal's own origin, and
whether the portal has pages.
"""

_HTML = re.compile(r"(?:^|,)\s*text/html\s*(?:;[^,]*)?(?:,|$)", re.IGNORECASE)
_REFUSED = re.compile(
    r"(?:^|,)\s*text/html\s*;(?:[^,]*;)?\s*q=0(?:\.0*)?\s*(?:[;,]|$)", re.IGNORECASE
)

_JAVA = "Java/"  # programs that accept HTML unless they are told otherwise
BROWSER = "Mozilla/"
"""The User-Agent of every browser begins with it."""


def accepts_html(headers: Mapping[str, str]) -> bool:
    """Whether a request names ``text/html`` among what it accepts; wildcards do not count."""
    accept = headers.get("accept", "")
    return bool(_HTML.search(accept)) and not _REFUSED.search(accept)


def vary(headers: Mapping[str, str]) -> str:
    """Return what decides whether an answer is a page."""
    return "Accept, User-Agent" if accepts_html(headers) else "Accept"


def is_page_path(path: str) -> bool:
    """Whether a path is one of the portal's own pages, which no other page may use."""
    return path == "/" or path.startswith(PAGES)


def takes_page(request: Request) -> bool:
    """Whether a request is answered with a page, where there is one."""
    if not request.scope[HAS_PAGES] or not accepts_html(request.headers):
        return False
    return not request.headers.get("user-agent", "").startswith(_JAVA)


def wants_page(request: Request) -> bool:
    """Whether an answer, be it an error, is to be a page."""
    is_shown = request.method in ("GET", "HEAD") or is_page_path(request.scope["path"])
    return is_shown and takes_page(request)
