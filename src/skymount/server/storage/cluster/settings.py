"""Parses where portals have the data that they share, and the credentials of the object store."""

import configparser
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from skymount import file_permissions
from skymount.errors import ConfigError, StorageError
from skymount.server.config import ClusterSettings

Credentials: TypeAlias = tuple[str, str, str]
"""Key, secret, and token; no token is empty."""

DATABASE_VARIABLE = "SKYMOUNT_PORTAL_DATABASE"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}(/[A-Za-z0-9._-]{1,100}){0,9}")
_URL_LIMIT = 2048  # characters
_SECRETS = ("password", "sslpassword")
_KEY = re.compile(rb"[0-9a-fA-F]{64}\s*")
_CREDENTIALS_LIMIT = 64 << 10  # bytes of the file

_log = logging.getLogger(__name__)


def parse_settings(
    store: str, endpoint: str, database: str, key_file: Path | None, environ: Mapping[str, str]
) -> ClusterSettings:
    """Parse what was given on the command line; ConfigError."""
    bucket, prefix = _parse_store(store)
    url = parse_database(database, environ)
    key = _read_key(key_file) if key_file else b""
    return ClusterSettings(bucket, prefix, url, _parse_endpoint(endpoint), key)


def parse_database(database: str, environ: Mapping[str, str]) -> str:
    """Return the URL of the database that was given, or that is in the environment; ConfigError."""
    if _secrets_in(database):
        raise ConfigError(
            "--database has a password, which other users of this machine can see: give it in "
            f"a file (PGPASSFILE), in PGPASSWORD, or the whole URL in {DATABASE_VARIABLE}"
        )
    database = database or environ.get(DATABASE_VARIABLE, "")
    if not database:
        raise ConfigError(f"no database is named: do it by --database or {DATABASE_VARIABLE}")
    try:
        is_named = urlsplit(database).scheme in ("postgresql", "postgres")
    except ValueError:
        is_named = False
    if not is_named or len(database) > _URL_LIMIT:
        raise ConfigError("the database is not named by a URL postgresql://[USER@]HOST/NAME")
    _, rest = _split_user(database)
    if "@" in rest.partition("?")[0]:  # libpq would take a part of the password for the host
        raise ConfigError(
            "the URL of the database has one @ too many: in a user or password write @ as %40 "
            "and / as %2F"
        )
    return database


def _split_user(url: str) -> tuple[str, str]:
    """Return user and password, and what follows them, as libpq finds them."""
    rest = url.partition("://")[2]
    user = re.match("([^@/]*)@", rest)
    return (user[1], rest[user.end() :]) if user else ("", rest)


def _parse_store(url: str) -> tuple[str, str]:
    scheme, colon, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    is_s3 = scheme == "s3" and colon and bucket
    if is_s3 and not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            f"{bucket[:100]!r} is not a name of a bucket: it has 3 to 63 characters of a-z, 0-9, . "
            "and -, the first and last one a letter or digit"
        )
    segments = prefix.split("/")
    if not is_s3 or (prefix and not _PREFIX.fullmatch(prefix)) or {".", ".."} & {*segments}:
        raise ConfigError(f"{url[:100]!r} is not s3://BUCKET or s3://BUCKET/PREFIX")
    return bucket, prefix


def _parse_endpoint(url: str) -> str:
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ConfigError(
            "--s3-endpoint is not http://HOST[:PORT] or https://HOST[:PORT]"
        ) from None
    if not is_good or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError("--s3-endpoint is not http://HOST[:PORT] or https://HOST[:PORT]")
    return f"{parts.scheme}://{parts.netloc}"


def _secrets_in(url: str) -> bool:
    user, rest = _split_user(url)
    try:
        given = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
    except ValueError:
        return True
    return ":" in user or any(name.lower() in _SECRETS for name, _ in given)


def _read_key(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            if problem := file_permissions.permission_problem(file, os.fstat(opened.fileno())):
                raise ConfigError(f"key file {file} cannot be used: {problem}")
            raw = opened.read(100)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"key file {file} cannot be read: {reason}") from None
    if not _KEY.fullmatch(raw):
        raise ConfigError(f"key file {file} does not have 64 hex digits (openssl rand -hex 32)")
    return bytes.fromhex(raw.decode().strip())


class CredentialsFile:
    """The user's file of credentials, and what it had when it could last be read."""

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
        try:
            path = Path(named) if named else Path.home() / ".aws" / "credentials"
        except RuntimeError:  # there is no home
            return None
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
                parser.read_string(file.read(_CREDENTIALS_LIMIT))
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
