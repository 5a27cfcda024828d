"""What is shown of a registry entry that is still to be posted."""

from dataclasses import replace

import pytest

from skymount.cli.pending_entries import pending_facts, pending_row, table
from skymount.portal.ledger.outbox import Pending, Status
from skymount.wire.registry_entry import DELETED
from skymount.wire.skylink import Skylink
from tests.portal.ledger.entries import KEY, TWEAK, signed

LINK = Skylink.v1(bytes(range(32)), 4096)
HELD = Pending(
    id=7,
    public_key=KEY,
    tweak=TWEAK,
    data_key="greeting",
    data=b"hello",
    signed=None,
    base=-1,
    accepted=False,
    status=Status.WAITING,
    attempts=0,
    next_at=0.0,
    reason="it is down",
    created=1_700_000_000.5,
    is_posting=False,
    portals=("http://one", "http://two"),
    lacking=(),
)


def test_row() -> None:
    """G12: number, time, entry, revision, content and reason."""
    row = pending_row(HELD, {KEY: "home"})
    start = ("7", "2023-11-14T22:13:20+00:00", "home/greeting")
    assert row.cells == (*start, "not signed", '"hello"')
    assert row.reason == "it is down"
    posting = pending_row(replace(HELD, signed=signed(b"hello", 3), is_posting=True), {})
    assert (posting.cells[3], posting.reason) == ("3", "being posted now")
    owed = pending_row(replace(HELD, accepted=True, portals=("http://one",)), {})
    assert owed.reason == "owed to http://one: it is down"


def test_table_has_each_reason_once() -> None:
    """G12: Rows of one reason stand together, and columns begin below each other."""
    other = replace(HELD, id=8, data_key="a", reason="refused")
    third = replace(HELD, id=10, data_key="another one")
    rows = [pending_row(each, {KEY: "home"}) for each in (HELD, other, third)]
    head, *lines = table(rows)
    assert [line for line in lines if line.endswith(":")] == ["it is down:", "refused:"]
    assert [line.split()[0] for line in lines if not line.endswith(":")] == ["7", "10", "8"]
    at = head.index("CONTENT")
    assert {line[at:] for line in lines if not line.endswith(":")} == {'"hello"'}
    assert table([]) == []


def test_entry_without_names() -> None:
    """The key is shown in hex where the keyring lacks it, the data key where only its hash is
    known.
    """
    row = pending_row(replace(HELD, data_key=None), {})
    assert row.cells[2] == f"{KEY.hex()}/{TWEAK.hex()}"


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", '""'),
        (b"\xff\xfe", "fffe"),
        (DELETED, "(deletion)"),
        (bytes(LINK), str(LINK)),
        (b"x" * 113, '"' + "x" * 59 + "..."),
    ],
    ids=["empty", "bytes", "deletion", "skylink", "long"],
)
def test_content(data: bytes, shown: str) -> None:
    """Text, a skylink, or else hex digits; cut to what a line has room for."""
    assert pending_row(replace(HELD, data=data), {}).cells[4] == shown


def test_facts() -> None:
    """--json has all of it, and the content whole."""
    data = b"\xff" * 113
    assert pending_facts(replace(HELD, data=data)) == {
        "id": 7,
        "public_key": KEY.hex(),
        "data_key": "greeting",
        "hashed_data_key": TWEAK.hex(),
        "revision": None,
        "hex": data.hex(),
        "reason": "it is down",
        "created": "2023-11-14T22:13:20+00:00",
        "posting": False,
        "portals": ["http://one", "http://two"],
        "waiting": True,
        "owed": False,
    }
    failed = replace(HELD, signed=signed(b"hello", 3), status=Status.CONFLICT)
    assert (pending_facts(failed)["revision"], pending_facts(failed)["waiting"]) == (3, False)
