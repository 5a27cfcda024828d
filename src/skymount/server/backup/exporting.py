"""Writes all that a portal keeps into a tar archive, beside a portal that may run. Blocks."""

import io
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, cast

import msgspec

from skymount.errors import StorageError
from skymount.server.backup import archive_format
from skymount.server.storage.disk_errors import StorageUnavailableError, disk_errors
from skymount.server.storage.local.skyfile_files import BASE, EXTENSION, PAYLOAD, ROOTS
from skymount.server.storage.reading.storage_reader import StorageReader
from skymount.server.storage.stored_range import Announced, InMemory, OpenBytes, StoredRange
from skymount.server.storage.stored_skyfile import StoredSkyfile
from skymount.wire.base_sector import spill_sizes
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink
from skymount.wording import readable_size

_LINES = 1000  # in one member, which is read whole
_READ_SIZE = 1 << 20  # bytes that are read at once
_PROBLEMS = 1000  # of which are told


@dataclass(slots=True)
class Exported:
    """What was written."""

    skyfiles: int = 0
    bytes: int = 0
    entries: int = 0
    pins: int = 0
    skykeys: int = 0
    problems: list[str] = field(default_factory=list)

    def add_problem(self, problem: str) -> None:
        if len(self.problems) < _PROBLEMS:
            self.problems.append(problem)


def export(
    reader: StorageReader, file: IO[bytes], *, with_skykeys: bool, progress: Callable[[int], None]
) -> Exported:
    """Write an archive; StorageError, or BrokenPipeError if nobody reads it."""
    done = Exported()
    with (
        disk_errors("write the archive"),
        tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        head = archive_format.Head(archive_format.VERSION)
        _add(tar, archive_format.HEAD, msgspec.json.encode(head))
        entries = map(archive_format.EntryLine.of, reader.entries())
        done.entries = _add_lines(tar, archive_format.ENTRIES, entries)
        if names := reader.names():
            _add(tar, archive_format.ZONE, names)
        if with_skykeys:
            keys = [key.text for key in reader.skykeys()]
            listed = archive_format.SkykeyList(keys)
            _add(tar, archive_format.SKYKEYS, msgspec.json.encode(listed))
            done.skykeys = len(keys)
        for skylink in reader.skylinks():
            _add_skyfile(tar, reader, skylink, done)
            progress(done.bytes)
        pins = (
            archive_format.PinLine(str(pin.skylink), pin.reason, pin.pinned)
            for pin in reader.all_pins()
        )
        done.pins = _add_lines(tar, archive_format.PINS, pins)
        _add(tar, archive_format.END, b"{}")
    return done


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    tar.addfile(member, io.BytesIO(content))


def _add_lines(tar: tarfile.TarFile, folder: str, lines: Iterable[msgspec.Struct]) -> int:
    """Add members of one JSON value in a line; return the number of lines."""
    remaining, count, members = iter(lines), 0, 0
    while batch := list(islice(remaining, _LINES)):
        members, count = members + 1, count + len(batch)
        _add(tar, f"{folder}{members:06}.jsonl", msgspec.json.Encoder().encode_lines(batch))
    return count


def _add_skyfile(
    tar: tarfile.TarFile, reader: StorageReader, skylink: Skylink, done: Exported
) -> None:
    """Add a skyfile, but not one that was removed meanwhile or is not understood."""
    with ExitStack() as opened:
        try:
            skyfile = reader.find(skylink)
            if skyfile is None:
                return
            parts = [
                (name, _Part(opened.enter_context(closing(stored.source.open())), stored.length))
                for name, stored in _parts(skyfile)
            ]
        except StorageUnavailableError:
            raise
        except (StorageError, FileNotFoundError) as error:
            if reader.has(skylink):
                done.add_problem(f"{skylink}: {error}")
            return
        done.skyfiles += 1
        for name, part in parts:
            member = tarfile.TarInfo(f"{archive_format.SKYFILES}{skylink}/{name}")
            member.size, member.mode = part.size, 0o600
            tar.addfile(member, cast(IO[bytes], io.BufferedReader(part, _READ_SIZE)))
            done.bytes += part.size
            if part.problem:
                done.add_problem(f"{skylink}: {part.problem}")


def _parts(skyfile: StoredSkyfile) -> Iterator[tuple[str, StoredRange]]:
    """Yield the parts of a skyfile, in the order that an import needs."""
    yield BASE, skyfile.base
    parts, layout = skyfile.parts, skyfile.layout
    if skyfile.is_encrypted:
        if roots := parts.encrypted_roots():
            yield ROOTS, StoredRange(InMemory(ROOTS, roots), 0, len(roots))
            size = len(roots) // ROOT_SIZE * SECTOR_SIZE
            yield PAYLOAD, StoredRange(parts.payload, 0, size)
    elif not layout.is_inline:
        if layout.is_extended:
            spilled = spill_sizes(layout.body_size)[1:]
            size = sum(-(-level // SECTOR_SIZE) for level in spilled) * SECTOR_SIZE
            yield EXTENSION, StoredRange(parts.extension, 0, size)
        yield PAYLOAD, StoredRange(parts.payload, 0, layout.filesize)


class _Part(io.RawIOBase):
    """A part as a file that is read once, from its start.

    What cannot be read is zeros, from there to its end, so that the archive goes on behind it.
    An import refuses the skyfile for that.
    """

    def __init__(self, part: OpenBytes, size: int) -> None:
        self._part = part
        self._offset = 0
        self.size = size
        self.problem = ""
        if isinstance(part, Announced):
            part.announce(0, size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self.size - self._offset)
        data = self._read(wanted) if wanted else b""
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def _read(self, wanted: int) -> bytes:
        if not self.problem:
            try:
                if data := self._part.read(self._offset, wanted):
                    return data
                sizes = map(readable_size, (self._offset, self.size))
                self.problem = f"cut off after {' of '.join(sizes)}"
            except StorageUnavailableError:
                raise
            except (StorageError, OSError) as error:
                self.problem = str(error)
        return bytes(wanted)
