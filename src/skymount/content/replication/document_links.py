"""The skylinks in a JSON document. No IO."""

import re
from collections.abc import Iterator
from typing import Any

from skymount.errors import MalformedError
from skymount.wire.skylink import Skylink, parse_skylink

_LIKELY = re.compile(r"[A-Za-z0-9_-]{46}|[0-9A-Va-v]{55}")
"""In each text that holds a skylink."""


def links_in(document: Any, limit: int) -> list[Skylink]:
    """Return the first skylinks in a document, up to `limit`, each once, in their order.

    They are texts, and names of members, that are a link as a whole.
    """
    found: dict[Skylink, None] = {}
    for text in _texts(document):
        if _LIKELY.search(text):
            try:
                found[parse_skylink(text)] = None
            except MalformedError:
                continue
            if len(found) == limit:
                break
    return list(found)


def _texts(document: Any) -> Iterator[str]:
    """Yield all texts of a document. It may be nested deeply, so this does not recurse."""
    rest = [document]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            rest += reversed(item)
        elif isinstance(item, dict):
            rest += (part for pair in reversed(item.items()) for part in reversed(pair))
