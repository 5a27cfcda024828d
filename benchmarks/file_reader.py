"""Reads files as a Python program does, and prints the seconds that it took.

    python -m benchmarks.file_reader TARGET sequential SIZE
    python -m benchmarks.file_reader TARGET random SIZE READS
    python -m benchmarks.file_reader TARGET cat|each COUNT

TARGET is a path or a link; for the last two a directory on a server. `cat` reads all files below at
once, `each` so many of them one by one. Imports and the first look at a file are not counted.
"""

import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec

BLOCK = 1 << 20  # bytes of a sequential read
SMALL = 4096  # bytes of a read at random
READERS = 16

Open = Callable[[], Any]


def opener(target: str) -> Open:
    """Return what opens a file; it has been looked up."""
    if "://" not in target:
        return lambda: open(target, "rb", buffering=0)
    fs, path = fsspec.core.url_to_fs(target)
    fs.info(path)
    return lambda: fs.open(path)


def sequential(open_file: Open, size: int) -> None:
    """Read a file to its end."""
    count, buffer = 0, bytearray(BLOCK)
    with open_file() as file:
        while got := file.readinto(buffer):
            count += got
    assert count == size, count


def at_random(open_file: Open, size: int, reads: int) -> None:
    """Read blocks at places that are the same in each run, by several readers at once."""
    places = random.Random(1).sample(range(size // SMALL), READERS * reads)

    def read(share: list[int]) -> None:
        with open_file() as file:
            for place in share:
                file.seek(place * SMALL)
                assert len(file.read(SMALL)) == SMALL

    with ThreadPoolExecutor(READERS) as threads:
        list(threads.map(read, [places[number::READERS] for number in range(READERS)]))


def cat(url: str, count: int) -> float:
    """Read all files at once; return the seconds, with finding their names."""
    fs, path = fsspec.core.url_to_fs(url)
    start = time.perf_counter()
    found = fs.cat(fs.find(path))
    seconds = time.perf_counter() - start
    assert len(found) == count, len(found)
    return seconds


def each(url: str, count: int) -> float:
    """Read some files one by one; return the seconds, without finding their names."""
    fs, path = fsspec.core.url_to_fs(url)
    names = fs.find(path)[:count]
    assert len(names) == count, len(names)
    start = time.perf_counter()
    for name in names:
        fs.cat_file(name)
    return time.perf_counter() - start


def main(target: str, kind: str, *numbers: str) -> None:
    """Do what the command line says."""
    sizes = [int(number) for number in numbers]
    if kind == "cat":
        seconds = cat(target, *sizes)
    elif kind == "each":
        seconds = each(target, *sizes)
    else:
        open_file, read = opener(target), sequential if kind == "sequential" else at_random
        start = time.perf_counter()
        read(open_file, *sizes)
        seconds = time.perf_counter() - start
    print(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
