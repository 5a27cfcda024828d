"""The JSON document of SkyDB as it is uploaded (docs/wire.md 10)."""

import json
from typing import Any, NoReturn

from skymount.errors import MalformedError, WrongTypeError
from skymount.wording import readable_size

DOCUMENT_LIMIT = 64 << 20  # bytes of one document as JSON
_VERSION = 2  # of the object in which the SDKs wrap a document


def encode_document(document: object) -> bytes:
    """Write the document, wrapped as the SDKs do; WrongTypeError for what JSON cannot hold."""
    if not isinstance(document, dict | list):
        raise WrongTypeError(f"json must be a dict or a list, not {type(document).__name__}")
    wrapped = {"_data": document, "_v": _VERSION}
    try:
        body = json.dumps(wrapped, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        encoded = body.encode(errors="backslashreplace")  # a lone surrogate, escaped as in JSON
    except TypeError as error:
        raise WrongTypeError(f"json: {error}") from None
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"json: {error}") from None
    if len(encoded) > DOCUMENT_LIMIT:
        raise MalformedError(f"json is too big: it may have {readable_size(DOCUMENT_LIMIT)}")
    return encoded


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def decode_document(body: bytes) -> Any:
    """Return the document of a download, which may be wrapped or not."""
    try:
        found = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict | list):
        raise MalformedError("not JSON, or neither an object nor an array")
    if isinstance(found, dict) and _is_truthy(found.get("_data")) and _is_truthy(found.get("_v")):
        return found["_data"]
    return found


def _is_truthy(value: Any) -> bool:
    """Whether JavaScript takes it for true, as it does empty objects and arrays."""
    return value not in (None, False, 0, "")


def document_name(data_key: str, hashed: bool) -> str:
    """Return the file name under which the SDKs upload a document."""
    return f"dk:{data_key if hashed else data_key.encode().hex()}"
