"""Encrypted skyfiles: known answers of the ciphers and of the servers' tests, and round trips."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt

from skymount.errors import MalformedError
from skymount.wire.base_sector import LAYOUT_SIZE, Layout, check_fanout, split_body
from skymount.wire.merkle import sector_root
from skymount.wire.skyfile_encryption import (
    CIPHER_XCHACHA20,
    SkyfileKey,
    StreamKey,
    is_encrypted,
    pick_key,
)
from skymount.wire.skykey import Kind, Skykey
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE

NONCE = bytes(range(100, 124))
KEYS = {kind: Skykey(kind, bytes(range(32)), bytes(24), kind.value) for kind in Kind}
OTHERS = [Skykey(kind, bytes([seed]) * 32, bytes(24)) for seed in range(1, 9) for kind in Kind]

both_kinds = pytest.mark.parametrize("skykey", KEYS.values(), ids=[kind.name for kind in KEYS])


# --- known answers


def test_stream_of_the_specification():
    """draft-irtf-cfrg-xchacha, A.3.2: the stream begins with block 0."""
    key = StreamKey(bytes(range(0x80, 0xA0)), bytes(range(0x40, 0x57)) + b"\x58")
    sealed = key.apply(b"The dhole (pronounced")
    assert sealed[:16].hex() == "4559abba4e48c16102e8bb2c05e6947f"


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=24, max_size=24), st.binary())
def test_stream_of_libsodium(key: bytes, nonce: bytes, data: bytes):
    """From block 1 on the stream is what libsodium encrypts with, whose block 0 makes the tag."""
    sealed = crypto_aead_xchacha20poly1305_ietf_encrypt(data, b"", nonce, key)
    assert StreamKey(key, nonce).apply(data, 64) == sealed[:-16]


def test_derivation_of_the_servers():
    """TestSkykeyDerivations in skykey/skykey_test.go of siad and skyd has this key and answer."""
    skykey = bytes.fromhex(
        "335a734979b35e75994a46507f37e7c468f4539dc69f764fd52070ff085453b7"
        "7d1ed522fc98902ae797fe9195cd87a92cb9df34fa7e77f9"
    )
    derived = StreamKey(skykey[:32], skykey[32:]).derived(b"derivationtest1")
    assert derived.key == skykey[:32]
    assert derived.nonce.hex() == "79abb0e8602fb19ab490911ddcb227dcb63599bfa7746cdd"


# The values of the next four tests stand in no repository. They were made by this code. The sources
# of the servers (docs/wire.md 2.7) give the same with other ciphers: ChaCha20 as RFC 8439 has it,
# and libsodium's XChaCha20. `NewSpecifier` pads each name with zeros to 16 bytes; `DeriveSubkey`
# hashes nonce and name, each after its length; `Derive` hashes the bare nonce and the two indexes.
SEALED_LAYOUT = {  # the 99 bytes of a layout; the last 24 are key data that nobody uses, encrypted
    Kind.PUBLIC: "010ea3bad0a196e3eecd09c22927b9e34190fde1cd582b4795780f0000000000000004"
    "cffbd3fc342ed0a67ec8adf349bd07506465666768696a6b6c6d6e6f707172737475767778797a7b"
    "fe099f94329a3d73f1a8ae462882299597690395ec75c568",
    Kind.PRIVATE: "010ea3bad0a196e3eecd09c22927b9e34190fde1cd582b4795780f0000000000000004"
    "d767ef1d9021bb8c529de8d07071d6cf6465666768696a6b6c6d6e6f707172737475767778797a7b"
    "fe099f94329a3d73f1a8ae462882299597690395ec75c568",
}
SEALED_BODY = "c5f369659f48e1613f7673d0bdf3e17ffb53cfcb10cdf3c22b545b852a56a7e75cd1"
SEALED_ROOT = {
    Kind.PUBLIC: "10db8a0bcd87d48ed2ad108dc3f39e2cf12ff75ed281855582fdd5304c477d2f",
    Kind.PRIVATE: "de1954ac7cb4dac3cca17d35243c12a584d66a576bd066a3448853472e780faf",
}


def test_nonces_of_each_purpose():
    """«BaseSectorNonce» and «FanoutNonce» name what base sector and fan-out are encrypted with."""
    key = SkyfileKey.of(KEYS[Kind.PRIVATE], NONCE)
    assert key.base.nonce.hex() == "d03a781f87a834a25120d4d0f9ab11ffdaedacd57ca34f1d"
    assert key.fanout.nonce.hex() == "36c1680922c32c6e89f215f1e2b2bd61b484b01b98a31d7a"
    pieces = [key.fanout.of_piece(*which).nonce.hex() for which in [(0, 0), (1, 0), (0, 1)]]
    assert pieces == [
        "d272b2a077ed2bf63fc45a2b4beae60aa436b2c28e39db28",
        "e813fe2accc6df7b9b8a63d634f908766b4628b028ac178f",
        "4639441d990a1c70919b255853ebef3b3dff26e12144bfe1",
    ]


def test_identifiers_of_each_kind():
    """A public-id key is named by its id, a private-id key by «SkyfileEncID», encrypted with what
    «SFEncIDDerivPath» derives.
    """
    found = {kind: SkyfileKey.of(skykey, NONCE).identifier.hex() for kind, skykey in KEYS.items()}
    assert found == {
        Kind.PUBLIC: "cffbd3fc342ed0a67ec8adf349bd0750",
        Kind.PRIVATE: "d767ef1d9021bb8c529de8d07071d6cf",
    }


@both_kinds
def test_known_skyfile(skykey: Skykey):
    """A small encrypted skyfile has these bytes, all 4 MiB of it, and can be read."""
    metadata, payload = b'{"filename":"f","length":7}', b"content"
    base = SkyfileKey.of(skykey, NONCE).build_inline(metadata, payload)
    known = bytes.fromhex(SEALED_LAYOUT[skykey.kind] + SEALED_BODY)
    assert base[: len(known)] == known
    assert sector_root(base).hex() == SEALED_ROOT[skykey.kind]
    key = pick_key(Layout.parse(known), [*OTHERS, skykey])
    assert key is not None
    assert key.open_layout(known).filesize == len(payload)
    body = key.base.apply(known[LAYOUT_SIZE:], LAYOUT_SIZE)
    assert body == metadata + payload


def test_known_sector():
    """So does a sector of large content, here the second one."""
    key = SkyfileKey.of(KEYS[Kind.PUBLIC], NONCE)
    sealed = "e3c452a2feb6b206214fe5cc397113186b60615ccb8973666f39569847bb9ef1"
    assert key.seal_sector(1, b"content")[:32].hex() == sealed
    assert key.open_payload(bytes.fromhex(sealed)[:7], SECTOR_SIZE) == b"content"


# --- streams


@given(st.binary(min_size=1, max_size=300), st.integers(0, 300), st.integers(0, 10_000))
def test_any_part_of_a_stream_is_had_alone(data: bytes, cut: int, at: int):
    """What begins within the stream is encrypted as it is when all before it comes first."""
    key = StreamKey(bytes(32), NONCE)
    whole = key.apply(bytes(at) + data)
    assert key.apply(data[:cut], at) + key.apply(data[cut:], at + len(data[:cut])) == whole[at:]
    assert key.apply(memoryview(whole)[at:], at) == data


def test_each_purpose_has_its_own_stream():
    """No two of base sector, fan-out and pieces are encrypted with the same nonce."""
    key = SkyfileKey.of(KEYS[Kind.PRIVATE], NONCE)
    pieces = [key.fanout.of_piece(chunk, piece) for chunk in range(3) for piece in range(3)]
    nonces = {stream.nonce for stream in [key.main, key.base, key.fanout, *pieces]}
    assert len(nonces) == 12
    assert all(stream.key == key.main.key for stream in pieces)


# --- identifiers


def test_a_public_key_is_named_and_a_private_one_is_not():
    """A public-id key marks all its skyfiles alike with its id; a private-id key none alike."""
    public, private = KEYS[Kind.PUBLIC], KEYS[Kind.PRIVATE]
    assert SkyfileKey.of(public, NONCE).identifier == base64.urlsafe_b64decode(public.id)
    marks = {SkyfileKey.of(private, bytes([n]) * 24).identifier for n in range(9)}
    assert len(marks) == 9
    assert base64.urlsafe_b64decode(private.id) not in marks


@both_kinds
def test_a_key_is_found_among_many(skykey: Skykey):
    """The right key is found whatever others there are, and none where it is missing."""
    base = SkyfileKey.of(skykey, NONCE).build_inline(b"{}", b"content")
    layout = Layout.parse(base)
    assert pick_key(layout, [*OTHERS, skykey]) == SkyfileKey.of(skykey, NONCE)
    assert pick_key(layout, OTHERS) is None
    assert pick_key(layout, []) is None


def test_a_private_key_fits_only_its_own_nonce():
    """An identifier with another skyfile's nonce belongs to nobody."""
    private = KEYS[Kind.PRIVATE]
    mixed = SkyfileKey.of(private, NONCE).identifier + bytes(24)
    layout = Layout(0, 0, cipher=CIPHER_XCHACHA20, key_data=mixed.ljust(64, b"\0"))
    assert pick_key(layout, [private]) is None


def test_a_nonce_of_a_wrong_length():
    """A key of a skyfile needs all 24 bytes."""
    with pytest.raises(ValueError, match="24 bytes"):
        SkyfileKey.of(KEYS[Kind.PUBLIC], bytes(23))


def test_keys_are_not_shown():
    """No repr holds the bytes of a key."""
    assert repr(bytes(range(32)))[2:-1] not in repr(SkyfileKey.of(KEYS[Kind.PUBLIC], NONCE))


# --- base sectors


@both_kinds
def test_small_file(skykey: Skykey):
    """Only version, cipher, identifier and nonce can be read; the key gives the rest back."""
    key, metadata, payload = SkyfileKey.of(skykey, NONCE), b'{"filename":"f"}', b"content" * 99
    base = key.build_inline(metadata, payload)
    assert len(base) == SECTOR_SIZE
    assert base[0] == 1
    assert base[27:35] == CIPHER_XCHACHA20
    assert base[35:75] == key.identifier + NONCE
    plain = bytes(Layout(len(payload), len(metadata))) + metadata + payload
    hidden = plain.ljust(SECTOR_SIZE, b"\0")
    stream = key.base.apply(bytes(SECTOR_SIZE))
    for start, stop in [(1, 27), (75, SECTOR_SIZE)]:
        assert key.base.apply(base[start:stop], start) == hidden[start:stop]
    assert base[75:99] == stream[75:99]
    layout = key.open_layout(base[:LAYOUT_SIZE])
    assert is_encrypted(layout)
    assert layout.is_inline
    assert (layout.filesize, layout.metadata_size, layout.data_pieces) == (len(payload), 16, 0)
    assert layout.key_data == base[35:99]


def test_small_file_that_does_not_fit():
    """Content over a sector is not small."""
    with pytest.raises(ValueError, match="do not fit"):
        SkyfileKey.of(KEYS[Kind.PUBLIC], NONCE).build_inline(b"{}", bytes(SECTOR_SIZE))


@both_kinds
def test_large_file(skykey: Skykey):
    """The fan-out holds a root and an absent piece for each chunk, and fits the layout."""
    key, roots = SkyfileKey.of(skykey, NONCE), bytes(range(1, 65))
    base, used = key.build_fanned_out(SECTOR_SIZE + 5, roots, b'{"filename":"f"}')
    assert len(base) == SECTOR_SIZE
    assert used == LAYOUT_SIZE + 128 + 16
    layout = key.open_layout(base)
    assert (layout.filesize, layout.data_pieces, layout.parity_pieces) == (SECTOR_SIZE + 5, 1, 1)
    fanout, metadata = split_body(layout, key.base.apply(base[LAYOUT_SIZE:used], LAYOUT_SIZE))
    check_fanout(layout, fanout)
    absent = bytes(ROOT_SIZE)
    assert fanout == roots[:32] + absent + roots[32:] + absent
    assert metadata == b'{"filename":"f"}'


def test_metadata_that_would_be_spilled():
    """What does not fit the base sector is refused: outside of it nothing is encrypted."""
    key = SkyfileKey.of(KEYS[Kind.PUBLIC], NONCE)
    with pytest.raises(MalformedError, match="too large to be encrypted"):
        key.build_fanned_out(1, bytes(32), bytes(SECTOR_SIZE - LAYOUT_SIZE - 63))
    key.build_fanned_out(1, bytes(32), bytes(SECTOR_SIZE - LAYOUT_SIZE - 64))


@pytest.mark.parametrize(
    "layout",
    [Layout(1, SECTOR_SIZE, 64, 1, 1), Layout(1, 2, 960, 10, 20)],
    ids=["spilled", "ten pieces"],
)
def test_what_is_not_written_here(layout: Layout):
    """Layouts of kinds that nothing here writes are refused, not misread."""
    key = SkyfileKey.of(KEYS[Kind.PUBLIC], NONCE)
    with pytest.raises(MalformedError):
        key.open_layout(key.seal_base(bytes(layout)))


# --- large content


def test_large_content():
    """Each sector is encrypted by itself; any run of content is had from the sectors it lies in."""
    key = SkyfileKey.of(KEYS[Kind.PRIVATE], NONCE)
    content = bytes(range(256)) * (2 * SECTOR_SIZE // 256) + b"end"
    chunks = [content[at : at + SECTOR_SIZE] for at in range(0, len(content), SECTOR_SIZE)]
    stored = b"".join(key.seal_sector(index, chunk) for index, chunk in enumerate(chunks))
    assert len(stored) == 3 * SECTOR_SIZE
    padding = key.open_payload(stored[len(content) :], len(content))
    assert padding == bytes(len(stored) - len(content))
    for start, stop in [
        (0, 1),
        (63, 65),
        (SECTOR_SIZE - 1, SECTOR_SIZE),
        (SECTOR_SIZE - 3, SECTOR_SIZE + 70),
        (SECTOR_SIZE - 3, 2 * SECTOR_SIZE + 3),
        (2 * SECTOR_SIZE, 2 * SECTOR_SIZE + 3),
        (5, 5),
    ]:
        assert key.open_payload(stored[start:stop], start) == content[start:stop]
