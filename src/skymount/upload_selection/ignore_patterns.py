"""Files that name what to leave out, in the syntax of gitignore, read as git reads them.

Patterns and names are bytes, as in git: ``?`` is one byte. A pattern is matched with one path at a
time and not with what is below it: a folder that is left out is not looked into.
"""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from skymount.errors import MalformedError
from skymount.storage.pipes import open_at_once
from skymount.wording import readable_size

IGNORE_FILE = ".skymountignore"

_LIMIT = 1 << 20  # bytes of an ignore file
_BOM = b"\xef\xbb\xbf"
_STARS = None  # in a list of segments: any number of segments

_CLASSES = {
    b"alnum": rb"[0-9A-Za-z]",
    b"alpha": rb"[A-Za-z]",
    b"blank": rb"[ \t]",
    b"cntrl": rb"[\x00-\x1f\x7f]",
    b"digit": rb"[0-9]",
    b"graph": rb"[!-~]",
    b"lower": rb"[a-z]",
    b"print": rb"[ -~]",
    b"punct": rb"[!-/:-@\[-`{-~]",
    b"space": rb"[ \t-\r]",
    b"upper": rb"[A-Z]",
    b"xdigit": rb"[0-9A-Fa-f]",
}


@dataclass(frozen=True, slots=True)
class _Pattern:
    segments: tuple[re.Pattern[bytes] | None, ...]
    is_negated: bool
    is_for_directories: bool
    is_for_names: bool
    """Whether it has no slash, and so is for the last name of a path, wherever that is."""

    def matches(self, names: Sequence[bytes], is_directory: bool) -> bool:
        if self.is_for_directories and not is_directory:
            return False
        if self.is_for_names:
            return bool(self.segments[0] and self.segments[0].fullmatch(names[-1]))
        return _matches(self.segments, names)


def _matches(segments: Sequence[re.Pattern[bytes] | None], names: Sequence[bytes]) -> bool:
    """Match segment by segment. Only the last `**` is tried again, so it takes no longer than the
    product of the two lengths.
    """
    at = name = 0
    stars, begin = -1, 0
    while name < len(names):
        segment = segments[at] if at < len(segments) else None
        if at < len(segments) and segment is _STARS:
            stars, begin = at, name
            at += 1
            if at == len(segments):
                return True  # at the end it stands for one name or more
        elif segment is not None and segment.fullmatch(names[name]):
            at, name = at + 1, name + 1
        elif stars >= 0:
            begin += 1
            at, name = stars + 1, begin
        else:
            return False
    return at == len(segments)


@dataclass(frozen=True, slots=True)
class IgnorePatterns:
    """The patterns of one file, or of options."""

    _patterns: tuple[_Pattern, ...] = ()

    @classmethod
    def of_lines(cls, lines: Iterable[bytes]) -> Self:
        return cls(tuple(filter(None, map(_parsed, lines)))[::-1])

    @classmethod
    def of_options(cls, patterns: Sequence[str]) -> Self:
        """MalformedError for a pattern that no path can match, such as `./x`."""
        lines = list(map(os.fsencode, patterns))
        for line in lines:
            if _parsed(line) is None or {b".", b".."}.intersection(line.lstrip(b"!").split(b"/")):
                text = line.decode("utf-8", "backslashreplace")
                raise MalformedError(
                    f"the pattern {text!r} matches no path: patterns are as in .gitignore, "
                    "relative to the directory"
                )
        return cls.of_lines(lines)

    @classmethod
    def of_folder(cls, folder: str) -> Self | None:
        """Read the ignore file of a folder; None if it has none, or no pattern in it.

        MalformedError if it is there and cannot be used.
        """
        path = os.path.join(folder, IGNORE_FILE)
        if not os.path.lexists(path):
            return None
        try:
            with open(path, "rb", opener=open_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise MalformedError(f"{path}: it is not a regular file")
                raw = file.read(_LIMIT + 1)
        except OSError as error:
            raise MalformedError(f"{path}: {error.strerror}") from None
        if len(raw) > _LIMIT:
            raise MalformedError(f"{path}: larger than {readable_size(_LIMIT)}")
        return cls.of_lines(_lines(raw, path)) or None

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def verdict(self, path: str, is_directory: bool) -> bool | None:
        """Whether a path below the folder of the file is left out; None if no pattern is for it."""
        if not self._patterns:
            return None
        names = os.fsencode(path).split(b"/")
        for pattern in self._patterns:  # the last one first
            if pattern.matches(names, is_directory):
                return not pattern.is_negated
        return None


def _lines(raw: bytes, path: str) -> list[bytes]:
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise MalformedError(f"{path}: it is not text in UTF-8") from None
    if b"\0" in raw:
        raise MalformedError(f"{path}: it contains a NUL")
    return [line.removesuffix(b"\r") for line in raw.removeprefix(_BOM).split(b"\n")]


def _parsed(line: bytes) -> _Pattern | None:
    """None for what is no pattern, or one that git matches with nothing."""
    if line.startswith(b"#"):
        return None
    line = _without_trailing_spaces(line)
    is_negated = line.startswith(b"!")
    line = line[is_negated:]
    is_for_directories = line.endswith(b"/")
    line = line[: len(line) - is_for_directories]
    is_for_names = b"/" not in line
    segments = _segments(line.removeprefix(b"/"), is_for_names)
    if not line or segments is None:
        return None
    return _Pattern(segments, is_negated, is_for_directories, is_for_names)


def _without_trailing_spaces(line: bytes) -> bytes:
    """Drop spaces at the end, but for one that a backslash precedes."""
    kept = line.rstrip(b" ")
    is_escaped = (len(kept) - len(kept.rstrip(b"\\"))) % 2
    return line[: len(kept) + 1] if is_escaped else kept


def _segments(pattern: bytes, is_for_names: bool) -> tuple[re.Pattern[bytes] | None, ...] | None:
    """Split a pattern at its slashes; None if it is malformed."""
    segments: list[re.Pattern[bytes] | None] = []
    parts: list[bytes] = []  # of the segment at hand; b"*" is any number of bytes
    at = begin = 0
    while at <= len(pattern):
        byte = pattern[at : at + 1]
        is_escaped_slash = pattern[at : at + 2] == b"\\/"
        if byte in (b"/", b"") or is_escaped_slash:
            is_stars = len(pattern[begin:at]) > 1 and not pattern[begin:at].strip(b"*")
            if is_stars and not is_for_names:
                segments.append(_STARS)
            else:
                segments.append(_segment(parts))
            at += 1 + is_escaped_slash
            parts, begin = [], at
        elif byte == b"[":
            found = _bracket(pattern, at + 1)
            if found is None:
                return None
            part, at = found
            parts.append(part)
        elif byte == b"\\":
            if at + 1 == len(pattern):
                return None
            parts.append(re.escape(pattern[at + 1 : at + 2]))
            at += 2
        else:
            parts.append({b"*": b"*", b"?": b"."}.get(byte, re.escape(byte)))
            at += 1
    return tuple(segments)


def _segment(parts: Sequence[bytes]) -> re.Pattern[bytes]:
    """Between two stars each piece is looked for once: the first place that fits is good enough."""
    pieces: list[list[bytes]] = [[]]
    for part in parts:
        if part == b"*":
            pieces.append([])
        else:
            pieces[-1].append(part)
    first, *middle = map(b"".join, pieces)
    if not middle:
        return re.compile(first, re.DOTALL)
    last = middle.pop()
    found = b"".join(b"(?>.*?" + piece + b")" for piece in middle if piece)
    return re.compile(first + found + b".*" + last, re.DOTALL)


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int] | None:
    """Read what stands in brackets, as git's wildmatch does: return the regular expression of one
    byte, and where the pattern goes on. None if it is malformed.
    """
    is_negated = pattern[at : at + 1] in (b"!", b"^")
    at += is_negated
    chosen: set[int] = set()
    before = -1  # a byte that a range may begin with
    begin = at
    while at < len(pattern):
        byte = pattern[at]
        if byte == ord("]") and at > begin:
            if is_negated:
                chosen = set(range(256)) - chosen
            chosen.discard(ord("/"))
            begins = [each for each in sorted(chosen) if each - 1 not in chosen]
            ends = [each for each in sorted(chosen) if each + 1 not in chosen]
            runs = zip(begins, ends, strict=True)
            listed = b"".join(b"\\x%02x-\\x%02x" % run for run in runs)
            return (b"[" + listed + b"]" if listed else b"(?!)"), at + 1
        if byte == ord("[") and pattern[at + 1 : at + 2] == b":":
            end = pattern.find(b"]", at + 2)
            if end < 0:
                return None
            if pattern[end - 1 : end] == b":" and end > at + 2:
                members = _CLASSES.get(pattern[at + 2 : end - 1])
                if members is None:
                    return None
                chosen.update(each for each in range(256) if re.match(members, bytes([each])))
                before, at = -1, end + 1
                continue
        is_range = byte == ord("-") and before > 0 and pattern[at + 1 : at + 2] not in (b"", b"]")
        at += is_range
        if pattern[at] == ord("\\"):
            at += 1
            if at == len(pattern):
                return None
        byte = pattern[at]
        chosen.update(range(before, byte + 1) if is_range else (byte,))
        before = -1 if is_range else byte
        at += 1
    return None
