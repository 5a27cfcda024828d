"""Owns the zone: the text file in which the user of a portal says what its names lead to.

    # names of our pages
    example        svc://<skylink>/docs
    blog.example   svcns://<public key>/<data key>     # a registry entry

A line is a domain, space, and a value as a TXT record would hold it (wire notes 8). Lines beginning
with ``#`` and what follows `` #`` are comments. Functions on files block: async code calls them in
a thread. Names are read by the portal, written by its user: no lock of the portal is needed.
"""

import fcntl
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from skymount import file_permissions
from skymount.errors import MalformedError, StorageError
from skymount.storage import atomic_file
from skymount.wire.dialect import PRESETS, Dialect
from skymount.wire.hns import Record, RegistryRecord, parse_domain, parse_txt, pick_record
from skymount.wire.registry_entry import parse_public_key, parse_tweak
from skymount.wire.skylink import split_link

FILE = "hns.zone"
"""Name of the file in the portal's data directory."""

SIZE_LIMIT = 1 << 20
"""Bytes of the file, less a line feed at its end."""

RECORDS_LIMIT = 10_000
"""Lines that hold a record."""

_COMMENT = re.compile(r"(?:^|\s)#")
_SETTLED = 100_000_000  # nanoseconds; a later change of a file surely has another time stamp

_UNKNOWN = "the value is neither a skylink nor a registry entry"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the file, as written and as understood."""

    text: str
    domain: str = ""
    """As it is looked up; empty for a line that holds no record."""
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
        problem = "" if parse_txt(value) else _UNKNOWN
        return cls(text, domain, value, comment, problem)


@dataclass(frozen=True, slots=True)
class Zone:
    """What a file says, and the file itself with its comments."""

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
        """Read a file. Lines that make no sense are kept; MalformedError only for its size."""
        _check_size(raw)
        text = raw.decode(errors="surrogateescape").removeprefix("\ufeff")
        lines = text.removesuffix("\n").split("\n") if text else []
        return cls(tuple(map(_Line.parse, lines)))

    def encode(self) -> bytes:
        """Write the file."""
        text = "".join(f"{line.text}\n" for line in self._lines)
        return text.encode(errors="surrogateescape")

    @property
    def domains(self) -> tuple[str, ...]:
        """Every domain that has a record, good or bad, in the order of the file."""
        return tuple(self._values)

    def value(self, domain: str) -> str:
        """Return the value of a domain that counts: the last that makes sense, else the last."""
        values = self._values[domain]
        return next((value for value in reversed(values) if parse_txt(value)), values[-1])

    def find(self, domain: str) -> Record | None:
        """Return what a domain leads to; None when it is not there.

        MalformedError when it is there, but with values of no sense. `domain` is in the form of
        `parse_domain`.
        """
        values = self._values.get(domain)
        if values is None:
            return None
        found = pick_record(values)
        if found is None:
            raise MalformedError(f"the record of {domain} is not of a known form")
        return found

    def problems(self) -> Iterator[str]:
        """Say what is wrong with which line."""
        for number, line in enumerate(self._lines, 1):
            if line.problem:
                yield f"line {number}: {line.problem}"

    def with_record(self, domain: str, value: str) -> "Zone":
        """Return the zone in which a domain has this value alone.

        It takes the place and the comment of the last line that the domain had.
        """
        if parse_txt(value) is None or _COMMENT.search(value) or value != " ".join(value.split()):
            raise MalformedError(f"not the value of a record: {value[:80]!r}")
        places = [at for at, line in enumerate(self._lines) if line.domain == domain]
        place = places[-1] if places else -1
        comment = self._lines[place].comment if place >= 0 else ""
        new = _Line.parse(f"{domain} {value}{comment}")
        if place < 0:
            return Zone((*self._lines, new))
        before, after = self._lines[:place], self._lines[place + 1 :]
        return Zone((*(line for line in before if line.domain != domain), new, *after))

    def without(self, domain: str) -> "Zone":
        """Return the zone without any record of a domain."""
        return Zone(tuple(line for line in self._lines if line.domain != domain))


def _check_size(raw: bytes) -> None:
    if len(raw.removesuffix(b"\n")) > SIZE_LIMIT:
        raise MalformedError(f"a zone has at most {SIZE_LIMIT} bytes")


def parse_value(text: str, dialect: Dialect) -> str:
    """Turn what a user writes into the value of a record.

    That is a skylink in any form of `split_link`, a registry entry as ``<public key>/<data key>``,
    or either as a record holds it. What comes without a scheme gets that of the dialect.
    MalformedError when it is neither.
    """
    text = text.strip()
    entry = _parse_entry(text, dialect)
    if entry is not None:
        return entry
    scheme, _, _ = text.partition(":")
    said = [each for each in PRESETS.values() if each.scheme == scheme.lower()]
    skylink, path = split_link(text)
    value = (said[0] if said else dialect).link(skylink) + path.replace(" ", "%20")
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


# The file


def _read(path: Path) -> tuple[bytes, os.stat_result | None]:
    """Return a file's bytes, too many if it is too long, and its state before."""
    try:
        with open(path, "rb") as file:
            state = os.fstat(file.fileno())
            return file.read(SIZE_LIMIT + 2), state
    except FileNotFoundError:
        return b"", None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


def load(data: Path) -> Zone:
    """Return the zone of a portal's data directory, an empty one when there is none.

    StorageError when it cannot be read or is too large.
    """
    return _parse(data / FILE, _read(data / FILE)[0])


def _parse(path: Path, raw: bytes) -> Zone:
    try:
        return Zone.parse(raw)
    except MalformedError as error:
        raise StorageError(f"{path} cannot be used: {error}") from None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other writers out; wait for those that are at it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def change(data: Path, edit: Callable[[Zone], Zone]) -> None:
    """Put a changed zone in place of the one that is there, in one step.

    Of several writers each sees what the one before has written. A link is followed. StorageError
    when it cannot be read or written; what `edit` raises passes through.
    """
    try:
        file_permissions.make_directory(data)
        path = (data / FILE).resolve()
        with _locked(path.parent):
            raw, state = _read(path)
            zone = edit(_parse(path, raw))
            mode = 0o600 if state is None else state.st_mode & 0o777
            atomic_file.replace(path, zone.encode(), mode=mode)
    except OSError as error:
        raise StorageError(f"cannot change {data / FILE}: {error.strerror or error}") from error


class ZoneFile:
    """The zone of a running portal: parsed once, and again when its file has changed."""

    def __init__(self, data: Path) -> None:
        self._path = data / FILE
        self._seen: tuple[int, ...] | None = None
        self._zone = Zone()
        self._problems: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def current(self) -> Zone:
        """Return what the file says now. Blocks on the disk; StorageError as `load`."""
        with self._lock:
            if self._seen is None or self._seen != _identity(self._path):
                self._reload()
            return self._zone

    def _reload(self) -> None:
        """Read the file. It is not trusted to be unchanged later if it is brand-new."""
        self._seen = None
        started = time.time_ns()
        raw, state = _read(self._path)
        self._zone = _parse(self._path, raw)
        problems = tuple(self._zone.problems())
        if problems != self._problems:
            for problem in problems:
                _log.warning("%s %s", self._path, problem)
        self._problems = problems
        newest = max(state.st_mtime_ns, state.st_ctime_ns) if state else 0
        if newest + _SETTLED < started:
            self._seen = _numbers(state)


def _numbers(state: os.stat_result | None) -> tuple[int, ...]:
    """Return what tells one state of a file from another."""
    if state is None:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_dev


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        return _numbers(os.stat(path))
    except FileNotFoundError:
        return ()
    except OSError:
        return None
