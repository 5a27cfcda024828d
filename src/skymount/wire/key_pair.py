"""Signing key pairs, and how they are derived from seeds (docs/wire.md 10)."""

import re
from dataclasses import dataclass, field
from hashlib import pbkdf2_hmac
from typing import Self

from skymount.errors import MalformedError
from skymount.wire.hashing import blake2b_256, encode_text, length_prefixed
from skymount.wire.registry_entry import KEY_SIZE, PRIVATE_KEY_SIZE

SEED_ENTROPY = 64  # random bytes of a generated seed, which is their hex digits
_HEX64 = re.compile(r"[0-9a-fA-F]{128}")
_ROUNDS = 1000  # of PBKDF2, as the SDKs have it: too few to protect weak seeds


@dataclass(frozen=True, slots=True)
class SigningKeyPair:
    """An ed25519 key pair. The public key names an owner of registry entries."""

    public_key: bytes  # 32 bytes
    private_key: bytes = field(repr=False)  # 64 bytes: the ed25519 seed, then the public key

    def __post_init__(self) -> None:
        if len(self.public_key) != KEY_SIZE or len(self.private_key) != PRIVATE_KEY_SIZE:
            raise MalformedError("a key pair is of 32 and 64 bytes")
        if self.private_key[KEY_SIZE:] != self.public_key:
            raise MalformedError("this private key does not end with its public key")

    @property
    def public_hex(self) -> str:
        return self.public_key.hex()

    @property
    def private_hex(self) -> str:
        return self.private_key.hex()

    @classmethod
    def from_seed(cls, seed: str) -> Self:
        """Derive from a seed or pass-phrase of any length."""
        password = encode_text(seed, "a seed")
        from nacl.bindings import crypto_sign_seed_keypair

        derived = pbkdf2_hmac("sha256", password, b"", _ROUNDS, KEY_SIZE)
        return cls(*crypto_sign_seed_keypair(derived))

    @classmethod
    def from_private_key(cls, private_key: bytes) -> Self:
        """MalformedError unless the second half is the public key of the first."""
        if len(private_key) != PRIVATE_KEY_SIZE:
            raise MalformedError(f"a private key has {2 * PRIVATE_KEY_SIZE} hex digits")
        from nacl.bindings import crypto_sign_seed_keypair

        pair = cls(*crypto_sign_seed_keypair(private_key[:KEY_SIZE]))
        if pair.private_key != private_key:
            raise MalformedError("the halves of this private key do not belong together")
        return pair

    @classmethod
    def from_private_hex(cls, text: str) -> Self:
        if not _HEX64.fullmatch(text):
            raise MalformedError(f"a private key has {2 * PRIVATE_KEY_SIZE} hex digits")
        return cls.from_private_key(bytes.fromhex(text))


def derive_child_seed(master_seed: str, seed: str) -> str:
    """Combine a master seed with a sub-seed, such as an application's name; 64 hex digits."""
    texts = (encode_text(text, "a seed") for text in (master_seed, seed))
    return blake2b_256(*map(length_prefixed, texts)).hex()
