"""Owns files that a download leaves on disk: all are made in a directory of our own beside the
place where they belong, and get there when the last of them is complete. No link is followed that
anybody could have put in the way.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import click
import trio

from skymount.cli.output import escape
from skymount.content.fetch.reader import ContentReader
from skymount.content.model.skyfile import Skyfile
from skymount.storage.atomic_file import write_all

PIECE = 4 << 20
"""Bytes that are read and written at a time."""

_STEPS = 1000  # small files that are written at a time: each way to a thread has its price

_ROOT = b"tree"
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""Answers of file systems that know no hard links."""


@dataclass(frozen=True, slots=True)
class Item:
    """A file to be made: its path, its extent in the payload in bytes, its permission bits."""

    path: bytes
    offset: int
    size: int
    mode: int = 0
    """0 when nobody said."""

    @property
    def permissions(self) -> int:
        """The bits to create it with, which the umask then narrows; its owner can read it."""
        return self.mode & 0o777 | 0o400 if self.mode & 0o777 else 0o666


@dataclass(frozen=True, slots=True)
class _Step:
    item: Item
    data: bytes
    first: bool
    last: bool


def spans(skyfile: Skyfile, offset: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut an extent into (offset, length) of pieces that need no joining."""
    stop = offset + size
    while offset < stop:
        end = min(stop, (offset // skyfile.unit + 1) * skyfile.unit, offset + PIECE)
        yield offset, end - offset
        offset = end


class Refused(click.ClickException):
    """Something is where a file belongs."""


class Stage:
    """A directory in which files are made, and which is gone at the end; a context manager.

    OSError names the place as the user knows it.
    """

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._name = b".skymount-" + os.urandom(6).hex().encode() + b".part"
        self._descriptors: list[int] = []
        self._file = -1
        self._made: list[bytes] = []
        self._directories: list[bytes] = []

    def __enter__(self) -> Self:
        with _named(self._parent):
            self._outside = self._opened(self._parent, flags=_PLACE & ~os.O_NOFOLLOW)
            os.mkdir(self._name, 0o700, dir_fd=self._outside)
            try:
                self._inside = self._opened(self._name, self._outside)
                os.mkdir(_ROOT, 0o777, dir_fd=self._inside)
                self._root = self._opened(_ROOT, self._inside)
            except OSError:
                self._discard()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._discard()

    def _opened(self, path: str | bytes, within: int | None = None, flags: int = _PLACE) -> int:
        found = os.open(path, flags, dir_fd=within)
        self._descriptors.append(found)
        return found

    def _discard(self) -> None:
        """Remove what is left, by the list of what was made: trees may be deeper than recursion."""
        self._close()
        with suppress(OSError):
            for path in self._made:
                with suppress(FileNotFoundError):
                    os.unlink(path, dir_fd=self._root)
            for path in reversed(self._directories):
                with suppress(FileNotFoundError):
                    os.rmdir(path, dir_fd=self._root)
        with suppress(OSError):
            os.rmdir(_ROOT, dir_fd=self._inside)
        with suppress(OSError):
            os.rmdir(self._name, dir_fd=self._outside)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _close(self) -> None:
        if self._file >= 0:
            descriptor, self._file = self._file, -1
            os.close(descriptor)

    def make_directories(self, paths: Iterable[bytes]) -> None:
        """Make directories, each after the one that it is in."""
        for path in paths:
            with _named(self._parent, path):
                os.mkdir(path, 0o777, dir_fd=self._root)
                self._directories.append(path)

    async def fill(
        self,
        reader: ContentReader,
        skyfile: Skyfile,
        items: Sequence[Item],
        report: Callable[[int, int | None], None] | None,
    ) -> None:
        """Make the files, in the order of the payload: what lies in one unit is fetched once."""
        total = sum(item.size for item in items)
        done, held = 0, 0
        steps: list[_Step] = []

        async def flush() -> None:
            nonlocal done, held, steps
            await trio.to_thread.run_sync(self._write, steps)
            done, held, steps = done + held, 0, []
            if report is not None:
                report(done, total)

        for item in sorted(items, key=lambda item: item.offset):
            stop = item.offset + item.size
            for at, length in spans(skyfile, item.offset, item.size):
                view = await reader.read(skyfile, at, length)
                # a copy: a few bytes of a unit must not keep all of it
                step = _Step(item, bytes(view), at == item.offset, at + length == stop)
                steps.append(step)
                held += length
                if held >= PIECE or len(steps) >= _STEPS:
                    await flush()
            if not item.size:
                steps.append(_Step(item, b"", first=True, last=True))
                if len(steps) >= _STEPS:
                    await flush()
        await flush()

    def _write(self, steps: Iterable[_Step]) -> None:
        for step in steps:
            with _named(self._parent, step.item.path):
                if step.first:
                    self._file = os.open(
                        step.item.path, _NEW, step.item.permissions, dir_fd=self._root
                    )
                    self._made.append(step.item.path)
                write_all(self._file, step.data)
                if step.last:
                    self._close()

    def place_file(self, name: str, *, force: bool) -> None:
        """Give the only file its name beside this directory, once it is on the disk."""
        (made,) = self._made
        with _named(self._parent, name):
            descriptor = os.open(made, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._root)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if not _move(self._root, made, self._outside, os.fsencode(name), force=force):
                raise taken(os.path.join(self._parent, name))

    def place_directory(self, name: str) -> None:
        """Give the whole tree its name beside this directory; Refused when it is taken."""
        with _named(self._parent, name):
            if _is_there(name, self._outside):
                raise taken(os.path.join(self._parent, name))
            os.rename(_ROOT, name, src_dir_fd=self._inside, dst_dir_fd=self._outside)
            self._made, self._directories = [], []

    def merge(self, items: Iterable[Item], *, force: bool) -> None:
        """Move the files into the directory that this one was made in, each to its path."""
        for directory, paths in _by_directory(items):
            place = self._open_below(directory, make=True)
            assert place is not None
            try:
                for path in paths:
                    name = path.rpartition(b"/")[2]
                    with _named(self._parent, path):
                        if not _move(self._root, path, place, name, force=force):
                            raise taken(os.path.join(self._parent, os.fsdecode(path)))
            finally:
                os.close(place)

    def check_merge(self, items: Iterable[Item], *, force: bool) -> None:
        """Refuse a merge that is known to fail, before anything is fetched for it."""
        for directory, paths in _by_directory(items):
            place = self._open_below(directory, make=False)
            if place is None:
                continue
            try:
                for path in paths:
                    check_free(
                        os.path.join(self._parent, os.fsdecode(path)),
                        path.rpartition(b"/")[2],
                        place,
                        force=force,
                    )
            finally:
                os.close(place)

    def _open_below(self, directory: bytes, *, make: bool) -> int | None:
        """Open a directory that takes files, element by element; None when it is not there."""
        found = os.open(".", _PLACE, dir_fd=self._outside)
        elements = directory.split(b"/") if directory else []
        for depth, element in enumerate(elements, 1):
            above = found
            try:
                with _named(self._parent, directory):
                    if make:
                        with suppress(FileExistsError):
                            os.mkdir(element, 0o777, dir_fd=above)
                    found = os.open(element, _PLACE, dir_fd=above)
            except FileNotFoundError:
                return None
            except NotADirectoryError:
                there = os.fsdecode(b"/".join(elements[:depth]))
                shown = escape(os.path.join(self._parent, there))
                raise Refused(f"{shown}: a file or a link is in the way") from None
            finally:
                os.close(above)
        return found


def check_free(shown: str, name: bytes, within: int | None = None, *, force: bool) -> None:
    """Refused if something is there that must not be replaced."""
    try:
        found = os.lstat(name, dir_fd=within)
    except FileNotFoundError:
        return
    if not force:
        raise taken(shown)
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
        raise Refused(f"{escape(shown)}: it is not a regular file, and is not replaced")


def taken(shown: str) -> Refused:
    """Say that there is something already."""
    return Refused(f"{escape(shown)}: it exists already; use --force to replace it")


def _move(source: int, path: bytes, target: int, name: bytes, *, force: bool) -> bool:
    """Move a file from one directory to another; False if the name is taken and may not be."""
    if not force:
        try:
            os.link(path, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if _is_there(name, target):
                return False
        else:
            os.unlink(path, dir_fd=source)
            return True
    os.rename(path, name, src_dir_fd=source, dst_dir_fd=target)
    return True


def _is_there(name: str | bytes, within: int) -> bool:
    try:
        os.lstat(name, dir_fd=within)
    except FileNotFoundError:
        return False
    return True


def _by_directory(items: Iterable[Item]) -> Iterable[tuple[bytes, list[bytes]]]:
    found: dict[bytes, list[bytes]] = {}
    for item in items:
        found.setdefault(item.path.rpartition(b"/")[0], []).append(item.path)
    return found.items()


@contextmanager
def _named(parent: str, name: str | bytes = "") -> Iterator[None]:
    """Let an OSError name the place as the user knows it."""
    try:
        yield
    except OSError as error:
        shown = escape(os.path.join(parent, os.fsdecode(name)))
        raise OSError(error.errno, error.strerror, shown) from None
