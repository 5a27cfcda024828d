"""What could not be posted while a mount ran: sent by itself, by whichever mount, once; and what is
still open when a mount ends.
"""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from skymount.portal.ledger.outbox import Status
from skymount.wire.registry_entry import hash_data_key
from tests.mount.keys import HOME, Owner, program, until
from tests.mount.proxy import proxy_to
from tests.mount.scripted import ScriptedPortal, scripted_portal
from tests.skymount_process import Mount, Sandbox, run

SOON = "see `skymount registry pending`"


@pytest.fixture
def owner(sandbox: Sandbox, portal: str) -> Owner:
    """A home with a key of its own, and a real portal."""
    return Owner.make(sandbox, portal)


@pytest.fixture
def registry() -> Iterator[ScriptedPortal]:
    """A portal that holds requests where it is told."""
    with scripted_portal() as portal:
        yield portal


@pytest.fixture
def scripted(sandbox: Sandbox, registry: ScriptedPortal) -> Owner:
    """A home with a key, and that portal."""
    return Owner.make(sandbox, registry.url)


def echo(files: Path, text: str, name: str = "x") -> None:
    """Write a file as a shell does, which does not look at what close(2) says."""
    assert run(["sh", "-c", f"printf {text} > {name}; true"], cwd=files).returncode == 0


def kill(mount: Mount) -> None:
    """End a daemon at once."""
    mount.daemon.signal(signal.SIGKILL)
    mount.daemon.wait()


@contextmanager
def mounted(owner: Owner, portal: str = "") -> Iterator[tuple[Mount, Path]]:
    """Mount; yields the key's directory too."""
    with owner.sandbox.mounted("--portal", portal or owner.portal) as mount:
        yield mount, mount.path / "registry" / HOME


def assert_each_revision_once(registry: ScriptedPortal) -> None:
    """G12: A revision is never signed for two contents, also after a crash."""
    contents: dict[tuple[bytes, int], bytes] = {}
    for signed in [*registry.posts, *registry.ever]:
        key = (signed.entry.tweak, signed.entry.revision)
        assert contents.setdefault(key, signed.entry.data) == signed.entry.data


# --- what is sent by itself


@pytest.mark.parametrize("exists", [True, False])
def test_arrives_once_the_portal_can_be_reached(owner: Owner, exists: bool) -> None:
    """G12: What failed because no portal answered is sent by itself while any mount runs."""
    with ExitStack() as stack:
        proxy = stack.enter_context(proxy_to(owner.portal))
        _, files = stack.enter_context(mounted(owner, proxy.url))
        if exists:
            owner.put("x", b"old")
            assert run(["cat", files / "x"]).stdout == "old"
        port = int(proxy.url.rpartition(":")[2])
        proxy.close()
        echo(files, "text")
        assert [each.data for each in owner.pending()] == [b"text"]
        assert owner.data("x") == (b"old" if exists else None)
        stack.enter_context(proxy_to(owner.portal, port=port))
        until(lambda: owner.data("x") == b"text" and owner.pending() == [])
        until(lambda: run(["cat", files / "x"]).stdout == "text")
        assert owner.revision("x") == exists
        until(lambda: "posted, with revision" in owner.sandbox.log.read_text())


def test_arrives_once_the_portal_is_well(scripted: Owner, registry: ScriptedPortal) -> None:
    """G12: also what was signed, after 5xx; the last of several contents, and nothing but it."""
    registry.set(scripted.signed("x", b"old", 0))
    with mounted(scripted) as (_, files):
        registry.always = "deaf"
        for text in ("one", "two", "three"):
            echo(files, text)
        assert [each.data for each in scripted.pending()] == [b"three"]
        registry.always = ""
        until(lambda: scripted.pending() == [])
        assert [each.entry.data for each in registry.ever] == [b"old", b"three"]
        given_up = "never posted, and is given up"
        until(lambda: scripted.sandbox.log.read_text().count(given_up) == 2)
    assert_each_revision_once(registry)


def test_arrives_after_a_kill(scripted: Owner, registry: ScriptedPortal) -> None:
    """G12: the next mount sends it; killed while that posts, the one after that."""
    with mounted(scripted) as (mount, files):
        registry.always = "down"
        echo(files, "text")
        kill(mount)
    assert [each.data for each in scripted.pending()] == [b"text"]
    registry.always = ""
    gate = registry.hold("POST", answered=False)
    with mounted(scripted) as (mount, _):
        gate.wait()
        kill(mount)
        gate.open(drops=True)
    (kept,) = scripted.pending()
    assert kept.signed is not None
    assert registry.ever == []
    registry.gate_before = None
    with mounted(scripted):
        until(lambda: scripted.pending() == [])
    assert registry.ever == [kept.signed]
    assert_each_revision_once(registry)


def test_two_mounts_post_once(scripted: Owner, registry: ScriptedPortal) -> None:
    """G12: by one of the mounts."""
    second = scripted.sandbox.directory("second")
    owner = replace(scripted, sandbox=scripted.sandbox.with_env(SKYMOUNT_LOG_LEVEL="debug"))
    names = [f"x{number}" for number in range(8)]
    with mounted(owner) as (_, files), owner.mounted(at=second):
        registry.always = "down"
        for name in names:
            echo(files, "text", name)
        registry.always = ""
        until(lambda: owner.pending() == [])
    logs = "\n".join(log.read_text() for log in owner.sandbox.logs)
    known = {hash_data_key(name): name for name in names}
    for entries in (registry.ever, registry.posts):
        assert sorted(known.get(each.entry.tweak, str(each)) for each in entries) == names, logs


def test_another_mount_of_that_portal_sends_it(scripted: Owner, registry: ScriptedPortal) -> None:
    """G12: while any mount of the user runs, to a portal for which it was written and no other."""
    with mounted(scripted) as (_, files):
        registry.always = "down"
        echo(files, "text")
    registry.always = ""
    elsewhere = scripted.sandbox.directory("elsewhere")
    with scripted_portal() as other, scripted.mounted(portal=other.url, at=elsewhere):
        with mounted(scripted):
            until(lambda: scripted.pending() == [])
        assert other.gets == 0
        assert other.posts == []
    assert [each.entry.data for each in registry.ever] == [b"text"]


def test_what_somebody_else_wrote_meanwhile_stays(owner: Owner) -> None:
    """G12: Nothing that somebody else has changed meanwhile is overwritten: it stays in the list,
    and the log says so.
    """
    owner.put("x", b"old")
    with proxy_to(owner.portal) as proxy, mounted(owner, proxy.url) as (_, files):
        assert run(["cat", files / "x"]).stdout == "old"
        port = int(proxy.url.rpartition(":")[2])
        proxy.close()
        echo(files, "ours")
        owner.put("x", b"theirs")
        with proxy_to(owner.portal, port=port):
            until(lambda: "is not sent by itself" in owner.sandbox.log.read_text())
            assert run(["cat", files / "x"]).stdout == "theirs"
        assert [each.data for each in owner.pending()] == [b"ours"]
    done = owner.sandbox.skymount("registry", "retry", "--portal", owner.portal)
    assert done.returncode == 0
    assert 'was to be "ours", which is superseded and given up' in done.stderr
    assert (owner.data("x"), owner.pending()) == (b"theirs", [])


def test_what_is_there_unknown_to_all_stays(owner: Owner) -> None:
    """G12: what was written while nothing was known of an entry that turns out to be there stays
    until it is told to overwrite.
    """
    owner.put("x", b"theirs")
    with proxy_to(owner.portal, is_open=False) as proxy, mounted(owner, proxy.url) as (_, files):
        echo(files, "ours")
        proxy.open()
        until(lambda: "is not sent by itself" in owner.sandbox.log.read_text())
        done = owner.sandbox.skymount("registry", "retry", "--portal", owner.portal)
        assert done.returncode == 1
        assert "1 of 1 stay pending" in done.stderr
        assert owner.data("x") == b"theirs"
        owner.sandbox.succeed("registry", "retry", "--overwrite", "--portal", owner.portal)
        assert (owner.data("x"), owner.pending()) == (b"ours", [])


def test_umount_says_what_is_pending(owner: Owner) -> None:
    """G12: `umount` and the log say how much is pending, if anything is."""
    with (
        proxy_to(owner.portal, is_open=False) as proxy,
        mounted(owner, proxy.url) as (mount, files),
    ):
        for name in ("x", "y"):
            echo(files, "text", name)
        done = owner.sandbox.skymount("umount", mount.path)
        text = f"2 changes of registry entries could not be posted: {SOON}\n"
        assert (done.returncode, done.stderr) == (0, f"skymount: warning: {text}")
        *_, said, last = owner.sandbox.log.read_text().splitlines()
        assert said.endswith(text.rstrip())
        assert last.endswith("unmounted")
    with mounted(owner, proxy.url) as (mount, _):
        until(lambda: owner.sandbox.log.read_text().count(SOON) >= 3)  # at the beginning too
        owner.sandbox.succeed("registry", "drop", "--all")
        owner.sandbox.succeed("umount", mount.path)


def test_a_change_goes_on_from_what_was_sent(scripted: Owner, registry: ScriptedPortal) -> None:
    """G10: A partial edit is refused if somebody else changed the entry; this mount is nobody else.

    A program that keeps its file open finds what it could not sync, and was sent by itself.
    """
    registry.set(scripted.signed("x", b"old", 0))
    with mounted(scripted) as (_, files), program(files) as tool:
        assert tool.do("(f := os.open('x', os.O_WRONLY | os.O_APPEND)) and None") == "None"
        assert tool.do("os.write(f, b', one')") == "5"
        registry.always = "deaf"
        assert tool.do("os.fsync(f)") == "EIO"
        registry.always = ""
        until(lambda: scripted.pending() == [])
        assert tool.do("os.write(f, b', two')") == "5"
        assert tool.do("os.fsync(f)") == "None"
        assert tool.do("os.close(f)") == "None"
    assert [each.entry.data for each in registry.ever] == [b"old", b"old, one", b"old, one, two"]


def test_nothing_is_sent_where_that_is_not_wanted(
    scripted: Owner, registry: ScriptedPortal
) -> None:
    """G12: but for a mount with `send_pending = false`; another one of the user sends it."""
    mute = Owner(
        scripted.sandbox.with_env(SKYMOUNT_SEND_PENDING="false"), scripted.portal, scripted.pair
    )
    with mounted(mute) as (_, files):
        registry.always = "down"
        echo(files, "text")
        asked = len(registry.used)
        registry.always = ""
        with scripted.mounted(at=scripted.sandbox.directory("second")):
            until(lambda: scripted.pending() == [])
        assert len(registry.used) == asked


@pytest.mark.parametrize("redirection", [">", "1<>"])
def test_a_later_write_of_what_is_there_wins(owner: Owner, redirection: str) -> None:
    """G12: While something is pending, a later write that succeeds is posted even if the entry has
    that content already.
    """
    owner.put("x", b"old")
    with proxy_to(owner.portal) as proxy, mounted(owner, proxy.url) as (_, files):
        assert run(["cat", files / "x"]).stdout == "old"
        port = int(proxy.url.rpartition(":")[2])
        proxy.close()
        echo(files, "new")
        assert [each.data for each in owner.pending()] == [b"new"]
        with proxy_to(owner.portal, port=port):
            done = run(["sh", "-c", f"printf old {redirection} x"], cwd=files)
            assert (done.returncode, done.stderr) == (0, "")
            assert owner.data("x") == b"old"
            left = [(each.data, each.status) for each in owner.pending()]
            edited = [(b"new", Status.CONFLICT)]  # an edit does not contain what is pending
            assert left == ([] if redirection == ">" else edited)


# --- what is still open when a mount ends


STEPS = {
    "written": ("os.O_RDWR", "os.pwrite(f, b'new', 0)", b"new"),
    "appended": ("os.O_WRONLY | os.O_APPEND", "os.write(f, b', new')", b"old, new"),
    "emptied": ("os.O_WRONLY | os.O_TRUNC", "None", b""),
    "rewritten": ("os.O_WRONLY | os.O_TRUNC", "os.write(f, b'new')", b"new"),
}


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize("what", STEPS)
def test_open_and_changed_at_the_end(owner: Owner, what: str, is_down: bool) -> None:
    """M6, G8: what was written to a file that is still open when the daemon is told to end is
    posted, also when it was only emptied. G12: or kept.
    """
    flags, step, content = STEPS[what]
    owner.put("x", b"old")
    with (
        proxy_to(owner.portal) as proxy,
        mounted(owner, proxy.url) as (mount, files),
        program(files) as tool,
    ):
        assert tool.do(f"(f := os.open('x', {flags})) and None") == "None"
        assert tool.do(step) != "EIO"
        if is_down:
            proxy.close()
        mount.daemon.signal(signal.SIGTERM)
        mount.daemon.wait()
    if is_down:
        assert [each.data for each in owner.pending()] == [content]
        assert owner.data("x") == b"old"
    else:
        assert (owner.data("x"), owner.revision("x")) == (content, 1)
        assert owner.pending() == []
