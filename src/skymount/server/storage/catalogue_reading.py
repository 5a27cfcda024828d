"""What the catalogue says of a skyfile: after an upload, or read from the disk. Blocks."""

import logging
from collections.abc import Collection

import msgspec

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.catalogue_rows import CatalogueRow, NewSkyfile, Recorded
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.stored_range import read_range
from skymount.server.storage.stored_skyfile import list_sectors
from skymount.wire.metadata import INTEGER_LIMIT, parse_metadata
from skymount.wire.skylink import Skylink

_log = logging.getLogger(__name__)


class _Names(msgspec.Struct, gc=False):
    filename: str = ""
    subfiles: dict[str, msgspec.Raw] | None = None


_decode_names = msgspec.json.Decoder(_Names).decode


def of_upload(store: SkyfileStore, new: NewSkyfile, now: float) -> Recorded | None:
    """Return what to record; None if it was removed meanwhile. The metadata is not read."""
    found = (new.is_small and store.small_sizes(new.skylink)) or store.sizes(new.skylink)
    if found is None:
        return None
    disk, _ = found
    name, files, size = ("", 0, disk) if new.is_encrypted else (new.name, new.files, new.size)
    roots = [] if new.is_small else _further_roots(store, new.skylink)
    return Recorded(
        CatalogueRow(new.skylink, name, size, disk, files, new.is_encrypted, now), roots
    )


def _further_roots(store: SkyfileStore, skylink: Skylink) -> list[bytes]:
    skyfile = store.find(skylink)
    return [] if skyfile is None else [root for root, _ in list_sectors(skyfile)][1:]


def of_disk(store: SkyfileStore, skylink: Skylink) -> Recorded | None:
    """Read what to record; None if it is not there. A damaged skyfile has no name."""
    name, size, files = "", 0, 0
    is_encrypted, roots = False, list[bytes]()
    disk, stored = 0, 0.0
    try:
        found = store.sizes(skylink)
        if found is None:
            return None
        disk, stored = found
        skyfile = store.find(skylink)
        if skyfile is None:
            return None
        is_encrypted = skyfile.is_encrypted
        if is_encrypted:
            size = disk
        else:
            size = skyfile.layout.filesize
            name, files = describe_metadata(read_range(skyfile.metadata))
        roots = [root for root, _ in list_sectors(skyfile)][1:]
    except (StorageError, MalformedError, OSError) as error:
        _log.warning("skyfile %s is damaged, or cannot be read whole: %s", skylink, error)
    return Recorded(
        CatalogueRow(
            skylink, name, min(size, INTEGER_LIMIT - 1), disk, files, is_encrypted, stored
        ),
        roots,
    )


def describe_metadata(raw: bytes) -> tuple[str, int]:
    """Return the name in metadata, and the number of its files; 0 if it is no directory."""
    files: Collection[str]
    try:
        names = _decode_names(raw)
        found, files = names.filename, names.subfiles or {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        metadata = parse_metadata(raw)
        found, files = metadata.filename, metadata.subfiles
    return found, count_files(found, files)


def count_files(name: str, files: Collection[str]) -> int:
    """Return how many files a directory has; 0 for a single file that is none."""
    return 0 if len(files) == 1 and name in files else len(files)
