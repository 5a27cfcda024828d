"""Bodies of responses, and entity tags of downloads (contract 1, 2, docs/wire.md 4.4, 4.6, 4.7)."""

from dataclasses import dataclass
from typing import Self

import msgspec

from skymount.errors import MalformedError
from skymount.wire.dialect import SVC, Dialect
from skymount.wire.hashing import blake2b_256, length_prefixed
from skymount.wire.limited_json import decode_json
from skymount.wire.skylink import Skylink

RESPONSE_LIMIT = 64 << 10  # bytes that are read of a JSON response or an error body


def parse_resolved(body: bytes) -> Skylink:
    """Read the answer to `requests.resolve`."""
    found = decode_json(body, _Resolved, "resolved skylink", RESPONSE_LIMIT)
    return Skylink(found.skylink)


def encode_resolved(skylink: Skylink) -> bytes:
    """Write the answer to `requests.resolve`."""
    return msgspec.json.encode(_Resolved(str(skylink))) + b"\n"


class _Resolved(msgspec.Struct):
    skylink: str


class _UploadAnswer(msgspec.Struct):
    skylink: str
    merkleroot: str = ""
    bitfield: int | None = None


@dataclass(frozen=True, slots=True)
class UploadResult:
    """What an upload returns. ``str()`` gives the content link, ``<scheme>://<skylink>``."""

    skylink: Skylink
    scheme: str = SVC.scheme

    @property
    def merkleroot(self) -> str:
        return self.skylink.root.hex()

    @property
    def bitfield(self) -> int:
        return self.skylink.bitfield

    def __str__(self) -> str:
        return f"{self.scheme}://{self.skylink}"

    @classmethod
    def parse(cls, body: bytes, dialect: Dialect = SVC) -> Self:
        """Read the JSON answer of endpoints 1 and 2; MalformedError when it contradicts itself."""
        answer = decode_json(body, _UploadAnswer, "upload answer", RESPONSE_LIMIT)
        skylink = Skylink(answer.skylink)
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
    """Write the JSON body of an error (docs/wire.md 4.6)."""
    try:
        return msgspec.json.encode(_Message(message)) + b"\n"
    except UnicodeEncodeError:
        return encode_error(message.encode("utf-8", "backslashreplace").decode())


def parse_error(body: bytes) -> str:
    """Return the message of an error body; ``""`` for another form, such as HTML."""
    try:
        return msgspec.json.decode(body[:RESPONSE_LIMIT], type=_Message).message
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def text_of_error(body: bytes) -> str:
    """Return the first line of an error body that is text (docs/wire.md 8, 9); else ``""``."""
    first = body[:RESPONSE_LIMIT].decode(errors="replace").strip().partition("\n")[0]
    return "" if first.startswith(("<", "{", "[")) else first


def etag(skylink: Skylink, path: str, archive: str) -> str:
    """Return the entity tag of a download, quotes included: the same for GET and HEAD.

    Hashed as by later servers (docs/wire.md 4.4); early ones hash the method too.
    """
    texts = (text.encode("utf-8", "surrogateescape") for text in (str(skylink), path, archive, "1"))
    return f'"{blake2b_256(*map(length_prefixed, texts)).hex()}"'
