"""Makes skyfiles of every shape, with the skylinks that they truly have."""

import json
import random
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from skymount.content.model.listing import Listing, unpack
from skymount.content.model.listing_builder import tabulate
from skymount.wire import base_sector
from skymount.wire.merkle import sector_root
from skymount.wire.metadata import Metadata, Subfile, encode_metadata
from skymount.wire.skylink import SECTOR_SIZE, Skylink

SEGMENT = 64  # bytes, how content is spread over data pieces (docs/wire.md 2.3)


@dataclass(frozen=True, eq=False, repr=False)  # a failure need not show megabytes
class FakeSkyfile:
    """Content as a portal holds it."""

    skylink: Skylink
    metadata: bytes
    payload: bytes
    base: bytes | None = None
    """What the base sector's endpoint hands out; None when it must not."""
    sectors: Mapping[bytes, bytes] = field(default_factory=dict)
    """Further sectors by root, of metadata that was spilled."""
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The skylink's text."""
        return str(self.skylink)


def noise(size: int, seed: int = 1) -> bytes:
    """Return bytes that look like nothing else, the same for the same seed."""
    return random.Random(seed).randbytes(size)


def describe(files: Mapping[str, bytes], filename: str = "site", mode: int = 0o644) -> bytes:
    """Return the metadata bytes of a directory upload of these files, in their order."""
    subfiles: dict[str, Subfile] = {}
    offset = 0
    for path, content in files.items():
        subfiles[path] = Subfile(mode, path, "text/plain", offset, len(content))
        offset += len(content)
    return encode_metadata(Metadata(filename, offset, subfiles=subfiles))


def inline_skylink(metadata: bytes, payload: bytes) -> Skylink:
    """Return the skylink that every portal issues for a small file."""
    base = base_sector.build_inline(metadata, payload)
    return Skylink.v1(sector_root(base), len(base))


def listing_of(metadata: Metadata | bytes, size: int | None = None) -> Listing:
    """Return the listing of metadata, for a payload of `size` bytes or what the metadata says."""
    raw = metadata if isinstance(metadata, bytes) else _as_json(metadata)
    return unpack(tabulate(raw, size, 0))


def _as_json(metadata: Metadata) -> bytes:
    """Write metadata as JSON, also where a text is no valid Unicode, as no portal would."""
    members = {"filename": metadata.filename, "length": metadata.length or 0, "mode": metadata.mode}
    subfiles = {path: msgspec.structs.asdict(sub) for path, sub in metadata.subfiles.items()}
    return json.dumps(members | {"subfiles": subfiles}).encode()


def of_files(files: Mapping[str, bytes], **shape: object) -> FakeSkyfile:
    """Return a directory upload."""
    payload = b"".join(files.values())
    return of_metadata(describe(files), payload, files=files, **shape)  # type: ignore[arg-type]


def of_metadata(
    metadata: bytes,
    payload: bytes = b"",
    *,
    pieces: int = 1,
    cipher: bytes = base_sector.CIPHER_PLAIN,
    fan_out: bool = False,
    files: Mapping[str, bytes] | None = None,
) -> FakeSkyfile:
    """Return authentic content with exactly these bytes of metadata: inline if it fits."""
    if not fan_out and base_sector.fits_inline(len(metadata), len(payload)):
        base, spilled = base_sector.build_inline(metadata, payload, cipher), list[bytes]()
    elif pieces == 1:
        roots = b"".join(map(sector_root, _chunks(payload, SECTOR_SIZE)))
        base, spilled = base_sector.build_fanned_out(len(payload), roots, metadata)
    else:
        base, spilled = _spread(metadata, payload, pieces), []
    return FakeSkyfile(
        skylink=Skylink.v1(sector_root(base), len(base)),
        metadata=metadata,
        payload=payload,
        base=base,
        sectors={sector_root(data): data for data in spilled},
        files=files or {},
    )


def encrypted(files: Mapping[str, bytes]) -> FakeSkyfile:
    """Return content that the portal decrypts: its base sector says so, and hashes right."""
    metadata, payload = describe(files), b"".join(files.values())
    layout = base_sector.Layout(
        len(payload), len(metadata), cipher=b"\0\0\0\0\0\0\0\4", key_data=b"k" * 64
    )
    base = bytes(layout) + noise(len(metadata) + len(payload), zlib.crc32(payload))
    skylink = Skylink.v1(sector_root(base), len(base))
    return FakeSkyfile(skylink, metadata, payload, base, files=files)


def sealed(files: Mapping[str, bytes]) -> FakeSkyfile:
    """Return encrypted content as it is really stored: noise up to the end of its base sector."""
    plain = encrypted(files)
    assert plain.base is not None
    used, layout = len(plain.base), bytes(base_sector.Layout.parse(plain.base))
    hidden = noise(SECTOR_SIZE, zlib.crc32(plain.payload))
    whole = layout[:1] + hidden[1:27] + layout[27:] + hidden[99:]
    root = sector_root(whole)
    return FakeSkyfile(
        Skylink.v1(root, used),
        plain.metadata,
        plain.payload,
        whole[:used],
        sectors={root: whole},
        files=files,
    )


def packed(files: Mapping[str, bytes], offset: int = 64 << 10) -> FakeSkyfile:
    """Return content that lies behind other content in its sector."""
    metadata, payload = describe(files), b"".join(files.values())
    base = base_sector.build_inline(metadata, payload)
    root = sector_root(noise(offset, 3) + base)
    return FakeSkyfile(Skylink.v1(root, len(base), offset), metadata, payload, base, files=files)


def unverifiable(metadata: bytes, payload: bytes = b"", seed: int = 5) -> FakeSkyfile:
    """Return content that nobody can check: its link says that it lies behind other content."""
    return FakeSkyfile(Skylink.v1(noise(32, seed), 4096, 4096), metadata, payload)


def plain(size: int, seed: int = 1) -> FakeSkyfile:
    """Return content of one file that cannot be verified."""
    payload = noise(size, seed)
    return unverifiable(describe({"f": payload}), payload, seed)


def resolver(seed: int = 11) -> Skylink:
    """Return a v2 skylink."""
    return Skylink.v2(noise(32, seed))


def _chunks(payload: bytes, size: int) -> list[bytes]:
    return [payload[at : at + size] for at in range(0, len(payload), size)]


def _spread(metadata: bytes, payload: bytes, pieces: int) -> bytes:
    """Return the base sector of content spread over `pieces` data pieces of each chunk.

    Segment i of each group goes to piece i; of the parity pieces only the number counts here.
    """
    roots = []
    for chunk in _chunks(payload, pieces * SECTOR_SIZE):
        row = struct.Struct(f"{SEGMENT}s" * pieces)
        padded = chunk + bytes(-len(chunk) % row.size)
        columns = zip(*row.iter_unpack(padded), strict=True)
        roots += [sector_root(b"".join(segments)) for segments in columns]
        roots += [noise(32, 100 + parity) for parity in range(2 * pieces)]
    fanout = b"".join(roots)
    layout = base_sector.Layout(len(payload), len(metadata), len(fanout), pieces, 2 * pieces)
    return bytes(layout) + fanout + metadata
