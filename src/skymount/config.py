"""The configuration: defaults < file < environment < flags, read once into a frozen value.

The file is TOML. An unknown key is an error, so that a typing error does not go unnoticed. Values
that the library takes too are checked by its rules. docs/configuration.md lists every key.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs

from skymount.config_file import ConfigFile, shown
from skymount.config_portals import (
    CREDENTIALS,
    OPTION_KEYS,
    Place,
    PortalTable,
    first_repeated,
    is_tables,
    parse_tables,
)
from skymount.content.model.skyfile import VerifyPolicy
from skymount.errors import ConfigError, MalformedError, WrongTypeError
from skymount.portal.options import (
    CONNECTIONS,
    DEFAULT_SVC_PORTAL_URL,
    ClientOptions,
    PortalOptions,
    parse_portal_url,
    portal_identity,
)
from skymount.portal.validation import flag, seconds, text, texts
from skymount.portal.write_policy import WritePolicy
from skymount.wire.dialect import Dialect, dialect_named

ENVIRONMENT_PREFIX = "SKYMOUNT_"

_LOG_NAME_LIMIT = 200  # characters of a mount point in the name of its log
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d{1,15})\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_SECONDS_LIMIT = 3600


def parse_size(value: object) -> int:
    """Parse a number of bytes: an integer, or text like ``128 MiB``."""
    if type(value) is int and 0 <= value < 1 << 50:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"not a size: {shown(repr(value))}; write it like 128 MiB")
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


def _portals(value: object, key: str) -> tuple[str, ...]:
    if isinstance(value, dict):
        raise ConfigError("a portal's table begins with [[portals]], in two brackets each")
    found = tuple(map(parse_portal_url, _list(value, key)))
    repeated = first_repeated(found)
    if repeated is not None:
        raise ConfigError(f"{found[repeated]} is listed twice")
    return found


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
    registry_writes: WritePolicy = WritePolicy.ANY
    hns_ttl: float = 60.0
    timeout: float = 30.0
    log_file: str = ""
    portal_tables: tuple[PortalTable, ...] = ()  # of those portals that have one

    @property
    def portal_urls(self) -> tuple[str, ...]:
        return self.portals or (DEFAULT_SVC_PORTAL_URL,)

    @property
    def portal_options(self) -> Mapping[str, ClientOptions]:
        """The options of each portal's client, by its address: no other portal may get them."""
        tables = {portal_identity(table.url): table.options for table in self.portal_tables}
        none = ClientOptions()
        return {
            url: {**self.client_options, **tables.get(portal_identity(url), none)}
            for url in self.portal_urls
        }

    @property
    def writing_url(self) -> str:
        """The portal for commands that write to one: the first that is not read-only, if any."""
        options = self.portal_options
        writable = (url for url in options if not options[url].get("read_only"))
        return next(writable, self.portal_urls[0])

    @property
    def first_dialect(self) -> Dialect:
        """The names that the first portal uses."""
        return PortalOptions.parse(**self.portal_options[self.portal_urls[0]]).dialect

    @property
    def client_options(self) -> ClientOptions:
        """The options of a client of a portal that has no table."""
        return {
            "dialect": self.dialect,
            "api_key": self.api_key,
            "custom_user_agent": self.user_agent,
            "headers": dict(self.headers),
            "node_url": self.node_url,
            "ca_file": self.ca_file,
            "connections": self.connections,
            "redirect_hosts": self.redirect_hosts,
            "verify": self.verify.value,
        }


_SINGLE_PORTAL_KEYS = (*CREDENTIALS, "redirect_hosts")
_PORTAL_KEYS = frozenset({*_SINGLE_PORTAL_KEYS, "node_url"})  # never used with other portals

_PARSERS: Mapping[str, Callable[[object, str], object]] = {
    "portals": _portals,
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
    "registry_writes": lambda value, key: WritePolicy.parse(text(value, key)),
    "hns_ttl": _seconds,
    "timeout": _seconds,
    "log_file": _path,
}
KEYS = tuple(_PARSERS)
"""All keys of the file, the tables ``[mounts.NAME]`` left out."""

assert {*KEYS, "portal_tables"} == {item.name for item in fields(Config)}


def _merged(config: Config, settings: Mapping[str, object], place: Place) -> Config:
    """Return the configuration with these settings; ConfigError names the place and the key."""
    unknown = sorted(set(settings) - set(_PARSERS))
    if unknown:
        said = f"unknown key '{shown(unknown[0])}'; known ones: {', '.join(_PARSERS)}"
        raise ConfigError(f"{place(unknown[0])}: {said}")
    portals = settings.get("portals")
    if is_tables(portals):
        tables = parse_tables(portals, partial(place, "portals"), KEYS)
        config = replace(config, portal_tables=_joined(config.portal_tables, tables))
        settings = {**settings, "portals": [table.url for table in tables]}
    parsed: dict[str, Any] = {}
    for key, value in settings.items():
        try:
            parsed[key] = _PARSERS[key](value, key)
        except (ConfigError, MalformedError, WrongTypeError) as error:
            named = shown(error) if str(error).startswith(key) else f"{key}: {shown(error)}"
            raise ConfigError(f"{place(key)}: {named}") from None
    return replace(config, **parsed)


def _joined(tables: Iterable[PortalTable], later: Iterable[PortalTable]) -> tuple[PortalTable, ...]:
    """Return all tables; a later one takes the place of another one of the same portal."""
    return tuple({portal_identity(table.url): table for table in (*tables, *later)}.values())


def default_path() -> Path:
    """Return the path of the configuration file unless another is named."""
    return platformdirs.user_config_path("skymount") / "config.toml"


def default_log_file(mountpoint: str) -> str:
    """Return the log file of a mount's daemon in the background; each mount has its own."""
    name = mountpoint.strip("/").replace("-", "--").replace("/", "-")[-_LOG_NAME_LIMIT:] or "root"
    return str(platformdirs.user_log_path("skymount") / f"{name}.log")


def _mounts(file: ConfigFile, name: str) -> Mapping[str, dict[str, Any]]:
    """Return the tables ``[mounts.NAME]``; that of `name` must exist."""
    mounts = file.settings.get("mounts", {})
    if not isinstance(mounts, dict) or not all(isinstance(m, dict) for m in mounts.values()):
        raise ConfigError(f"{file.place('mounts')}: mounts: not tables like [mounts.home]")
    if name and name not in mounts:
        known = shown(", ".join(sorted(mounts))) or "there is none"
        raise ConfigError(f"{file.path}: no table [mounts.{name}]; known ones: {known}")
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
    read = ConfigFile.read(Path(file) if file else default_path(), required=bool(file))
    variables = {f"{ENVIRONMENT_PREFIX}{key.upper()}": key for key in _PARSERS}
    environment = {key: value for name, key in variables.items() if (value := environ.get(name))}
    given = {key: value for key, value in flags.items() if value is not None}

    found = _of_file(read, name, warn)
    found.add(
        environment,
        lambda key, *_: f"{ENVIRONMENT_PREFIX}{str(key).upper()}",
        is_for_any="portals" not in environment,
    )
    found.add(given, lambda *_: "command line")
    return found.config_in_use(environment.keys() | given.keys())


def _of_file(file: ConfigFile, name: str, warn: Callable[[str], None]) -> "_Settings":
    mounts = _mounts(file, name)
    at_top = {key: value for key, value in file.settings.items() if key != "mounts"}
    found = _Settings()
    found.add(at_top, file.place)
    has_secrets = _has_secrets(found.config)
    of_file = found.config
    for each, table in mounts.items():  # errors in tables that are not used are reported too

        def place(*keys: str | int, each: str = each) -> str:
            return f"{file.place('mounts', each, *keys)}: [mounts.{shown(each)}]"

        has_secrets = _has_secrets(_merged(of_file, table, place)) or has_secrets
        if each == name:
            found.add(table, place)
    if has_secrets and file.is_open_to_others:
        path = file.path
        warn(f"{path}: others can read or change it, and it holds secrets; `chmod 600 {path}`")
    return found


def _has_secrets(config: Config) -> bool:
    return any(getattr(config, key) for key in CREDENTIALS) or any(
        table.has_credentials for table in config.portal_tables
    )


class _Settings:
    """A configuration, and where its keys come from."""

    def __init__(self) -> None:
        self.config = Config()
        self._owners: dict[str, tuple[str, ...]] = {}  # portals that a key belongs to; (): any
        self._places: dict[str, Place] = {}

    def add(
        self, settings: Mapping[str, object], place: Place, *, is_for_any: bool = False
    ) -> None:
        """Add settings that override all before. `is_for_any`: they belong to whichever portal."""
        self.config = _merged(self.config, settings, place)
        owners = () if is_for_any else self.config.portal_urls
        self._owners |= dict.fromkeys(_PORTAL_KEYS & settings.keys(), owners)
        self._places |= dict.fromkeys(settings, place)

    def config_in_use(self, later: Collection[str]) -> Config:
        """Return the configuration without what belongs to other portals than those used.

        Keys that were set `later` than the file replace those of a portal's table.
        """
        used = _identities(self.config.portal_urls)
        owners = self._owners.items()
        foreign = {key for key, urls in owners if urls and used - _identities(urls)}
        replaced = {key for key in OPTION_KEYS if key in later} - foreign
        tables = self.config.portal_tables
        found = replace(
            self.config,
            portal_tables=tuple(
                table.without(replaced) for table in tables if _identities([table.url]) <= used
            ),
            **{key: getattr(Config(), key) for key in foreign},
        )
        self._check_single_portal(found)
        return found

    def _check_single_portal(self, config: Config) -> None:
        """ConfigError for a key of one portal that is set for several."""
        if len(config.portals) < 2:
            return
        keys = list(_SINGLE_PORTAL_KEYS)
        if any(table.has_credentials for table in config.portal_tables):
            keys.append("node_url")  # it would get the credentials of one of them
        for key in keys:
            if getattr(config, key):
                raise ConfigError(
                    f"{self._places[key](key)}: {key}: name a single portal with it, which it "
                    "belongs to, or set it in the portal's own table [[portals]]"
                )


def _identities(urls: Iterable[str]) -> set[object]:
    return {portal_identity(url) for url in urls}
