"""Finds many skylinks and reads many ranges of many files at once: what lies close together is one
read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import trio

from skymount.concurrency import run_all
from skymount.content.model.skyfile import Skyfile
from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    SkymountError,
)
from skymount.file_api.session import Extent, Found, Session
from skymount.wire.skylink import Skylink

_RUN = 4 << 20  # bytes of one read at most, and of the pieces of a long range
_GAP = 128 << 10  # bytes between two ranges that are read along
_AT_ONCE = 8  # reads
_NAMES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a wanted range. Positions count from the start of the payload."""

    number: int
    """Which of the wanted ranges it is a part of."""
    skyfile: Skyfile
    start: int
    stop: int
    offset: int
    """In that range."""


Failure = SkymountError | OSError | trio.TooSlowError

_OF_ONE_FILE = (BadContentError, NotFoundError, AccessDeniedError, RequestRefusedError)
"""Failures with which a portal can still send other files."""


async def find_many(
    session: Session, roots: Iterable[Skylink | str]
) -> dict[Skylink | str, Found | Failure]:
    """Return what each skylink or domain leads to, or why that is not known.

    Once nothing came in time for one, no further one is asked for.
    """
    found: dict[Skylink | str, Found | Failure] = {}
    left = iter(dict.fromkeys(roots))
    silence: Failure | None = None

    async def work() -> None:
        nonlocal silence
        for root in left:
            if silence is not None:
                found[root] = silence
                continue
            try:
                found[root] = await session.find(root)
            except (SkymountError, OSError, trio.TooSlowError) as error:
                found[root] = error
                if isinstance(error, PortalTimeoutError | trio.TooSlowError):
                    silence = error

    await run_all(*[work] * _NAMES_AT_ONCE)
    return found


async def read_many(
    session: Session, wanted: Sequence[tuple[Extent, int, int]], max_gap: int | None = None
) -> list[bytes | Failure]:
    """Return the bytes of ranges, (file, offset, length) in it, or why they cannot be had.

    A failure that is not of one file alone ends it: what was not read by then has that failure.
    """
    pieces = sorted(_pieces(wanted), key=lambda piece: (piece.skyfile.identity, piece.start))
    found = _Ranges([length for _, _, length in wanted], Counter(piece.number for piece in pieces))
    runs = _runs(pieces, _GAP if max_gap is None else max_gap)
    again: list[_Piece] = []

    async def work() -> None:
        for run in runs:
            try:
                await _read_run(session, run, found)
            except _OF_ONE_FILE as error:
                _raise_if_general(error)
                again.extend(run)

    try:
        await run_all(*[work] * _AT_ONCE)
        await _read_alone(session, again, found)
    except (SkymountError, OSError, trio.TooSlowError) as error:
        found.fail_rest(error)
    return found.result()


class _Ranges:
    """What was read of the wanted ranges so far."""

    def __init__(self, lengths: Sequence[int], missing: Counter[int]) -> None:
        self._ranges: list[bytearray | Failure] = [bytearray(length) for length in lengths]
        self._missing = missing  # pieces of each range

    def put(self, piece: _Piece, data: memoryview) -> None:
        into = self._ranges[piece.number]
        if isinstance(into, bytearray):
            into[piece.offset : piece.offset + len(data)] = data
            self._missing[piece.number] -= 1

    def fail(self, piece: _Piece, failure: Failure) -> None:
        self._ranges[piece.number] = failure

    def fail_rest(self, failure: Failure) -> None:
        for number, each in enumerate(self._ranges):
            if isinstance(each, bytearray) and self._missing[number]:
                self._ranges[number] = failure

    def result(self) -> list[bytes | Failure]:
        return [bytes(each) if isinstance(each, bytearray) else each for each in self._ranges]


def _pieces(wanted: Sequence[tuple[Extent, int, int]]) -> Iterator[_Piece]:
    for number, (extent, offset, length) in enumerate(wanted):
        start = extent.start + offset
        for at in range(0, length, _RUN):
            stop = start + min(at + _RUN, length)
            yield _Piece(number, extent.skyfile, start + at, stop, at)


def _runs(pieces: Sequence[_Piece], gap: int) -> Iterator[list[_Piece]]:
    run: list[_Piece] = []
    stop = 0
    for piece in pieces:
        is_close = run and run[0].skyfile is piece.skyfile and piece.start <= stop + gap
        if run and not (is_close and piece.stop - run[0].start <= _RUN):
            yield run
            run = []
        stop = max(stop, piece.stop) if run else piece.stop
        run.append(piece)
    if run:
        yield run


async def _read_run(session: Session, run: list[_Piece], found: _Ranges) -> None:
    """Read what belongs together."""
    start, stop = run[0].start, max(piece.stop for piece in run)
    with trio.fail_after(session.timeout):
        data = memoryview(await session.content.reader.read(run[0].skyfile, start, stop - start))
    for piece in run:
        found.put(piece, data[piece.start - start : piece.stop - start])


async def _read_alone(session: Session, pieces: list[_Piece], found: _Ranges) -> None:
    """Read pieces that failed together with others, one by one: only some of them may be bad."""
    for piece in pieces:
        try:
            await _read_run(session, [piece], found)
        except _OF_ONE_FILE as error:
            _raise_if_general(error)
            found.fail(piece, error)


def _raise_if_general(error: PortalError) -> None:
    """Raise what a portal answers to every request: a wrong password."""
    if error.status == HTTPStatus.UNAUTHORIZED:
        raise error
