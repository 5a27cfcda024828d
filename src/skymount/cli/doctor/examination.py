"""Runs all checks, each group within its time."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from skymount.cli.doctor.finding import Finding, failure, warning

if TYPE_CHECKING:
    from skymount.settings import Config

_LIMIT = 20.0
"""Seconds for a group. Each check has a limit of its own where it can wait; a disk has none."""


def examine(file: str, name: str) -> list[Finding]:
    """Return what all checks found."""
    from skymount.cli.doctor import configuration, mounts, service

    of_mounts = list(mounts.checks())  # which forks, so before there are threads
    config, findings = configuration.read_configuration(file, name)
    found = list(findings)
    for group in _of_configuration(config):
        found += _within_limit(group)
    if config is None:
        text = "not checked, because the configuration cannot be read"
        found.append(warning("portals, proxy, cache", text))
    found += _within_limit(configuration.checks) + of_mounts + _within_limit(service.checks)
    return found


def _of_configuration(config: "Config | None") -> Sequence[Callable[[], Iterable[Finding]]]:
    from skymount.cli.doctor import fuse, portals, proxies, storage
    from skymount.settings import Config

    if config is None:
        return [lambda: fuse.checks(Config()), lambda: storage.checks(Config(disk_cache=0))]
    return [
        lambda: fuse.checks(config),
        lambda: proxies.checks(config),
        lambda: portals.checks(config),
        lambda: storage.checks(config),
    ]


def _within_limit(group: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what a group found; one that hangs is left behind."""
    found: list[Finding] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.extend(group())  # one after the other
        except Exception as error:  # noqa: BLE001  # other groups are checked all the same
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_LIMIT)
    result = list(found)
    after = f"after {result[-1].subject}" if result else "at once"
    if thread.is_alive():
        result.append(failure("doctor", f"no answer in {_LIMIT:g} s {after}; does a disk hang?"))
    result += [failure("doctor", f"a check broke {after}: {error!r}") for error in errors]
    return result
