"""Requests and small bodies of registry, skykeys, names and resolution (contract 5-12)."""

import json
from functools import partial
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.wire import messages
from skymount.wire.dialect import SKYNET, SVC
from skymount.wire.messages import (
    ANSWER_LIMIT,
    FORM_HEADERS,
    JSON_HEADERS,
    Request,
    encode_resolved,
    form,
    parse_resolved,
)
from skymount.wire.skylink import Skylink

KEY = bytes(range(32))
TWEAK = b"\7" * 32
LINK = Skylink.parse("CABAB_1Dt0FJsxqsu_J4TodNCbCGvtFf1Uys_3EgzOlTcg")
ENTRY = Skylink.v2(bytes(32))
QUERY = f"publickey=ed25519%3A{KEY.hex()}&datakey={TWEAK.hex()}"

of_content = partial(Request, may_tell_metadata=True)


@pytest.mark.parametrize(
    ("request_made", "expected"),
    [
        (messages.registry_get(SVC, KEY, TWEAK), Request("GET", f"/svc/registry?{QUERY}")),
        (
            messages.registry_get(SKYNET, KEY, TWEAK, 300),
            Request("GET", f"/skynet/registry?{QUERY}&timeout=300"),
        ),
        (
            messages.registry_get(SVC, KEY, TWEAK, 0),
            Request("GET", f"/svc/registry?{QUERY}&timeout=0"),
        ),
        (messages.registry_post(SVC), Request("POST", "/svc/registry", JSON_HEADERS, True)),
        (
            messages.create_skykey(SVC),
            Request("POST", "/svc/createskykey", FORM_HEADERS, is_answered=True),
        ),
        (messages.add_skykey(SKYNET), Request("POST", "/skynet/addskykey", FORM_HEADERS)),
        (messages.delete_skykey(SVC), Request("POST", "/svc/deleteskykey", FORM_HEADERS)),
        (
            messages.get_skykey(SVC, name="a b&id=ü"),
            Request("GET", "/svc/skykey?name=a%20b%26id%3D%C3%BC"),
        ),
        (
            messages.get_skykey(SKYNET, key_id="kALkHTYQ44XeQq2oz0mwYA=="),
            Request("GET", "/skynet/skykey?id=kALkHTYQ44XeQq2oz0mwYA%3D%3D"),
        ),
        (messages.list_skykeys(SVC), Request("GET", "/svc/skykeys")),
        (messages.hns_download("example.hns"), of_content("GET", "/hns/example.hns")),
        (
            messages.hns_download("xn--ls8h", "a b/c+?.txt", timeout=7),
            of_content("GET", "/hns/xn--ls8h/a%20b/c%2B%3F.txt?timeout=7"),
        ),
        (messages.hns_resolution("example"), Request("GET", "/hnsres/example")),
        (messages.resolve(SKYNET, ENTRY), Request("GET", f"/skynet/resolve/{ENTRY}")),
    ],
)
def test_request(request_made, expected):
    """Each call is the request of the contract and of wire notes 4.7, 6, 7 and 8."""
    assert request_made == expected


def test_what_may_be_sent_twice():
    """Reads and a signed entry may be sent again; making and forgetting keys may not."""
    safe = [
        messages.registry_get(SVC, KEY, TWEAK),
        messages.registry_post(SVC),
        messages.get_skykey(SVC, name="a"),
        messages.list_skykeys(SVC),
        messages.hns_download("a"),
        messages.hns_resolution("a"),
        messages.resolve(SVC, ENTRY),
    ]
    once = [messages.create_skykey(SVC), messages.add_skykey(SVC), messages.delete_skykey(SVC)]
    assert [request.is_safe for request in safe] == [True] * len(safe)
    assert [request.is_safe for request in once] == [False] * len(once)


@given(st.text(max_size=20))
def test_domain_stays_one_element(domain):
    """Whatever is taken for a domain, it cannot reach another path, query or host."""
    for request in (messages.hns_download(domain), messages.hns_resolution(domain)):
        path, _, query = request.target.partition("?")
        assert query == ""
        assert path.count("/") == 2
        assert request.target.isascii()
        assert "#" not in request.target
        if not any("\ud800" <= char <= "\udfff" for char in domain):
            assert unquote(path.split("/")[2]) == domain


@given(st.text(max_size=20), st.text(max_size=20))
def test_form_reads_back(name, kind):
    """Whatever a field holds, a form's reader finds it; half characters are malformed."""
    try:
        body = form(name=name, type=kind)
    except MalformedError:
        assert any("\ud800" <= char <= "\udfff" for char in name + kind)
        return
    assert parse_qsl(body.decode(), keep_blank_values=True) == [("name", name), ("type", kind)]


def test_form_of_the_contract():
    """A form is urlencoded (contract 7, 8, wire notes 7)."""
    assert form(name="a b", type="public-id") == b"name=a+b&type=public-id"
    assert form(skykey="skykey:A_-?name=x") == b"skykey=skykey%3AA_-%3Fname%3Dx"


@given(st.text(min_size=1, max_size=20))
def test_name_in_a_query_reads_back(name):
    """A skykey's name is one parameter whatever it holds; half characters are malformed."""
    try:
        request = messages.get_skykey(SVC, name=name)
    except MalformedError:
        assert any("\ud800" <= char <= "\udfff" for char in name)
        return
    assert parse_qsl(urlsplit(request.target).query) == [("name", name)]


def test_error_of_a_bad_parameter_does_not_repeat_it():
    """A skykey with half a character in it is refused unseen."""
    with pytest.raises(MalformedError) as caught:
        form(skykey="skykey:SECRET\ud800")
    assert "SECRET" not in str(caught.value)


# --- the answer to resolve


@pytest.mark.parametrize("link", [LINK, ENTRY])
def test_resolved_reads_back(link):
    """The answer holds the skylink (wire notes 4.7)."""
    assert encode_resolved(link) == f'{{"skylink":"{link}"}}\n'.encode()
    assert parse_resolved(encode_resolved(link)) == link
    assert parse_resolved(f'{{"x":[1],"skylink":"{link.base32}"}}'.encode()) == link


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b'{"skylink":null}',
        b'{"skylink":7}',
        b'{"skylink":""}',
        b'{"skylink":"\xff"}',
        b'{"skylink":"\\ud800"}',
        json.dumps({"skylink": f"sia://{LINK}"}).encode(),
        json.dumps({"skylink": f"{LINK}\n"}).encode(),
        json.dumps({"skylink": f"{LINK}/a"}).encode(),
        json.dumps({"skylink": "x" * 10_000}).encode(),
        encode_resolved(LINK)[:-2],
        encode_resolved(LINK) + b"x",
        b" " * ANSWER_LIMIT + encode_resolved(LINK),
        b'{"x":' + b"[" * 50_000,
    ],
    ids=lambda body: repr(body[:60]),
)
def test_bad_resolved(body):
    """An answer of another form, or beyond the limit, is refused."""
    with pytest.raises(MalformedError) as caught:
        parse_resolved(body)
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: json.dumps(text).encode()))
def test_any_resolved_parses_or_is_malformed(body):
    """No bytes make the reader fail in another way."""
    for found in (body, b'{"skylink":' + body + b"}"):
        try:
            parse_resolved(found)
        except MalformedError:
            pass
