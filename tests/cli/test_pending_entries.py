"""What is shown of a registry entry that is still to be posted."""

from dataclasses import replace

import pytest

from skymount.cli.pending_entries import pending_facts, pending_line
from skymount.portal.ledger.pending_write import PendingStatus, PendingWrite
from skymount.wire.registry_entry import DELETED
from skymount.wire.skylink import Skylink
from tests.portal.ledger.entries import KEY, TWEAK, signed

LINK = Skylink.v1(bytes(range(32)), 4096)
HELD = PendingWrite(
    id=7,
    public_key=KEY,
    tweak=TWEAK,
    data_key="greeting",
    data=b"hello",
    signed=None,
    base=None,
    reason="it is down",
    created=1_700_000_000.5,
    is_posting=False,
    portals=("http://one", "http://two"),
    status=PendingStatus.WAITING,
)


def test_line() -> None:
    """G12: number, time, entry, revision, content and reason."""
    assert pending_line(HELD, {KEY: "home"}) == (
        '7  2023-11-14T22:13:20+00:00  home/greeting  not signed  "hello"  it is down'
    )
    posting = replace(HELD, signed=signed(b"hello", 3), is_posting=True)
    parts = pending_line(posting, {KEY: "home"}).split("  ")
    assert (parts[3], parts[5]) == ("revision 3", "being posted now")


def test_entry_without_names() -> None:
    """The key is shown in hex where the keyring lacks it, the data key where only its hash is
    known.
    """
    line = pending_line(replace(HELD, data_key=None), {})
    assert f"  {KEY.hex()}/{TWEAK.hex()}  " in line


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
    assert pending_line(replace(HELD, data=data), {}).split("  ")[4] == shown


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
    failed = replace(HELD, signed=signed(b"hello", 3), status=PendingStatus.CONFLICT)
    assert (pending_facts(failed)["revision"], pending_facts(failed)["waiting"]) == (3, False)
