"""What a mount has kept on disk, read by commands: offline, and beside a running mount."""

import json
import sys
from pathlib import Path

import pytest

from tests.fakes.skyfiles import noise
from tests.mount.proxy import proxy_to
from tests.skymount_process import Mount, Sandbox, mounts_at, output

LARGE = noise(9 << 20, 11)


@pytest.fixture
def skylink(sandbox: Sandbox, portal: str) -> str:
    """Content of several chunks in a directory."""
    source = sandbox.root / "source"
    source.mkdir()
    (source / "large").write_bytes(LARGE)
    (source / "small").write_text("a few words")
    return sandbox.upload(source, portal)


def read_all(mount: Mount, skylink: str) -> None:
    for name in ("large", "small"):
        output(["cat", mount.skylink(skylink) / name])


def blocks(sandbox: Sandbox) -> int:
    found = json.loads(sandbox.succeed("cache", "info", "--json"))["blocks"]
    assert isinstance(found, int)
    return found


def cat(sandbox: Sandbox, *args: str) -> bytes:
    """Return what ``skymount cat`` writes."""
    place = Path(sandbox.root, "written")
    words = " ".join(f"'{arg}'" for arg in args)
    done = sandbox.run("sh", "-c", f"{sys.executable} -m skymount cat {words} > {place}")
    assert (done.returncode, done.stderr) == (0, "")
    return place.read_bytes()


def test_commands_read_what_a_mount_has_kept(sandbox: Sandbox, portal: str, skylink: str) -> None:
    """K1: `skymount ls`, `cat` and `download` read what mounts have kept, without a portal."""
    with sandbox.mounted("--portal", portal) as mount:
        read_all(mount, skylink)
        output(["fusermount3", "-u", mount.path])
        mount.daemon.wait()
        assert not mounts_at(mount.path)
    with proxy_to(portal, is_open=False) as proxy:
        offline = sandbox.with_env(SKYMOUNT_PORTALS=proxy.url)
        assert offline.succeed("ls", skylink) == "large\nsmall\n"
        assert cat(offline, f"{skylink}/large", f"{skylink}/small") == LARGE + b"a few words"
        offline.succeed("download", skylink, "copy")
        assert (sandbox.root / "copy/large").read_bytes() == LARGE
        without = offline.with_env(SKYMOUNT_DISK_CACHE="off")
        assert "cannot be reached" in without.fail("cat", f"{skylink}/small")


def test_commands_beside_a_mount(sandbox: Sandbox, portal: str, skylink: str) -> None:
    """K1: they add nothing, and disturb nobody; K6: a cache that is not used is not needed."""
    with sandbox.mounted("--portal", portal) as mount:
        asking = sandbox.with_env(SKYMOUNT_PORTALS=portal)
        assert cat(asking, f"{skylink}/large") == LARGE
        assert blocks(sandbox) == 0
        read_all(mount, skylink)
        assert cat(asking, f"{skylink}/large") == LARGE
        read_all(mount, skylink)
        (sandbox.root / "cache/skymount/content/v1").chmod(0o777)
        assert cat(asking, f"{skylink}/large") == LARGE
