"""Who asks: a browser that shows a page, one of its parts, a script, an agent, another program.

What is answered differently to them is decided from a `Requester`, and names in `Vary` what that
was found from. The request headers are those of Fetch Metadata (W3C) and RFC 9110 12.5.1.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self

from starlette.requests import Request

from skymount.wire.dialect import PRESETS, Dialect

PAGES = "/-/"
"""Below it are the portal's own pages, besides ``/``. No skylink begins so."""
ASSETS = f"{PAGES}assets/"
"""Below it are the pages' styles and scripts, the same for everybody."""
HEALTH = f"{PAGES}health"
"""Where balancers and monitors ask whether the portal works."""
METRICS = f"{PAGES}metrics"
"""Figures of the portal, which are no page."""
HOST, IS_ISOLATED, HAS_PAGES = "skymount.host", "skymount.is_isolated", "skymount.has_pages"
"""Keys of a scope: the `RequestHost`, whether content is kept off the portal's own origin, and
whether the portal has pages.
"""
REQUESTER, PORTAL_URL = "skymount.requester", "skymount.portal_url"
"""Keys of a scope: the `Requester`, and the URL at which clients reach the portal."""
IS_PROXIED, WRONG_HOST = "skymount.is_proxied", "skymount.wrong_host"
"""Keys of a scope: whether a proxy stands before the portal, so that loopback may be another
machine, and the `WrongHost` of a request, if it is known to have one.
"""

_QUALITY = re.compile(r"q=(0?\.\d{1,3}|0\.?|1(?:\.0{0,3})?)", re.IGNORECASE)
_ACCEPT_LIMIT = 4096  # characters of an `Accept` that are read

_JAVA = "Java/"  # programs that prefer HTML unless they are told otherwise
BROWSER = "Mozilla/"
"""The User-Agent of every browser begins with it."""


class Kind(Enum):
    """What a requester does with an answer."""

    PAGE = auto()  # a browser goes there, and shows it to its user
    PART = auto()  # an element of a page, such as an image, a style or a script
    SCRIPT = auto()  # a script in a page fetches it
    AGENT = auto()  # a program that names its dialect
    PROGRAM = auto()  # another program


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asks."""

    kind: Kind
    dialect: Dialect | None
    """The one that an agent names."""
    shown_by: tuple[str, ...]
    """The request headers that tell pages and their parts from all else."""

    @property
    def is_browser(self) -> bool:
        """Whether the answer becomes a page, or a part of one."""
        return self.kind in (Kind.PAGE, Kind.PART)

    @property
    def told_by(self) -> tuple[str, ...]:
        """The request headers that tell all kinds from each other, besides `Origin`."""
        return self.shown_by if self.is_browser else tuple({*self.shown_by, "User-Agent"})

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """Find out who sends these request headers."""
        agent = headers.get("user-agent", "")
        mode = headers.get("sec-fetch-mode", "")
        shown_by: tuple[str, ...] = ("Sec-Fetch-Mode",)
        if mode in ("navigate", "no-cors"):
            return cls(Kind.PAGE if mode == "navigate" else Kind.PART, None, shown_by)
        dialect = next((each for each in PRESETS.values() if each.agent in agent), None)
        is_script = "origin" in headers
        if mode:  # some programs send it too, without saying what for
            shown_by += ("Sec-Fetch-Dest",)
            used_as = headers.get("sec-fetch-dest", "")
            if used_as not in ("", "empty"):
                return cls(Kind.PART, None, shown_by)
            is_script = is_script or bool(used_as)
        else:  # an older browser, or one that does not take the connection for secure
            shown_by += ("Accept",)
            if prefers_html(headers.get("accept", "")):
                shown_by += ("User-Agent",)
                if dialect is None and not agent.startswith(_JAVA):
                    return cls(Kind.PAGE, None, shown_by)
        if dialect is not None:
            return cls(Kind.AGENT, dialect, shown_by)
        return cls(Kind.SCRIPT if is_script else Kind.PROGRAM, None, shown_by)


def prefers_html(accept: str) -> bool:
    """Whether nothing is wanted more than ``text/html``, which is named; wildcards do not count."""
    html = best = 0.0
    for accepted in accept[:_ACCEPT_LIMIT].split(","):
        name, *parameters = (part.strip().lower() for part in accepted.split(";"))
        quality = 1.0
        for parameter in parameters:
            if match := _QUALITY.fullmatch(parameter):
                quality = float(match[1])
        best = max(best, quality)
        if name == "text/html":
            html = max(html, quality)
    return 0 < html == best


def is_page_path(path: str) -> bool:
    """Whether a path is one of the portal's own pages, which no other page may use."""
    return path == "/" or path.startswith(PAGES)


def takes_page(request: Request) -> bool:
    """Whether a request is answered with a page, where there is one."""
    requester: Requester = request.scope[REQUESTER]
    return bool(request.scope[HAS_PAGES]) and requester.kind is Kind.PAGE


def wants_page(request: Request) -> bool:
    """Whether an answer, be it an error, is to be a page."""
    is_shown = request.method in ("GET", "HEAD") or is_page_path(request.scope["path"])
    return is_shown and takes_page(request)
