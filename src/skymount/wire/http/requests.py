"""Requests to a portal as a client writes them (contract 1-12, docs/wire.md 3, 4.7, 7)."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from skymount.errors import MalformedError
from skymount.wire.dialect import Dialect
from skymount.wire.skylink import Skylink

JSON_HEADERS = (("Content-Type", "application/json"),)
FORM_HEADERS = (("Content-Type", "application/x-www-form-urlencoded"),)


@dataclass(frozen=True, slots=True)
class Request:
    """A request line and its headers, without a portal address or a body."""

    method: str
    target: str  # path and query, percent-encoded, beginning with ``/``
    headers: tuple[tuple[str, str], ...] = ()
    repeatable: bool = False  # whether it is idempotent although its method is not
    is_answered: bool = False  # whether success shows in the content of the response
    may_tell_metadata: bool = False  # whether a response header may have megabytes of metadata

    @property
    def is_safe(self) -> bool:
        """Whether it may be sent again if there was no response."""
        return self.repeatable or self.method in ("GET", "HEAD")


def quote_path(path: str) -> str:
    """Percent-encode a path, with ``+``, as portals decode it as a query (docs/wire.md 4.1)."""
    return quote(path, safe="/", errors="surrogatepass")


def _target(path: str, query: Iterable[tuple[str, str]]) -> str:
    try:
        text = urlencode(list(query), quote_via=quote)
    except UnicodeEncodeError:
        raise MalformedError("a parameter must be valid Unicode text") from None
    return f"{path}?{text}" if text else path


def download(
    skylink: Skylink,
    path: str = "",
    *,
    method: str = "GET",
    archive: str = "",
    attachment: bool = False,
    timeout: int | None = None,
    with_metadata: bool = True,
    skykey_name: str = "",
    skykey_id: str = "",
) -> Request:
    """Ask for content: endpoint 3, or 4 with method HEAD.

    `path` selects a file or directory; `archive` is a value of the ``format`` parameter; `timeout`
    is whole seconds that the portal may search.
    """
    query: list[tuple[str, str]] = []
    if archive:
        query.append(("format", archive))
    if attachment:
        query.append(("attachment", "true"))
    if timeout is not None:
        query.append(("timeout", str(timeout)))
    if not with_metadata:
        query.append(("no-response-metadata", "true"))
    query += _skykey(skykey_name, skykey_id)
    target = f"/{skylink}" + (f"/{quote_path(path)}" if path else "")
    return Request(method, _target(target, query), may_tell_metadata=True)


def _skykey(name: str, key_id: str) -> list[tuple[str, str]]:
    if name and key_id:
        raise MalformedError("cannot set both a 'skykeyname' and 'skykeyid'")
    named = (("skykeyname", name), ("skykeyid", key_id))
    return [(parameter, value) for parameter, value in named if value]


def metadata(dialect: Dialect, skylink: Skylink) -> Request:
    """Ask for the stored metadata bytes (docs/wire.md 4.7)."""
    return Request("GET", dialect.path("metadata", str(skylink)))


def base_sector(dialect: Dialect, skylink: Skylink) -> Request:
    """Ask for the used bytes of the base sector (docs/wire.md 4.7)."""
    return Request("GET", dialect.path("basesector", str(skylink)))


def pin(dialect: Dialect, skylink: Skylink) -> Request:
    """Ask that stored content stays (docs/wire.md 4.7)."""
    return Request("POST", dialect.path("pin", str(skylink)))


def sector(dialect: Dialect, root: bytes, offset: int, length: int) -> Request:
    """Ask for bytes of a sector by its Merkle root (docs/wire.md 4.7)."""
    query = [("root", root.hex()), ("offset", str(offset)), ("length", str(length))]
    return Request("GET", _target(dialect.path("root"), query))


def upload(
    dialect: Dialect,
    file_path: str = "",
    *,
    filename: str = "",
    query: Iterable[tuple[str, str]] = (),
) -> Request:
    """Send content: endpoint 1, and 2 when `filename` names the directory.

    Both begin with ``skyfile``, because deployed portals know no other path (docs/wire.md 3.1).
    Storage nodes store it at `file_path`, and refuse an empty or used one; portals ignore it.
    """
    named = [("filename", filename)] if filename else []
    path = dialect.path("skyfile", *([quote_path(file_path)] if file_path else []))
    return Request("POST", _target(path, [*named, *query]), is_answered=True)


def registry_get(
    dialect: Dialect, public_key: bytes, tweak: bytes, timeout: int | None = None
) -> Request:
    """Ask for a registry entry: endpoint 5. `timeout`: whole seconds that the portal may look."""
    query = [("publickey", f"ed25519:{public_key.hex()}"), ("datakey", tweak.hex())]
    if timeout is not None:
        query.append(("timeout", str(timeout)))
    return Request("GET", _target(dialect.path("registry"), query))


def registry_post(dialect: Dialect) -> Request:
    """Set a registry entry: endpoint 6. The same signed entry may be sent again."""
    return Request("POST", dialect.path("registry"), JSON_HEADERS, repeatable=True)


def create_skykey(dialect: Dialect) -> Request:
    """Create a skykey: endpoint 7, with `form` (name, type) as the body."""
    return Request("POST", dialect.path("createskykey"), FORM_HEADERS, is_answered=True)


def add_skykey(dialect: Dialect) -> Request:
    """Give a skykey to the portal: endpoint 8, with `form` (skykey) as the body."""
    return Request("POST", dialect.path("addskykey"), FORM_HEADERS)


def get_skykey(dialect: Dialect, *, name: str = "", key_id: str = "") -> Request:
    """Ask for a skykey: endpoint 9. Exactly one of `name` and `key_id`."""
    query = [("name", name)] if name else [("id", key_id)]
    return Request("GET", _target(dialect.path("skykey"), query))


def list_skykeys(dialect: Dialect) -> Request:
    """Ask for every skykey: endpoint 10."""
    return Request("GET", dialect.path("skykeys"))


def delete_skykey(dialect: Dialect) -> Request:
    """Delete a skykey (docs/wire.md 7), with `form` (name or id) as the body."""
    return Request("POST", dialect.path("deleteskykey"), FORM_HEADERS)


def hns_download(
    domain: str,
    path: str = "",
    *,
    attachment: bool = False,
    timeout: int | None = None,
    skykey_name: str = "",
    skykey_id: str = "",
) -> Request:
    """Ask for what a domain resolves to: endpoint 11, with parameters as of `download`."""
    query = [("attachment", "true")] if attachment else []
    if timeout is not None:
        query.append(("timeout", str(timeout)))
    query += _skykey(skykey_name, skykey_id)
    target = f"/hns/{quote(domain, safe='', errors='surrogatepass')}"
    target = _target(target + (f"/{quote_path(path)}" if path else ""), query)
    return Request("GET", target, may_tell_metadata=True)


def hns_resolution(domain: str) -> Request:
    """Ask for a domain's record: endpoint 12."""
    return Request("GET", f"/hnsres/{quote(domain, safe='', errors='surrogatepass')}")


def resolve(dialect: Dialect, skylink: Skylink) -> Request:
    """Ask what a v2 skylink leads to (docs/wire.md 4.7)."""
    return Request("GET", dialect.path("resolve", str(skylink)))


def form(**fields: str) -> bytes:
    """Write the urlencoded body of a form."""
    try:
        return urlencode(fields).encode()
    except UnicodeEncodeError:
        raise MalformedError("a parameter must be valid Unicode text") from None


def basic_credentials(password: str) -> str:
    """Return the Authorization header for an API key: Basic with an empty user name."""
    return "Basic " + base64.b64encode(b":" + password.encode()).decode()
