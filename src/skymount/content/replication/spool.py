"""What was fetched of content that is on its way to a portal, kept on disk for the next attempt.

    <cache>/pin/<skylink>/      blocks, as in the disk cache, but without a bound

It is removed when the portal has the content.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from skymount.concurrency import in_thread
from skymount.content.cache.block_store import default_path
from skymount.content.cache.write_behind import WriteBehindConfig
from skymount.content.fetch.reader import ContentReader
from skymount.content.opening import Content, DiskSettings, open_content
from skymount.errors import CacheError
from skymount.policies import VerifyPolicy
from skymount.wire.skylink import Skylink

_SIZE = 1 << 50  # bytes; more than any disk has
_FINISH_TIMEOUT = 60.0  # seconds for what is still to be written at the end


@dataclass(slots=True)
class Spool:
    """What is kept of one content."""

    reader: ContentReader
    """Reads it, from what is kept and from the portals."""
    is_done: bool = False
    """Whether it is not needed any more."""


def default_place() -> Path:
    """Return the directory of all spools of the user."""
    return default_path() / "pin"


@asynccontextmanager
async def open_spool(content: Content, place: Path, skylink: Skylink) -> AsyncIterator[Spool]:
    """Open what is kept of some content, and read it; CacheError if the directory cannot be used.

    Only proved content is put into it and taken from it.
    """
    queue = WriteBehindConfig(finish_timeout=_FINISH_TIMEOUT)
    disk = DiskSettings(_SIZE, place / str(skylink), queue)
    settings = replace(content.settings, verify=VerifyPolicy.REQUIRE, disk=disk)
    async with open_content(settings, content.portals) as opened:
        spool = Spool(opened.reader)
        yield spool
    if spool.is_done:
        await discard(place, skylink)


async def discard(place: Path, skylink: Skylink) -> None:
    """Remove what is kept of some content, if anything is."""
    await in_thread(partial(shutil.rmtree, place / str(skylink), ignore_errors=True))


def clear_spools(place: Path) -> None:
    """Remove all that is kept; CacheError if that is not possible."""
    try:
        shutil.rmtree(place)
    except FileNotFoundError:
        return
    except OSError as error:
        where = error.filename or place
        raise CacheError(f"{where}: cannot be removed: {error.strerror}") from None
