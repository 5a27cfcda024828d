"""The form in which the description of a skylink is stored on disk. No IO.

    <head: 64 bytes> <listing> <payload, if any> <fan-out> <layout> <portal's address>

Whether the bytes are those that were written is checked by the disk cache.
"""

import struct

from skymount.content.model.listing import Packed, unpack
from skymount.content.model.skyfile import LoadedSkyfile, Skyfile, Verified
from skymount.content.worker.shared_memory import is_large, joined
from skymount.errors import MalformedError
from skymount.wire.base_sector import LAYOUT_SIZE, Layout
from skymount.wire.skylink import Skylink

_HEAD = struct.Struct("<B?QQqQII22x")
"""Trust, inline, payload size, bytes of listing, payload (-1: none), fan-out, layout, address."""

_MAX_OVERHEAD = 2
"""A part that is used keeps all that was read in memory: at most so many times its own length."""

_TRUST = (Verified.NO, Verified.PARTLY, Verified.YES)


def parts(loaded: LoadedSkyfile) -> list[Packed]:
    """Return what `restore` reads, as parts to be joined."""
    skyfile, payload = loaded.skyfile, loaded.payload
    layout = b"" if skyfile.layout is None else bytes(skyfile.layout)
    portal = skyfile.portal.encode()
    head = _HEAD.pack(
        _TRUST.index(skyfile.verified),
        skyfile.inline,
        skyfile.size,
        len(skyfile.listing.packed),
        -1 if payload is None else len(payload),
        len(skyfile.fanout),
        len(layout),
        len(portal),
    )
    return [head, skyfile.listing.packed, payload or b"", skyfile.fanout, layout, portal]


def restore(skylink: Skylink, data: memoryview) -> LoadedSkyfile:
    """Read the description of a skylink; MalformedError when it makes no sense."""
    if len(data) < _HEAD.size:
        raise MalformedError("a description is cut off")
    trust, inline, size, *lengths = _HEAD.unpack_from(data)
    has_payload = lengths[1] >= 0
    lengths[1] = max(0, lengths[1])
    if trust >= len(_TRUST) or _HEAD.size + sum(lengths) != len(data):
        raise MalformedError("a description has an impossible head")
    found, at = [], _HEAD.size
    for length in lengths:
        found.append(data[at : at + length])
        at += length
    listing, payload, fanout, layout, portal = found
    try:
        address = str(portal, "utf-8")
    except UnicodeDecodeError:
        raise MalformedError("a description has an impossible address") from None
    skyfile = Skyfile(
        skylink=skylink,
        listing=unpack(_detached(listing, data)),
        size=size,
        portal=address,
        verified=_TRUST[trust],
        fanout=_detached(fanout, data),
        layout=Layout.parse(bytes(layout)) if len(layout) == LAYOUT_SIZE else None,
        inline=inline,
    )
    if inline != has_payload or (has_payload and len(payload) != size):
        raise MalformedError("a description has another payload than it says")
    return LoadedSkyfile(skyfile, _detached(payload, data) if has_payload else None)


def _detached(part: memoryview, whole: memoryview) -> Packed:
    """Return a part of what was read; a copy if it would keep much more in memory."""
    if len(whole) <= _MAX_OVERHEAD * len(part) and not is_large(len(part)):
        return part
    return joined([part])
