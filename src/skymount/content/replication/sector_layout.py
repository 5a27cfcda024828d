"""Whether a portal stores large content in the layout that its skylink needs, found out by a dry
run.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from skymount.concurrency import off_loop
from skymount.errors import ReadOnlyPortalError, RequestRefusedError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import post
from skymount.wire.base_sector import Layout, build_fanned_out
from skymount.wire.merkle import sector_root
from skymount.wire.metadata import Metadata, encode_metadata
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_NAME = "zeros"
_PIECE = 128 << 10  # bytes of the body that are sent at a time


async def uses_one_piece(portal: PortalReader) -> bool | None:
    """Whether a portal stores large content with one data piece; None if it does not say.

    It is sent 4 MiB of zeros, which are too much for a base sector, and stores nothing.
    """
    try:
        result = await post(portal.http, _Zeros(), portal.options)
    except ReadOnlyPortalError:
        raise
    except RequestRefusedError:  # it may know no dry run
        return None
    return result.skylink == await off_loop(partial(_skylink_with_one_piece), SECTOR_SIZE)


def mismatch(layout: Layout, one_piece: bool | None) -> str:
    """Return why a portal cannot keep the skylink of large content of this layout; empty if it can,
    or if that is not known. `one_piece` is what `uses_one_piece` returned.
    """
    has_one = (layout.data_pieces, layout.parity_pieces) == (1, 0)
    if one_piece is None or has_one == one_piece:
        return ""
    if has_one:
        return "it has one data piece, and that portal spreads large content in another way"
    pieces = layout.data_pieces
    return f"it is spread over {pieces} data pieces, and that portal stores large content in one"


def _skylink_with_one_piece() -> Skylink:
    metadata = encode_metadata(Metadata(_NAME, SECTOR_SIZE))
    base, _ = build_fanned_out(SECTOR_SIZE, sector_root(bytes(SECTOR_SIZE)), metadata)
    return Skylink.v1(sector_root(base), len(base))


@dataclass(frozen=True, slots=True)
class _Zeros:
    """The body of the dry run."""

    dirname: str = ""
    query: tuple[tuple[str, str], ...] = (("filename", _NAME), ("dryrun", "true"))
    size: int = SECTOR_SIZE

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "application/octet-stream", "Content-Length": str(self.size)}

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _ZerosStream(self.size // _PIECE)


class _ZerosStream:
    """An iteration over zeros. Not a generator, as httpx does not close it when sending fails."""

    def __init__(self, pieces: int) -> None:
        self._left = pieces

    def __aiter__(self) -> "_ZerosStream":
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        return bytes(_PIECE)
