"""The settings of the embedded portal."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from skymount.settings import PortalOptions

MIB = 1 << 20

UNIX = "unix:"
"""Before the path of a Unix socket, in place of the host to listen at; and the address of who comes
that way.
"""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The store and the database that portals share."""

    bucket: str
    prefix: str
    database: str = field(repr=False)  # it may have a password
    endpoint: str = ""
    """URL of the object store; empty for that of AWS."""
    key: bytes = field(default=b"", repr=False)
    """What skykeys are encrypted with; without one there are none."""


@dataclass(frozen=True, slots=True)
class PortalConfig:
    """How one embedded portal runs. Sizes in bytes, times in seconds."""

    data: Path
    """Directory of everything that it stores; created when absent."""
    host: str = "127.0.0.1"  # or `UNIX` and a path
    port: int = 4280  # 0 picks a free one
    header_limit: int = 8 * MIB
    """Longer metadata is left out of the response header; the metadata endpoint has it."""
    max_upload: int = 5000 * MIB
    """The body cap of a deployed portal (docs/wire.md 3.4)."""
    max_storage: int = 0
    """What the skyfiles may take on disk; 0 for no limit."""
    keep: float = 0
    """How long what is not pinned is kept; 0 keeps it for good."""
    max_parts: int = 1_000_000
    metadata_limit: int = 128 * MIB
    """Metadata of one upload; a million files of ordinary names take about 120 MB."""
    body_timeout: float = 60.0
    """How long a client may pause within a body before the upload is dropped."""
    idle_timeout: float = 75.0
    """How long a connection may stay open between requests, or without a complete one."""
    send_timeout: float = 600.0
    """How long a client may read nothing of its response before the connection is closed."""
    graceful_timeout: float = 1.0
    """How long running requests may take after the portal is told to stop."""
    password: bytes = field(default=b"", repr=False)
    insecure: bool = False
    require_agent: bool = False
    """Require the agent token in the User-Agent header, which keeps browsers out."""
    allow_hosts: tuple[str, ...] = ()
    """Names and addresses of the portal, in addition to those of loopback and `host`."""
    allow_origins: tuple[str, ...] = ()  # of web pages that may do everything; * for all
    public_url: str = ""
    """Where clients reach it, if a proxy stands before it."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose `X-Forwarded-For` and `-Proto` count."""
    content_host: str = ""
    """The name below which each skylink has a host of its own, for browsers."""
    noindex: bool = False
    """Ask search engines to list nothing of it."""
    cluster: ClusterSettings | None = None
    """What is used in place of `data`, if portals share their data."""
    upstream: Mapping[str, PortalOptions] = field(default_factory=dict, repr=False)
    """The portals that are asked for what is not stored here, and the options of each client."""
    upstream_cache: int = 16 << 30
    """Bytes that are kept of what they have."""
    access_log: str | None = None
    """The file that has a line for each request, ``-`` for standard error."""
    metrics: bool = False
    find_mounts: Callable[[], Iterable[str]] = tuple
    """Returns where the user that runs the portal has mounted skymount; may block."""

    @property
    def has_log_file(self) -> bool:
        """Whether there is a file to be opened again on SIGHUP."""
        return self.access_log not in (None, "-")
