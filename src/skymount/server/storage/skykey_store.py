"""The skykeys of the portal, in a file. No key is ever logged or put into a message."""

import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import msgspec
import trio

from skymount import file_permissions
from skymount.errors import MalformedError, StorageError
from skymount.server.storage.disk_errors import disk_errors
from skymount.storage import atomic_file
from skymount.wire.skykey import KEY_SIZE, NONCE_SIZE, Kind, Skykey, check_id
from skymount.wording import readable_size

SKYKEYS_FILE = "skykeys.json"
SKYKEYS_LIMIT = 1000  # a download that does not name its key tries all of them

_FORMAT = 1
_SKYKEYS_FILE_LIMIT = 1 << 20  # bytes; 1000 keys of the longest names take less than half of it


class _SkykeysFile(msgspec.Struct):
    version: int
    skykeys: list[str]


def _parse_file(raw: bytes) -> tuple[Skykey, ...]:
    try:
        found = msgspec.json.decode(raw, type=_SkykeysFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MalformedError("it is not a list of skykeys") from None
    if found.version != _FORMAT:
        raise MalformedError(f"its version is {str(found.version)[:20]}, not {_FORMAT}")
    return tuple(map(Skykey.parse, found.skykeys))


def _read_file(path: Path) -> bytes | None:
    """Return the content of a file that only its owner may read, None when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        if problem := file_permissions.permission_problem(path, os.fstat(fd)):
            raise StorageError(f"{path}, which holds keys, cannot be used: {problem}")
        raw = file.read(_SKYKEYS_FILE_LIMIT + 1)
    if len(raw) > _SKYKEYS_FILE_LIMIT:
        raise StorageError(f"{path} is over {readable_size(_SKYKEYS_FILE_LIMIT)}")
    return raw


def _save(path: Path, keys: tuple[Skykey, ...]) -> None:
    raw = msgspec.json.encode(_SkykeysFile(_FORMAT, [key.text for key in keys]))
    with disk_errors("write skykeys"):
        atomic_file.replace(path, raw + b"\n")


def pick_skykey(keys: Iterable[Skykey], *, name: str = "", key_id: str = "") -> Skykey:
    """Return the key of that id, or else of that name; MalformedError when there is none."""
    if key_id:
        key_id = check_id(key_id)
    for key in keys:
        if key.id == key_id if key_id else key.name == name:
            return key
    raise MalformedError(
        "No Skykey is associated with that ID" if key_id else "No Skykey with that name"
    )


def check_new_skykey(keys: Sequence[Skykey], new: Skykey) -> None:
    """MalformedError if a key may not be added to these."""
    if new.name and any(key.name == new.name for key in keys):
        raise MalformedError("Skykey name already used by another key")
    if any(key.id == new.id for key in keys):
        raise MalformedError("Skykey ID already exists")
    if len(keys) >= SKYKEYS_LIMIT:
        raise MalformedError(f"there are {SKYKEYS_LIMIT} skykeys already")


class SkykeyStore:
    """The skykeys of one portal. Only one may be open for a data directory."""

    def __init__(self, path: Path, keys: tuple[Skykey, ...]) -> None:
        self._path = path
        self._keys = keys
        self._write_lock = trio.Lock()

    @classmethod
    def open(cls, data: Path) -> Self:
        """Read the keys; StorageError when they are damaged or others may read them. Blocks."""
        path = data / SKYKEYS_FILE
        with disk_errors(f"read {path}"):
            raw = _read_file(path)
        try:
            return cls(path, _parse_file(raw) if raw is not None else ())
        except MalformedError as error:
            raise StorageError(f"{path} is damaged: {error}") from None

    @property
    def current(self) -> tuple[Skykey, ...]:
        """The keys as they are now."""
        return self._keys

    async def all(self) -> tuple[Skykey, ...]:
        return self._keys

    async def find(self, *, name: str = "", key_id: str = "") -> Skykey:
        """Return the key of that id, or else of that name; MalformedError when there is none."""
        return pick_skykey(self._keys, name=name, key_id=key_id)

    async def create(self, name: str, kind: Kind) -> Skykey:
        """Make a new key and store it; MalformedError for a bad name or one that is taken."""
        key = Skykey(kind, secrets.token_bytes(KEY_SIZE), secrets.token_bytes(NONCE_SIZE), name)
        await self.add(key)
        return key

    async def add(self, skykey: Skykey) -> None:
        """Store a key; MalformedError when its name or id is taken. Many may have no name."""
        async with self._write_lock:
            check_new_skykey(self._keys, skykey)
            await self._replace((*self._keys, skykey))

    async def delete(self, *, name: str = "", key_id: str = "") -> None:
        async with self._write_lock:
            deleted = pick_skykey(self._keys, name=name, key_id=key_id)
            await self._replace(tuple(key for key in self._keys if key is not deleted))

    async def _replace(self, keys: tuple[Skykey, ...]) -> None:
        await trio.to_thread.run_sync(_save, self._path, keys)
        self._keys = keys
