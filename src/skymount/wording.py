"""Wording of messages: sizes, numbers of things, and what somebody may have meant."""

from collections.abc import Iterable

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_WORD_LIMIT = 64  # characters of a word that is compared; longer ones take too long


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
