"""The configuration: defaults < file < environment < flags, read once into a frozen `Config`.

The file is TOML. An unknown key is an error, so that a typing error does not go unnoticed. All that
is wrong is said at once, each with the line, the variable or the table where it stands.
docs/configuration.md lists every key.
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeGuard

from skymount.errors import ConfigError, MalformedError, WrongTypeError
from skymount.settings import OF_ONE_PORTAL, SETTINGS, Config, Setting
from skymount.storage.pipes import open_at_once, read_within
from skymount.user_directories import user_directory
from skymount.values import portal_identity, refuse_variables
from skymount.wording import did_you_mean, readable_size

PREFIX = "SKYMOUNT_"
"""How variables of the environment begin."""

_OTHER_VARIABLES = ("SKYMOUNT_PORTAL_PASSWORD",)  # that begin so and are no settings

PIPE_TIMEOUT = 10.0
"""Seconds that a pipe in place of the file may take."""

_SIZE_LIMIT = 1 << 20  # bytes
_ACCESS_OF_OTHERS = 0o066  # permission bits
_SEARCH_LIMIT = 4 << 20  # characters that are parsed to find a line
_REPEATED = re.compile(r"Cannot overwrite a value|Cannot declare .* twice")  # of tomllib
_KEY = re.compile(r"\s*(?:([^\s=\[#][^=]*?)\s*=|\[+([^\]]*)\])")  # at the start of a line
_SHOWN_LIMIT = 200  # characters of a bad value in a message
_LOG_NAME_LIMIT = 200  # characters of a mount point in the name of its log

Place = Callable[..., str]
"""Returns where the value stands that some keys lead to, for a message."""


# --- the file, and on which line a value stands


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


def default_log_file(mountpoint: str) -> str:
    """Return the log file of a mount's daemon in the background; each mount has its own."""
    name = mountpoint.strip("/").replace("-", "--").replace("/", "-")[-_LOG_NAME_LIMIT:] or "root"
    return str(user_directory("state", ConfigError) / "log" / f"{name}.log")


def shown(value: object) -> str:
    """Return text for a message: short, on one line, without control characters."""
    found = str(value)[:_SHOWN_LIMIT]
    return found if found.isprintable() else ascii(found)[1:-1]


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
                mode = os.fstat(file.fileno()).st_mode
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
        is_open = stat.S_ISREG(mode) and bool(mode & _ACCESS_OF_OTHERS)
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


# --- what is in it, in the environment and in flags


def load(
    flags: Mapping[str, object],
    *,
    environ: Mapping[str, str],
    file: str = "",
    name: str = "",
    given_by: str = "command line",
    others: bool = False,
    warn: Callable[[str], None] = lambda text: None,
) -> Config:
    """Read the configuration; flags that are None were not given.

    `file` replaces the default path and must then exist; `name` selects a table ``[mounts.NAME]``
    whose keys override the file's own. ConfigError says where each bad value was found; the flags
    are `given_by` the command line, or whoever else. `others`: what the environment has for
    whichever portal a command uses is for other portals of the command than these. `warn` is called
    when other users can read secrets in the file.
    """
    path = default_path() if name and not file else path_to_read(file)
    read = ConfigFile.read(path, required=bool(file)) if path else ConfigFile(Path("none"))
    found = _Layers()
    found.add_file(read, name)
    if found.has_secrets and read.is_open_to_others:
        warn(f"{path}: others can read or change it, and it holds secrets; `chmod 600 {path}`")
    environment = found.environment(environ)
    for_any = "portals" not in environment
    if others and for_any:
        environment = {key: environment[key] for key in environment if not SETTINGS[key].of_one}
    found.add(environment, lambda key, *_: f"{PREFIX}{str(key).upper()}", for_any=for_any)
    given = {key: value for key, value in flags.items() if value is not None}
    found.add(given, lambda *_: given_by, by_shell=True)
    return found.config(environment.keys() | given.keys())


_Tables = dict[object, tuple[dict[str, Any], Place]]  # by the identities of portals


class _Given(NamedTuple):
    """A value of a setting."""

    value: Any
    place: Place
    owners: Set[object] | None
    """The portals that were named as it was set, to which it may belong; None: any."""


class _Layers:
    """What has been set so far, and what is wrong with it."""

    def __init__(self) -> None:
        self._faults: list[str] = []
        self._given: dict[str, _Given] = {}
        self._tables: _Tables = {}
        self._urls: tuple[str, ...] = ()
        self.has_secrets = False

    @property
    def _portals(self) -> Set[object]:
        """The identities of the portals that are named so far."""
        return {portal_identity(url) for url in Config(portals=self._urls).portal_urls}

    def add_file(self, file: ConfigFile, name: str) -> None:
        mounts = file.settings.pop("mounts", {})
        self.add(file.settings, file.place)
        if not isinstance(mounts, dict) or not all(isinstance(m, dict) for m in mounts.values()):
            self._fault(file.place("mounts"), "mounts: not tables like [mounts.home]")
            return
        if name and name not in mounts:
            known = shown(", ".join(sorted(mounts))) or "there is none"
            self._fault(str(file.path), f"no table [mounts.{name}]; known ones: {known}")
        for each, table in mounts.items():

            def place(*keys: str | int, each: str = each) -> str:
                return f"{file.place('mounts', each, *keys)}: [mounts.{shown(each)}]"

            if each == name:
                self.add(table, place)
            else:  # its errors are reported too
                self._parsed(table, place)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return what the environment sets; a variable that is misspelt is an error."""
        known = {f"{PREFIX}{key.upper()}": key for key in SETTINGS}
        names = [name.removeprefix(PREFIX) for name in (*known, *_OTHER_VARIABLES)]
        for name in sorted(environ):
            key, rest = known.get(name), name.removeprefix(PREFIX)
            if key and SETTINGS[key].is_path and not environ[name]:
                self._fault(name, "it is an empty path; remove the variable, or name a file")
            elif rest not in (name, *names):
                advice = did_you_mean(rest, names, f"{PREFIX}{{}}")
                if advice:  # others may use the prefix too
                    self._fault(shown(name), f"there is no such variable{advice}")
        return {key: environ[name] for name, key in known.items() if environ.get(name)}

    def add(
        self,
        given: Mapping[str, object],
        place: Place,
        *,
        for_any: bool = False,
        by_shell: bool = False,
    ) -> None:
        """Add settings that override all before. `for_any`: they belong to whichever portal;
        `by_shell`: a shell has replaced the variables in them.
        """
        found = self._parsed(given, place, by_shell=by_shell)
        self._tables |= found.pop("portal_tables", {})
        self._urls = found.get("portals", self._urls)
        owners = None if for_any else self._portals
        self._given |= {key: _Given(value, place, owners) for key, value in found.items()}

    def _parsed(
        self,
        given: Mapping[str, object],
        place: Place,
        known: Mapping[str, Setting] = SETTINGS,
        *,
        by_shell: bool = False,
    ) -> dict[str, Any]:
        """Return the values of keys; what tables of portals set is in `portal_tables`."""
        found: dict[str, Any] = {}
        for key, value in given.items():
            setting = known.get(key)
            try:
                if setting is None:
                    self._fault(place(key), _unknown_key(key, value, known))
                elif key == "portals" and _is_tables(value):
                    tables = found["portal_tables"] = self._tables_of(value, place)
                    found[key] = tuple(table["url"] for table, _ in tables.values())
                else:
                    if setting.is_path and not by_shell:
                        refuse_variables(value, key)
                    found[key] = setting.parse(value, key)
                    self.has_secrets |= setting.secret and bool(value)
            except (MalformedError, WrongTypeError) as error:
                named = "" if str(error).startswith(key) else f"{key}: "
                self._fault(place(key), f"{named}{shown(error)}")
        return found

    def _tables_of(self, given: list[object], place: Place) -> _Tables:
        """Return the tables ``[[portals]]`` by the identities of their portals."""
        found: _Tables = {}
        for number, table in enumerate(given):

            def of_table(*keys: str | int, number: int = number) -> str:
                return f"{place('portals', number, *keys)}: [[portals]] {number + 1}"

            if not isinstance(table, dict):
                self._fault(of_table(), "addresses and tables cannot be mixed")
                continue
            values = self._parsed(table, of_table, OF_ONE_PORTAL)
            if not table.get("url"):
                self._fault(of_table(), "it has no url")
            if url := values.get("url"):
                identity = portal_identity(url)
                if identity in found:
                    self._fault(of_table(), f"{url} is listed twice")
                found[identity] = values, of_table
        return found

    def _fault(self, place: str, what: str) -> None:
        self._faults.append(f"{place}: {what}")

    def config(self, later: Collection[str]) -> Config:
        """Return the configuration without what belongs to other portals than those used.

        Keys that were set `later` than the file replace those of a portal's table.
        """
        self._check()
        used = self._portals
        places: dict[object, Place] = {key: each.place for key, each in self._given.items()}
        values = {}
        for key, (value, place, owners) in self._given.items():
            if SETTINGS[key].of_one and owners is not None and not used <= owners:
                places[key] = partial(_of_another_portal, place)
            else:
                values[key] = value
        tables = {}
        for identity in used & self._tables.keys():
            table, places[identity] = self._tables[identity]
            tables[identity] = {k: table[k] for k in table if not (k in later and k in values)}
        secrets = [key for key, setting in OF_ONE_PORTAL.items() if setting.secret]
        is_secret = any(table.get(key) for table in tables.values() for key in secrets)
        for key in values if len(used) > 1 else ():
            # The node would get the credentials of one of them.
            if SETTINGS[key].of_one and values[key] and (is_secret or key != "node_url"):
                self._fault(
                    places[key](key),
                    f"{key}: name a single portal with it, which it belongs to, or set it in the "
                    "portal's own table [[portals]]",
                )
        self._check()
        return Config(**values, portal_tables=tables, places=places)

    def _check(self) -> None:
        if self._faults:
            raise ConfigError("; also ".join(dict.fromkeys(self._faults)))


def _is_tables(value: object) -> TypeGuard[list[object]]:
    """Whether a value of the key `portals` is tables, not addresses."""
    if isinstance(value, dict):
        raise MalformedError("a portal's table begins with [[portals]], in two brackets each")
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def _unknown_key(key: str, value: object, known: Mapping[str, Setting]) -> str:
    said = f"unknown key '{shown(key)}'"
    if known is SETTINGS and isinstance(value, dict) and did_you_mean(key, ["mounts"]):
        named = next((f".{name}" for name, each in value.items() if isinstance(each, dict)), "")
        return f"{said}; did you mean [mounts{shown(named)}]?"
    said += did_you_mean(key, known) or f"; known ones: {', '.join(known)}"
    is_misplaced = known is not SETTINGS and key in SETTINGS
    above = f"; put '{key}' above the first table, it is not of one portal"
    return said + above * is_misplaced


def _of_another_portal(place: Place, key: str) -> str:
    return f"default; that of {place(key)} belongs to another portal"
