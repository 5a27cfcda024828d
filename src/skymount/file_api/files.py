"""Finds and opens files, for `skymount.open`, `skymount.Path` and fsspec alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Unpack

from skymount.content.cache.memory_cache import Data
from skymount.file_api.bulk_reads import find_many
from skymount.file_api.entry import Entry
from skymount.file_api.location import Location
from skymount.file_api.open_file import OpenFile
from skymount.file_api.options import ChosenOptions
from skymount.file_api.os_errors import translated
from skymount.file_api.session import Found, Session
from skymount.file_api.sessions import SESSIONS
from skymount.settings import FileOptions


@dataclass(frozen=True, slots=True)
class Files:
    """What there is to read with a set of options."""

    options: ChosenOptions

    @classmethod
    def of(cls, **options: Unpack[FileOptions]) -> "Files":
        return cls(ChosenOptions.parse(**options))

    def outdate_names(self) -> None:
        """Let every domain and v2 skylink be resolved again when it is used next."""
        SESSIONS.tell(self.options.settings(), Session.outdate_names)

    def find(self, location: Location) -> Entry:
        """Return what is at a location now; OSError as for a path in a file system."""
        return self._entry(location, self._found(location))

    def _found(self, location: Location) -> Found:
        return SESSIONS.run(
            self.options.settings(), lambda session: session.find(location.root), location
        )

    @staticmethod
    def _entry(location: Location, found: Found) -> Entry:
        return Entry.find(location, found.tree, found.is_proved)

    def find_all(self, locations: Sequence[Location]) -> list[Entry | Exception]:
        """Find many at once, or return why each one cannot be had."""
        if not locations:
            return []
        find = partial(find_many, roots=[location.root for location in locations])
        roots = SESSIONS.run(self.options.settings(), find, locations[0])
        entries: list[Entry | Exception] = []
        for location in locations:
            found = roots[location.root]
            if isinstance(found, Exception):
                entries.append(translated(found, location))
                continue
            try:
                entries.append(self._entry(location, found))
            except OSError as error:
                entries.append(error)
        return entries

    def open_entry(self, entry: Entry) -> OpenFile:
        return OpenFile(SESSIONS, self.options.settings(), entry)

    def read(self, entry: Entry) -> Data:
        file = self.open_entry(entry)
        try:
            return file.read(0, file.size)
        finally:
            file.close()

    def open(
        self,
        location: Location,
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open a file as Python's own `open` does."""
        from skymount.file_api.raw_file import opened

        def make() -> OpenFile:
            return self.open_entry(self.find(location))

        return opened(make, location, mode, buffering, encoding, errors, newline)
