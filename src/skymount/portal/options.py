"""Owns how a portal is addressed: its URL, dialect, credentials and time limits, all validated."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

from skymount.errors import MalformedError
from skymount.wire.dialect import SVC, Dialect

DEFAULT_PORTAL_URL = "http://127.0.0.1:4280"
"""Where an embedded portal listens unless told otherwise, and clients look for one."""

CONNECT_TIMEOUT = 10.0
"""Seconds until a connection must stand."""

IDLE_TIMEOUT = 30.0
"""Seconds between two pieces of an answer; the portal's own default for finding content."""

CONNECTIONS = 32
"""Connections to one portal at a time; a public portal refuses far more (wire notes 9)."""

HEADER_LIMIT = 64 << 20
"""Bytes of response headers; a directory's metadata may travel in one (wire notes 5)."""


def parse_portal_url(text: str) -> str:
    """Return the address without a trailing slash; MalformedError when it is not one.

    Credentials in the URL are refused, because URLs are logged and shown.
    """
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise MalformedError(f"bad portal URL {text!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise MalformedError(f"bad portal URL {text!r}: it looks like https://portal.example")
    if parts.username is not None or parts.password is not None:
        raise MalformedError("bad portal URL: it must not hold credentials, use api_key for them")
    if parts.query or parts.fragment:
        raise MalformedError(f"bad portal URL {text!r}: it must not have a query or fragment")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


@dataclass(frozen=True, slots=True)
class PortalOptions:
    """One portal and how to talk to it; built by `parse`. Times in seconds."""

    url: str = DEFAULT_PORTAL_URL
    dialect: Dialect = SVC
    api_key: str = field(default="", repr=False)
    user_agent: str = ""
    connect_timeout: float = CONNECT_TIMEOUT
    idle_timeout: float = IDLE_TIMEOUT
    connections: int = CONNECTIONS

    @property
    def is_local(self) -> bool:
        """Whether the portal is on this machine, by its address."""
        host = urlsplit(self.url).hostname or ""
        try:
            return host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            return False

    @classmethod
    def parse(cls, url: str, dialect: Dialect = SVC, *, api_key: str = "") -> Self:
        """Build from a portal's address; an empty one selects the default portal."""
        return cls(parse_portal_url(url or DEFAULT_PORTAL_URL), dialect, api_key)
