"""``skymount registry pending``, ``retry``, ``drop`` and ``forget``."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from skymount.keyring import Keyring
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import DELETED, Entry, SignedEntry, hash_data_key
from tests.server.registry_entries import put
from tests.skymount_process import Sandbox

TWEAK = hash_data_key("greeting")


@contextmanager
def ledger_of(box: Sandbox) -> Iterator[Ledger]:
    with closing(Ledger.open(box.root / "state/skymount/ledger.sqlite3")) as ledger:
        yield ledger


@pytest.fixture
def pair(box: Sandbox, owner: str) -> SigningKeyPair:
    return Keyring(Path(box.root / "data/skymount/keys")).get("home")


def ref(pair: SigningKeyPair, name: str = "greeting") -> EntryId:
    return EntryId(pair.public_key, hash_data_key(name), name)


def failed(
    box: Sandbox,
    pair: SigningKeyPair,
    data: bytes,
    revision: int,
    reason: str = "down",
    name: str = "greeting",
) -> int:
    """Leave signed content in the outbox."""
    with ledger_of(box) as ledger:
        number = ledger.claim(ref(pair, name), pair, data, revision - 1).id
        ledger.fail(number, reason)
        return number


def held(
    box: Sandbox,
    pair: SigningKeyPair,
    data: bytes,
    base: int | None = None,
    name: str = "greeting",
) -> int:
    """Leave content in the outbox that was never signed."""
    with ledger_of(box) as ledger:
        ledger.keep(ref(pair, name), data, "no portal", base)
        return ledger.pending()[-1].id


def entry(pair: SigningKeyPair, data: bytes, revision: int) -> SignedEntry:
    return Entry(TWEAK, data, revision).sign(pair.private_key)


def test_nothing_is_pending_at_first(box: Sandbox) -> None:
    assert box.succeed("registry", "pending") == ""
    assert json.loads(box.succeed("registry", "pending", "--json")) == []
    assert box.succeed("registry", "retry") == ""
    assert box.succeed("registry", "drop", "--all") == ""


def test_pending_lists_what_could_not_be_posted(box: Sandbox, pair: SigningKeyPair) -> None:
    """G12: with its number, entry, revision, content and reason, fit for a terminal."""
    failed(box, pair, b"hello\x1b[2J", 4, "it is down")
    held(box, pair, b"\xff\xfe", name="b")
    failed(box, pair, DELETED, 5, name="c")
    failed(box, pair, b"x", 6, "it is down", name="d")
    lines = box.succeed("registry", "pending").splitlines()
    assert lines[0].split() == ["NUMBER", "SINCE", "ENTRY", "REVISION", "CONTENT"]
    assert [line for line in lines if line.endswith(":")] == ["it is down:", "no portal:", "down:"]
    first, fourth = lines[2:4]
    assert first.startswith("     1  ")
    assert first.endswith('  home/greeting  4           "hello\\x1b[2J"')
    assert (fourth.split()[0], fourth.split()[-2:]) == ("4", ["6", '"x"'])
    assert lines[5].endswith("  home/b         not signed  fffe")
    assert lines[7].endswith("  home/c         5           (deletion)")
    found = json.loads(box.succeed("registry", "pending", "--json"))
    assert [each["id"] for each in found] == [1, 2, 3, 4]
    assert found[0] | {"created": ""} == {
        "id": 1,
        "public_key": pair.public_hex,
        "data_key": "greeting",
        "hashed_data_key": TWEAK.hex(),
        "revision": 4,
        "hex": b"hello\x1b[2J".hex(),
        "reason": "it is down",
        "created": "",
        "posting": False,
        "portals": [],
        "waiting": False,
        "owed": False,
    }


def test_pending_of_a_key_that_is_not_in_the_keyring(box: Sandbox) -> None:
    stranger = SigningKeyPair.from_seed("somebody else")
    failed(box, stranger, b"x", 1)
    assert f"  {stranger.public_hex}/greeting  " in box.succeed("registry", "pending")


def test_retry_posts_everything_in_order(box: Sandbox, pair: SigningKeyPair) -> None:
    """G12: signed bytes as they are, the rest signed now."""
    failed(box, pair, b"first", 3)
    failed(box, pair, b"second", 4, name="b")
    held(box, pair, b"third", name="c")
    assert box.succeed("registry", "retry") == (
        "1: home/greeting, revision 3\n2: home/b, revision 4\n3: home/c, revision 0\n"
    )
    assert box.succeed("registry", "get", "home", "c") == "third\n"
    assert box.succeed("registry", "pending") == ""


def test_only_the_last_of_two_rewrites_is_sent(box: Sandbox, pair: SigningKeyPair) -> None:
    """G12: both were written while no portal answered; the second one is what the file had."""
    box.succeed("registry", "set", "home", "greeting", "before")
    held(box, pair, b"first")
    held(box, pair, b"second")
    found = json.loads(box.succeed("registry", "retry", "--json"))
    assert [each["revision"] for each in found] == [1]
    assert box.succeed("registry", "get", "home", "greeting") == "second\n"
    assert box.succeed("registry", "pending") == ""


def test_retry_of_some(box: Sandbox, pair: SigningKeyPair) -> None:
    failed(box, pair, b"first", 3)
    failed(box, pair, b"other", 1, name="other")
    done = box.skymount("registry", "retry", "--json", "1")
    assert json.loads(done.stdout) == [{"id": 1, "entry": "home/greeting", "revision": 3}]
    assert [each["id"] for each in json.loads(box.succeed("registry", "pending", "--json"))] == [2]


def test_set_supersedes_what_was_pending(box: Sandbox, pair: SigningKeyPair) -> None:
    """G12: What is posted supersedes what was written to the same entry before; with a word."""
    held(box, pair, b"old")
    done = box.skymount("registry", "set", "home", "greeting", "new")
    assert (done.returncode, done.stdout) == (0, "revision 0\n")
    assert 'home/greeting was to be "old"' in done.stderr
    assert box.succeed("registry", "pending") == ""


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_retry_of_what_is_superseded(
    box: Sandbox, portal: str, pair: SigningKeyPair, is_signed: bool, overwrite: bool
) -> None:
    """G12: `retry` gives up what is superseded, with its content, unless it is to overwrite."""
    if is_signed:
        failed(box, pair, b"old", 0)
    else:
        held(box, pair, b"old", 0)
    put_by_others(portal, entry(pair, b"newer", 1))
    if overwrite:
        assert (
            box.succeed("registry", "retry", "--overwrite", "1") == "1: home/greeting, revision 2\n"
        )
        assert box.succeed("registry", "get", "home", "greeting") == "old\n"
    else:
        done = box.skymount("registry", "retry")
        assert (done.returncode, done.stdout) == (0, "")
        assert '1: home/greeting was to be "old", which is superseded and given up' in done.stderr
        assert "the entry was changed since: it has revision 1" in done.stderr
        assert box.succeed("registry", "get", "home", "greeting") == "newer\n"
    assert box.succeed("registry", "pending") == ""


def test_retry_leaves_a_conflict(box: Sandbox, portal: str, pair: SigningKeyPair) -> None:
    """G12: a partial edit that was refused stays until it is told to overwrite, or dropped."""
    put_by_others(portal, entry(pair, b"theirs", 5))
    with ledger_of(box) as ledger:
        ledger.keep(ref(pair), b"edit", "it was changed", 3, status=Status.CONFLICT)
    for _ in range(2):
        done = box.skymount("registry", "retry")
        assert done.returncode == 1
        assert "1: the entry was changed since" in done.stderr
        assert "1 of 1 stay pending" in done.stderr
    assert box.succeed("registry", "retry", "--overwrite") == "1: home/greeting, revision 6\n"


def put_by_others(portal: str, *entries: SignedEntry) -> None:
    """Change entries at the portal, as another machine would."""
    with httpx.Client(base_url=portal, headers={"User-Agent": "tests"}) as client:
        for each in entries:
            put(client, each)


def test_retry_without_a_portal_keeps_everything(box: Sandbox, pair: SigningKeyPair) -> None:
    failed(box, pair, b"x", 3)
    done = box.with_env(SKYMOUNT_PORTALS="http://127.0.0.1:1").skymount("registry", "retry")
    assert done.returncode == 1
    assert "1: " in done.stderr
    (left,) = json.loads(box.succeed("registry", "pending", "--json"))
    assert "127.0.0.1:1" in left["reason"]
    assert not left["posting"]


def test_what_a_process_is_posting_is_left_to_it(box: Sandbox, pair: SigningKeyPair) -> None:
    """This process is the one that posts."""
    with ledger_of(box) as ledger:
        ledger.claim(ref(pair), pair, b"x", 0)
    assert "\nbeing posted now:\n" in box.succeed("registry", "pending")
    for command in ("retry", "drop"):
        done = box.skymount("registry", command, "1")
        assert done.returncode == 1
        assert "posting it now" in done.stderr
    assert box.succeed("registry", "retry") == ""


def test_drop(box: Sandbox, pair: SigningKeyPair) -> None:
    """G12: what is dropped is gone, its revision stays taken."""
    for revision in range(3):
        failed(box, pair, b"%d" % revision, revision, name="abc"[revision])
    box.succeed("registry", "drop", "2")
    assert [each["id"] for each in json.loads(box.succeed("registry", "pending", "--json"))] == [
        *(1, 3)
    ]
    box.succeed("registry", "drop", "--all")
    assert box.succeed("registry", "pending") == ""
    with ledger_of(box) as ledger:
        assert ledger.highest_revision(*ref(pair, "c").key) == 2


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("drop",), 2, "--all"),
        (("drop", "--all", "1"), 2, "--all"),
        (("drop", "7"), 3, "7: nothing of that number"),
        (("retry", "7"), 3, "7: nothing of that number"),
        (("forget", "home", "unknown"), 3, "no such entry is listed"),
        (("forget", "nobody", "x"), 3, "no key called nobody"),
    ],
)
def test_wrong_use(box: Sandbox, owner: str, args: tuple[str, ...], code: int, words: str) -> None:
    done = box.skymount("registry", *args)
    assert done.returncode == code
    assert words in done.stderr


def test_forget(box: Sandbox, pair: SigningKeyPair) -> None:
    """G6: the name is no longer listed, by its text or its hash; the mark stays.

    G4: `registry forget --seen` lets an older entry be believed.
    """
    with ledger_of(box) as ledger:
        ledger.record_seen(entry(pair, b"x", 5), "greeting")
    box.succeed("registry", "forget", "home", "greeting")
    with ledger_of(box) as ledger:
        assert ledger.listed_entries(pair.public_key) == []
        ledger.record_seen(entry(pair, b"x", 5), None)
    box.succeed("registry", "forget", "--hashed", pair.public_hex, TWEAK.hex())
    with ledger_of(box) as ledger:
        assert ledger.listed_entries(pair.public_key) == []
        assert ledger.mark_of(pair.public_key, TWEAK) is not None
    box.succeed("registry", "forget", "--seen", "home", "greeting")
    with ledger_of(box) as ledger:
        assert ledger.mark_of(pair.public_key, TWEAK) is None
        assert ledger.highest_revision(pair.public_key, TWEAK) == 5


def test_damaged_ledger_is_named(box: Sandbox) -> None:
    with ledger_of(box) as ledger:
        path = ledger.path
    path.write_bytes(b"")
    done = box.skymount("registry", "pending")
    assert done.returncode == 1
    assert str(path) in done.stderr


def test_what_a_portal_is_owed(box: Sandbox, pair: SigningKeyPair) -> None:
    """G19: it is listed behind what is pending, and dropped by its number or with the rest."""
    held(box, pair, b"later")
    with ledger_of(box) as ledger:
        for portal in ("http://a.invalid", "http://b.invalid"):
            ledger.owe(entry(pair, b"x", 3), "greeting", [portal], "it is down")
    lines = box.succeed("registry", "pending").splitlines()
    assert lines[3] == "owed to http://a.invalid: it is down:"
    assert lines[4].startswith("     2  ")
    assert lines[4].endswith('  home/greeting  3           "x"')
    found = json.loads(box.succeed("registry", "pending", "--json"))
    assert [(each["id"], each["owed"], each["portals"]) for each in found] == [
        (1, False, []),
        (2, True, ["http://a.invalid"]),
        (3, True, ["http://b.invalid"]),
    ]
    done = box.skymount("registry", "retry", "2")
    assert "http://a.invalid is not among the portals" in done.stderr
    assert "1 of 1 stay pending" in done.stderr
    box.succeed("registry", "drop", "2")
    assert len(json.loads(box.succeed("registry", "pending", "--json"))) == 2
    box.succeed("registry", "drop", "--all")
    assert box.succeed("registry", "pending") == ""
