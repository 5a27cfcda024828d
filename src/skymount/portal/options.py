"""Owns how a portal is addressed: its URL, dialect, credentials and time limits, all validated.

The TypedDicts are what callers write, `PortalOptions` is what they are parsed into.
"""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import urlsplit

from skymount.errors import MalformedError, WrongTypeError
from skymount.portal import DEFAULT_SVC_PORTAL_URL
from skymount.portal.verify_policy import VerifyPolicy
from skymount.wire.dialect import SVC, Dialect, dialect_named

DEFAULT_PORTAL_URL = DEFAULT_SVC_PORTAL_URL
"""Where an embedded portal listens unless told otherwise, and clients look for one."""

CONNECT_TIMEOUT = 10.0
"""Seconds until a connection must stand."""

IDLE_TIMEOUT = 35.0
"""Seconds between two pieces of an answer: more than the 30 after which a portal says by default
that it found nothing (contract, Limits)."""

CONNECTIONS = 32
"""Connections to one portal at a time; a public portal refuses far more (wire notes 9)."""

HEADER_LIMIT = 8 << 20
"""Bytes of response headers where a directory's metadata may travel in one (wire notes 5). What is
longer has an endpoint of its own.
"""

RETRIES = 3
"""How often a request that is safe to repeat is repeated, after the first attempt."""

_MOST_RETRIES = 10  # with the longest pauses that is ten minutes
_MOST_CONNECTIONS = 1000

_URL_LIMIT = 2048  # characters of an address; host names have 253
_SHOWN = 80  # characters of what is refused that its message repeats

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_IN_VALUE = re.compile(r"[^\x20-\x7e\xa0-\xff]")

_NETLOC = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(:[0-9]*)?")
_NUMERIC = re.compile(r"[0-9]+(\.[0-9]+){3}|.*:.*")
_BAD_IN_URL = re.compile(r"[\x00-\x20\x7f\\<>\"^`{|}\ud800-\udfff]")

# Of one connection (RFC 9110, 7.6.1), of the message's frame, or of what is asked for: the client
# sets these itself, and another value would make it misread the answer.
_OWN_HEADERS = frozenset(
    [
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host"),
        *("accept-encoding", "content-encoding", "content-length", "content-type", "expect"),
        *("range", "if-match", "if-modified-since", "if-none-match", "if-range"),
        "if-unmodified-since",
    ]
)


class UploadProgress(TypedDict):
    """How far an upload is, in bytes of its body."""

    loaded: int
    total: int


OnUploadProgress = Callable[[float, UploadProgress], None]
"""Called with the fraction of 1 that is sent, and the bytes. It starts again from 0 when a redirect
makes the client send the body once more."""


class CallOptions(TypedDict, total=False):
    """Options of a call that has a time-out of its own kind."""

    api_key: str
    """Password of the portal: HTTP Basic with an empty user name."""
    custom_user_agent: str
    """Replaces the User-Agent header."""
    headers: Mapping[str, str]
    """Further headers of each request, such as a Cookie or a key in a header of its own."""
    dialect: Dialect | str
    """The names that the portal uses, or the name of a preset."""
    on_upload_progress: OnUploadProgress | None
    verify: str
    """What to do with content that cannot be checked against its skylink: ``require`` refuses it,
    ``available`` says so in the result, ``off`` checks nothing."""


class CommonOptions(CallOptions, total=False):
    """Options of a client, and of each of its calls, which override the client's."""

    timeout: float
    """Seconds that the portal may stay silent, above 0."""


class ClientOptions(CommonOptions, total=False):
    """Options that are fixed when a client is made."""

    node_url: str
    """Where the skykey calls go; empty: to the portal."""
    ca_file: str
    """A file with certificates of authorities to trust besides the system's (PEM)."""
    redirect_hosts: Sequence[str]
    """Hosts, as ``host`` or ``host:port``, to which the portal may redirect what is sent."""
    connections: int
    """Connections to the portal at a time."""
    connect_timeout: float
    """Seconds until a connection must stand, above 0."""
    retries: int
    """How often a request that is safe to repeat is repeated."""


def parse_portal_url(text: str) -> str:
    """Return the address without a trailing slash; MalformedError when it is not one.

    Credentials in the URL are refused, because URLs are logged and shown.
    """
    if "@" in text:  # nowhere else in an address, and what stands before it is not repeated
        raise MalformedError("bad portal URL: it must not hold credentials, use api_key for them")
    shown = repr(text.partition("?")[0][:_SHOWN])
    if len(text) > _URL_LIMIT:
        raise MalformedError(f"bad portal URL {shown}: it has more than {_URL_LIMIT} characters")
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        reason = ascii(str(error)[:_SHOWN])[1:-1]
        raise MalformedError(f"bad portal URL {shown}: {reason}") from None
    if parts.query or parts.fragment:
        raise MalformedError(f"bad portal URL {shown}: it must not have a query or fragment")
    is_sound = _NETLOC.fullmatch(parts.netloc) and _is_host(host)
    if _BAD_IN_URL.search(text.strip()) or not is_sound:
        raise MalformedError(f"bad portal URL {shown}: no address has such characters")
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise MalformedError(f"bad portal URL {shown}: it looks like https://portal.example")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


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
    """Tell whether a portal is on this machine, by its address."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


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
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    node_url: str = ""
    retries: int = RETRIES
    on_upload_progress: OnUploadProgress | None = None
    redirect_hosts: tuple[tuple[str, int | None], ...] = ()
    """(name in lower case, port or None for the default one)"""
    verify: VerifyPolicy = VerifyPolicy.AVAILABLE
    ca_file: str = ""
    """An absolute path; empty: the system's authorities alone."""

    @property
    def is_local(self) -> bool:
        """Whether the portal is on this machine, by its address."""
        return is_local(self.url)

    @classmethod
    def parse(cls, url: str = "", /, **options: Unpack[ClientOptions]) -> Self:
        """Build from a portal's address and options; an empty address is the default portal.

        WrongTypeError for a value of another type and for an unknown option, MalformedError for a
        value that cannot be used. Neither repeats a secret.
        """
        checked = parse_portal_url(_text("portal URL", url) or DEFAULT_PORTAL_URL)
        return cls(checked, **_parsed(options, _CLIENT_OPTIONS))

    def overridden(self, **options: Unpack[CommonOptions]) -> Self:
        """Return the options of one call, which override these; errors as of `parse`."""
        return replace(self, **_parsed(options, _COMMON_OPTIONS)) if options else self


def _parsed(
    options: Mapping[str, object], known: "Mapping[str, tuple[str, _Parser]]"
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise WrongTypeError(f"unknown option {name!r}")
        target, parser = known[name]
        found[target] = parser(name, value)
    return found


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise WrongTypeError(f"{name} must be a string, not {type(value).__name__}")
    return value


def _seconds(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongTypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not 0 < seconds < math.inf:
        raise MalformedError(f"{name} must be above 0 seconds and finite")
    return seconds


def _count(name: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongTypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if not least <= value <= most:
        raise MalformedError(f"{name} must be from {least} to {most}")
    return value


def _api_key(name: str, value: object) -> str:
    text = _text(name, value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedError(f"{name} is not valid Unicode") from None
    return text


def _header_value(name: str, value: object) -> str:
    text = _text(name, value).strip(" ")
    if _BAD_IN_VALUE.search(text):
        raise MalformedError(f"{name} holds a character that a header cannot carry")
    return text


def _headers(name: str, value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise WrongTypeError(f"{name} must be a mapping, not {type(value).__name__}")
    found: dict[str, tuple[str, str]] = {}
    for header, content in value.items():
        key = _text("the name of a header", header).lower()
        shown = header[:_SHOWN]
        if not _HEADER_NAME.fullmatch(header):
            raise MalformedError(f"{shown!r} is not the name of a header")
        if key in _OWN_HEADERS:
            raise MalformedError(f"the header {shown} is the client's own to set")
        if key in found:
            raise MalformedError(f"the header {shown} is given twice")
        found[key] = (header, _header_value(f"the header {shown}", content))
    return tuple(found.values())


def _dialect(name: str, value: object) -> Dialect:
    return value if isinstance(value, Dialect) else dialect_named(_text(name, value))


def _progress(name: str, value: object) -> OnUploadProgress | None:
    if value is not None and not callable(value):
        raise WrongTypeError(f"{name} must be callable, not {type(value).__name__}")
    return value


def _node_url(name: str, value: object) -> str:
    text = _text(name, value)
    return parse_portal_url(text) if text else ""


def _path(name: str, value: object) -> str:
    text = _text(name, value)
    if "\0" in text:
        raise MalformedError(f"{name} is not a path")
    return os.path.abspath(os.path.expanduser(text)) if text else ""


def _redirect_hosts(name: str, value: object) -> tuple[tuple[str, int | None], ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise WrongTypeError(f"{name} must be a list of hosts, not {type(value).__name__}")
    return tuple(_redirect_host(name, _text(f"each of {name}", each)) for each in value)


def _redirect_host(name: str, text: str) -> tuple[str, int | None]:
    parts = urlsplit(parse_portal_url(f"http://{text}"))
    if parts.path or not parts.hostname:
        raise MalformedError(f"{name}: {text[:80]!r} is neither host nor host:port")
    return parts.hostname.encode("idna").decode(), parts.port


def _policy(name: str, value: object) -> VerifyPolicy:
    return VerifyPolicy.parse(_text(name, value))


_Parser = Callable[[str, object], object]

_COMMON_OPTIONS: Mapping[str, tuple[str, _Parser]] = {
    "api_key": ("api_key", _api_key),
    "custom_user_agent": ("user_agent", _header_value),
    "headers": ("headers", _headers),
    "timeout": ("idle_timeout", _seconds),
    "dialect": ("dialect", _dialect),
    "on_upload_progress": ("on_upload_progress", _progress),
    "verify": ("verify", _policy),
}

_CLIENT_OPTIONS: Mapping[str, tuple[str, _Parser]] = {
    **_COMMON_OPTIONS,
    "node_url": ("node_url", _node_url),
    "ca_file": ("ca_file", _path),
    "redirect_hosts": ("redirect_hosts", _redirect_hosts),
    "connections": ("connections", lambda name, value: _count(name, value, 1, _MOST_CONNECTIONS)),
    "connect_timeout": ("connect_timeout", _seconds),
    "retries": ("retries", lambda name, value: _count(name, value, 0, _MOST_RETRIES)),
}
