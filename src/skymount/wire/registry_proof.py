"""Proofs of where a v2 skylink leads: the registry entries on its path (docs/wire.md 1.4)."""

from collections.abc import Sequence

import msgspec

from skymount.errors import BadSignatureError, MalformedError
from skymount.wire.registry_entry import SignedEntry, linked_skylink
from skymount.wire.skylink import Skylink

HOPS = 2  # the most registry entries on the path from a v2 skylink to content
_LIMIT = 16 << 10  # bytes of a proof; the longest honest one has less than 2 KiB


def encode_proof(hops: Sequence[SignedEntry]) -> bytes:
    """Write the header's JSON array, in the order of the hops."""
    return msgspec.json.encode([hop.as_json() for hop in hops])


def check_proof(requested: Skylink, resolved: Skylink, hops: Sequence[SignedEntry]) -> None:
    """BadSignatureError unless signed entries lead from one skylink to the other.

    A proof does not show that these entries are the latest ones.
    """
    if not hops:
        raise BadSignatureError("Expected registry proof not to be empty")
    at = requested
    for hop in hops:
        if hop.entry.kind != 1:
            raise BadSignatureError(f"Unsupported registry type in proof: '{hop.entry.kind}'")
        if at.version != 2 or hop.link != at:
            raise BadSignatureError("Could not verify registry proof chain")
        hop.verify()
        following = linked_skylink(hop.entry.data)
        if following is None:
            raise BadSignatureError("Could not verify registry proof chain")
        at = following
    if at != resolved or at.version != 1:
        raise BadSignatureError("Could not verify registry proof chain")


def verified_hops(requested: Skylink, resolved: Skylink, text: bytes) -> tuple[SignedEntry, ...]:
    """Read a proof and check it; MalformedError when it does not hold."""
    if len(text) > _LIMIT:
        raise MalformedError(f"a proof has at most {_LIMIT} bytes")
    hops = SignedEntry.parse_hops(text)
    if len(hops) > HOPS:
        raise MalformedError(f"a proof has at most {HOPS} registry entries")
    check_proof(requested, resolved, hops)
    return hops
