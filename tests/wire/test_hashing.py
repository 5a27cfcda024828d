"""The hash of the protocol."""

from hashlib import blake2b

from skymount.wire.hashing import blake2b_256, length_prefixed


def test_parts_are_joined():
    """Parts are hashed as one, into 32 bytes."""
    assert (
        blake2b_256(b"a", b"bc") == blake2b_256(b"abc") == blake2b(b"abc", digest_size=32).digest()
    )


def test_length_is_eight_bytes():
    """A length of 8 bytes, little-endian, tells where a value ends."""
    assert length_prefixed(b"") == bytes(8)
    assert length_prefixed(b"ab" * 200) == b"\x90\1\0\0\0\0\0\0" + b"ab" * 200
