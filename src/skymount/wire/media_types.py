"""The media type of a file by its name: one table, the same everywhere, as it decides skylinks.

The page's script has the same table and the same rule.
"""

from functools import cache
from importlib import resources


@cache
def table_text() -> str:
    """Return the table: of each line a type and its extensions; lines with ``#`` are comments."""
    return (resources.files(__package__) / "mime.types").read_text("ascii")


@cache
def _by_extension() -> dict[str, str]:
    lines = (line.split() for line in table_text().splitlines() if not line.startswith("#"))
    return {extension: kind for kind, *extensions in lines for extension in extensions}


def of_name(name: str) -> str:
    """Return the type of a file name or path; empty when its extension is unknown or absent."""
    stem, _, extension = name.rpartition("/")[2].rpartition(".")
    return _by_extension().get(extension.lower(), "") if stem else ""
