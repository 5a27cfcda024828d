"""Owns how parameters are read, from a query or a form: Go's rules for booleans and numbers, and
their messages.

Which parameters an endpoint has is said where the endpoint is decided (`upload`, `selection`).
"""

from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import Request

from skymount.server.http_error import HttpError

_FORM_TYPE = "application/x-www-form-urlencoded"
_FIELDS_LIMIT = 100  # parameters in one query; no endpoint knows a fifth of that
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_DIGITS = 18  # of a number; more would not be below 2**63

Params = Mapping[str, str]


def parse_query(raw: bytes) -> dict[str, str]:
    """Read a query string; the first value of a name counts, as in Go."""
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_FIELDS_LIMIT,
        )
    except ValueError as error:
        raise HttpError(400, f"failed to parse query params: {error}") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        found.setdefault(name, value)
    return found


def form_params(request: Request, body: bytes) -> dict[str, str]:
    """Merge the query with an urlencoded body, which wins (wire notes 7).

    A body of no stated type counts as urlencoded; one of another type is left alone, as in Go.
    `body` must have met a limit already (`bodies.read_body`).
    """
    found = parse_query(request.scope["query_string"])
    stated = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if stated in ("", _FORM_TYPE):
        found.update(parse_query(body.strip()))
    return found


def decode_path(raw: str) -> str:
    """Decode a path inside a skylink by the rules of a query: ``+`` is a space (notes 4.1)."""
    try:
        return unquote_to_bytes(raw.replace("+", " ")).decode()
    except UnicodeDecodeError:
        raise HttpError(400, "error parsing skylink: path is not valid UTF-8") from None


def boolean(params: Params, name: str) -> bool:
    """Read a boolean as Go's ParseBool does; absent and empty are false."""
    value = params.get(name, "")
    if value in _TRUE:
        return True
    if value in _FALSE or not value:
        return False
    raise HttpError(400, f"unable to parse '{name}' parameter: invalid syntax {value[:40]!r}")


def number(params: Params, name: str, *, base: int = 10) -> int | None:
    """Read a whole number that is not negative; None when absent or empty."""
    value = params.get(name, "")
    if not value:
        return None
    try:
        if value.isascii() and value.isdigit() and len(value) <= _DIGITS:
            return int(value, base)
    except ValueError:
        pass
    raise HttpError(400, f"unable to parse '{name}' parameter: invalid syntax {value[:40]!r}")
