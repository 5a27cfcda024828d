"""Reads the credentials of the object store from the user's file, again and again."""

import configparser
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypeAlias

from skymount.errors import StorageError

Credentials: TypeAlias = tuple[str, str, str]
"""Key, secret, and token; no token is empty."""

_LIMIT = 64 << 10  # bytes of the file

_log = logging.getLogger(__name__)


class CredentialsFile:
    """The file, and what it had when it could last be read."""

    def __init__(self, path: Path, profile: str) -> None:
        self._path = path
        self._profile = profile
        self._known = self._read()
        self._can_be_read = True

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> Self | None:
        """Return the file; None if the environment has credentials, or if there is no file.

        StorageError if the environment names one that cannot be used.
        """
        if "AWS_ACCESS_KEY_ID" in environ:
            return None
        named = environ.get("AWS_SHARED_CREDENTIALS_FILE")
        path = Path(named) if named else Path.home() / ".aws" / "credentials"
        try:
            return cls(path, environ.get("AWS_PROFILE") or "default")
        except StorageError:
            if named:
                raise
            return None

    def _read(self) -> Credentials:
        parser = configparser.RawConfigParser()
        try:
            with self._path.open(encoding="utf-8") as file:
                parser.read_string(file.read(_LIMIT))
            section = parser[self._profile]
            key, secret = section["aws_access_key_id"], section["aws_secret_access_key"]
            return key, secret, section.get("aws_session_token", "")
        except (OSError, ValueError, KeyError, configparser.Error):
            raise StorageError(f"cannot use the credentials in {self._path}") from None

    def current(self) -> Credentials:
        """Return what the file has; what it had before while it cannot be used."""
        try:
            self._known = self._read()
            self._can_be_read = True
        except StorageError as error:
            if self._can_be_read:
                _log.warning("%s: those of before are used", error)
            self._can_be_read = False
        return self._known
