"""The files of a skyfile that is not small, and how an upload makes them.

    base        used bytes of the base sector
    payload     content, unless it is in the base sector
    extension   spilled sectors, padded to 4 MiB each, when metadata did not fit the base
    roots       Merkle roots of the payload's sectors, when it is encrypted and large

Base and payload of an encrypted skyfile are whole encrypted sectors, stored as they are served.
Everything blocks.
"""

import os
import secrets
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from skymount import file_permissions
from skymount.server.storage.disk_errors import disk_errors
from skymount.server.storage.stored_range import StoredFile, StoredRange
from skymount.server.storage.stored_skyfile import BuiltSkyfile
from skymount.storage import atomic_file
from skymount.wire.base_sector import Layout
from skymount.wire.skylink import SECTOR_SIZE, Skylink

BASE, PAYLOAD, EXTENSION, ROOTS = "base", "payload", "extension", "roots"


@dataclass(frozen=True, slots=True)
class SkyfileFiles:
    """The parts of a skyfile in its directory."""

    path: Path

    @property
    def base(self) -> StoredFile:
        return StoredFile(self.path / BASE)

    @property
    def payload(self) -> StoredFile:
        return StoredFile(self.path / PAYLOAD)

    @property
    def extension(self) -> StoredFile:
        return StoredFile(self.path / EXTENSION)

    def encrypted_payload(self, fanout: StoredRange, layout: Layout) -> StoredFile:
        return self.payload

    def encrypted_roots(self) -> bytes:
        with disk_errors("read stored content"):
            roots = self.path / ROOTS
            return roots.read_bytes() if roots.exists() else b""


class _Store(Protocol):
    """Where an upload goes to."""

    @property
    def incoming(self) -> Path: ...

    def put_small(self, skylink: Skylink, base: bytes) -> None: ...

    def publish(self, directory: Path, skylink: Skylink) -> None: ...


class LocalUpload:
    """An upload in progress. What needs files gets a directory that nobody else uses."""

    def __init__(self, store: _Store) -> None:
        self._store = store
        self._directory: Path | None = None
        self._payload: int | None = None
        self._opening = threading.Lock()

    def put_sector(
        self,
        index: int,
        root: bytes,
        sector: bytes | bytearray,
        stored: Callable[[], None] | None = None,
    ) -> None:
        self.put_part(index * SECTOR_SIZE, sector)
        if stored is not None:
            stored()

    def put_part(self, offset: int, part: bytes | bytearray) -> None:
        with disk_errors("write an upload"):
            atomic_file.write_all_at(self._open_payload(), part, offset)

    def take_parts(self) -> bytes:
        payload, directory = self._payload, self._directory
        if payload is None or directory is None:
            return b""
        with disk_errors("write an upload"):
            path = directory / PAYLOAD
            content = path.read_bytes()
            path.unlink()
            self._payload = None
            os.close(payload)
        return content

    def _open_payload(self) -> int:
        with self._opening:
            if self._payload is None:
                path = self._make_directory() / PAYLOAD
                self._payload = file_permissions.open_or_create_file(path)
            return self._payload

    def _make_directory(self) -> Path:
        if self._directory is None:
            path = self._store.incoming / secrets.token_hex(16)
            path.mkdir(mode=0o700)
            self._directory = path
        return self._directory

    def publish(self, skylink: Skylink, built: BuiltSkyfile) -> None:
        """Publish the upload in one step. It survives a power cut once this returns."""
        if built.is_small:
            self._store.put_small(skylink, built.base)
            return
        with disk_errors("store an upload"):
            directory = self._make_directory()
            if self._payload is not None:
                os.fsync(self._payload)
            atomic_file.create(directory / BASE, built.base)
            if built.roots and built.is_encrypted:
                atomic_file.create(directory / ROOTS, built.roots)
            if built.spilled:
                padded = (sector.ljust(SECTOR_SIZE, b"\0") for sector in built.spilled)
                atomic_file.create(directory / EXTENSION, b"".join(padded))
            atomic_file.sync_directory(directory)
            self._store.publish(directory, skylink)
            self._directory = None

    def close(self) -> None:
        """Drop what was not published."""
        if self._payload is not None:
            os.close(self._payload)
            self._payload = None
        if self._directory is not None:
            with disk_errors("remove an upload"), suppress(FileNotFoundError):
                shutil.rmtree(self._directory)
            self._directory = None
