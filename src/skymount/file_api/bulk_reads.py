"""Reads many ranges of many files at once: what lies close together is one read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import trio

from skymount.concurrency import run_all
from skymount.content.model.skyfile import Skyfile
from skymount.errors import BadContentError, SkymountError
from skymount.file_api.session import Extent, Session

_RUN = 4 << 20  # bytes of one read at most, and of the pieces of a long range
_GAP = 128 << 10  # bytes between two ranges that are read along
_AT_ONCE = 8  # reads


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


async def read_many(
    session: Session, wanted: Sequence[tuple[Extent, int, int]], max_gap: int | None = None
) -> list[bytes | Failure]:
    """Return the bytes of ranges, (file, offset, length) in it, or why they cannot be had."""
    pieces = sorted(_pieces(wanted), key=lambda piece: (piece.skyfile.identity, piece.start))
    found: list[bytearray | Failure] = [bytearray(length) for _, _, length in wanted]
    runs = _runs(pieces, _GAP if max_gap is None else max_gap)

    again: list[_Piece] = []

    async def work() -> None:
        for run in runs:
            if await _read_run(session, run, found) is not None:
                again.extend(run)

    await run_all(*[work] * _AT_ONCE)
    await _read_alone(session, again, found)
    return [bytes(each) if isinstance(each, bytearray) else each for each in found]


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


async def _read_run(
    session: Session, run: list[_Piece], found: list[bytearray | Failure]
) -> Failure | None:
    """Read what belongs together; return why that failed."""
    start, stop = run[0].start, max(piece.stop for piece in run)
    try:
        with trio.fail_after(session.config.timeout):
            data = memoryview(await session.reader.read(run[0].skyfile, start, stop - start))
    except (SkymountError, OSError, trio.TooSlowError) as error:
        return error
    for piece in run:
        into = found[piece.number]
        if isinstance(into, bytearray):
            part = data[piece.start - start : piece.stop - start]
            into[piece.offset : piece.offset + len(part)] = part
    return None


async def _read_alone(
    session: Session, pieces: list[_Piece], found: list[bytearray | Failure]
) -> None:
    """Read pieces that failed together with others, one by one: only some of them may be bad.

    Another failure than bad content is that of all the rest.
    """
    failure: Failure | None = None
    for piece in pieces:
        if failure is None or isinstance(failure, BadContentError):
            failure = await _read_run(session, [piece], found)
        if failure is not None:
            found[piece.number] = failure
