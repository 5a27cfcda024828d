"""Private keys on disk: one file each, for its owner only (docs/keys.md). Synchronous."""

import errno
import fcntl
import itertools
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skymount import file_permissions
from skymount.errors import KeyringError, MalformedError
from skymount.storage import atomic_file
from skymount.user_directories import user_directory

if TYPE_CHECKING:  # PyNaCl is loaded when there is a key to read
    from skymount.wire.key_pair import SigningKeyPair

VERSION = 1

FILE_LIMIT = 4 << 10  # bytes of a key file; ours have about 300
KEYS_LIMIT = 10_000  # files in the directory; finding a public key reads them all
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_PUBLIC_KEY = re.compile(r"[0-9A-Fa-f]{64}")
_NEW = ".new"  # a key file that is being written, by whoever holds the lock
_LOCK = ".lock"
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key of the keyring, whose halves belong together."""

    name: str
    pair: "SigningKeyPair"
    created: datetime


@dataclass(frozen=True, slots=True)
class DamagedKey:
    """A file of the keyring that cannot be used; its name can be any file name."""

    name: str
    reason: str


class _File(msgspec.Struct):
    version: int
    public_key: str
    private_key: str
    created: datetime


def default_path() -> Path:
    """Return where a user's keys are kept; KeyringError without a home."""
    return user_directory("data", KeyringError) / "keys"


def check_name(name: str) -> str:
    """Return the name if a key can have it; MalformedError otherwise.

    The error does not repeat the text, which may be a secret typed by mistake.
    """
    if _PUBLIC_KEY.fullmatch(name):
        raise MalformedError("64 hex digits are a public key, not the name of one")
    if not _NAME.fullmatch(name):
        raise MalformedError(
            "a key's name has 1 to 64 letters, digits, '.', '_' and '-', "
            "and does not begin with '.' or '-'"
        )
    return name


def gen_key_pair_and_seed() -> "tuple[SigningKeyPair, str]":
    """Return a new key pair and its seed: 64 random bytes as 128 hex digits (docs/wire.md 10)."""
    from skymount.wire.key_pair import SEED_ENTROPY, SigningKeyPair

    seed = secrets.token_hex(SEED_ENTROPY)
    return SigningKeyPair.from_seed(seed), seed


class Keyring:
    """The keys in one directory, which is created when the first is added.

    Methods raise KeyringError when the directory or a file cannot be used, and MalformedError for
    an invalid name. Nothing is cached.
    """

    def __init__(self, path: Path, limit: int = KEYS_LIMIT) -> None:
        self.path = path
        self._limit = limit

    def names(self) -> tuple[str, ...]:
        """Return the names of all keys, also damaged ones, sorted."""
        with self._reading() as directory:
            return tuple(filter(_is_name, self._files(directory)))

    def read_all(self) -> tuple[StoredKey | DamagedKey, ...]:
        """Return all keys, sorted by name; those that cannot be used have a reason."""
        with self._reading() as directory:
            return tuple(self._read_all(directory))

    def public_keys(self) -> dict[str, bytes]:
        keys = (key for key in self.read_all() if isinstance(key, StoredKey))
        return {key.name: key.pair.public_key for key in keys}

    def read(self, name: str) -> StoredKey:
        check_name(name)
        with self._reading() as directory:
            if directory is None:
                raise self._unknown(name)
            return self._read(directory, name)

    def get(self, name: str) -> "SigningKeyPair":
        return self.read(name).pair

    def by_public_key(self, public_key: bytes) -> "SigningKeyPair | None":
        with self._reading() as directory:
            for key in self._read_all(directory):
                if isinstance(key, StoredKey) and key.pair.public_key == public_key:
                    return key.pair
        return None

    def check_free(self, name: str) -> None:
        """Refuse a name that `add` would refuse, before a secret is typed for it."""
        if check_name(name) in self.names():
            raise _taken(name)

    def add(self, name: str, pair: "SigningKeyPair", *, replace: bool = False) -> StoredKey:
        """Store a key pair durably; an existing name is refused unless to `replace` it."""
        key = StoredKey(check_name(name), pair, datetime.now(UTC).replace(microsecond=0))
        with self._writing() as directory:
            taken = self._files(directory)
            if name in taken and not replace:
                raise _taken(name)
            if name not in taken and len(taken) >= self._limit:
                raise KeyringError(f"{self.path}: more than {self._limit} keys are not kept")
            atomic_file.replace(name, _encode(key), temporary=_NEW, within=directory)
        return key

    def remove(self, name: str) -> None:
        check_name(name)
        if name not in self.names():  # which also keeps a directory from being made for this
            raise self._unknown(name)
        with self._writing() as directory:
            try:
                os.unlink(name, dir_fd=directory)
            except FileNotFoundError:
                raise self._unknown(name) from None
            os.fsync(directory)

    def _unknown(self, name: str) -> KeyringError:
        return KeyringError(f"there is no key called {name} in {self.path}")

    @contextmanager
    def _reading(self) -> Iterator[int | None]:
        """Yield a descriptor of the checked directory; None when it is absent."""
        with self._translated():
            try:
                directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
            except FileNotFoundError:
                yield None
                return
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise KeyringError(f"{self.path}: not a directory, or a link to one") from None
                raise
            try:
                _check_private(os.fstat(directory), self.path)
                yield directory
            finally:
                os.close(directory)

    @contextmanager
    def _writing(self) -> Iterator[int]:
        """Yield a descriptor of the directory, created if absent, with its write lock held."""
        with self._translated():
            file_permissions.make_directory(self.path)
        with self._reading() as directory:
            if directory is None:
                raise KeyringError(f"{self.path}: gone while it was used")
            lock = file_permissions.open_or_create_file(_LOCK, directory)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield directory
            finally:
                os.close(lock)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise KeyringError(f"{self.path}: {error.strerror or error}") from None

    def _files(self, directory: int | None) -> list[str]:
        if directory is None:
            return []
        with os.scandir(directory) as entries:
            names = (entry.name for entry in entries if not entry.name.startswith("."))
            found = sorted(itertools.islice(names, self._limit + 1))
        if len(found) > self._limit:
            raise KeyringError(f"{self.path}: there are more than {self._limit} files in it")
        return found

    def _read_all(self, directory: int | None) -> Iterator[StoredKey | DamagedKey]:
        for name in self._files(directory):
            assert directory is not None
            if not _is_name(name):
                yield DamagedKey(name, f"{self.path / name}: no key has such a name")
                continue
            try:
                yield self._read(directory, name)
            except KeyringError as error:
                yield DamagedKey(name, str(error))

    def _read(self, directory: int, name: str) -> StoredKey:
        path = self.path / name
        try:
            body = _read_private(directory, name, path)
        except FileNotFoundError:
            raise self._unknown(name) from None
        except OSError as error:
            reason = "a link, not a file" if error.errno == errno.ELOOP else error.strerror
            raise KeyringError(f"{path}: {reason}") from None
        try:
            return _parse(name, body)
        except MalformedError as error:
            raise KeyringError(f"{path}: {error}") from None


def _taken(name: str) -> KeyringError:
    return KeyringError(
        f"there is a key called {name} already; remove it first, or take another name"
    )


def _is_name(name: str) -> bool:
    with suppress(MalformedError):
        return bool(check_name(name))
    return False


def _check_private(status: os.stat_result, path: Path) -> None:
    if problem := file_permissions.permission_problem(path, status):
        raise KeyringError(f"{path}: {problem}")


def _read_private(directory: int, name: str, path: Path) -> bytes:
    # O_NONBLOCK: opening a pipe must not wait; it is refused below
    file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _OPEN, dir_fd=directory)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise KeyringError(f"{path}: not a file")
        _check_private(status, path)
        with open(file, "rb", closefd=False) as opened:
            return opened.read(FILE_LIMIT + 1)
    finally:
        os.close(file)


def _encode(key: StoredKey) -> bytes:
    file = _File(VERSION, key.pair.public_hex, key.pair.private_hex, key.created)
    return msgspec.json.encode(file) + b"\n"


def _parse(name: str, body: bytes) -> StoredKey:
    """A MalformedError repeats nothing of the file."""
    from skymount.wire.key_pair import SigningKeyPair

    if len(body) > FILE_LIMIT:
        raise MalformedError("too long for a key file")
    try:
        found = msgspec.json.decode(body, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MalformedError("damaged: not a key file") from None
    if found.version != VERSION:
        version = str(found.version)[:20]
        raise MalformedError(f"of version {version}, which this skymount does not know")
    pair = SigningKeyPair.from_private_hex(found.private_key)
    if pair.public_hex != found.public_key:
        raise MalformedError("damaged: the public key is not that of the private key")
    return StoredKey(name, pair, found.created)
