"""Owns the refusal of requests whose end is doubtful: what one program takes for the body, another
one on the way may take for the next request (RFC 9112, 11.2). h11 reads them, and is more lenient.
"""

import re

import h11

# What ends a line, begins it, or does so for others: LF or CR alone, a folded line.
_DOUBTFUL = re.compile(rb"(?<!\r)\n|\r(?!\n)|\r\n[ \t]")
_BAD_REQUEST = 400


class StrictConnection(h11.Connection):
    """The server's side of a connection. What is doubtful is a RemoteProtocolError, status 400."""

    _half = b""
    """The beginning of a line's end whose second half is yet to come."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event, of which each byte but those of content was looked at."""
        before = self.trailing_data[0]
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 501:  # a coding that is not known, or stands wrong
                error.error_status_hint = _BAD_REQUEST
            raise
        content = len(event.data) if isinstance(event, h11.Data) else 0
        taken = len(before) - len(self.trailing_data[0]) - content
        frame = self._half + before[:taken]
        self._half = frame[-1:] if frame.endswith(b"\r") else b""
        if _DOUBTFUL.search(frame.removesuffix(b"\r")):
            raise h11.RemoteProtocolError("a line of doubtful end", _BAD_REQUEST)
        if isinstance(event, h11.Request):
            _check_framing(event)
        return event


def _check_framing(request: h11.Request) -> None:
    """Refuse a body that others find the end of in another way."""
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names or request.http_version < b"1.1":
        raise h11.RemoteProtocolError("a body of doubtful end", _BAD_REQUEST)
