"""Changes to what is stored: by a command, at the portal that runs on the data directory.

    <data>/control                    a socket of the user alone, while a portal runs

Two processes never write to one data directory. If a portal has locked it, the command sends what
it wants to the socket, one line of JSON, and gets one line back. Otherwise it takes the lock.
On shared storage it makes its changes itself, beside portals that run.
"""

import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import trio

from skymount.errors import MalformedError, StorageError
from skymount.server.config import PortalConfig
from skymount.server.storage.cluster.choice import open_storage
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.disk_errors import disk_errors
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.reading.local_reader import check_data
from skymount.server.storage.retention.pin_store import check_reason
from skymount.server.storage.skyfile_store import InUseError
from skymount.wire.skylink import Skylink

CONTROL_FILE = "control"

_log = logging.getLogger(__name__)

_LINE_LIMIT = 4 << 20  # bytes; about 80,000 skylinks
_BACKLOG = 16
_READ_TIME = 10.0  # seconds to wait for the line of a command


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be done."""

    action: Literal["remove", "sweep", "pin", "unpin"]
    skylinks: list[str] = []
    reason: str = ""
    before: float = 0
    even_pinned: bool = False


class Outcome(msgspec.Struct):
    """What was done: for each skylink, or by the sweep."""

    skylinks: dict[str, str] = {}
    skyfiles: int = 0
    bytes: int = 0
    error: str = ""


async def run(storage: PortalStorage, command: Command) -> Outcome:
    """Do what a command says; MalformedError, StorageError."""
    retention, outcome = storage.retention, Outcome()
    if command.action == "sweep":
        swept = await retention.sweep(command.before)
        return Outcome(skyfiles=swept.skyfiles, bytes=swept.bytes)
    reason = check_reason(command.reason)
    for skylink in list(map(Skylink, command.skylinks)):
        if command.action == "remove":
            said = await retention.remove(skylink, even_pinned=command.even_pinned)
        elif command.action == "pin":
            said = "pinned" if await retention.pin(skylink, reason) else "absent"
        else:
            said = "unpinned" if await retention.unpin(skylink) else "absent"
        outcome.skylinks[str(skylink)] = said
    return outcome


def send(config: PortalConfig, command: Command) -> Outcome:
    """Have a command done, by the portal that runs or in this process; StorageError."""
    if config.cluster is None:
        check_data(config.data)
    try:
        return trio.run(_run_here, config, command)
    except InUseError:
        return _ask(config.data, command)


async def _run_here(config: PortalConfig, command: Command) -> Outcome:
    async with open_storage(config, Tables.KEEP) as storage:
        if command.action == "sweep":
            await storage.catalogue.repair()
        return await run(storage, command)


def _ask(data: Path, command: Command) -> Outcome:
    failed = f"the portal that runs on {data} cannot be asked"
    try:
        with _address(data) as address, socket.socket(socket.AF_UNIX) as asked:
            asked.connect(address)
            asked.sendall(msgspec.json.encode(command) + b"\n")
            with asked.makefile("rb") as file:
                line = file.readline(_LINE_LIMIT)
    except OSError as error:
        raise StorageError(f"{failed}: {error.strerror or error}; stop it first") from None
    try:
        outcome = msgspec.json.decode(line, type=Outcome)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise StorageError(f"{failed}: it gave no answer") from None
    if outcome.error:
        raise StorageError(outcome.error)
    return outcome


@contextmanager
def _address(data: Path) -> Iterator[str]:
    """Give an address of the socket, which may be too deep for one of its own."""
    directory = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{CONTROL_FILE}"
    finally:
        os.close(directory)


@contextmanager
def listening(data: Path) -> Iterator[socket.socket | None]:
    """Give the socket of a portal that has the lock; None where there can be none. Blocks."""
    try:
        opened = _listen(data)
    except (OSError, StorageError) as error:
        _log.warning("commands cannot reach this portal by %s: %s", data / CONTROL_FILE, error)
        yield None
        return
    try:
        with closing(opened):
            yield opened
    finally:
        with suppress(OSError):
            (data / CONTROL_FILE).unlink()


async def serve(opened: socket.socket | None, storage: PortalStorage) -> None:
    """Take commands at a socket of `listening`."""
    if opened is not None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(opened))
        await trio.serve_listeners(partial(_answer, storage), [listener])


def _listen(data: Path) -> socket.socket:
    with disk_errors("make the socket"), suppress(FileNotFoundError):
        (data / CONTROL_FILE).unlink()  # of a portal that was killed: this one has the lock
    opened = socket.socket(socket.AF_UNIX)
    try:
        with _address(data) as address:
            opened.bind(address)
        os.chmod(data / CONTROL_FILE, 0o600)
        opened.listen(_BACKLOG)
    except BaseException:
        opened.close()
        raise
    return opened


async def _answer(storage: PortalStorage, stream: trio.SocketStream) -> None:
    try:
        async with stream:
            if _user(stream) not in (os.geteuid(), 0):
                return
            outcome = await _outcome(storage, stream)
            await stream.send_all(msgspec.json.encode(outcome) + b"\n")
    except trio.BrokenResourceError:  # the command was ended
        pass
    except Exception:  # noqa: BLE001  # a bug in one must not end the portal
        _log.exception("a command failed")


async def _outcome(storage: PortalStorage, stream: trio.SocketStream) -> Outcome:
    try:
        command = msgspec.json.decode(await _line(stream), type=Command)
        return await run(storage, command)
    except (msgspec.MsgspecError, UnicodeDecodeError, MalformedError, StorageError) as error:
        return Outcome(error=str(error))


async def _line(stream: trio.SocketStream) -> bytes:
    line = bytearray()
    with trio.move_on_after(_READ_TIME):
        while not line.endswith(b"\n") and (received := await stream.receive_some()):
            line += received
            if len(line) > _LINE_LIMIT:
                raise MalformedError("the command is too long; give fewer skylinks at once")
    return bytes(line)


def _user(stream: trio.SocketStream) -> int:
    """Return who is at the other end."""
    form = struct.Struct("3i")
    raw = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    return int(form.unpack(raw)[1])
