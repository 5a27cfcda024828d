"""The file systems ``skylink`` and ``skyhns`` of fsspec, which find them by their entry points."""

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NoReturn

from skymount.file_api.entry import Entry
from skymount.file_api.files import Files
from skymount.file_api.fsspec_copies import CopyOperations
from skymount.file_api.fsspec_file import SkylinkFile
from skymount.file_api.location import SKYHNS, SKYLINK
from skymount.file_api.os_errors import no_change
from skymount.file_api.raw_file import check_mode

_OPTIONS_OF_FSSPEC = frozenset(
    {
        "asynchronous",
        "listings_expiry_time",
        "loop",
        "max_paths",
        "skip_instance_cache",
        "use_listings_cache",
    }
)
"""What the base class of fsspec documents."""

_ROOT = {"name": "", "size": 0, "type": "directory"}
"""What is above all skylinks: there is no list of them."""


class SkylinkFileSystem(CopyOperations):
    """``skylink://<skylink>/<path>``: content that never changes, verified while it is read.

    Options that are not given are those of the configuration (docs/library.md). TypeError for one
    that there is not.
    """

    protocol = SKYLINK

    def __init__(self, **options: Any) -> None:
        of_fsspec = options.keys() & _OPTIONS_OF_FSSPEC
        super().__init__(**{name: options.pop(name) for name in of_fsspec})
        self.files = Files.of(**options)
        self.files.outdate_names()

    def invalidate_cache(self, path: str | None = None) -> None:
        """Let every domain and v2 skylink be resolved again when it is used next."""
        super().invalidate_cache(path)
        self.files.outdate_names()

    # What is there

    def ls(self, path: str, detail: bool = True, refresh: bool = False, **kwargs: Any) -> list[Any]:
        """List a directory; a file is listed as itself. `refresh` resolves names again."""
        if refresh:
            self.invalidate_cache()
        if not self._strip_protocol(path):
            return []
        entry = self.entry(path)
        found = entry.children() if entry.is_directory else iter([entry])
        return [each.info() if detail else each.location.path for each in found]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Describe a file or directory: also its `skylink`, and how far it is `verified`."""
        return self.entry(path).info() if self._strip_protocol(path) else dict(_ROOT)

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether something is there; OSError when no portal answers."""
        try:
            self.info(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False
        return True

    def isdir(self, path: str) -> bool:
        return self.exists(path) and self.info(path)["type"] == "directory"

    def isfile(self, path: str) -> bool:
        return self.exists(path) and self.info(path)["type"] == "file"

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        """List all files below a path, sorted by their names; none where nothing is."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        try:
            entries = self._below(path, maxdepth, withdirs)
        except (FileNotFoundError, NotADirectoryError):
            entries = []
        found = {entry.location.path: entry for entry in entries}
        names = sorted(found)
        return {name: found[name].info() for name in names} if detail else names

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: str | Callable[[OSError], object] = "omit",
        detail: bool = False,
        refresh: bool = False,
        **kwargs: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yield (path, directories, files), all of one version.

        `on_error` is about a path where nothing is; any other failure raises.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        if refresh:
            self.invalidate_cache()
        if not self._strip_protocol(path):
            yield "", {} if detail else [], {} if detail else []
            return
        try:
            entry = self.entry(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if on_error == "raise":
                raise
            if callable(on_error):
                on_error(error)
            return
        yield from _walk(entry, maxdepth, topdown, detail)

    def _below(self, path: str, maxdepth: int | None, withdirs: bool) -> list[Entry]:
        if not self._strip_protocol(path):
            return []
        entry = self.entry(path)
        if not entry.is_directory:
            return [entry]
        found = entry.descendants(maxdepth)
        if withdirs:
            return [entry, *found]
        return [each for each in found if not each.is_directory]

    def du(
        self,
        path: str,
        total: bool = True,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the bytes of all files below a path, or of each."""
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: info["size"] for name, info in found.items()}
        return sum(sizes.values()) if total else sizes

    def checksum(self, path: str) -> str:
        """Return the Merkle root of the skyfile that a path is in, as hex digits.

        Two paths with the same root and the same names below it are the same content.
        """
        return self.entry(path).tree.skyfile.skylink.root.hex()

    def ukey(self, path: str) -> str:
        """Return a hash of what is read there now; it changes when a name moves."""
        entry = self.entry(path)
        named = "/".join((str(entry.tree.skyfile.skylink), *entry.location.names))
        return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()

    def modified(self, path: str) -> datetime:
        """Return the beginning of 1970, as portals keep no times.

        For a name that can move, it is a later time that stands for the version that it leads to
        now: programs such as DuckDB know by it that what they cached is out of date.
        """
        entry = self.entry(path)
        root, leads_to = entry.location.root, entry.tree.skyfile.skylink
        seconds = 0 if root == leads_to else int.from_bytes(leads_to.root[:4], "big")
        return datetime.fromtimestamp(seconds, UTC)

    # Files

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        cache_type: str | None = None,
        size: int | None = None,
        **kwargs: Any,
    ) -> SkylinkFile:
        check_mode(mode, self.unstrip_protocol(path))
        file = self.files.open_entry(self.entry(path))
        return SkylinkFile(self, path, file, block_size, cache_type, cache_options, **kwargs)

    # What would change something

    rmdir = touch = pipe_file = rm_file = _rm = rm = CopyOperations._refuse

    def mkdir(self, path: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse by the error that fsspec passes over until it opens the file to write."""
        raise PermissionError(*no_change("").args, self.unstrip_protocol(path))

    makedirs = mkdir

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> NoReturn:
        self._refuse(path2)

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(rpath)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> NoReturn:
        self._refuse(path1)


def _walk(
    top: Entry, maxdepth: int | None, topdown: bool, detail: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Walk a tree. Directories that a caller takes out of a step are not walked."""
    left: list[tuple[Entry, int] | tuple[str, Any, Any]] = [(top, 1)]
    while left:
        last = left.pop()
        if len(last) == 3:
            yield last
            continue
        entry, depth = last
        if entry.is_directory:
            below = {child.location.names[-1]: child for child in entry.children()}
        else:
            below = {"": entry}
        directories: Any = {name: each.info() for name, each in below.items() if each.is_directory}
        files: Any = {name: each.info() for name, each in below.items() if not each.is_directory}
        if not detail:
            directories, files = list(directories), list(files)
        step = entry.location.path, directories, files
        if topdown:
            yield step
        else:
            left.append(step)
        if maxdepth is None or depth < maxdepth:
            left += [
                (below[name], depth + 1) for name in reversed(list(directories)) if name in below
            ]


class SkyhnsFileSystem(SkylinkFileSystem):
    """``skyhns://<domain>/<path>``: what a domain leads to now, which no portal can prove."""

    protocol = SKYHNS
