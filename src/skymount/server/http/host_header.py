"""The Host header: which name of the portal it gives, and which content it selects."""

import ipaddress
import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from skymount.errors import MalformedError

_LENGTH_LIMIT = 262  # characters: a DNS name, its last dot, a colon and a port
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?)(?::([0-9]{0,5}))?")
_SKYLINK_HOST = re.compile(r"([0-9a-v]{55})\.(.+)")
_HNS_HOST = re.compile(r"(.+?)\.hns\.(.+)")


@dataclass(frozen=True, slots=True)
class RequestHost:
    """A parsed Host header. Its first labels may select content (docs/wire.md 4.1)."""

    name: str
    """The portal's own name: lower case, without what selects content; IPv6 in brackets."""
    port: str
    content: str = ""
    """Path of the selected content, ``/<skylink>`` or ``/hns/<domain>``; empty for none."""

    @classmethod
    def parse(cls, text: str, own_names: Set[str] = frozenset()) -> Self:
        """Parse ``name[:port]``, or raise MalformedError. `own_names` never select content."""
        name, port = _split(text)
        if name in own_names:
            return cls(name, port)
        if match := _SKYLINK_HOST.fullmatch(name):
            return cls(match[2], port, f"/{match[1]}")
        if match := _HNS_HOST.fullmatch(name):
            return cls(match[2], port, f"/hns/{match[1]}")
        return cls(name, port)

    @property
    def authority(self) -> str:
        return f"{self.name}:{self.port}" if self.port else self.name


def parse_name(text: str) -> str:
    """Return a host name or address in the form of `RequestHost.name`; else MalformedError."""
    name, port = _split(f"[{text}]" if text.count(":") > 1 and text[0] != "[" else text)
    if port:
        raise MalformedError(f"not a host name or address: {text[:80]!r}")
    return name


def _split(text: str) -> tuple[str, str]:
    match = _HOST.fullmatch(text.lower()) if len(text) <= _LENGTH_LIMIT else None
    if match is None or (match[1][0] == "[" and not is_address(match[1])):
        raise MalformedError(f"not a host name or address: {text[:80]!r}")
    return match[1].removesuffix("."), match[2] or ""


def is_address(name: str) -> bool:
    """Whether a host name is an IP address; IPv6 may be in brackets."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
