"""Failed operations on a real mount: the log, ``status.json`` and ``user.skymount.last_error``."""

import errno
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, drips, in_thread, status
from tests.fakes.skyfiles import noise
from tests.mount.keys import HOME, Owner, until
from tests.mount.scripted import scripted_portal
from tests.skymount_process import Sandbox, output, read_status, run, xattrs

LARGE = skyfiles.of_files({"dir/large": noise(5 << 20, 1)})
KEY = "ab" * 32  # a public key
LAST_ERROR = "user.skymount.last_error"
SECRET = "not-for-the-log"  # an API key of a test


@pytest.fixture
def fake() -> Iterator[FakePortal]:
    with in_thread(FakePortal()) as portal:
        portal.add(LARGE)
        yield portal


def failures_in(log: Path) -> list[str]:
    """Return what the lines of a log about failures say."""
    lines = log.read_text().splitlines()
    return [line[line.index("dir/large") :] for line in lines if "dir/large: " in line]


def test_a_read_that_fails(sandbox: Sandbox, fake: FakePortal) -> None:
    """E1: A failed read is in the log; E2: and in status.json; A5: and on the path, until it
    succeeds.
    """
    sandbox.configure(f'portals = ["{fake.url}"]\napi_key = "{SECRET}"\n')
    with sandbox.mounted() as mount:
        file = mount.skylink(LARGE.name) / "dir/large"
        assert LAST_ERROR not in xattrs(file)
        fake.fault(status(503, "overloaded"))
        for _ in range(3):
            assert "Input/output error" in run(["head", "-c", "10", file]).stderr
        line = failures_in(sandbox.log)[-1]
        assert " read failed after " in line
        assert f"overloaded (GET {fake.url}/{LARGE.name}" in line
        seen = mount.status()["failed_operations"]
        assert {each["path"] for each in seen} == {f"skylinks/{LARGE.name}/dir/large"}
        last = seen[-1]
        assert (last["operation"], last["errno"], last["portal"]) == ("read", "EIO", fake.url)
        assert "overloaded" in last["reason"]
        text = xattrs(file)[LAST_ERROR]
        assert f"Z: {line.partition(': ')[2].split(' after ')[0]} after " in text
        assert text.endswith(line.partition(" s: ")[2])
        fake.heal()
        assert output(["head", "-c", "10", file]) == LARGE.payload[:10]
        assert LAST_ERROR not in xattrs(file)
        everything = f"{sandbox.log.read_text()}{mount.status()}{text}"
    assert SECRET not in everything + sandbox.log.read_text()


def test_a_name_that_cannot_be_looked_up(sandbox: Sandbox, fake: FakePortal) -> None:
    """A5: it has no attributes, so its directory has the error, until a listing of it succeeds."""
    with sandbox.mounted("--portal", fake.url) as mount:
        directory = mount.path / "hns"
        fake.fault(status(401, "log in first"))
        assert "Permission denied" in run(["stat", directory / "example"]).stderr
        text = xattrs(directory)[LAST_ERROR]
        assert ": hns/example: lookup failed after " in text
        assert "log in first" in text
        output(["ls", directory])
        assert LAST_ERROR not in xattrs(directory)


WRITE = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.write(descriptor, b"text")
try:
    os.close(descriptor)
except OSError as error:
    print(error.errno)
"""


GET = "import os, sys; print(os.getxattr(sys.argv[1], sys.argv[2]).decode())"


def test_portals_that_were_waited_for(sandbox: Sandbox, fake: FakePortal) -> None:
    """E1: the overall time-out names the portal, for what goes on without the operation (a read)
    and for what ends with it (an entry).
    """
    with sandbox.mounted("--portal", fake.url, "--timeout", "3") as mount:
        file = mount.skylink(LARGE.name) / "dir/large"
        assert file.stat().st_size
        fake.fault(drips(1, 0.5))
        assert "timed out" in run(["head", "-c", "10", file]).stderr
        assert "timed out" in run(["cat", mount.path / "registry" / KEY / "entry"]).stderr
        reason = f"not done within 3 s ({fake.url})"
        assert sandbox.log.read_text().count(reason) >= 2  # the kernel repeats the read
        seen = [each for each in mount.status()["failed_operations"] if each["reason"] == reason]
        assert {each["portal"] for each in seen} == {fake.url}
        assert fake.url in xattrs(file)[LAST_ERROR]


def test_a_write_that_fails(sandbox: Sandbox, fake: FakePortal, portal: str) -> None:
    """E1: So is a close that could not post; A5: until the write is posted."""
    owner = Owner.make(sandbox, portal)
    with sandbox.mounted("--portal", fake.url) as mount:
        fake.fault(status(503, "overloaded"))
        file = mount.path / "registry" / HOME / "greeting"
        path = f"registry/{owner.pair.public_key.hex()}/greeting"
        command = [sys.executable, "-IS", "-c", WRITE, file]
        assert output(command) == f"{errno.EIO}\n".encode()
        log = sandbox.log.read_text()
        assert f" {path}: flush failed after " in log
        assert read_status(mount.path)["failed_operations"][-1]["path"] == path
        text = output([sys.executable, "-IS", "-c", GET, file, LAST_ERROR]).decode()
        assert " flush failed after " in text
        assert "overloaded" in text


def test_a_write_that_fails_after_the_close(sandbox: Sandbox) -> None:
    """G8: A file that was only emptied is posted after its last close; E1: a failure is logged as
    any other.
    """
    with scripted_portal() as portal:
        owner = Owner.make(sandbox, portal.url)
        with sandbox.mounted("--portal", portal.url) as mount:
            file = mount.path / "registry" / HOME / "greeting"
            path = f"registry/{owner.pair.public_key.hex()}/greeting"
            output(["sh", "-c", 'echo text > "$1"', "-", file])
            portal.always = "deaf"
            output(["truncate", "-s", "0", file])
            until(lambda: f" {path}: release failed after " in sandbox.log.read_text())
            assert read_status(mount.path)["failed_operations"][-1]["operation"] == "release"
            text = output([sys.executable, "-IS", "-c", GET, file, LAST_ERROR]).decode()
            assert " release failed after " in text


def test_a_read_that_the_kernel_repeats(sandbox: Sandbox, fake: FakePortal) -> None:
    """R2: it reads ahead, and then page by page what it failed to get; that takes no longer."""
    fake.fault(drips(3000, 0.1))
    with sandbox.mounted("--portal", fake.url, "--timeout", "4", "--verify", "off") as mount:
        file = mount.skylink(LARGE.name) / "dir/large"
        file.stat()
        begun = time.monotonic()
        done = run(["dd", f"if={file}", "of=/dev/null", "bs=1M", "count=1"])
        assert "timed out" in done.stderr
        assert time.monotonic() < begun + 7
