"""Proofs of resolution: a real one, chains that hold, and every way in which one does not."""

import json
from dataclasses import replace

import pytest

from skymount.errors import BadSignatureError, MalformedError
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import (
    DELETED,
    MAX_REVISION,
    UPDATE_LIMIT,
    Entry,
    SignedEntry,
    hash_data_key,
)
from skymount.wire.registry_proof import HOPS, check_proof, encode_proof
from skymount.wire.skylink import Skylink
from tests.wire.vectors import cases


def proven(requested: Skylink, resolved: Skylink, text: bytes) -> bool:
    """Whether a header's text proves the resolution."""
    try:
        check_proof(requested, resolved, SignedEntry.parse_hops(text))
    except MalformedError:
        return False
    return True


PAIR = SigningKeyPair.from_seed("owner")
OTHER = SigningKeyPair.from_seed("other")
CONTENT = Skylink("CABAB_1Dt0FJsxqsu_J4TodNCbCGvtFf1Uys_3EgzOlTcg")
ELSEWHERE = Skylink.v1(b"\7" * 32, 4096)


def hop(
    data: bytes, key: str = "second", revision: int = 3, pair: SigningKeyPair = PAIR
) -> SignedEntry:
    return Entry(hash_data_key(key), data, revision).sign(pair.private_key)


LAST = hop(bytes(CONTENT))
FIRST = hop(bytes(LAST.link), "first", MAX_REVISION, OTHER)

BROKEN = "^Could not verify registry proof chain$"


# --- chains that hold


@pytest.mark.parametrize(
    "case", [case for case in cases("signatures_to_verify") if hasattr(case.values[0], "resolver")]
)
def test_known_proof(case):
    """The proof of a real portal shows that a v2 skylink leads to the first live file."""
    signed = SignedEntry(
        bytes.fromhex(case.publicKey),
        Entry(bytes.fromhex(case.tweak), bytes.fromhex(case.data), int(case.revision)),
        bytes.fromhex(case.signature),
    )
    asked, found = Skylink(case.resolver), Skylink(case.skylink)
    check_proof(asked, found, SignedEntry.parse_hops(encode_proof([signed])))
    assert proven(asked, found, encode_proof([signed]))
    assert not proven(asked, CONTENT, encode_proof([signed]))


@pytest.mark.parametrize("hops", [(LAST,), (FIRST, LAST), (hop(str(CONTENT).encode()),)])
def test_chain_that_holds(hops):
    """One hop or two lead to content, whoever signed, in either form of data (docs/wire.md 1.4)."""
    assert len(hops) <= HOPS
    check_proof(hops[0].link, CONTENT, hops)
    assert proven(hops[0].link, CONTENT, encode_proof(hops))


def test_proof_is_that_of_the_wire_page():
    """A hop holds data, revision, data key, public key, signature and kind (docs/wire.md 1.4)."""
    found = json.loads(encode_proof([FIRST, LAST]))
    assert [list(element) for element in found] == [
        ["data", "revision", "datakey", "publickey", "signature", "type"]
    ] * 2
    assert found[0]["revision"] == MAX_REVISION
    assert found[1]["data"] == bytes(CONTENT).hex()
    assert found[1]["publickey"]["algorithm"] == "ed25519"
    assert encode_proof([FIRST]).isascii()


# --- chains that do not


def test_empty_proof():
    """No hop proves nothing, for a v1 skylink neither."""
    for asked in (LAST.link, CONTENT):
        with pytest.raises(BadSignatureError, match=r"^Expected registry proof not to be empty$"):
            check_proof(asked, CONTENT, ())
    assert not proven(LAST.link, CONTENT, b"[]")


@pytest.mark.parametrize(
    ("asked", "resolved", "hops"),
    [
        pytest.param(FIRST.link, CONTENT, (LAST,), id="begins elsewhere"),
        pytest.param(LAST.link, CONTENT, (FIRST, LAST), id="begins too early"),
        pytest.param(FIRST.link, CONTENT, (LAST, FIRST), id="order"),
        pytest.param(FIRST.link, CONTENT, (FIRST,), id="ends too early"),
        pytest.param(FIRST.link, LAST.link, (FIRST,), id="ends at an entry"),
        pytest.param(LAST.link, ELSEWHERE, (LAST,), id="ends elsewhere"),
        pytest.param(LAST.link, CONTENT, (LAST, LAST), id="goes on behind content"),
        pytest.param(FIRST.link, CONTENT, (FIRST, FIRST, LAST), id="hop twice"),
        pytest.param(CONTENT, CONTENT, (LAST,), id="asked for content"),
        pytest.param(hop(DELETED).link, CONTENT, (hop(DELETED),), id="deleted"),
        pytest.param(hop(b"").link, CONTENT, (hop(b""),), id="empty"),
        pytest.param(hop(b"x" * 34).link, CONTENT, (hop(b"x" * 34),), id="no skylink"),
    ],
)
def test_chain_that_does_not_hold(asked, resolved, hops):
    """Every hop must lead to the next, from what is asked to what is served (docs/wire.md 1.4)."""
    with pytest.raises(BadSignatureError, match=BROKEN):
        check_proof(asked, resolved, hops)
    assert not proven(asked, resolved, encode_proof(hops))


@pytest.mark.parametrize(
    "forged",
    [
        replace(LAST, entry=replace(LAST.entry, data=bytes(ELSEWHERE))),
        replace(LAST, entry=replace(LAST.entry, data=bytes(ELSEWHERE), revision=4)),
        replace(LAST, signature=bytes(64)),
        replace(hop(bytes(ELSEWHERE), pair=OTHER), public_key=PAIR.public_key),
    ],
)
def test_forged_hop(forged):
    """A hop that its owner did not sign proves nothing, first or last."""
    resolved = CONTENT if forged.entry.data == bytes(CONTENT) else ELSEWHERE
    for hops in ((forged,), (FIRST, forged)):
        with pytest.raises(BadSignatureError, match="Could not verify signature"):
            check_proof(hops[0].link, resolved, hops)


def test_entry_of_another_owner():
    """Who asks for one owner's entry is not content with another's, well signed."""
    other = hop(bytes(ELSEWHERE), pair=OTHER)
    with pytest.raises(BadSignatureError, match=BROKEN):
        check_proof(LAST.link, ELSEWHERE, (other,))


def test_second_kind_proves_nothing():
    """Only entries of kind 1 count in a proof, as in the SDKs (docs/wire.md 1.4)."""
    second = Entry(LAST.entry.tweak, bytes(CONTENT), 3, 2).sign(PAIR.private_key)
    with pytest.raises(BadSignatureError, match=r"^Unsupported registry type in proof: '2'$"):
        check_proof(second.link, CONTENT, (second,))


# --- text from outside


def test_null_is_an_empty_proof():
    """A portal written in Go says null where it has no hops."""
    assert SignedEntry.parse_hops(b"null") == SignedEntry.parse_hops(b"[]") == ()


def element(**members: object) -> bytes:
    return json.dumps([json.loads(encode_proof([LAST]))[0] | members]).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[",
        b"[null]",
        b"[[]]",
        b"[{}]",
        b"7",
        b"\xff",
        element(data=None),
        element(data="0"),
        element(data="6 1 "),
        element(data="00" * 114),
        element(revision="3"),
        element(revision=-1),
        element(revision=1 << 64),
        element(revision=10**4000),
        element(datakey="x"),
        element(datakey=""),
        element(publickey="x"),
        element(publickey={"algorithm": "rsa", "key": ""}),
        element(publickey={"algorithm": "ed25519", "key": "AA=="}),
        element(publickey={"algorithm": "ed25519", "key": [300] * 32}),
        element(signature="00" * 63),
        element(signature=[0] * 64),
        element(type=0),
        element(type=10**4000),
        element() + b",",
        b"[" * 8000 + b"]" * 8000,
        b" " * (UPDATE_LIMIT + 1),
        encode_proof([LAST] * 60),
    ],
    ids=lambda text: repr(text[:60]),
)
def test_bad_proof(text):
    """A proof of another form, or beyond a limit, is refused and proves nothing."""
    with pytest.raises(MalformedError) as caught:
        SignedEntry.parse_hops(text)
    assert len(str(caught.value)) < 300
    assert not proven(LAST.link, CONTENT, text)


def test_key_of_a_hop_may_be_text():
    """A public key is read as text too, as everywhere (docs/wire.md 6.2)."""
    text = element(publickey=f"ed25519:{PAIR.public_hex}", unknown=[1])
    assert proven(LAST.link, CONTENT, text)
