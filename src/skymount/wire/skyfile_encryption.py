"""Encryption of skyfiles with skykeys: which key and nonce encrypts which bytes (docs/wire.md 2.7).

The cipher is XChaCha20 without authentication. The nonces for the identifier, the base sector and
each piece are derived from a random nonce of 24 bytes. ``cryptography`` is imported on first use.
"""

import base64
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

from skymount.errors import MalformedError
from skymount.wire.base_sector import LAYOUT_SIZE, Layout, build_inline
from skymount.wire.hashing import blake2b_256, length_prefixed
from skymount.wire.skykey import ID_SIZE, NONCE_SIZE, Kind, Skykey
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE

CIPHER_XCHACHA20 = b"\0\0\0\0\0\0\0\4"  # in the layout of encrypted skyfiles (docs/wire.md 2.1)
# Deployed readers require parity of large content. A root of zeros stands for a missing piece.
DATA_PIECES, PARITY_PIECES = 1, 1

_BASE_SECTOR = b"BaseSectorNonce".ljust(16, b"\0")
_FANOUT = b"FanoutNonce".ljust(16, b"\0")
_IDENTIFIER = b"SFEncIDDerivPath"
_IDENTIFIED = b"SkyfileEncID".ljust(16, b"\0")
_NO_ROOT = bytes(ROOT_SIZE)

_BLOCK = 64  # bytes of key stream
_VISIBLE_CIPHER = slice(27, 35)
_VISIBLE_KEY_DATA = slice(35, 35 + ID_SIZE + NONCE_SIZE)
_WORD = (1 << 32) - 1
_CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")


def _key_stream(key: bytes, start: bytes, data: bytes | memoryview) -> bytes:
    """Encrypt with ChaCha20 whose last four words of state begin as `start`."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return Cipher(ChaCha20(key, start), mode=None).encryptor().update(data)


def _hchacha20(key: bytes, nonce: bytes) -> bytes:
    """Return the key that XChaCha20 uses in place of `key` for the first 16 bytes of a nonce.

    A block of ChaCha20 is the state after its rounds plus the state before. HChaCha20 is only the
    former, without the words that hold the key.
    """
    mixed = struct.unpack("<16I", _key_stream(key, nonce, bytes(_BLOCK)))
    state = (*_CONSTANTS, *struct.unpack("<4I", nonce))
    words = zip((*mixed[:4], *mixed[12:]), state, strict=True)
    return struct.pack("<8I", *((word - start) & _WORD for word, start in words))


@dataclass(frozen=True, slots=True)
class StreamKey:
    """A key (32 bytes) and a nonce (24 bytes), for one stream of bytes."""

    key: bytes = field(repr=False)
    nonce: bytes

    def derived(self, path: bytes) -> Self:
        """Return the key for a purpose, whose name is hashed into the nonce."""
        return replace(
            self, nonce=blake2b_256(length_prefixed(self.nonce), length_prefixed(path))[:NONCE_SIZE]
        )

    def of_piece(self, chunk: int, piece: int) -> Self:
        index = struct.pack("<QQ", chunk, piece)
        return replace(self, nonce=blake2b_256(self.nonce, index)[:NONCE_SIZE])

    def apply(self, data: bytes | memoryview, at: int = 0) -> bytes:
        block, skipped = divmod(at, _BLOCK)
        start = block.to_bytes(8, "little") + self.nonce[16:]
        key = _hchacha20(self.key, self.nonce[:16])
        if not skipped:
            return _key_stream(key, start, data)
        return _key_stream(key, start, bytes(skipped) + data)[skipped:]


def is_encrypted(layout: Layout) -> bool:
    """Whether a stored layout is encrypted, except for the cipher and the key data."""
    return layout.cipher == CIPHER_XCHACHA20


@dataclass(frozen=True, slots=True)
class SkyfileKey:
    """The keys of one skyfile, derived from a skykey and the skyfile's nonce."""

    identifier: bytes  # 16 bytes by which the holder of the skykey recognises the skyfile
    main: StreamKey
    base: StreamKey
    fanout: StreamKey

    @classmethod
    def of(cls, skykey: Skykey, nonce: bytes) -> Self:
        """Derive the keys. Two skyfiles must not have the same nonce."""
        if len(nonce) != NONCE_SIZE:
            raise ValueError(f"a nonce has {NONCE_SIZE} bytes, not {len(nonce)}")
        main = StreamKey(skykey.key, nonce)
        return cls(
            _identifier(skykey, nonce), main, main.derived(_BASE_SECTOR), main.derived(_FANOUT)
        )

    def seal_base(self, base: bytes) -> bytes:
        sealed = bytearray(self.base.apply(base.ljust(SECTOR_SIZE, b"\0")))
        sealed[0] = base[0]
        sealed[_VISIBLE_CIPHER] = CIPHER_XCHACHA20
        sealed[_VISIBLE_KEY_DATA] = self.identifier + self.main.nonce
        return bytes(sealed)

    def open_layout(self, data: bytes) -> Layout:
        """Decrypt the layout of a base sector; MalformedError if no encrypted skyfile has it."""
        stored = Layout.parse(data)
        opened = bytearray(self.base.apply(data[:LAYOUT_SIZE]))
        opened[0] = data[0]
        layout = replace(
            Layout.parse(bytes(opened)), cipher=stored.cipher, key_data=stored.key_data
        )
        if layout.is_extended:
            raise MalformedError("an encrypted skyfile whose metadata do not fit its base sector")
        if not layout.is_inline and layout.data_pieces != DATA_PIECES:
            raise MalformedError("an encrypted skyfile that is spread over several pieces")
        return layout

    def build_inline(self, metadata: bytes, payload: bytes) -> bytes:
        return self.seal_base(build_inline(metadata, payload, CIPHER_XCHACHA20))

    def build_fanned_out(self, filesize: int, roots: bytes, metadata: bytes) -> tuple[bytes, int]:
        """Return (base sector, bytes used of it) of a large file with encrypted sectors.

        MalformedError when it does not fit: servers do not encrypt what is spilled.
        """
        fanout = b"".join(
            roots[at : at + ROOT_SIZE] + _NO_ROOT * PARITY_PIECES
            for at in range(0, len(roots), ROOT_SIZE)
        )
        layout = Layout(
            filesize,
            len(metadata),
            len(fanout),
            DATA_PIECES if fanout else 0,
            PARITY_PIECES if fanout else 0,
            cipher=CIPHER_XCHACHA20,
        )
        if layout.is_extended:
            raise MalformedError("the metadata are too large to be encrypted")
        return self.seal_base(bytes(layout) + fanout + metadata), LAYOUT_SIZE + layout.body_size

    def seal_sector(self, index: int, content: bytes) -> bytes:
        return self.fanout.of_piece(index, 0).apply(content.ljust(SECTOR_SIZE, b"\0"))

    def open_payload(self, data: bytes, at: int) -> bytes:
        opened, view = [], memoryview(data)
        while view:
            index, offset = divmod(at, SECTOR_SIZE)
            part = view[: SECTOR_SIZE - offset]
            opened.append(self.fanout.of_piece(index, 0).apply(part, offset))
            view, at = view[len(part) :], at + len(part)
        return b"".join(opened)


def _raw_id(skykey: Skykey) -> bytes:
    return base64.urlsafe_b64decode(skykey.id)


def _identifier(skykey: Skykey, nonce: bytes) -> bytes:
    if skykey.kind is Kind.PUBLIC:
        return _raw_id(skykey)
    return StreamKey(skykey.key, nonce).derived(_IDENTIFIER).apply(_IDENTIFIED)


def pick_key(layout: Layout, skykeys: Iterable[Skykey]) -> SkyfileKey | None:
    """Return the key of an encrypted skyfile by its stored layout; None when no skykey fits."""
    identifier = layout.key_data[:ID_SIZE]
    nonce = layout.key_data[ID_SIZE : ID_SIZE + NONCE_SIZE]
    for skykey in skykeys:
        if identifier in (_raw_id(skykey), _identifier(skykey, nonce)):
            return SkyfileKey.of(skykey, nonce)
    return None
