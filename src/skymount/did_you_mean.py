"""What somebody may have meant who misspelt a name."""

from collections.abc import Iterable

_LIMIT = 64  # characters of a word that is compared; longer ones take too long


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
    found = get_close_matches(_folded(word[:_LIMIT]), folded, n=1, cutoff=0.7)
    return folded[found[0]] if found else ""


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
