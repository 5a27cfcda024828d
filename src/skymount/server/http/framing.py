"""Refuses requests whose end is ambiguous, against request smuggling (RFC 9112, 11.2).

A proxy could take for the next request what the portal takes for the body. h11 is more lenient.
"""

import re

import h11

# A line feed or carriage return alone, and a folded line: other parsers see another end of line.
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\r(?!\n)|\r\n[ \t]")
_BAD_REQUEST = 400


class StrictConnection(h11.Connection):
    """The server's side; RemoteProtocolError 400 for ambiguous bytes that are not content."""

    _half_line_end = b""  # a carriage return whose line feed is yet to come
    _has_length = False  # the body is content alone, without framing

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self._has_length and self.their_state is h11.SEND_BODY:
            return super().next_event()
        before = self.trailing_data[0]
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 501:  # a transfer coding unknown, or in a wrong place
                error.error_status_hint = _BAD_REQUEST
            raise
        content = len(event.data) if isinstance(event, h11.Data) else 0
        taken = len(before) - len(self.trailing_data[0]) - content
        framing = self._half_line_end + before[:taken]
        self._half_line_end = framing[-1:] if framing.endswith(b"\r") else b""
        if _AMBIGUOUS.search(framing.removesuffix(b"\r")):
            raise h11.RemoteProtocolError("a line of doubtful end", _BAD_REQUEST)
        if isinstance(event, h11.Request):
            self._has_length = not _is_chunked(event)
        return event


def _is_chunked(request: h11.Request) -> bool:
    """Return how the end of a body is found; refuse a request that states it in two ways."""
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return False
    if b"content-length" in names or request.http_version < b"1.1":
        raise h11.RemoteProtocolError("a body of doubtful end", _BAD_REQUEST)
    return True
