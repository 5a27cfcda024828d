"""Owns the description of what is behind a skylink. No IO."""

from dataclasses import dataclass, field

from skymount.content.model.listing import Listing, Packed
from skymount.portal.verify_policy import Verified, VerifyPolicy
from skymount.wire.base_sector import Layout
from skymount.wire.skylink import SECTOR_SIZE, Skylink

__all__ = ["BLOCK", "PIECE", "LoadedSkyfile", "Skyfile", "UnitKey", "Verified", "VerifyPolicy"]

BLOCK = 1 << 20
"""Bytes in a unit of content that is not verified: fetched, cached and evicted as a whole."""

PIECE = 32 << 10
"""Bytes in a smaller unit of it, for what is read at random: a block is whole pieces."""


@dataclass(frozen=True, slots=True, eq=False)
class Skyfile:
    """An immutable skyfile as a portal described it; sizes in bytes."""

    skylink: Skylink
    """Always a v1 skylink."""
    listing: Listing
    size: int
    """Of the whole payload, all files one after another."""
    portal: str
    """Address of the portal that described it."""
    verified: Verified
    fanout: Packed = b""
    """Roots of the payload's chunks, when they are known and the payload is large."""
    layout: Layout | None = None
    """Known when the base sector is; the content is then checked unit by unit."""
    inline: bool = False
    """The payload lies in the base sector: it is one unit, and fetched by fetching that."""
    provisional: int = 0
    """Not 0 if a portal that failed might have proved something else (docs/semantics.md, T6); a
    number that no other description has, so that nothing of it is taken for another's.
    """
    identity: str = field(init=False)
    """Tells this content from any other, and from other descriptions of the same skylink.

    One that was first read without its base sector, from one portal's word, may be described
    otherwise later; what is not verified is only what that portal says.
    """

    is_unconfirmed: bool = False
    """Whether it comes from the disk, was not verified, and no portal could be asked again."""

    @property
    def is_provisional(self) -> bool:
        """Whether portals are to be asked again for something better (docs/semantics.md, T6)."""
        return self.provisional != 0 or self.is_unconfirmed

    def __post_init__(self) -> None:
        source = "" if self.verified is Verified.YES else self.portal
        number = f"#{self.provisional}" if self.provisional else ""
        object.__setattr__(self, "identity", f"{self.skylink}/{self.size}/{source}{number}")

    @property
    def unit(self) -> int:
        """Bytes of payload that are fetched, checked and cached together."""
        if self.inline:
            return SECTOR_SIZE
        if self.layout is not None and self.fanout:
            return self.layout.chunk_size
        return BLOCK

    @property
    def divisible(self) -> bool:
        """Whether less than a unit may be fetched: nothing is checked that needs all of it."""
        return not self.inline and not self.fanout


@dataclass(frozen=True, slots=True)
class LoadedSkyfile:
    """A skyfile, and its payload when that came along with it."""

    skyfile: Skyfile
    payload: bytes | memoryview | None = None
    is_final: bool = False
    """Whether it is known that no portal can prove more: the content is encrypted."""


UnitKey = tuple[str, int, int]
"""(identity of the skyfile, bytes in a unit, index)."""
