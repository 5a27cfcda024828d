"""Computes the Merkle roots of what is stored, and compares them with what they should be.

It reads beside a portal that runs. Everything blocks.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice

from skymount.errors import StorageError
from skymount.server.storage.reading.storage_reader import StorageReader
from skymount.server.storage.stored_range import read_range
from skymount.server.storage.stored_skyfile import list_sectors
from skymount.wire import merkle
from skymount.wire.skylink import Skylink

_BATCH = 64  # skyfiles that are handed to threads together


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found of one skyfile."""

    skylink: Skylink
    size: int
    """Bytes that were read."""
    problem: str
    """Empty if there is none."""


def verify(reader: StorageReader, skylinks: Iterable[Skylink] | None = None) -> Iterator[Verified]:
    """Yield what is found of these skyfiles, or of all. Those that are gone are left out."""
    check = partial(_verify, reader)
    remaining = iter(reader.skylinks() if skylinks is None else skylinks)
    threads = (os.cpu_count() or 1) if merkle.COMPILED else 1
    with ThreadPoolExecutor(threads) as pool:
        while batch := list(islice(remaining, _BATCH)):
            yield from (found for found in pool.map(check, batch) if found is not None)


def _verify(reader: StorageReader, skylink: Skylink) -> Verified | None:
    size = 0
    try:
        skyfile = reader.find(skylink)
        if skyfile is None:
            return Verified(skylink, 0, "it has no base") if reader.has(skylink) else None
        for index, (root, stored) in enumerate(list_sectors(skyfile)):
            data = read_range(stored)
            size += len(data)
            if merkle.sector_root(data) != root:
                what = "its base sector" if index == 0 else f"sector {index}"
                return Verified(skylink, size, f"{what} does not have the root that it should")
    except StorageError as error:
        if not reader.has(skylink):  # it was removed meanwhile
            return None
        return Verified(skylink, size, str(error))
    return Verified(skylink, size, "")
