"""`skymount.Path`: what `pathlib.Path` has for reading; `skymount.open` and `skymount.listdir`."""

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import total_ordering
from pathlib import PurePosixPath
from typing import IO, Any, Unpack, cast

from skymount.errors import MalformedError
from skymount.file_api.entry import Entry
from skymount.file_api.files import Files
from skymount.file_api.location import Location
from skymount.settings import FileOptions

_MAGIC = frozenset("*?[")


@total_ordering
class Path:
    """A file or directory of a skylink or a domain.

    `link` and the options are those of `skymount.open`. Names that are joined to it are taken as
    they stand.
    """

    _location: Location
    _files: Files

    def __init__(self, link: "str | Path", **options: Unpack[FileOptions]) -> None:
        if not isinstance(link, Path):
            self._location, self._files = Location.parse(link), Files.of(**options)
        else:
            has_own = any(value is not None for value in options.values())
            self._location = link._location
            self._files = Files.of(**options) if has_own else link._files
        self._pure = PurePosixPath("/", *self._location.names)

    def _at(self, pure: PurePosixPath) -> "Path":
        made = Path.__new__(Path)
        made._location = Location(self._location.root, pure.parts[1:])
        made._files = self._files
        made._pure = pure
        return made

    # Names

    def __str__(self) -> str:
        return str(self._location)

    def __repr__(self) -> str:
        return f"Path({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and self._key == other._key

    def __lt__(self, other: "Path") -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, ...]:
        return (self.anchor, *self._location.names)

    @property
    def anchor(self) -> str:
        """The skylink or domain, with its protocol."""
        return f"{self._location.protocol}://{self._location.root}"

    @property
    def parts(self) -> tuple[str, ...]:
        return self._key

    @property
    def name(self) -> str:
        """The last name; a skylink without a path is asked for: it may be a single file."""
        return self._named.name

    @property
    def stem(self) -> str:
        return self._named.stem

    @property
    def suffix(self) -> str:
        return self._named.suffix

    @property
    def suffixes(self) -> list[str]:
        return self._named.suffixes

    @property
    def _named(self) -> PurePosixPath:
        if self._location.names:
            return self._pure
        entry = self._entry()
        return self._pure / entry.name if entry.is_whole else self._pure

    @property
    def parent(self) -> "Path":
        return self._at(self._pure.parent)

    @property
    def parents(self) -> tuple["Path", ...]:
        return tuple(map(self._at, self._pure.parents))

    def __truediv__(self, name: str) -> "Path":
        return self.joinpath(name)

    def joinpath(self, *names: str) -> "Path":
        return self._at(self._pure.joinpath(*names))

    def with_name(self, name: str) -> "Path":
        return self._at(self._pure.with_name(name))

    def with_suffix(self, suffix: str) -> "Path":
        return self._at(self._pure.with_suffix(suffix))

    def is_relative_to(self, other: "Path") -> bool:
        return self.anchor == other.anchor and self._pure.is_relative_to(other._pure)

    def relative_to(self, other: "Path") -> PurePosixPath:
        if not self.is_relative_to(other):
            raise MalformedError(f"{str(self)!r} is not in the subpath of {str(other)!r}")
        return self._pure.relative_to(other._pure)

    def match(self, pattern: str) -> bool:
        return self._pure.match(pattern)

    # What is there

    def _entry(self) -> Entry:
        return self._files.find(self._location)

    def _is(self, what: str) -> bool:
        try:
            entry = self._entry()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return what == "any" or entry.is_directory == (what == "directory")

    def exists(self) -> bool:
        return self._is("any")

    def is_file(self) -> bool:
        return self._is("file")

    def is_dir(self) -> bool:
        return self._is("directory")

    def stat(self) -> os.stat_result:
        """Type, mode and size; there are no times and owners."""
        entry = self._entry()
        mode = stat.S_IFDIR | 0o555 if entry.is_directory else entry.file.mode
        return os.stat_result((mode, 0, 0, 1, 0, 0, entry.size, 0, 0, 0))

    @property
    def verified(self) -> str:
        """How far the content is verified: "yes", "partly" or "no"."""
        return self._entry().verified.value

    def iterdir(self) -> Iterator["Path"]:
        """Yield what is in a directory; NotADirectoryError for a file, at once."""
        return map(self._of_entry, self._entry().children())

    def _of_entry(self, entry: Entry) -> "Path":
        return self._at(PurePosixPath("/", *entry.location.names))

    def walk(self) -> Iterator[tuple["Path", list[str], list[str]]]:
        """Yield (directory, names of directories, names of files) from the top down."""
        left = [self._entry()]
        while left:
            entry = left.pop()
            below = {child.location.names[-1]: child for child in entry.children()}
            directories = [name for name, child in below.items() if child.is_directory]
            files = [name for name, child in below.items() if not child.is_directory]
            yield self._of_entry(entry), directories, files
            left += [below[name] for name in reversed(directories)]

    def glob(self, pattern: str) -> Iterator["Path"]:
        """Yield what is below and matches a pattern; ``**`` stands for any directories."""
        parts = PurePosixPath(pattern).parts
        if not parts:
            raise MalformedError(f"unacceptable pattern: {pattern!r}")
        if parts[0] == "/":
            raise NotImplementedError("absolute patterns are not supported")
        found = {entry.location: None for entry in _select(self._entry(), parts)}
        for location in found:
            yield self._at(PurePosixPath("/", *location.names))

    def rglob(self, pattern: str) -> Iterator["Path"]:
        return self.glob(f"**/{pattern}")

    # Content

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        return self._files.open(self._location, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        return bytes(self._files.read(self._entry()))

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        with self.open("r", encoding=encoding, errors=errors) as file:
            return cast("str", file.read())


def _select(top: Entry, pattern: tuple[str, ...]) -> Iterator[Entry]:
    left = [(top, pattern)]
    while left:
        entry, parts = left.pop()
        if not parts:
            yield entry
        elif entry.is_directory:
            left += reversed(list(_step(entry, parts[0], parts[1:])))


def _step(
    entry: Entry, first: str, rest: tuple[str, ...]
) -> Iterator[tuple[Entry, tuple[str, ...]]]:
    """Yield what the first part of a pattern leads to, with what is to match from there."""
    if first == "**":
        yield entry, rest
    for child in entry.children():
        name = child.location.names[-1]
        if first == "**":
            if child.is_directory:
                yield child, (first, *rest)
            elif not rest:
                yield child, rest
        elif fnmatchcase(name, first) if _MAGIC & set(first) else name == first:
            yield child, rest


def open(  # noqa: A001 - it is called as `skymount.open`
    link: str | Path,
    mode: str = "rb",
    *,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    **options: Unpack[FileOptions],
) -> IO[Any]:
    """Open a file of a skylink or a domain, as Python's own `open` does; only for reading.

    `link` is ``skylink://<skylink>/<path>`` or ``skyhns://<domain>/<path>``, or a link in any other
    form. The other options say how to read it, in place of the configuration (docs/library.md).

    OSError of the kind that `open` would raise, ValueError for a link or an option that is none.
    """
    return Path(link, **options).open(mode, buffering, encoding, errors, newline)


def listdir(link: str | Path, **options: Unpack[FileOptions]) -> list[str]:
    """Return the names in a directory; options and errors are those of `open`."""
    return [child.name for child in Path(link, **options).iterdir()]
