"""Owns the messages of the content endpoints (contract 1-4, wire notes 3, 4.7): requests as a
client writes them, bodies as both sides read and write them.
"""

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self
from urllib.parse import quote, unquote_to_bytes, urlencode

import msgspec

from skymount.errors import MalformedError
from skymount.wire.dialect import SVC, Dialect
from skymount.wire.skylink import ROOT_SIZE, Skylink

ANSWER_LIMIT = 64 << 10
"""Bytes of a JSON answer or error body that are read."""

PART_HEADER_LIMIT = 64 << 10
"""Bytes of the header of one multipart part."""


JSON_HEADERS = (("Content-Type", "application/json"),)
FORM_HEADERS = (("Content-Type", "application/x-www-form-urlencoded"),)


@dataclass(frozen=True, slots=True)
class Request:
    """A request line and its headers, without a portal address or a body."""

    method: str
    target: str
    """Path and query, percent-encoded, beginning with ``/``."""
    headers: tuple[tuple[str, str], ...] = ()
    repeatable: bool = False
    """Whether sending it twice is the same as sending it once, whatever its method."""
    is_answered: bool = False
    """Of a POST: whether the content of the answer says that it was done, not the status alone."""
    may_tell_metadata: bool = False
    """Whether a header of the answer may be the metadata of a whole skylink, megabytes long."""

    @property
    def is_safe(self) -> bool:
        """Whether it may be sent again when no answer came."""
        return self.repeatable or self.method in ("GET", "HEAD")


def quote_path(path: str) -> str:
    """Percent-encode a path inside a skylink, each element by itself.

    ``+`` is encoded too, because portals decode paths by the rules of a query (wire notes 4.1).
    """
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

    `path` selects a file or directory inside; `archive` is a value of the ``format`` parameter,
    `timeout` whole seconds that the portal may search. Without `with_metadata` a portal may leave
    its header out, which can be megabytes long. MalformedError for a skykey's name and its id.
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
    """Ask for the stored metadata bytes (wire notes 4.7)."""
    return Request("GET", dialect.path("metadata", str(skylink)))


def base_sector(dialect: Dialect, skylink: Skylink) -> Request:
    """Ask for the used bytes of the base sector (wire notes 4.7)."""
    return Request("GET", dialect.path("basesector", str(skylink)))


def sector(dialect: Dialect, root: bytes, offset: int, length: int) -> Request:
    """Ask for bytes of a sector by its Merkle root (wire notes 4.7)."""
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

    The path begins with ``skyfile`` for both: endpoint 2 takes any path, and deployed portals
    know only this one (wire notes 3.1). `file_path` is where a node of one's own keeps it; portals
    ignore it, nodes refuse an empty or a used one.
    """
    named = [("filename", filename)] if filename else []
    path = dialect.path("skyfile", *([quote_path(file_path)] if file_path else []))
    return Request("POST", _target(path, [*named, *query]), is_answered=True)


def registry_get(
    dialect: Dialect, public_key: bytes, tweak: bytes, timeout: int | None = None
) -> Request:
    """Ask for a registry entry: endpoint 5. `timeout` is whole seconds that the portal may look."""
    query = [("publickey", f"ed25519:{public_key.hex()}"), ("datakey", tweak.hex())]
    if timeout is not None:
        query.append(("timeout", str(timeout)))
    return Request("GET", _target(dialect.path("registry"), query))


def registry_post(dialect: Dialect) -> Request:
    """Set a registry entry: endpoint 6. The same signed entry may be sent again."""
    return Request("POST", dialect.path("registry"), JSON_HEADERS, repeatable=True)


def create_skykey(dialect: Dialect) -> Request:
    """Make a skykey: endpoint 7, with `form` (name, type) as the body."""
    return Request("POST", dialect.path("createskykey"), FORM_HEADERS, is_answered=True)


def add_skykey(dialect: Dialect) -> Request:
    """Hand a skykey over: endpoint 8, with `form` (skykey) as the body."""
    return Request("POST", dialect.path("addskykey"), FORM_HEADERS)


def get_skykey(dialect: Dialect, *, name: str = "", key_id: str = "") -> Request:
    """Ask for a skykey: endpoint 9. Exactly one of `name` and `key_id`."""
    query = [("name", name)] if name else [("id", key_id)]
    return Request("GET", _target(dialect.path("skykey"), query))


def list_skykeys(dialect: Dialect) -> Request:
    """Ask for every skykey: endpoint 10."""
    return Request("GET", dialect.path("skykeys"))


def delete_skykey(dialect: Dialect) -> Request:
    """Forget a skykey (wire notes 7), with `form` (name or id) as the body."""
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
    """Ask what a v2 skylink leads to (wire notes 4.7)."""
    return Request("GET", dialect.path("resolve", str(skylink)))


def form(**fields: str) -> bytes:
    """Write the urlencoded body of a form."""
    try:
        return urlencode(fields).encode()
    except UnicodeEncodeError:
        raise MalformedError("a parameter must be valid Unicode text") from None


def parse_resolved(body: bytes) -> Skylink:
    """Read the answer to `resolve`."""
    try:
        return Skylink.parse(msgspec.json.decode(body[:ANSWER_LIMIT], type=_Resolved).skylink)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"resolved skylink is not as expected: {error}") from None


def encode_resolved(skylink: Skylink) -> bytes:
    """Write the answer to `resolve`."""
    return msgspec.json.encode(_Resolved(str(skylink))) + b"\n"


class _Resolved(msgspec.Struct):
    skylink: str


class _UploadAnswer(msgspec.Struct):
    skylink: str
    merkleroot: str = ""
    bitfield: int | None = None


@dataclass(frozen=True, slots=True)
class UploadResult:
    """What an upload returns; root and bitfield are those inside the skylink.

    ``str()`` gives the content link, ``<scheme>://<skylink>``.
    """

    skylink: Skylink
    scheme: str = SVC.scheme

    @property
    def merkleroot(self) -> str:
        """The hash inside the skylink, 64 hex digits."""
        return self.skylink.root.hex()

    @property
    def bitfield(self) -> int:
        """Version, offset and length inside the skylink."""
        return self.skylink.bitfield

    def __str__(self) -> str:
        return f"{self.scheme}://{self.skylink}"

    @classmethod
    def parse(cls, body: bytes, dialect: Dialect = SVC) -> Self:
        """Read the JSON answer of endpoints 1 and 2; MalformedError when it contradicts itself."""
        if len(body) > ANSWER_LIMIT:
            raise MalformedError("upload answer is too long")
        try:
            answer = msgspec.json.decode(body, type=_UploadAnswer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedError(f"upload answer is not as expected: {error}") from None
        skylink = Skylink.parse(answer.skylink)
        if answer.merkleroot and answer.merkleroot.lower() != skylink.root.hex():
            raise MalformedError("upload answer: Merkle root and skylink contradict each other")
        if answer.bitfield is not None and answer.bitfield != skylink.bitfield:
            raise MalformedError("upload answer: bitfield and skylink contradict each other")
        return cls(skylink, dialect.scheme)

    def encode(self) -> bytes:
        """Write the JSON answer, with the line feed that portals send."""
        root = self.skylink.root.hex()
        return (
            f'{{"skylink":"{self.skylink}","merkleroot":"{root}",'
            f'"bitfield":{self.skylink.bitfield}}}\n'
        ).encode()


class _Message(msgspec.Struct):
    message: str = ""


def encode_error(message: str) -> bytes:
    """Write the JSON body of an error (wire notes 4.6)."""
    try:
        return msgspec.json.encode(_Message(message)) + b"\n"
    except UnicodeEncodeError:
        return encode_error(message.encode("utf-8", "backslashreplace").decode())


def parse_error(body: bytes) -> str:
    """Return the message of an error body, ``""`` when it is of another form (HTML, text)."""
    try:
        return msgspec.json.decode(body[:ANSWER_LIMIT], type=_Message).message
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


@dataclass(frozen=True, slots=True)
class Part:
    """The header of one multipart part: the form's field, the file's path, type and mode."""

    field: str
    filename: str
    contenttype: str = ""
    mode: int = 0
    """Permission bits, 0 when not given."""

    def encode(self) -> bytes:
        """Write the header lines, each ended, without the empty line that follows them.

        A name that a quoted string cannot carry (control characters) is written in the extended
        form of RFC 5987.
        """
        field = _backslashed(_CONTROL.sub("", self.field))
        if _CONTROL.search(self.filename):
            name = f"filename*=UTF-8''{quote(self.filename, safe='')}"
        else:
            name = f'filename="{_backslashed(self.filename)}"'
        lines = [f'Content-Disposition: form-data; name="{field}"; {name}']
        if self.contenttype:
            lines.append(f"Content-Type: {_CONTROL.sub('', self.contenttype)}")
        if self.mode:
            lines.append(f"Mode: {self.mode:o}")
        return "".join(f"{line}\r\n" for line in lines).encode()

    @classmethod
    def parse(cls, headers: Iterable[tuple[bytes, bytes]]) -> Self:
        """Read a part's (name, value) headers.

        The file name is taken as sent, with its directories (wire notes 3.3). MalformedError when
        the disposition or the mode does not parse, or the name is not UTF-8.
        """
        found = {name.lower(): value for name, value in headers}
        if sum(len(name) + len(value) for name, value in found.items()) > PART_HEADER_LIMIT:
            raise MalformedError("multipart: the header of a part is too long")
        try:
            disposition = found.get(b"content-disposition", b"").decode()
            contenttype = found.get(b"content-type", b"").decode().strip()
            mode_text = found.get(b"mode", b"").decode().strip()
        except UnicodeDecodeError:
            raise MalformedError("multipart: a part's header is not valid UTF-8") from None
        params = _parameters(disposition)
        if not re.fullmatch(r"[0-7]{0,12}", mode_text):
            raise MalformedError(f"multipart: failed to parse file mode {mode_text[:40]!r}")
        return cls(
            field=params.get("name", ""),
            filename=params.get("filename*", params.get("filename", "")),
            contenttype=contenttype,
            mode=int(mode_text or "0", 8),
        )


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PARAMETER = re.compile(
    r';[ \t]*([A-Za-z0-9*_-]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))[ \t]*', re.DOTALL
)


def _backslashed(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _parameters(disposition: str) -> dict[str, str]:
    """Read the parameters of a Content-Disposition value, the first of each name."""
    kind, at = re.match(r"[^;]*", disposition), 0
    if kind is None or kind[0].strip().lower() != "form-data":
        raise MalformedError("multipart: a part is not form-data")
    at = kind.end()
    found: dict[str, str] = {}
    while at < len(disposition):
        match = _PARAMETER.match(disposition, at)
        if match is None:
            raise MalformedError("multipart: bad Content-Disposition")
        name, quoted, plain = match[1].lower(), match[2], match[3]
        value = re.sub(r'\\(["\\])', r"\1", quoted) if quoted is not None else plain.strip()
        if name.endswith("*"):
            value = _extended_value(value)
        found.setdefault(name, value)
        at = match.end()
    return found


def _extended_value(text: str) -> str:
    """Decode ``UTF-8''percent-encoded`` (RFC 5987)."""
    charset, _, rest = text.partition("'")
    encoded = rest.partition("'")[2]
    if charset.lower() != "utf-8":
        raise MalformedError("multipart: extended parameter is not in UTF-8")
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise MalformedError("multipart: file name is not valid UTF-8") from None


def etag(skylink: Skylink, path: str, archive: str) -> str:
    """Return the entity tag of a download, quotes included: the same for GET and HEAD.

    The hash of later servers (wire notes 4.4): skylink, path, format and the constant "1", each
    preceded by its length. The contract wants HEAD's headers identical to GET's, so the method,
    which early servers hash, is left out.
    """
    hasher = blake2b(digest_size=ROOT_SIZE)
    for text in (str(skylink), path, archive, "1"):
        encoded = text.encode("utf-8", "surrogateescape")
        hasher.update(len(encoded).to_bytes(8, "little") + encoded)
    return f'"{hasher.hexdigest()}"'


def basic_credentials(password: str) -> str:
    """Return the Authorization header for an API key: Basic with an empty user name."""
    return "Basic " + base64.b64encode(b":" + password.encode()).decode()
