"""What is known of the content behind a skylink. No IO."""

from dataclasses import dataclass, field
from hashlib import blake2b

from skymount.content.model.listing import Listing, Packed
from skymount.policies import Verified, VerifyPolicy
from skymount.wire.base_sector import Layout
from skymount.wire.skylink import SECTOR_SIZE, Skylink

__all__ = ["BLOCK_SIZE", "LoadedSkyfile", "Skyfile", "UnitKey", "Verified", "VerifyPolicy"]

BLOCK_SIZE = 1 << 20
"""Bytes in a unit of content that is not verified chunk by chunk."""

_SMALL_BLOCKS = 32  # small blocks in a block


@dataclass(frozen=True, slots=True, eq=False)
class Skyfile:
    """An immutable skyfile as a portal described it; sizes in bytes.

    The payload is fetched, checked, cached and evicted in units: chunks where it is verified, else
    blocks of `block_size`, or small blocks of `small_block_size` for random reads.
    """

    skylink: Skylink
    listing: Listing
    size: int
    portal: str
    verified: Verified
    fanout: Packed = b""
    """Merkle roots of the payload's chunks, if known; empty for inline content."""
    layout: Layout | None = None
    """From the base sector, if known; the content is then checked unit by unit."""
    inline: bool = False
    """The payload lies in the base sector: it is one unit, fetched with the base sector."""
    provisional: int = 0
    """Not 0 if a portal that failed might have proved something else (docs/semantics.md, T6). Each
    provisional description has a number of its own, so that its units are not taken for another's.
    """
    identity: str = field(init=False)
    """Distinguishes this content from any other, and from other descriptions of the same skylink:
    what is not verified is only one portal's word, and may be described differently later.
    """
    is_unconfirmed: bool = False
    """Whether it comes from the disk cache unverified, and no portal could be asked again."""
    block_size: int = BLOCK_SIZE

    @property
    def is_provisional(self) -> bool:
        """Whether portals are to be asked again for a proof (docs/semantics.md, T6)."""
        return self.provisional != 0 or self.is_unconfirmed

    def __post_init__(self) -> None:
        source = "" if self.verified is Verified.YES else self.portal
        number = f"#{self.provisional}" if self.provisional else ""
        object.__setattr__(self, "identity", f"{self.skylink}/{self.size}/{source}{number}")

    def fingerprint(self) -> bytes:
        """Hash what another description of the skylink might say; empty where it is verified.

        For a thread, if the listing is long.
        """
        if self.verified is Verified.YES:
            return b""
        found = blake2b(self.listing.packed, digest_size=16)
        found.update(self.portal.encode())
        return found.digest()

    @property
    def unit(self) -> int:
        """Bytes in a unit: a chunk, a block, or all of the base sector's payload."""
        if self.inline:
            return SECTOR_SIZE
        if self.layout is not None and self.fanout:
            return self.layout.chunk_size
        return self.block_size

    @property
    def divisible(self) -> bool:
        """Whether small blocks may be fetched: no check needs a whole unit."""
        return not self.inline and not self.fanout

    @property
    def small_block_size(self) -> int:
        """Bytes in a small block; a block is whole small blocks."""
        return self.block_size // _SMALL_BLOCKS


@dataclass(frozen=True, slots=True)
class LoadedSkyfile:
    """A skyfile, and its payload if that came with the description."""

    skyfile: Skyfile
    payload: bytes | memoryview | None = None
    is_final: bool = False
    """Whether no portal can prove more, because the content is encrypted."""


UnitKey = tuple[str, int, int]
"""Identity of the skyfile, bytes in a unit, index of the unit."""
