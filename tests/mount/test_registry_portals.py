"""Registry writes of a mount with several portals, of which some are away (G19)."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from skymount.portal.ledger.outbox import Pending
from skymount.wire.registry_entry import hash_data_key
from tests.mount.keys import HOME, Owner, until
from tests.mount.scripted import ScriptedPortal, scripted_portal
from tests.portal.ledger import entries
from tests.portal_process import PortalProcess, portal_process
from tests.ports import unused_port
from tests.skymount_process import Mount, Sandbox, run


@dataclass
class Portal:
    """A real portal that can be ended, and started again with what it had."""

    data: Path
    port: int
    running: ExitStack
    process: PortalProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        listen = ("--listen", f"127.0.0.1:{self.port}")
        self.process = self.running.enter_context(portal_process(self.data, *listen))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.process.send_signal(number)


@pytest.fixture
def portals(tmp_path: Path) -> Iterator[list[Portal]]:
    with ExitStack() as running:
        found = [Portal(tmp_path / f"portal-{n}", unused_port(), running) for n in range(2)]
        for each in found:
            each.start()
        yield found


@contextmanager
def mounted(owner: Owner, *urls: str) -> Iterator[tuple[Mount, Path]]:
    words = [word for url in urls for word in ("--portal", url)]
    with owner.sandbox.mounted(*words) as mount:
        yield mount, mount.path / "registry" / HOME


def write(files: Path, text: str, name: str = "x") -> bool:
    """Write a file; return whether close(2) succeeded."""
    code = f"f = open({name!r}, 'w'); f.write({text!r}); f.close()"
    return run(["python3", "-IS", "-c", code], cwd=files).returncode == 0


def at(owner: Owner, portal: Portal, name: str = "x") -> bytes | None:
    return Owner(owner.sandbox, portal.url, owner.pair).data(name)


def owed(owner: Owner) -> list[Pending]:
    with owner.ledger() as ledger:
        return entries.owed(ledger)


@pytest.mark.parametrize("then", ["goes on", "mounted again", "killed"])
def test_write_while_a_portal_is_away(sandbox: Sandbox, portals: list[Portal], then: str) -> None:
    """It succeeds, and reaches the other portal when that is back: only the last of each entry."""
    one, two = portals
    owner = Owner.make(sandbox, one.url)
    urls = (one.url, two.url)
    with mounted(owner, *urls) as (mount, files):
        assert write(files, "first")
        assert at(owner, one) == at(owner, two) == b"first"
        two.kill()
        assert write(files, "second")
        assert write(files, "third")
        assert write(files, "new", "y")
        assert at(owner, one) == b"third"
        until(lambda: bool(mount.status()["owed_entries"]))
        assert {each.portals[0] for each in owed(owner)} == {two.url}
        assert {each.signed.entry.data for each in owed(owner)} == {b"third", b"new"}
        if then == "killed":
            mount.daemon.signal(signal.SIGKILL)
            mount.daemon.wait()
        if then == "goes on":
            two.start()
            until(lambda: not owed(owner))
    if then != "goes on":
        two.start()
        with mounted(owner, *urls) as (_, files):
            until(lambda: not owed(owner))
    assert (at(owner, two), at(owner, two, "y")) == (b"third", b"new")
    assert owner.pending() == []


def test_new_files_while_a_portal_is_away(
    sandbox: Sandbox, portals: list[Portal], tmp_path: Path
) -> None:
    """G3: what is not there is ENOENT below one's own key, unless it was seen before; below others'
    keys it is an error.
    """
    one, two = portals
    owner = Owner.make(sandbox, one.url)
    with mounted(owner, two.url) as (_, files):
        assert write(files, "only at the second", "seen")
    text = tmp_path / "text"
    text.write_text("[\n  1\n]\n")
    two.kill()
    with mounted(owner, one.url, two.url) as (mount, files):
        for directory, name in ((files, "new"), (mount.path / "skydb" / HOME, "new.json")):
            assert "No such file" in run(["cat", directory / name]).stderr
            assert run(["cp", text, directory / name]).returncode == 0
            assert run(["cat", directory / name]).stdout.split() == ["[", "1", "]"]
        stranger = mount.path / "registry" / ("ab" * 32)
        for path in (files / "seen", stranger / "x"):
            assert "Input/output error" in run(["cat", path]).stderr


@pytest.mark.parametrize("first", [True, False])
def test_silent_portal(sandbox: Sandbox, portals: list[Portal], first: bool) -> None:
    """Writes succeed, whichever portal it is; it gets them once it goes on."""
    silent, other = portals if first else reversed(portals)
    owner = Owner.make(sandbox, other.url)
    with mounted(owner, *(each.url for each in portals)) as (_, files):
        assert write(files, "first")
        silent.signal(signal.SIGSTOP)
        try:
            assert write(files, "second")
            assert write(files, "third")
            assert write(files, "new", "y")
            assert at(owner, other) == b"third"
        finally:
            silent.signal(signal.SIGCONT)
        until(lambda: not owed(owner))
        assert (at(owner, silent), at(owner, silent, "y")) == (b"third", b"new")


@pytest.mark.parametrize("policy", ["majority", "all"])
def test_too_few_portals(sandbox: Sandbox, portals: list[Portal], policy: str) -> None:
    """close fails, the content is kept, and reaches all portals once they are there."""
    one, two = portals
    owner = Owner.make(sandbox, one.url)
    sandbox.configure(f'portals = ["{one.url}", "{two.url}"]\nregistry_writes = "{policy}"\n')
    with sandbox.mounted() as mount:
        files = mount.path / "registry" / HOME
        assert write(files, "first")
        two.kill()
        assert not write(files, "second")
        assert "1 of 2 portals took it" in sandbox.log.read_text()
        kept = [each.data for each in owner.pending()]  # until a read finds it at the first portal
        assert kept == [b"second"] or {each.portals[0] for each in owed(owner)} == {
            one.url,
            two.url,
        }
        two.start()
        until(lambda: owner.pending() == [] and not owed(owner))
        assert at(owner, one) == at(owner, two) == b"second"


def test_debts_are_shown_sent_and_dropped(sandbox: Sandbox, portals: list[Portal]) -> None:
    """`umount` and `registry pending` show them, `retry` sends and `drop` drops them."""
    one, two = portals
    owner = Owner.make(sandbox, one.url)
    words = ("--portal", one.url, "--portal", two.url)
    two.kill()
    with mounted(owner, one.url, two.url) as (mount, files):
        assert write(files, "text")
        assert write(files, "other", "y")
        warned = sandbox.skymount("umount", mount.path).stderr
        assert f"{two.url} 2" in warned
    _, reason, *others = sandbox.succeed("registry", "pending").splitlines()
    assert reason.startswith(f"owed to {two.url}: ")
    lines = [line for line in others if "  home/" in line]  # reasons may differ, and be between
    assert len(lines) == 2
    assert lines[0].endswith('  home/x  0         "text"')
    numbers = [line.split()[0] for line in lines]
    failed = sandbox.skymount("registry", "retry", *words)
    assert "2 of 2 stay pending" in failed.stderr
    two.start()
    assert sandbox.succeed("registry", "retry", *words, numbers[0]) == (
        f"{numbers[0]}: home/x, revision 0\n"
    )
    assert at(owner, two) == b"text"
    sandbox.succeed("registry", "drop", numbers[1])
    assert sandbox.succeed("registry", "pending") == ""
    assert at(owner, two, "y") is None


def test_no_revision_is_signed_twice(sandbox: Sandbox) -> None:
    """Daemons die while a portal refuses to answer: each revision has one content everywhere."""
    with scripted_portal() as one, scripted_portal() as two:
        owner = Owner.make(sandbox, one.url)
        for number in range(3):
            with mounted(owner, one.url, two.url) as (mount, files):
                broken: ScriptedPortal = (one, two)[number % 2]
                assert write(files, f"good {number}")
                broken.always = "lost" if number else "deaf"
                assert write(files, f"owed {number}")
                mount.daemon.signal(signal.SIGKILL)
                mount.daemon.wait()
                broken.always = ""
        with mounted(owner, one.url, two.url):
            until(lambda: not owed(owner))
        latest = [each.latest(owner.pair.public_key, hash_data_key("x")) for each in (one, two)]
        assert latest[0] == latest[1]
        contents: dict[int, set[bytes]] = {}
        for post in one.posts + two.posts:
            contents.setdefault(post.entry.revision, set()).add(post.entry.data)
        assert all(len(found) == 1 for found in contents.values())
