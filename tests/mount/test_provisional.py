"""A portal that lies where nobody can check it, while the one that could prove it fails."""

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import FakeSkyfile, noise
from tests.skymount_process import Foreground, Sandbox, output

TRUE = skyfiles.of_files({"dir/large": noise(5 << 20, 1), "dir/small": b"true"})
FALSE = FakeSkyfile(TRUE.skylink, TRUE.metadata, noise(5 << 20, 1)[:-1] + b"!" + b"FALS", TRUE.base)
"""The same names and sizes, other bytes."""
OTHER = FakeSkyfile(
    TRUE.skylink, skyfiles.of_files({"dir/large": noise(5 << 20, 1)}).metadata, TRUE.payload, b""
)
"""Other names."""

SOON = 20.0
"""Seconds in which a proof must be used: it is asked for after 1, 2, 4 and 8 s."""


@pytest.fixture
def liar() -> Iterator[FakePortal]:
    """A portal that hides base sectors and sends other bytes."""
    with in_thread(FakePortal()) as portal:
        portal.base_sectors = False
        portal.add(FALSE)
        yield portal


@pytest.fixture
def honest() -> Iterator[FakePortal]:
    """A portal that has the content and can prove it."""
    with in_thread(FakePortal()) as portal:
        portal.add(TRUE)
        yield portal


@contextmanager
def mounted(sandbox: Sandbox, *portals: FakePortal) -> Iterator[Foreground]:
    words = [word for each in portals for word in ("--portal", each.url)]
    with sandbox.foreground(*words) as mount:
        yield mount


def tree(mount: Foreground) -> Path:
    """Return the directory of the skylink."""
    return mount.path / "skylinks" / TRUE.name


def verified(mount: Foreground) -> str:
    return os.getxattr(tree(mount), "user.skymount.verified").decode()


def wait_for_proof(mount: Foreground) -> None:
    """Wait until the name shows what is proven."""
    end = time.monotonic() + SOON
    while verified(mount) != "yes":
        assert time.monotonic() < end, mount.log.read_text()
        time.sleep(0.1)


def small(mount: Foreground) -> bytes:
    return output(["cat", tree(mount) / "dir/small"])


def test_a_portal_that_fails_once(sandbox: Sandbox, liar: FakePortal, honest: FakePortal) -> None:
    """T3: those that fail are asked three times before a mere word is believed."""
    honest.fault(fake.status(503), "basesector", times=1)
    with mounted(sandbox, liar, honest) as mount:
        assert (small(mount), verified(mount)) == (b"true", "yes")


def test_a_proof_replaces_what_was_believed(
    sandbox: Sandbox, liar: FakePortal, honest: FakePortal
) -> None:
    """T6: As soon as a portal proves the content, its name shows the proven content."""
    honest.fault(fake.status(503))
    with mounted(sandbox, liar, honest) as mount, ExitStack() as stack:
        assert (small(mount), verified(mount)) == (b"FALS", "no")
        assert small(mount) == b"FALS"
        assert mount.log.read_text().count("provisional") == 1
        opened = stack.enter_context(open(tree(mount) / "dir/small", "rb"))
        before = os.stat(tree(mount)).st_ino
        honest.heal()
        wait_for_proof(mount)
        assert small(mount) == b"true"
        assert output(["cat", tree(mount) / "dir/large"]) == TRUE.payload[: 5 << 20]
        assert os.stat(tree(mount)).st_ino != before
        assert opened.read() == b"FALS"  # a file that was opened before stays as it is
        assert "no longer provisional" in mount.log.read_text()


def test_nothing_provisional_is_kept(
    sandbox: Sandbox, liar: FakePortal, honest: FakePortal
) -> None:
    """T6: Neither the description nor the content is kept on disk."""
    honest.fault(fake.status(503))
    with mounted(sandbox, liar, honest) as mount:
        assert output(["cat", tree(mount) / "dir/large"]) == FALSE.payload[: 5 << 20]
    assert json.loads(sandbox.succeed("cache", "info", "--json"))["blocks"] == 0
    liar.add(TRUE)
    with mounted(sandbox, liar, honest) as mount:
        assert (small(mount), verified(mount)) == (b"true", "no")
    honest.heal()
    with mounted(sandbox, liar, honest) as mount:
        assert (small(mount), verified(mount)) == (b"true", "yes")


def test_a_liar_that_became_honest(sandbox: Sandbox, liar: FakePortal, honest: FakePortal) -> None:
    """T6: what nobody proves is fetched again, so that no lie stays; whoever is in the directory
    stays there.
    """
    honest.fault(fake.status(503))
    with mounted(sandbox, liar, honest) as mount, ExitStack() as stack:
        assert small(mount) == b"FALS"
        inside = os.open(tree(mount) / "dir", os.O_RDONLY)
        stack.callback(os.close, inside)
        liar.add(TRUE)
        end = time.monotonic() + SOON
        while small(mount) != b"true":
            assert time.monotonic() < end, mount.log.read_text()
            time.sleep(0.1)
        assert output(["cat", f"/proc/{os.getpid()}/fd/{inside}/small"]) == b"true"
        assert verified(mount) == "no"


def test_names_that_were_a_lie(sandbox: Sandbox, liar: FakePortal, honest: FakePortal) -> None:
    """T6: any other use of a tree that turned out to be another is ESTALE."""
    liar.add(OTHER)
    honest.fault(fake.status(503))
    with mounted(sandbox, liar, honest) as mount, ExitStack() as stack:
        assert os.listdir(tree(mount) / "dir") == ["large"]
        inside = os.open(tree(mount) / "dir", os.O_RDONLY)
        stack.callback(os.close, inside)
        honest.heal()
        wait_for_proof(mount)
        assert sorted(os.listdir(tree(mount) / "dir")) == ["large", "small"]
        with pytest.raises(OSError) as caught:
            os.open("large", os.O_RDONLY, dir_fd=inside)
        assert caught.value.errno == errno.ESTALE


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_refusal_pins_nothing(
    sandbox: Sandbox, liar: FakePortal, honest: FakePortal, code: int
) -> None:
    """K5: all portals are asked for something better before what is on disk is used again."""
    honest.fault(fake.status(code))
    with mounted(sandbox, liar, honest) as mount:
        assert (small(mount), verified(mount)) == (b"FALS", "no")
    honest.heal()
    asking = sandbox.with_env(SKYMOUNT_PORTALS=f"{liar.url} {honest.url}")
    assert asking.succeed("cat", f"{TRUE.name}/dir/small") == "true"
    with mounted(sandbox, liar, honest) as mount:
        assert (small(mount), verified(mount)) == (b"true", "yes")
