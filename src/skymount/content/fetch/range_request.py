"""Owns how a range of a payload is asked for: all files in one stream, else file by file.

``format=concat`` (wire notes 4.2) addresses the payload as a whole. The contract itself knows only
skylink and path, so a portal that does not honour it is asked for each file by its path, for many
at once.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

import trio

from skymount.content.model.skyfile import Skyfile
from skymount.errors import BadContentError, PortalError, RequestRefusedError
from skymount.portal.client.base import PortalReader
from skymount.portal.http.response import StreamingResponse
from skymount.wire.byte_range import ByteRange

_FILES_AT_ONCE = 16
"""Requests; each brings one file, and a portal answers a browser's worth of them at once."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of one file, and where in the payload it lies."""

    path: str
    size: int
    """Of the whole file."""
    range: ByteRange
    at: int


async def receive(
    client: PortalReader,
    skyfile: Skyfile,
    start: int,
    views: Sequence[memoryview],
    refused: set[PortalReader],
    *,
    speculative: bool = False,
) -> AsyncGenerator[int, None]:
    """Fill the views with the payload from `start` on; yields the number of each that is filled.

    What comes after the last one (too many bytes) is known before that is yielded. `refused` are
    the portals that do not send this payload as one stream; who is found to be one is added.
    It is `speculative` while nobody waits for the bytes.
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
            await _receive_parts(client, skyfile, start, view)
            refused.add(client)
            yield number
            start += len(view)


async def _receive_parts(
    client: PortalReader, skyfile: Skyfile, start: int, view: memoryview
) -> None:
    """Fill a view with the payload from `start` on, each file with a request of its own.

    There may be a hundred thousand: each is looked up when its turn comes.
    """
    parts = _parts(client, skyfile, ByteRange(start, start + len(view)))
    failures: list[PortalError] = []

    async def work(others: int) -> None:
        try:
            for part in parts:
                if others:  # one in each turn of the loop, and none for which there is nothing left
                    nursery.start_soon(work, others - 1)
                    others = 0
                at = part.at - start
                await _receive_part(client, skyfile, part, view[at : at + len(part.range)])
        except PortalError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, _FILES_AT_ONCE - 1)
    if failures:
        raise failures[0]


async def _receive_part(
    client: PortalReader, skyfile: Skyfile, part: _Part, view: memoryview
) -> None:
    async with client.open_range(skyfile.skylink, part.path, part.range, part.size) as body:
        await body.fill(view)


def _parts(client: PortalReader, skyfile: Skyfile, wanted: ByteRange) -> Iterator[_Part]:
    """Yield the parts of files that make up a range, in order; BadContentError if they do not."""
    position = wanted.start
    for path, offset, size in skyfile.listing.extents_from(position):
        if offset > position:
            raise BadContentError("the files of the payload leave a gap", url=client.url)
        if not {"", ".", ".."}.isdisjoint(path.split("/")):  # it would address something else
            raise BadContentError(f"no file can be asked for as {path[:80]!r}", url=client.url)
        part = ByteRange(position - offset, min(size, wanted.stop - offset))
        yield _Part(path, size, part, position)
        position += len(part)
        if position == wanted.stop:
            return
    raise BadContentError("the files of the payload end too early", url=client.url)
