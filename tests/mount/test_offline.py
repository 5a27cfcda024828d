"""What a mount has kept on disk, read by commands: offline, and beside a running mount."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from skymount.errors import UnavailableError
from skymount.portal import SyncPortalClient
from skymount.wire.registry_entry import entry_link, hash_data_key
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import noise
from tests.mount.keys import HOME, Owner, until
from tests.mount.proxy import door_to, proxy_to
from tests.portal_process import PortalProcess, portal_process
from tests.skymount_process import Mount, Sandbox, mounts_at, output, run, xattrs

LARGE = noise(9 << 20, 11)
C = {**os.environ, "LC_ALL": "C"}


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


# --- what moves


@dataclass
class Moving:
    """Names of each kind that lead somewhere at a portal of its own."""

    sandbox: Sandbox
    owner: Owner
    portal: PortalProcess
    link: Skylink

    def paths(self, mount: Path) -> dict[str, Path]:
        return {
            "entry": mount / "registry" / HOME / "entry",
            "document": mount / "skydb" / HOME / "document.json",
            "v2 skylink": mount / "skylinks" / str(self.link) / "f",
            "domain": mount / "hns/example/f",
            "domain of an entry": mount / "hns/moving/f",
        }

    def read(self, mount: Path) -> dict[str, str]:
        return {kind: output(["cat", path]).decode() for kind, path in self.paths(mount).items()}

    def stale(self, mount: Path) -> set[str]:
        return {xattrs(path)["user.skymount.stale"] for path in self.paths(mount).values()}

    def publish(self, text: str) -> None:
        """Let all names lead to something new."""
        (self.sandbox.root / "f").write_text(text)
        skylink = Skylink(self.sandbox.upload(self.sandbox.root / "f", self.portal.url))
        self.owner.put("entry", text.encode())
        self.owner.put("link", bytes(skylink))
        with SyncPortalClient(self.portal.url) as client:
            client.db.set_json(self.owner.pair.private_hex, "document", {"text": text})
        for domain, target in (("example", skylink), ("moving", self.link)):
            self.sandbox.succeed(
                "portal", "hns", "set", "--data", self.portal.data, domain, str(target)
            )


@pytest.fixture
def moving(sandbox: Sandbox, tmp_path: Path) -> Iterator[Moving]:
    with portal_process(tmp_path / "data") as portal:
        owner = Owner.make(sandbox, portal.url)
        link = entry_link(owner.pair.public_key, hash_data_key("link"))
        made = Moving(sandbox.with_env(SKYMOUNT_HNS_TTL="0.2"), owner, portal, link)
        made.publish("before")
        owner.put("deleted", b"something")
        yield made


@pytest.mark.parametrize("is_silent", [False, True])
def test_names_that_move(moving: Moving, is_silent: bool) -> None:
    """G20: without a portal they lead where they led last, after a restart too."""
    with door_to(moving.portal.url) as door:
        with moving.owner.mounted(portal=door.url) as files:
            mount = files.parent.parent
            seen = moving.read(mount)
            assert (files / "deleted").read_bytes() == b"something"
            (files / "deleted").unlink()
            assert moving.stale(mount) == {"no"}
        if is_silent:
            door.stall(True)
        else:
            door.close()
        with moving.owner.mounted(portal=door.url) as files:
            mount = files.parent.parent
            begun = time.monotonic()
            assert moving.read(mount) == seen
            assert time.monotonic() - begun < 20
            assert moving.stale(mount) == {"yes"}
            assert not (files / "deleted").exists()
            assert "No such file" not in run(["cat", files / "unknown"], env=C).stderr
            with pytest.raises(OSError, match=r"."), (files / "entry").open("a") as file:
                file.write("!")
            with pytest.raises(OSError, match=r"."):
                (files / "rewritten").write_text("kept")
            kept = {each.data_key for each in moving.owner.pending()}
            assert kept == {"entry", "rewritten"}
            if is_silent:
                door.stall(False)
            else:
                door.open()
            moving.publish("after")
            until(lambda: "before" not in str(moving.read(mount)))
            until(lambda: moving.stale(mount) == {"no"})
            until(lambda: moving.owner.data("rewritten") == b"kept")
            assert moving.owner.data("entry") == b"after"


def test_commands_show_what_was_seen_last(moving: Moving) -> None:
    """G20: with a warning; the library raises."""
    with proxy_to(moving.portal.url) as proxy:
        with moving.owner.mounted(portal=proxy.url) as files:
            moving.read(files.parent.parent)
        proxy.close()
        offline = moving.sandbox.with_env(SKYMOUNT_PORTALS=proxy.url)
        for args, text in (
            (("cat", f"{moving.link}/f"), "before"),
            (("cat", "hns://example/f"), "before"),
            (("registry", "get", HOME, "entry"), "before"),
            (("db", "get", HOME, "document"), '{"text":"before"}'),
        ):
            done = offline.skymount(*args)
            assert (done.returncode, done.stdout.strip().replace(" ", "")) == (0, text)
            assert "seen last" in done.stderr
        assert "not verified" in offline.fail("cat", "--verify", "require", "hns://example/f")
        with SyncPortalClient(proxy.url) as client, pytest.raises(UnavailableError):
            client.registry.get_entry(moving.owner.pair.public_hex, "entry")
