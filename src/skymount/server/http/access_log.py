"""The access log: a line for each request in the combined format, with nothing secret in it."""

import logging
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import trio

from skymount.errors import ConfigError
from skymount.process_hardening import has_terminal

_log = logging.getLogger(__name__)


OWNER = "owner"
"""Who has given the password without a user name."""

_WAITING = 10_000  # lines that are yet to be written; more are lost
_LAST_WRITE = 1.0  # seconds that the last lines may take at the end
_TELL = 60.0  # seconds between lines of the log about lost ones
_SLOW = "the file is too slow"
_GONE = 499  # the status of a client that went away, as nginx has it
_NONE = "-"

# Bytes of fields. A line is shorter than PIPE_BUF, so that one write is whole in a pipe too.
_TARGET_LIMIT, _FIELD_LIMIT, _WORD_LIMIT = 2048, 768, 64
_NO_WORD = re.compile(r'[^\x21-\x7e]|["\\]')
_NO_TEXT = re.compile(r'[^\x20-\x7e]|["\\]')
_HALF_ESCAPE = re.compile(r"\\(x[0-9A-F]?)?$")

_QUERY_LIMIT = 1024  # characters of a query that are looked at
_SHOWN = frozenset({"attachment", "dryrun", "format", "length", "offset", "page", "timeout"})
_PLAIN = re.compile(r"[A-Za-z0-9._-]{0,40}")
_HIDDEN = "..."
_SCHEMES = ("", "http:", "https:")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_WRITING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
_FLAGS = _WRITING | os.O_NONBLOCK  # of a pipe without a reader


@dataclass(slots=True)
class Visit:
    """One request, and how it was answered."""

    address: str = ""  # of the client
    method: str = ""
    target: str = ""
    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    path: str = ""  # with what the host selects
    user: str = ""
    """Who has given the password, or has a session, where it was looked at."""
    status: int = _GONE
    size: int = 0  # bytes of the body that were sent
    skylink: str = ""
    began: float = field(default_factory=time.time)
    seconds: float = 0


Observer = Callable[[Visit], None]


def line_of(visit: Visit) -> bytes:
    """Return the line of a request."""
    target = _escape(without_secrets(visit.target), _TARGET_LIMIT)
    version = f"HTTP/{visit.version}"
    request = f"{_word(visit.method)} {target} {version}" if visit.method else _NONE
    referer = without_secrets(visit.headers.get("referer", ""))
    agent = _without_users(visit.headers.get("user-agent", ""))
    return (
        f"{_word(visit.address)} - {_word(visit.user)} [{_time(int(visit.began))}] "
        f'"{request}" {visit.status} {visit.size} '
        f'"{_escape(referer, _FIELD_LIMIT, _NO_TEXT)}" "{_escape(agent, _FIELD_LIMIT, _NO_TEXT)}" '
        f"{visit.seconds:.3f} {_word(visit.skylink)}\n"
    ).encode("ascii")


def without_secrets(url: str) -> str:
    """Return a URL without user and password, fragment, and most values of its query."""
    path, asked, query = url.partition("#")[0].partition("?")
    path = _without_users(path)
    if not asked:
        return path
    return f"{path}?{'&'.join(map(_public_parameter, query[:_QUERY_LIMIT].split('&')))}"


def _without_users(path: str) -> str:
    if len(path) > _TARGET_LIMIT:  # of the last segment its end is not known
        path = f"{path[:_TARGET_LIMIT].rpartition('/')[0]}/{_HIDDEN}"
    if "@" not in path and "%40" not in path:
        return path
    scheme, slashes, rest = path.partition("//")
    if slashes and scheme.lower() in _SCHEMES and (at := rest.partition("/")[0].rfind("@")) >= 0:
        path = f"{scheme}//{_HIDDEN}{rest[at:]}"
    return "/".join(map(_without_user, path.split("/")))


def _without_user(segment: str) -> str:
    """Return a segment of a path, or an authority, without ``user:password@``."""
    before, at, after = segment.replace("%40", "@").rpartition("@")
    is_secret = at and (":" in before or "%3a" in before.lower())
    return f"{_HIDDEN}@{after}" if is_secret else segment


def _public_parameter(text: str) -> str:
    name, equals, value = text.partition("=")
    if name in _SHOWN and _PLAIN.fullmatch(value):
        return text
    return f"{name}={_HIDDEN}" if equals and name and _PLAIN.fullmatch(name) else _HIDDEN


def _word(text: str) -> str:
    return _escape(text, _WORD_LIMIT)


def _escape(text: str, limit: int, unsafe: re.Pattern[str] = _NO_WORD) -> str:
    """Return text without what could end a field of a line; ``-`` for an empty one."""
    escaped = unsafe.sub(_hex, text[:limit])[:limit]
    return _HALF_ESCAPE.sub("", escaped) or _NONE


def _hex(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02X}" for byte in found[0].encode("latin-1", "replace"))


@lru_cache(maxsize=2)
def _time(second: int) -> str:
    there = time.localtime(second)
    return time.strftime(f"%d/{_MONTHS[there.tm_mon - 1]}/%Y:%H:%M:%S %z", there)


class AccessLog:
    """A file that lines are appended to, by a thread."""

    def __init__(self, path: str, hangups: AsyncIterator[int] | None) -> None:
        """`path` may be ``-``, standard error; it is opened again at `hangups`. ConfigError."""
        self._path = path
        self._hangups = hangups
        try:
            self._file = os.dup(2) if path == _NONE else os.open(path, _FLAGS, 0o600)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"access log {path} cannot be written: {reason}") from None
        self._lines: deque[bytes] = deque()
        self._arrived = trio.Event()
        self._lost, self._reason = 0, _SLOW
        self._next_told = 0.0
        self._is_torn = False
        self._turn = threading.Lock()
        self._had_terminal = has_terminal()

    def add(self, visit: Visit) -> None:
        if len(self._lines) < _WAITING:
            self._lines.append(line_of(visit))
        else:
            self._lost += 1
        self._arrived.set()

    async def run(self) -> None:
        """Write lines until cancelled, and open the file again at hangups."""
        async with trio.open_nursery() as nursery:
            if self._hangups is not None:
                nursery.start_soon(self._reopen_at, self._hangups)
            while True:
                await self._arrived.wait()
                self._arrived = trio.Event()
                await trio.to_thread.run_sync(self._write, abandon_on_cancel=True)

    async def close(self) -> None:
        with trio.move_on_after(_LAST_WRITE, shield=True):
            await trio.to_thread.run_sync(self._finish, abandon_on_cancel=True)

    def _finish(self) -> None:
        self._write()
        with self._turn:
            self._tell_lost()
            os.close(self._file)
            self._file = -1  # for a thread that was late

    def _write(self) -> None:
        """Write each line at once, as other processes write to the file too."""
        with self._turn:
            while self._lines:
                line = b"\n" * self._is_torn + self._lines.popleft()
                try:
                    self._is_torn = os.write(self._file, line) < len(line)
                    self._lost += self._is_torn
                except OSError as error:
                    self._lost, self._reason = self._lost + 1, str(error.strerror)
            if time.monotonic() >= self._next_told:
                self._tell_lost()

    def _tell_lost(self) -> None:
        if self._lost:
            _log.warning("%d lines of the access log were lost: %s", self._lost, self._reason)
            self._lost, self._reason = 0, _SLOW
            self._next_told = time.monotonic() + _TELL

    async def _reopen_at(self, hangups: AsyncIterator[int]) -> None:
        async for _ in hangups:
            if self._had_terminal and not has_terminal():
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                await trio.to_thread.run_sync(self._reopen)

    def _reopen(self) -> None:
        """Go on in the file that is at the path now; in the one before if that cannot be done."""
        try:
            file = os.open(self._path, _FLAGS, 0o600)
        except OSError as error:
            _log.warning("access log %s cannot be opened again: %s", self._path, error.strerror)
            return
        os.dup2(file, self._file, inheritable=False)
        os.close(file)


@asynccontextmanager
async def opened(path: str | None) -> AsyncIterator[AccessLog | None]:
    """Open the access log at a path, if there is one, and write its last lines at the end."""
    if path is None:
        yield None
        return
    with ExitStack() as stack:
        hangups = None
        if path != _NONE:  # from now on, so that none is lost before `run`
            hangups = stack.enter_context(trio.open_signal_receiver(signal.SIGHUP))
        log = AccessLog(path, hangups)
        try:
            yield log
        finally:
            await log.close()
