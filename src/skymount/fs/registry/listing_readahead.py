"""What a program will ask for next that goes through the listing of a key's directory. No IO."""

import math
from bisect import bisect_left
from collections.abc import Sequence

AHEAD = 32  # names


class Walk:
    """How far a program has gone through sorted names, and what was fetched ahead of it.

    Times are seconds of one clock.
    """

    def __init__(self, names: Sequence[bytes], ttl: float, *, last: int, skip: int) -> None:
        """`ttl` is how long what was fetched holds, from when it came.

        `last` is the position passed last; `skip` is 1 if the first name is not fetched too.
        """
        self._names = names
        self._ttl = ttl
        self._last = last
        self._skip = skip
        self._ahead = AHEAD
        self._start = self._end = 0  # the positions that were fetched
        self._fetched: dict[bytes, float] = {}  # when each name came

    def has_fetched(self, name: bytes) -> bool:
        return name in self._fetched

    def arrived(self, name: bytes, now: float) -> None:
        """Note that what was fetched is there, or that fetching it failed."""
        self._fetched[name] = now

    def passed(self, name: bytes, now: float) -> Sequence[bytes]:
        """Return the names to fetch as the program comes to this one.

        None unless it comes to one after the other. Half as many when it comes too late to use
        what was fetched, one more when it comes in time.
        """
        at = bisect_left(self._names, name)
        if at == len(self._names) or self._names[at] != name:
            return ()
        is_in_turn = at == self._last + 1 or self._start <= at < self._end
        self._last = at
        if not is_in_turn:
            return ()
        first = at + self._skip
        came = self._fetched.get(name)
        if came is not None and now > came + self._ttl:
            self._ahead //= 2
            self._end = first
        elif came is not None:
            self._ahead = min(self._ahead + 1, AHEAD)
        if not self._start <= first <= self._end:
            self._start = self._end = first
        wanted = self._names[self._end : first + self._ahead]
        self._end += len(wanted)
        self._fetched.update(dict.fromkeys(wanted, math.inf))
        return wanted


class ListingReadahead:
    """One listing: the program that looks its sorted names up, and the one that opens the files."""

    def __init__(self, names: Sequence[bytes], now: float, ttl: float) -> None:
        self.opened_at = self.used_at = now
        """`used_at` is when it was opened, or last had something fetched."""
        self.lookups = Walk(names, ttl, last=-1, skip=0)
        """From the first name on."""
        self.opens = Walk(names, ttl, last=len(names), skip=1)
        """From the second one in a row on."""
