"""Walks a folder and settles what is uploaded of it, before the first byte is sent (semantics W7).

Everything is named: what is left out with its reason, and what cannot be uploaded at all.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from skymount.errors import MalformedError
from skymount.upload_selection.ignore_patterns import IGNORE_FILE, IgnorePatterns
from skymount.upload_selection.own_state import OwnState, refuse_secret, way
from skymount.upload_selection.secret_files import (
    HEAD_LIMIT,
    OWN_STATE,
    reason_of_form,
    reason_of_name,
)
from skymount.upload_selection.selection import (
    FoundFile,
    Identity,
    LeftOut,
    Option,
    Selection,
    SelectionRules,
    UnusableFilesError,
    shown,
)

NAMES_LIMIT = 3 << 19
"""Files and folders; a mount shows no more of one skylink (semantics, N4)."""

_DEPTH_LIMIT = 1000
_BYTES_LIMIT = 16 << 40
_SIDE_FILES = ("-wal", "-shm", "-journal")  # of a database, beside it

_NO_FILES = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_REPLACED = "another one is in its place now"


def select(
    folder: Path,
    rules: SelectionRules,
    *,
    limit: int = NAMES_LIMIT,
    is_wanted: Callable[[str], bool] | None = None,
) -> Selection:
    """Settle what is uploaded of a folder; `is_wanted` is asked for each path below it first.

    UnusableFilesError names all that cannot be uploaded; MalformedError for an ignore file that
    cannot be used, for skymount's own state, and beyond the limits; OSError.
    """
    if not rules.take_all:
        refuse_secret(folder)
    walk = _Walk(str(folder), rules, limit, is_wanted)
    walk.run()
    walk.unusable.sort(key=lambda each: os.fsencode(each.path))
    if walk.unusable and not rules.skip_special:
        raise UnusableFilesError(walk.unusable)
    walk.files.sort(key=lambda file: file.name.encode())
    walk.left_out += walk.unusable
    walk.left_out.sort(key=lambda each: os.fsencode(each.path))
    walk.empty.sort()
    return Selection(walk.files, walk.left_out, walk.empty)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder on the way down."""

    path: str
    """Where it is opened; below the folder that is uploaded there is no link in it."""
    name: str
    """Its path inside the upload."""
    real: str
    """Its resolved path."""
    identity: Identity
    above: "_Folder | None" = None
    depth: int = 0

    def is_below(self, identity: Identity) -> bool:
        """Whether that folder is this one, or on the way down to it."""
        at: _Folder | None = self
        while at is not None:
            if at.identity == identity:
                return True
            at = at.above
        return False


class _UnusableError(Exception):
    """Something cannot be uploaded; the text says why."""


class _LeftOutError(Exception):
    """Something is left out. Without a reason a pattern of the user's asked for it."""

    def __init__(self, reason: str = "", option: Option = "") -> None:
        super().__init__(reason)
        self.reason, self.option = reason, option


@dataclass(slots=True)
class _Walk:
    root: str
    rules: SelectionRules
    limit: int
    is_wanted: Callable[[str], bool] | None
    files: list[FoundFile] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    unusable: list[LeftOut] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    _real_root: str = ""
    _excludes: IgnorePatterns = field(default_factory=IgnorePatterns)
    _patterns: dict[str, IgnorePatterns | None] = field(default_factory=dict)
    _own: OwnState = field(default_factory=OwnState)
    _names: int = 0
    _bytes: int = 0

    def run(self) -> None:
        self._real_root = os.path.realpath(self.root)
        self._excludes = IgnorePatterns.of_options(self.rules.excludes)
        if not self.rules.take_all:
            self._own = OwnState.find()
        status = os.stat(self.root)
        folders = [_Folder(self.root, "", self._real_root, _identity(status))]
        while folders:
            folder = folders.pop()
            try:
                opened = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                if folder.above is None:
                    raise
                self._add_unusable(folder.name, error.strerror)
                continue
            try:
                folders += self._look_into(folder, opened)
            finally:
                os.close(opened)

    def _look_into(self, folder: _Folder, opened: int) -> list[_Folder]:
        """Look at what stands in a folder; return the folders there that are taken."""
        if _identity(os.fstat(opened)) != folder.identity:
            self._add_unusable(folder.name, _REPLACED)
            return []
        with os.scandir(opened) as entries:
            names = sorted((entry.name for entry in entries), reverse=True)
        if not names:
            self.empty.append(self._shown(folder.name))
        found = []
        for name in names:
            path = _joined(folder.name, name)
            if self.is_wanted is not None and not self.is_wanted(path):
                continue
            self._count(1, 0)
            try:
                below = self._look_at(folder, opened, name)
            except _LeftOutError as error:
                if error.reason:
                    self.left_out.append(LeftOut(self._shown(path), error.reason, error.option))
            except _UnusableError as error:
                self._add_unusable(path, str(error))
            except OSError as error:
                self._add_unusable(path, error.strerror)
            else:
                found += [below] if below else []
        return found

    def _look_at(self, folder: _Folder, opened: int, name: str) -> _Folder | None:
        """Take a file, or return the folder that is taken."""
        path = _joined(folder.name, name)
        status = os.stat(name, dir_fd=opened, follow_symlinks=False)
        is_link = stat.S_ISLNK(status.st_mode)
        if is_link:
            with suppress(OSError):
                status = os.stat(name, dir_fd=opened)
        is_folder = stat.S_ISDIR(status.st_mode)
        self._check_path(path, is_folder)
        if is_link and is_folder:
            self._check_path(path, False)  # git takes such a link for a file
        _check_name(path)
        place, real = _joined(folder.path, name), _joined(folder.real, name)
        if is_link:
            place, real = self._target(real, status)
        elif folder.real != _joined(self._real_root, folder.name):  # it is below a link
            self._check_step(real, real, is_folder)
        if not is_folder:
            self._take_file(place, path, status, None if is_link else opened)
            return None
        identity = _identity(status)
        if self._own.is_one(identity):
            raise _LeftOutError(OWN_STATE, "take_all")
        if folder.is_below(identity):
            raise _LeftOutError("it leads to a directory that it is in")
        if folder.depth == _DEPTH_LIMIT:
            raise MalformedError(f"{shown(self.root)}: more than {_DEPTH_LIMIT} directories deep")
        return _Folder(place, path, real, identity, folder, folder.depth + 1)

    def _target(self, link: str, status: os.stat_result) -> tuple[str, str]:
        """Return where what a link leads to is opened, and its resolved path."""
        steps = way(link)
        target = steps[-1]
        inside = self._inside(target)
        if inside is None and not self.rules.follow_outside:
            reason = f"it leads to {shown(target)}, which is outside"
            raise _LeftOutError(reason, "follow_outside")
        try:
            found = os.stat(os.path.realpath(link, strict=True), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            raise _UnusableError("a link to nothing") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _UnusableError("a link that leads to itself") from None
            raise
        if _identity(found) != _identity(status):
            raise _UnusableError(_REPLACED)
        for step in steps:
            self._check_step(step, target, os.path.isdir(step))
        if not self.rules.take_all and self._own.holds(target):
            raise _LeftOutError(f"it leads to {shown(target)}: {OWN_STATE}", "take_all")
        return (target if inside is None else _joined(self.root, inside)), target

    def _inside(self, real: str) -> str | None:
        """Return a resolved path as it is below the root, or None if it is outside."""
        if real == self._real_root:
            return ""
        root = os.path.join(self._real_root, "")
        return real.removeprefix(root) if real.startswith(root) else None

    def _check_step(self, step: str, target: str, is_folder: bool) -> None:
        """Raise _LeftOutError if a link leads to what would be left out, or through that."""
        inside = self._inside(step)
        try:
            if inside is not None:
                self._check_path(inside, is_folder)
            elif not self._real_root.startswith(os.path.join(step, "")):
                self._check_place(step)
        except _LeftOutError as error:
            reason = f": {error.reason}" if error.reason else ", which is left out"
            leads = "leads to" if step == target else "leads through"
            raise _LeftOutError(
                f"it {leads} {shown(inside or step)}{reason}", error.option
            ) from None

    def _check_path(self, path: str, is_folder: bool) -> None:
        """Raise _LeftOutError if a path below the root is left out by patterns or for its name."""
        if not path:
            return
        if self._is_ignored(path, is_folder):
            raise _LeftOutError
        self._check_place(_joined(self._real_root, path))

    def _check_place(self, path: str) -> None:
        if self.rules.take_all:
            return
        if path.endswith(f"/{IGNORE_FILE}"):
            raise _LeftOutError
        if reason := reason_of_name(path):
            raise _LeftOutError(reason, "take_all")

    def _is_ignored(self, path: str, is_folder: bool) -> bool:
        verdict = self._excludes.verdict(path, is_folder)
        above = path
        while verdict is None and above:  # the nearest ignore file is asked first
            above = above.rpartition("/")[0]
            if patterns := self._patterns_in(above):
                verdict = patterns.verdict(path[len(above) :].lstrip("/"), is_folder)
        return bool(verdict)

    def _patterns_in(self, folder: str) -> IgnorePatterns | None:
        if not self.rules.reads_ignore_files:
            return None
        if folder not in self._patterns:
            self._patterns[folder] = IgnorePatterns.of_folder(_joined(self.root, folder))
        return self._patterns[folder]

    def _take_file(
        self, place: str, path: str, looked_at: os.stat_result, folder: int | None
    ) -> None:
        """Take a file that is not left out for its form; `folder` is open unless it is a link."""
        if not stat.S_ISREG(looked_at.st_mode):
            raise _UnusableError(_NO_FILES.get(stat.S_IFMT(looked_at.st_mode), "no regular file"))
        name = place[place.rfind("/") + 1 :]
        names = {name, path[path.rfind("/") + 1 :]}
        with _open_file(place if folder is None else name, folder) as file:
            status = os.fstat(file.fileno())
            if _identity(status) != _identity(looked_at):
                raise _UnusableError(_REPLACED)
            if not self.rules.take_all:
                head = file.read(min(status.st_size, HEAD_LIMIT)) or b""
                reason = reason_of_form(head, status.st_size, names)
                if reason or (reason := _reason_of_side_file(place)):
                    real = f"it leads to {shown(place)}: " if folder is None else ""
                    raise _LeftOutError(real + reason, "take_all")
        self._count(0, status.st_size)
        mode = stat.S_IMODE(status.st_mode) & 0o777
        self.files.append(FoundFile(place, path, status.st_size, mode, _identity(status)))

    def _count(self, names: int, size: int) -> None:
        self._names += names
        self._bytes += size
        if self._names > self.limit or self._bytes > _BYTES_LIMIT:
            bound = f"{self.limit} files and directories, or {_BYTES_LIMIT >> 40} TiB"
            raise MalformedError(f"{shown(self.root)}: more than {bound}, with what links lead to")

    def _shown(self, name: str) -> str:
        return _joined(self.root, name) if name else self.root

    def _add_unusable(self, name: str, reason: str | None) -> None:
        self.unusable.append(LeftOut(self._shown(name), reason or "it cannot be read"))


def _joined(folder: str, name: str) -> str:
    """Join two relative paths, each of which may be empty."""
    return f"{folder.removesuffix('/')}/{name}" if folder and name else folder or name


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise _UnusableError("the name is not valid UTF-8") from None


def _open_file(path: str, folder: int | None = None) -> FileIO:
    """Open a file that is no link, without waiting for one that has become a FIFO."""

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)

    return FileIO(path, opener=opener)


def _reason_of_side_file(path: str) -> str:
    """Return why a file beside a database is left out: the database is."""
    if path.endswith(_SIDE_FILES):
        with suppress(OSError), _open_file(path.rpartition("-")[0]) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode):
                return reason_of_form(file.read(HEAD_LIMIT) or b"", status.st_size)
    return ""
