"""Saves content as a local file: the old one stays until the new one is complete."""

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from skymount.file_api.open_file import OpenFile

_PIECE = 4 << 20  # bytes


def save(file: OpenFile, into: BinaryIO, progress: Callable[[int], object]) -> None:
    """Write all of a file; `progress` is told the bytes of each piece."""
    for at in range(0, file.size, _PIECE):
        data = file.read(at, at + _PIECE)
        into.write(data)
        progress(len(data))


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of the one at `path` once the block succeeds.

    What is no regular file, such as a pipe, is written to as it is.
    """
    target = os.path.realpath(path)
    try:
        old = os.stat(target)
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old.st_mode):
        with open(target, "wb") as file:  # IsADirectoryError for a directory
            yield file
        return
    directory = os.path.dirname(target)
    aside = os.path.join(directory, f".{secrets.token_hex(8)}.part")
    try:
        with open(aside, "xb") as file:
            if old is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
            yield file
        os.replace(aside, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
