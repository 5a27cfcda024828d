"""Wording of messages: sizes, numbers of things, names, and what somebody may have meant."""

import re
from collections.abc import Iterable

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_WORD_LIMIT = 64  # characters of a word that is compared; longer ones take too long

# What cannot be seen: control characters, what turns the direction of text, other characters
# without a form (Unicode calls them default ignorable), and bytes that are not UTF-8.
_UNSEEN = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\ud800-\udfff"
)
# Persian, scripts of India and emoji need these, behind one of their characters.
_JOINERS = "\u200c\u200d"
_VARIATIONS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_NOT_SEEN = re.compile(
    f"(?:[{_UNSEEN}]"
    f"|(?<![^\x00-\x7f{_UNSEEN}{_JOINERS}])[{_JOINERS}]"
    f"|(?<![^\x00-\x7f{_UNSEEN}{_JOINERS}{_VARIATIONS}])[{_VARIATIONS}](?!\u20e3))+"
)


def visible(text: str, mark: str = "{}") -> str:
    r"""Return a name or another text as it is shown: what cannot be seen in it, or turns the
    direction, is written out, as ``\n``, ``\u202e``, ``\xe9``; right-to-left letters stay.

    `mark` is how a run of that is marked.
    """
    return _NOT_SEEN.sub(lambda found: mark.format("".join(map(_written_out, found[0]))), text)


def _written_out(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def readable_size(size: int) -> str:
    """Return a number of bytes for people: ``1.5 MiB``."""
    power = max(0, min(len(_UNITS) - 1, (size.bit_length() - 1) // 10))
    shown = size / (1 << 10 * power)
    return f"{shown:.1f}".removesuffix(".0") + f" {_UNITS[power]}"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with what it counts: ``1 file``, ``2,000 files``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def did_you_mean(word: str, known: Iterable[str], written: str = "{}") -> str:
    """Return ``; did you mean NAME?`` for a known name that resembles a word, or "".

    `written` is how the name is written.
    """
    meant = resembling(word, known)
    return f"; did you mean {written.format(meant)}?" if meant else ""


def resembling(word: str, known: Iterable[str]) -> str:
    """Return the known name that resembles a word most, "" if none does."""
    from difflib import get_close_matches  # only errors need it

    folded = {_folded(name): name for name in known}
    found = get_close_matches(_folded(word[:_WORD_LIMIT]), folded, n=1, cutoff=0.7)
    return folded[found[0]] if found else ""


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
