"""The configuration: defaults < file < environment < flags, read once into a frozen value.

The file is TOML. An unknown key is an error, so that a typing error does not go unnoticed. Values
that the library takes too are checked by its rules. docs/configuration.md lists every key.
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import platformdirs

from skymount.content.model.skyfile import VerifyPolicy
from skymount.errors import ConfigError, MalformedError, WrongTypeError
from skymount.portal.options import (
    CONNECTIONS,
    DEFAULT_SVC_PORTAL_URL,
    CallOptions,
    PortalOptions,
    parse_portal_url,
)
from skymount.portal.validation import flag, seconds, text, texts
from skymount.wire.dialect import dialect_named

ENVIRONMENT_PREFIX = "SKYMOUNT_"

_FILE_LIMIT = 1 << 20  # bytes
_ACCESS_OF_OTHERS = 0o066  # permission bits
_LOG_NAME_LIMIT = 200  # characters of a mount point in the name of its log
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d{1,15})\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_SECONDS_LIMIT = 3600
_SHOWN_LIMIT = 200  # characters of a bad value in a message


def _shown(value: object) -> str:
    """Return text for a message: short, on one line, without control characters."""
    found = str(value)[:_SHOWN_LIMIT]
    return found if found.isprintable() else ascii(found)[1:-1]


def parse_size(value: object) -> int:
    """Parse a number of bytes: an integer, or text like ``128 MiB``."""
    if type(value) is int and 0 <= value < 1 << 50:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"not a size: {_shown(repr(value))}; write it like 128 MiB")
    return int(match[1]) * unit


def _size_or_off(value: object) -> int:
    if value == "off":
        return 0
    try:
        return parse_size(value)
    except ConfigError as error:
        raise ConfigError(f"{error}, or off") from None


def _seconds(value: object, key: str) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ConfigError(f"not a number of seconds: {value!r}") from None
    return seconds(value, key, _SECONDS_LIMIT)


def _list(value: object, key: str) -> tuple[str, ...]:
    return texts(value.split() if isinstance(value, str) else value, key)


def _path(value: object, key: str) -> str:
    found = text(value, key)
    if "\0" in found:
        raise ConfigError("not a path: it holds a NUL character")
    return found


def _headers(value: object, key: str) -> object:
    table = value
    if isinstance(value, str):
        lines = [line.partition(":") for line in value.splitlines() if line.strip()]
        table = {name.strip(): content for name, _, content in lines}
        if not all(colon for _, colon, _ in lines) or len(table) < len(lines):
            raise ConfigError("not lines like Name: value, each name once")
    return _option(table, key)


def _option(value: object, key: str) -> object:
    """Parse the option of the library that has the same name."""
    options: Any = {key: value}
    return getattr(PortalOptions.parse(**options), key)


def _connections(value: object, key: str) -> object:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    return _option(number, key)


def _redirect_hosts(value: object, key: str) -> tuple[str, ...]:
    hosts = _list(value, key)
    _option(hosts, key)
    return hosts


def _boolean(value: object, key: str) -> bool:
    if not isinstance(value, str):
        return flag(value, key)
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if value.lower() not in words:
        raise ConfigError(f"neither true nor false: {value!r}")
    return words[value.lower()]


class PortalSettings(CallOptions, total=False):
    """The options that every client of the portals is made with."""

    ca_file: str
    connections: int
    redirect_hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set; docs/configuration.md says what it means. Bytes and seconds."""

    portals: tuple[str, ...] = ()
    dialect: str = "svc"
    api_key: str = field(default="", repr=False)
    user_agent: str = ""  # empty: that of the dialect
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    node_url: str = ""
    ca_file: str = ""
    connections: int = CONNECTIONS
    redirect_hosts: tuple[str, ...] = ()
    mountpoint: str = ""
    allow_other: bool = False
    verify: VerifyPolicy = VerifyPolicy.AVAILABLE
    memory_cache: int = 128 << 20
    tree_cache: int = 256 << 20
    disk_cache: int = 2 << 30  # 0: nothing is kept on disk
    read_ahead: bool = True
    lookup_grace: float = 0.5
    registry_ttl: float = 2.0
    send_pending: bool = True
    hns_ttl: float = 60.0
    timeout: float = 30.0
    log_file: str = ""

    @property
    def portal_urls(self) -> tuple[str, ...]:
        return self.portals or (DEFAULT_SVC_PORTAL_URL,)

    @property
    def client_options(self) -> PortalSettings:
        return {
            "dialect": self.dialect,
            "api_key": self.api_key,
            "custom_user_agent": self.user_agent,
            "headers": dict(self.headers),
            "ca_file": self.ca_file,
            "connections": self.connections,
            "redirect_hosts": self.redirect_hosts,
            "verify": self.verify.value,
        }


_SECRETS = ("api_key", "headers")
_SINGLE_PORTAL_KEYS = (*_SECRETS, "redirect_hosts")
_PORTAL_KEYS = frozenset({*_SINGLE_PORTAL_KEYS, "node_url"})  # never used with other portals

_PARSERS: Mapping[str, Callable[[object, str], object]] = {
    "portals": lambda value, key: tuple(map(parse_portal_url, _list(value, key))),
    "dialect": lambda value, key: dialect_named(text(value, key)).name,
    "api_key": _option,
    "user_agent": lambda value, key: (
        PortalOptions.parse(custom_user_agent=text(value, key)).user_agent
    ),
    "headers": _headers,
    "node_url": _option,
    "ca_file": _option,
    "connections": _connections,
    "redirect_hosts": _redirect_hosts,
    "mountpoint": _path,
    "allow_other": _boolean,
    "verify": lambda value, key: VerifyPolicy.parse(text(value, key)),
    "memory_cache": lambda value, _: parse_size(value),
    "tree_cache": lambda value, _: parse_size(value),
    "disk_cache": lambda value, _: _size_or_off(value),
    "read_ahead": _boolean,
    "lookup_grace": _seconds,
    "registry_ttl": _seconds,
    "send_pending": _boolean,
    "hns_ttl": _seconds,
    "timeout": _seconds,
    "log_file": _path,
}
assert set(_PARSERS) == {item.name for item in fields(Config)}


def _merged(config: Config, settings: Mapping[str, object], origin: str) -> Config:
    """Return the configuration with these settings; ConfigError names the origin and the key."""
    unknown = sorted(set(settings) - set(_PARSERS))
    if unknown:
        known = ", ".join(_PARSERS)
        raise ConfigError(f"{origin}: unknown key '{_shown(unknown[0])}'; known ones: {known}")
    parsed: dict[str, Any] = {}
    for key, value in settings.items():
        try:
            parsed[key] = _PARSERS[key](value, key)
        except (ConfigError, MalformedError, WrongTypeError) as error:
            named = _shown(error) if str(error).startswith(key) else f"{key}: {_shown(error)}"
            raise ConfigError(f"{origin}: {named}") from None
    return replace(config, **parsed)


def default_path() -> Path:
    """Return the path of the configuration file unless another is named."""
    return platformdirs.user_config_path("skymount") / "config.toml"


def default_log_file(mountpoint: str) -> str:
    """Return the log file of a mount's daemon in the background; each mount has its own."""
    name = mountpoint.strip("/").replace("-", "--").replace("/", "-")[-_LOG_NAME_LIMIT:] or "root"
    return str(platformdirs.user_log_path("skymount") / f"{name}.log")


def _read_file(path: Path, required: bool) -> tuple[dict[str, Any], bool]:
    """Return what is in the file, and whether other users can read or change it."""
    try:
        with path.open("rb") as file:
            raw = file.read(_FILE_LIMIT + 1)
            found = os.fstat(file.fileno())
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path}: no such file") from None
        return {}, False
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(raw) > _FILE_LIMIT:
        raise ConfigError(f"{path}: larger than {_FILE_LIMIT} bytes")
    is_open = stat.S_ISREG(found.st_mode) and bool(found.st_mode & _ACCESS_OF_OTHERS)
    try:
        return tomllib.loads(raw.decode()), is_open
    except (ValueError, RecursionError) as error:  # ValueError also for a huge number
        raise ConfigError(f"{path}: {_shown(error)}") from None


def _pop_mounts(settings: dict[str, Any], path: Path, name: str) -> Mapping[str, dict[str, Any]]:
    """Take the tables ``[mounts.NAME]`` out of the settings; the one of `name` must exist."""
    mounts = settings.pop("mounts", {})
    if not isinstance(mounts, dict) or not all(isinstance(m, dict) for m in mounts.values()):
        raise ConfigError(f"{path}: mounts: not tables like [mounts.home]")
    if name and name not in mounts:
        known = _shown(", ".join(sorted(mounts))) or "there is none"
        raise ConfigError(f"{path}: no table [mounts.{name}]; known ones: {known}")
    return mounts


def load(
    flags: Mapping[str, object],
    *,
    environ: Mapping[str, str],
    file: str = "",
    name: str = "",
    warn: Callable[[str], None] = lambda text: None,
) -> Config:
    """Read the configuration; flags that are None were not given.

    `file` replaces the default path and must then exist; `name` selects a table ``[mounts.NAME]``
    whose keys override the file's own. ConfigError says where a bad value was found. `warn` is
    called when other users can read secrets in the file.
    """
    path = Path(file) if file else default_path()
    settings, is_open = _read_file(path, required=bool(file))
    mounts = _pop_mounts(settings, path, name)
    variables = {f"{ENVIRONMENT_PREFIX}{key.upper()}": key for key in _PARSERS}
    environment = {key: value for name, key in variables.items() if (value := environ.get(name))}
    given = {key: value for key, value in flags.items() if value is not None}

    config = of_file = _merged(Config(), settings, str(path))
    owners = dict.fromkeys(_PORTAL_KEYS & settings.keys(), config.portal_urls)
    for each, table in mounts.items():  # errors in tables that are not used are reported too
        of_mount = _merged(of_file, table, f"{path}: [mounts.{_shown(each)}]")
        if each == name:
            config = of_mount
            owners |= dict.fromkeys(_PORTAL_KEYS & table.keys(), config.portal_urls)
    if is_open and any(
        table.get(key) for table in (settings, *mounts.values()) for key in _SECRETS
    ):
        warn(f"{path}: others can read or change it, and it holds secrets; `chmod 600 {path}`")
    for key, value in environment.items():
        config = _merged(config, {key: value}, ENVIRONMENT_PREFIX + key.upper())
    of_environment = config.portal_urls if "portals" in environment else ()  # (): any portal
    owners |= dict.fromkeys(_PORTAL_KEYS & environment.keys(), of_environment)
    config = _merged(config, given, "command line")
    owners |= dict.fromkeys(_PORTAL_KEYS & given.keys(), config.portal_urls)
    return _without_foreign(config, owners)


def _without_foreign(config: Config, owners: Mapping[str, tuple[str, ...]]) -> Config:
    """Drop keys that belong to other portals than those used; `owners` has the portals of each."""
    used = set(config.portal_urls)
    foreign = [key for key, portals in owners.items() if portals and used - set(portals)]
    config = replace(config, **{key: getattr(Config(), key) for key in foreign})
    for key in _SINGLE_PORTAL_KEYS:
        if getattr(config, key) and len(config.portals) > 1:
            raise ConfigError(f"{key}: name a single portal with it, which it belongs to")
    return config
