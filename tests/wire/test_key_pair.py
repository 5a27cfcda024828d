"""Key pairs: known answers, what is no key, and that no text shows a private one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_sign_seed_keypair

from skymount.errors import MalformedError
from skymount.wire.key_pair import SEED_ENTROPY, SigningKeyPair, derive_child_seed
from tests.wire.vectors import cases

PAIR = SigningKeyPair.from_seed("insecure test seed")
OTHER = SigningKeyPair.from_seed("another seed")


@pytest.mark.parametrize("case", cases("seed_to_keys"))
def test_known_keys_of_a_seed(case):
    """A seed gives the key pair that the SDKs give."""
    pair = SigningKeyPair.from_seed(case.seed)
    assert (pair.public_hex, pair.private_hex) == (case.publicKey, case.privateKey)
    assert SigningKeyPair.from_private_hex(case.privateKey) == pair


@pytest.mark.parametrize("case", cases("child_seed"))
def test_known_child_seed(case):
    """A master seed and a sub-seed give the child seed that the SDKs give."""
    assert derive_child_seed(case.masterSeed, case.seed) == case.child


def test_child_seed_keeps_its_parts_apart():
    """Moving characters from one part to the other gives another seed."""
    assert derive_child_seed("ab", "c") != derive_child_seed("a", "bc")


def test_generated_seed_is_of_64_bytes():
    """A generated seed has 64 random bytes, as the SDKs' has (docs/wire.md 10)."""
    assert SEED_ENTROPY == 64


@pytest.mark.parametrize("seed", ["\ud800", "a\udfff", "\udc80 secret"])
def test_seed_that_is_no_text(seed):
    """Half a character in a seed is refused, wherever a seed is taken."""
    for derive in (
        SigningKeyPair.from_seed,
        lambda text: derive_child_seed(text, ""),
        lambda text: derive_child_seed("", text),
    ):
        with pytest.raises(MalformedError, match="valid Unicode"):
            derive(seed)


@given(st.binary(min_size=32, max_size=32))
def test_private_key_reads_back(seed):
    """Every private key reads back from its hex digits, of either case."""
    public, private = crypto_sign_seed_keypair(seed)
    pair = SigningKeyPair(public, private)
    assert SigningKeyPair.from_private_key(private) == pair
    assert SigningKeyPair.from_private_hex(pair.private_hex) == pair
    assert SigningKeyPair.from_private_hex(pair.private_hex.upper()) == pair


@pytest.mark.parametrize(
    "text",
    [
        "",
        PAIR.public_hex,
        PAIR.private_hex[:-1],
        PAIR.private_hex[:-2],
        PAIR.private_hex + "00",
        PAIR.private_hex + "\n",
        " ".join(PAIR.private_hex[at : at + 2] for at in range(0, 128, 2)),
        "0x" + PAIR.private_hex[2:],
        PAIR.private_hex[:-1] + "g",
        "\uff11" * 128,
        "\u0661" * 128,
        "\ud800" * 128,
    ],
)
def test_text_that_is_no_private_key(text):
    """A private key is 128 hex digits and nothing else."""
    with pytest.raises(MalformedError, match="128 hex digits"):
        SigningKeyPair.from_private_hex(text)


@pytest.mark.parametrize("size", [0, 32, 63, 65])
def test_private_key_of_another_size(size):
    """A private key has 64 bytes."""
    with pytest.raises(MalformedError, match="128 hex digits"):
        SigningKeyPair.from_private_key(bytes(size))


def test_halves_that_do_not_belong_together():
    """A seed beside another's public key is no private key: it would sign for neither."""
    mixed = PAIR.private_key[:32] + OTHER.public_key
    with pytest.raises(MalformedError, match="do not belong together"):
        SigningKeyPair.from_private_key(mixed)
    with pytest.raises(MalformedError, match="public key"):
        SigningKeyPair(PAIR.public_key, OTHER.private_key)


@pytest.mark.parametrize(("public", "private"), [(31, 64), (32, 32), (0, 0), (33, 64)])
def test_key_pair_of_other_sizes(public, private):
    """A pair is of 32 and 64 bytes."""
    with pytest.raises(MalformedError, match="32 and 64"):
        SigningKeyPair(bytes(public), bytes(private))


def test_nothing_shows_a_private_key():
    """A pair's text, its parts' errors and its public names do not hold the private key."""
    for text in (repr(PAIR), str(PAIR), f"{PAIR}", f"{[PAIR]}"):
        assert PAIR.private_hex[:16] not in text
        assert repr(PAIR.private_key)[2:12] not in text
    wrong = PAIR.private_hex[:64] + OTHER.public_hex
    with pytest.raises(MalformedError) as caught:
        SigningKeyPair.from_private_hex(wrong)
    assert wrong[:16] not in str(caught.value)
