"""The only portal refuses connections for a while: what is under way waits for it."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.fakes.skyfiles import noise
from tests.mount.keys import HOME, Owner
from tests.mount.proxy import Proxy
from tests.skymount_process import Sandbox, output, run

COUNT = 40


class Door:
    """An address at which a portal can be reached, or refuses connections."""

    def __init__(self, portal: str) -> None:
        self._portal = portal
        self._proxy = Proxy(portal)
        self.url = self._proxy.url
        self._proxy.open()

    def open(self) -> None:
        self._proxy = Proxy(self._portal, urlsplit(self.url).port or 0)
        self._proxy.open()

    def close(self) -> None:
        self._proxy.close()


@contextmanager
def door_to(portal: str) -> Iterator[Door]:
    door = Door(portal)
    try:
        yield door
    finally:
        door.close()


FILE = noise(64 << 10, 3)


def test_a_portal_that_restarts(sandbox: Sandbox, portal: str) -> None:
    """R10: reads, names and writes that meet it wait for at most 5 s of its outage."""
    links = []
    for number in range(COUNT):
        file = sandbox.root / f"{number}"
        file.write_bytes(FILE + bytes([number]))
        links.append(sandbox.upload(file, portal))
    owner = Owner.make(sandbox, portal)
    with door_to(portal) as door, sandbox.mounted("--portal", door.url) as mount:
        assert output(["cat", mount.skylink(links[0]) / "0"]) == FILE + bytes([0])
        entry = mount.path / "registry" / HOME / "a"
        entry.write_text("before")
        door.close()
        returns = threading.Timer(2, door.open)
        returns.start()
        try:
            with ThreadPoolExecutor(8) as pool:
                paths = [mount.skylink(link) / str(at) for at, link in enumerate(links)]
                found = list(pool.map(lambda path: output(["cat", path]), paths))
            entry.write_text("after")
        finally:
            returns.join()
        assert found == [FILE + bytes([number]) for number in range(COUNT)]
        assert owner.data("a") == b"after"


def test_a_portal_that_stays_away(sandbox: Sandbox, portal: str, tmp_path: Path) -> None:
    """R10: then operations fail at once, until it is back."""
    file = tmp_path / "file"
    file.write_bytes(FILE)
    link = sandbox.upload(file, portal)
    other = tmp_path / "other"
    other.write_bytes(FILE[::-1])
    late = sandbox.upload(other, portal)
    with door_to(portal) as door, sandbox.mounted("--portal", door.url) as mount:
        output(["cat", mount.skylink(link) / "file"])
        door.close()
        for _ in range(3):
            run(["cat", mount.skylink(late) / "other"])
        begun = time.monotonic()
        assert run(["cat", mount.skylink(late) / "other"]).returncode != 0
        assert output(["cat", mount.skylink(link) / "file"]) == FILE
        assert time.monotonic() - begun < 5
        assert "it may be restarting, so operations wait" in sandbox.log.read_text()
        door.open()
        assert output(["cat", mount.skylink(late) / "other"]) == FILE[::-1]


def test_a_portal_that_is_waited_for(sandbox: Sandbox, portal: str) -> None:
    """R10, R2: `wait_for_portal` makes the wait longer than `timeout`; many reads wait at once.

    A program that is killed while it reads does not wait.
    """
    names = [f"{number:02}" for number in range(COUNT)]
    for name in names:
        (sandbox.directory("files") / name).write_bytes(noise(1 << 20, int(name)))
    link = sandbox.upload(sandbox.root / "files", portal)
    flags = ("--wait-for-portal", "5 min", "--timeout", "4", "--disk-cache", "off")
    with door_to(portal) as door, sandbox.mounted("--portal", door.url, *flags) as mount:
        files = mount.skylink(link)
        assert sorted(os.listdir(files)) == names
        door.close()
        returns = threading.Timer(10, door.open)
        returns.start()
        killed = subprocess.Popen(["cat", files / names[-1]], stdout=subprocess.DEVNULL)
        try:
            with ThreadPoolExecutor(16) as pool:
                reads = [pool.submit(output, ["cat", files / name]) for name in names]
                time.sleep(1)
                killed.kill()
                assert killed.wait(5) == -signal.SIGKILL
                assert returns.is_alive()
                found = [read.result() for read in reads]
        finally:
            killed.kill()
            killed.wait()
            returns.join()
        assert found == [noise(1 << 20, int(name)) for name in names]
