"""Skykeys: text form, id, JSON records, and that no text but its own shows a key."""

import base64
import json

import pytest

from skymount.errors import MalformedError
from skymount.wire.skykey import (
    LIST_LIMIT,
    NAME_LIMIT,
    Kind,
    Skykey,
    check_id,
    check_name,
    encode_list,
    parse_list,
)
from tests.wire.vectors import cases

ENCODED = "AT7-P751d_SEBhXvbOQTfswB62n2mqMe0Q89cQ911KGeuTIV2ci6GjG3Aj5CuVZUDS6hkG7pHXXZ"
KEY = Skykey.parse(ENCODED)
PRIVATE = Skykey(Kind.PRIVATE, KEY.key, KEY.nonce, "name")


def record(**members: object) -> bytes:
    return json.dumps({"skykey": KEY.text} | members).encode()


# --- known answers


@pytest.mark.parametrize("case", cases("skykey_id"))
def test_known_id(case):
    """A key of the reference's documents has the id that its rule gives."""
    key = Skykey.parse(case.skykey)
    assert (key.id, key.kind.value, key.name, key.text) == (case.id, case.type, "", case.skykey)
    assert check_id(case.id) == case.id


@pytest.mark.parametrize("scheme", ["skykey:", "SKYKEY:", ""])
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("", ""),
        ("?name=", ""),
        ("?name=FormattingTestKey", "FormattingTestKey"),
        ("?name=a+b%20c%2B", "a b c+"),
        ("?name=%C3%BC%26x=1", "ü&x=1"),
        ("?name=a=b?c", "a=b?c"),
        ("?name=" + "n" * NAME_LIMIT, "n" * NAME_LIMIT),
        ("?name=" + "%C3%BC" * (NAME_LIMIT // 2), "ü" * (NAME_LIMIT // 2)),
    ],
)
def test_forms_of_the_text(scheme, query, name):
    """Scheme and name may be missing; the name is percent-encoded (docs/wire.md 7)."""
    assert Skykey.parse(f" {scheme}{ENCODED}{query}\n") == KEY.named(name)


def test_kind_is_part_of_text_and_id():
    """The first of the 57 bytes says the kind, and both kinds of one key have their own ids."""
    public = PRIVATE.named("")
    assert base64.urlsafe_b64decode(PRIVATE.text[7:83])[0] == 2
    assert base64.urlsafe_b64decode(KEY.text[7:])[0] == 1
    assert public.id != KEY.id
    assert len(public.id) == 24


@pytest.mark.parametrize("kind", Kind)
def test_kind_reads_back(kind):
    """A kind is written by name."""
    assert Kind.parse(kind.value) is kind


@pytest.mark.parametrize(
    "text", ["", "invalid", "PUBLIC", "Public-ID", "public-id ", "1", "\ud800"]
)
def test_unknown_kind(text):
    """Any other name of a kind is refused, with the text of the reference."""
    with pytest.raises(
        MalformedError, match=r"^failed to decode skykey type: Invalid skykey type$"
    ):
        Kind.parse(text)


# --- text from outside


@pytest.mark.parametrize(
    "text",
    [
        "",
        "skykey:",
        "?name=x",
        "skykey:?name=x",
        f"sia:{ENCODED}",
        f"skykey://{ENCODED}",
        f"skykey:skykey:{ENCODED}",
        f":{ENCODED}",
        f"\u017fkykey:{ENCODED}",
        ENCODED[:-1],
        ENCODED[:-4],
        ENCODED + "AAAA",
        ENCODED + "====",
        ENCODED.replace("-", "+"),
        ENCODED.replace("_", "/"),
        ENCODED[:-1] + "=",
        ENCODED[:-1] + "\uff21",
        ENCODED[:40] + "\n" + ENCODED[40:],
        ENCODED[:40] + "!" + ENCODED[41:],
        "AA" + ENCODED[2:],
        "Aw" + ENCODED[2:],
        "_" * 76,
        f"{ENCODED}?",
        f"{ENCODED}?name",
        f"{ENCODED}?Name=a",
        f"{ENCODED}?id=a",
        f"{ENCODED}?name=a&name=b",
        f"{ENCODED}?name=a&type=private-id",
        f"{ENCODED}?x=1&name=a",
        f"{ENCODED}?name=%",
        f"{ENCODED}?name=%4",
        f"{ENCODED}?name=%zz",
        f"{ENCODED}?name=%\uff14\uff11",
        f"{ENCODED}?name=%FF",
        f"{ENCODED}?name=%C3",
        f"{ENCODED}?name=%ED%A0%80",
        f"{ENCODED}?name=%00",
        f"{ENCODED}?name=a%0Ab",
        f"{ENCODED}?name=a\x1bb",
        f"{ENCODED}?name=\ud800",
        f"{ENCODED}?name=" + "n" * (NAME_LIMIT + 1),
        f"{ENCODED}?name=" + "%C3%BC" * (NAME_LIMIT // 2) + "n",
        f"{ENCODED}?name=" + "n" * 100_000,
        "A" * 100_000,
    ],
)
def test_text_that_is_no_skykey(text):
    """Another scheme, alphabet, length, type or query is refused, and never repeated."""
    with pytest.raises(MalformedError) as caught:
        Skykey.parse(text)
    assert ENCODED[2:20] not in str(caught.value)
    assert len(str(caught.value)) < 200


# --- names and ids


@pytest.mark.parametrize("name", ["", "a", "a b", "a/b&c=d", "ü", "n" * NAME_LIMIT])
def test_good_name(name):
    """A name is printable text of at most 128 bytes."""
    assert check_name(name) == name
    assert KEY.named(name).name == name


@pytest.mark.parametrize(
    "name",
    ["\0", "a\nb", "\x7f", "\x85", "\u2028", "\u202e", "\u200b", "\ud800", "\ufffe", "ü" * 65],
)
def test_bad_name(name):
    """Control and invisible characters and half ones are refused, and more than 128 bytes."""
    with pytest.raises(MalformedError):
        check_name(name)
    with pytest.raises(MalformedError):
        KEY.named(name)


def test_id_is_written_in_one_way():
    """An id may lack its padding, and its unused bits do not count; any other text is refused."""
    canonical = KEY.id
    assert canonical.endswith("==")
    assert check_id(canonical[:-2]) == canonical
    assert check_id("A" * 22) == check_id("A" * 21 + "B") == "A" * 22 + "=="


@pytest.mark.parametrize(
    "text",
    [
        *("", "==", "A" * 21, "A" * 23, "A" * 24, "A" * 22 + "=", "A" * 22 + "====", "\ud800"),
        *(
            "A" * 21 + "+",
            "A" * 22 + "==\n",
            "A" * 10 + " " + "A" * 11,
            "\uff21" * 22,
            "A" * 10_000,
        ),
    ],
)
def test_bad_id(text):
    """An id is the base64 of 16 bytes."""
    with pytest.raises(MalformedError, match="failed to decode skykey ID"):
        check_id(text)


@pytest.mark.parametrize(("key", "nonce"), [(31, 24), (32, 23), (33, 24), (32, 25), (0, 0)])
def test_sizes(key, nonce):
    """A key has 32 bytes and its nonce 24."""
    with pytest.raises(MalformedError, match="32 and a nonce of 24"):
        Skykey(Kind.PUBLIC, bytes(key), bytes(nonce))


# --- records


def test_record_is_that_of_the_contract():
    """A record holds skykey, name, id and type, in this order (contract 7, docs/wire.md 7)."""
    assert (
        PRIVATE.encode_record()
        == (
            f'{{"skykey":"{PRIVATE.text}","name":"name","id":"{PRIVATE.id}","type":"private-id"}}\n'
        ).encode()
    )


def test_list_is_that_of_the_contract():
    """A list is wrapped in ``skykeys``, an empty one too (docs/wire.md 7)."""
    assert encode_list([]) == b'{"skykeys":[]}\n'
    one = encode_list([PRIVATE])
    assert one == b'{"skykeys":[' + PRIVATE.encode_record().strip() + b"]}\n"


@pytest.mark.parametrize("body", [b"{}", b'{"skykeys":null}', b'{"skykeys":[]}', b'{"x":[1]}'])
def test_list_of_none(body):
    """A list that is missing or null has no keys, as a portal written in Go may say it."""
    assert parse_list(body) == ()


def test_record_of_few_members():
    """Only the key itself is needed; the record's name counts more than the key's own."""
    assert Skykey.parse_record(record()) == KEY
    assert Skykey.parse_record(record(name="b", skykey=PRIVATE.text)) == PRIVATE.named("b")
    assert Skykey.parse_record(record(id=KEY.id.rstrip("="), x={"y": [1]})) == KEY


def test_kind_is_what_the_key_says():
    """The kind is read from the key, as samples of real documents name another one."""
    assert Skykey.parse_record(record(type="private-id")).kind is Kind.PUBLIC


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"skykey":null}',
        b'{"skykey":7}',
        b'{"skykey":""}',
        b'{"skykey":"\xff"}',
        b'{"skykey":"\\ud800"}',
        record(id=PRIVATE.id),
        record(id="x"),
        record(name="a\nb"),
        record(name="n" * (NAME_LIMIT + 1)),
        record(name=7),
        record()[:-1],
        record() + b"{}",
        b'{"x":' + b"[" * 100_000,
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b" " * (LIST_LIMIT + 1),
    ],
    ids=lambda body: repr(body[:60]),
)
def test_bad_record(body):
    """A record of another form, or that contradicts itself, is refused; so is a list with it."""
    with pytest.raises(MalformedError) as caught:
        Skykey.parse_record(body)
    assert ENCODED[:20] not in str(caught.value)
    with pytest.raises(MalformedError):
        parse_list(b'{"skykeys":[' + (body or b"0") + b"]}")


def test_nothing_but_its_text_shows_a_key():
    """What is printed of a key names it, and holds neither key nor nonce."""
    for text in (repr(PRIVATE), str(PRIVATE), f"{[PRIVATE]}"):
        assert "name" in text
        for secret in (PRIVATE.key, PRIVATE.nonce):
            assert secret.hex()[:12] not in text
            assert repr(secret)[2:14] not in text
        assert ENCODED[2:14] not in text
