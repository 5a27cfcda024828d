"""The objects of an S3 store; the only importer of obstore. Everything blocks."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError
from obstore.store import S3Store

from skymount.errors import StorageError
from skymount.server.config import ClusterSettings
from skymount.server.storage.cluster.settings import CredentialsFile
from skymount.server.storage.disk_errors import DiskFullError, StorageUnavailableError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

_CHECK_TIME = 10.0  # seconds that the first request may take, with all attempts
_REQUEST_TIME = timedelta(seconds=30)
_CONNECT_TIME = timedelta(seconds=5)
_RETRIES = 3
_RETRY_TIME = timedelta(seconds=20)  # less than a request may take: silence is not tried again
_CREDENTIALS_TIME = timedelta(seconds=2)  # until their file is read again
_OBJECT_LIMIT = 64 << 20  # bytes of one that is read whole
WAITING = 256
"""Threads that may wait for the store at once."""

_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*([A-Za-z]{1,40})")
_STATUS = re.compile(r"status code: (\d{3})")
_PASSING = {"401", "403", "429", "500", "502", "503", "504"}
"""Statuses that may be another one soon, also after somebody has put credentials in order."""
_OF_THE_STORE = {"NoSuchBucket", "ExpiredToken", "InvalidToken"}  # not of one object
_FULL = {  # by AWS' specification, MinIO, Ceph
    "InsufficientStorage",
    "QuotaExceeded",
    "StorageQuotaExceeded",
    "XMinioStorageFull",
    "XMinioAdminBucketQuotaExceeded",
}


class TooLargeError(StorageError):
    """An object is larger than any that portals read whole."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a listing shows it."""

    name: str
    modified: float  # seconds since 1970


class _Provider:
    """Has obstore read the credentials again after a while."""

    refresh_threshold = timedelta(0)
    """How long before they expire it asks for them."""

    def __init__(self, file: CredentialsFile) -> None:
        self._file = file

    def __call__(self) -> "S3Credential":
        key, secret, token = self._file.current()
        return {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": token or None,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_TIME,
        }


class Objects:
    """The objects below one prefix of a bucket. Any thread may call; StorageError."""

    def __init__(self, settings: ClusterSettings) -> None:
        client: ClientConfig = {"timeout": _REQUEST_TIME, "connect_timeout": _CONNECT_TIME}
        config: S3Config = {"region": os.environ.get("AWS_REGION") or _default_region()}
        if settings.endpoint:
            config["endpoint"] = settings.endpoint
            client["allow_http"] = settings.endpoint.startswith("http:")
        file = CredentialsFile.find(os.environ)
        self._where = f"s3://{settings.bucket}/{settings.prefix}"
        self._waiting = threading.BoundedSemaphore(WAITING)
        self._store = S3Store(
            settings.bucket,
            prefix=settings.prefix or None,
            config=config,
            client_options=client,
            retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIME},
            credential_provider=_Provider(file) if file else None,
        )

    def check(self) -> None:
        """StorageError if the bucket cannot be used, after a bounded time."""
        failures: list[StorageError] = []

        def ask() -> None:
            try:
                with self._errors("use", self._where):
                    next(iter(self._store.list("skyfiles", chunk_size=1)), None)
            except StorageError as error:
                failures.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_CHECK_TIME)
        if asking.is_alive():
            raise StorageError(f"cannot use {self._where}: no answer in {_CHECK_TIME:.0f} s")
        if failures:
            raise failures[0]

    def put(self, name: str, data: bytes | bytearray) -> None:
        """Store an object; DiskFullError when there is no room. One request, never a part."""
        with self._errors("write to"):
            self._store.put(name, data, use_multipart=False)

    def get(self, name: str) -> bytes | None:
        """Return an object, None when there is none; TooLargeError."""
        with self._errors("read"):
            try:
                found = self._store.get(name)
                if found.meta["size"] > _OBJECT_LIMIT:
                    raise TooLargeError(f"cannot read {name[:100]}: it is too large")
                return bytes(found.bytes())
            except FileNotFoundError as error:
                self._check_absent(error)
                return None

    def exists(self, name: str) -> bool:
        with self._errors("read"):
            try:
                self._store.head(name)
            except FileNotFoundError:
                return False
            return True

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return at most so many bytes of an object, and none from beyond its end; StorageError
        when there is none.
        """
        with self._errors("read"):
            try:
                return bytes(self._store.get_range(name, start=start, length=length))
            except BaseError as error:
                text = str(error)
                if "status code: 416" in text or "InvalidRangeRequest" in text:
                    return b""
                if "UnexpectedRange" not in text:
                    raise
                # A server that ignores a range, as s3rver does with that of the first byte alone.
                return bytes(self._store.get(name).bytes())[start : start + length]

    def delete(self, names: list[str]) -> None:
        with self._errors("remove from"):
            for name in names:  # not at once: some servers cannot
                self._store.delete(name)

    def list(self, directory: str) -> Iterator[ListedObject]:
        with self._errors("list"):
            for batch in self._store.list(directory):
                for found in batch:
                    name = found["path"].rpartition("/")[2]
                    yield ListedObject(name, found["last_modified"].timestamp())

    @staticmethod
    def _check_absent(error: FileNotFoundError) -> None:
        """Raise the error if it is not the object that is missing, but the bucket."""
        if _CODE.findall(str(error))[:1] == ["NoSuchBucket"]:
            raise error

    @contextmanager
    def _errors(self, action: str, where: str = "the object store") -> Iterator[None]:
        """Clients see the messages, so only those at the start say where the store is."""
        if not self._waiting.acquire(blocking=False):
            raise StorageUnavailableError(f"cannot {action} {where}: too many requests wait for it")
        try:
            yield
        except (BaseError, OSError) as error:
            kind, reason = _meaning(str(error))
            raise kind(f"cannot {action} {where}: {reason}") from None
        finally:
            self._waiting.release()


def _meaning(text: str) -> tuple[type[StorageError], str]:
    """Return what an error of the library means. Its text may have secrets."""
    code = "".join(_CODE.findall(text)[:1])
    status = "".join(_STATUS.findall(text)[:1])
    if code or status:
        reason = " ".join(filter(None, (code, f"(status {status})" if status else "")))
        is_passing = status in _PASSING or code in _OF_THE_STORE
        kind = StorageUnavailableError if is_passing else StorageError
        if code in _FULL or status == "507":
            kind = DiskFullError
        return kind, f"the store answers {reason}"
    if "credential" in text.lower() or "169.254." in text:
        return StorageUnavailableError, "there are no credentials for it"
    if bad := _CERTIFICATE.search(text):
        reason = f"its certificate is not accepted ({bad[1]}); SSL_CERT_FILE names authorities"
        return StorageUnavailableError, reason
    if "InvalidPath" in text:
        return (
            StorageError,
            "it has an object with an empty part in its name, which no portal makes",
        )
    if "HTTP error" in text:
        return StorageUnavailableError, "it cannot be reached"
    return StorageError, "its answer is not that of an object store"


def _default_region() -> str:
    return os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
