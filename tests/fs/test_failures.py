"""Failed operations: which are logged, how often, and what is remembered of them."""

import errno
import logging
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pyfuse3
import pytest
import trio
import trio.testing

from skymount.errors import (
    BadContentError,
    NotFoundError,
    PortalTimeoutError,
    StorageError,
    UnavailableError,
)
from skymount.fs.failures import FailureLog, describe
from skymount.fs.fuse import FuseAdapter, FuseConfig
from skymount.fs.inode_space import SKYLINKS
from tests.fakes.in_memory_mount import InMemoryMount, open_in_memory_mount

CTX: pyfuse3.RequestContext = SimpleNamespace(pid=1, uid=os.getuid())  # type: ignore[assignment]
LAST_ERROR = b"user.skymount.last_error"
SILENT = UnavailableError("no answer in 10 s", method="GET", url="http://p:80/AAA?x=y")


def fail(
    failures: FailureLog,
    path: bytes = b"skylinks/x",
    *,
    operation: str = "read",
    inode: int = 0,
    error: Exception = SILENT,
    seconds: float = 10.0,
) -> None:
    failures.add(describe(operation, path, str(error), error, errno.EIO, seconds), inode)


@asynccontextmanager
async def watched(failures: FailureLog) -> AsyncIterator[None]:
    """Let repetitions be said."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(failures.run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged since the last call."""
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


async def test_a_line_for_each_failure(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    """E1: path, operation, how long it took, and the reason, with the portal's address."""
    failures = FailureLog()
    fail(failures)
    fail(failures, operation="opendir")
    fail(failures, error=StorageError("ledger: disk full"), seconds=0.01)
    where = "(GET http://p:80/AAA?x=y)"
    assert lines(caplog) == [
        f"skylinks/x: read failed after 10.0 s: no answer in 10 s {where}",
        f"skylinks/x: opendir failed after 10.0 s: no answer in 10 s {where}",
        "skylinks/x: read failed after 0.0 s: ledger: disk full",
    ]


async def test_many_failures(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    """E1: at most 50 lines in a minute; then one says how many more operations failed."""
    failures = FailureLog()
    async with watched(failures):
        for number in range(20_000):
            fail(failures, b"skylinks/%d" % number)
        await trio.sleep(61)
        found = lines(caplog)
        assert [" failed after " in line for line in found[:50]] == [True] * 50
        assert found[50:] == ["and 19,950 more operations failed in 60 s"]
        await trio.sleep(200)
        assert lines(caplog) == []
        for _ in range(51):
            fail(failures)
        assert len(lines(caplog)) == 50, "the next minute has lines again"
    assert lines(caplog) == ["and 1 more operation failed in 60 s"], "the end loses no count"


async def test_tracebacks_among_many_failures(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
):
    """E1: and at most 10 more with a traceback."""
    failures, bug = FailureLog(), ZeroDivisionError()
    for number in range(60):
        fail(failures, b"skylinks/%d" % number)
    lines(caplog)
    for number in range(60):
        failures.add(describe("read", b"%d" % number, "a bug", bug, errno.EIO, 0.0), 0, bug)
    assert [bool(record.exc_info) for record in caplog.records] == [True] * 10
    fail(failures, b"skylinks/none")
    assert len(caplog.records) == 10


async def test_names_forge_no_lines(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    """A name, or a portal's text, of any bytes and length is one line."""
    failures = FailureLog()
    fail(failures, b"a\nb\x1b[31m\xff", error=UnavailableError("x\r\ny" + "z" * 10_000))
    [line] = lines(caplog)
    assert line.startswith(r"a\nb\x1b[31m\udcff: read failed after 10.0 s: x\r\nyzz")
    assert len(line) < 1000
    [found] = failures.recent()
    assert found["path"] == r"a\nb\x1b[31m\udcff"


async def test_the_last_ones_are_listed(autojump_clock: object):
    """E2: The last 50 failed operations, the oldest first."""
    failures = FailureLog()
    for number in range(60):
        fail(failures, b"skylinks/%d" % number)
    found = failures.recent()
    assert [each["path"] for each in found] == [f"skylinks/{number}" for number in range(10, 60)]
    last = found[-1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", str(last.pop("time")))
    assert last == {
        "operation": "read",
        "path": "skylinks/59",
        "errno": "EIO",
        "reason": "no answer in 10 s (GET http://p:80/AAA?x=y)",
        "portal": "http://p:80",
        "seconds": 10.0,
    }


@pytest.mark.parametrize(
    ("failed", "gone_after", "not_after"),
    [
        ("read", ["read"], ["open", "getattr", "lookup", "flush"]),
        ("opendir", ["opendir", "read"], ["getattr", "listxattr"]),
        ("getattr", ["getattr", "read"], ["lookup"]),
        ("flush", ["flush", "fsync", "rename", "unlink"], ["read", "open", "getattr"]),
        ("release", ["flush"], ["read"]),
    ],
)
async def test_until_when_an_error_is_remembered(
    autojump_clock: object, failed: str, gone_after: list[str], not_after: list[str]
):
    """A5: After a failed read it is gone once a read succeeds, after a failed write once one is
    posted, and always once the same operation succeeds.
    """
    for operation in gone_after:
        failures = FailureLog()
        fail(failures, operation=failed, inode=5)
        for other in not_after:
            failures.succeeded(other, 5)
        failures.succeeded(operation, 6)
        text = failures.last_error(5)
        assert text is not None
        assert f"Z: {failed} failed after 10.0 s: no answer in 10 s (GET".encode() in text
        failures.succeeded(operation, 5)
        assert failures.last_error(5) is None
        assert not failures


async def test_a_bounded_number_of_paths_is_remembered(autojump_clock: object):
    """A5: At most 500 paths have it."""
    failures = FailureLog()
    for inode in range(1, 601):
        fail(failures, b"%d" % inode, inode=inode)
    remembered = [inode for inode in range(1, 601) if failures.last_error(inode)]
    assert remembered == list(range(101, 601))


def adapter(mount: InMemoryMount) -> FuseAdapter:
    return FuseAdapter(mount.files, FuseConfig("/nowhere"))


async def lookup(fuse: FuseAdapter, *names: str) -> int:
    """Look up a path below `skylinks`; return its inode number."""
    inode = SKYLINKS
    for name in names:
        inode = (await fuse.lookup(inode, name.encode(), CTX)).st_ino
    return inode


async def test_failed_read(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    """E1: A read that fails is logged with its path; A5: the path has the error."""
    async with open_in_memory_mount() as mount:
        fuse = adapter(mount)
        link = mount.reader.add({"d/file": b"content"})
        inode = await lookup(fuse, str(link), "d", "file")
        mount.reader.cold, mount.reader.errors[link] = True, SILENT
        opened = await fuse.open(inode, os.O_RDONLY, CTX)
        with pytest.raises(pyfuse3.FUSEError):
            await fuse.read(opened.fh, 0, 10)
        [line] = lines(caplog)
        assert line.startswith(
            f"skylinks/{link}/d/file: read failed after 1.0 s: no answer in 10 s"
        )
        text = (await fuse.getxattr(inode, LAST_ERROR, CTX)).decode()
        assert text.endswith(line.partition(": ")[2])
        mount.reader.errors.clear()
        await fuse.flush(opened.fh)
        assert await fuse.getxattr(inode, LAST_ERROR, CTX)
        assert await fuse.read(opened.fh, 0, 10) == b"content"
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await fuse.getxattr(inode, LAST_ERROR, CTX)
        assert caught.value.errno == errno.ENODATA
        assert lines(caplog) == []


@pytest.mark.parametrize("error", [PortalTimeoutError("slow"), BadContentError("a lie")])
async def test_failed_lookup(
    error: Exception, autojump_clock: object, caplog: pytest.LogCaptureFixture
):
    """E1: So is a lookup, with the name that was looked up."""
    async with open_in_memory_mount() as mount:
        link = mount.reader.add({"file": b""})
        mount.reader.errors[link] = error
        with pytest.raises(pyfuse3.FUSEError), caplog.at_level(logging.WARNING):
            await lookup(adapter(mount), str(link))
        found = [line for line in lines(caplog) if " failed after " in line]
        assert found == [f"skylinks/{link}: lookup failed after 0.0 s: {error}"]


async def test_what_is_no_failure(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    """E1: Names that do not exist and what the rules refuse are no failures."""
    async with open_in_memory_mount() as mount:
        fuse = adapter(mount)
        link, absent = mount.reader.add({"file": b""}), "AAAA" + "A" * 42
        inode = await lookup(fuse, str(link), "file")
        mount.reader.errors[link] = NotFoundError("not here")
        with caplog.at_level(logging.WARNING):
            assert await lookup(fuse, absent) == 0
            for work in (
                fuse.open(inode, os.O_WRONLY, CTX),
                fuse.opendir(inode, CTX),
                fuse.getattr(99 << 24, CTX),
                fuse.unlink(SKYLINKS, b"x", CTX),
                fuse.lookup(inode, b"x" * 300, CTX),
            ):
                with pytest.raises(pyfuse3.FUSEError):
                    await work
        assert lines(caplog) == []
        assert fuse.failures.recent() == []
