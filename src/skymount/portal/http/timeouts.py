"""How slowly a body may come."""

_LEAST_RATE = 8 << 10  # bytes a second; a portal that sends more slowly counts as silent


class MinimumRate:
    """Notices a body that drips, which is waited for no longer than silence is."""

    def __init__(self, limit: float) -> None:
        """`limit` is for how many seconds a portal may be silent."""
        self._limit = limit
        self._waited, self._received = 0.0, 0

    def note(self, waited: float, received: int) -> str:
        """Note how many seconds something was waited for; return what is wrong, "" if nothing."""
        self._waited += waited
        self._received += received
        if not received or self._waited <= self._limit:
            return ""
        if self._received < _LEAST_RATE * self._waited:
            return f"only {self._received} bytes in {self._waited:.0f} s"
        self._waited, self._received = 0.0, 0
        return ""
