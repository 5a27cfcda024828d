"""Registry entries: bytes, hashes, signatures, JSON, and which one replaces which (docs/wire.md 6).

PyNaCl takes 30 ms and 3 MB, so it is imported when the first entry is signed or verified.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from skymount.errors import BadSignatureError, MalformedError, RevisionError
from skymount.wire.hashing import blake2b_256, encode_text, length_prefixed
from skymount.wire.limited_json import decode_json
from skymount.wire.skylink import BASE64_LENGTH, RAW_SIZE, Skylink

ALGORITHM = "ed25519"

DATA_LIMIT = 113  # bytes of data in an entry
MAX_REVISION = (1 << 64) - 1  # an entry of this revision is frozen: nothing replaces it
DELETED = bytes(RAW_SIZE)  # data of an entry that its owner deleted (docs/wire.md 6.6)
KEY_SIZE = 32
PRIVATE_KEY_SIZE = 64
SIGNATURE_SIZE = 64
TWEAK_SIZE = 32

UPDATE_LIMIT = 16 << 10  # bytes of JSON of an entry; the longest form takes under 1.5 KiB
_HOST_KEY_HASH = 20  # bytes at the start of an entry of kind 2 that do not count as work

_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
_HEX32 = re.compile(r"[0-9a-fA-F]{64}")


def hash_data_key(text: str) -> bytes:
    """Return the 32-byte tweak that a data key stands for on the wire (docs/wire.md 6.5)."""
    return blake2b_256(length_prefixed(encode_text(text, "a data key")))


def parse_public_key(text: str) -> bytes:
    """Read ``ed25519:<64 hex digits>`` or the digits alone.

    A MalformedError never repeats the text, which may be a private key by mistake.
    """
    algorithm, colon, digits = text.rpartition(":")
    if colon and algorithm != ALGORITHM:
        raise MalformedError(f"a public key is of the algorithm {ALGORITHM}, not of another")
    if not _HEX32.fullmatch(digits):
        raise MalformedError(f"a public key has 64 hex digits, these are {len(digits)} characters")
    return bytes.fromhex(digits)


def parse_tweak(text: str) -> bytes:
    """Read a hashed data key, 64 hex digits."""
    if not _HEX32.fullmatch(text):
        raise MalformedError(f"a hashed data key has 64 hex digits, not {len(text)} characters")
    return bytes.fromhex(text)


def entry_id(public_key: bytes, tweak: bytes) -> bytes:
    """Return the 32-byte id of an entry, which is what a v2 skylink holds (docs/wire.md 1.4)."""
    return blake2b_256(ALGORITHM.encode().ljust(16, b"\0") + length_prefixed(public_key) + tweak)


def entry_link(public_key: bytes, tweak: bytes) -> Skylink:
    """Return the v2 skylink that names an entry."""
    return Skylink.v2(entry_id(public_key, tweak))


def linked_skylink(data: bytes) -> Skylink | None:
    """Return the skylink in an entry's data, 34 bytes or 46 characters; None if there is none."""
    try:
        if len(data) == RAW_SIZE and data != DELETED:
            return Skylink.from_bytes(data)
        if len(data) == BASE64_LENGTH:
            return Skylink(data.decode("ascii"))
    except (MalformedError, UnicodeDecodeError):
        pass
    return None


def _sized(data: bytes, size: int, what: str) -> bytes:
    if len(data) != size:
        raise MalformedError(f"{what} has {size} bytes, not {len(data)}")
    return data


@dataclass(frozen=True, slots=True)
class Entry:
    """One revision of an entry, whoever owns it."""

    tweak: bytes  # the hashed data key, 32 bytes
    data: bytes  # at most `DATA_LIMIT` bytes
    revision: int  # 0 to `MAX_REVISION`
    kind: int = 1  # 1, or 2: data that begins with the hash of a host's key (later portals)

    def __post_init__(self) -> None:
        _sized(self.tweak, TWEAK_SIZE, "a hashed data key")
        if len(self.data) > DATA_LIMIT:
            raise MalformedError(f"Registry data is too big: {len(self.data)} > {DATA_LIMIT}")
        if not 0 <= self.revision <= MAX_REVISION:
            raise MalformedError("a revision is a number of 64 bits")
        if self.kind not in (1, 2):
            raise MalformedError("unknown registry entry type, known ones: 1, 2")

    @property
    def is_deleted(self) -> bool:
        return self.data == DELETED

    def hash(self) -> bytes:
        """Return the 32 bytes that are signed (docs/wire.md 6.4)."""
        kind = b"" if self.kind == 1 else self.kind.to_bytes(8, "little")
        return self._hash(self.data, kind)

    def _hash(self, data: bytes, kind: bytes = b"") -> bytes:
        return blake2b_256(
            self.tweak + length_prefixed(data) + self.revision.to_bytes(8, "little") + kind
        )

    @property
    def work(self) -> bytes:
        """The proof of work, without kind and host key: of one revision the lowest wins."""
        return self._hash(self.data[_HOST_KEY_HASH:] if self.kind == 2 else self.data)

    def sign(self, private_key: bytes) -> "SignedEntry":
        from nacl.bindings import crypto_sign

        _sized(private_key, PRIVATE_KEY_SIZE, "a private key")
        signature = crypto_sign(self.hash(), private_key)[:SIGNATURE_SIZE]
        return SignedEntry(private_key[KEY_SIZE:], self, signature)


def check_update(stored: Entry | None, new: Entry) -> None:
    """RevisionError unless `new` may replace `stored` (docs/wire.md 6.3), signatures aside."""
    if stored is None or new.revision > stored.revision:
        return
    if new.revision < stored.revision:
        raise RevisionError("provided revision number is invalid")
    if new.work < stored.work and stored.revision < MAX_REVISION:
        return
    reason = "provided revision number is already registered"
    if new.work > stored.work:
        reason += ": entry doesn't have enough pow to replace existing entry"
    raise RevisionError(reason)


class _Key(msgspec.Struct):
    algorithm: str
    key: bytes | list[int]


class _Update(msgspec.Struct):
    publickey: _Key | str
    datakey: str
    revision: int
    signature: list[int] | bytes
    data: bytes | list[int] | None = None
    type: int = 1


class _Answer(msgspec.Struct):
    data: str
    revision: int
    signature: str
    type: int = 1


class _Hop(_Answer, kw_only=True):
    datakey: str
    publickey: _Key | str


_Hops: Any = list[_Hop] | None


def _bytes_of(value: bytes | list[int], what: str) -> bytes:
    try:
        return bytes(value)
    except ValueError:
        raise MalformedError(f"{what} holds a number that is not a byte") from None


def _from_hex(text: str, what: str) -> bytes:
    if not _HEX.fullmatch(text):
        raise MalformedError(f"{what} is not hexadecimal")
    return bytes.fromhex(text)


def _key_of(value: _Key | str) -> bytes:
    if isinstance(value, str):
        return parse_public_key(value)
    if value.algorithm != ALGORITHM:
        raise MalformedError(f"a public key is of the algorithm {ALGORITHM}, not of another")
    return _sized(_bytes_of(value.key, "publickey"), KEY_SIZE, "a public key")


@dataclass(frozen=True, slots=True)
class SignedEntry:
    """An entry with its owner's signature. Only `verify` checks that."""

    public_key: bytes  # 32 bytes
    entry: Entry
    signature: bytes = field(repr=False)  # 64 bytes

    def __post_init__(self) -> None:
        _sized(self.public_key, KEY_SIZE, "a public key")
        _sized(self.signature, SIGNATURE_SIZE, "a signature")

    @property
    def id(self) -> bytes:
        return entry_id(self.public_key, self.entry.tweak)

    @property
    def link(self) -> Skylink:
        return Skylink.v2(self.id)

    def verify(self) -> Self:
        """Return self; BadSignatureError or MalformedError when it is not sound."""
        from nacl.bindings import crypto_sign_open
        from nacl.exceptions import BadSignatureError as NaclBadSignature

        if self.entry.kind == 2 and len(self.entry.data) < _HOST_KEY_HASH:
            raise MalformedError("registry entry data is malformed: no hash of a host's key")
        try:
            crypto_sign_open(self.signature + self.entry.hash(), self.public_key)
        except (NaclBadSignature, ValueError):
            raise BadSignatureError(
                "Could not verify signature from retrieved, signed registry entry -- "
                "possible corrupted entry"
            ) from None
        return self

    def as_json(self) -> dict[str, object]:
        """Return the element of a proof, for a JSON encoder."""
        return {
            "data": self.entry.data.hex(),
            "revision": self.entry.revision,
            "datakey": self.entry.tweak.hex(),
            "publickey": {"algorithm": ALGORITHM, "key": self.public_key},
            "signature": self.signature.hex(),
            "type": self.entry.kind,
        }

    def encode_answer(self) -> bytes:
        """Write the JSON of endpoint 5: later portals added the members after the signature."""
        found = self.as_json()
        order = ("data", "revision", "signature", "datakey", "publickey", "type")
        return msgspec.json.encode({name: found[name] for name in order}) + b"\n"

    @classmethod
    def parse_answer(cls, body: bytes, public_key: bytes, tweak: bytes) -> Self:
        """Read the JSON of endpoint 5; nothing is verified yet."""
        answer = decode_json(body, _Answer, "registry answer", UPDATE_LIMIT)
        return cls._of_answer(answer, public_key, tweak)

    @classmethod
    def _of_answer(cls, answer: _Answer, public_key: bytes, tweak: bytes) -> Self:
        data = _from_hex(answer.data, "data")
        entry = Entry(tweak, data, answer.revision, answer.type)
        return cls(public_key, entry, _from_hex(answer.signature, "signature"))

    def encode_update(self) -> bytes:
        """Write the JSON that endpoint 6 takes."""
        update: dict[str, object] = {
            "publickey": {"algorithm": ALGORITHM, "key": list(self.public_key)},
            "datakey": self.entry.tweak.hex(),
            "revision": self.entry.revision,
            "data": list(self.entry.data),
            "signature": list(self.signature),
        }
        if self.entry.kind != 1:
            update["type"] = self.entry.kind
        return msgspec.json.encode(update)

    @classmethod
    def parse_update(cls, body: bytes) -> Self:
        """Read the JSON that endpoint 6 takes, in any form of docs/wire.md 6.2."""
        update = decode_json(body, _Update, "request", UPDATE_LIMIT)
        entry = Entry(
            parse_tweak(update.datakey),
            _bytes_of(update.data or b"", "data"),
            update.revision,
            update.type,
        )
        signature = _bytes_of(update.signature, "signature")
        return cls(_key_of(update.publickey), entry, signature)

    @classmethod
    def parse_hops(cls, text: bytes) -> tuple[Self, ...]:
        """Read the elements of a proof; nothing is verified yet."""
        hops: list[_Hop] = decode_json(text, _Hops, "registry proof", UPDATE_LIMIT) or []
        return tuple(
            cls._of_answer(hop, _key_of(hop.publickey), parse_tweak(hop.datakey)) for hop in hops
        )
