"""Owns how a range of a payload is asked for: all files in one stream, else file by file.

``format=concat`` (wire notes 4.2) addresses the payload as a whole. The contract itself knows only
skylink and path, so a portal that does not honour it is asked for each file by its path.
"""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from skymount.content.skyfile import Skyfile
from skymount.errors import BadContentError, RequestRefusedError
from skymount.portal.reading import PortalReader
from skymount.wire.ranges import ByteRange


@asynccontextmanager
async def stream(
    client: PortalReader, skyfile: Skyfile, wanted: ByteRange
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Open a range of the payload; yields an iterator of pieces that add up to it."""
    async with AsyncExitStack() as stack:
        whole = client.stream(skyfile.skylink, "", wanted, skyfile.size)
        try:
            pieces = await stack.enter_async_context(whole)
        except (BadContentError, RequestRefusedError):
            if len(skyfile.metadata.subfiles) < 2:
                raise
            pieces = await stack.enter_async_context(
                aclosing(_file_by_file(client, skyfile, wanted))
            )
        yield pieces


async def _file_by_file(
    client: PortalReader, skyfile: Skyfile, wanted: ByteRange
) -> AsyncGenerator[bytes, None]:
    """Yield the range from one request for each file that has a part in it."""
    position = wanted.start
    files = skyfile.metadata.subfiles.items()
    for path, sub in sorted(files, key=lambda item: item[1].offset):
        if sub.offset + sub.len <= position or sub.len == 0:
            continue
        if sub.offset > position:
            raise BadContentError("the files of the payload leave a gap", url=client.url)
        if not {"", ".", ".."}.isdisjoint(path.split("/")):  # it would address something else
            raise BadContentError(f"no file can be asked for as {path[:80]!r}", url=client.url)
        part = ByteRange(position - sub.offset, min(sub.len, wanted.stop - sub.offset))
        async with client.stream(skyfile.skylink, path, part, sub.len) as pieces:
            async for piece in pieces:
                yield piece
        position += len(part)
        if position == wanted.stop:
            return
    raise BadContentError("the files of the payload end too early", url=client.url)


async def cut(pieces: AsyncIterable[bytes], size: int) -> AsyncGenerator[bytes, None]:
    """Yield the pieces regrouped into blocks of `size` bytes, the last one shorter.

    A block is complete when the next one begins or the pieces end, so that what comes after the
    last one (too many bytes) is known before that is handed out.
    """
    parts: list[bytes | memoryview] = []
    held = 0
    async for piece in pieces:
        rest = memoryview(piece)
        while held + len(rest) > size:
            taken = size - held
            parts.append(rest[:taken])
            yield b"".join(parts)
            parts, held, rest = [], 0, rest[taken:]
        if rest:
            parts.append(rest)
            held += len(rest)
    if held:
        yield b"".join(parts)
