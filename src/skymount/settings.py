"""Every setting of a mount, of the commands and of the library: the one place where it is declared.

A setting is a field of one of the classes below: name, type, default, help, and marks. From these
come the keys of the configuration file, the variables of the environment, the options of the
command line, the keywords of the library and of file access, what `skymount config` prints, and the
tables of docs/configuration.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Self, TypedDict, TypeVar, Unpack

from skymount.errors import MalformedError, WrongTypeError
from skymount.policies import VerifyPolicy, WritePolicy
from skymount.values import (
    absolute_path,
    callback,
    duration,
    flag,
    format_size,
    header_value,
    headers,
    integer,
    items,
    lines,
    number,
    one_of,
    parse_size,
    path,
    portal_identity,
    portal_url,
    portal_urls,
    redirect_hosts,
    seconds,
    text,
    texts,
    truth,
    unicode_text,
    whole_number,
)
from skymount.wire.dialect import SVC, Dialect, dialect_named
from skymount.wire.http.host import parse_loopback

DEFAULT_SVC_PORTAL_URL = "http://127.0.0.1:4280"
"""Where an embedded portal listens unless told otherwise, and clients look for one."""

MASK = "********"
"""What stands for a secret where settings are shown."""

T = TypeVar("T")


class LogLevel(StrEnum):
    """What is logged, and what is worse."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _itself(value: Any) -> Any:
    return value


class Kind(NamedTuple):
    """What values of a setting there are."""

    check: Callable[[Any, str], Any]
    """Returns the value of what the library takes; WrongTypeError, MalformedError."""
    read: Callable[[str], Any] = _itself
    """Returns what a text stands for in the file, the environment or a flag."""
    write: Callable[[Any], Any] = _itself
    """Returns a value as it is written in the file, a secret masked."""


def _choice(kind: Any) -> Kind:
    return Kind(lambda value, name: kind(one_of(value, name, list(kind))), str.lower)


def _dialect(value: object, name: str) -> Dialect:
    return value if isinstance(value, Dialect) else dialect_named(text(value, name))


def _mount_options(value: object, name: str) -> tuple[str, ...]:
    """Return options of a mount; nosuid, nodev and noatime always hold."""
    return tuple(one_of(each, f"each of {name}", ("ro", "noexec")) for each in texts(value, name))


def _listen(value: object, name: str) -> str:
    found = text(value, name)
    if found:
        parse_loopback(found)
    return found


def _hosts(value: Iterable[tuple[str, int | None]]) -> list[str]:
    shown = ((f"[{host}]" if ":" in host else host, port) for host, port in value)
    return [host if port is None else f"{host}:{port}" for host, port in shown]


def _short(value: float) -> float:
    return int(value) if value.is_integer() else value


_KINDS: Mapping[type, Kind] = {
    str: Kind(text),
    bool: Kind(flag, truth),
    float: Kind(partial(seconds, most=3600), number, _short),
    Dialect: Kind(_dialect, write=lambda value: value.name),
}
_ADDRESSES = Kind(portal_urls, items, list)
_HEADERS = Kind(headers, lines, lambda value: dict.fromkeys(dict(value), MASK))
_HOSTS = Kind(redirect_hosts, items, _hosts)
_PATH = Kind(path)
_URL = Kind(portal_url)
_SIZE = Kind(parse_size, write=format_size)
_DURATION = Kind(duration, write=_short)


def _integers(least: int, most: int) -> Kind:
    return Kind(partial(integer, least=least, most=most), whole_number)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is declared of a setting, besides its name and type."""

    default: Any
    help: str
    """A sentence: for the command line, the example of the file, and the documentation."""
    more: str
    """What the documentation says behind it."""
    kind: Kind
    flag: str = ""
    """Its option of the command line, as the documentation writes it."""
    keyword: str = ""
    """What the library calls it, if otherwise."""
    example: object = None
    unset: str = "none"
    """What the documentation says in place of an empty default."""
    off: bool = False
    """Whether ``off`` is another word for the empty value."""
    is_path: bool = False
    secret: bool = False
    of_one: bool = False
    """Whether it belongs to the portal that it was set for."""
    in_table: bool = False
    """Whether a table ``[[portals]]`` may set it for its portal."""
    live: bool = False
    """Whether SIGHUP changes it while a mount runs."""

    @property
    def sentence(self) -> str:
        """The help, as plain text."""
        return self.help.replace("`", "")

    @property
    def options(self) -> list[str]:
        """The names of its option of the command line."""
        return [word.rstrip(",") for word in self.flag.split() if word.startswith("-")]

    def parse(self, value: object, name: str) -> Any:
        """Parse what stands in the file, the environment or a flag."""
        if self.off and value == "off":
            return type(self.default)()
        try:
            return self.kind.check(self.kind.read(value) if isinstance(value, str) else value, name)
        except MalformedError as error:
            raise MalformedError(f"{error}{', or off' * self.off}") from None

    def written(self, value: Any) -> Any:
        """Return a value as it is written in the file."""
        if self.secret:
            return (
                dict.fromkeys(dict(value), MASK) if isinstance(value, tuple) else MASK * bool(value)
            )
        return self.kind.write(value) if value or not self.off else "off"


def setting(
    default: T,
    help: str,  # noqa: A002 - as click calls it
    more: str = "",
    kind: Kind | None = None,
    **marks: Any,
) -> T:
    """Declare a setting; its kind follows from the type of its default unless it is said."""
    kind = kind or _KINDS.get(type(default)) or _choice(type(default))
    made = Setting(default, help, more, kind, **marks)
    found: T = field(default=default, repr=not made.secret, metadata={"setting": made})
    return found


def declared(kind: type) -> dict[str, Setting]:
    """Return the settings of a class by their names."""
    return {each.name: each.metadata["setting"] for each in fields(kind) if each.metadata}


# --- the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfPortals:
    """What may be set for all portals."""

    dialect: Dialect = setting(
        SVC,
        "The names that the portals use: `svc` or `skynet`.",
        flag="--dialect NAME",
        in_table=True,
    )
    api_key: str = setting(
        "",
        "The portal's, if it asks for one.",
        "Sent as the password of HTTP Basic authentication, with an empty user name. Needs a "
        "single portal, or stands in the table of one; see [below](#what-belongs-to-a-portal).",
        kind=Kind(unicode_text, write=lambda value: MASK * bool(value)),
        example="...",
        secret=True,
        of_one=True,
        in_table=True,
        live=True,
    )
    user_agent: str = setting(
        "",
        "What to send as `User-Agent`.",
        kind=Kind(header_value),
        flag="--user-agent TEXT",
        keyword="custom_user_agent",
        example="me/1",
        unset="the dialect's",
    )
    headers: tuple[tuple[str, str], ...] = setting(
        (),
        "Further headers for each request, such as a cookie.",
        "Needs a single portal, as `api_key` does.",
        kind=_HEADERS,
        example={"Cookie": "name=value"},
        secret=True,
        of_one=True,
        in_table=True,
        live=True,
    )
    node_url: str = setting(
        "",
        "Where the skykeys are kept, if not at the portal.",
        "It gets the same `api_key` and `headers`.",
        kind=_URL,
        example="https://node.example",
        unset="the portal",
        of_one=True,
        in_table=True,
    )
    ca_file: str = setting(
        "",
        "A PEM file with certificates of authorities to trust besides the system's.",
        "`SSL_CERT_FILE` and `SSL_CERT_DIR` in the environment replace the system's. See "
        "[library](library.md), C17.",
        kind=Kind(absolute_path),
        example="~/ca.pem",
        is_path=True,
        in_table=True,
    )
    connections: int = setting(
        32,
        "Connections to each portal at a time, 1 to 1000.",
        "(One more asks a late portal for a sign of life.) Over a long way fewer are slower, and a "
        "public portal refuses far more.",
        kind=_integers(1, 1000),
    )
    redirect_hosts: tuple[tuple[str, int | None], ...] = setting(
        (),
        "Hosts to which the portal may redirect what is written or uploaded.",
        "Each is `host` or `host:port`; without a port the default port is meant. They get no "
        "`api_key` and no `headers`. Needs a single portal, as these do. See "
        "[library](library.md), C7.",
        kind=_HOSTS,
        example=["upload.portal.example"],
        of_one=True,
        in_table=True,
    )
    verify: VerifyPolicy = setting(
        VerifyPolicy.AVAILABLE,
        "What to do with content that cannot be checked against its skylink.",
        "`require` refuses it, `available` says so, `off` checks nothing; see "
        "[semantics](semantics.md), T5.",
        flag="--verify",
    )


class UploadProgress(TypedDict):
    """Bytes of an upload's body."""

    loaded: int
    total: int


OnUploadProgress = Callable[[float, UploadProgress], None]
"""Called with the fraction sent, from 0 to 1, and the bytes. It starts again from 0 when a redirect
makes the client send the body again."""


@dataclass(frozen=True, slots=True)
class PortalOptions(_OfPortals):
    """One portal and how to talk to it; made by `parse`. Times in seconds."""

    url: str = DEFAULT_SVC_PORTAL_URL
    _: KW_ONLY
    read_only: bool = setting(
        False,
        "Nothing is ever posted to this portal, it is only read.",
        "See [semantics](semantics.md), W2. `skykey` commands, which use a single portal, take the "
        "first one that is not `read_only`.",
        in_table=True,
    )
    connect_timeout: float = setting(
        10.0, "Seconds until a connection must be established.", kind=Kind(seconds)
    )
    idle_timeout: float = setting(
        35.0,
        "Seconds between two pieces of a response.",
        "More than the 30 after which a portal says by default that it found nothing (contract, "
        "Limits).",
        kind=Kind(seconds),
        keyword="timeout",
    )
    retries: int = setting(
        3,
        "How often a request that is safe to repeat is sent again.",
        "At most 10: that takes ten minutes with the longest pauses.",
        kind=_integers(0, 10),
    )
    on_upload_progress: OnUploadProgress | None = setting(
        None, "What is called while an upload is sent.", kind=Kind(callback)
    )

    @classmethod
    def parse(cls, url: str = "", /, **options: Unpack["ClientOptions"]) -> Self:
        """Make options from a portal's address and what a caller gives; "" is the default portal.

        WrongTypeError for a value of another type and for an unknown option, MalformedError for a
        value that cannot be used. Neither repeats a secret.
        """
        checked = portal_url(url, "portal URL") or DEFAULT_SVC_PORTAL_URL
        return cls(checked, **_checked(options, ClientOptions.__optional_keys__))

    def overridden(self, **options: Unpack["CommonOptions"]) -> Self:
        """Return the options of one call, which override these; errors as of `parse`."""
        if not options:
            return self
        return replace(self, **_checked(options, CommonOptions.__optional_keys__))

    def with_extra_time(self, extra: float | None) -> Self:
        """Return options that let the portal stay silent for so many seconds more."""
        return self if extra is None else replace(self, idle_timeout=self.idle_timeout + extra)


_KEYWORDS = {made.keyword or name: (name, made) for name, made in declared(PortalOptions).items()}


def _checked(options: Mapping[str, object], known: frozenset[str]) -> dict[str, Any]:
    unknown = options.keys() - known
    if unknown:
        raise WrongTypeError(f"unknown option {min(unknown)!r}")
    found = ((keyword, value, *_KEYWORDS[keyword]) for keyword, value in options.items())
    return {name: made.kind.check(value, keyword) for keyword, value, name, made in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(_OfPortals):
    """Everything that can be set in the file, the environment or by flags. Bytes and seconds."""

    portals: tuple[str, ...] = setting(
        (),
        "Addresses of portals in the order of preference.",
        "A list, or tables; see [several portals](#several-portals). "
        f"With none, the default portal `{DEFAULT_SVC_PORTAL_URL}` is used; a mount starts an "
        "embedded portal there if none answers.",
        kind=_ADDRESSES,
        flag="--portal URL",
        example=["https://portal.example"],
    )
    mountpoint: str = setting(
        "",
        "Where to mount; `~` is your home.",
        kind=_PATH,
        flag="MOUNTPOINT",
        example="~/sky",
        is_path=True,
    )
    allow_other: bool = setting(
        False,
        "Let other users in.",
        "Needs `user_allow_other` in `/etc/fuse.conf` unless you are root.",
        flag="--allow-other",
    )
    mount_options: tuple[str, ...] = setting(
        (),
        "`ro`: nothing can be written; `noexec`: no program can be run from it.",
        "A list. `nosuid`, `nodev` and `noatime` always hold.",
        kind=Kind(_mount_options, items, list),
        flag="-o, --mount-options OPTION,...",
        example=["ro"],
    )
    memory_cache: int = setting(
        128 << 20,
        "Memory for content, like `128 MiB`.",
        "Half as much again is for the texts of `skydb` documents. A number of bytes, or with a "
        "unit; see [sizes](#sizes).",
        kind=_SIZE,
        flag="--memory-cache SIZE",
    )
    tree_cache: int = setting(
        256 << 20,
        "Memory for the names and sizes of files.",
        "Beyond it the skylinks used least recently are dropped from memory. See "
        "[semantics](semantics.md), S12.",
        kind=_SIZE,
    )
    disk_cache: int = setting(
        2 << 30,
        "Disk space for content, like `2 GiB`, or `off`.",
        "It is below `~/.cache/skymount`, shared by all mounts of a user. `off` keeps nothing; "
        "less than 32 MiB keeps hardly anything. See [semantics](semantics.md), K1 to K6.",
        kind=_SIZE,
        flag="--disk-cache SIZE|off",
        off=True,
    )
    read_ahead: bool = setting(
        True,
        "Let the kernel request 1 MiB at a time instead of 128 KiB; only root can.",
        flag="--no-read-ahead",
    )
    lookup_grace: float = setting(
        0.5,
        "Seconds that a lookup in `skylinks`, `hns`, `registry` or `skydb` waits for a portal.",
    )
    registry_ttl: float = setting(
        2.0, "Seconds for which stat of a file in `registry` or `skydb` may be stale."
    )
    send_pending: bool = setting(
        True,
        "Post pending registry entries automatically, once a portal answers.",
        "See [semantics](semantics.md), G12.",
    )
    registry_writes: WritePolicy = setting(
        WritePolicy.ANY,
        "How many of several portals must take a registry entry: `any`, `majority` or `all`.",
        "They must take the content behind it too, before close succeeds. The others are owed it; "
        "see [semantics](semantics.md), G19 and W4.",
    )
    hns_ttl: float = setting(
        60.0, "Seconds for which a domain in `hns`, and a v2 skylink, stays resolved."
    )
    timeout: float = setting(
        30.0,
        "Seconds that a portal may stay silent; of a mount: that a file operation may take.",
        "A download that goes on may take hours; see [semantics](semantics.md), R14.",
        flag="--timeout SECONDS",
    )
    wait_for_portal: float = setting(
        0.0,
        "How long operations of a mount wait for a portal that refuses connections, like `5 min`.",
        "It must have worked within the last minute. Without this they wait for 5 s, as it may be "
        "restarting; `timeout` begins after the wait. See [semantics](semantics.md), R10.",
        kind=_DURATION,
        flag="--wait-for-portal DURATION",
        example="5 min",
        off=True,
    )
    log_file: str = setting(
        "",
        "Where the daemon logs in the background.",
        "Its embedded portal logs there too. At 1 MiB a new file is begun; the previous one is "
        "kept, with `.old` behind its name. A symbolic link is followed; `/dev/stdout` and "
        "`/dev/stderr` are those of `skymount mount`. If the default cannot be written, a warning "
        "says so and nothing is logged. See [logs](#logs).",
        kind=_PATH,
        flag="--log-file FILE",
        example="~/sky.log",
        unset="`~/.local/state/skymount/log/<mount point>.log`",
        is_path=True,
    )
    log_level: LogLevel = setting(
        LogLevel.INFO,
        "What a mount logs, and what is worse: `debug`, `info`, `warning` or `error`.",
        "`-v` is `--log-level debug`.",
        flag="--log-level",
        live=True,
    )
    metrics_listen: str = setting(
        "",
        "Where a mount answers `GET /metrics`, for Prometheus, like `127.0.0.1:9464`.",
        "See [semantics](semantics.md), E6. Only loopback addresses; each mount needs a port of "
        "its own.",
        kind=Kind(_listen),
        example="127.0.0.1:9464",
        off=True,
    )
    portal_tables: Mapping[object, Mapping[str, Any]] = field(
        default_factory=dict, repr=False, hash=False
    )
    """What the tables of portals set, by the portal's identity."""
    default_portal: str = DEFAULT_SVC_PORTAL_URL  # used if none is named
    places: Mapping[object, Callable[[str], str]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Functions that say where a setting was found: by its name, or by a portal's identity."""

    @property
    def portal_urls(self) -> tuple[str, ...]:
        return self.portals or (self.default_portal,)

    @property
    def portal_options(self) -> Mapping[str, PortalOptions]:
        """How to talk to each portal, by its address: no other portal may get these options."""
        common = {name: getattr(self, name) for name in declared(_OfPortals)}
        tables = self.portal_tables
        return {
            url: PortalOptions(**{**common, **tables.get(portal_identity(url), {}), "url": url})
            for url in self.portal_urls
        }

    def origin(self, key: str) -> str:
        """Return where a setting was found; "" if nowhere."""
        return self.places[key](key) if key in self.places else ""

    @property
    def writing_url(self) -> str:
        """The portal for commands that write to one: the first that is not read-only, if any."""
        writable = (url for url, each in self.portal_options.items() if not each.read_only)
        return next(writable, self.portal_urls[0])

    @property
    def first_dialect(self) -> Dialect:
        """The names that the first portal uses."""
        return self.portal_options[self.portal_urls[0]].dialect


DEFAULTS = Config()
"""What holds without any setting; parts that are made without one begin with it too."""


SETTINGS = dict(sorted(declared(Config).items(), key=lambda each: each[0] != "portals"))
"""Those of the file, without its tables; the first one is `portals`."""

OF_ONE_PORTAL = {
    "url": Setting("", "The address. Needed.", "", _URL),
    **{name: made for name, made in declared(PortalOptions).items() if made.in_table},
}
"""Those of a table ``[[portals]]``."""


# --- the keywords of Python callers, for type checkers


class CallOptions(TypedDict, total=False):
    """Options of a call that has its own `timeout` argument. docs/library.md explains each."""

    api_key: str
    custom_user_agent: str
    headers: Mapping[str, str]
    dialect: Dialect | str
    on_upload_progress: OnUploadProgress | None
    verify: str


class CommonOptions(CallOptions, total=False):
    """Options of a client, and of each of its calls, which override the client's."""

    timeout: float


class ClientOptions(CommonOptions, total=False):
    """Options that are fixed when a client is made."""

    node_url: str
    redirect_hosts: Sequence[str]
    connections: int
    connect_timeout: float
    retries: int
    ca_file: str
    read_only: bool


class FileOptions(TypedDict, total=False):
    """Options of file access; None: as the configuration says."""

    portals: str | Iterable[str] | None
    verify: str | None
    disk_cache: bool | int | str | None
    api_key: str | None
