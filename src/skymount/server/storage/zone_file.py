"""The zone: the text file in which the user of a portal writes down what its names lead to.

    # names of our pages
    example        svc://<skylink>/docs
    blog.example   svcns://<public key>/<data key>     # a registry entry

A line has a domain and a value in the form of a TXT record (docs/wire.md 8). The portal only reads
the file, so its user may change it while the portal runs. Functions that use the file block.
"""

import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import unquote

import trio

from skymount import file_permissions
from skymount.errors import MalformedError, StorageError
from skymount.server.storage.disk_errors import disk_errors
from skymount.storage import atomic_file
from skymount.wire.dialect import PRESETS, Dialect
from skymount.wire.hns import DomainRecord, RegistryRecord, parse_domain, parse_txt, pick_record
from skymount.wire.registry_entry import parse_public_key, parse_tweak
from skymount.wire.skylink import split_link
from skymount.wording import readable_size

ZONE_FILE = "hns.zone"
SIZE_LIMIT = 1 << 20  # bytes of the file, without a line feed at its end
RECORDS_LIMIT = 10_000

_COMMENT = re.compile(r"(?:^|\s)#")
_BAD_VALUE = "the value is neither a skylink nor a registry entry"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    domain: str = ""  # empty for a line without a record
    value: str = ""
    comment: str = ""
    problem: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        found = _COMMENT.search(text)
        body = (text[: found.start()] if found else text).rstrip()
        comment = text[len(body) :] if found else ""
        name, _, value = " ".join(body.split()).partition(" ")
        if not name:
            return cls(text, comment=comment)
        try:
            domain = parse_domain(name)
        except MalformedError as error:
            return cls(text, comment=comment, problem=str(error))
        problem = "" if parse_txt(value) else _BAD_VALUE
        return cls(text, domain, value, comment, problem)


@dataclass(frozen=True, slots=True)
class Zone:
    """The parsed file, with its comments and bad lines."""

    _lines: tuple[_Line, ...] = ()
    _values: Mapping[str, Sequence[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values: dict[str, list[str]] = {}
        for line in self._lines:
            if line.domain:
                values.setdefault(line.domain, []).append(line.value)
        object.__setattr__(self, "_values", values)
        if sum(map(len, values.values())) > RECORDS_LIMIT:
            raise MalformedError(f"a zone has at most {RECORDS_LIMIT} records")
        _check_size(self.encode())

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Parse a file. Bad lines are kept; MalformedError only when it is too large."""
        _check_size(raw)
        text = raw.decode(errors="surrogateescape").removeprefix("\ufeff")
        lines = text.removesuffix("\n").split("\n") if text else []
        return cls(tuple(map(_Line.parse, lines)))

    def encode(self) -> bytes:
        text = "".join(f"{line.text}\n" for line in self._lines)
        return text.encode(errors="surrogateescape")

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self._values)

    def value(self, domain: str) -> str:
        """Return the value of a domain that counts: the last valid one, else the last."""
        values = self._values[domain]
        return next((value for value in reversed(values) if parse_txt(value)), values[-1])

    def find(self, domain: str) -> DomainRecord | None:
        """Return the record of a domain, or None; MalformedError when no value is valid."""
        values = self._values.get(domain)
        if values is None:
            return None
        found = pick_record(values)
        if found is None:
            raise MalformedError(f"the record of {domain} is not of a known form")
        return found

    def problems(self) -> Iterator[str]:
        for number, line in enumerate(self._lines, 1):
            if line.problem:
                yield f"line {number}: {line.problem}"

    def with_record(self, domain: str, value: str) -> "Zone":
        """Return the zone with this value alone for a domain, in the domain's last line."""
        if parse_txt(value) is None or _COMMENT.search(value) or value != " ".join(value.split()):
            raise MalformedError(f"not the value of a record: {value[:80]!r}")
        indexes = [index for index, line in enumerate(self._lines) if line.domain == domain]
        if not indexes:
            return Zone((*self._lines, _Line.parse(f"{domain} {value}")))
        last = indexes[-1]
        new = _Line.parse(f"{domain} {value}{self._lines[last].comment}")
        before, after = self._lines[:last], self._lines[last + 1 :]
        return Zone((*(line for line in before if line.domain != domain), new, *after))

    def without(self, domain: str) -> "Zone":
        return Zone(tuple(line for line in self._lines if line.domain != domain))


def _check_size(raw: bytes) -> None:
    if len(raw.removesuffix(b"\n")) > SIZE_LIMIT:
        raise MalformedError(f"a zone has at most {readable_size(SIZE_LIMIT)}")


def parse_value(text: str, dialect: Dialect) -> str:
    """Return a record's text for a skylink, a key and data key, or a record; MalformedError."""
    text = text.strip()
    entry = _parse_entry(text, dialect)
    if entry is not None:
        return entry
    scheme, _, _ = text.partition(":")
    stated = [each for each in PRESETS.values() if each.scheme == scheme.lower()]
    skylink, path = split_link(text)
    value = (stated[0] if stated else dialect).link(skylink) + path.replace(" ", "%20")
    if parse_txt(value) is None:
        raise MalformedError(f"not the value of a record: {text[:80]!r}")
    return value


def _parse_entry(text: str, dialect: Dialect) -> str | None:
    record = parse_txt(text)
    if isinstance(record, RegistryRecord):
        scheme, _, _ = text.partition("://")
        return record.text(scheme)
    key, slash, tweak = text.partition("/")
    if record is not None or not slash:
        return None
    try:
        record = RegistryRecord(parse_public_key(unquote(key)), parse_tweak(tweak))
    except MalformedError:
        return None
    return record.text(dialect.entry_scheme)


def _read(path: Path) -> tuple[bytes, os.stat_result | None]:
    with disk_errors(f"read {path}"), suppress(FileNotFoundError), open(path, "rb") as file:
        state = os.fstat(file.fileno())
        return file.read(SIZE_LIMIT + 2), state
    return b"", None


def load(data: Path) -> Zone:
    """Return the zone, an empty one without a file; StorageError when it cannot be used."""
    return _parse(data / ZONE_FILE, _read(data / ZONE_FILE)[0])


def _parse(path: Path, raw: bytes) -> Zone:
    try:
        return Zone.parse(raw)
    except MalformedError as error:
        raise StorageError(f"{path} cannot be used: {error}") from None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def change(data: Path, edit: Callable[[Zone], Zone]) -> None:
    """Replace the zone by an edited one, in one step.

    Writers wait for each other, so no change is lost. A symbolic link is followed. StorageError;
    errors of `edit` pass through.
    """
    with disk_errors(f"change {data / ZONE_FILE}"):
        file_permissions.make_directory(data)
        if problem := file_permissions.directory_problem(data):
            raise StorageError(f"{data} cannot be used: {problem}")
        path = (data / ZONE_FILE).resolve()
        with _locked(path.parent):
            raw, state = _read(path)
            zone = edit(_parse(path, raw))
            mode = 0o600 if state is None else state.st_mode & 0o777
            atomic_file.replace(path, zone.encode(), mode=mode)


class ZoneFile:
    """The zone of a running portal: read each time, and parsed when the content has changed."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._path = data / ZONE_FILE
        self._raw = b""
        self._zone = Zone()
        self._problems: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def current(self) -> Zone:
        """Return the zone as it is now; blocks, and raises, as `load`."""
        with self._lock:
            raw, _ = _read(self._path)
            if raw != self._raw:
                self._zone, self._raw = _parse(self._path, raw), raw
                problems = tuple(self._zone.problems())
                for problem in problems if problems != self._problems else ():
                    _log.warning("%s %s", self._path, problem)
                self._problems = problems
            return self._zone

    def change(self, edit: Callable[[Zone], Zone]) -> None:
        change(self._data, edit)

    async def find(self, domain: str) -> DomainRecord | None:
        """Return the record of a domain; StorageError, MalformedError."""
        return (await trio.to_thread.run_sync(self.current)).find(domain)
