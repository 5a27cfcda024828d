"""The configuration: defaults < file < environment < flags, read once into a frozen value.

The file is TOML. An unknown key is an error, so that a typing error does not go unnoticed. Values
that the library takes too are checked by its rules. docs/configuration.md lists every key.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from skymount.config_file import ConfigFile, Faults, default_path, path_to_read, shown
from skymount.config_portals import (
    CREDENTIALS,
    OPTION_KEYS,
    Place,
    PortalTable,
    is_tables,
    parse_tables,
)
from skymount.config_values import PARSERS, PATHS
from skymount.content.model.skyfile import VerifyPolicy
from skymount.errors import ConfigError, MalformedError, WrongTypeError
from skymount.portal.options import (
    CONNECTIONS,
    DEFAULT_SVC_PORTAL_URL,
    ClientOptions,
    PortalOptions,
    portal_identity,
)
from skymount.portal.policies import WritePolicy
from skymount.portal.validation import refuse_variables
from skymount.user_directories import user_directory
from skymount.wire.dialect import Dialect
from skymount.wording import did_you_mean

ENVIRONMENT_PREFIX = "SKYMOUNT_"

OTHER_VARIABLES = ("SKYMOUNT_PORTAL_PASSWORD",)
"""Variables that begin so and are not keys of the configuration."""

_LOG_NAME_LIMIT = 200  # characters of a mount point in the name of its log


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
    mount_options: tuple[str, ...] = ()
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
    log_level: str = "info"
    metrics_listen: str = ""
    portal_tables: tuple[PortalTable, ...] = ()  # of those portals that have one
    default_portal: str = DEFAULT_SVC_PORTAL_URL  # used if none is named

    @property
    def portal_urls(self) -> tuple[str, ...]:
        return self.portals or (self.default_portal,)

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

KEYS = tuple(PARSERS)
"""All keys of the file, the tables ``[mounts.NAME]`` left out."""

assert {*KEYS, "portal_tables", "default_portal"} == {item.name for item in fields(Config)}


def _merged(
    config: Config, settings: Mapping[str, object], place: Place, *, by_shell: bool = False
) -> Config:
    """Return the configuration with these settings; ConfigError names the place and the key.

    `by_shell`: a shell has replaced the variables in them.
    """
    faults = Faults()
    parsed: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in PARSERS:
            faults.add(f"{place(key)}: {_unknown_key(key, settings)}")
        elif key == "portals" and is_tables(value):
            with faults.noted():
                tables = parse_tables(value, partial(place, key), KEYS)
                config = replace(config, portal_tables=_joined(config.portal_tables, tables))
                parsed[key] = PARSERS[key]([table.url for table in tables], key)
        else:
            try:
                if key in PATHS and not by_shell:
                    refuse_variables(value, key)
                parsed[key] = PARSERS[key](value, key)
            except (ConfigError, MalformedError, WrongTypeError) as error:
                named = shown(error) if str(error).startswith(key) else f"{key}: {shown(error)}"
                faults.add(f"{place(key)}: {named}")
    faults.check()
    return replace(config, **parsed)


def _unknown_key(key: str, settings: Mapping[str, object]) -> str:
    said, value = f"unknown key '{shown(key)}'", settings[key]
    if isinstance(value, dict) and did_you_mean(key, ["mounts"]):
        named = next((f".{name}" for name, v in value.items() if isinstance(v, dict)), "")
        return f"{said}; did you mean [mounts{shown(named)}]?"
    return said + (did_you_mean(key, PARSERS) or f"; known ones: {', '.join(PARSERS)}")


def _joined(tables: Iterable[PortalTable], later: Iterable[PortalTable]) -> tuple[PortalTable, ...]:
    """Return all tables; a later one takes the place of another one of the same portal."""
    return tuple({portal_identity(table.url): table for table in (*tables, *later)}.values())


def default_log_file(mountpoint: str) -> str:
    """Return the log file of a mount's daemon in the background; each mount has its own."""
    name = mountpoint.strip("/").replace("-", "--").replace("/", "-")[-_LOG_NAME_LIMIT:] or "root"
    return str(user_directory("state", ConfigError) / "log" / f"{name}.log")


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
    given_by: str = "command line",
    warn: Callable[[str], None] = lambda text: None,
) -> Config:
    """Read the configuration; flags that are None were not given.

    `file` replaces the default path and must then exist; `name` selects a table ``[mounts.NAME]``
    whose keys override the file's own. ConfigError says where a bad value was found; the flags are
    `given_by` the command line, or whoever else. `warn` is called when other users can read secrets
    in the file.
    """
    return load_with_origins(
        flags, environ=environ, file=file, name=name, given_by=given_by, warn=warn
    ).config


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and where each of its values was set."""

    config: Config
    path: Path | None
    """The file that was looked for; None if the user has no home directory where it could be."""
    unused: Collection[str]
    """Keys that have their defaults, as their values belong to portals which are not used."""
    _places: Mapping[str, Place]

    def origin(self, key: str) -> str:
        """Return where a key is set; "" if nowhere."""
        place = self._places.get(key)
        return place(key) if place is not None else ""


def load_with_origins(
    flags: Mapping[str, object],
    *,
    environ: Mapping[str, str],
    file: str = "",
    name: str = "",
    given_by: str = "command line",
    warn: Callable[[str], None] = lambda text: None,
) -> LoadedConfig:
    """Read the configuration as `load` does, and say where each value comes from."""
    path = default_path() if name and not file else path_to_read(file)
    read = ConfigFile.read(path, required=bool(file)) if path else ConfigFile(Path("none"))
    environment = _environment(environ)
    given = {key: value for key, value in flags.items() if value is not None}

    found, faults = _Settings(), Faults()
    with faults.noted():
        _add_file(found, read, name, warn)
    with faults.noted():
        found.add(
            environment,
            lambda key, *_: f"{ENVIRONMENT_PREFIX}{str(key).upper()}",
            is_for_any="portals" not in environment,
        )
    with faults.noted():
        found.add(given, lambda *_: given_by, by_shell=True)
    faults.check()
    config, foreign = found.config_in_use(environment.keys() | given.keys())
    return LoadedConfig(config, path, foreign, found.places)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the keys that the environment sets; ConfigError for a variable that is misspelt."""
    variables = {f"{ENVIRONMENT_PREFIX}{key.upper()}": key for key in PARSERS}
    known = [name.removeprefix(ENVIRONMENT_PREFIX) for name in (*variables, *OTHER_VARIABLES)]
    for name in sorted(environ):
        rest = name.removeprefix(ENVIRONMENT_PREFIX)
        if rest != name and rest not in known:
            advice = did_you_mean(rest, known, f"{ENVIRONMENT_PREFIX}{{}}")
            if advice:  # others may use the prefix too
                raise ConfigError(f"{shown(name)}: there is no such variable{advice}")
    for name in (f"{ENVIRONMENT_PREFIX}{key.upper()}" for key in PATHS):
        if environ.get(name) == "":
            raise ConfigError(f"{name}: it is an empty path; remove the variable, or name a file")
    return {key: value for name, key in variables.items() if (value := environ.get(name))}


def for_named_portals(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment without keys of one portal that belong to whichever a command uses:
    a command that uses two kinds gives them to one of these only.
    """
    if environ.get(f"{ENVIRONMENT_PREFIX}PORTALS"):
        return environ
    for_any = {f"{ENVIRONMENT_PREFIX}{key.upper()}" for key in _PORTAL_KEYS}
    return {name: value for name, value in environ.items() if name not in for_any}


def _add_file(found: "_Settings", file: ConfigFile, name: str, warn: Callable[[str], None]) -> None:
    mounts, faults = _mounts(file, name), Faults()
    at_top = {key: value for key, value in file.settings.items() if key != "mounts"}
    with faults.noted():
        found.add(at_top, file.place)
    has_secrets = _has_secrets(found.config)
    of_file = found.config
    for each, table in mounts.items():  # errors in tables that are not used are reported too

        def place(*keys: str | int, each: str = each) -> str:
            return f"{file.place('mounts', each, *keys)}: [mounts.{shown(each)}]"

        with faults.noted():
            has_secrets = _has_secrets(_merged(of_file, table, place)) or has_secrets
            if each == name:
                found.add(table, place)
    faults.check()
    if has_secrets and file.is_open_to_others:
        path = file.path
        warn(f"{path}: others can read or change it, and it holds secrets; `chmod 600 {path}`")


def _has_secrets(config: Config) -> bool:
    return any(getattr(config, key) for key in CREDENTIALS) or any(
        table.has_credentials for table in config.portal_tables
    )


class _Settings:
    """A configuration, and where its keys come from."""

    def __init__(self) -> None:
        self.config = Config()
        self._owners: dict[str, tuple[str, ...]] = {}  # portals that a key belongs to; (): any
        self.places: dict[str, Place] = {}

    def add(
        self,
        settings: Mapping[str, object],
        place: Place,
        *,
        is_for_any: bool = False,
        by_shell: bool = False,
    ) -> None:
        """Add settings that override all before. `is_for_any`: they belong to whichever portal."""
        self.config = _merged(self.config, settings, place, by_shell=by_shell)
        owners = () if is_for_any else self.config.portal_urls
        self._owners |= dict.fromkeys(_PORTAL_KEYS & settings.keys(), owners)
        self.places |= dict.fromkeys(settings, place)

    def config_in_use(self, later: Collection[str]) -> tuple[Config, set[str]]:
        """Return the configuration without what belongs to other portals than those used, and the
        keys that were left out.

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
        return found, foreign

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
                    f"{self.places[key](key)}: {key}: name a single portal with it, which it "
                    "belongs to, or set it in the portal's own table [[portals]]"
                )


def _identities(urls: Iterable[str]) -> set[object]:
    return {portal_identity(url) for url in urls}
