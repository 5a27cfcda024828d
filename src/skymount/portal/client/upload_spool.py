"""Keeps what can be read only once, such as a pipe, so that an upload can be sent again."""

import tempfile
from collections.abc import Iterator
from typing import Protocol

from skymount.wording import readable_size

_IN_MEMORY = 8 << 20  # bytes that are kept in memory; more are in a temporary file without a name
_READ_SIZE = 1 << 20  # bytes


class Readable(Protocol):
    """A binary stream."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end."""


class UploadSpool:
    """A stream that can be read from its start as often as is wanted, by one reader at a time,
    until more than `limit` bytes of it were read.
    """

    def __init__(self, source: Readable, limit: int) -> None:
        self.unrepeatable = ""
        """Why it cannot be read again, or empty if it can."""
        self._source = source
        self._limit = limit
        self.kept = 0
        """Bytes that were read and can be read again."""
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - `close` closes it

    def close(self) -> None:
        self._file.close()

    def read(self) -> Iterator[bytes]:
        """Yield the whole stream: what was kept, then what comes."""
        at = 0
        while at < self.kept:
            self._file.seek(at)
            data = self._file.read(min(_READ_SIZE, self.kept - at))
            at += len(data)
            yield data
        while data := self._source.read(_READ_SIZE):
            self._keep(data)
            yield data

    def _keep(self, data: bytes) -> None:
        if self.unrepeatable:
            return
        if self.kept + len(data) > self._limit:
            self._give_up(f"only its first {readable_size(self._limit)} would be kept")
            return
        try:
            self._file.seek(self.kept)
            self._file.write(data)
        except OSError as error:
            self._give_up(f"what was read could not be kept: {error.strerror}")
            return
        self.kept += len(data)

    def _give_up(self, reason: str) -> None:
        self.unrepeatable = f"it cannot be sent again: {reason}"
        self.kept = 0
        self._file.close()
