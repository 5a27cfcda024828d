"""When a mount is ready, and who is told."""

import logging
import socket
from pathlib import Path

import pytest
import trio

from skymount.daemon.embedded_portal import EmbeddedPortal
from skymount.daemon.readiness import Report, announce
from skymount.fs.skylinks.waiting_reads import KERNEL_LIMIT, WaitingReads
from skymount.settings import Config
from tests.fakes.portal import FakePortal, running


def no_reads() -> WaitingReads:
    """The reads of a mount whose portals answer."""
    return WaitingReads(lambda since: True, trio.sleep_forever, ())


async def announced(mountpoint: Path, *urls: str) -> list[str]:
    """Announce a mount of these portals; return what the starting process is told."""
    told: list[str] = []
    report = Report(ready=lambda portals: told.append(f"ready: {portals}"), warning=told.append)
    config = Config(mountpoint=str(mountpoint), portals=urls, read_ahead=False)
    reads = no_reads()
    await announce(config, report, EmbeddedPortal(), reads)
    assert reads.limit == KERNEL_LIMIT  # no FUSE connection belongs to a plain directory
    return told


@pytest.fixture
def nobody() -> str:
    """The URL of a portal that is not there."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


async def test_ready(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """M3: where the portals answer nothing is warned of; the log has their addresses."""
    caplog.set_level(logging.INFO)
    async with running(FakePortal()) as portal:
        assert await announced(tmp_path, portal.url) == [f"ready: {portal.url}"]
    assert f"{tmp_path}: mounted, portals: {portal.url}" in caplog.text


async def test_portals_that_do_not_answer(tmp_path: Path, nobody: str) -> None:
    """M3: they are a warning, before the mount is ready; those that answer are not in it."""
    text = (
        "does not answer yet: Connection refused; "
        "is the portal running, and is the port right?; the tree works once it does"
    )
    assert await announced(tmp_path, nobody, f"{nobody}/base") == [
        f"{nobody} {text}",
        f"{nobody}/base {text}",
        f"ready: {nobody} {nobody}/base",
    ]
    async with running(FakePortal()) as portal:
        told = await announced(tmp_path, portal.url, nobody)
        assert told == [f"{nobody} {text}", f"ready: {portal.url} {nobody}"]


async def test_embedded_portal_is_named(tmp_path: Path, nobody: str) -> None:
    """M3: with its own address, which need not be the default one, and as this mount's."""
    embedded = EmbeddedPortal(nobody)
    config = Config(mountpoint=str(tmp_path), default_portal=nobody, read_ahead=False)
    told: list[str] = []
    with trio.CancelScope() as scope:

        def ready(portals: str) -> None:
            told.append(portals)
            scope.cancel()

        report = Report(ready=ready, warning=lambda text: None)
        embedded.start()
        try:
            await announce(config, report, embedded, no_reads())
        finally:
            embedded.stop()
    assert told == [f"{nobody}, which runs with this mount"]


async def test_mount_point_that_is_gone(tmp_path: Path) -> None:
    """Nothing is announced of what does not answer."""
    told: list[str] = []
    report = Report(ready=told.append, warning=lambda text: None)
    config = Config(mountpoint=str(tmp_path / "gone"), portals=("http://127.0.0.1:9",))
    with pytest.raises(FileNotFoundError):
        await announce(config, report, EmbeddedPortal(), no_reads())
    assert told == []
