"""Checks of the arguments of calls, before any request: WrongTypeError or MalformedError."""

import math
import os
from pathlib import Path
from urllib.parse import unquote

from skymount import values
from skymount.errors import MalformedError, WrongTypeError
from skymount.values import flag, integer, mapping, text, typed
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import (
    DATA_LIMIT,
    MAX_REVISION,
    hash_data_key,
    parse_public_key,
    parse_tweak,
)
from skymount.wire.skylink import Skylink, split_link

REGISTRY_TIMEOUT_LIMIT = 300
"""Seconds that a registry may be asked to look for an entry (contract, Limits)."""

DOWNLOAD_TIMEOUT_LIMIT = 900
"""Seconds that a portal may be asked to look for content (docs/wire.md 4.2)."""

UPLOAD_TIMEOUT_LIMIT = 7 * 86400
"""Seconds that an upload may take."""


def public_key(value: object) -> bytes:
    """Return the 32 bytes of 64 hex digits, with or without ``ed25519:`` before them."""
    return parse_public_key(text(value, "public_key"))


def key_pair(value: object) -> SigningKeyPair:
    """Return the pair of a private key of 128 hex digits."""
    return SigningKeyPair.from_private_hex(text(value, "private_key"))


def tweak(data_key: object, hashed: object) -> bytes:
    """Return the hash of a data key; `hashed` means that it is given as the hash, in hex."""
    key = text(data_key, "data_key")
    return parse_tweak(key) if flag(hashed, "hashed_data_key_hex") else hash_data_key(key)


def revision(value: object) -> int:
    """Return a revision."""
    return integer(value, "revision", 0, MAX_REVISION)


def entry_data(value: object) -> bytes:
    """Return an entry's data from bytes, or from a text, which is stored in UTF-8."""
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError:
            raise MalformedError("data must be valid Unicode text") from None
    data = bytes(typed(value, bytes | bytearray | memoryview, "data", "bytes or a text"))
    if len(data) > DATA_LIMIT:
        raise MalformedError(f"data is too big: {len(data)} > {DATA_LIMIT} bytes")
    return data


def text_mapping(value: object, name: str) -> dict[str, str]:
    """Return a mapping of texts to texts; integer keys are converted."""
    return {_key(key, name): text(item, name) for key, item in mapping(value, name).items()}


def _key(key: object, name: str) -> str:
    is_number = isinstance(key, int) and not isinstance(key, bool)
    return str(key) if is_number else text(key, f"a key of {name}")


def local_path(value: object, name: str) -> Path:
    """Return a path on this machine."""
    found = os.fspath(typed(value, str | os.PathLike, name, "a path"))
    if not isinstance(found, str):
        raise WrongTypeError(f"{name} must be a path of text, not of bytes")
    try:
        encoded = os.fsencode(found)
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise MalformedError(f"{name} must be a path, not {found!r}")
    return Path(found)


def seconds(value: object, limit: int, name: str) -> int:
    """Return a time-out in whole seconds, rounded up.

    Decimal digits are taken too: the contract gives the type as string or number.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise MalformedError(f"{name} must be a number of seconds, not {value!r}") from None
    return math.ceil(values.seconds(value, name, limit))


def optional_seconds(value: object, limit: int) -> int | None:
    """Return a ``timeout_seconds``; None and "" mean the default."""
    return None if value is None or value == "" else seconds(value, limit, "timeout_seconds")


def inner_path(value: object, name: str = "path") -> str:
    """Return a path inside content, without the slashes around it.

    MalformedError for an element ``.`` or ``..``: in a URL it would lead to other content.
    """
    found = text(value, name).strip("/")
    if not {".", ".."}.isdisjoint(found.split("/")):
        raise MalformedError(f"{name} must not have an element '.' or '..'")
    return found


def link(value: object, path: object = "") -> tuple[Skylink, str]:
    """Return (skylink, decoded path without a leading slash) of a link in any form, or a Skylink.

    `path` is appended to the path of the link.
    """
    inner = inner_path(path)
    if isinstance(value, Skylink):
        return value, inner
    skylink, own = split_link(text(value, "skylink"))
    own = unquote(own, errors="surrogateescape") if "%" in own else own
    return skylink, "/".join(filter(None, (inner_path(own, "the path of a link"), inner)))
