"""Open files of `/registry` and `/skydb`."""

import os
import time
from collections.abc import Callable
from typing import Any

from skymount.fs.registry.nodes import EntryFile, NodeTable, ScratchFile
from skymount.fs.registry.poster import EntryPoster
from skymount.fs.registry.write_buffer import FileData, WriteBuffer
from skymount.fs.subtree import OpenFile


class ReadHandle(OpenFile):
    """A file open for reading, with the content that the portal had at open.

    A read at the start sees the latest known content; so does `tail`, which reads behind the end,
    if content was appended. No reader gets parts of two contents.
    """

    def __init__(self, data: FileData, latest: Callable[[], FileData | None]) -> None:
        self._data = data
        self._latest = latest

    async def read(self, offset: int, length: int) -> bytes:
        if offset == 0 or offset >= len(self._data):
            latest = self._latest()
            if latest is None or latest is self._data:
                pass  # mostly, and comparing a long document takes time
            elif offset == 0 or latest.startswith(self._data):
                self._data = latest
        return bytes(self._data[offset : offset + length])


class WriteHandle(OpenFile):
    """A file open for writing. All such handles of one file share its buffer."""

    posts = True

    def __init__(
        self,
        nodes: NodeTable,
        poster: EntryPoster[Any],
        node: EntryFile,
        buffer: WriteBuffer[Any],
        flags: int,
    ) -> None:
        self._nodes = nodes
        self._poster = poster
        self._node = node
        self._appends = bool(flags & os.O_APPEND)
        self._buffer = buffer
        buffer.writers += 1
        node.references += 1

    async def read(self, offset: int, length: int) -> bytes:
        return bytes(self._buffer.data[offset : offset + length])

    def write(self, offset: int, data: bytes) -> int:
        count = self._buffer.write(len(self._buffer.data) if self._appends else offset, data)
        self._buffer.changed_ns = time.time_ns()
        return count

    def resize(self, size: int) -> None:
        self._buffer.resize(size)
        self._buffer.changed_ns = time.time_ns()

    async def flush(self) -> None:
        await self._poster.post(self._node, self._buffer)

    async def fsync(self) -> None:
        await self._poster.post(self._node, self._buffer, at_release=True)

    async def release(self) -> None:
        node, buffer = self._node, self._buffer
        try:
            if buffer.writers == 1 and buffer.error is None:
                await self._poster.post(node, buffer, at_release=True)
        finally:
            node.remove_writer(buffer)
            self._nodes.forget(node.inode, 1)


class ScratchHandle(OpenFile):
    """An open scratch file."""

    def __init__(self, nodes: NodeTable, node: ScratchFile) -> None:
        self._nodes = nodes
        self._node = node
        node.references += 1

    async def read(self, offset: int, length: int) -> bytes:
        return bytes(self._node.data[offset : offset + length])

    def write(self, offset: int, data: bytes) -> int:
        self._node.write(offset, data)
        return len(data)

    async def release(self) -> None:
        self._nodes.forget(self._node.inode, 1)
