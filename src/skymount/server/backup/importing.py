"""Brings what is in an archive into shared storage, or a data directory that no portal uses.

The archive is not trusted: each skyfile is compared with its skylink, each entry with its signature
and with the entry that is there. What is there already is passed over, so an import that was ended
is begun again.
"""

import re
import tarfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import IO, cast

import msgspec
import trio

from skymount.concurrency import run_all
from skymount.errors import MalformedError, RevisionError, StorageError
from skymount.server.backup import archive_format
from skymount.server.config import PortalConfig
from skymount.server.storage import zone_file
from skymount.server.storage.cluster.choice import open_storage
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.disk_errors import StorageUnavailableError
from skymount.server.storage.local.skyfile_files import BASE, EXTENSION, PAYLOAD, ROOTS
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.retention.pin_store import check_reason
from skymount.server.storage.stored_range import InMemory, StoredBytes, StoredRange, read_range
from skymount.server.storage.stored_skyfile import BuiltSkyfile, StoredSkyfile, list_sectors
from skymount.wire import merkle
from skymount.wire.base_sector import LAYOUT_SIZE, Layout
from skymount.wire.skykey import Skykey
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_PART = re.compile(
    rf"{archive_format.SKYFILES}([A-Za-z0-9_-]{{46}})/({BASE}|{EXTENSION}|{ROOTS}|{PAYLOAD})"
)
_TEXT_LIMIT = 16 << 20  # bytes of a member that is not content
_HEADER_LIMIT = 1 << 20  # bytes of one header, with what extends it
_EXTENSION_LIMIT = 256 << 20  # bytes: the metadata of an upload has 128 MiB
_PROBLEMS = 1000  # of which are told


@dataclass(slots=True)
class Imported:
    """What was brought."""

    skyfiles: int = 0
    entries: int = 0
    pins: int = 0
    names: int = 0
    skykeys: int = 0
    present: int = 0
    """Skyfiles and entries that were there already, entries also in a newer revision."""
    problems: list[str] = field(default_factory=list)

    def refuse(self, what: str) -> None:
        """Note what was not brought."""
        if len(self.problems) < _PROBLEMS:
            self.problems.append(what)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a skyfile without its payload."""

    base: StoredBytes
    extension: StoredBytes
    payload: StoredBytes
    roots: bytes

    def encrypted_payload(self, fanout: StoredRange, layout: Layout) -> StoredBytes:
        return self.payload

    def encrypted_roots(self) -> bytes:
        return self.roots


def import_archive(
    config: PortalConfig, file: IO[bytes], *, with_skykeys: bool, progress: Callable[[int], None]
) -> Imported:
    """Bring an archive; StorageError if the directory is in use, MalformedError if it is none."""
    return trio.run(_import, config, file, with_skykeys, progress)


async def _import(
    config: PortalConfig, file: IO[bytes], with_skykeys: bool, progress: Callable[[int], None]
) -> Imported:
    done = Imported()
    metered = _Metered(file)
    async with open_storage(config, Tables.MAKE) as storage:
        try:
            with tarfile.open(fileobj=cast(IO[bytes], metered), mode="r|") as tar:
                await _Import(storage, tar, metered, done, with_skykeys, progress).run()
        except MalformedError:
            raise
        except (tarfile.TarError, ValueError, RecursionError) as error:  # of tarfile
            raise MalformedError(f"the archive is damaged: {error}") from None
        finally:
            await storage.catalogue.repair()
    return done


class _Metered:
    """An archive that is read up to a limit. tarfile has none for headers, takes the end of a file
    for the end of the archive, and reads on there as far as a header says.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.room = _HEADER_LIMIT

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.room -= len(data)
        if not data:
            raise MalformedError("the archive is cut off")
        if self.room < 0:
            raise MalformedError("the archive is damaged: it has a header that is too long")
        return data


class _Import:
    def __init__(
        self,
        storage: PortalStorage,
        tar: tarfile.TarFile,
        metered: _Metered,
        done: Imported,
        with_skykeys: bool,
        progress: Callable[[int], None],
    ) -> None:
        self._storage, self._tar, self._done = storage, tar, done
        self._metered, self._with_skykeys, self._progress = metered, with_skykeys, progress
        self._skyfile: tuple[Skylink, dict[str, bytes]] | None = None
        self._read = 0
        self._has_ended = False

    async def run(self) -> None:
        is_first = True
        while (member := self._tar.next()) is not None:
            if is_first and member.name != archive_format.HEAD:
                raise MalformedError("this is no archive of a portal")
            is_first = False
            if not member.isreg() or member.issparse():
                raise MalformedError(f"the archive has {member.name[:100]!r}, which is no file")
            self._metered.room = _HEADER_LIMIT + member.size
            await self._take(member)
            self._read += member.size
            self._progress(self._read)
        if is_first:
            raise MalformedError("the archive is empty")
        self._finish_skyfile()
        if not self._has_ended:
            raise MalformedError("the archive is cut off")

    async def _take(self, member: tarfile.TarInfo) -> None:
        part = _PART.fullmatch(member.name)
        if part is not None:
            try:
                skylink = Skylink(part[1])
            except MalformedError as error:
                self._done.refuse(str(error))
            else:
                self._take_part(skylink, part[2], member)
            return
        try:
            if member.name == archive_format.HEAD:
                head = msgspec.json.decode(self._content(member), type=archive_format.Head)
                if head.portal_archive != archive_format.VERSION:
                    raise MalformedError(f"the archive is of version {head.portal_archive}")
            elif member.name.startswith(archive_format.ENTRIES):
                await self._take_entries(self._content(member))
            elif member.name.startswith(archive_format.PINS):
                self._finish_skyfile()
                await self._take_pins(self._content(member))
            elif member.name == archive_format.END:
                self._has_ended = True
            elif member.name == archive_format.ZONE:
                self._take_names(zone_file.Zone.parse(self._content(member)))
            elif member.name == archive_format.SKYKEYS and self._with_skykeys:
                await self._take_skykeys(self._content(member))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MalformedError(f"the archive is damaged: {member.name}: {error}") from None

    def _content(self, member: tarfile.TarInfo, limit: int = _TEXT_LIMIT) -> bytes:
        if member.size > limit:
            raise MalformedError(f"the archive is damaged: {member.name} has {member.size} bytes")
        file = self._tar.extractfile(member)
        content = file.read() if file else b""
        if len(content) != member.size:
            raise MalformedError("the archive is cut off")
        return content

    async def _take_entries(self, lines: bytes) -> None:
        """Take all of them at once: those that come together share a transaction."""
        found = msgspec.json.Decoder(archive_format.EntryLine).decode_lines(lines)
        await run_all(*(partial(self._take_entry, line) for line in found))

    async def _take_entry(self, line: archive_format.EntryLine) -> None:
        try:
            await self._storage.entries.update(line.parse())
            self._done.entries += 1
        except RevisionError:
            self._done.present += 1
        except MalformedError as error:
            self._done.refuse(f"an entry of {line.public_key[:32].hex()}: {error}")

    async def _take_pins(self, lines: bytes) -> None:
        for pin in msgspec.json.Decoder(archive_format.PinLine).decode_lines(lines):
            try:
                skylink, reason = Skylink(pin.skylink), check_reason(pin.reason)
                pinned = min(max(pin.pinned, 0.0), time.time())
                if await self._storage.retention.pin(skylink, reason, pinned):
                    self._done.pins += 1
            except MalformedError as error:
                self._done.refuse(f"a pin: {error}")

    def _take_names(self, brought: zone_file.Zone) -> None:
        def edit(found: zone_file.Zone) -> zone_file.Zone:
            for domain in brought.domains:
                if domain not in found.domains:
                    found = found.with_record(domain, brought.value(domain))
                    self._done.names += 1
            return found

        self._storage.names.change(edit)

    async def _take_skykeys(self, content: bytes) -> None:
        listed = msgspec.json.decode(content, type=archive_format.SkykeyList)
        known = {key.id for key in await self._storage.skykeys.all()}
        for key in map(Skykey.parse, listed.skykeys):
            if key.id not in known:
                try:
                    await self._storage.skykeys.add(key)
                    self._done.skykeys += 1
                except MalformedError as error:
                    self._done.refuse(f"skykey {key.id}: {error}")

    def _take_part(self, skylink: Skylink, name: str, member: tarfile.TarInfo) -> None:
        """Take a part. A payload is the last one of a skyfile; without one the next one tells."""
        if name == BASE:
            self._finish_skyfile()
            self._skyfile = (skylink, {BASE: self._content(member, SECTOR_SIZE)})
            return
        if self._skyfile is None or self._skyfile[0] != skylink or name in self._skyfile[1]:
            return  # it was refused, or it has no base
        if name != PAYLOAD:
            self._skyfile[1][name] = self._content(member, _EXTENSION_LIMIT)
        else:
            file = self._tar.extractfile(member)
            assert file is not None
            self._finish_skyfile(file, member.size)

    def _finish_skyfile(self, payload: IO[bytes] | None = None, size: int = 0) -> None:
        if self._skyfile is None:
            return
        (skylink, parts), self._skyfile = self._skyfile, None
        try:
            if self._is_here(skylink):
                self._done.present += 1
                return
            self._store(skylink, parts, payload, size)
            self._done.skyfiles += 1
        except (MalformedError, _DamagedError) as error:
            self._done.refuse(f"{skylink}: {error}")

    def _is_here(self, skylink: Skylink) -> bool:
        """Whether a skyfile is stored. One that cannot be read is not: it is replaced."""
        try:
            return self._storage.content.find(skylink) is not None
        except StorageUnavailableError:
            raise
        except StorageError:
            return False

    def _store(
        self, skylink: Skylink, parts: dict[str, bytes], payload: IO[bytes] | None, size: int
    ) -> None:
        base, extension, roots = parts[BASE], parts.get(EXTENSION, b""), parts.get(ROOTS, b"")
        if len(base) < LAYOUT_SIZE or merkle.sector_root(base) != skylink.root:
            raise _DamagedError("its base sector does not have its root")
        if skylink.version != 1 or skylink.offset:
            raise _DamagedError("it is not the skylink of a skyfile")
        expected, length = self._expected(skylink, base, extension, roots)
        if payload is not None and size != length:
            raise _DamagedError("its payload does not have its length")
        found = list[bytes]()
        with closing(self._storage.content.begin()) as upload:
            while payload is not None and (sector := payload.read(SECTOR_SIZE)):
                found.append(merkle.sector_root(sector))
                size -= len(sector)
                if found[-1:] != expected[len(found) - 1 : len(found)]:
                    raise _DamagedError(f"sector {len(found)} does not have its root")
                upload.put_sector(len(found) - 1, found[-1], sector)
            if size:
                raise MalformedError("the archive is cut off")
            if found != expected:
                raise _DamagedError("its payload is not whole")
            spilled = [
                extension[at : at + SECTOR_SIZE] for at in range(0, len(extension), SECTOR_SIZE)
            ]
            upload.publish(skylink, BuiltSkyfile(base, tuple(spilled), b"".join(found)))
        self._storage.catalogue.note_stored(skylink)

    def _expected(
        self, skylink: Skylink, base: bytes, extension: bytes, roots: bytes
    ) -> tuple[list[bytes], int]:
        """Return the roots and the length that the payload must have, once the extension was
        checked.
        """
        held = _Parts(
            InMemory("base", base),
            InMemory("extension", extension),
            InMemory("payload", b""),
            roots,
        )
        expected = list[bytes]()
        try:
            skyfile = StoredSkyfile.of(skylink, base[:LAYOUT_SIZE], len(base), held)
            for root, stored in list_sectors(skyfile):
                if stored.source is held.payload:
                    expected.append(root)
                elif merkle.sector_root(read_range(stored)) != root:
                    raise _DamagedError("its extension does not have its root")
        except StorageError as error:
            raise _DamagedError(str(error)) from None
        length = len(expected) * SECTOR_SIZE if skyfile.is_encrypted else skyfile.payload.length
        return expected, length


class _DamagedError(StorageError):
    """A skyfile of the archive is not what its skylink says."""
