"""HTTP basic auth: where the API password comes from, and what a request carries."""

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path

from skymount import file_permissions
from skymount.errors import ConfigError
from skymount.wording import readable_size

ENVIRONMENT = b"SKYMOUNT_PORTAL_PASSWORD"

_PASSWORD_LIMIT = 4 << 10  # bytes
_CREDENTIALS_LIMIT = 16 << 10  # characters: user and password in base64, with room to spare


def read_password(file: Path | None, environment: Mapping[bytes, bytes]) -> bytes:
    """Return the password, empty for none; ConfigError for a file that cannot be used."""
    if file is None:
        password = environment.get(ENVIRONMENT, b"")
        source = ENVIRONMENT.decode()
    else:
        password = _read_private(file).removesuffix(b"\n")
        source = f"password file {file}"
        if not password:
            raise ConfigError(f"{source} is empty")
    if len(password) > _PASSWORD_LIMIT:
        raise ConfigError(f"{source} holds more than {readable_size(_PASSWORD_LIMIT)}")
    return password


def _read_private(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            if problem := file_permissions.permission_problem(file, os.fstat(opened.fileno())):
                raise ConfigError(f"password file {file} cannot be used: {problem}")
            return opened.read(_PASSWORD_LIMIT + 2)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"password file {file} cannot be read: {reason}") from None


def parse_credentials(header: str) -> tuple[bytes, bytes]:
    """Return user and password of an Authorization header; empty ones if it has none of Basic."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > _CREDENTIALS_LIMIT:
        return b"", b""
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b"", b""
    user, _, password = decoded.partition(b":")
    return user, password
