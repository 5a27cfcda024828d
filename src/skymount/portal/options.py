"""How to talk to a portal: `PortalOptions`, parsed from the TypedDicts that callers write. The
configuration uses the same rules.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import urlsplit

from skymount.errors import MalformedError, WrongTypeError
from skymount.portal.policies import VerifyPolicy
from skymount.portal.validation import callback, flag, integer, mapping, path, seconds, text, texts
from skymount.wire.dialect import SVC, Dialect, dialect_named
from skymount.wire.http.host import is_loopback

DEFAULT_SVC_PORTAL_URL = "http://127.0.0.1:4280"
"""Where an embedded portal listens unless told otherwise, and clients look for one."""

CONNECT_TIMEOUT = 10.0
"""Seconds until a connection must be established."""

IDLE_TIMEOUT = 35.0
"""Seconds between two pieces of a response: more than the 30 after which a portal says by default
that it found nothing (contract, Limits)."""

CONNECTIONS = 32
"""Connections to one portal at a time; a public portal refuses far more (docs/wire.md 9)."""

HEADER_LIMIT = 8 << 20
"""Bytes of response headers; a directory's metadata may be in one (docs/wire.md 5). Longer metadata
is read from its own endpoint.
"""

RETRIES = 3
"""How often a request that is safe to repeat is sent again."""

_MOST_RETRIES = 10  # ten minutes with the longest pauses
_MOST_CONNECTIONS = 1000

_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL_LIMIT = 2048  # characters of an address; host names have 253
_SHOWN = 80  # characters of a refused value that its message repeats

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_IN_VALUE = re.compile(r"[^\x20-\x7e\xa0-\xff]")

_NETLOC = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(:[0-9]*)?")
_NUMERIC = re.compile(r"[0-9]+(\.[0-9]+){3}|.*:.*")
_BAD_IN_URL = re.compile(r"[\x00-\x20\x7f\\<>\"^`{|}\ud800-\udfff]")

# Headers of a connection (RFC 9110, 7.6.1), of the framing, and of ranges. The client sets these
# itself; another value would make it misread the response.
_RESERVED_HEADERS = frozenset(
    [
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host"),
        *("accept-encoding", "content-encoding", "content-length", "content-type", "expect"),
        *("range", "if-match", "if-modified-since", "if-none-match", "if-range"),
        "if-unmodified-since",
    ]
)


class UploadProgress(TypedDict):
    """Bytes of an upload's body."""

    loaded: int
    total: int


OnUploadProgress = Callable[[float, UploadProgress], None]
"""Called with the fraction sent, from 0 to 1, and the bytes. It starts again from 0 when a redirect
makes the client send the body again."""


class CallOptions(TypedDict, total=False):
    """Options of a call that has its own `timeout` argument. docs/library.md explains each."""

    api_key: str
    custom_user_agent: str
    headers: Mapping[str, str]
    dialect: Dialect | str
    on_upload_progress: OnUploadProgress | None
    verify: str


class CommonOptions(CallOptions, total=False):
    """Options of a client, and of each of its calls, which override the client's."""

    timeout: float


class ClientOptions(CommonOptions, total=False):
    """Options that are fixed when a client is made."""

    node_url: str
    redirect_hosts: Sequence[str]
    connections: int
    connect_timeout: float
    retries: int
    ca_file: str
    read_only: bool


def parse_portal_url(url: str) -> str:
    """Return the address without a trailing slash; MalformedError when it is not one.

    Credentials in the URL are refused, because URLs are logged and shown.
    """
    if "@" in url:  # legal before credentials only, which no message may repeat
        raise MalformedError("bad portal URL: it must not hold credentials, use api_key for them")
    shown = repr(url.partition("?")[0][:_SHOWN])
    if len(url) > _URL_LIMIT:
        raise MalformedError(f"bad portal URL {shown}: it has more than {_URL_LIMIT} characters")
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        reason = ascii(str(error)[:_SHOWN])[1:-1]
        raise MalformedError(f"bad portal URL {shown}: {reason}") from None
    if parts.query or parts.fragment:
        raise MalformedError(f"bad portal URL {shown}: it must not have a query or fragment")
    is_sound = _NETLOC.fullmatch(parts.netloc) and _is_host(host)
    if _BAD_IN_URL.search(url.strip()) or not is_sound:
        raise MalformedError(f"bad portal URL {shown}: no address has such characters")
    if parts.scheme not in ("http", "https"):
        raise MalformedError(f"bad portal URL {shown}: {_with_scheme(url.strip())}")
    if not host or port == 0:
        raise MalformedError(f"bad portal URL {shown}: it looks like https://portal.example")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _with_scheme(url: str) -> str:
    """Say how an address would have to be written."""
    begins = "it begins with http:// or https://"
    if "://" in url or not url:
        return f"{begins}, as https://portal.example does"
    try:
        scheme = "http" if is_local(f"//{url}") else "https"
        return f"{begins}: write {parse_portal_url(f'{scheme}://{url}')}"
    except (ValueError, MalformedError):
        return f"{begins}, as https://portal.example does"


def portal_identity(url: str) -> tuple[str, str, int, str]:
    """Return what all spellings of a portal's address have in common: scheme, host, port, path."""
    parts = urlsplit(parse_portal_url(url))
    host = (parts.hostname or "").removesuffix(".")
    try:
        host = ip_address(host).compressed
    except ValueError:
        host = host.encode("idna").decode().lower()
    return parts.scheme, host, parts.port or _DEFAULT_PORTS[parts.scheme], parts.path


def _is_host(host: str | None) -> bool:
    """Whether it is an address, or a name that can be looked up: labels of up to 63 characters."""
    host = host or ""
    try:
        host.encode("idna")
        if _NUMERIC.fullmatch(host):
            ip_address(host)
    except ValueError:
        return False
    return True


def is_local(url: str) -> bool:
    """Whether the host of a URL is this machine, by its name or address."""
    return is_loopback(urlsplit(url).hostname or "")


@dataclass(frozen=True, slots=True)
class PortalOptions:
    """One portal and how to talk to it; made by `parse`. Times in seconds."""

    url: str = DEFAULT_SVC_PORTAL_URL
    dialect: Dialect = SVC
    api_key: str = field(default="", repr=False)
    user_agent: str = ""
    connect_timeout: float = CONNECT_TIMEOUT
    idle_timeout: float = IDLE_TIMEOUT
    connections: int = CONNECTIONS
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    node_url: str = ""
    retries: int = RETRIES
    on_upload_progress: OnUploadProgress | None = None
    redirect_hosts: tuple[tuple[str, int | None], ...] = ()
    """(name in lower case, port or None for the default one)"""
    verify: VerifyPolicy = VerifyPolicy.AVAILABLE
    ca_file: str = ""
    """An absolute path; empty: the system's authorities alone."""
    read_only: bool = False
    """Whether only requests are sent that change nothing at the portal."""

    @classmethod
    def parse(cls, url: str = "", /, **options: Unpack[ClientOptions]) -> Self:
        """Make options from a portal's address and what a caller gives; "" is the default portal.

        WrongTypeError for a value of another type and for an unknown option, MalformedError for a
        value that cannot be used. Neither repeats a secret.
        """
        checked = parse_portal_url(text(url, "portal URL") or DEFAULT_SVC_PORTAL_URL)
        return cls(checked, **_parsed(options, ClientOptions.__optional_keys__))

    def overridden(self, **options: Unpack[CommonOptions]) -> Self:
        """Return the options of one call, which override these; errors as of `parse`."""
        if not options:
            return self
        return replace(self, **_parsed(options, CommonOptions.__optional_keys__))

    def with_extra_time(self, extra: float | None) -> Self:
        """Return options that let the portal stay silent for so many seconds more."""
        return self if extra is None else replace(self, idle_timeout=self.idle_timeout + extra)


def _parsed(options: Mapping[str, object], known: frozenset[str]) -> dict[str, Any]:
    unknown = options.keys() - known
    if unknown:
        raise WrongTypeError(f"unknown option {min(unknown)!r}")
    return {
        _ATTRIBUTES.get(name, name): _PARSERS[name](value, name) for name, value in options.items()
    }


def _api_key(value: object, name: str) -> str:
    found = text(value, name)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise MalformedError(f"{name} is not valid Unicode") from None
    return found


def header_value(value: object, name: str) -> str:
    """Check the value of a header; an error names the option, and does not repeat the value."""
    found = text(value, name).strip(" ")
    if _BAD_IN_VALUE.search(found):
        raise MalformedError(f"{name} holds a character that a header cannot carry")
    return found


def _headers(value: object, name: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, tuple[str, str]] = {}
    for key, content in mapping(value, name).items():
        header = text(key, "the name of a header")
        shown = header[:_SHOWN]
        if not _HEADER_NAME.fullmatch(header):
            raise MalformedError(f"{shown!r} is not the name of a header")
        if header.lower() in _RESERVED_HEADERS:
            raise MalformedError(f"the header {shown} is set by the client itself")
        if header.lower() in found:
            raise MalformedError(f"the header {shown} is given twice")
        found[header.lower()] = (header, header_value(content, f"the header {shown}"))
    return tuple(found.values())


def _dialect(value: object, name: str) -> Dialect:
    return value if isinstance(value, Dialect) else dialect_named(text(value, name))


def _node_url(value: object, name: str) -> str:
    found = text(value, name)
    return parse_portal_url(found) if found else ""


def _redirect_hosts(value: object, name: str) -> tuple[tuple[str, int | None], ...]:
    return tuple(_redirect_host(each, name) for each in texts(value, name))


def _ca_file(value: object, name: str) -> str:
    found = text(value, name) and path(value, name)
    return os.path.abspath(os.path.expanduser(found)) if found else ""


def _redirect_host(host: str, name: str) -> tuple[str, int | None]:
    if "*" in host:
        raise MalformedError(f"{name}: {host[:_SHOWN]!r}: each host has to be named, without '*'")
    parts = urlsplit(parse_portal_url(f"http://{host}"))
    if parts.path or not parts.hostname:
        raise MalformedError(f"{name}: {host[:_SHOWN]!r} is neither host nor host:port")
    return parts.hostname.encode("idna").decode(), parts.port


_ATTRIBUTES = {"custom_user_agent": "user_agent", "timeout": "idle_timeout"}
"""Those of `PortalOptions` that are named otherwise than the option."""

_PARSERS: Mapping[str, Callable[[object, str], object]] = {
    "api_key": _api_key,
    "custom_user_agent": header_value,
    "headers": _headers,
    "timeout": seconds,
    "dialect": _dialect,
    "on_upload_progress": callback,
    "verify": lambda value, name: VerifyPolicy.parse(text(value, name), name),
    "node_url": _node_url,
    "ca_file": _ca_file,
    "redirect_hosts": _redirect_hosts,
    "connections": lambda value, name: integer(value, name, 1, _MOST_CONNECTIONS),
    "connect_timeout": seconds,
    "retries": lambda value, name: integer(value, name, 0, _MOST_RETRIES),
    "read_only": flag,
}
