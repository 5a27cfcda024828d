"""`skymount.open` and `skymount.listdir`."""

from collections.abc import Sequence
from typing import IO, Any

from skymount.file_api.path import Path


def open(  # noqa: A001 - it is called as `skymount.open`
    link: str | Path,
    mode: str = "rb",
    portals: str | Sequence[str] | None = None,
    *,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    verify: str | None = None,
    disk_cache: bool | int | str | None = None,
    api_key: str | None = None,
) -> IO[Any]:
    """Open a file of a skylink or a domain, as Python's own `open` does; only for reading.

    `link` is ``skylink://<skylink>/<path>`` or ``skyhns://<domain>/<path>``, or a link in any other
    form. The other options say how to read it, in place of the configuration (docs/library.md).

    OSError of the kind that `open` would raise, ValueError for a link or an option that is none.
    """
    path = _path(link, portals, verify, disk_cache, api_key)
    return path.open(mode, buffering, encoding, errors, newline)


def listdir(
    link: str | Path,
    portals: str | Sequence[str] | None = None,
    *,
    verify: str | None = None,
    disk_cache: bool | int | str | None = None,
    api_key: str | None = None,
) -> list[str]:
    """Return the names in a directory; arguments and errors are those of `open`."""
    path = _path(link, portals, verify, disk_cache, api_key)
    return [child.name for child in path.iterdir()]


def _path(
    link: str | Path,
    portals: str | Sequence[str] | None,
    verify: str | None,
    disk_cache: bool | int | str | None,
    api_key: str | None,
) -> Path:
    named = portals if portals is None or isinstance(portals, str) else tuple(portals)
    return Path(link, portals=named, verify=verify, disk_cache=disk_cache, api_key=api_key)
