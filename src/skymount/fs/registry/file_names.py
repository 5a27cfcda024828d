"""File names in `/registry` and `/skydb`: data keys, and scratch files of editors.

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
_UNSAFE = re.compile(r"[/\x00]|%(?=[0-9A-Fa-f]{2})|\A%\Z")

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

VIM_PROBE = b"4913"  # vim creates it to test a directory; refused, so that it saves in place


@dataclass(frozen=True, slots=True)
class KeyName:
    """The data key that a file name stands for."""

    data_key: str | None  # None when only its hash is known
    tweak: bytes  # 32 bytes


def is_scratch(name: bytes) -> bool:
    """Whether it is the name of an editor's scratch file."""
    return _SCRATCH.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class KeyFileNames:
    """The file names of one subtree."""

    suffix: bytes = b""  # ends every file name, and is no part of the data key

    def parse(self, name: bytes) -> KeyName:
        """Read a file name; MalformedError when it stands for no data key."""
        if not name.endswith(self.suffix):
            raise MalformedError(f"a name must end in {self.suffix.decode()}")
        name = name.removesuffix(self.suffix)
        try:
            text = name.decode()
            if _HASHED.fullmatch(text):
                return KeyName(None, parse_tweak(text))
            unescaped = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), name)
            data_key = "" if text == "%" else unescaped.decode()
        except UnicodeDecodeError:
            raise MalformedError("a data key must be valid UTF-8") from None
        return KeyName(data_key, hash_data_key(data_key))

    def of(self, data_key: str | None, tweak: bytes) -> bytes:
        """Return the file name of a data key: its hash if that is too long or no valid Unicode."""
        with suppress(UnicodeEncodeError):
            name = b"" if data_key is None else _escape(data_key, self.suffix)
            if 0 < len(name) <= NAME_MAX:
                return name
        return tweak.hex().encode() + self.suffix


def _escape(data_key: str, suffix: bytes) -> bytes:
    name = _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", data_key).encode() or b"%"
    can_begin_so = name[:1].isascii() and name[:1] != b"%"  # no pattern begins with anything else
    if can_begin_so and (_HASHED.fullmatch(data_key) or _is_reserved(name + suffix)):
        name = b"%%%02X" % name[0] + name[1:]
    if _is_reserved(name + suffix):  # what ends in ~, or in .tmp
        name = name[:-1] + b"%%%02X" % name[-1]
    return name + suffix


def _is_reserved(name: bytes) -> bool:
    return name in (b".", b"..", VIM_PROBE) or is_scratch(name)
