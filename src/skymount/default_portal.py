"""The portal that is used if none is named: this user's own, never one of another user.

A portal writes its address into its data directory, so that commands find it when it does not
listen at the default address.
"""

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from skymount.errors import AccessDeniedError, ConfigError, MalformedError
from skymount.settings import DEFAULT_SVC_PORTAL_URL, Config
from skymount.storage import atomic_file
from skymount.user_directories import user_directory
from skymount.values import is_local, parse_portal_url

ADDRESS_FILE = "address"

_LISTENING = "0A"
_ADDRESS_LIMIT = 200  # bytes


def default_data() -> Path:
    """Return the data directory of this user's portal; ConfigError without a home."""
    return user_directory("data", ConfigError) / "portal"


@dataclass(frozen=True, slots=True)
class DefaultPortal:
    """The portal to use without any that is named."""

    url: str
    """Empty if another user has the default address, and this user runs no portal."""
    foreign_uid: int | None = None
    """The other user who listens at the default address, if it is another one."""


def find() -> DefaultPortal:
    """Return the portal at the default address, or this user's own if that is another user's."""
    owner = foreign_owner(DEFAULT_SVC_PORTAL_URL)
    if owner is None:
        return DefaultPortal(DEFAULT_SVC_PORTAL_URL)
    with suppress(ConfigError):  # without a home there is no portal of one's own
        return DefaultPortal(read_address(default_data()), owner)
    return DefaultPortal("", owner)


def with_default_portal(settings: Config, advice: str) -> Config:
    """Return the settings with the portal that is used if none is named; AccessDeniedError if that
    is another user's. `advice` is how another one is named.
    """
    if settings.portals:
        return settings
    found = find()
    if not found.url:
        raise AccessDeniedError(
            f"{settings.default_portal}: another user (uid {found.foreign_uid}) listens there, who "
            f"would see what you send, so it is not used by default; name a portal with {advice}"
        )
    return replace(settings, default_portal=found.url)


def foreign_owner(url: str) -> int | None:
    """Return the other user who listens at an address of this machine; None if there is none."""
    parts = urlsplit(url)
    owner = listener_uid(parts.hostname or "", parts.port or 80) if is_local(url) else None
    return None if owner == os.geteuid() else owner


def write_address(data: Path, url: str) -> None:
    """Write the address of the portal that uses a data directory."""
    with suppress(OSError):  # it is found by its address at least
        atomic_file.replace(data / ADDRESS_FILE, f"{url}\n".encode())


def read_address(data: Path) -> str:
    """Return the address of the portal that uses a data directory; "" unless it is running."""
    try:
        with (data / ADDRESS_FILE).open("rb") as file:
            url = parse_portal_url(file.read(_ADDRESS_LIMIT).decode())
    except (OSError, MalformedError, UnicodeDecodeError):
        return ""
    parts = urlsplit(url)
    is_ours = listener_uid(parts.hostname or "", parts.port or 80) == os.geteuid()
    return url if is_ours else ""


def free_url() -> str:
    """Return an address of this machine where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def listener_uid(host: str, port: int) -> int | None:
    """Return the user who listens at a loopback address, None if that is not known."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTENING and int(number, 16) == port and _is_at(address, host):
                return int(fields[7])
    return None


def _is_at(address: str, host: str) -> bool:
    """Whether a listener of the kernel's table gets what is sent to a loopback host."""
    words = struct.pack(
        f"={len(address) // 8}I", *(int(address[i : i + 8], 16) for i in range(0, len(address), 8))
    )
    if not any(words):
        return True
    text = socket.inet_ntop(socket.AF_INET if len(words) == 4 else socket.AF_INET6, words)
    return text.removeprefix("::ffff:") == host or host == "localhost"
