"""Keeps portals from being upstream of themselves.

Each portal with upstreams has an identity, which is new at each start. Its requests to upstream
carry it, and those of all portals whose requests it has seen: all that depend on it. A request that
carries the portal's own identity is answered from what is stored here alone.
"""

import secrets
from collections.abc import Callable

from cachetools import LRUCache

from skymount.server.http.connection import Portal
from skymount.server.http.messages import Request, Response

HEADER = "Skymount-Downstream"

_IDENTITY = 16  # characters
_REMEMBERED = 64  # portals downstream


class Loops:
    """Which portals depend on this one."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        """`changed` is called with the value of the header whenever it is another one."""
        self._own = secrets.token_hex(_IDENTITY // 2)
        self._downstream: LRUCache[str, None] = LRUCache(_REMEMBERED)
        self._changed = changed
        changed(self.header)

    @property
    def header(self) -> str:
        return ",".join((self._own, *self._downstream))

    def note(self, text: str) -> bool:
        """Remember what a request carries; return whether it comes from this very portal."""
        given = [each.strip() for each in text.split(",")][: _REMEMBERED + 1]
        if self._own in given:
            return True
        new = [each for each in given if _is_identity(each) and each not in self._downstream]
        for each in new:
            self._downstream[each] = None
        if new:
            self._changed(self.header)
        return False


def _is_identity(text: str) -> bool:
    return len(text) == _IDENTITY and text.isascii() and text.isalnum()


class LoopBreaker:
    """Has requests that this portal has caused itself answered by `stored`, which asks no
    upstream.
    """

    def __init__(self, app: Portal, stored: Portal, loops: Loops) -> None:
        self._app = app
        self._stored = stored
        self._loops = loops
        self.failed, self.varies = app.failed, app.varies

    async def answer(self, request: Request) -> Response:
        app = self._app
        for text in request.headers.getlist(HEADER.lower()):
            if self._loops.note(text):
                app = self._stored
        return await app.answer(request)
