"""Writes all that a portal keeps into a tar archive, beside a portal that may run. Blocks."""

import io
import os
import tarfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

import msgspec

from skymount.errors import StorageError
from skymount.server.backup import archive_format
from skymount.server.storage.disk_errors import disk_errors
from skymount.server.storage.entry_store import peek_entries
from skymount.server.storage.retention.pin_store import peek_all
from skymount.server.storage.skyfile_store import (
    BASE,
    EXTENSION,
    PAYLOAD,
    ROOTS,
    SHARDS,
    SkyfileStore,
)
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.server.storage.zone_file import ZONE_FILE
from skymount.wire.skylink import Skylink

_LINES = 1000  # in one member, which is read whole


@dataclass(slots=True)
class Exported:
    """What was written."""

    skyfiles: int = 0
    bytes: int = 0
    entries: int = 0
    pins: int = 0
    skykeys: int = 0


def export(
    data: Path, file: IO[bytes], *, with_skykeys: bool, progress: Callable[[int], None]
) -> Exported:
    """Write an archive of a data directory; StorageError."""
    done = Exported()
    store = SkyfileStore.beside(data)
    with (
        disk_errors("write the archive"),
        tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        head = archive_format.Head(archive_format.VERSION)
        _add(tar, archive_format.HEAD, msgspec.json.encode(head))
        entries = map(archive_format.EntryLine.of, peek_entries(data))
        done.entries = _add_lines(tar, archive_format.ENTRIES, entries)
        with suppress(FileNotFoundError):
            _add(tar, archive_format.ZONE, (data / ZONE_FILE).read_bytes())
        if with_skykeys:
            keys = [key.text for key in SkykeyStore.open(data).current]
            listed = archive_format.SkykeyList(keys)
            _add(tar, archive_format.SKYKEYS, msgspec.json.encode(listed))
            done.skykeys = len(keys)
        for shard in SHARDS:
            for skylink in store.skylinks(shard):
                _add_skyfile(tar, store, skylink, done)
                progress(done.bytes)
        pins = (
            archive_format.PinLine(str(pin.skylink), pin.reason, pin.pinned)
            for pin in peek_all(data)
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
    tar: tarfile.TarFile, store: SkyfileStore, skylink: Skylink, done: Exported
) -> None:
    """Add a skyfile whole, or not at all if it was removed meanwhile."""
    with ExitStack() as opened:
        files: list[tuple[str, IO[bytes]]] = []
        for name in (BASE, EXTENSION, ROOTS, PAYLOAD):
            try:
                file = opened.enter_context(open(store.directory(skylink) / name, "rb"))
            except FileNotFoundError:
                if name == BASE:
                    return
                continue
            files.append((name, file))
        if store.find(skylink) is None:  # its other files may be gone
            return
        done.skyfiles += 1
        for name, part in files:
            member = tarfile.TarInfo(f"{archive_format.SKYFILES}{skylink}/{name}")
            member.size, member.mode = os.fstat(part.fileno()).st_size, 0o600
            try:
                tar.addfile(member, part)
            except tarfile.ReadError as error:
                raise StorageError(f"skyfile {skylink} was cut off: {error}") from None
            done.bytes += member.size
