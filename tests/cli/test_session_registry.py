"""Registry entries that a portal rolls back, as commands see them."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skymount.keyring import Keyring
from skymount.portal.ledger.ledger import Ledger
from skymount.wire.hns import RegistryRecord, encode_resolution
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, SignedEntry, hash_data_key
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.resolving import FakeRegistry
from tests.fakes.skyfiles import of_metadata
from tests.mount.namespaces import new_namespace
from tests.skymount_process import Sandbox

PAIR = SigningKeyPair.from_seed("somebody")
TWEAK = hash_data_key("site")
NEW = of_metadata(b'{"filename":"f","length":11}', b'{"n":"new"}')
OLD = of_metadata(b'{"filename":"f","length":11}', b'{"n":"old"}')
LINK = str(Entry(TWEAK, b"", 0).sign(PAIR.private_key).link)
GET = ("registry", "get", PAIR.public_hex, "site")
READERS: dict[str, tuple[str, ...]] = {
    "registry get": GET,
    "db get": ("db", "get", PAIR.public_hex, "site"),
    "ls": ("ls", LINK),
    "cat": ("cat", LINK),
    "download": ("download", "--force", LINK, "saved"),
    "metadata": ("metadata", LINK),
    "domain": ("cat", "hns://example"),
}


def to(skyfile: object, revision: int) -> SignedEntry:
    """Return an entry that leads to content."""
    return Entry(TWEAK, bytes(skyfile.skylink), revision).sign(PAIR.private_key)  # type: ignore[attr-defined]


@pytest.fixture
def registries() -> Iterator[list[FakeRegistry]]:
    """Two portals that have both contents, and believe whatever they are told."""
    with in_thread(FakePortal()) as one, in_thread(FakePortal()) as two:
        found = [FakeRegistry(one), FakeRegistry(two)]
        for each in found:
            each.portal.add(NEW, OLD)
            record = RegistryRecord(PAIR.public_key, TWEAK)
            each.domains["example"] = encode_resolution(record)
        yield found


def asking(sandbox: Sandbox, *registries: FakeRegistry) -> Sandbox:
    urls = " ".join(each.portal.url for each in registries)
    return sandbox.with_env(SKYMOUNT_PORTALS=urls, SKYMOUNT_TIMEOUT="5")


@pytest.mark.parametrize("proves", [True, False])
@pytest.mark.parametrize("reader", READERS)
def test_an_old_entry_is_refused(
    sandbox: Sandbox, registries: list[FakeRegistry], reader: str, proves: bool
) -> None:
    """G4: The same holds for commands: what one has seen, the next one knows; another portal that
    has the newer entry is asked; the message says what to do, and that helps.
    """
    one, two = registries
    for each in registries:
        each.set(to(NEW, 5))
        each.proves = proves
    box = asking(sandbox, one)
    assert box.skymount(*GET).returncode == 0
    one.set(to(OLD, 4))
    said = box.fail(*READERS[reader])
    assert "revision 4 is behind revision 5, which was seen before" in said
    assert "`skymount registry forget --seen KEY DATAKEY`" in said
    assert asking(sandbox, one, two).skymount(*READERS[reader]).returncode == 0
    box.succeed("registry", "forget", "--seen", PAIR.public_hex, "site")
    assert box.skymount(*READERS[reader]).returncode == 0


@pytest.mark.parametrize("reader", READERS)
def test_what_a_command_reads_is_remembered(
    sandbox: Sandbox, registries: list[FakeRegistry], reader: str
) -> None:
    """G4: every command that reads an entry feeds the ledger."""
    one, _ = registries
    one.set(to(NEW, 5))
    box = asking(sandbox, one)
    assert box.skymount(*READERS[reader]).returncode == 0
    with closing(Ledger.open(sandbox.root / "state/skymount/ledger.sqlite3")) as ledger:
        seen = ledger.mark_of(PAIR.public_key, TWEAK)
        assert seen is not None
        assert seen.revision == 5


def test_commands_and_mounts_share_what_was_seen(
    sandbox: Sandbox, registries: list[FakeRegistry]
) -> None:
    """G4: all mounts and commands of a user share the ledger, at the same time."""
    one, two = registries
    one.set(to(NEW, 5))
    two.set(to(OLD, 4))
    with sandbox.mounted("--portal", one.portal.url) as mount:
        mount.path.joinpath("registry", PAIR.public_hex, "site").read_bytes()
        assert "behind revision 5" in asking(sandbox, two).fail(*GET)
        one.set(to(NEW, 6))
        assert asking(sandbox, one).skymount(*GET).returncode == 0
        two.set(to(OLD, 5))
        assert "behind revision 6" in asking(sandbox, two).fail("cat", LINK)


def damaged(state: Path) -> None:
    (state / "skymount").mkdir()
    (state / "skymount/ledger.sqlite3").write_bytes(b"this is no database" * 100)


def in_the_way(state: Path) -> None:
    (state / "skymount").write_text("a file")


@pytest.mark.parametrize("trouble", [damaged, in_the_way])
@pytest.mark.parametrize("reader", READERS)
def test_a_ledger_that_cannot_be_used(
    sandbox: Sandbox,
    registries: list[FakeRegistry],
    reader: str,
    trouble: Callable[[Path], None],
) -> None:
    """G4: a command warns in one line and goes on, and with `verify = "require"` it refuses."""
    one, _ = registries
    one.set(to(NEW, 5))
    trouble(sandbox.root / "state")
    box = asking(sandbox, one)
    done = box.skymount(*READERS[reader])
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if "ledger.sqlite3" in line]
    assert len(warnings) == 1
    assert "it may go unnoticed when a portal shows an old registry entry" in warnings[0]
    if reader != "domain":  # refused for other reasons
        said = box.with_env(SKYMOUNT_VERIFY="require").fail(*READERS[reader])
        assert "ledger.sqlite3" in said
        assert "verify require" in said


def test_a_home_that_is_read_only(sandbox: Sandbox, registries: list[FakeRegistry]) -> None:
    """G4: what was seen before is known there too."""
    one, _ = registries
    one.set(to(NEW, 5))
    box = asking(sandbox, one)
    box.skymount(*GET)
    with new_namespace(network=False) as namespace:
        state = sandbox.root / "state"
        namespace.do("mount", "--bind", state, state)
        namespace.do("mount", "-o", "remount,bind,ro", state)
        inside = box.within(namespace.prefix)
        assert inside.skymount(*GET).returncode == 0
        one.set(to(OLD, 4))
        done = inside.skymount(*GET)
        assert done.returncode == 1
        warning, error = done.stderr.splitlines()
        assert warning.startswith("skymount: warning: cannot use")
        assert "behind revision 5" in error


def test_v1_skylinks_need_no_ledger(sandbox: Sandbox, registries: list[FakeRegistry]) -> None:
    """What names no entry makes no ledger, and does not miss it."""
    damaged(sandbox.root / "state")
    box = asking(sandbox, registries[0])
    assert box.succeed("cat", str(NEW.skylink)) == '{"n":"new"}'


def test_publishing_goes_above_what_was_seen(
    sandbox: Sandbox, registries: list[FakeRegistry], portal: str
) -> None:
    """G4: the owner sets a portal right: whole new content takes a revision above all seen."""
    Keyring(sandbox.root / "data/skymount/keys").add("home", PAIR)
    one, _ = registries
    one.set(to(NEW, 5))
    assert asking(sandbox, one).skymount(*GET).returncode == 0
    (sandbox.root / "page").write_text("x")
    box = sandbox.with_env(SKYMOUNT_PORTALS=portal)
    box.succeed("publish", "page", "--key", "home", "--as", "site")
    assert '"revision":6' in box.succeed("registry", "get", "--json", "home", "site")
    assert os.path.exists(sandbox.root / "state/skymount/ledger.sqlite3")
