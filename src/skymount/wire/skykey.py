"""Skykeys: named keys with which a portal encrypts content (contract 7-10, docs/wire.md 7)."""

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self
from urllib.parse import quote, unquote_to_bytes

import msgspec

from skymount.errors import MalformedError
from skymount.wire.hashing import blake2b_256, encode_text, length_prefixed
from skymount.wire.limited_json import decode_json

NAME_LIMIT = 128  # bytes of a skykey's name
LIST_LIMIT = 16 << 20  # bytes of JSON of a list of about 60,000 skykeys
SCHEME = "skykey"
KEY_SIZE = 32
NONCE_SIZE = 24
ID_SIZE = 16

_TEXT_LIMIT = 4096  # characters; a name takes up to nine for each byte
_ENCODED = re.compile(r"[A-Za-z0-9_-]{76}")  # the 57 bytes of type, key and nonce
_ID = re.compile(r"[A-Za-z0-9_-]{22}==")
_NAME_QUERY = re.compile(r"name=((?:[^%&]|%[0-9A-Fa-f]{2})*)", re.DOTALL)


class Kind(Enum):
    """What encrypted content reveals about its skykey."""

    PUBLIC = "public-id"  # its id, to everybody
    PRIVATE = "private-id"  # nothing; the recommended kind

    @classmethod
    def parse(cls, text: str) -> "Kind":
        try:
            return cls(text)
        except ValueError:
            raise MalformedError("failed to decode skykey type: Invalid skykey type") from None

    @property
    def number(self) -> int:
        return 1 if self is Kind.PUBLIC else 2


def check_name(name: str) -> str:
    """Return the name; MalformedError says why a skykey may not have it."""
    if len(encode_text(name, "a skykey's name")) > NAME_LIMIT:
        raise MalformedError(f"skykey name exceeds max length of {NAME_LIMIT} bytes")
    if not name.isprintable():
        raise MalformedError("a skykey's name must be printable")
    return name


def check_id(text: str) -> str:
    """Return a skykey's id in its canonical form: base64 of 16 bytes."""
    text = text.removesuffix("==") + "=="
    if not _ID.fullmatch(text):
        raise MalformedError("failed to decode skykey ID: not the base64 of 16 bytes")
    return base64.urlsafe_b64encode(base64.urlsafe_b64decode(text)).decode()


def _name_of(query: str) -> str:
    match = _NAME_QUERY.fullmatch(query)
    if match is None:
        raise MalformedError("failed to parse skykey: only one ?name=<name> may follow the key")
    try:
        return unquote_to_bytes(match[1].replace("+", " ")).decode()
    except UnicodeError:
        raise MalformedError("failed to parse skykey: its name is not valid UTF-8") from None


@dataclass(frozen=True, slots=True)
class Skykey:
    """A named encryption key."""

    kind: Kind
    key: bytes = field(repr=False)  # 32 bytes
    nonce: bytes = field(repr=False)  # 24 bytes
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.key) != KEY_SIZE or len(self.nonce) != NONCE_SIZE:
            raise MalformedError("a skykey has a key of 32 and a nonce of 24 bytes")
        check_name(self.name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``[skykey:]<base64>[?name=<name>]``. MalformedError never repeats the text."""
        if len(text) > _TEXT_LIMIT:
            raise MalformedError("failed to parse skykey: it is too long")
        body, mark, query = text.strip().partition("?")
        scheme, colon, rest = body.partition(":")
        if colon and scheme.lower() != SCHEME:
            raise MalformedError(f"failed to parse skykey: its scheme is not {SCHEME}")
        encoded = rest if colon else body
        if not _ENCODED.fullmatch(encoded):
            raise MalformedError("failed to parse skykey: it is not the base64 of 57 bytes")
        name = _name_of(query) if mark else ""
        raw = base64.urlsafe_b64decode(encoded)
        kinds = {kind.number: kind for kind in Kind}
        if raw[0] not in kinds:
            raise MalformedError("failed to parse skykey: Invalid skykey type")
        return cls(kinds[raw[0]], raw[1 : 1 + KEY_SIZE], raw[1 + KEY_SIZE :], name)

    def named(self, name: str) -> Self:
        return replace(self, name=name)

    @property
    def text(self) -> str:
        """Whoever has it can decrypt."""
        raw = bytes([self.kind.number]) + self.key + self.nonce
        encoded = base64.urlsafe_b64encode(raw).decode()
        name = f"?name={quote(self.name, safe='')}" if self.name else ""
        return f"{SCHEME}:{encoded}{name}"

    @property
    def id(self) -> str:
        """24 characters of base64 (docs/wire.md 7)."""
        kind = self.kind.number.to_bytes(8, "little")
        hashed = blake2b_256(b"Skykey".ljust(16, b"\0"), kind, length_prefixed(self.key))
        return base64.urlsafe_b64encode(hashed[:ID_SIZE]).decode()

    def _record(self) -> dict[str, str]:
        return {"skykey": self.text, "name": self.name, "id": self.id, "type": self.kind.value}

    def encode_record(self) -> bytes:
        """Write the JSON of endpoints 7 and 9."""
        return msgspec.json.encode(self._record()) + b"\n"

    @classmethod
    def parse_record(cls, body: bytes) -> Self:
        """Read the JSON of endpoints 7 and 9; MalformedError when it contradicts itself."""
        return cls._from_record(decode_json(body, _SkykeyRecord, "skykey answer", LIST_LIMIT))

    @classmethod
    def _from_record(cls, record: "_SkykeyRecord") -> Self:
        found = cls.parse(record.skykey)
        if record.name:
            found = found.named(record.name)
        if record.id and check_id(record.id) != found.id:
            raise MalformedError("skykey: key and id contradict each other")
        return found


class _SkykeyRecord(msgspec.Struct):
    skykey: str
    name: str = ""
    id: str = ""
    type: str = ""


class _List(msgspec.Struct):
    skykeys: list[_SkykeyRecord] | None = None


def encode_list(keys: Iterable[Skykey]) -> bytes:
    """Write the JSON of endpoint 10."""
    return msgspec.json.encode({"skykeys": [key._record() for key in keys]}) + b"\n"


def parse_list(body: bytes) -> tuple[Skykey, ...]:
    """Read the JSON of endpoint 10."""
    found = decode_json(body, _List, "skykey answer", LIST_LIMIT)
    return tuple(Skykey._from_record(record) for record in found.skykeys or [])
