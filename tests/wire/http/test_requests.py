"""Requests of the contract as a client writes them."""

from functools import partial
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.wire.dialect import SKYNET, SVC
from skymount.wire.http import requests
from skymount.wire.http.requests import (
    FORM_HEADERS,
    JSON_HEADERS,
    Request,
    basic_credentials,
    form,
)
from skymount.wire.skylink import Skylink

KEY = bytes(range(32))
TWEAK = b"\7" * 32
TEXT = "CABAB_1Dt0FJsxqsu_J4TodNCbCGvtFf1Uys_3EgzOlTcg"
LINK = Skylink(TEXT)
ENTRY = Skylink.v2(bytes(32))
QUERY = f"publickey=ed25519%3A{KEY.hex()}&datakey={TWEAK.hex()}"

of_content = partial(Request, may_tell_metadata=True)


@pytest.mark.parametrize(
    ("request_made", "expected"),
    [
        (requests.download(LINK), of_content("GET", f"/{TEXT}")),
        (requests.download(LINK, method="HEAD"), of_content("HEAD", f"/{TEXT}")),
        (
            requests.download(LINK, "a b/c+ü?.txt"),
            of_content("GET", f"/{TEXT}/a%20b/c%2B%C3%BC%3F.txt"),
        ),
        (
            requests.download(LINK, "d", archive="tar", attachment=True, timeout=0),
            of_content("GET", f"/{TEXT}/d?format=tar&attachment=true&timeout=0"),
        ),
        (requests.metadata(SVC, LINK), Request("GET", f"/svc/metadata/{TEXT}")),
        (requests.base_sector(SKYNET, LINK), Request("GET", f"/skynet/basesector/{TEXT}")),
        (
            requests.sector(SVC, b"\1" * 32, 64, 128),
            Request("GET", f"/svc/root?root={'01' * 32}&offset=64&length=128"),
        ),
        (requests.upload(SKYNET), Request("POST", "/skynet/skyfile", is_answered=True)),
        (
            requests.upload(SVC, filename="a/b &c", query=[("dryrun", "true")]),
            Request("POST", "/svc/skyfile?filename=a%2Fb%20%26c&dryrun=true", is_answered=True),
        ),
        (requests.registry_get(SVC, KEY, TWEAK), Request("GET", f"/svc/registry?{QUERY}")),
        (
            requests.registry_get(SKYNET, KEY, TWEAK, 300),
            Request("GET", f"/skynet/registry?{QUERY}&timeout=300"),
        ),
        (
            requests.registry_get(SVC, KEY, TWEAK, 0),
            Request("GET", f"/svc/registry?{QUERY}&timeout=0"),
        ),
        (requests.registry_post(SVC), Request("POST", "/svc/registry", JSON_HEADERS, True)),
        (
            requests.create_skykey(SVC),
            Request("POST", "/svc/createskykey", FORM_HEADERS, is_answered=True),
        ),
        (requests.pin(SKYNET, ENTRY), Request("POST", f"/skynet/pin/{ENTRY}")),
        (requests.add_skykey(SKYNET), Request("POST", "/skynet/addskykey", FORM_HEADERS)),
        (requests.delete_skykey(SVC), Request("POST", "/svc/deleteskykey", FORM_HEADERS)),
        (
            requests.get_skykey(SVC, name="a b&id=ü"),
            Request("GET", "/svc/skykey?name=a%20b%26id%3D%C3%BC"),
        ),
        (
            requests.get_skykey(SKYNET, key_id="kALkHTYQ44XeQq2oz0mwYA=="),
            Request("GET", "/skynet/skykey?id=kALkHTYQ44XeQq2oz0mwYA%3D%3D"),
        ),
        (requests.list_skykeys(SVC), Request("GET", "/svc/skykeys")),
        (requests.hns_download("example.hns"), of_content("GET", "/hns/example.hns")),
        (
            requests.hns_download("xn--ls8h", "a b/c+?.txt", timeout=7),
            of_content("GET", "/hns/xn--ls8h/a%20b/c%2B%3F.txt?timeout=7"),
        ),
        (requests.hns_resolution("example"), Request("GET", "/hnsres/example")),
        (requests.resolve(SKYNET, ENTRY), Request("GET", f"/skynet/resolve/{ENTRY}")),
    ],
)
def test_request(request_made, expected):
    """Each call is the request of the contract and of docs/wire.md 3.1, 4.1, 4.2, 4.7, 6, 7, 8."""
    assert request_made == expected


@given(st.text(min_size=1, max_size=20))
def test_upload_names_any_file(filename):
    """The filename parameter carries any name."""
    query = urlsplit(requests.upload(SVC, filename=filename).target).query
    assert parse_qsl(query) == [("filename", filename)]


def test_credentials():
    """Basic authentication with an empty user name and the API key as password (contract)."""
    assert basic_credentials("pä:ss") == "Basic OnDDpDpzcw=="


def test_what_may_be_sent_twice():
    """Reads and a signed entry may be sent again; making and forgetting keys may not."""
    safe = [
        requests.registry_get(SVC, KEY, TWEAK),
        requests.registry_post(SVC),
        requests.get_skykey(SVC, name="a"),
        requests.list_skykeys(SVC),
        requests.hns_download("a"),
        requests.hns_resolution("a"),
        requests.resolve(SVC, ENTRY),
    ]
    once = [requests.create_skykey(SVC), requests.add_skykey(SVC), requests.delete_skykey(SVC)]
    assert [request.is_safe for request in safe] == [True] * len(safe)
    assert [request.is_safe for request in once] == [False] * len(once)


@given(st.text(max_size=20))
def test_domain_stays_one_element(domain):
    """Whatever is taken for a domain, it cannot reach another path, query or host."""
    for request in (requests.hns_download(domain), requests.hns_resolution(domain)):
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
    """A form is urlencoded (contract 7, 8, docs/wire.md 7)."""
    assert form(name="a b", type="public-id") == b"name=a+b&type=public-id"
    assert form(skykey="skykey:A_-?name=x") == b"skykey=skykey%3AA_-%3Fname%3Dx"


@given(st.text(min_size=1, max_size=20))
def test_name_in_a_query_reads_back(name):
    """A skykey's name is one parameter whatever it holds; half characters are malformed."""
    try:
        request = requests.get_skykey(SVC, name=name)
    except MalformedError:
        assert any("\ud800" <= char <= "\udfff" for char in name)
        return
    assert parse_qsl(urlsplit(request.target).query) == [("name", name)]


def test_error_of_a_bad_parameter_does_not_repeat_it():
    """A skykey with half a character in it is refused unseen."""
    with pytest.raises(MalformedError) as caught:
        form(skykey="skykey:SECRET\ud800")
    assert "SECRET" not in str(caught.value)
