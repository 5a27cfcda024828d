"""Owns the configuration: defaults < file < environment < flags, read once into a frozen value.

The file is TOML; a key that is not known is an error, so that a typing error is not a silent
default. docs/configuration.md lists every key.
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import platformdirs

from skymount.content.model.skyfile import VerifyPolicy
from skymount.errors import ConfigError, MalformedError, WrongTypeError
from skymount.portal.options import (
    DEFAULT_SVC_PORTAL_URL,
    CallOptions,
    PortalOptions,
    parse_portal_url,
)
from skymount.wire.dialect import dialect_named

ENVIRONMENT_PREFIX = "SKYMOUNT_"

_FILE_LIMIT = 1 << 20  # bytes
_OTHERS = 0o066  # permission bits: who is not the owner reads or writes
_LOG_NAME = 200  # characters of a mount point in the name of its log
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d{1,15})\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_SECONDS_LIMIT = 3600.0
_SHOWN = 200  # characters of what is wrong that a message repeats


def _shown(text: object) -> str:
    """Return a part of a message: of one line, not long, and nothing that a terminal obeys."""
    found = str(text)[:_SHOWN]
    return found if found.isprintable() else ascii(found)[1:-1]


def parse_size(value: object) -> int:
    """Read a number of bytes, as an integer or as text like ``128 MiB``."""
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


def _seconds(value: object) -> float:
    if isinstance(value, bool):
        value = None
    try:
        seconds = float(value) if isinstance(value, int | float | str) else -1.0
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 < seconds <= _SECONDS_LIMIT:
        raise ConfigError(f"not a time in seconds: {value!r}")
    return seconds


def _portals(value: object) -> tuple[str, ...]:
    urls = value.split() if isinstance(value, str) else value
    if not isinstance(urls, list | tuple) or not all(isinstance(url, str) for url in urls):
        raise ConfigError(f"not a list of portal addresses: {value!r}")
    return tuple(map(parse_portal_url, urls))


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"not a text: {value!r}")
    return value


def _dialect(value: object) -> str:
    return dialect_named(_text(value)).name


def _user_agent(value: object) -> str:
    return PortalOptions.parse(custom_user_agent=_text(value)).user_agent


def _headers(value: object) -> tuple[tuple[str, str], ...]:
    """Read a table of headers, or lines like ``Name: value``; no error repeats a value."""
    table: Any = value
    if isinstance(value, str):
        lines = [line.partition(":") for line in value.splitlines() if line.strip()]
        table = {name.strip(): content for name, _, content in lines}
        if not all(colon for _, colon, _ in lines) or len(table) < len(lines):
            raise ConfigError("not lines like Name: value, each name once")
    if not isinstance(table, dict):
        raise ConfigError("not a table of names and values")
    return PortalOptions.parse(headers=table).headers


def _node_url(value: object) -> str:
    return PortalOptions.parse(node_url=_text(value)).node_url


def _redirect_hosts(value: object) -> tuple[str, ...]:
    hosts: Any = value.split() if isinstance(value, str) else value
    PortalOptions.parse(redirect_hosts=hosts)
    return tuple(hosts)


def _policy(value: object) -> VerifyPolicy:
    return VerifyPolicy.parse(_text(value))


def _boolean(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    found = value if isinstance(value, bool) else words.get(str(value).lower())
    if found is None:
        raise ConfigError(f"neither true nor false: {value!r}")
    return found


class PortalSettings(CallOptions, total=False):
    """What is the same for every client of the portals, whatever it is for."""

    redirect_hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set. Sizes in bytes, times in seconds."""

    portals: tuple[str, ...] = ()
    """Addresses in the order of preference; none means the default portal, or our own."""
    dialect: str = "svc"
    api_key: str = field(default="", repr=False)
    user_agent: str = ""
    """Empty: that of the dialect."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """(name, value) of those that go with each request; they may hold secrets."""
    node_url: str = ""
    """Where the skykeys are kept; empty: at the portal."""
    redirect_hosts: tuple[str, ...] = ()
    """Where the portal may redirect what is sent."""
    mountpoint: str = ""
    allow_other: bool = False
    verify: VerifyPolicy = VerifyPolicy.AVAILABLE
    memory_cache: int = 128 << 20
    """For content; enough for several sequential readers at once."""
    disk_cache: int = 2 << 30
    """0: nothing is kept on disk."""
    read_ahead: bool = True
    """Whether to raise what the kernel asks for, as root."""
    lookup_grace: float = 0.5
    registry_ttl: float = 2.0
    """How old what stat says of a registry entry may be."""
    send_pending: bool = True
    """Whether what could not be posted is sent by itself."""
    hns_ttl: float = 60.0
    """For which a domain and a v2 skylink stay resolved."""
    timeout: float = 30.0
    """After which any file operation fails, and that a portal may be silent towards a command."""
    log_file: str = ""

    @property
    def portal_urls(self) -> tuple[str, ...]:
        """The portals to use."""
        return self.portals or (DEFAULT_SVC_PORTAL_URL,)

    @property
    def client_options(self) -> PortalSettings:
        """What every client is made with."""
        return {
            "dialect": self.dialect,
            "api_key": self.api_key,
            "custom_user_agent": self.user_agent,
            "headers": dict(self.headers),
            "redirect_hosts": self.redirect_hosts,
            "verify": self.verify.value,
        }


_SECRETS = ("api_key", "headers")
_OF_ONE_PORTAL = (*_SECRETS, "redirect_hosts")
_OF_PORTALS = frozenset({*_OF_ONE_PORTAL, "node_url"})

_PARSERS: Mapping[str, Any] = {
    "portals": _portals,
    "dialect": _dialect,
    "api_key": _text,
    "user_agent": _user_agent,
    "headers": _headers,
    "node_url": _node_url,
    "redirect_hosts": _redirect_hosts,
    "mountpoint": _text,
    "allow_other": _boolean,
    "verify": _policy,
    "memory_cache": parse_size,
    "disk_cache": _size_or_off,
    "read_ahead": _boolean,
    "lookup_grace": _seconds,
    "registry_ttl": _seconds,
    "send_pending": _boolean,
    "hns_ttl": _seconds,
    "timeout": _seconds,
    "log_file": _text,
}
assert set(_PARSERS) == {item.name for item in fields(Config)}


def _merged(config: Config, settings: Mapping[str, object], origin: str) -> Config:
    """Return the configuration with settings laid over it; ConfigError names the origin."""
    unknown = sorted(set(settings) - set(_PARSERS))
    if unknown:
        known = ", ".join(_PARSERS)
        raise ConfigError(f"{origin}: unknown key '{_shown(unknown[0])}'; known ones: {known}")
    parsed: dict[str, Any] = {}
    for key, value in settings.items():
        try:
            parsed[key] = _PARSERS[key](value)
        except (ConfigError, MalformedError, WrongTypeError) as error:
            raise ConfigError(f"{origin}: {key}: {_shown(error)}") from None
    return replace(config, **parsed)


class _Owners:
    """To which portals the settings belong that only they may know, or that only they may set."""

    def __init__(self) -> None:
        self._portals: dict[str, tuple[str, ...]] = {}

    def note(self, settings: Iterable[str], config: Config, *, of_any: bool = False) -> None:
        """Take note of keys that were just set: they belong to the portals of this configuration,
        or to whichever are used in the end.
        """
        for key in _OF_PORTALS.intersection(settings):
            self._portals[key] = () if of_any else config.portal_urls

    def kept(self, config: Config) -> Config:
        """Return the configuration without what belongs to other portals than its own."""
        used = set(config.portal_urls)
        foreign = [key for key, owners in self._portals.items() if owners and used - set(owners)]
        return replace(config, **{key: getattr(Config(), key) for key in foreign})


def default_path() -> Path:
    """Return where the configuration file is looked for."""
    return platformdirs.user_config_path("skymount") / "config.toml"


def default_log_file(mountpoint: str) -> str:
    """Return where the daemon of a mount logs in the background; each has a file of its own."""
    name = mountpoint.strip("/").replace("-", "--").replace("/", "-")[-_LOG_NAME:] or "root"
    return str(platformdirs.user_log_path("skymount") / f"{name}.log")


def _read_file(path: Path, required: bool) -> tuple[dict[str, Any], bool]:
    """Return what is in the file, and whether others than its owner can read or change it."""
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
    is_open = stat.S_ISREG(found.st_mode) and bool(found.st_mode & _OTHERS)
    try:
        return tomllib.loads(raw.decode()), is_open
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits
        raise ConfigError(f"{path}: {_shown(error)}") from None


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
    whose keys override the file's own. ConfigError says where a bad value stands. `warn` is called
    with what is no error.
    """
    path = Path(file) if file else default_path()
    settings, is_open = _read_file(path, required=bool(file))
    mounts = settings.pop("mounts", {})
    if not isinstance(mounts, dict) or not all(isinstance(m, dict) for m in mounts.values()):
        raise ConfigError(f"{path}: mounts: not tables like [mounts.home]")
    owners = _Owners()
    config = of_file = _merged(Config(), settings, str(path))
    owners.note(settings, config)
    for each, table in mounts.items():
        named = _merged(of_file, table, f"{path}: [mounts.{_shown(each)}]")
        if each == name:
            config = named
            owners.note(table, config)
    if name and name not in mounts:
        known = _shown(", ".join(sorted(mounts))) or "there is none"
        raise ConfigError(f"{path}: no table [mounts.{name}]; known ones: {known}")
    if is_open and any(
        table.get(key) for table in (settings, *mounts.values()) for key in _SECRETS
    ):
        warn(f"{path}: others can read or change it, and it holds secrets; `chmod 600 {path}`")
    from_environment = {
        key: environ[ENVIRONMENT_PREFIX + key.upper()]
        for key in _PARSERS
        if environ.get(ENVIRONMENT_PREFIX + key.upper())
    }
    for key, value in from_environment.items():
        config = _merged(config, {key: value}, ENVIRONMENT_PREFIX + key.upper())
    owners.note(from_environment, config, of_any="portals" not in from_environment)
    given = {key: value for key, value in flags.items() if value is not None}
    config = _merged(config, given, "command line")
    owners.note(given, config)
    config = owners.kept(config)
    for key in _OF_ONE_PORTAL:  # what one may know is no business of another
        if getattr(config, key) and len(config.portals) > 1:
            raise ConfigError(f"{key}: name a single portal with it, which it belongs to")
    return config
