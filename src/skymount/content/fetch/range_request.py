"""Requests a range of a payload: all files in one stream, else file by file.

``format=concat`` (docs/wire.md 4.2) addresses the payload as a whole. The contract has only skylink
and path, so a portal without that format is asked for each file by its path.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

from skymount.concurrency import run_all
from skymount.content.model.skyfile import Skyfile
from skymount.errors import BadContentError, RequestRefusedError
from skymount.portal.client.base import PortalReader
from skymount.portal.http.response import StreamingResponse
from skymount.wire.http.byte_range import ByteRange

_PARALLEL_FILES = 16


class _Part(NamedTuple):
    """A range of one file."""

    path: str
    size: int  # of the whole file
    range: ByteRange
    position: int  # of the range in the payload


async def receive(
    client: PortalReader,
    skyfile: Skyfile,
    start: int,
    views: Sequence[memoryview],
    refused: set[PortalReader],
    *,
    speculative: Callable[[], bool] | None = None,
) -> AsyncGenerator[int, None]:
    """Fill views with the payload from `start` on; yield the number of each when it is filled.

    The last one is yielded once it is known that no more bytes follow. `refused` holds the portals
    that do not send this payload as one stream, and is added to. `speculative` returns whether
    nobody waits for the bytes yet.
    """
    wanted = ByteRange(start, start + sum(map(len, views)))
    async with AsyncExitStack() as stack:
        body: StreamingResponse | None = None
        if client not in refused:
            whole = client.open_range(
                skyfile.skylink, "", wanted, skyfile.size, speculative=speculative
            )
            try:
                body = await stack.enter_async_context(whole)
            except (BadContentError, RequestRefusedError):
                if skyfile.listing.records < 2:
                    raise
        if body is not None:
            async with aclosing(body.fill_each(views)) as filled:
                async for number in filled:
                    yield number
            return
        for number, view in enumerate(views):
            await _receive_files(client, skyfile, start, view, speculative)
            refused.add(client)
            yield number
            start += len(view)


async def _receive_files(
    client: PortalReader,
    skyfile: Skyfile,
    start: int,
    view: memoryview,
    speculative: Callable[[], bool] | None,
) -> None:
    """Fill a view with a request for each file, which is looked up when its turn comes."""
    parts = _parts(client, skyfile, ByteRange(start, start + len(view)))

    async def work() -> None:
        for path, size, part, position in parts:
            at = position - start
            opened = client.open_range(skyfile.skylink, path, part, size, speculative=speculative)
            async with opened as body:
                await body.fill(view[at : at + len(part)])

    await run_all(*[work] * _PARALLEL_FILES)


def _parts(client: PortalReader, skyfile: Skyfile, wanted: ByteRange) -> Iterator[_Part]:
    """Yield the parts of files that make up a range, in order; BadContentError if they do not."""
    position = wanted.start
    for path, offset, size in skyfile.listing.extents_from(position):
        if offset > position:
            raise BadContentError("the files of the payload leave a gap", url=client.url)
        if not {"", ".", ".."}.isdisjoint(path.split("/")):  # would address something else
            raise BadContentError(f"no file can be asked for as {path[:80]!r}", url=client.url)
        part = ByteRange(position - offset, min(size, wanted.stop - offset))
        yield _Part(path, size, part, position)
        position += len(part)
        if position == wanted.stop:
            return
    raise BadContentError("the files of the payload end too early", url=client.url)
