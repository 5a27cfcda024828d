"""What a program will ask for next that goes through the listing of a key's directory. No IO."""

from bisect import bisect_left
from collections.abc import Sequence

AHEAD = 32  # names


class _Walk:
    """How far a program has gone through sorted names, and what was fetched ahead of it."""

    def __init__(self, names: Sequence[bytes], ttl: float, *, last: int, skip: int) -> None:
        """`last` is the position passed last; `skip` is 1 if the first name is not fetched too."""
        self._names = names
        self._ttl = ttl
        self._last = last
        self._skip = skip
        self._start = self._end = 0  # the positions that were fetched
        self._fetched: dict[bytes, float] = {}  # when each name was, by trio's clock

    def fetched_at(self, name: bytes) -> float | None:
        return self._fetched.get(name)

    def passed(self, name: bytes, now: float) -> Sequence[bytes]:
        """Return the names to fetch as the program comes to this one.

        None unless it comes to one after the other, and in time to use what is fetched.
        """
        at = bisect_left(self._names, name)
        if at == len(self._names) or self._names[at] != name:
            return ()
        is_in_turn = at == self._last + 1 or self._start <= at < self._end
        self._last = at
        if not is_in_turn:
            return ()
        if now > self._fetched.get(name, now) + self._ttl:
            self._names = ()
            return ()
        first = at + self._skip
        if not self._start <= first <= self._end:
            self._start = self._end = first
        wanted = self._names[self._end : first + AHEAD]
        self._end += len(wanted)
        self._fetched.update(dict.fromkeys(wanted, now))
        return wanted


class ListingReadahead:
    """One listing. The names are sorted; times are seconds of one clock."""

    def __init__(self, names: Sequence[bytes], now: float, ttl: float) -> None:
        """`ttl` is how long what was fetched holds."""
        self.used_at = now
        """When it was opened, or last had something fetched."""
        self._opened_at = now
        self._ttl = ttl
        self._lookups = _Walk(names, ttl, last=-1, skip=0)
        self._opens = _Walk(names, ttl, last=len(names), skip=1)

    def looked_up(self, name: bytes, now: float) -> Sequence[bytes]:
        """Return the names that will be looked up next; from the first name on."""
        return self._passed(self._lookups, name, now)

    def opened(self, name: bytes, now: float) -> Sequence[bytes]:
        """Return the names that will be opened next; from the second one in a row on."""
        return self._passed(self._opens, name, now)

    def _passed(self, walk: _Walk, name: bytes, now: float) -> Sequence[bytes]:
        wanted = walk.passed(name, now)
        if wanted:
            self.used_at = now
        return wanted

    def max_age(self, name: bytes, now: float) -> float:
        """Return how old the content may be that an open sees; 0 if it was not fetched for that.

        It is of the time since the listing was opened.
        """
        fetched_at = self._opens.fetched_at(name)
        is_fresh = fetched_at is not None and now <= fetched_at + self._ttl
        return self.since_opened(now) if is_fresh else 0.0

    def since_opened(self, now: float) -> float:
        return min(self._ttl, now - self._opened_at)
