"""The configuration file: what is in it, and on which line a value stands."""

import os
import re
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Self

from skymount.errors import ConfigError
from skymount.storage.pipes import open_at_once, read_within
from skymount.user_directories import user_directory
from skymount.wording import readable_size

PIPE_TIMEOUT = 10.0
"""Seconds that a pipe in place of the file may take."""

_SIZE_LIMIT = 1 << 20  # bytes
_ACCESS_OF_OTHERS = 0o066  # permission bits
_SEARCH_LIMIT = 4 << 20  # characters that are parsed to find a line
_REPEATED = re.compile(r"Cannot overwrite a value|Cannot declare .* twice")  # of tomllib
_KEY = re.compile(r"\s*(?:([^\s=\[#][^=]*?)\s*=|\[+([^\]]*)\])")  # at the start of a line
_SHOWN_LIMIT = 200  # characters of a bad value in a message


def default_path() -> Path:
    """Return the path of the configuration file unless another is named; ConfigError."""
    return user_directory("config", ConfigError) / "config.toml"


def path_to_read(file: str) -> Path | None:
    """Return the path that is named, or the default one; None without a home directory."""
    if file:
        return Path(file)
    with suppress(ConfigError):
        return default_path()
    return None


def shown(value: object) -> str:
    """Return text for a message: short, on one line, without control characters."""
    found = str(value)[:_SHOWN_LIMIT]
    return found if found.isprintable() else ascii(found)[1:-1]


class Faults:
    """What is wrong in a configuration, to be said all at once."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def add(self, fault: str) -> None:
        self._found.append(fault)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a ConfigError and go on."""
        try:
            yield
        except ConfigError as error:
            self.add(str(error))

    def check(self) -> None:
        """ConfigError for all that was noted."""
        if self._found:
            raise ConfigError("; also ".join(dict.fromkeys(self._found)))


@dataclass(frozen=True)
class ConfigFile:
    """A TOML file as it was read."""

    path: Path
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    is_open_to_others: bool = False
    """Whether other users can read or change it."""
    _text: str = field(default="", repr=False)

    @classmethod
    def read(cls, path: Path, *, required: bool, patience: float = PIPE_TIMEOUT) -> Self:
        """Read the file; ConfigError when that fails.

        If it is not `required` and there is none, it counts as empty. `patience` is the seconds
        that a pipe may take.
        """
        try:
            with FileIO(path, opener=open_at_once) as file:
                found = os.fstat(file.fileno())
                if stat.S_ISREG(found.st_mode):
                    raw = file.read(_SIZE_LIMIT + 1) or b""
                else:
                    raw = read_within(file, _SIZE_LIMIT + 1, patience)
        except FileNotFoundError:
            if required:
                raise ConfigError(f"{path}: no such file") from None
            return cls(path)
        except TimeoutError:
            raise ConfigError(
                f"{path}: nothing was written to it for {patience:g} s; name a file, or a pipe "
                "that a program writes to and closes"
            ) from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        if len(raw) > _SIZE_LIMIT:
            raise ConfigError(f"{path}: larger than {readable_size(_SIZE_LIMIT)}")
        is_open = stat.S_ISREG(found.st_mode) and bool(found.st_mode & _ACCESS_OF_OTHERS)
        try:
            text = raw.decode("utf-8-sig")  # some editors begin a file with a BOM
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: it is not text in UTF-8: {shown(error)}") from None
        try:
            return cls(path, tomllib.loads(text), is_open, text)
        except (ValueError, RecursionError) as error:  # ValueError also for a huge number
            if twice := _set_twice(text, str(error)):
                raise ConfigError(f"{path}: {twice}") from None
            raise ConfigError(f"{path}: it is not valid TOML: {shown(error)}") from None

    def place(self, *keys: str | int) -> str:
        """Return where a value stands, for a message: ``PATH: line 3``, or the path alone.

        `keys` lead to it: names of keys, and positions in lists.
        """
        line = line_of(self._text, *keys)
        return str(self.path) if line is None else f"{self.path}: line {line}"


def _set_twice(text: str, reason: str) -> str:
    """Return what to say of a key that is there twice; "" if tomllib gave another reason."""
    if not _REPEATED.match(reason):
        return ""
    lines = text.rstrip().split("\n")
    at = re.search(r"at line (\d+)", reason)
    line = int(at[1]) if at else len(lines)
    key = _KEY.match(lines[line - 1])
    return f"line {line}: {shown(key[1] or key[2])} is set twice" if key else ""


def line_of(text: str, *keys: str | int) -> int | None:
    """Return the number of the line on which a value of a TOML document begins.

    None if it is not there, or the document is too long to look for it. tomllib does not tell
    lines, so beginnings of the document are parsed until the shortest that has the value is found.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    parsed = 0

    def has_value(count: int) -> bool | None:
        """Whether the first lines have the value; None if a value goes on behind them."""
        nonlocal parsed
        beginning = "\n".join(lines[:count])
        parsed += len(beginning)
        try:
            return _has(tomllib.loads(beginning), keys)
        except ValueError:
            return None

    without, first = 0, len(lines)  # these beginnings are whole; only the second has the value
    if not has_value(first):
        return None
    while first - without > 1:
        middle = (without + first) // 2
        for count in (*range(middle, first), *range(middle - 1, without, -1)):
            if parsed > _SEARCH_LIMIT:
                return None
            found = has_value(count)
            if found is not None:
                break
        else:  # the value's own lines
            break
        without, first = (without, count) if found else (count, first)
    return without + 1


def _has(value: Any, keys: tuple[str | int, ...]) -> bool:
    try:
        for key in keys:
            value = value[key]
    except (KeyError, IndexError, TypeError):
        return False
    return True
