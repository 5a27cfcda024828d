"""Registry entries: known hashes and signatures, JSON in both directions, which replaces which."""

import base64
import json
from dataclasses import replace
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import BadSignatureError, MalformedError, RevisionError
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import (
    DATA_LIMIT,
    DELETED,
    MAX_REVISION,
    UPDATE_LIMIT,
    Entry,
    SignedEntry,
    check_update,
    entry_id,
    entry_link,
    hash_data_key,
    linked_skylink,
    parse_public_key,
    parse_tweak,
)
from skymount.wire.skylink import Skylink
from tests.wire.vectors import VECTORS, cases

PAIR = SigningKeyPair.from_seed("insecure test seed")
TWEAK = hash_data_key("app")
SIGNED = Entry(TWEAK, b"data", 7).sign(PAIR.private_key)
LINK = Skylink("CABAB_1Dt0FJsxqsu_J4TodNCbCGvtFf1Uys_3EgzOlTcg")

entries = st.builds(
    Entry,
    st.binary(min_size=32, max_size=32),
    st.binary(max_size=DATA_LIMIT),
    st.integers(0, MAX_REVISION) | st.sampled_from([0, 1 << 53, 1 << 63, MAX_REVISION]),
    st.just(1),
)


def entry_of(case) -> Entry:
    kind = getattr(case, "type", 1)
    tweak = bytes.fromhex(case.tweak) if hasattr(case, "tweak") else hash_data_key(case.dataKey)
    return Entry(tweak, bytes.fromhex(case.data), int(case.revision), kind)


def update(**members: object) -> bytes:
    """Return the JSON of an update of `SIGNED`, with other members; None leaves one out."""
    found = json.loads(SIGNED.encode_update()) | members
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


def answer(**members: object) -> bytes:
    return json.dumps(json.loads(SIGNED.encode_answer()) | members).encode()


# --- known answers


@pytest.mark.parametrize("case", cases("datakey_hash"))
def test_known_hash_of_a_data_key(case):
    """A data key is hashed as the SDKs do (docs/wire.md 6.5)."""
    assert hash_data_key(case.dataKey).hex() == case.hash


@pytest.mark.parametrize("case", cases("mysky_path_tweak"))
def test_known_tweak_of_a_path(case):
    """A path's tweak hashes its elements' hashes, and an entry can have it (docs/wire.md 6.5)."""
    elements = [blake2b(part.encode(), digest_size=32).digest() for part in case.path.split("/")]
    tweak = blake2b(b"\1" + b"".join(elements), digest_size=32).hexdigest()
    assert tweak == case.tweak
    assert parse_tweak(case.tweak).hex() == tweak


@pytest.mark.parametrize("case", cases("entry_hash_and_signature"))
def test_known_hash_and_signature(case):
    """An entry has the known hash, and its key the known signature (docs/wire.md 6.4)."""
    entry = entry_of(case)
    assert entry.hash().hex() == case.hash
    if hasattr(case, "seed"):
        pair = SigningKeyPair.from_seed(case.seed)
        signed = entry.sign(pair.private_key)
        assert (signed.signature.hex(), signed.public_key) == (case.signature, pair.public_key)
        assert pair.public_hex == case.publicKey
        assert signed.verify() is signed


@pytest.mark.parametrize("case", cases("entry_hash_type_2"))
def test_known_hash_of_the_second_kind(case):
    """The kind is hashed too, unless it is 1 (docs/wire.md 6.4)."""
    assert entry_of(case).hash().hex() == case.hash


@pytest.mark.parametrize("case", cases("signatures_to_verify"))
def test_known_signature(case):
    """Signatures of real portals verify, and not over anything else (docs/wire.md 6.4)."""
    entry = entry_of(case)
    assert entry.hash().hex() == case.hash
    signed = SignedEntry(bytes.fromhex(case.publicKey), entry, bytes.fromhex(case.signature))
    assert case.valid
    assert signed.verify() is signed
    for other in (
        replace(entry, revision=entry.revision + 1),
        replace(entry, data=entry.data + b"\0"),
        replace(entry, tweak=bytes(32)),
        replace(entry, kind=2),
    ):
        with pytest.raises(BadSignatureError):
            replace(signed, entry=other).verify()


@pytest.mark.parametrize("case", cases("resolver_skylink"))
def test_known_link_of_an_entry(case):
    """An entry's id and v2 skylink are the known ones (docs/wire.md 1.4)."""
    key = parse_public_key(f"ed25519:{case.publicKey}")
    tweak = parse_tweak(case.dataKey) if case.dataKeyIsTweak else hash_data_key(case.dataKey)
    assert tweak.hex() == case.tweak
    assert entry_id(key, tweak).hex() == case.entryId
    assert str(entry_link(key, tweak)) == case.skylink
    assert entry_link(key, tweak).base32 == case.base32
    signed = SignedEntry(key, Entry(tweak, b"", 0), bytes(64))
    assert (signed.id.hex(), str(signed.link)) == (case.entryId, case.skylink)


@pytest.mark.parametrize("case", cases("skydb_v2_file_name"))
def test_known_name_of_a_json_file(case):
    """The name that the JSON layer gives its files is in the content vectors' metadata."""
    assert case.filename == f"dk:{case.dataKey.encode().hex()}"
    metadata = [json.loads(found["metadata"]) for found in VECTORS["content_to_skylink"]]
    assert case.filename in {found["filename"] for found in metadata}


# --- data keys, public keys, tweaks


@pytest.mark.parametrize("text", ["\ud800", "a/\udcff", "\udfff\ud800"])
def test_data_key_that_is_no_text(text):
    """A lone surrogate in a data key is refused (docs/wire.md 6.5)."""
    with pytest.raises(MalformedError, match="valid Unicode"):
        hash_data_key(text)


def test_data_keys_are_not_normalized():
    """Two writings of one letter are two data keys: UTF-8 is hashed (docs/wire.md 6.5)."""
    assert hash_data_key("\u00fc") != hash_data_key("u\u0308")


@given(st.binary(min_size=32, max_size=32))
def test_public_key_reads_back(key):
    """A public key is read with its algorithm or without, in either case of its digits."""
    for text in (key.hex(), f"ed25519:{key.hex()}", key.hex().upper()):
        assert parse_public_key(text) == key
    assert parse_tweak(key.hex()) == parse_tweak(key.hex().upper()) == key


BAD_HEX = [
    "",
    "0" * 63,
    "0" * 65,
    "0" * 128,
    "0" * 64 + "\n",
    " " + "0" * 64,
    "0x" + "0" * 62,
    "0 " * 32,
    "g" * 64,
    "\u0660" * 64,
    "\uff10" * 64,
    "\ud800" * 64,
]


@pytest.mark.parametrize(
    "text",
    [
        *BAD_HEX,
        *(f"ed25519:{text}" for text in BAD_HEX),
        f":{'0' * 64}",
        f"ED25519:{'0' * 64}",
        f"ed25519 :{'0' * 64}",
        f"secp256k1:{'0' * 64}",
        f"ed25519:ed25519:{'0' * 64}",
        f"ed25519%3A{'0' * 64}",
    ],
)
def test_text_that_is_no_public_key(text):
    """Another algorithm, length or alphabet is refused."""
    with pytest.raises(MalformedError):
        parse_public_key(text)


@pytest.mark.parametrize("text", [*BAD_HEX, f"ed25519:{'0' * 64}"])
def test_text_that_is_no_hashed_data_key(text):
    """A hashed data key is 64 hex digits and nothing else."""
    with pytest.raises(MalformedError, match="64 hex digits"):
        parse_tweak(text)


def test_private_key_in_the_place_of_a_public_one_is_not_shown():
    """Who hands over the wrong key does not find it in an error."""
    for text in (PAIR.private_hex, f"ed25519:{PAIR.private_hex}", f"{PAIR.private_hex}:x"):
        for parse in (parse_public_key, parse_tweak):
            with pytest.raises(MalformedError) as caught:
                parse(text)
            assert PAIR.private_hex[:8] not in str(caught.value)


# --- entries


def test_limits_of_an_entry():
    """Data of 113 bytes and revisions of 64 bits fit (docs/wire.md 6.2)."""
    for entry in (Entry(TWEAK, b"x" * DATA_LIMIT, 0), Entry(TWEAK, b"", MAX_REVISION, 2)):
        assert len(entry.hash()) == 32


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data": b"x" * 114}, r"^Registry data is too big: 114 > 113$"),
        ({"revision": -1}, "64 bits"),
        ({"revision": 1 << 64}, "64 bits"),
        ({"revision": 10**5000}, "64 bits"),
        ({"kind": 0}, "unknown registry entry type"),
        ({"kind": 3}, "unknown registry entry type"),
        ({"kind": 10**5000}, "unknown registry entry type"),
        ({"tweak": b""}, "32 bytes"),
        ({"tweak": bytes(33)}, "32 bytes"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "".join(value),
)
def test_bad_entry(change, reason):
    """What is beyond the limits makes no entry, whoever builds it."""
    with pytest.raises(MalformedError, match=reason):
        replace(SIGNED.entry, **change)


def test_deleted_entry():
    """34 zero bytes say that the owner deleted the entry; nothing else does (docs/wire.md 6.6)."""
    assert Entry(TWEAK, DELETED, 1).is_deleted
    assert len(DELETED) == 34
    for data in (b"", bytes(33), bytes(35), b"\1" + bytes(33)):
        assert not Entry(TWEAK, data, 1).is_deleted


@given(st.sampled_from([LINK, Skylink.v2(bytes(32)), Skylink.v2(b"\xff" * 32)]))
def test_linked_skylink(link):
    """Data names a skylink in 34 raw bytes, or in 46 characters (docs/wire.md 1.4, 10)."""
    assert linked_skylink(bytes(link)) == link
    assert linked_skylink(str(link).encode()) == link


@pytest.mark.parametrize(
    "data",
    [
        b"",
        DELETED,
        b"\2" + bytes(33),
        b"\5" + bytes(33),
        b"\xfc\x03" + bytes(32),
        bytes(33),
        bytes(35),
        LINK.base32.encode(),
        b"sia://" + str(LINK).encode(),
        b"\xff" * 46,
        b"+" * 46,
        str(LINK).encode()[:-1] + b"\n",
        str(LINK).encode()[:-1] + b"=",
        b"example.hns/",
    ],
)
def test_data_that_is_no_skylink(data):
    """Deleted, empty, illegal and other data name none (docs/wire.md 1.2, 1.4)."""
    assert linked_skylink(data) is None


# --- signatures


@given(entries)
def test_what_is_signed_verifies(entry):
    """A signature fits its entry and its key, and no other key."""
    signed = entry.sign(PAIR.private_key)
    assert signed.verify() is signed
    other = SigningKeyPair.from_seed("another").public_key
    for wrong in (
        replace(signed, public_key=other),
        replace(signed, signature=bytes(64)),
        replace(signed, signature=signed.signature[32:] + signed.signature[:32]),
    ):
        with pytest.raises(BadSignatureError, match=r"^Could not verify signature from retrieved"):
            wrong.verify()


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31), b"\xff" * 32])
def test_weak_public_key(key):
    """A key under which anything could verify is none that owns an entry."""
    for signature in (bytes(64), b"\1" + bytes(63)):
        with pytest.raises(BadSignatureError):
            replace(SIGNED, public_key=key, signature=signature).verify()


def test_second_writing_of_a_signature():
    """A signature's number raised by the group's order does not verify: one signature, one text."""
    order = (1 << 252) + 27742317777372353535851937790883648493
    number = int.from_bytes(SIGNED.signature[32:], "little") + order
    forged = SIGNED.signature[:32] + number.to_bytes(32, "little")
    with pytest.raises(BadSignatureError):
        replace(SIGNED, signature=forged).verify()


@pytest.mark.parametrize("size", [0, 32, 63, 65, 128])
def test_private_key_of_another_size(size):
    """A private key of 64 bytes signs; another is refused, unseen."""
    with pytest.raises(MalformedError, match="64 bytes") as caught:
        SIGNED.entry.sign(PAIR.private_key[:1] * size)
    assert PAIR.private_hex[:2] * 4 not in str(caught.value)


@pytest.mark.parametrize(("key", "signature"), [(31, 64), (33, 64), (32, 63), (32, 65), (0, 0)])
def test_sizes_of_a_signed_entry(key, signature):
    """A public key has 32 bytes and a signature 64."""
    with pytest.raises(MalformedError):
        SignedEntry(bytes(key), SIGNED.entry, bytes(signature))


def test_second_kind_needs_the_hash_of_a_host():
    """An entry of kind 2 verifies with at least 20 bytes that name a host (docs/wire.md 6.4)."""
    named = Entry(TWEAK, b"h" * 20, 1, 2).sign(PAIR.private_key)
    assert named.verify() is named
    with pytest.raises(MalformedError, match="host"):
        Entry(TWEAK, b"h" * 19, 1, 2).sign(PAIR.private_key).verify()


# --- which entry replaces which


def refused(stored: Entry | None, new: Entry) -> str:
    try:
        check_update(stored, new)
    except RevisionError as error:
        return str(error)
    return ""


LOWER = "provided revision number is invalid"
SAME = "provided revision number is already registered"
LESS_WORK = f"{SAME}: entry doesn't have enough pow to replace existing entry"
LESS, MORE = (entry_of(case.values[0]) for case in cases("entry_hash_and_signature")[-2:])


@pytest.mark.parametrize(
    ("stored", "new", "reason"),
    [
        (None, 0, ""),
        (None, MAX_REVISION, ""),
        (0, 1, ""),
        (3, 100, ""),
        (1 << 53, (1 << 53) + 1, ""),
        (MAX_REVISION - 1, MAX_REVISION, ""),
        (1, 0, LOWER),
        (MAX_REVISION, 0, LOWER),
        (MAX_REVISION, MAX_REVISION - 1, LOWER),
        (7, 7, SAME),
        (MAX_REVISION, MAX_REVISION, SAME),
    ],
)
def test_higher_revision_replaces(stored, new, reason):
    """Any revision goes where none is, then only higher ones (docs/wire.md 6.3)."""
    before = None if stored is None else Entry(TWEAK, b"data", stored)
    assert refused(before, Entry(TWEAK, b"data", new)) == reason


def test_more_work_replaces_at_the_same_revision():
    """The lower hash wins, with the two entries of siad's TestHasMoreWork (docs/wire.md 6.3)."""
    assert MORE.hash() < LESS.hash()
    assert refused(LESS, MORE) == ""
    assert refused(MORE, LESS) == LESS_WORK
    assert refused(LESS, LESS) == refused(MORE, MORE) == SAME


def test_last_revision_freezes():
    """An entry of the last revision stays as it is, whatever the work (docs/wire.md 6.3)."""
    less, more = (replace(entry, revision=MAX_REVISION) for entry in (LESS, MORE))
    less, more = sorted((less, more), key=Entry.hash, reverse=True)
    assert refused(less, more) == SAME
    assert refused(more, less) == LESS_WORK
    assert refused(more, more) == SAME


def test_work_leaves_kind_and_host_out():
    """Kind 2 with a host's hash before the data is as much work as kind 1 (docs/wire.md 6.4)."""
    named = replace(MORE, kind=2, data=b"h" * 20 + MORE.data)
    assert named.work == MORE.work == MORE.hash() != named.hash()
    assert refused(LESS, named) == ""
    assert refused(named, MORE) == refused(MORE, named) == SAME
    assert refused(named, LESS) == LESS_WORK


# --- the answer to a read


def test_answer_is_that_of_the_wire_page():
    """Data, revision and signature come first, then what later portals add (docs/wire.md 6.1)."""
    assert (
        SIGNED.encode_answer()
        == (
            '{"data":"64617461","revision":7,'
            f'"signature":"{SIGNED.signature.hex()}","datakey":"{TWEAK.hex()}",'
            f'"publickey":{{"algorithm":"ed25519","key":"{base64.b64encode(PAIR.public_key).decode()}"}},'
            '"type":1}\n'
        ).encode()
    )


def test_answer_of_an_early_portal():
    """Three members are enough, empty data is empty, case does not matter (docs/wire.md 6.1)."""
    entry = Entry(TWEAK, b"", MAX_REVISION).sign(PAIR.private_key)
    body = f'{{"data":"","revision":{MAX_REVISION},"signature":"{entry.signature.hex().upper()}"}}'
    assert SignedEntry.parse_answer(body.encode(), PAIR.public_key, TWEAK).verify() == entry


def test_answer_is_for_what_was_asked():
    """Key and data key in an answer count nothing: an entry of another's does not verify."""
    other = Entry(TWEAK, b"data", 7).sign(SigningKeyPair.from_seed("another").private_key)
    read = SignedEntry.parse_answer(other.encode_answer(), PAIR.public_key, TWEAK)
    with pytest.raises(BadSignatureError):
        read.verify()
    moved = SignedEntry.parse_answer(SIGNED.encode_answer(), PAIR.public_key, bytes(32))
    with pytest.raises(BadSignatureError):
        moved.verify()


HEX = SIGNED.signature.hex()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"<html>",
        b'{"data":"","revision":0}',
        answer(data=None),
        answer(data=7),
        answer(data="0"),
        answer(data="0g"),
        answer(data="61 62"),
        answer(data="61\n"),
        answer(data="\uff11\uff11"),
        answer(data="00" * 114),
        answer(data="\ud800"),
        answer(revision="7"),
        answer(revision=7.0),
        answer(revision=True),
        answer(revision=None),
        answer(revision=-1),
        answer(revision=1 << 64),
        answer(revision=10**4000),
        answer().replace(b'"revision": 7', b'"revision": ' + b"9" * 10_000),
        answer().replace(b'"revision": 7', b'"revision": 7e0'),
        answer().replace(b'"revision": 7', b'"revision": 07'),
        answer(signature=HEX[:-2]),
        answer(signature=HEX + "00"),
        answer(signature=""),
        answer(signature=" " + HEX),
        answer(type=0),
        answer(type=3),
        answer(type="1"),
        answer()[:-1],
        answer() + b"{}",
        b"\xef\xbb\xbf" + answer(),
        answer(data="\x00"),
        b'{"data":"\xff"',
        b'{"x":' + b"[" * 8000,
        b'{"x":' + b"[" * 8000 + b"]" * 8000 + b"}",
        b" " * (UPDATE_LIMIT + 1),
        answer() + b" " * UPDATE_LIMIT,
    ],
    ids=lambda body: repr(body[:60]),
)
def test_bad_answer(body):
    """An answer of another form, or beyond a limit, is refused (docs/wire.md 6.1)."""
    with pytest.raises(MalformedError) as caught:
        SignedEntry.parse_answer(body, PAIR.public_key, TWEAK)
    assert len(str(caught.value)) < 300


# --- the body of an update


def test_update_is_that_of_the_contract():
    """Key, data and signature are arrays of byte values, the kind is left out (contract 6)."""
    assert json.loads(SIGNED.encode_update()) == {
        "publickey": {"algorithm": "ed25519", "key": list(PAIR.public_key)},
        "datakey": TWEAK.hex(),
        "revision": 7,
        "data": list(b"data"),
        "signature": list(SIGNED.signature),
    }
    assert (
        f'"revision":{MAX_REVISION},'.encode()
        in Entry(TWEAK, b"", MAX_REVISION).sign(PAIR.private_key).encode_update()
    )


def test_update_of_the_second_kind():
    """Kind 2 is said (docs/wire.md 6.2)."""
    signed = Entry(TWEAK, b"h" * 20, 1, 2).sign(PAIR.private_key)
    assert SignedEntry.parse_update(signed.encode_update()).verify() == signed
    read = SignedEntry.parse_answer(signed.encode_answer(), PAIR.public_key, TWEAK)
    assert read.verify() == signed


KEY64 = base64.b64encode(PAIR.public_key).decode()
SIGNATURE64 = base64.b64encode(SIGNED.signature).decode()


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"publickey": f"ed25519:{PAIR.public_hex}"},
        {"publickey": {"algorithm": "ed25519", "key": KEY64}},
        {"data": base64.b64encode(b"data").decode()},
        {"signature": SIGNATURE64},
        {"type": 1},
        {"type": None},
        {"datakey": TWEAK.hex().upper()},
        {"unknown": {"a": [1, {"b": None}]}, "": 0},
    ],
)
def test_forms_of_an_update(members):
    """Bytes are arrays or base64, a key may be text, others are ignored (docs/wire.md 6.2)."""
    assert SignedEntry.parse_update(update(**members)).verify() == SIGNED


@pytest.mark.parametrize("data", [b"", b'"data":null,', b'"data":[],', b'"data":"",'])
def test_update_without_data(data):
    """Missing data, null and nothing are one and the same (docs/wire.md 6.2)."""
    empty = Entry(TWEAK, b"", 7).sign(PAIR.private_key)
    body = empty.encode_update().replace(b'"data":[],', data)
    assert SignedEntry.parse_update(body).verify() == empty


BYTES = list(SIGNED.signature)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        update(publickey=None),
        update(publickey=PAIR.public_hex[:-2]),
        update(publickey=f"rsa:{PAIR.public_hex}"),
        update(publickey={"algorithm": "ed25519"}),
        update(publickey={"key": KEY64}),
        update(publickey={"algorithm": "Ed25519", "key": KEY64}),
        update(publickey={"algorithm": "entropy", "key": KEY64}),
        update(publickey={"algorithm": "ed25519", "key": KEY64[4:]}),
        update(publickey={"algorithm": "ed25519", "key": KEY64.rstrip("=")}),
        update(publickey={"algorithm": "ed25519", "key": PAIR.public_hex}),
        update(publickey={"algorithm": "ed25519", "key": [256, *BYTES[:31]]}),
        update(publickey={"algorithm": "ed25519", "key": [-1, *BYTES[:31]]}),
        update(publickey=list(PAIR.public_key)),
        update(datakey=None),
        update(datakey="app"),
        update(datakey=list(TWEAK)),
        update(datakey=TWEAK.hex() + " "),
        update(revision=None),
        update(revision="7"),
        update(revision=7.5),
        update(revision=-1),
        update(revision=1 << 64),
        update(revision=10**4000),
        update(data=[0] * 114),
        update(data=base64.b64encode(bytes(114)).decode()),
        update(data=[256]),
        update(data=[-1]),
        update(data=[10**30]),
        update(data=[1.0]),
        update(data=[True]),
        update(data=["a"]),
        update(data=[None]),
        update(data="a"),
        update(data="YQ"),
        update(data="YQ==\n"),
        update(data="Y Q="),
        update(data="-_8="),
        update(data="\ud800"),
        update(data={}),
        update(signature=None),
        update(signature=[]),
        update(signature=BYTES[:-1]),
        update(signature=[*BYTES, 0]),
        update(signature=[*BYTES[:-1], 256]),
        update(signature=SIGNED.signature.hex()),
        update(type=0),
        update(type=3),
        update(type=256),
        update(type="1"),
        update(type=10**4000),
        update()[:-1],
        update() + b"x",
        b"\xff" + update(),
        b'{"x":' + b"[" * 8000,
        b'{"x":' + b'{"x":' * 3000,
        update(data=[0] * UPDATE_LIMIT),
        update(x="x" * UPDATE_LIMIT),
    ],
    ids=lambda body: repr(body[:70]),
)
def test_bad_update(body):
    """An update of another form, or beyond a limit, is refused (docs/wire.md 6.2)."""
    with pytest.raises(MalformedError) as caught:
        SignedEntry.parse_update(body)
    assert len(str(caught.value)) < 300
