"""Parameters of a query or a form, by Go's rules for booleans and numbers and with its messages."""

from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import Request

from skymount.server.http.multipart_reader import read_fields
from skymount.server.http_error import HttpError, refuse_malformed

_FORM_TYPE = "application/x-www-form-urlencoded"
_MULTIPART_TYPE = "multipart/form-data"
_PARAMS_LIMIT = 100  # in one query; no endpoint knows a fifth of that
_TIMEOUT_LIMIT = 900  # seconds
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_NUMBER_DIGITS = 18  # more would not be below 2**63

Params = Mapping[str, str]


def parse_query(raw: bytes) -> dict[str, str]:
    """Parse a query string; the first value of a name counts, as in Go."""
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_PARAMS_LIMIT,
        )
    except ValueError as error:
        raise HttpError(400, f"failed to parse query params: {error}") from None
    return dict(reversed(pairs))


def form_params(request: Request, body: bytes) -> dict[str, str]:
    """Merge the query with the form in the body, which wins; ignore bodies that are none
    (docs/wire.md 7).
    """
    params = parse_query(request.scope["query_string"])
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("", _FORM_TYPE):
        params.update(parse_query(body.strip()))
    elif kind == _MULTIPART_TYPE:
        with refuse_malformed(400):
            params.update(read_fields(content_type.encode("latin-1"), body, _PARAMS_LIMIT))
    return params


def decode_path(raw: str) -> str:
    """Percent-decode a path inside a skylink. ``+`` is a plus."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise HttpError(400, "error parsing skylink: path is not valid UTF-8") from None


def boolean(params: Params, name: str) -> bool:
    """Parse a boolean as Go's ParseBool does; absent and empty are false."""
    value = params.get(name, "")
    if value in _TRUE:
        return True
    if value in _FALSE or not value:
        return False
    raise HttpError(400, f"unable to parse '{name}' parameter: invalid syntax {value[:40]!r}")


def number(params: Params, name: str, *, base: int = 10) -> int | None:
    """Parse a whole number that is not negative; None when absent or empty."""
    value = params.get(name, "")
    if not value:
        return None
    try:
        if value.isascii() and value.isdigit() and len(value) <= _NUMBER_DIGITS:
            return int(value, base)
    except ValueError:
        pass
    raise HttpError(400, f"unable to parse '{name}' parameter: invalid syntax {value[:40]!r}")


def check_timeout(params: Params) -> None:
    """HttpError 400 for a bad ``timeout``. It has no effect: everything is on a local disk."""
    if (number(params, "timeout") or 0) > _TIMEOUT_LIMIT:
        raise HttpError(
            400, f"'timeout' parameter too high, maximum allowed timeout is {_TIMEOUT_LIMIT}s"
        )
