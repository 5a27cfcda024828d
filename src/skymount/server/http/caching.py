"""What caches may keep of an answer, and when it is still good (RFC 9110 13, RFC 9111). No IO.

Answers are not stored unless an endpoint says otherwise, and errors never are.
"""

from collections.abc import Iterable
from functools import lru_cache

from starlette.datastructures import Headers
from starlette.responses import Response

from skymount.server.http.responses import HeaderList, encode_headers
from skymount.server.http_error import HttpError

_NAME = "Cache-Control"
IMMUTABLE = "public, max-age=31536000, immutable"
"""For what a v1 skylink or a Merkle root names, which no password protects."""
REVALIDATED = "no-cache"
"""For what a registry entry or a name leads to now: kept, but asked about at each use."""
_NOT_STORED = b"no-store"
_JOINED = 64  # values of `Vary` that are remembered
FIRST_ERROR = 400

RawHeaders = list[tuple[bytes, bytes]]


def cache_headers(tag: str, *, may_move: bool, is_decrypted: bool) -> HeaderList:
    """Return the entity tag of content, and what caches may do with it.

    Decrypted content is locked again when its skykey is deleted, so no cache may have it.
    """
    if is_decrypted:
        return [("ETag", tag)]
    return [("ETag", tag), (_NAME, REVALIDATED if may_move else IMMUTABLE)]


def revalidated(response: Response) -> Response:
    """Change a response about fixed content into one about a name that leads to it now."""
    [(key, fixed)] = encode_headers([(_NAME, IMMUTABLE)])
    response.raw_headers = [
        (name, REVALIDATED.encode() if (name, value) == (key, fixed) else value)
        for name, value in response.raw_headers
    ]
    return response


def complete(status: int, headers: RawHeaders, depends_on: Iterable[str]) -> RawHeaders:
    """Return the headers of a response with one `Cache-Control`, and one `Vary` if any is needed.

    `depends_on` names request headers besides those that the response names itself.
    """
    control, kept = _NOT_STORED, RawHeaders()
    varies = [name.encode() for name in depends_on]
    for name, value in headers:
        if name == b"vary":
            varies.append(value)
        elif name == b"cache-control":
            control = value if status < FIRST_ERROR else control
        else:
            kept.append((name, value))
    kept.append((b"cache-control", control))
    if varies:
        kept.append((b"vary", _joined(tuple(varies))))
    return kept


@lru_cache(_JOINED)
def _joined(lists: tuple[bytes, ...]) -> bytes:
    return b", ".join(sorted({name.strip() for names in lists for name in names.split(b",")}))


def is_unchanged(headers: Headers, tag: str) -> bool:
    """Whether the client has the content already (304); HttpError 412 when If-Match fails.

    Nothing here has a time of change, so conditions by time are ignored (RFC 9110 13.1.3, 13.1.4).
    """
    wanted, known = (", ".join(headers.getlist(name)) for name in ("if-match", "if-none-match"))
    if wanted and not _matches(wanted, tag):
        raise HttpError(412, "the content does not match the If-Match header")
    return _matches(known.replace("W/", ""), tag)  # weak comparison


def _matches(header: str, tag: str) -> bool:
    """Whether a list of entity tags has this one, by strong comparison."""
    return header.strip() == "*" or tag in (each.strip() for each in header.split(","))
