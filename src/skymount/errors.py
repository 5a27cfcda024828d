"""The exceptions of skymount; every error that leaves a layer is one of these.

Foreign exceptions (httpx, OSError, pyfuse3, msgspec) are translated once, in the module that
imports the library. ``fs.fuse`` maps this tree to errno values, ``cli`` maps it to exit codes.

    SkymountError
    ├── MalformedError            text or bytes from outside do not parse; a value out of range
    │   ├── BadSignatureError         a signature does not fit what it signs
    │   ├── RevisionError             a registry entry does not replace the one that is there
    │   └── FrozenEntryError          a registry entry has the last revision there is
    ├── WrongTypeError            an argument is of a wrong type
    ├── ConfigError               the configuration cannot be used
    ├── MountError                the file system cannot be mounted or unmounted
    ├── CacheError                the cache on disk cannot be used
    ├── StorageError              the embedded portal's disk store cannot do its work
    ├── KeyringError              the keyring cannot be read, or lacks the key
    └── PortalError               a portal did not give what was asked for
        ├── NotFoundError         it says that the content does not exist
        ├── AccessDeniedError     it refuses: credentials, payment, a blocklist
        ├── RequestRefusedError   it calls the request wrong (other 4xx)
        │   └── RevisionConflictError its registry holds the same or a higher revision
        │       └── StaleEntryError       the entry is not the one that a change was made from
        ├── UnavailableError      it cannot be reached, or fails (5xx, 429)
        │   └── PortalTimeoutError    it did not answer in time
        └── BadContentError       its answer is not the content that was asked for
            ├── HeadTooLongError      the headers of its answer are too long
            ├── RolledBackError       a registry entry is older than one that was seen before
            └── NoDocumentError       a registry entry leads to no JSON document
"""


class SkymountError(Exception):
    """Root of every error that skymount raises on purpose."""


class MalformedError(SkymountError, ValueError):
    """Text or bytes from outside are not of the form they claim to be."""


class BadSignatureError(MalformedError):
    """A signature does not fit what it signs, or a chain of them does not lead where it says."""


class RevisionError(MalformedError):
    """A registry entry does not replace the one that is there (wire notes 6.3)."""


class FrozenEntryError(MalformedError):
    """A registry entry has the last revision there is, and can never be changed."""


class InvalidDocumentError(MalformedError):
    """Text that is to be stored as a SkyDB document is no JSON document."""


class WrongTypeError(SkymountError, TypeError):
    """An argument is of a wrong type; raised before any request is made."""


class ConfigError(SkymountError):
    """A configuration file, environment variable or flag cannot be used."""


class MountError(SkymountError):
    """The file system cannot be mounted or unmounted; the message says what to do."""


class CacheError(SkymountError):
    """The directory of the cache on disk cannot be used; the message says why."""


class StorageError(SkymountError):
    """The embedded portal's store on disk cannot do its work."""


class KeyringError(SkymountError):
    """The keyring cannot be read or written, or does not hold the key."""


class PortalError(SkymountError):
    """A portal did not give what was asked for.

    ``status`` is the HTTP status code or None when there was no answer; ``url`` never holds
    credentials; ``attempts`` is how often the request was sent; ``unreached`` is None unless no
    connection to the portal could be made, else the seconds that it took to find out.
    """

    def __init__(
        self, message: str, *, status: int | None = None, method: str = "", url: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.method = method
        self.url = url
        self.attempts = 1
        self.unreached: float | None = None

    def __str__(self) -> str:
        where = " ".join(filter(None, (self.method, self.url)))
        return f"{self.message} ({where})" if where else self.message


class NotFoundError(PortalError):
    """The portal says that the content does not exist (404, 410)."""


class AccessDeniedError(PortalError):
    """The portal refuses: credentials, payment or a blocklist (401, 402, 403, 451)."""


class RequestRefusedError(PortalError):
    """The portal calls the request wrong (any other 4xx)."""


class RevisionConflictError(RequestRefusedError):
    """The portal's registry holds the same or a higher revision of the entry."""


class StaleEntryError(RevisionConflictError):
    """Somebody else changed the entry that a change was made from; nothing was posted."""


class UnavailableError(PortalError):
    """The portal cannot be reached, or fails on its side (5xx, 429)."""


class PortalTimeoutError(UnavailableError):
    """The portal did not answer in time."""


class BadContentError(PortalError):
    """The portal's answer is not the content that was asked for."""


class HeadTooLongError(BadContentError):
    """The headers of the answer are longer, or more, than are read."""


class RolledBackError(BadContentError):
    """The portal's registry entry is older than one that was seen before."""


class NoDocumentError(BadContentError):
    """A registry entry leads to something else than a JSON document."""
