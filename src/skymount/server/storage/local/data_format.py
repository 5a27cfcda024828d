"""The format of a data directory, and which version of skymount gave it that format.

    <data>/format.json                {"format": 2, "skymount": "0.1.0"}

A directory without the file is of format 1: all skyfiles are files. In format 2 small ones are rows
of a database. Versions that do not know the file do not start on format 2, as the registry has
another version there: see `entry_store`. Everything blocks.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from skymount import __version__
from skymount.errors import StorageError
from skymount.server.storage.disk_errors import disk_errors
from skymount.storage import atomic_file

FORMAT_FILE = "format.json"
FORMAT = 2
"""The newest format that this version knows."""

_LIMIT = 4096  # bytes


class _Mark(msgspec.Struct):
    format: Annotated[int, msgspec.Meta(ge=1)]
    skymount: Annotated[str, msgspec.Meta(max_length=100)]


def check_format(data: Path) -> int:
    """Return the format of a data directory, which may be absent; StorageError if it is newer than
    this version knows.
    """
    path = data / FORMAT_FILE
    with disk_errors(f"read {path}"):
        try:
            with path.open("rb") as file:
                raw = file.read(_LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            return 1
    try:
        mark = msgspec.json.decode(raw, type=_Mark)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise StorageError(
            f"{path} is damaged: remove it if no newer version has used this directory"
        ) from None
    if mark.format > FORMAT:
        raise StorageError(
            f"{data} has format {mark.format} of skymount {_printable(mark.skymount)}; this is "
            f"skymount {__version__}, which knows formats up to {FORMAT}: use a newer version"
        )
    return mark.format


def bring_up_to_date(data: Path) -> None:
    """Give a locked data directory the newest format; StorageError as above."""
    if check_format(data) < FORMAT:
        mark = msgspec.json.encode(_Mark(FORMAT, __version__))
        with disk_errors(f"write {data / FORMAT_FILE}"):
            atomic_file.replace(data / FORMAT_FILE, mark + b"\n")


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)
