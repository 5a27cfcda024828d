"""Receives a range of content as one value."""

from contextlib import aclosing

from skymount.portal.client.base import PortalReader
from skymount.portal.http.response import StreamingResponse
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.skylink import Skylink


async def received(
    client: PortalReader, skylink: Skylink, path: str, wanted: ByteRange, size: int
) -> bytes:
    """Receive a range of content of `size` bytes."""
    async with client.open_range(skylink, path, wanted, size) as body:
        return await rest_of(body, len(wanted))


async def rest_of(body: StreamingResponse, length: int) -> bytes:
    """Receive a body of so many bytes."""
    found = bytearray(length)
    await body.fill(memoryview(found))
    return bytes(found)


async def begin(body: StreamingResponse, length: int) -> None:
    """Receive the first byte of a body of so many, and leave the rest."""
    view = memoryview(bytearray(length))
    async with aclosing(body.fill_each([view[:1], view[1:]])) as told:
        async for _ in told:
            break
