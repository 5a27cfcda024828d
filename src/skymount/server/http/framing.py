"""Refuses requests whose end is ambiguous, against request smuggling (RFC 9112, 11.2).

A proxy could take for the next request what the portal takes for the body. h11 is more lenient.
"""

import re

import h11

# A line feed or carriage return alone, and a folded line: other parsers see another end of line.
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\r(?!\n)|\r\n[ \t]")
_BAD_REQUEST = 400
_PIECE = 8 << 10  # bytes that h11 gets at once: what it holds is copied for each event


class StrictConnection(h11.Connection):
    """The server's side; RemoteProtocolError 400 for ambiguous bytes that are not content."""

    def __init__(self, headers_limit: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=headers_limit)
        self._held = bytearray()  # received, and not given to h11 yet
        self._has_ended = False  # nothing comes after that
        self._half_line_end = b""  # a carriage return whose line feed is yet to come
        self._has_length = False  # the body is content alone, without framing
        self._left = 0  # bytes of such a body that are yet to come

    def receive_data(self, data: bytes) -> None:
        self._held += data
        self._has_ended |= not data

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        data, has_ended = super().trailing_data
        return data + self._held, has_ended or self._has_ended

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._next_event()) is h11.NEED_DATA and self._feed():
            pass
        return event

    def _feed(self) -> bool:
        """Give h11 more; return whether there was something."""
        size = (self.their_state is h11.SEND_BODY and self._left) or _PIECE
        piece = bytes(self._held[:size])
        del self._held[:size]
        if piece or self._has_ended:
            super().receive_data(piece)
            self._has_ended &= bool(piece)
            return True
        return False

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self._has_length and self.their_state is h11.SEND_BODY:
            event = super().next_event()
            if isinstance(event, h11.Data):
                self._left -= len(event.data)
            return event
        before = super().trailing_data[0]
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 501:  # a transfer coding unknown, or in a wrong place
                error.error_status_hint = _BAD_REQUEST
            raise
        content = len(event.data) if isinstance(event, h11.Data) else 0
        taken = len(before) - len(super().trailing_data[0]) - content
        framing = self._half_line_end + before[:taken]
        self._half_line_end = framing[-1:] if framing.endswith(b"\r") else b""
        if _AMBIGUOUS.search(framing.removesuffix(b"\r")):
            raise h11.RemoteProtocolError("a line of doubtful end", _BAD_REQUEST)
        if isinstance(event, h11.Request):
            self._has_length = not _is_chunked(event)
            self._left = int(dict(event.headers).get(b"content-length", 0))
        return event


def _is_chunked(request: h11.Request) -> bool:
    """Return how the end of a body is found; refuse a request that states it in two ways."""
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return False
    if b"content-length" in names or request.http_version < b"1.1":
        raise h11.RemoteProtocolError("a body of doubtful end", _BAD_REQUEST)
    return True
