"""Read-ahead policy: which readers are sequential, and what to fetch ahead of each. No IO.

Times are in seconds, positions and sizes in bytes. The kernel sends the reads of one reader out of
order and several at once. So a reader is recognised by where it reads, not by its file handle, and
its position is a high-water mark.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReadaheadConfig:
    """How sequential readers are recognised, and how much is fetched ahead of them."""

    growth: int = 8
    """Bytes by which the window grows for each byte read while the reader has to wait."""
    growth_time: float = 0.5
    """Time for which a reader counts as waiting after it had to wait."""
    max_window: int = 96 << 20
    """Bytes fetched ahead of one reader."""

    max_requests: int = 32
    """Parallel requests for one reader over a long distance; over a short one there are two."""
    long_round_trip: float = 0.1  # from which on `max_requests` are made
    default_round_trip: float = 0.02  # until one was measured
    first_request: int = 256 << 10  # bytes by which each of them enlarges the first window
    full_request: int = 2 << 20
    """Bytes that keep a connection over a long distance busy until the next request arrives."""
    max_request: int = 8 << 20
    """Bytes of one request. More would leave the processor's cache before they are read."""

    max_gap: int = 32 << 10  # from the end of a first read to a second one that continues it
    max_reorder: int = 2 << 20  # from a sequential reader's position back to its next read
    max_skip: int = 4 << 20  # and forward
    first_read: int = 128 << 10
    """Bytes of a first read, at the start of a large file, that counts as sequential. The kernel
    asks for so much for a program that reads 64 KiB or more at a time, and for 16 KiB otherwise.
    """
    large_file: int = 8 << 20
    small_file: int = 1 << 20  # and less: fetched whole when it is first read
    max_group: int = 8  # blocks of neighbouring small files that are fetched together
    max_streams: int = 8  # readers remembered for each skyfile

    idle: float = 2.0
    """Time since its last read after which a reader no longer shares the memory."""
    linger: float = 1.0
    """Time for which a fetch ahead outlives the last close: directories are read file by file."""
    max_demanded: int = 24  # fetches at once for content that somebody waits for
    max_speculative: int = 32  # fetches at once for content that may be read next
    disk_room: int = 8 << 20
    """Bytes that may be read from disk at once while the memory cache has no room."""
    hedge_room: int = 8 << 20
    """Bytes that may be asked of a second portal at once while the memory cache has no room."""
    patience: float = 5.0
    """Time after which a demanded fetch that nobody waits for any more can be cancelled."""

    def requests(self, round_trip: float) -> int:
        return min(
            self.max_requests, 2 + int(self.max_requests * round_trip / self.long_round_trip)
        )


@dataclass(slots=True, eq=False)
class Stream:
    """One reader: where it reads, and what was requested ahead of it."""

    config: ReadaheadConfig
    begun: int  # where it began to read
    mark: int  # end of what it has read
    last_read: float
    read: int = 0  # bytes
    ahead: int = 0  # end of what was requested
    window: int = 0
    """Bytes that may be fetched ahead, by what it has read so far."""
    sequential: bool = False  # it has read twice in order
    last_wait: float = -math.inf
    passed: int = 0  # end of what `passed_units` has returned

    def __post_init__(self) -> None:
        self.read = self.mark - self.begun

    def advance(self, start: int, stop: int, now: float) -> None:
        config = self.config
        if not self.window:
            self.window = config.growth * self.read
        self.sequential = True
        if now - self.last_wait <= config.growth_time:
            grown = self.window + config.growth * max(0, stop - self.mark)
            self.window = min(grown, config.max_window)
        self.mark = max(self.mark, stop)
        self.last_read = now
        self.read += stop - start

    def continues(self, start: int) -> bool:
        """Whether a read that begins at `start` is the next one of this reader."""
        if self.sequential:
            return self.mark - self.config.max_reorder <= start <= self.mark + self.config.max_skip
        return self.mark <= start <= self.mark + self.config.max_gap

    def passed_units(self, unit: int) -> range:
        """Return the units that the reader has passed since the last call; none if it skips, as it
        may come back.
        """
        stop = (self.mark - self.config.max_reorder) // unit
        if stop * unit <= self.passed or self.read < self.mark - self.begun:
            return range(0)
        first = -(-max(self.passed, self.begun) // unit)
        self.passed = stop * unit
        return range(first, stop)

    def requests(
        self, unit: int, share: int, round_trip: float | None
    ) -> Iterator[tuple[int, int]]:
        """Yield the ranges to request now, in whole units; they count as requested. `share` is the
        memory that they may fill.
        """
        if not self.window:
            return
        config = self.config
        parallel = config.requests(round_trip or config.default_round_trip)
        window = self.window + (parallel * config.first_request if self.sequential else 0)
        window = min(window, share, config.max_window, parallel * config.max_request)
        wanted = max(window // parallel, min(config.full_request, 2 * window // parallel))
        most = min(config.max_request, share // 2) // unit
        size = max(1, min(-(-wanted // unit), most)) * unit
        window = min(max(window, 2 * size), share)
        self.ahead = max(self.ahead, -(-self.mark // unit) * unit)
        while self.ahead + size <= self.mark + window:
            yield self.ahead, self.ahead + size
            self.ahead += size


@dataclass(slots=True)
class Streams:
    """The readers of one skyfile, the last one that read first."""

    config: ReadaheadConfig
    _streams: list[Stream] = field(default_factory=list)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams)

    def note(
        self, start: int, stop: int, now: float, *, waits: bool = False, at_start: bool = False
    ) -> Stream:
        """Record a read and return its reader. `waits`: the content is not in memory. `at_start`:
        of a large file, so that a long first read counts as sequential.
        """
        config, streams = self.config, self._streams
        stream = self._find(start)
        if stream is not None:
            if waits:
                stream.last_wait = now
            stream.advance(start, stop, now)
            return stream
        stream = Stream(config, start, stop, now, last_wait=now if waits else -math.inf)
        if at_start and stop - start >= config.first_read:
            stream.window = min(config.growth * (stop - start), config.max_window)
        streams.insert(0, stream)
        del streams[config.max_streams :]
        return stream

    def _find(self, start: int) -> Stream | None:
        streams = self._streams
        if streams and streams[0].continues(start):
            return streams[0]
        near = [stream for stream in streams if stream.continues(start)]
        if not near:
            return None
        stream = min(near, key=lambda each: abs(each.mark - start))
        streams.remove(stream)
        streams.insert(0, stream)
        return stream

    def is_ahead(self, start: int, now: float) -> bool:
        """Whether a position was requested ahead of a reader that is about to read it."""
        return any(
            each.mark <= start < each.ahead and each.last_read >= now - self.config.idle
            for each in self._streams
        )


class MemoryShares:
    """Divides the memory for read-ahead among the readers of all skyfiles.

    Counted are the unit that a reader reads and what was requested ahead of it. Otherwise, where
    few units fit, readers would evict each other's units and fetch them again.
    """

    _PARTS = 9  # of the free memory; a reader may fill all but one, which is left for new readers

    def __init__(self, size: int, idle: float) -> None:
        """`size` is the memory in bytes; a reader counts until `idle` seconds after its read."""
        self._size = size
        self._idle = idle
        self._filled = 0
        self._readers: dict[Stream, tuple[int, float]] = {}

    def take(self, stream: Stream, now: float) -> int:
        """Return the bytes that a reader may fill, the unit that it reads included, and do not
        count it until it is put back. A lone reader gets 8/9 of the memory, many get about the
        same.
        """
        self._forget(stream)
        while self._readers:
            oldest = next(iter(self._readers))
            if self._readers[oldest][1] >= now - self._idle:
                break
            self._forget(oldest)
        return max(0, self._size - self._filled) * (self._PARTS - 1) // self._PARTS

    def put_back(self, stream: Stream, unit: int, now: float) -> None:
        end = max(stream.ahead, -(-stream.mark // unit) * unit)
        filled = end - stream.mark // unit * unit
        self._filled += filled
        self._readers[stream] = filled, now

    def forget(self, streams: Streams) -> None:
        for stream in streams:
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self._filled -= self._readers.pop(stream, (0, 0.0))[0]


@dataclass(slots=True)
class SmallFileGroups:
    """Finds stretches of small files that are read in another order than they lie in.

    Blocks are counted in groups. The groups double in size with each that is fetched.
    """

    max_group: int
    group: int = 1
    """Blocks in a group."""
    _missed: dict[tuple[int, int], int] = field(default_factory=dict)

    def missed(self, block: int) -> tuple[int, int] | None:
        """Record a small file that was not in memory. Return its group of blocks, to be fetched
        whole, once the misses in the group outnumber its blocks.
        """
        key = (self.group, block // self.group)
        self._missed[key] = count = self._missed.get(key, 0) + 1
        if count <= self.group:
            return None
        self._missed.clear()
        first, stop = key[1] * self.group, (key[1] + 1) * self.group
        self.group = min(2 * self.group, self.max_group)
        return first, stop
