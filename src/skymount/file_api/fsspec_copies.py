"""Copies of the file systems of fsspec: `get` to this machine, and `put`, which uploads."""

import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from glob import has_magic
from pathlib import Path
from typing import Any, NoReturn

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.local import LocalFileSystem, make_path_posix, trailing_sep
from fsspec.utils import common_prefix, isfilelike

from skymount.file_api.entry import Entry
from skymount.file_api.fsspec_bulk import BulkOperations
from skymount.file_api.location import SKYLINK
from skymount.file_api.open_file import OpenFile
from skymount.file_api.os_errors import no_change, os_error
from skymount.file_api.uploading import Choice, directories_above, upload
from skymount.portal.client.upload_source import checked_name
from skymount.storage.atomic_file import Replacement
from skymount.upload_selection.selection import SelectionRules

_COPIES = 8  # at once
_PIECE = 4 << 20  # bytes


def _pairs(paths: Iterable[str], local: Iterable[Any]) -> list[tuple[str, Any]]:
    sources, targets = list(paths), list(local)
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} files cannot be copied to {len(targets)} places")
    return list(zip(sources, targets, strict=True))


@dataclass(frozen=True, slots=True)
class Destination:
    """Where copies go, by the rules of fsspec ("Copying files and directories" in its docs)."""

    path: str
    is_directory: bool
    """Whether things go into it under their own names, as it is there or ends with a slash."""
    has_many: bool
    """Whether it is that of a list, which is a directory anyway."""

    @classmethod
    def of(cls, path: str, *, has_many: bool) -> "Destination":
        local = make_path_posix(path)
        return cls(local, has_many or trailing_sep(path) or os.path.isdir(local), has_many)

    def of_file(self, name: str) -> str:
        return self._joined(name) if self.is_directory else self.path

    def of_directory(
        self, source: str, name: str, top: str, paths: Sequence[str]
    ) -> list[tuple[str, str]]:
        """Place all of a directory; with a slash at the end of its `source` without its name."""
        own = name if self.is_directory and not trailing_sep(source) else ""
        return [(path, self._joined(own, path[len(top) :])) for path in paths]

    def of_pattern(self, paths: Sequence[str], *, recursive: bool) -> list[tuple[str, str]]:
        """Place what matches a pattern: from the directory on that all of it is in."""
        if len(paths) == 1 or (self.has_many and not recursive):
            return [(path, self._joined(path.rpartition("/")[2])) for path in paths]
        above = len(common_prefix(paths)) if paths else 0
        return [(path, self._joined(path[above:])) for path in paths]

    def _joined(self, *names: str) -> str:
        return os.path.join(self.path, *filter(None, (name.strip("/") for name in names)))


class CopyOperations(BulkOperations):
    """Copies between skylinks and this machine."""

    # Copies to this machine

    def get_file(
        self,
        rpath: str,
        lpath: Any = None,
        callback: Any = DEFAULT_CALLBACK,
        outfile: Any = None,
        **kwargs: Any,
    ) -> None:
        """Copy a file; one that is there already stays until the copy is complete.

        What is no regular file, such as a pipe, is written to as it is.
        """
        entry = self.entry(rpath)
        into = lpath if outfile is None and isfilelike(lpath) else outfile
        if entry.is_directory and into is None:
            os.makedirs(lpath, exist_ok=True)
            return
        file = self.files.open_entry(entry)
        try:
            callback.set_size(file.size)
            if into is not None:
                _save(file, into, callback)
                return
            os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
            is_special = os.path.exists(lpath) and not (
                os.path.isfile(lpath) or os.path.isdir(lpath)
            )
            with open(lpath, "wb") if is_special else Replacement(lpath) as local:
                _save(file, local, callback)
        finally:
            file.close()

    def get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy files to this machine, several at once, by the copy rules of fsspec.

        A skylink of a single file has the name of that file. ValueError when two files would become
        one.
        """
        self._copy(self._planned(rpath, lpath, recursive, maxdepth), callback, **kwargs)

    def _planned(
        self, rpath: Any, lpath: Any, recursive: bool, maxdepth: int | None
    ) -> list[tuple[str, Any]]:
        """Return what is copied: (path, local path)."""
        is_one = isinstance(rpath, str | os.PathLike)
        given = [os.fspath(rpath)] if is_one else list(map(os.fspath, rpath))
        has_each = not isinstance(lpath, str | os.PathLike)
        if has_each and not is_one:
            return _pairs(map(self._strip_protocol, given), lpath)
        self._entries(each for each in map(self._strip_protocol, given) if not has_magic(each))
        groups = [self.expand_path(each, recursive, maxdepth) for each in given]
        entries = self._entries(path for group in groups for path in group)
        if not recursive or maxdepth is not None:
            groups = [
                [path for path in group if not entries[path].is_directory] for group in groups
            ]
        if has_each:
            return _pairs(groups[0], lpath)
        into = Destination.of(os.fspath(lpath), has_many=not is_one)
        copies: dict[str, str] = {}
        for source, group in zip(given, groups, strict=True):
            top = self._strip_protocol(source)
            entry = entries.get(top)
            if entry is not None and not entry.is_directory:
                found = [(top, into.of_file(entry.name))]
            elif entry is not None:
                found = into.of_directory(source, entry.name, top, group)
            else:
                found = into.of_pattern(group, recursive=recursive)
            for path, local in found:
                if copies.setdefault(local, path) != path:
                    both = f"{copies[local]} and {path}"
                    raise ValueError(f"{local}: two files would be copied there: {both}")
        return [(path, local) for local, path in copies.items()]

    def _entries(self, paths: Iterable[str]) -> dict[str, Entry]:
        """Find many at once; the first failure is raised."""
        names = list(dict.fromkeys(paths))
        entries = {}
        for name, found in zip(names, self.files.find_all([*map(self.locate, names)]), strict=True):
            if isinstance(found, Exception):
                raise found
            entries[name] = found
        return entries

    def _copy(self, copies: Sequence[tuple[str, Any]], callback: Any, **kwargs: Any) -> None:
        """Copy files, (path, local path). The first failure is raised; no copy begins after it."""
        left = iter(copies)
        stopped = threading.Event()

        def work() -> None:
            try:
                for path, local in left:
                    if stopped.is_set():
                        return
                    callback.relative_update()
                    with callback.branched(path, local) as child:
                        self.get_file(path, local, callback=child, **kwargs)
            except BaseException:
                stopped.set()
                raise

        callback.set_size(len(copies))
        with ThreadPoolExecutor(_COPIES, "skymount-get") as pool:
            running = [pool.submit(work) for _ in copies[:_COPIES]]
            try:
                for each in as_completed(running):
                    each.result()
            finally:
                stopped.set()

    # Uploads

    def _refuse(self, path: Any, *args: Any, **kwargs: Any) -> NoReturn:
        shown = path if isinstance(path, str | os.PathLike) else next(iter(path), "")
        raise no_change(self.unstrip_protocol(self._strip_protocol(shown)))

    def put(
        self,
        lpath: Any,
        rpath: Any = "",
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        *,
        take_all: bool = False,
        follow_outside: bool = False,
        skip_special: bool = False,
    ) -> str:
        """Upload a file, or with `recursive` a directory; return the link, ``skylink://…``.

        Of a pattern or a list there is a directory, in which names follow the copy rules of fsspec.
        It is always a new skylink, so `rpath` stays empty. What `skymount upload` leaves out is
        left out with a warning, unless `take_all`; so is what links lead to outside of the
        directory, unless `follow_outside`. `skip_special` goes on without what cannot be uploaded.
        """
        if self.protocol != SKYLINK or self._strip_protocol(rpath):
            self._refuse(rpath)
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        is_one = isinstance(lpath, str | os.PathLike)
        given = [os.path.expanduser(each) for each in ([lpath] if is_one else lpath)]
        rules = SelectionRules(
            take_all=take_all, follow_outside=follow_outside, skip_special=skip_special
        )
        if not given or "" in given:
            raise ValueError("lpath is empty")
        choice = Choice(rules)
        into = Destination("", is_directory=not is_one, has_many=not is_one)
        for each in given:
            _choose(choice, each, into, recursive, maxdepth)
        is_file = is_one and Path(given[0]).is_file()
        body = choice.body("" if is_file else _directory_name(given, is_one=is_one), lpath)
        skylink = upload(self.files, body, lpath, partial(_report, callback))
        return f"{SKYLINK}://{skylink}" + (f"/{Path(given[0]).name}" if is_file else "")

    upload = put


def _directory_name(given: Sequence[str], *, is_one: bool) -> str:
    """Return what the new directory is called: as what is uploaded, or as what all of it is in."""
    if is_one and os.path.isdir(given[0]):
        top = given[0]
    else:
        above = [os.path.abspath(_fixed(each) or os.path.dirname(each)) for each in given]
        top = os.path.commonpath(above)
    return checked_name(Path(top).resolve().name or "root")


def _fixed(pattern: str) -> str:
    """Return the directory above the first part that is a pattern; empty when none is."""
    found = re.search(r"[*?[]", pattern)
    if found is None or os.path.exists(pattern):
        return ""
    return os.path.dirname(pattern[: found.start()]) or "."


def _choose(
    choice: Choice, given: str, into: Destination, recursive: bool, maxdepth: int | None
) -> None:
    """Take what a local path or pattern means."""
    path = Path(given)
    if path.is_dir():
        if not recursive:
            raise IsADirectoryError(*os_error(21, path, "add recursive=True").args, given)
        name = os.path.basename(os.path.abspath(given))
        placed = partial(into.of_directory, given, name, "")
        wanted = None if maxdepth is None else _wanted(set(), {""}, maxdepth)
        choice.add_directory(path, placed, wanted)
    elif _fixed(given):
        _choose_matches(choice, given, into, recursive, maxdepth)
    else:
        choice.add_file(path, path.name)


def _choose_matches(
    choice: Choice, pattern: str, into: Destination, recursive: bool, maxdepth: int | None
) -> None:
    """Take what matches a pattern, of the directory above the first part that is one."""
    directory = _fixed(pattern)
    found = LocalFileSystem().glob(make_path_posix(pattern), maxdepth=maxdepth)
    names = {os.path.relpath(each, directory): os.path.isdir(each) for each in found}
    files = {name for name, is_directory in names.items() if not is_directory}
    below = {"" if name == "." else name for name in names.keys() - files}
    if not found:
        raise os_error(2, pattern)
    if not recursive and not files:
        raise IsADirectoryError(*os_error(21, pattern, "add recursive=True").args, pattern)

    def placed(paths: list[str]) -> list[tuple[str, str]]:
        tops = below if recursive and maxdepth is None else ()
        return into.of_pattern(sorted({*paths, *tops}), recursive=recursive)

    depth = None if maxdepth is None else maxdepth - 1
    wanted = _wanted(files, below if recursive else set(), depth)
    choice.add_directory(Path(directory), placed, wanted)


def _wanted(files: Set[str], directories: Set[str], maxdepth: int | None) -> Callable[[str], bool]:
    """Return what tells these files, what is in these directories, and all on the way there."""
    named = files | directories | directories_above(files | directories)

    def is_wanted(path: str) -> bool:
        if path in named:
            return True
        steps = path.split("/")
        first = 0 if maxdepth is None else max(0, len(steps) - maxdepth)
        return any("/".join(steps[:depth]) in directories for depth in range(first, len(steps)))

    return is_wanted


def _save(file: OpenFile, into: Any, callback: Any) -> None:
    for at in range(0, file.size, _PIECE):
        data = file.read(at, at + _PIECE)
        into.write(data)
        callback.relative_update(len(data))


def _report(callback: Any, sent: int, total: int | None) -> None:
    if total is not None:
        callback.set_size(total)
    callback.absolute_update(sent)
