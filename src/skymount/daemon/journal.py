"""The journal of systemd by its own protocol: events with fields (docs/configuration.md).

https://systemd.io/JOURNAL_NATIVE_PROTOCOL
"""

import array
import errno
import logging
import os
import socket
from collections.abc import Iterator, Mapping

SOCKET = "/run/systemd/journal/socket"

_IDENTIFIER = "skymount"
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


def priority(level: int) -> int:
    """Return the priority of syslog(3) for a level of logging."""
    return next((number for least, number in _PRIORITIES if level >= least), _DEBUG)


class JournalHandler(logging.Handler):
    """Sends each event to the journal as one entry, a traceback included."""

    def __init__(self, path: str = SOCKET, fields: Mapping[str, str] | None = None) -> None:
        """`fields` go with each event. OSError when the journal is not there."""
        super().__init__()
        self._fields = dict(fields or {})
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise

    def emit(self, record: logging.LogRecord) -> None:
        """Send an event."""
        try:
            data = b"".join(_encoded(*field) for field in self._fields_of(record))
            try:
                self._socket.send(data)
            except OSError as error:
                if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                    raise
                self._send_in_file(data)
        except Exception:  # noqa: BLE001 - logging's rule: it prints the error to stderr
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _fields_of(self, record: logging.LogRecord) -> Iterator[tuple[str, str]]:
        yield "MESSAGE", self.format(record)
        yield "PRIORITY", str(priority(record.levelno))
        yield "SYSLOG_IDENTIFIER", _IDENTIFIER
        yield "LOGGER", record.name
        yield "CODE_FILE", record.pathname
        yield "CODE_LINE", str(record.lineno)
        yield "CODE_FUNC", record.funcName or ""
        if record.exc_info and record.exc_info[0] is not None:
            yield "EXCEPTION", record.exc_info[0].__name__
        yield from self._fields.items()

    def _send_in_file(self, data: bytes) -> None:
        """Pass what is too large for a datagram as a sealed memory file."""
        import fcntl

        descriptor = os.memfd_create("journal", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
            self._socket.sendmsg([b""], [passed])
        finally:
            os.close(descriptor)


def _encoded(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")
    if b"\n" not in data:
        return b"%s=%s\n" % (name.encode(), data)
    return b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
