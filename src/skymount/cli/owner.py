"""Owns how a command names whose registry entry it is about: a key of the keyring, or a public key
of 64 hex digits.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skymount.wire.keys import KeyPair


def public_key(text: str) -> str:
    """Return the public key, 64 hex digits, that a name or a public key stands for."""
    from skymount.errors import MalformedError
    from skymount.wire.registry import parse_public_key

    try:
        return parse_public_key(text).hex()
    except MalformedError:
        return key_pair(text).public_hex


def key_pair(name: str) -> "KeyPair":
    """Return the key of that name; KeyringError when the keyring has none."""
    from skymount.keyring import Keyring, default_path

    return Keyring(default_path()).get(name)
