"""Uploads files and directories, which gives a new skylink."""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from skymount.errors import MalformedError
from skymount.file_api.files import Files
from skymount.file_api.session import Session
from skymount.file_api.sessions import SESSIONS
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import DIRECTORY_FIELD, FILE_FIELD, UploadBody
from skymount.portal.client.upload_source import UploadSource
from skymount.portal.uploads.upload import upload_copies
from skymount.upload_selection.folder_walk import select
from skymount.upload_selection.own_state import refuse_secret
from skymount.upload_selection.selection import (
    LeftOut,
    NamedSecretError,
    Selection,
    SelectionRules,
    UnusableFilesError,
    listed,
    options,
)
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)


def directories_above(paths: Iterable[str]) -> set[str]:
    """Return the directories on the way to relative paths."""
    found: set[str] = set()
    for path in paths:
        above = path.rpartition("/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition("/")[0]
    return found


@contextmanager
def _advising() -> Iterator[None]:
    try:
        yield
    except NamedSecretError as error:
        raise MalformedError(f"{error}; it is uploaded with take_all=True only") from None


class Choice:
    """What is uploaded: files under their names in the new skylink."""

    def __init__(self, rules: SelectionRules) -> None:
        self._rules = rules
        self._sources: dict[str, UploadSource] = {}
        self._left_out: list[LeftOut] = []
        self._unusable: list[LeftOut] = []
        self._empty: list[str] = []

    def add_file(self, path: Path, name: str) -> None:
        """Take a file that was named itself."""
        if not self._rules.take_all:
            with _advising():
                refuse_secret(path)
        self._add(name, UploadSource.of_path(path, name))

    def add_directory(
        self,
        path: Path,
        placed: Callable[[list[str]], list[tuple[str, str]]],
        is_wanted: Callable[[str], bool] | None = None,
    ) -> None:
        """Take of a directory what is wanted; `placed` returns (path in it, name) of all."""
        try:
            with _advising():
                found = select(path, self._rules, is_wanted=is_wanted)
        except UnusableFilesError as error:
            self._unusable += error.files
            return
        self._left_out += found.left_out
        self._empty += found.empty
        files = {file.name: file for file in found.files}
        for inner, name in placed(list(files)):
            if inner in files:
                self._add(name, UploadSource.of_found(replace(files[inner], name=name)))

    def _add(self, name: str, source: UploadSource) -> None:
        other = self._sources.setdefault(name, source)
        if other.identity != source.identity:
            both = f"{other.origin!s} and {source.origin!s}"
            raise MalformedError(f"{name}: two files would be uploaded as that: {both}")

    def body(self, directory: str, origin: object) -> UploadBody:
        """Prepare the upload, as a directory if that has a name; errors name the origin."""
        if self._unusable:
            advice = "skip_special=True goes on without it"
            raise MalformedError(f"nothing is uploaded: {listed(self._unusable)}; {advice}")
        if not self._sources:
            but = f" but what is left out: {listed(self._left_out)}" if self._left_out else ""
            raise MalformedError(f"{origin}: there is no file to upload{but}")
        for name in directories_above(self._sources) & self._sources.keys():
            raise MalformedError(f"{name}: a file and a directory would be uploaded as that")
        sources = [self._sources[name] for name in sorted(self._sources, key=str.encode)]
        field = DIRECTORY_FIELD if directory else FILE_FIELD
        body = UploadBody(sources, field=field, dirname=directory)
        body.selection = Selection([], self._left_out, self._empty)
        return body


def upload(
    files: Files, body: UploadBody, origin: object, progress: Callable[[int, int | None], None]
) -> Skylink:
    """Upload to the first portal that takes it; errors name the origin.

    There are warnings of what is left out, as by `skymount upload`.
    """
    if left_out := body.selection.left_out:
        advice = " and ".join(f"{option}=True" for option in options(left_out))
        more = f"; {advice} takes it along" if advice else ""
        warnings.warn(f"left out: {listed(left_out)}{more}", stacklevel=3)
    for empty in body.selection.empty:
        warnings.warn(f"{empty}: empty, and not part of the upload", stacklevel=3)
    sent = body.with_progress(progress)

    def warn_of_fallback(error: Exception, then: PortalReader) -> None:
        log.warning("%s; now trying %s", error, then.url)

    async def send(session: Session) -> Skylink:
        copies = await upload_copies(session.content.portals, sent, 1, warn_of_fallback)
        return copies.agreed().skylink

    return SESSIONS.run(files.options.settings(), send, origin)
