"""Which files of a directory are uploaded: not what is hardly meant, as it cannot be recalled."""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from skymount.errors import MalformedError
from skymount.storage.pipes import open_at_once
from skymount.wording import readable_size

IGNORE_FILE = ".skymountignore"

_VERSION_CONTROL = (".git", ".hg", ".svn", ".bzr", ".jj", "_darcs", "CVS")
_SECRETS = (".env*", ".ssh", ".gnupg", "*.p12", "*.pfx", "*.ppk")
_LITTER = (".DS_Store", "*.swp", "*.swo", "*~", ".#*", "#*#")
LEFT_OUT = (*_VERSION_CONTROL, *_SECRETS, *_LITTER, IGNORE_FILE)
"""Names of files and directories."""

_PRIVATE_KEY = b"PRIVATE KEY-----"
_KEY_NAMES = ("*.pem", "*.key", "id_*", "*_rsa", "*_ed25519")  # they may be other things
_HEAD = 4096  # bytes of a file in which that is looked for

_KEY_HEADER = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*"
    rb"(?:-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-|AGE-SECRET-KEY-1)"
)
_KEY_FILE_LIMIT = 64 << 10  # bytes; a file that begins so, whatever its name, and is no larger
_IGNORE_LIMIT = 1 << 20  # bytes of an ignore file
_NAMED = 5  # names in the message


@dataclass
class UploadSelection:
    """Decides about each file and directory below one that is uploaded; remembers what it left out.

    Patterns are those of gitignore: the last one that matches decides, `excludes` before the files.
    """

    take_all: bool = False
    excludes: tuple[str, ...] = ()
    left_out: list[str] = field(default_factory=list)
    _seen: set[Path] = field(default_factory=set)
    _excluded: Any = None  # the patterns of `excludes`, once they were parsed
    _specs: dict[Path, Any] = field(default_factory=dict)

    def skips(self, root: Path, path: Path, is_directory: bool) -> bool:
        """Whether a file or directory below `root` is not uploaded; directories come first."""
        if self._is_ignored(root, path, is_directory):
            return True
        if self.take_all or not _is_hardly_meant(path, is_directory):
            return False
        if path.name != IGNORE_FILE and path not in self._seen:
            self._seen.add(path)
            self.left_out.append(path.relative_to(root).as_posix())
        return True

    def _is_ignored(self, root: Path, path: Path, is_directory: bool) -> bool:
        end = "/" if is_directory else ""
        if self.excludes:
            relative = path.relative_to(root).as_posix() + end
            if self._excluded is None:
                self._excluded = _parsed(self.excludes)
            if self._excluded.match_file(relative):
                return True
        for above in path.parents:  # the nearest ignore file is asked first
            spec = self._spec_in(above)
            if spec is not None:
                found = spec.check_file(path.relative_to(above).as_posix() + end).include
                if found is not None:
                    return bool(found)
            if above == root:
                break
        return False

    def _spec_in(self, directory: Path) -> Any:
        """Return the patterns of a directory's ignore file; None if it has none."""
        if directory not in self._specs:
            try:
                with (directory / IGNORE_FILE).open("rb") as file:
                    raw = file.read(_IGNORE_LIMIT + 1)
            except FileNotFoundError:
                raw = b""
            if len(raw) > _IGNORE_LIMIT:
                raise MalformedError(
                    f"{directory / IGNORE_FILE}: larger than {readable_size(_IGNORE_LIMIT)}"
                )
            lines = raw.decode("utf-8", "surrogateescape").splitlines()
            self._specs[directory] = _parsed(lines) if lines else None
        return self._specs[directory]

    def report(self) -> str:
        """Name what was left out though no pattern of the user's asked for it, once; "" if
        nothing.
        """
        self.left_out.sort()
        names = self.left_out[:_NAMED]
        more = len(self.left_out) - len(names)
        self.left_out.clear()
        return ", ".join(names) + (f" and {more} more" if more else "")


def _parsed(lines: Iterable[str]) -> Any:
    import pathspec  # only uploads with patterns need it

    try:
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise MalformedError(f"bad pattern of files to leave out: {error}") from None


def _is_hardly_meant(path: Path, is_directory: bool) -> bool:
    if any(fnmatchcase(path.name, pattern) for pattern in LEFT_OUT):
        return True
    return not is_directory and _is_private_key(path)


def _is_private_key(path: Path) -> bool:
    try:
        with open(path, "rb", opener=open_at_once) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return False
            head = file.read(_HEAD)
    except OSError:
        return False  # the upload says what is wrong with it
    if found.st_size <= _KEY_FILE_LIMIT and _KEY_HEADER.match(head):
        return True
    return _PRIVATE_KEY in head and any(fnmatchcase(path.name, each) for each in _KEY_NAMES)
