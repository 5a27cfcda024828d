"""File names in `/registry` and `/skydb`: which data key one stands for, and which ones are scratch
files of editors. Does no IO.

``%`` and two hex digits stand for a byte, so `%2F` for a slash; a lone `%` is the empty data key.
A name of 64 hex digits is a hashed data key.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import translate

from skymount.errors import MalformedError
from skymount.fs.subtree import NAME_MAX
from skymount.wire.registry_entry import hash_data_key, parse_tweak

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

VIM_PROBE = b"4913"
"""The file that vim creates to test a directory; refused, so that it saves in place."""


@dataclass(frozen=True, slots=True)
class KeyName:
    """The data key that a file name stands for."""

    data_key: str | None  # None when only its hash is known
    tweak: bytes  # 32 bytes


def is_scratch(name: bytes) -> bool:
    """Whether a name is that of an editor's scratch file."""
    return _SCRATCH.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class KeyFileNames:
    """The file names of one subtree."""

    suffix: bytes = b""  # ends every file name, and is no part of the data key

    def parse(self, name: bytes) -> KeyName:
        if not name.endswith(self.suffix):
            raise MalformedError(f"a name must end in {self.suffix.decode()}")
        return parse_name(name.removesuffix(self.suffix))

    def of(self, data_key: str | None, tweak: bytes) -> bytes:
        """Return the file name of a data key, which `parse` reads back.

        It is the hash if the name would be longer than `NAME_MAX`, or is no valid Unicode.
        """
        with suppress(UnicodeEncodeError):
            name = b"" if data_key is None else _escape(data_key, self.suffix)
            if 0 < len(name) <= NAME_MAX:
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
    """Return a data key as a file name that stands for nothing else."""
    name = _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", data_key).encode() or b"%"
    can_begin_so = name[:1].isascii() and name[:1] != b"%"  # no pattern begins with anything else
    if can_begin_so and (_HASHED.fullmatch(data_key) or _is_reserved(name + suffix)):
        name = b"%%%02X" % name[0] + name[1:]
    if _is_reserved(name + suffix):  # what ends in ~, or in .tmp
        name = name[:-1] + b"%%%02X" % name[-1]
    return name + suffix


def _is_reserved(name: bytes) -> bool:
    return name in (b".", b"..", VIM_PROBE) or is_scratch(name)
