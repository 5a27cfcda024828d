"""Files are made in a private directory beside their destination, and moved there once all of them
are complete. No symbolic link below the destination is followed.
"""

import os
import secrets
import stat
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Self

import click
import trio

from skymount.content.fetch.reader import ContentReader
from skymount.content.model.skyfile import Skyfile
from skymount.storage import atomic_file
from skymount.wording import visible

PIECE_SIZE = 4 << 20  # bytes that are read and written at a time
_BATCH = 1000  # small files that one call in a thread writes

_TREE = b"tree"
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file to be made: its path, its bytes in the payload, its mode (0: none is known)."""

    path: bytes
    offset: int
    size: int
    mode: int = 0

    @property
    def permissions(self) -> int:
        """The bits to create it with. The umask narrows them; the owner can always read."""
        return self.mode & 0o777 | 0o400 if self.mode & 0o777 else 0o666


class DestinationError(click.ClickException):
    """Something is in the way at the destination."""


def pieces(skyfile: Skyfile, offset: int, size: int) -> Iterator[tuple[int, int]]:
    """Split a range into (offset, length) of reads that each stay within one unit."""
    stop = offset + size
    while offset < stop:
        end = min(stop, (offset // skyfile.unit + 1) * skyfile.unit, offset + PIECE_SIZE)
        yield offset, end - offset
        offset = end


class StagingDirectory:
    """A temporary directory inside `parent`; an OSError names the destination, not this one."""

    def __init__(self, parent: str, shown: str | None = None) -> None:
        """`shown` is what errors call the place of the files; `parent` by default."""
        self._parent = parent
        self._label = parent if shown is None else shown
        self._name = ""
        self._outside = self._inside = self._tree = -1
        self._descriptors: list[int] = []
        self._file = -1
        self._made: list[tuple[Callable[..., None], bytes]] = []

    def __enter__(self) -> Self:
        with self._naming():
            try:
                self._outside = self._open(self._parent or ".", flags=_DIRECTORY & ~os.O_NOFOLLOW)
                self._name = f".skymount-{secrets.token_hex(8)}.part"  # first: a signal may come
                os.mkdir(self._name, 0o700, dir_fd=self._outside)
                self._inside = self._open(self._name, self._outside)
                os.mkdir(_TREE, 0o777, dir_fd=self._inside)
                self._tree = self._open(_TREE, self._inside)
            except BaseException:
                self._remove()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _open(self, path: str | bytes, within: int | None = None, flags: int = _DIRECTORY) -> int:
        found = os.open(path, flags, dir_fd=within)
        self._descriptors.append(found)
        return found

    def _remove(self) -> None:
        """Remove what is left. Not shutil.rmtree: a tree may be deeper than it can recurse."""
        self._close_file()
        for remove, path in reversed(self._made):
            with suppress(OSError):
                remove(path, dir_fd=self._tree)
        for directory, name in ((self._inside, _TREE), (self._outside, self._name)):
            with suppress(OSError):  # __enter__ may not have come to it
                os.rmdir(name, dir_fd=directory)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _close_file(self) -> None:
        if self._file >= 0:
            descriptor, self._file = self._file, -1
            os.close(descriptor)

    def make_directories(self, paths: Iterable[bytes]) -> None:
        for path in paths:
            with self._naming(path):
                self._made.append((os.rmdir, path))
                os.mkdir(path, 0o777, dir_fd=self._tree)

    async def fill(
        self,
        reader: ContentReader,
        skyfile: Skyfile,
        files: Sequence[StagedFile],
        report: Callable[[int, int | None], None] | None,
    ) -> None:
        """Make the files in the order of the payload, so that each unit is fetched once."""
        total = sum(file.size for file in files)
        done = held = 0
        batch: list[tuple[StagedFile, bytes, bool]] = []
        for index, file in enumerate(sorted(files, key=lambda file: file.offset), 1):
            stop = file.offset + file.size
            for at, length in list(pieces(skyfile, file.offset, file.size)) or [(stop, 0)]:
                # a copy: a few bytes of a unit must not keep all of it in memory
                data = bytes(await reader.read(skyfile, at, length)) if length else b""
                is_last = at + length == stop
                batch.append((file, data, is_last))
                held += length
                is_end = is_last and index == len(files)
                if is_end or held >= PIECE_SIZE or len(batch) >= _BATCH:
                    await trio.to_thread.run_sync(self._write, batch, len(files) == 1)
                    done, held, batch = done + held, 0, []
                    if report is not None:
                        report(done, total)

    def _write(self, batch: Iterable[tuple[StagedFile, bytes, bool]], sync: bool) -> None:
        for file, data, is_last in batch:
            with self._naming(file.path):
                if self._file < 0:
                    self._file = self.create(file.path, file.permissions)
                atomic_file.write_all(self._file, data)
                if is_last:
                    if sync:
                        os.fsync(self._file)
                    self._close_file()

    def create(self, path: bytes, permissions: int) -> int:
        """Make a file; return its descriptor."""
        self._made.append((os.unlink, path))
        return os.open(path, _NEW_FILE, permissions, dir_fd=self._tree)

    def place_directory(self, name: str) -> None:
        """Move the whole tree to a new name in `parent`; DestinationError when it is taken."""
        with self._naming():
            if _exists(name, self._outside):
                raise taken(os.path.join(self._parent, name))
            os.rename(_TREE, name, src_dir_fd=self._inside, dst_dir_fd=self._outside)
            self._made = []

    def place_file(self, name: bytes) -> None:
        """Move a file into `parent`, durably; FileExistsError when its name is taken."""
        with self._naming(name):
            atomic_file.move(name, name, source=self._tree, target=self._outside, force=False)
            atomic_file.sync_directory(self._parent or ".")

    def merge(self, files: Iterable[StagedFile], *, force: bool) -> None:
        with closing(self._destinations(files, make=True)) as destinations:
            for path, name, directory in destinations:
                with self._naming(path):
                    try:
                        atomic_file.move(
                            path, name, source=self._tree, target=directory, force=force
                        )
                    except FileExistsError:
                        raise taken(self._shown(path)) from None

    def check_merge(self, files: Iterable[StagedFile], *, force: bool) -> None:
        """Refuse a merge that is known to fail, before anything is fetched for it."""
        with closing(self._destinations(files, make=False)) as destinations:
            for path, name, directory in destinations:
                check_free(self._shown(path), name, directory, force=force)

    def _destinations(
        self, files: Iterable[StagedFile], *, make: bool
    ) -> Generator[tuple[bytes, bytes, int], None, None]:
        """Yield (path, name, open directory) of each file; without `make` of existing ones."""
        by_directory: dict[bytes, list[bytes]] = defaultdict(list)
        for file in files:
            by_directory[file.path.rpartition(b"/")[0]].append(file.path)
        for parent, paths in by_directory.items():
            directory = self._open_below(parent, make=make)
            if directory is None:
                continue
            try:
                for path in paths:
                    yield path, path.rpartition(b"/")[2], directory
            finally:
                os.close(directory)

    def _open_below(self, path: bytes, *, make: bool) -> int | None:
        """Open a directory below `parent`, element by element; None when it does not exist."""
        found = os.open(".", _DIRECTORY, dir_fd=self._outside)
        elements = path.split(b"/") if path else []
        for depth, element in enumerate(elements, 1):
            above = found
            try:
                with self._naming(path):
                    if make:
                        with suppress(FileExistsError):
                            os.mkdir(element, 0o777, dir_fd=above)
                    found = os.open(element, _DIRECTORY, dir_fd=above)
            except FileNotFoundError:
                return None
            except NotADirectoryError:
                shown = visible(self._shown(b"/".join(elements[:depth])))
                raise DestinationError(f"{shown}: a file or a link is in the way") from None
            finally:
                os.close(above)
        return found

    def _shown(self, path: str | bytes) -> str:
        return os.path.join(self._label, os.fsdecode(path)) if path else self._label

    @contextmanager
    def _naming(self, path: str | bytes = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, visible(self._shown(path))) from None


def check_free(shown: str, name: bytes, within: int | None = None, *, force: bool) -> None:
    """DestinationError if something exists that must not be replaced."""
    try:
        found = os.lstat(name, dir_fd=within)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
        raise DestinationError(f"{visible(shown)}: it is not a regular file, and is not replaced")
    if not force:
        raise taken(shown)


def taken(shown: str) -> DestinationError:
    """Return the error for a destination that exists."""
    return DestinationError(f"{visible(shown)}: it exists already; use --force to replace it")


def _exists(name: str | bytes, within: int) -> bool:
    try:
        os.lstat(name, dir_fd=within)
    except FileNotFoundError:
        return False
    return True
