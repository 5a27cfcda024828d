"""Owns how file names stand for data keys in ``/registry`` and ``/skydb``, and which names are
scratch files of editors. Pure.

``%`` and two hex digits stand for a byte, so `%2F` for a slash; a lone `%` is the empty data key.
A name of 64 hex digits is a data key that is hashed already.
"""

import re
from dataclasses import dataclass
from fnmatch import translate

from skymount.errors import MalformedError
from skymount.wire.registry import hash_data_key, parse_tweak

NAME_LIMIT = 255
"""Bytes of a file name (NAME_MAX); a data key whose name is longer is shown by its hash."""

_HASHED = re.compile(r"[0-9a-f]{64}")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_UNSAFE = re.compile(r"[%/\x00-\x1f\x7f]")

SCRATCH_PATTERNS = (
    ".*.sw?",  # vim
    ".*.sw??",
    "*~",  # backups of most editors
    ".#*",  # emacs' lock, and rsync's and others' temporary files
    "#*#",  # emacs' autosave
    "sed??????",  # sed -i
    ".goutputstream-*",  # GLib
    ".*.??????",  # rsync
    "*.tmp",
    ".~lock.*",
)

_SCRATCH = re.compile("|".join(translate(pattern) for pattern in SCRATCH_PATTERNS).encode())

PROBE = b"4913"
"""The file that vim creates to find out whether it can: refused, so that it saves in place."""


@dataclass(frozen=True, slots=True)
class KeyName:
    """A data key as a file name says it."""

    data_key: str | None
    """None when only its hash is known."""
    tweak: bytes
    """32 bytes."""


def is_scratch(name: bytes) -> bool:
    """Whether a name is that of an editor's scratch file."""
    return _SCRATCH.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Names:
    """How one realm writes data keys as file names."""

    suffix: bytes = b""
    """Ends every file name, and is no part of the data key."""

    def parse(self, name: bytes) -> KeyName:
        """Read a file name; MalformedError when it stands for no data key."""
        if not name.endswith(self.suffix):
            raise MalformedError(f"a name must end in {self.suffix.decode()}")
        return parse_name(name.removesuffix(self.suffix))

    def of(self, data_key: str | None, tweak: bytes) -> bytes:
        """Return the file name of a data key; that of its hash if it would be too long."""
        name = name_of(data_key, tweak) + self.suffix
        return name if len(name) <= NAME_LIMIT else tweak.hex().encode() + self.suffix


def parse_name(name: bytes) -> KeyName:
    """Read a data key's part of a file name; MalformedError when it stands for no data key."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise MalformedError("a data key must be valid UTF-8") from None
    if _HASHED.fullmatch(text):
        return KeyName(None, parse_tweak(text))
    data_key = "" if text == "%" else unescape(name)
    return KeyName(data_key, hash_data_key(data_key))


def unescape(name: bytes) -> str:
    """Replace ``%`` and two hex digits by their byte; any other ``%`` stands for itself."""
    try:
        return _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), name).decode()
    except UnicodeDecodeError:
        raise MalformedError("a data key must be valid UTF-8") from None


def name_of(data_key: str | None, tweak: bytes) -> bytes:
    """Return the file name of a data key, which `parse_name` reads back; its hash if too long."""
    if data_key is None:
        return tweak.hex().encode()
    name = _escape(data_key)
    return name if len(name) <= NAME_LIMIT else tweak.hex().encode()


def _escape(data_key: str) -> bytes:
    if not data_key:
        return b"%"
    name = _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", data_key).encode()
    if name in (b".", b"..") or name == PROBE or _HASHED.fullmatch(data_key) or is_scratch(name):
        name = b"%%%02X" % name[0] + name[1:]
    return name
