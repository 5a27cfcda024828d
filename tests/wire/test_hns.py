"""Names: how domains are written, what TXT records say, and the JSON of resolutions.

Rules: contract 12, docs/wire.md 8.
"""

import json
from hashlib import sha1

import pytest

from skymount.errors import MalformedError
from skymount.wire.dialect import PRESETS
from skymount.wire.hns import (
    TXT_LIMIT,
    RegistryRecord,
    SkylinkRecord,
    encode_resolution,
    parse_domain,
    parse_resolution,
    parse_txt,
    pick_record,
    split_domain_link,
)
from skymount.wire.registry_entry import UPDATE_LIMIT, entry_link, hash_data_key
from skymount.wire.skylink import Skylink
from tests.wire.vectors import cases

TEXT = "CABAB_1Dt0FJsxqsu_J4TodNCbCGvtFf1Uys_3EgzOlTcg"
LINK = Skylink(TEXT)
KEY = bytes(range(32))
TWEAK = hash_data_key("app")
ENTRY = RegistryRecord(KEY, TWEAK)
ENTRY_TEXT = f"skyns://ed25519%3A{KEY.hex()}/{TWEAK.hex()}"


# --- domains


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("note-to-self", "note-to-self"),
        ("Note-To-Self/"[:-1], "note-to-self"),
        (" example.hns. ", "example.hns"),
        ("hns://Example.HNS", "example.hns"),
        ("HNS://example/", "example"),
        ("_dnslink.a_b", "_dnslink.a_b"),
        ("1.2.3.4", "1.2.3.4"),
        ("3", "3"),
        ("a--b", "a--b"),
        ("bücher", "xn--bcher-kva"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("bu\u0308cher", "xn--bcher-kva"),
        ("faß", "xn--fa-hia"),
        ("ＥＸＡＭＰＬＥ．ｈｎｓ", "example.hns"),
        ("例え。テスト｡", "xn--r8jz45g.xn--zckzah"),
        ("💩", "xn--ls8h"),
        ("xn--bcher-kva", "xn--bcher-kva"),
        ("XN--BCHER-KVA", "xn--bcher-kva"),
        ("аpple", "xn--pple-43d"),
        ("a\u2044b", "xn--ab-c6t"),
        ("a" * 63 + ".b", "a" * 63 + ".b"),
        (".".join(["a" * 49] * 5) + ".abc", ".".join(["a" * 49] * 5) + ".abc"),
    ],
)
def test_domain(text, domain):
    """A domain is looked up in lower case and punycode; look-alikes are domains of their own."""
    assert parse_domain(text) == domain
    assert parse_domain(domain) == domain


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "..", "a..b", ".a", "a..", "hns://", "hns:///", "hns://hns://a", "hns:a"),
        *("-a", "a-", "a.-b", "-", "a b", "a\tb", "a\nb", "a\0b", "\x7f", "a\x85b"),
        *("a/b", "a/../b", "../a", "a?b", "a#b", "a%2eb", "a@b", "a:80", "[::1]", "a\\b", "a*b"),
        *("a&b", 'a"b', "a'b", "a;b", "a,b", "℀", "a\u3000b"),
        *("a\u200bb", "pay\u200dpal", "a\u00adb", "a\u202eb", "\ufeffa", "\ue000"),
        *("\ud800", "a\udcff"),
        *("xn--", "xn---", "xn--a-", "xn--99999999", "xn--0", "xn--ü", "xn--abc.xn--0"),
        *("xn--abc-", "xn--a-b", "xn---abc-", "xn--BCHER-kva\u200d"),  # another label's meaning
        *("xn--" + "1" * 59, "xn--a_b", "xn--bcher-kva\u200d"),
        *("a" * 64, "ü" * 63, "a." * 127 + "b", "a" * 5000, "ü" * 100_000, "\ufdfa" * 254),
    ],
    ids=lambda text: repr(text[:30]),
)
def test_text_that_is_no_domain(text):
    """Empty and long labels, other characters, hidden ones and false punycode are refused."""
    with pytest.raises(MalformedError) as caught:
        parse_domain(text)
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hns:example", ("example", "")),
        ("HNS:Example/", ("example", "/")),
        ("SkyHNS://Example/a%20b?x#y", ("example", "/a%2520b%3Fx%23y")),
        ("hns://example/a%20b?x#y", ("example", "/a%20b")),
        ("https://portal.example/hns/example", ("example", "")),
        ("http://127.0.0.1:4280/hns/Bücher/a/b?x#y", ("xn--bcher-kva", "/a/b")),
        ("http://127.0.0.1:4280/hns/b%C3%BCcher", ("xn--bcher-kva", "")),
        ("https://example.hns.portal.example/a/?x", ("example", "/a/")),
        ("https://portal.example/other/example", None),
        ("https://portal.example/", None),
        ("https://[portal/hns/a", None),
        ("hnsx", None),
        ("A" * 46, None),
        ("hns:" + "a" * 70_000, None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_links_of_names(text, expected):
    assert split_domain_link(text) == expected


@pytest.mark.parametrize("text", ["hns:", "hns:/a", "https://p/hns/", "https://p/hns/a..b"])
def test_links_of_names_that_are_none(text):
    with pytest.raises(MalformedError):
        split_domain_link(text)


# --- TXT records


@pytest.mark.parametrize("scheme", ["", "sia:", "sia://", "svc:", "svc://"])
@pytest.mark.parametrize(
    ("rest", "path"),
    [
        ("", ""),
        ("/", "/"),
        ("/a/b c.html", "/a/b c.html"),
        ("/a?x=/y", "/a"),
        ("/a#b", "/a"),
        ("?x=1", ""),
        (" comment", ""),
        (";k=v", ""),
        ("/%2e%2e", "/%2e%2e"),
    ],
)
def test_record_of_a_skylink(scheme, rest, path):
    """A skylink, with a scheme or without, and anything behind it; a path is kept."""
    text = f"{scheme}{TEXT}{rest}"
    assert parse_txt(text) == SkylinkRecord(text, LINK, path)


@pytest.mark.parametrize("key", [f"ed25519%3A{KEY.hex()}", f"ed25519%3a{KEY.hex()}", KEY.hex()])
@pytest.mark.parametrize("end", ["", "/"])
def test_record_of_an_entry(key, end):
    """A registry entry is named by public key and hashed data key, in every dialect's scheme."""
    for dialect in PRESETS.values():
        assert parse_txt(f"{dialect.entry_scheme}://{key}/{TWEAK.hex()}{end}") == ENTRY
        assert parse_txt(ENTRY.text(dialect.entry_scheme)) == ENTRY
    assert ENTRY.text("skyns") == ENTRY_TEXT
    assert ENTRY.skylink == entry_link(KEY, TWEAK)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "v=spf1 -all", "google-site-verification=x", "sia://", TEXT[:-1], " " + TEXT),
        *(TEXT + "x", TEXT + "-", TEXT + "_" * 10, "0123456789abcdef" * 4, f"sia:///{TEXT}"),
        *(f"http://{TEXT}", f"x{TEXT}", f"sia:{TEXT[:-1]}=", f"Sia//{TEXT}", LINK.base32),
        *("AgAA" + TEXT[4:], "_____" + TEXT[5:], f"dnslink=/skynet-ns/{TEXT}"),
        *(f"{TEXT}\0", f"{TEXT}/a\nb", f"{TEXT}/\x1b[2J", f"{TEXT}/\u202e", f"{TEXT}/\ud800"),
        TEXT + "/" + "a" * TXT_LIMIT,
        *("skyns://", "skyns:///", f"skyns://{KEY.hex()}", f"skyns://{KEY.hex()}/"),
        f"skyns:{KEY.hex()}/{TWEAK.hex()}",
        f"skyns://rsa%3A{KEY.hex()}/{TWEAK.hex()}",
        f"skyns://ed25519%3A{KEY.hex()}/app",
        f"skyns://ed25519%3A{KEY.hex()}/{TWEAK.hex()}/x",
        f"skyns://ed25519%253A{KEY.hex()}/{TWEAK.hex()}",
        f"skyns://ed25519%FF{KEY.hex()}/{TWEAK.hex()}",
        f"skyns://ed25519%{KEY.hex()}/{TWEAK.hex()}",
        f" {ENTRY_TEXT}",
        f"x{ENTRY_TEXT}",
    ],
    ids=lambda text: repr(text[:60]),
)
def test_record_about_something_else(text):
    """Records that name neither are none of ours, and no error."""
    assert parse_txt(text) is None


def test_last_record_that_fits_counts():
    """Of a domain's records the last one that fits counts, of whatever form."""
    other = f"sia://{Skylink.v1(bytes(32), 1)}"
    assert pick_record([ENTRY_TEXT, TEXT, "x"]) == parse_txt(TEXT)
    assert pick_record([TEXT, other, ENTRY_TEXT, ""]) == ENTRY
    assert pick_record([TEXT, other]) == parse_txt(other)
    assert pick_record(["x", ""]) is pick_record([]) is None


def test_record_may_name_an_entry_by_its_skylink():
    """A record's skylink may be a v2 one."""
    record = parse_txt(f"sia://{ENTRY.skylink}/a")
    assert isinstance(record, SkylinkRecord)
    assert (record.skylink, record.skylink.version) == (ENTRY.skylink, 2)


# --- resolutions


@pytest.mark.parametrize("case", cases("hnsres_body"))
def test_known_resolution(case):
    """The body of a real portal is read, and written again byte by byte."""
    body = case.body.encode()
    assert sha1(body, usedforsecurity=False).hexdigest() == case.sha1
    record = parse_resolution(body)
    assert isinstance(record, SkylinkRecord)
    assert record.link == json.loads(body)["skylink"] == f"sia://{record.skylink}"
    assert record.path == ""
    assert encode_resolution(record) == body


def test_resolution_is_that_of_the_contract():
    """A record stands in the answer as it stands in the domain; an entry by its two keys."""
    record = parse_txt(f"svc://{TEXT}/a b")
    assert record is not None
    assert encode_resolution(record) == f'{{"skylink":"svc://{TEXT}/a b"}}'.encode()
    assert (
        encode_resolution(ENTRY)
        == (
            f'{{"registry":{{"publickey":"ed25519:{KEY.hex()}","datakey":"{TWEAK.hex()}"}}}}'
        ).encode()
    )


def body_of(**members: object) -> bytes:
    return json.dumps(members).encode()


POINTER = {"publickey": f"ed25519:{KEY.hex()}", "datakey": TWEAK.hex()}


def test_forms_of_a_resolution():
    """Keys may be percent-encoded, a skylink counts first, and unknown members nothing."""
    assert parse_resolution(body_of(registry=POINTER)) == ENTRY
    encoded = POINTER | {"publickey": f"ed25519%3A{KEY.hex()}", "x": 1}
    assert parse_resolution(body_of(registry=encoded, skylink="")) == ENTRY
    both = parse_resolution(body_of(registry=POINTER, skylink=TEXT, x=[1]))
    assert both == SkylinkRecord(TEXT, LINK)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"No records found for x",
        b'{"skylink":"\xff"}',
        b'{"skylink":"\\ud800"}',
        body_of(skylink=None),
        body_of(skylink=7),
        body_of(skylink=""),
        body_of(skylink="skylink"),
        body_of(skylink=TEXT + "x"),
        body_of(skylink=TEXT + "\n"),
        body_of(skylink=f"http://x/{TEXT}"),
        body_of(skylink=ENTRY_TEXT),
        body_of(skylink="x", registry=POINTER),
        body_of(registry=None),
        body_of(registry={}),
        body_of(registry=[]),
        body_of(registry=ENTRY_TEXT),
        body_of(registry={"publickey": POINTER["publickey"]}),
        body_of(registry=POINTER | {"datakey": "app"}),
        body_of(registry=POINTER | {"datakey": "%FF" * 64}),
        body_of(registry=POINTER | {"publickey": "%"}),
        body_of(registry=POINTER | {"publickey": f"rsa:{KEY.hex()}"}),
        body_of(registry=POINTER | {"publickey": [1]}),
        body_of(skylink=TEXT)[:-1],
        body_of(skylink=TEXT) + b"x",
        b'{"x":' + b"[" * 8000,
        b" " * (UPDATE_LIMIT + 1),
        body_of(skylink=TEXT + "/" + "a" * TXT_LIMIT),
        body_of(skylink="a" * 8000),
    ],
    ids=lambda body: repr(body[:60]),
)
def test_bad_resolution(body):
    """An answer that names nothing, or is of another form, is refused."""
    with pytest.raises(MalformedError) as caught:
        parse_resolution(body)
    assert len(str(caught.value)) < 500
