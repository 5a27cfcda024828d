"""Finds the endpoint of a path: all patterns are one regular expression."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from skymount.server.http_error import HttpError

Handler = Callable[[Request], Awaitable[Response]]
Route = tuple[str, Mapping[str, Handler]]
"""A pattern like ``/a/{link:skylink}/{path:path}``, and a handler for each method."""

_VARIABLE = re.compile(r"\{([a-z_]+)(?::([a-z]+))?\}")
_FORMS = {
    None: "[^/]+",
    "path": ".*",
    "skylink": "[A-Za-z0-9_-]{46}|[A-Za-z0-9]{55}",  # by its length (docs/wire.md 4.1)
}


class Router:
    """The routes of a portal. The first pattern that a whole path matches counts."""

    def __init__(self, routes: Iterable[Route]) -> None:
        patterns = list[str]()
        self._found = dict[int, tuple[Mapping[str, Handler], list[str]]]()  # by number of the group
        group = 1
        for pattern, handlers in routes:
            names = [name for name, _ in _VARIABLE.findall(pattern)]
            patterns.append(f"({_expression(pattern)})")
            self._found[group] = (handlers, names)
            group += 1 + len(names)
        self._expression = re.compile("|".join(patterns))

    def find(self, method: str, path: str) -> tuple[Handler, dict[str, str]]:
        """Return the handler of a request, and the variables in its path; HttpError 404 or 405."""
        match = self._expression.fullmatch(path)
        if match is None or match.lastindex is None:
            raise HttpError(404, "Not Found")
        handlers, names = self._found[match.lastindex]
        handler = handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = [*handlers, *(["HEAD"] if "GET" in handlers else [])]
            raise HttpError(405, "Method Not Allowed", (("Allow", ", ".join(allowed)),))
        first = match.lastindex + 1
        return handler, {name: match[first + at] for at, name in enumerate(names)}


def _expression(pattern: str) -> str:
    parts, end = list[str](), 0
    for variable in _VARIABLE.finditer(pattern):
        parts.append(re.escape(pattern[end : variable.start()]))
        parts.append(f"({_FORMS[variable[2]]})")
        end = variable.end()
    return "".join([*parts, re.escape(pattern[end:])])
