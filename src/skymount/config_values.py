"""The values of the configuration's keys: how each is parsed, and how it is written."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from skymount.config_file import shown
from skymount.config_portals import first_repeated
from skymount.content.model.skyfile import VerifyPolicy
from skymount.errors import ConfigError
from skymount.portal.options import PortalOptions, header_value, parse_portal_url
from skymount.portal.policies import WritePolicy
from skymount.portal.validation import flag, path, seconds, text, texts
from skymount.wire.dialect import dialect_named
from skymount.wire.http.host import parse_loopback

_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,3}))?\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_DURATION_UNITS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(|s|min|h|d|w)", re.ASCII | re.IGNORECASE)
_SECONDS_LIMIT = 3600
_MOUNT_OPTIONS = ("ro", "noexec")  # nosuid, nodev and noatime always hold

LOG_LEVELS = ("debug", "info", "warning", "error")


def parse_size(value: object) -> int:
    """Parse a number of bytes: an integer, or text like ``128 MiB``, ``1G`` or ``1.5 GB``.

    Units are those of coreutils: M and MiB are 1024², MB is 1000².
    """
    if type(value) is int and 0 <= value < 1 << 50:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    factor = _factor(match[3].lower()) if match else None
    if match is None or factor is None or (match[2] and factor == 1):
        raise ConfigError(f"not a size: {shown(repr(value))}; write it like 128 MiB, 2G or 500 MB")
    part = match[2] or ""
    return int(match[1] + part) * factor // int(10 ** len(part))


def _factor(unit: str) -> int | None:
    """Return how many bytes a unit has; None if there is no such unit."""
    if unit in ("", "b"):
        return 1
    power = "kmgt".find(unit[0]) + 1
    base = {"": 1024, "ib": 1024, "b": 1000}.get(unit[1:])
    return int(base**power) if base is not None and power else None


def format_size(size: int) -> str:
    """Return a number of bytes as it is written in the configuration."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and not size % 1024**power:
            return f"{size // 1024**power} {unit}"
    return str(size)


def parse_duration(value: str) -> float:
    """Parse a time in seconds, or text like ``30d``, ``12h`` or ``90 min``."""
    match = _DURATION.fullmatch(value.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"not a duration: {shown(repr(value))}; write it like 30d, 12h or 90min")
    return float(match[1]) * _DURATION_UNITS[match[2].lower()]


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
    """Parse a list; in the environment blanks or commas separate its items."""
    if isinstance(value, str):
        value = [item for item in re.split(r"[\s,]+", value) if item]
    return texts(value, key)


def _portals(value: object, key: str) -> tuple[str, ...]:
    if isinstance(value, dict):
        raise ConfigError("a portal's table begins with [[portals]], in two brackets each")
    found = tuple(map(parse_portal_url, filter(None, _list(value, key))))
    repeated = first_repeated(found)
    if repeated is not None:
        raise ConfigError(f"{found[repeated]} is listed twice")
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


def _mount_options(value: object, key: str) -> tuple[str, ...]:
    options = _list(value, key)
    unknown = [each for each in options if each not in _MOUNT_OPTIONS]
    if unknown:
        raise ConfigError(f"unknown: {shown(unknown[0])}; known ones: {', '.join(_MOUNT_OPTIONS)}")
    return options


def _boolean(value: object, key: str) -> bool:
    if not isinstance(value, str):
        return flag(value, key)
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if value.lower() not in words:
        raise ConfigError(f"neither true nor false: {value!r}")
    return words[value.lower()]


def _log_level(value: object, key: str) -> str:
    found = text(value, key).lower()
    if found not in LOG_LEVELS:
        raise ConfigError(f"not one of {', '.join(LOG_LEVELS)}: {shown(repr(value))}")
    return found


def _metrics_listen(value: object, key: str) -> str:
    found = text(value, key)
    if found in ("", "off"):
        return ""
    parse_loopback(found)
    return found


PATHS = ("mountpoint", "log_file", "ca_file")

PARSERS: Mapping[str, Callable[[object, str], object]] = {
    "portals": _portals,
    "dialect": lambda value, key: dialect_named(text(value, key)).name,
    "api_key": _option,
    "user_agent": header_value,
    "headers": _headers,
    "node_url": _option,
    "ca_file": _option,
    "connections": _connections,
    "redirect_hosts": _redirect_hosts,
    "mountpoint": path,
    "allow_other": _boolean,
    "mount_options": _mount_options,
    "verify": lambda value, key: VerifyPolicy.parse(text(value, key), key),
    "memory_cache": lambda value, _: parse_size(value),
    "tree_cache": lambda value, _: parse_size(value),
    "disk_cache": lambda value, _: _size_or_off(value),
    "read_ahead": _boolean,
    "lookup_grace": _seconds,
    "registry_ttl": _seconds,
    "send_pending": _boolean,
    "registry_writes": lambda value, key: WritePolicy.parse(text(value, key), key),
    "hns_ttl": _seconds,
    "timeout": _seconds,
    "log_file": path,
    "log_level": _log_level,
    "metrics_listen": _metrics_listen,
}
