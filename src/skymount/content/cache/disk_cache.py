"""The disk cache of skyfiles: descriptions and units, and which portals they may be used with.

Rules (docs/semantics.md, K5): verified content is good for every portal; other content only for the
portal that it came from, among the same portals, and never where verification is required.
"""

import logging
import time
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from cachetools import LRUCache

from skymount.concurrency import off_loop
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.memory_cache import Data
from skymount.content.cache.write_behind import WriteBehindQueue
from skymount.content.model import description_codec
from skymount.content.model.skyfile import LoadedSkyfile, Skyfile, Verified, VerifyPolicy
from skymount.content.worker.shared_memory import joined
from skymount.errors import MalformedError
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)

_DESCRIPTION = 0  # as the unit of a block
_REMEMBERED = 1024  # skyfiles

_TOUCH_BYTES, _TOUCH_SECONDS = 16 << 20, 30.0
"""A description is touched after so much use of its content: without it the content is useless, so
it must not be evicted first (K3).
"""


class DiskCache:
    """The disk cache as one mount sees it, with its portals and its policy."""

    def __init__(
        self, queue: WriteBehindQueue, portals: Sequence[str], policy: VerifyPolicy
    ) -> None:
        self._queue = queue
        self._portals = portals
        names = "\n".join(sorted(set(portals))).encode()
        self._portals_digest = blake2b(names, digest_size=8).hexdigest()
        self._policy = policy
        self._stored: LRUCache[Skylink, set[tuple[int, int]]] = LRUCache(_REMEMBERED)
        """(size, index) of stored units of a skyfile that had no description on disk."""
        self._next_touch: LRUCache[str, tuple[float, int]] = LRUCache(_REMEMBERED)
        """Time of the next touch of a description, and bytes of content until then."""

    async def load_description(self, skylink: Skylink) -> LoadedSkyfile | None:
        """Return the description of a skylink, preferring the verified one."""
        others = [] if self._policy is VerifyPolicy.REQUIRE else map(self._source_of, self._portals)
        keys = [_description_key(skylink, source) for source in ("", *others)]
        for data in await self._queue.read(keys):
            if data is not None:
                try:
                    return await off_loop(
                        partial(description_codec.restore, skylink, data), len(data)
                    )
                except MalformedError as error:
                    log.warning("%s: its description on disk is not used: %s", skylink, error)
        self._stored.setdefault(skylink, set())
        return None

    async def store_description(self, loaded: LoadedSkyfile) -> None:
        """Store a description and the payload that came with it."""
        skyfile = loaded.skyfile
        if skyfile.provisional:
            return
        parts = description_codec.parts(loaded)
        packed = await off_loop(partial(joined, parts), sum(map(len, parts)))
        self._queue.offer(self._key_of_description(skyfile), packed)

    def _key_of_description(self, skyfile: Skyfile) -> BlockKey:
        verified = skyfile.verified is Verified.YES
        return _description_key(
            skyfile.skylink, "" if verified else self._source_of(skyfile.portal)
        )

    def _note_use(self, skyfile: Skyfile, size: int) -> None:
        now = time.monotonic()
        due, left = self._next_touch.get(skyfile.identity, (0.0, 0))
        left -= size
        if left <= 0 or now >= due:
            due, left = now + _TOUCH_SECONDS, _TOUCH_BYTES
            self._queue.touch(self._key_of_description(skyfile))
        self._next_touch[skyfile.identity] = due, left

    def _source_of(self, portal: str) -> str:
        """Return the source of what a portal said and the other portals could not disprove."""
        is_off = self._policy is VerifyPolicy.OFF
        return f"{portal} unchecked" if is_off else f"{portal} {self._portals_digest}"

    async def load_units(
        self, skyfile: Skyfile, size: int, indexes: Sequence[int]
    ) -> list[Data | None]:
        """Return units of `size` bytes; None for each that is not there.

        Small blocks are cut from blocks on disk.
        """
        stored, unit = self._stored.get(skyfile.skylink), skyfile.unit
        numbers = sorted({n * size // unit for n in indexes})
        # In a cold read, looking on disk would cost much.
        is_new = stored is not None and not any((unit, n) in stored for n in numbers)
        if is_new or skyfile.provisional:
            return [None] * len(indexes)
        self._note_use(skyfile, size * len(indexes))
        blocks = dict(zip(numbers, await self._blocks(skyfile, numbers), strict=True))
        if size == unit:
            return [blocks[n] for n in indexes]
        found: list[Data | None] = []
        for n in indexes:
            block, start = blocks[n * size // unit], n * size % unit
            found.append(None if block is None else bytes(block[start : start + size]))
        return found

    async def _blocks(self, skyfile: Skyfile, indexes: Sequence[int]) -> list[Data | None]:
        unit = skyfile.unit
        found = await self._queue.read([_unit_key(skyfile, unit, n) for n in indexes])
        whole = [min(unit, skyfile.size - n * unit) for n in indexes]
        return [
            data if data is not None and len(data) == length else None
            for data, length in zip(found, whole, strict=True)
        ]

    def store_unit(self, skyfile: Skyfile, size: int, index: int, data: Data) -> None:
        """Store a unit, some time. Never waits. Small blocks stay in memory only."""
        if skyfile.provisional or size < skyfile.unit:
            return
        stored = self._stored.get(skyfile.skylink)
        if stored is not None:
            stored.add((size, index))
        self._note_use(skyfile, len(data))
        self._queue.offer(_unit_key(skyfile, size, index), data)


def _description_key(skylink: Skylink, source: str) -> BlockKey:
    return BlockKey(str(skylink), _DESCRIPTION, 0, 0, source)


def _unit_key(skyfile: Skyfile, size: int, index: int) -> BlockKey:
    source = "" if skyfile.verified is Verified.YES else skyfile.portal
    return BlockKey(str(skyfile.skylink), size, skyfile.size, index, source)
