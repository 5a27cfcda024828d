"""What settings and arguments may be: types and ranges, sizes, times, paths, addresses, headers.

WrongTypeError or MalformedError; both name the setting or argument, and neither repeats a secret.
`msgspec.convert` does not fit: its bounds end at 2**63, it decodes a text as base64 where bytes are
wanted, and all that is not a plain type has to be parsed here in any case.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from skymount.errors import MalformedError, WrongTypeError
from skymount.wire.http.host import is_loopback

_VARIABLE = re.compile(r"\$[A-Za-z_{]")
_SHOWN = 80  # characters of a refused value that its message repeats

_SIZE = re.compile(
    r"(\d{1,15})\s*b?|(\d{1,15}(?:\.\d{1,3})?)\s*([kmgt])(i?b)?", re.ASCII | re.IGNORECASE
)
_DURATION_UNITS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(|s|min|h|d|w)", re.ASCII | re.IGNORECASE)

_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL_LIMIT = 2048  # characters of an address; host names have 253
_NETLOC = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(:[0-9]*)?")
_NUMERIC = re.compile(r"[0-9]+(\.[0-9]+){3}|.*:.*")
_BAD_IN_URL = re.compile(r"[\x00-\x20\x7f\\<>\"^`{|}\ud800-\udfff]")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_IN_VALUE = re.compile(r"[^\x20-\x7e\xa0-\xff]")

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

# --- types and ranges


def typed(value: object, kind: Any, name: str, what: str) -> Any:
    """Return a value of a type, or of a union of types. A bool counts as a bool only."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise WrongTypeError(f"{name} must be {what}, not {type(value).__name__}")
    return value


def text(value: object, name: str) -> str:
    """Return a text."""
    found: str = typed(value, str, name, "a string")
    return found


def unicode_text(value: object, name: str) -> str:
    """Return a text that can be encoded; an error does not repeat it."""
    found = text(value, name)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise MalformedError(f"{name} is not valid Unicode") from None
    return found


def one_of(value: object, name: str, known: Iterable[str]) -> str:
    """Return one of some words."""
    found = text(value, name)
    if found not in known:
        raise MalformedError(f"{name} must be one of {', '.join(known)}, not {found[:_SHOWN]!r}")
    return found


def flag(value: object, name: str) -> bool:
    """Return a truth value; numbers are not taken for one."""
    found: bool = typed(value, bool, name, "True or False")
    return found


def integer(value: object, name: str, least: int = 0, most: int | None = None) -> int:
    """Return an integer of a range."""
    found: int = typed(value, int, name, "an integer")
    if found < least or (most is not None and found > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise MalformedError(f"{name} must be {limits}")
    return found


def seconds(value: object, name: str, most: float = sys.float_info.max) -> float:
    """Return a number of seconds above 0."""
    found: float = typed(value, int | float, name, "a number of seconds")
    if not 0 < found <= most:
        limit = "finite" if most == sys.float_info.max else f"at most {most}"
        raise MalformedError(f"{name} must be above 0 seconds and {limit}")
    return float(found)


def duration(value: object, name: str) -> float:
    """Return a number of seconds, 0 included, at most a day; it may be a text with a unit."""
    found = value
    if isinstance(value, str):
        found = parse_duration(value) if value.strip() != "0" else 0
    return 0.0 if type(found) is int and not found else seconds(found, name, most=86400)


def texts(value: object, name: str) -> tuple[str, ...]:
    """Return a sequence of texts; a single text is not one."""
    what = "a list of strings"
    if isinstance(value, str):
        raise WrongTypeError(f"{name} must be {what}, not a single one")
    return tuple(text(item, f"each of {name}") for item in typed(value, Sequence, name, what))


def mapping(value: object, name: str) -> Mapping[object, object]:
    """Return a mapping."""
    found: Mapping[object, object] = typed(value, Mapping, name, "a mapping")
    return found


def callback(value: object, name: str) -> Any:
    """Return a callable or None."""
    if value is not None and not callable(value):
        raise WrongTypeError(f"{name} must be callable, not {type(value).__name__}")
    return value


# --- paths


def path(value: object, name: str) -> str:
    """Return the text of a path. `~` and `~user` at its start must be known."""
    found = text(value, name)
    if not found:
        raise MalformedError(f"{name} is an empty path")
    if "\0" in found:
        raise MalformedError(f"{name} is not a path: it holds a NUL character")
    if os.path.expanduser(found).startswith("~"):
        raise MalformedError(f"{name} begins with ~, and there is no such home directory")
    return found


def absolute_path(value: object, name: str) -> str:
    """Return an absolute path; "" is none."""
    found = text(value, name) and path(value, name)
    return os.path.abspath(os.path.expanduser(found)) if found else ""


def refuse_variables(value: object, name: str) -> None:
    """MalformedError for a path with variables, where no shell has replaced them."""
    if isinstance(value, str) and _VARIABLE.search(value):
        raise MalformedError(f"{name} holds a $: variables are not replaced; write ~ for your home")


# --- sizes and times


def parse_size(value: object, name: str = "") -> int:
    """Parse a number of bytes: an integer, or text like ``128 MiB``, ``1G`` or ``1.5 GB``.

    Units are those of coreutils: M and MiB are 1024², MB is 1000².
    """
    if type(value) is int and 0 <= value < 1 << 50:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        shown = ascii(value)[:_SHOWN]
        raise MalformedError(f"not a size: {shown}; write it like 128 MiB, 2G or 500 MB")
    plain, amount, unit, suffix = match.groups()
    if plain:
        return int(plain)
    base = 1000 if suffix in ("b", "B") else 1024
    return int(float(amount) * base ** ("kmgt".index(unit.lower()) + 1))


def format_size(size: int) -> str:
    """Return a number of bytes as it is written in the configuration."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and not size % 1024**power:
            return f"{size // 1024**power} {unit}"
    return str(size)


def parse_duration(value: str) -> float:
    """Parse a time in seconds, or text like ``30d``, ``12h`` or ``90 min``."""
    match = _DURATION.fullmatch(value.strip())
    if match is None or float(match[1]) <= 0:
        shown = ascii(value)[:_SHOWN]
        raise MalformedError(f"not a duration: {shown}; write it like 30d, 12h or 90min")
    return float(match[1]) * _DURATION_UNITS[match[2].lower()]


# --- addresses of portals, without looking anything up


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


def portal_url(value: object, name: str) -> str:
    """Return the address of a portal; "" is none."""
    found = text(value, name)
    return parse_portal_url(found) if found else ""


def portal_urls(value: object, name: str) -> tuple[str, ...]:
    """Return the addresses of several portals."""
    found = tuple(map(parse_portal_url, filter(None, texts(value, name))))
    seen = set()
    for url in found:
        identity = portal_identity(url)
        if identity in seen:
            raise MalformedError(f"{url} is listed twice")
        seen.add(identity)
    return found


def redirect_hosts(value: object, name: str) -> tuple[tuple[str, int | None], ...]:
    """Return hosts as (name in lower case, port or None for the default one)."""
    return tuple(_redirect_host(each, name) for each in texts(value, name))


def _redirect_host(host: str, name: str) -> tuple[str, int | None]:
    if "*" in host:
        raise MalformedError(f"{name}: {host[:_SHOWN]!r}: each host has to be named, without '*'")
    parts = urlsplit(parse_portal_url(f"http://{host}"))
    if parts.path or not parts.hostname:
        raise MalformedError(f"{name}: {host[:_SHOWN]!r} is neither host nor host:port")
    return parts.hostname.encode("idna").decode(), parts.port


# --- headers


def header_value(value: object, name: str) -> str:
    """Check the value of a header; an error names the option, and does not repeat the value."""
    found = text(value, name).strip(" ")
    if _BAD_IN_VALUE.search(found):
        raise MalformedError(f"{name} holds a character that a header cannot carry")
    return found


def headers(value: object, name: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of a mapping, whose values may be secrets."""
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


# --- what a text of the environment, or of a flag, stands for


def truth(text: str) -> bool:
    """Return what yes and no, and their like, say."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise MalformedError(f"neither true nor false: {text[:_SHOWN]!r}")
    return words[text.lower()]


def number(text: str) -> float:
    """Return a number of seconds."""
    try:
        return float(text)
    except ValueError:
        raise MalformedError(f"not a number of seconds: {text[:_SHOWN]!r}") from None


def items(text: str) -> list[str]:
    """Return what blanks or commas separate."""
    return [item for item in re.split(r"[\s,]+", text) if item]


def whole_number(text: str) -> int | str:
    """Return a number, or the text if it is none."""
    return int(text) if text.isdecimal() else text


def lines(text: str) -> dict[str, str]:
    """Return headers, one a line; what is wrong with them is not repeated."""
    given = [line for line in text.splitlines() if line.strip()]
    try:
        found = dict(re.split(r"\s*:", line.strip(), maxsplit=1) for line in given)
    except ValueError:
        found = {}
    if len(found) < len(given):
        raise MalformedError("not lines like Name: value, each name once")
    return found
