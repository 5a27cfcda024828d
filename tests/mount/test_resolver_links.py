"""V2 skylinks in ``skylinks/``: where they lead, who says so, and what that is worth."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from skymount.wire.registry_entry import DELETED, SignedEntry
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.resolving import FakeRegistry
from tests.fakes.skyfiles import FakeSkyfile
from tests.mount.test_hns import C, error_of, mounting, read, until
from tests.server.registry_entries import link_of, put, signed
from tests.skymount_process import Mount, Sandbox, output, run, xattrs

SITE = skyfiles.of_files({"f": b"site"})
OTHER = skyfiles.of_files({"f": b"other"})
V2 = str(link_of("key"))


def to(skyfile: FakeSkyfile, revision: int = 0) -> SignedEntry:
    """Return the entry that leads to content."""
    return signed("key", bytes(skyfile.skylink), revision)


@pytest.fixture
def registries() -> Iterator[list[FakeRegistry]]:
    """Two portals that believe whatever they are told."""
    with ExitStack() as stack:
        found = []
        for _ in range(2):
            portal = stack.enter_context(in_thread(FakePortal()))
            portal.add(SITE, OTHER)
            found.append(FakeRegistry(portal))
        yield found


def of(registry: FakeRegistry) -> tuple[str, str]:
    """Return the arguments that name a portal."""
    return "--portal", registry.portal.url


def shown(mount: Mount) -> tuple[str, str]:
    """Return what the file behind the skylink holds, and whether that is verified."""
    file = mount.skylink(V2) / "f"
    return read(file), xattrs(file)["user.skymount.verified"]


def test_link_of_an_entry_at_a_real_portal(sandbox: Sandbox, portal: str) -> None:
    """S8: A v2 (resolver) skylink is the directory of what it resolves to.

    H4: It is verified if the portal sends a proof that fits.

    Also where verification is required, and in every form. While it leads to the same content the
    inode numbers stay as they are.
    """
    with httpx.Client(base_url=portal, headers={"User-Agent": "svc-agent"}) as client:
        links = []
        for n in range(2):
            (sandbox.root / f"v{n}").mkdir()
            (sandbox.root / f"v{n}/f").write_text(str(n))
            links.append(sandbox.upload(sandbox.root / f"v{n}", portal))
        put(client, signed("mounted", links[0].encode()))
        link = link_of("mounted")
        here = mounting(sandbox, 0.2)
        with here.mounted("--portal", portal, "--verify", "require") as mount:
            files = [mount.skylink(name) / "f" for name in (str(link), link.base32, f"sia:{link}")]
            for file in files:
                assert read(file) == "0"
                assert xattrs(file)["user.skymount.verified"] == "yes"
            inodes = output(["stat", "-c", "%i", *files])
            assert len(set(inodes.split())) == 3
            put(client, signed("mounted", links[1].encode(), 1))
            for file in files:
                until(lambda file=file: read(file) == "1")  # type: ignore[misc]
                assert xattrs(file)["user.skymount.skylink"] == links[1]
            put(client, signed("mounted", links[0].encode(), 2))
            until(lambda: read(files[0]) == "0")
            until(lambda: output(["stat", "-c", "%i", *files]) == inodes)
            put(client, signed("mounted", DELETED, 3))
            until(lambda: run(["ls", files[0].parent]).returncode != 0)
            assert error_of(files[0].parent) == "No such file or directory"


@pytest.mark.parametrize("proves", [False, True])
def test_verification_is_required(
    sandbox: Sandbox, registries: list[FakeRegistry], proves: bool
) -> None:
    """H4: else it is served only with `verify` below `require`, with `user.skymount.verified` =
    `no`.
    """
    registries[0].set(to(SITE))
    registries[0].proves = proves
    with sandbox.mounted(*of(registries[0])) as mount:
        assert shown(mount) == ("site", "yes" if proves else "no")
    with sandbox.with_env(XDG_STATE_HOME=_another(sandbox)).mounted(
        *of(registries[0]), "--verify", "require"
    ) as mount:
        if proves:
            assert shown(mount) == ("site", "yes")
        else:
            assert error_of(mount.skylink(V2)) == "Input/output error"


def _another(sandbox: Sandbox) -> str:
    """Return a directory for the state of another user."""
    path: Path = sandbox.root / "another"
    path.mkdir()
    return os.fspath(path)


@pytest.mark.parametrize("verify", ["available", "require"])
def test_forged_proof(sandbox: Sandbox, registries: list[FakeRegistry], verify: str) -> None:
    """T3: A portal whose answer fails the check is not believed: the next portal is asked.

    A proof of another entry's way is no proof.
    """
    liar, honest = registries
    liar.entries[link_of("key")] = signed("another", bytes(OTHER.skylink))
    honest.set(to(SITE))
    with sandbox.mounted(*of(liar), *of(honest), "--verify", verify) as mount:
        assert shown(mount) == ("site", "yes")
    with sandbox.mounted(*of(liar), "--verify", verify) as mount:
        done = run(["ls", mount.skylink(V2)], env=C)
        assert "Input/output error" in done.stderr


def test_entry_that_is_rolled_back(sandbox: Sandbox, registries: list[FakeRegistry]) -> None:
    """G4: nor a revision below the highest that this machine has seen of the entry.

    A portal that proves an old way is not believed, in this mount and in the next one.
    """
    [registry, _] = registries
    sandbox = sandbox.with_env(SKYMOUNT_SEND_PENDING="false")  # or the portal gets it back
    registry.set(to(SITE, 7))
    with mounting(sandbox, 0.2).mounted(*of(registry)) as mount:
        assert shown(mount) == ("site", "yes")
        registry.set(to(OTHER, 6))
        file = mount.skylink(V2) / "f"
        until(lambda: xattrs(file)["user.skymount.stale"] == "yes")
        assert shown(mount) == ("site", "yes")
    with sandbox.mounted(*of(registry)) as mount:
        assert error_of(mount.skylink(V2)) == "Input/output error"
        registry.set(to(OTHER, 8))
        assert shown(mount) == ("other", "yes")


def test_registry_tells_where_the_portal_does_not_prove(
    sandbox: Sandbox, registries: list[FakeRegistry]
) -> None:
    """H4: or its entry can be read from the registry.

    The public key is known from a proof that the portal sent before.
    """
    [registry, _] = registries
    registry.set(to(SITE))
    with mounting(sandbox, 0.2).mounted(*of(registry), "--verify", "require") as mount:
        assert shown(mount) == ("site", "yes")
        registry.proves = False
        registry.set(to(OTHER, 1))
        until(lambda: shown(mount) == ("other", "yes"))
