"""Owns the checks of what callers pass: types and ranges, before any request is made.

A wrong type is a WrongTypeError, a wrong value a MalformedError; both name the argument.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from skymount.errors import MalformedError, WrongTypeError
from skymount.portal.options import PortalOptions
from skymount.wire.key_pair import KeyPair
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
"""Seconds that a portal may be asked to look for content (wire notes 4.2)."""

_DAYS = 7 * 86400  # seconds; an upload that takes longer is no longer one


def text(value: object, name: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise WrongTypeError(f"{name} must be a text (str), not {type(value).__name__}")
    return value


def flag(value: object, name: str) -> bool:
    """Return a truth value; numbers are not taken for one."""
    if not isinstance(value, bool):
        raise WrongTypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def public_key(value: object, name: str = "public_key") -> bytes:
    """Return the 32 bytes of 64 hex digits, with or without ``ed25519:`` before them."""
    return parse_public_key(text(value, name))


def key_pair(value: object, name: str = "private_key") -> KeyPair:
    """Return the pair of a private key of 128 hex digits."""
    return KeyPair.from_private_hex(text(value, name))


def tweak(data_key: object, hashed: object) -> bytes:
    """Return what a data key stands for on the wire; `hashed`: it is given as that already."""
    key = text(data_key, "data_key")
    return parse_tweak(key) if flag(hashed, "hashed_data_key_hex") else hash_data_key(key)


def revision(value: object, name: str = "revision") -> int:
    """Return a revision: an integer of 0 to 2**64 - 1."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongTypeError(f"{name} must be an integer, not {type(value).__name__}")
    if not 0 <= value <= MAX_REVISION:
        raise MalformedError(f"{name} must be from 0 to 2**64 - 1")
    return value


def entry_data(value: object, name: str = "data") -> bytes:
    """Return an entry's data from bytes or a text, which is stored in UTF-8."""
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError:
            raise MalformedError(f"{name} must be valid Unicode text") from None
    if not isinstance(value, bytes | bytearray | memoryview):
        raise WrongTypeError(f"{name} must be bytes or a text, not {type(value).__name__}")
    data = bytes(value)
    if len(data) > DATA_LIMIT:
        raise MalformedError(f"{name} is too big: {len(data)} > {DATA_LIMIT} bytes")
    return data


def texts(value: object, name: str) -> tuple[str, ...]:
    """Return a sequence of texts; a single text is not one."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise WrongTypeError(f"{name} must be a list of texts, not {type(value).__name__}")
    return tuple(text(item, name) for item in value)


def text_mapping(value: object, name: str) -> dict[str, str]:
    """Return a mapping of texts to texts; whole numbers as keys are written out."""
    if not isinstance(value, Mapping):
        raise WrongTypeError(f"{name} must be a mapping, not {type(value).__name__}")
    return {_written(key, name): text(item, name) for key, item in value.items()}


def _written(key: object, name: str) -> str:
    is_number = isinstance(key, int) and not isinstance(key, bool)
    return str(key) if is_number else text(key, f"a key of {name}")


def size(value: object, name: str) -> int:
    """Return a number of bytes."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongTypeError(f"{name} must be a number of bytes, not {type(value).__name__}")
    if value < 0:
        raise MalformedError(f"{name} must not be negative")
    return value


def local_path(value: object, name: str) -> Path:
    """Return a path on this machine."""
    if not isinstance(value, str | os.PathLike):
        raise WrongTypeError(f"{name} must be a path, not {type(value).__name__}")
    found = os.fspath(value)
    if not isinstance(found, str):
        raise WrongTypeError(f"{name} must be a path of text, not of bytes")
    try:
        encoded = os.fsencode(found)
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise MalformedError(f"{name} must be a path, not {found!r}")
    return Path(found)


def optional_seconds(value: object, name: str, limit: int = _DAYS) -> int | None:
    """Return a time-out as `seconds` does; None and an empty text stand for the default."""
    return None if value is None or value == "" else seconds(value, limit, name)


def download_seconds(value: object) -> int | None:
    """Return how long a portal may look for content, None for its default."""
    return optional_seconds(value, "timeout_seconds", DOWNLOAD_TIMEOUT_LIMIT)


def patient(call: PortalOptions, timeout: int | None) -> PortalOptions:
    """Return options under which a portal may be silent while it looks that long."""
    return call if timeout is None else replace(call, idle_timeout=call.idle_timeout + timeout)


def seconds(value: object, limit: int, name: str) -> int:
    """Return a time-out in whole seconds, rounded up; MalformedError beyond 0 to `limit`.

    Decimal digits are taken too: the contract gives the type as string or number.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise MalformedError(f"{name} must be a number of seconds, not {value!r}") from None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongTypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not 0 < value <= limit:
        raise MalformedError(f"{name} must be above 0 and at most {limit} seconds")
    return math.ceil(value)


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

    The path of the link comes first, then `path`.
    """
    inner = inner_path(path)
    if isinstance(value, Skylink):
        return value, inner
    skylink, own = split_link(text(value, "skylink"))
    own = unquote(own, errors="surrogateescape") if "%" in own else own
    return skylink, "/".join(filter(None, (inner_path(own, "the path of a link"), inner)))
