"""The hash of the protocol, and how texts and values of any length go into it."""

from hashlib import blake2b

from skymount.errors import MalformedError


def blake2b_256(*parts: bytes) -> bytes:
    """Return the BLAKE2b hash of the joined parts, 32 bytes."""
    return blake2b(b"".join(parts), digest_size=32).digest()


def encode_text(text: str, what: str) -> bytes:
    """Return the UTF-8 of a text; a MalformedError names `what`."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MalformedError(f"{what} must be valid Unicode text") from None


def length_prefixed(data: bytes) -> bytes:
    """Return the length in 8 bytes, little-endian, then the data."""
    return len(data).to_bytes(8, "little") + data
