"""Owns the guess at what is read next: where sequential readers are, how fast they go, what to
fetch ahead of them, how they share the memory for it, and what they leave behind. Pure, no IO;
times in seconds, positions and sizes in bytes.

The kernel sends the reads of one reader out of order and several at once, so a position is a
high-water mark, and a reader is recognised by being near one, not by its file handle.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

_CONTIGUOUS = 32 << 10
"""By how much a second read may miss the end of the first one and still continue it."""

_BEHIND = 2 << 20
"""How far behind the mark a reader may be that is known as one: the kernel's own reordering."""

_AHEAD = 4 << 20
"""How far beyond the mark it may be: a skip that costs less than starting anew."""

_MUCH = 128 << 10
"""What the kernel asks for at first for a program that reads 64 KiB or more at a time; for one that
looks at a file's first block it is 16 KiB.
"""

_CURSORS = 8  # positions kept for one skyfile

_FIRST_REQUEST = 256 << 10
_GROWTH = 3
_GROWING = 4
"""The window is at most a `_FIRST_REQUEST` for each of the requests at once, and so many times what
the reader has read, so that what is fetched in vain for one that stops is bounded: `_GROWTH` times,
and on a long way one time for each `_GROWING` of the requests at once.
"""

_LEAST_WINDOW = 4 << 20
_ROUND_TRIPS = 8
"""The window is what the reader reads in so many round trips: then it seldom waits for one."""

_REQUESTS = 32
"""Requests at once for one reader on a way that is long enough to need them; on a short one two."""

_LONG = 0.1
"""Round trip of a way that needs all of them."""

_REQUEST_TIME = 0.02
"""What a request is to bring lasts the reader at least so long: else requests are the main work."""

_FULL_REQUEST = 2 << 20
"""Bytes of a request that takes a connection about as long as the next one is on its way to the
portal, over a long way: with less it idles.
"""

_LARGEST_REQUEST = 8 << 20
MAX_WINDOW = 96 << 20
"""Fetched ahead of one reader at most, and a `_LARGEST_REQUEST` for each of the requests at once:
on a short way more would only leave the processor's cache before its turn.
"""

_LARGEST_GROUP = 8  # blocks

_SHARED = 8
"""Parts of the free memory that one reader may fill ahead; one more stays free."""

_ACTIVE = 2.0  # seconds since its last read for which a reader counts as one that shares the memory

_SPAN = 0.25  # over which a reader's rate is measured, and a few round trips at least


@dataclass(slots=True, eq=False)
class Cursor:
    """A reader's place, and what was asked for ahead of it."""

    mark: int
    """End of what was read."""
    begun: int
    """Where it began to read."""
    taken: int = 0
    """Bytes that it has read."""
    ahead: int = 0
    """End of what was asked for already."""
    sequential: bool = False
    """Whether it read twice in order."""
    goes_on: bool = False
    """Whether it is likely to read on."""
    noted: float = -math.inf
    """When it last read."""
    waited: float = -math.inf
    """When it last had to wait."""
    behind: int = 0
    """End of what it left behind."""
    _measured: tuple[float, int] = (0.0, 0)
    _measuring: tuple[float, int] = (0.0, 0)

    def advance(self, start: int, stop: int, now: float) -> None:
        """Take note of a read of bytes start to stop."""
        if not self.sequential:
            self.sequential = self.goes_on = True
            self._measured = self._measuring = (now, self.begun)
        self.mark = max(self.mark, stop)
        self.noted = now
        self.taken += stop - start

    def left_behind(self, unit: int) -> range:
        """Return the units that it has read to the end and left behind since this was asked last.

        None of one that skips: who knows what it comes back for.
        """
        stop = (self.mark - _BEHIND) // unit
        if stop * unit <= self.behind or self.taken < self.mark - self.begun:
            return range(0)
        first = -(-max(self.behind, self.begun) // unit)
        self.behind = stop * unit
        return range(first, stop)

    def _rate(self, now: float, span: float) -> float | None:
        """Return how fast it reads lately, in bytes a second; None when it has only begun."""
        if not self.sequential:
            return None
        since, position = self._measuring
        if now - since >= span:
            self._measured, self._measuring = self._measuring, (now, self.mark)
        since, position = self._measured
        return (self.mark - position) / (now - since) if now - since >= span / 2 else None

    def requests(
        self, unit: int, share: int, round_trip: float, now: float
    ) -> Iterator[tuple[int, int]]:
        """Yield the ranges to fetch ahead now, whole units each; none until there is room for one.

        Those that are taken are taken for asked for; `share` is the memory that they may fill.
        Who had to wait lately was held up by the way: how fast that was is no bound.
        """
        span = max(_SPAN, 2 * round_trip)
        rate = self._rate(now, span)
        at_once = requests_at_once(round_trip)
        bound = min(share, MAX_WINDOW, at_once * _LARGEST_REQUEST, self._shown(at_once))
        if rate is not None and now - self.waited > span:
            bound = min(bound, max(_LEAST_WINDOW, int(_ROUND_TRIPS * round_trip * rate)))
        lasting = min(int((rate or 0.0) * _REQUEST_TIME), min(share, MAX_WINDOW) // at_once)
        filling = min(_FULL_REQUEST, 2 * bound // at_once)  # half as many that idle less
        most = min(_LARGEST_REQUEST, share // 2) // unit
        size = max(1, min(-(-max(bound // at_once, lasting, filling) // unit), most)) * unit
        window = min(max(bound, 2 * size), share)
        self.ahead = max(self.ahead, -(-self.mark // unit) * unit)
        while self.ahead + size <= self.mark + window:
            yield self.ahead, self.ahead + size
            self.ahead += size

    def _shown(self, at_once: int) -> int:
        """Return the largest window that the reader has given reason for."""
        shown = max(_GROWTH, at_once // _GROWING) * (self.mark - self.begun)
        return shown + at_once * _FIRST_REQUEST if self.sequential else shown


def requests_at_once(round_trip: float) -> int:
    """Return how many requests at once one reader needs."""
    return min(_REQUESTS, 2 + int(_REQUESTS * round_trip / _LONG))


@dataclass(slots=True)
class Cursors:
    """The readers of one skyfile."""

    _cursors: list[Cursor] = field(default_factory=list)

    def __iter__(self) -> Iterator[Cursor]:
        return iter(self._cursors)

    def note(self, start: int, stop: int, now: float, *, at_start: bool = False) -> Cursor:
        """Record a read of bytes start to stop, and return the reader that it is of.

        One that begins `at_start` of a large file, and with much of it, is taken to go on: a look
        at what kind of file it is takes less.
        """
        cursors = self._cursors
        if cursors and _continues(cursors[0], start):
            cursor = cursors[0]
        else:
            near = [cursor for cursor in cursors if _continues(cursor, start)]
            if not near:
                cursors.insert(0, cursor := Cursor(stop, start, stop - start, noted=now))
                del cursors[_CURSORS:]
                cursor.goes_on = at_start and stop - start >= _MUCH
                return cursor
            cursor = min(near, key=lambda one: abs(one.mark - start))
            cursors.remove(cursor)
            cursors.insert(0, cursor)
        cursor.advance(start, stop, now)
        return cursor

    def is_ahead(self, start: int, now: float) -> bool:
        """Whether what begins there was asked for ahead of a reader that is about to read it."""
        return any(
            cursor.mark <= start < cursor.ahead and cursor.noted >= now - _ACTIVE
            for cursor in self._cursors
        )


class Shares:
    """What the readers of all skyfiles hold together: the unit that each reads, and what it has
    asked for ahead and not read yet. Were the former not counted, one would push out the other
    where few fit, and both be fetched again and again.
    """

    def __init__(self, room: int) -> None:
        """`room` are the bytes of memory that they may fill."""
        self._room = room
        self._filled = 0
        self._readers: dict[Cursor, tuple[int, float]] = {}
        """What each fills, and when it read last; the one that read last is the last."""

    def take_out(self, cursor: Cursor, now: float) -> int:
        """Return what a reader may fill, until it is put back: most of what the others leave. The
        unit that it reads is part of that.

        So one alone has nearly all, many have about the same, and who reads slowly leaves its part
        to others. A part stays free for who begins.
        """
        self._forget(cursor)
        while self._readers:
            oldest = next(iter(self._readers))
            if self._readers[oldest][1] >= now - _ACTIVE:
                break
            self._forget(oldest)
        return max(0, self._room - self._filled) * _SHARED // (_SHARED + 1)

    def put_back(self, cursor: Cursor, unit: int, now: float) -> None:
        """Count what a reader fills."""
        filled = max(cursor.ahead, -(-cursor.mark // unit) * unit) - cursor.mark // unit * unit
        self._filled += filled
        self._readers[cursor] = filled, now

    def forget(self, cursors: Cursors) -> None:
        """Count readers no more: they have closed what they read."""
        for cursor in cursors:
            self._forget(cursor)

    def _forget(self, cursor: Cursor) -> None:
        self._filled -= self._readers.pop(cursor, (0, 0.0))[0]


def _continues(cursor: Cursor, start: int) -> bool:
    """Whether a read at `start` is the next one of a reader."""
    if cursor.sequential:
        return cursor.mark - _BEHIND <= start <= cursor.mark + _AHEAD
    return cursor.mark <= start <= cursor.mark + _CONTIGUOUS


@dataclass(slots=True)
class Neighbours:
    """Small files that are read in another order than they lie in: where many are read, all are.

    Blocks are counted in groups, whose size doubles with each group that is fetched.
    """

    group: int = 1
    """Blocks in a group."""
    _missed: dict[tuple[int, int], int] = field(default_factory=dict)

    def missed(self, block: int) -> tuple[int, int] | None:
        """Take note of a small file that had to be fetched; return blocks to fetch whole, if any.

        More of them than the group has blocks make it worth that.
        """
        key = (self.group, block // self.group)
        self._missed[key] = count = self._missed.get(key, 0) + 1
        if count <= self.group:
            return None
        self._missed.clear()
        first, stop = key[1] * self.group, (key[1] + 1) * self.group
        self.group = min(2 * self.group, _LARGEST_GROUP)
        return first, stop
