"""What the catalogue takes and tells. No IO."""

from collections.abc import Sequence
from dataclasses import dataclass

from skymount.wire.skylink import Skylink


@dataclass(frozen=True, slots=True)
class NewSkyfile:
    """A skyfile that was stored just now, as the upload knows it."""

    skylink: Skylink
    name: str
    files: int
    """0 for a single file that is no directory."""
    size: int
    is_encrypted: bool
    is_small: bool
    """Whether the base sector is all of it."""


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """What the catalogue says of a skyfile."""

    skylink: Skylink
    name: str
    """Its beginning if it is long; empty when it is not known, as that of an encrypted one."""
    size: int
    disk: int
    """Bytes on disk."""
    files: int
    """0 for a single file that is no directory."""
    is_encrypted: bool
    stored: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A row to write, and the Merkle roots of the sectors besides the base sector."""

    row: CatalogueRow
    roots: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class ListPage:
    """Rows of the catalogue, and how many match in all."""

    rows: tuple[CatalogueRow, ...]
    total: int
    is_complete: bool
    unread: int
    """Skyfiles on disk that are not in the catalogue yet, as far as that is known."""
