"""Checks of the configuration file, and of the keyring."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from skymount import config, keyring
from skymount.cli.doctor.finding import Finding, failure, ok
from skymount.errors import ConfigError, KeyringError
from skymount.keyring import DamagedKey, Keyring
from skymount.settings import Config


def read_configuration(file: str, name: str) -> tuple[Config | None, Sequence[Finding]]:
    """Return the configuration, None if it cannot be read, and what is to be said of it."""
    subject = "configuration"
    warnings: list[str] = []
    try:
        found = config.load({}, environ=os.environ, file=file, name=name, warn=warnings.append)
    except ConfigError as error:
        return None, [failure(subject, str(error))]
    if warnings:
        return found, [failure(subject, text) for text in warnings]
    path = config.path_to_read(file)
    if path is None:
        text = "there is none, as there is no home directory: the defaults are used"
    else:
        text = str(path) if path.exists() else f"there is no {path}: the defaults are used"
    variables = [each for each in sorted(os.environ) if each.startswith(config.PREFIX)]
    if variables:
        text += f"; set in the environment: {', '.join(variables)}"
    return found, [ok(subject, text)]


def check_keyring(path: Path) -> Iterator[Finding]:
    """Read all keys; their files are for the user alone."""
    subject = "keyring"
    try:
        keys = Keyring(path).read_all()
    except KeyringError as error:
        yield failure(subject, str(error))
        return
    damaged = [key for key in keys if isinstance(key, DamagedKey)]
    for key in damaged:
        yield failure(subject, key.reason)
    if not damaged:
        yield ok(subject, f"{len(keys)} in {path}" if keys else f"no keys in {path}")


def checks() -> Iterator[Finding]:
    """Check what needs no configuration."""
    try:
        place = keyring.default_path()
    except KeyringError as error:
        yield failure("keyring", str(error))
        return
    yield from check_keyring(place)
