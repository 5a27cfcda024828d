"""Owns what of skyfiles is kept on disk: descriptions and units, and whose word they are.

What was verified is good for every portal. What was not is kept as the word of the portal that said
it among those that were asked; it is not used with others, nor where only the verified counts. What
is provisional is not kept.
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
_MARK = 1  # as the unit of a block: the skyfile has pieces on disk

_KNOWN = 1024
"""Skyfiles of which it is remembered whether they have, and what was kept and used of them."""

_NOTED_BYTES, _NOTED_SECONDS = 16 << 20, 30.0
"""After so much use of its content, or such a time, a description is noted as used as well: without
it the content is nothing, so it must not go first.
"""


class DiskCache:
    """The disk cache of one mount, which asks these portals and trusts them so far."""

    def __init__(
        self, queue: WriteBehindQueue, portals: Sequence[str], policy: VerifyPolicy
    ) -> None:
        self._queue = queue
        self._portals = portals
        asked = "\n".join(sorted(set(portals))).encode()
        self._asked = blake2b(asked, digest_size=8).hexdigest()
        self._policy = policy
        self._has_pieces: LRUCache[str, bool] = LRUCache(_KNOWN)
        self._new: LRUCache[Skylink, set[tuple[int, int]]] = LRUCache(_KNOWN)
        """Of what had no description on disk: the units that were kept since, all that counts."""
        self._next_touch: LRUCache[str, tuple[float, int]] = LRUCache(_KNOWN)
        """When the use of a description is noted next, and the bytes of content until then."""

    async def load_description(self, skylink: Skylink) -> LoadedSkyfile | None:
        """Return the description of a skylink, the verified one if there is any."""
        words = [] if self._policy is VerifyPolicy.REQUIRE else map(self._source_of, self._portals)
        keys = [_description_key(skylink, source) for source in ("", *words)]
        for data in await self._queue.read(keys):
            if data is not None:
                try:
                    return await off_loop(
                        partial(description_codec.restore, skylink, data), len(data)
                    )
                except MalformedError as error:
                    log.warning("%s: its description on disk is not used: %s", skylink, error)
        self._new.setdefault(skylink, set())
        return None

    async def store_description(self, loaded: LoadedSkyfile) -> None:
        """Keep a description, and the payload that came along."""
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
        """Take note that so many bytes of content are used, and now and then of its description."""
        now = time.monotonic()
        due, left = self._next_touch.get(skyfile.identity, (0.0, 0))
        left -= size
        if left <= 0 or now >= due:
            due, left = now + _NOTED_SECONDS, _NOTED_BYTES
            self._queue.touch(self._key_of_description(skyfile))
            if self._has_pieces.get(skyfile.identity):
                self._queue.touch(_unit_key(skyfile, _MARK, 0))
        self._next_touch[skyfile.identity] = due, left

    def _source_of(self, portal: str) -> str:
        """Return whose word a description is, and who could not prove another.

        One that nobody tried to check is another one.
        """
        return (
            f"{portal} unchecked" if self._policy is VerifyPolicy.OFF else f"{portal} {self._asked}"
        )

    async def load_units(
        self, skyfile: Skyfile, size: int, indexes: Sequence[int]
    ) -> list[Data | None]:
        """Return units of so many bytes; None for those that are not there.

        What was kept in another size counts as well: pieces as parts of a block, and a block of
        which all pieces are there.
        """
        kept = self._new.get(skyfile.skylink)
        is_new = kept is not None and not self._may_be_stored(kept, skyfile, size, indexes)
        if is_new or skyfile.provisional:
            return [None] * len(indexes)
        self._note_use(skyfile, size * len(indexes))
        found = await self._of_size(skyfile, size, indexes)
        missing = [at for at, data in enumerate(found) if data is None]
        if not missing or not skyfile.divisible:
            return found
        if size < skyfile.unit:
            others = await self._cut(skyfile, size, [indexes[at] for at in missing])
        elif await self.has_pieces(skyfile):
            others = [await self._assembled(skyfile, indexes[at]) for at in missing]
        else:
            return found
        for at, data in zip(missing, others, strict=True):
            found[at] = data
        return found

    @staticmethod
    def _may_be_stored(
        kept: set[tuple[int, int]], skyfile: Skyfile, size: int, indexes: Sequence[int]
    ) -> bool:
        """Whether any of some units can be on disk: to look for each costs a cold read much."""
        if size < skyfile.unit:
            blocks = ((skyfile.unit, n * size // skyfile.unit) for n in indexes)
            return any((size, n) in kept for n in indexes) or any(one in kept for one in blocks)
        small = skyfile.small_block_size
        in_pieces = (small, indexes[0] * size // small) in kept
        return in_pieces or any((size, n) in kept for n in indexes)

    async def _of_size(
        self, skyfile: Skyfile, size: int, indexes: Sequence[int]
    ) -> list[Data | None]:
        found = await self._queue.read([_unit_key(skyfile, size, n) for n in indexes])
        whole = [min(size, skyfile.size - n * size) for n in indexes]
        return [
            data if data is not None and len(data) == length else None
            for data, length in zip(found, whole, strict=True)
        ]

    async def _cut(self, skyfile: Skyfile, size: int, indexes: Sequence[int]) -> list[Data | None]:
        """Return pieces of blocks that are there, without the rest of the block."""
        numbers = sorted({n * size // skyfile.unit for n in indexes})
        blocks = await self._of_size(skyfile, skyfile.unit, numbers)
        at = dict(zip(numbers, blocks, strict=True))
        found: list[Data | None] = []
        for n in indexes:
            block, start = at[n * size // skyfile.unit], n * size % skyfile.unit
            found.append(None if block is None else bytes(block[start : start + size]))
        return found

    async def _assembled(self, skyfile: Skyfile, index: int) -> Data | None:
        """Return a block if all its pieces are there."""
        start = index * skyfile.unit
        stop = min(skyfile.size, start + skyfile.unit)
        small = skyfile.small_block_size
        pieces = await self._of_size(skyfile, small, range(start // small, -(-stop // small)))
        if any(piece is None for piece in pieces):
            return None
        return b"".join(piece for piece in pieces if piece is not None)

    async def has_pieces(self, skyfile: Skyfile) -> bool:
        """Whether anything of a skyfile was kept in pieces: a mark says so."""
        if skyfile.provisional:
            return False
        identity = skyfile.identity
        if identity not in self._has_pieces:
            found = await self._queue.read([_unit_key(skyfile, _MARK, 0)])
            self._has_pieces.setdefault(identity, found[0] is not None)
        return self._has_pieces.get(identity, False)

    def store_unit(self, skyfile: Skyfile, size: int, index: int, data: Data) -> None:
        """Keep a unit. Never waits."""
        if skyfile.provisional:
            return
        if size < skyfile.unit and not self._has_pieces.get(skyfile.identity):
            self._has_pieces[skyfile.identity] = True
            self._queue.offer(_unit_key(skyfile, _MARK, 0), b"in pieces")
        kept = self._new.get(skyfile.skylink)
        if kept is not None:
            kept.add((size, index))
        self._note_use(skyfile, len(data))
        self._queue.offer(_unit_key(skyfile, size, index), data)


def _description_key(skylink: Skylink, source: str) -> BlockKey:
    return BlockKey(str(skylink), _DESCRIPTION, 0, 0, source)


def _unit_key(skyfile: Skyfile, size: int, index: int) -> BlockKey:
    source = "" if skyfile.verified is Verified.YES else skyfile.portal
    return BlockKey(str(skyfile.skylink), size, skyfile.size, index, source)
