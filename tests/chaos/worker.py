"""A program that uses a mount as it is told: reads lines of JSON, does one thing for each, and
prints how that went. A process of its own, because a file operation that blocks must stop nobody.

It imports nothing of the project and runs with `python -IS`.
"""

import errno
import json
import os
import sys
import time
from typing import Any

PIECE = 128 << 10


class Worker:
    """Does one thing after the other, and times each system call."""

    def __init__(self) -> None:
        self.slowest = ("", 0.0)

    def timed(self, call: Any, *args: Any) -> Any:
        begun = time.monotonic()
        try:
            return call(*args)
        finally:
            taken = time.monotonic() - begun
            if taken > self.slowest[1]:
                self.slowest = (call.__name__, taken)

    def do(self, told: dict[str, Any]) -> dict[str, Any]:
        self.slowest = ("", 0.0)
        begun = time.monotonic()
        found: dict[str, Any] = {}
        try:
            found = getattr(self, told.pop("do"))(**told)
        except OSError as error:
            found = {"error": errno.errorcode.get(error.errno or 0, str(error.errno))}
        return {"begun": begun, "ended": time.monotonic(), "slowest": self.slowest, **found}

    def read(self, path: str, source: str, ranges: list[list[int]]) -> dict[str, Any]:
        """Read ranges of a file and compare them with the source's."""
        file = self.timed(os.open, path, os.O_RDONLY)
        try:
            with open(source, "rb") as expected:
                for offset, length in ranges:
                    for at in range(offset, offset + length, PIECE):
                        size = min(PIECE, offset + length - at)
                        expected.seek(at)
                        if wrong := self._differs(file, at, expected.read(size)):
                            return {"wrong": wrong}
        finally:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            self.timed(os.close, file)
        return {}

    def _differs(self, file: int, at: int, expected: bytes) -> str:
        """Read where these bytes are to be. A read may end early, before what could not be had."""
        while expected:
            got = self.timed(os.pread, file, len(expected), at)
            if not got or got != expected[: len(got)]:
                return f"{len(got)} bytes at {at}"
            at, expected = at + len(got), expected[len(got) :]
        return ""

    def list(self, path: str, names: dict[str, int]) -> dict[str, Any]:
        """List a directory and look at each name in it; the sizes must be those."""
        listed = self.timed(os.listdir, path)
        if sorted(listed) != sorted(names):
            return {"wrong": f"lists {sorted(listed)[:5]}"}
        for name, size in names.items():
            found = self.timed(os.stat, f"{path}/{name}")
            if found.st_size != size:
                return {"wrong": f"{name} has {found.st_size} bytes"}
        return {}

    def names(self, path: str) -> dict[str, Any]:
        """List a directory whose content may vary, and look at its files."""
        listed = self.timed(os.listdir, path)
        for name in listed:
            try:
                self.timed(os.stat, f"{path}/{name}")
            except FileNotFoundError:
                pass
        return {"value": listed}

    def absent(self, path: str) -> dict[str, Any]:
        """Look at what is not there."""
        try:
            self.timed(os.stat, path)
        except FileNotFoundError:
            return {}
        return {"wrong": "is there"}

    def get(self, path: str) -> dict[str, Any]:
        """Read a whole file."""
        file = self.timed(os.open, path, os.O_RDONLY)
        try:
            return {"value": self._whole(file)}
        finally:
            self.timed(os.close, file)

    def _whole(self, file: int) -> str:
        pieces = []
        while piece := self.timed(os.pread, file, PIECE, sum(map(len, pieces))):
            pieces.append(piece)
        return b"".join(pieces).decode("latin-1")

    def put(self, path: str, value: str) -> dict[str, Any]:
        """Replace a file's content."""
        file = self.timed(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        return self._write(file, value.encode("latin-1"), 0)

    def append(self, path: str, value: str) -> dict[str, Any]:
        """Read a file, and write some more behind its end; says what was read."""
        file = self.timed(os.open, path, os.O_RDWR)
        try:
            base = self._whole(file)
        except OSError:
            os.close(file)
            raise
        return {"base": base, **self._write(file, value.encode("latin-1"), len(base))}

    def _write(self, file: int, data: bytes, at: int) -> dict[str, Any]:
        """The result of a write is that of close."""
        try:
            self.timed(os.pwrite, file, data, at)
            self.timed(os.close, file)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "")
            return {"error": name, "attempted": True}
        return {"attempted": True}

    def remove(self, path: str) -> dict[str, Any]:
        self.timed(os.unlink, path)
        return {}


def main() -> None:
    worker = Worker()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(worker.do(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
