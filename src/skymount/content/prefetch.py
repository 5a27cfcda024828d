"""Owns the guess at what is read next: positions of sequential readers. Pure, no IO.

The kernel sends the reads of one reader out of order and several at once, so a position is a
high-water mark, and a reader is recognised by being near one, not by its file handle.
"""

from dataclasses import dataclass, field

_BEHIND = 2 << 20  # bytes that a read may lie behind the mark: the kernel's own reordering
_AHEAD = 4 << 20  # bytes that it may lie beyond: a skip that costs less than starting anew
_READERS = 8  # positions kept for one skyfile
_FIRST_WINDOW = 2 << 20  # bytes
MAX_WINDOW = 32 << 20
"""Bytes that are fetched ahead of one reader at most."""


@dataclass(slots=True)
class _Reader:
    mark: int
    window: int = 0
    ahead: int = 0
    """End of what was asked for already."""


@dataclass(slots=True)
class Readers:
    """The sequential readers of one skyfile."""

    _readers: list[_Reader] = field(default_factory=list)

    def note(self, start: int, stop: int, max_window: int) -> tuple[int, int] | None:
        """Record a read of bytes start to stop; return the bytes to fetch ahead, if any.

        The first read of a place fetches nothing more. From the second on a window is kept ahead,
        which is refilled when half of it is used up, and doubled each time.
        """
        reader = self._find(start)
        if reader is None:
            self._readers.insert(0, _Reader(stop, ahead=stop))
            del self._readers[_READERS:]
            return None
        self._readers.remove(reader)
        self._readers.insert(0, reader)
        reader.mark = max(reader.mark, stop)
        if reader.ahead - reader.mark > reader.window // 2:
            return None
        reader.window = min(max_window, max(_FIRST_WINDOW, 2 * reader.window))
        begin = max(reader.ahead, reader.mark)
        reader.ahead = reader.mark + reader.window
        return (begin, reader.ahead) if begin < reader.ahead else None

    def _find(self, start: int) -> _Reader | None:
        near = [r for r in self._readers if r.mark - _BEHIND <= start <= r.mark + _AHEAD]
        return min(near, key=lambda reader: abs(reader.mark - start), default=None)
