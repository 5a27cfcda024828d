"""Many skylinks are looked for at once."""

from typing import Any, cast

import trio

from skymount.errors import NotFoundError, PortalTimeoutError
from skymount.file_api.bulk_reads import find_many
from skymount.file_api.session import Session


class _Names:
    """Answers once so many names were asked for; some of them fail."""

    def __init__(self, together: int, failures: dict[str, Exception]) -> None:
        self.asked: list[str] = []
        self._together = together
        self._failures = failures
        self._enough = trio.Event()

    async def find(self, root: str) -> Any:
        self.asked.append(root)
        if len(self.asked) >= self._together:
            self._enough.set()
        await self._enough.wait()
        if root in self._failures:
            raise self._failures[root]
        return root.upper()


async def test_many_are_looked_for_at_once() -> None:
    """P13: each one once; a failure is that of one name."""
    missing = NotFoundError("x")
    names = _Names(8, {"c": missing})
    roots = [*"abcdefgh", "a", "b", *"ij"]
    found = await find_many(cast("Session", names), roots)
    assert names.asked == [*"abcdefghij"]
    assert found == {each: each.upper() for each in "abcdefghij"} | {"c": missing}


async def test_nobody_else_is_asked_for_when_nothing_comes() -> None:
    """P13: what was not read by then has that failure."""
    late = PortalTimeoutError("late")
    roots = [str(n) for n in range(100)]
    names = _Names(16, dict.fromkeys(roots, late))
    found = await find_many(cast("Session", names), roots)
    assert found == dict.fromkeys(roots, late)
    assert len(names.asked) == 16
