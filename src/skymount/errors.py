"""The exceptions of skymount; docs/library.md lists those of the library.

Exceptions of other libraries are translated once, in the module that imports the library.
``fs.fuse`` maps these to errno values, ``cli`` maps them to exit codes.
"""

import copy
from typing import Self


class SkymountError(Exception):
    """The base class of all exceptions of skymount."""


class MalformedError(SkymountError, ValueError):
    """Input cannot be parsed, or a value is out of range."""


class BadSignatureError(MalformedError):
    """A signature is wrong, or a chain of signed entries does not lead where it should."""


class RevisionError(MalformedError):
    """A registry entry may not replace the present one (docs/wire.md 6.3)."""


class FrozenEntryError(MalformedError):
    """A registry entry has the last revision, and can never be changed."""


class InvalidDocumentError(MalformedError):
    """Text that is to be stored as a SkyDB document is no JSON document."""


class WrongTypeError(SkymountError, TypeError):
    """An argument is of a wrong type; raised before any request is made."""


class ConfigError(SkymountError):
    """A configuration file, environment variable or flag cannot be used."""


class MountError(SkymountError):
    """The file system cannot be mounted or unmounted; the message says what to do."""


class MountRefusedError(MountError):
    """Nothing can be mounted here, on whatever directory."""


class CacheError(SkymountError):
    """The directory of the cache on disk cannot be used; the message says why."""


class StorageError(SkymountError):
    """A database or store on disk cannot be used; the message names it."""


class KeyringError(SkymountError):
    """The keyring cannot be read or written, or does not hold the key."""


class UnreplicableError(SkymountError):
    """Content cannot be brought to a further portal under its skylink; the message says why."""


class PortalError(SkymountError):
    """A portal failed, or sent something wrong.

    ``status`` is the HTTP status code, None without an answer. ``url`` never holds credentials.
    ``attempts`` counts how often the request was sent. ``unreached`` is the seconds spent if no
    connection could be made, else None. ``is_unsent``: the portal was not asked, since all
    connections to it were busy. ``retry_after`` is the seconds that it asks to be left alone.
    ``is_contradicted``: another portal refused, or said «not found». ``advice`` is what to do about
    it, empty if that is not known.
    """

    advice = ""

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
        self.is_unsent = False
        self.retry_after: float | None = None
        self.is_contradicted = False

    def explained(self, *, before: str = "", after: str = "") -> Self:
        """Return the same error with more words around its message."""
        found = copy.copy(self)
        found.message = f"{before}{self.message.rstrip('.') if after else self.message}{after}"
        return found

    def __str__(self) -> str:
        is_named = self.unreached is not None  # the message has the address already
        where = "" if is_named else " ".join(filter(None, (self.method, self.url)))
        said = f"{self.message} ({where})" if where else self.message
        return f"{said.rstrip('.')}; {self.advice}" if self.advice else said


class NotFoundError(PortalError):
    """The portal says that the content does not exist (404, 410)."""


class AccessDeniedError(PortalError):
    """The portal refuses: credentials, payment or a blocklist (401, 402, 403, 451)."""


class RequestRefusedError(PortalError):
    """The portal rejects the request (any other 4xx)."""


class RevisionConflictError(RequestRefusedError):
    """The portal's registry has the same or a higher revision of the entry."""


class ReadOnlyPortalError(RequestRefusedError):
    """The request would change something at a portal that is used read-only; it was not sent."""


class StaleEntryError(RevisionConflictError):
    """Somebody else changed the entry that a change was made from; nothing was posted."""


class UnavailableError(PortalError):
    """The portal cannot be reached, or fails on its side (5xx, 429)."""


class NoPortalError(UnavailableError):
    """The server that answers is no portal, or one of another dialect."""


class PortalTimeoutError(UnavailableError):
    """The portal did not answer in time."""


class BadContentError(PortalError):
    """The portal's answer is not the content that was asked for."""


class DisprovedError(BadContentError):
    """The portal's answer was checked, and is provably not the content."""


class HeadTooLongError(BadContentError):
    """The headers of the answer are too long, or too many."""


class RolledBackError(BadContentError):
    """The portal's registry entry is older than one that was seen before."""

    advice = (
        "the portal shows an old entry: name another one with --portal, or, if the old one is to "
        "be believed, `skymount registry forget --seen KEY DATAKEY`"
    )


class NoDocumentError(BadContentError):
    """A registry entry does not lead to a JSON document."""
