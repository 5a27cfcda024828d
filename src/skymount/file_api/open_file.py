"""An open file: reads ranges through a session, more at a time while they follow each other."""

from collections.abc import Callable
from functools import partial
from itertools import count

from skymount.content.cache.memory_cache import Data
from skymount.file_api.entry import Entry
from skymount.file_api.options import Settings
from skymount.file_api.session import Extent, Session
from skymount.file_api.sessions import Sessions

_LEAST_WINDOW = 64 << 10
_MOST_WINDOW = 1 << 20
"""Bytes that are taken at once for a reader in order. Content is fetched far further ahead; this
saves waits for the other thread.
"""

_AT_ONCE = 8 << 20
"""Bytes of one wait at most; its time is limited."""

_numbers = count(1)


class OpenFile:
    """A file that is open; not for several threads at once.

    It keeps to the version that was opened and to the settings of that moment, also when its
    session closes in between, or the name moves.
    """

    def __init__(self, sessions: Sessions, settings: Settings, entry: Entry) -> None:
        node = entry.file
        self.entry = entry
        self.size = node.size
        self._extent = Extent(entry.tree.skyfile, node.offset, node.size)
        self._sessions = sessions
        self._settings = settings
        self._number = next(_numbers)
        self._window = _Window(self._fetch, node.size, node.offset)

    def read(self, start: int, stop: int) -> Data:
        """Return the bytes of a range, those that there are."""
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        if stop - start <= _AT_ONCE:
            return self._window.read(start, stop)
        into = bytearray(stop - start)
        self.read_into(start, memoryview(into))
        return memoryview(into)

    def read_into(self, start: int, into: memoryview) -> int:
        """Fill a buffer; return how many bytes came."""
        stop = min(start + len(into), self.size)
        for at in range(start, stop, _AT_ONCE):
            piece = self._window.read(at, min(at + _AT_ONCE, stop))
            into[at - start : at - start + len(piece)] = piece
        return max(0, stop - start)

    def _fetch(self, start: int, stop: int) -> Data:
        read = partial(
            Session.read,
            number=self._number,
            extent=self._extent,
            offset=start,
            length=stop - start,
        )
        return self._sessions.run(self._settings, read, self.entry.location)

    def close(self) -> None:
        self._window.drop()
        number = self._number
        self._sessions.tell(self._settings, lambda session: session.close_file(number))


class _Window:
    """What was taken further than a reader asked for. It doubles while reads are in order."""

    def __init__(self, fetch: Callable[[int, int], Data], size: int, origin: int) -> None:
        self._fetch = fetch
        self._size = size
        self._origin = origin  # of the file in the payload, whose units are multiples of a window
        self.drop()

    def drop(self) -> None:
        self._data = memoryview(b"")
        self._start = 0
        self._next = 0  # where a reader in order goes on
        self._length = _LEAST_WINDOW // 2

    def read(self, start: int, stop: int) -> Data:
        begin = start - self._start
        if 0 <= begin and stop <= self._start + len(self._data):
            found = self._data[begin : stop - self._start]
        elif start != self._next:
            self.drop()
            found = memoryview(self._fetch(start, stop))
        else:
            found = self._read_on(start, stop)
        self._next = stop
        return found

    def _read_on(self, start: int, stop: int) -> memoryview:
        """Read in order; what is left of the window comes first."""
        left = self._data[start - self._start :]
        begin = start + len(left)
        self._length = min(2 * self._length, _MOST_WINDOW)
        end = max(stop, begin + self._length)
        end -= (self._origin + end) % self._length  # a unit's end, so that no window has two units
        end = min(max(stop, end), self._size)
        self._data, self._start = memoryview(self._fetch(begin, end)), begin
        rest = self._data[: stop - begin]
        return memoryview(b"".join((left, rest))) if left else rest
