"""Owns how file names stand for data keys in ``/registry`` and ``/skydb``, and which names are
scratch files of editors. Pure.

``%`` and two hex digits stand for a byte, so `%2F` for a slash; a lone `%` is the empty data key.
A name of 64 hex digits is a data key that is hashed already.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import translate

from skymount.errors import MalformedError
from skymount.wire.registry_entry import hash_data_key, parse_tweak

NAME_LIMIT = 255
"""Bytes of a file name (NAME_MAX); a data key whose name would be longer is shown by its hash."""

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

    def stands_for_a_key(self, name: bytes) -> bool:
        """Whether a file name can be read."""
        try:
            self.parse(name)
        except MalformedError:
            return False
        return True

    def of(self, data_key: str | None, tweak: bytes) -> bytes:
        """Return the file name of a data key, which `parse` reads back.

        It is that of its hash if it would be too long, or if the data key is no valid Unicode.
        """
        with suppress(UnicodeEncodeError):
            name = b"" if data_key is None else _escape(data_key, self.suffix)
            if 0 < len(name) <= NAME_LIMIT:
                return name
        return tweak.hex().encode() + self.suffix


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


def _escape(data_key: str, suffix: bytes) -> bytes:
    """Return a data key as a file name that nothing else is meant by."""
    name = _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", data_key).encode() or b"%"
    can_begin_so = name[:1].isascii() and name[:1] != b"%"  # no pattern begins with anything else
    if can_begin_so and (_HASHED.fullmatch(data_key) or _means_else(name + suffix)):
        name = b"%%%02X" % name[0] + name[1:]
    if _means_else(name + suffix):  # what ends in ~, or in .tmp
        name = name[:-1] + b"%%%02X" % name[-1]
    return name + suffix


def _means_else(name: bytes) -> bool:
    return name in (b".", b"..", PROBE) or is_scratch(name)
