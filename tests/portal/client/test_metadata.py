"""Metadata and whole files as a client gets them, and what it shows in a browser."""

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from skymount.errors import (
    BadContentError,
    MalformedError,
    NotFoundError,
    PortalError,
    SkymountError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.client.metadata import FileContent, is_json
from skymount.server.storage import zone_file
from skymount.wire.dialect import SKYNET
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, Reply
from tests.fakes.skyfiles import noise, of_files
from tests.portal.connected import connected
from tests.portal_process import PortalProcess

SMALL = of_files({"a.txt": b"hello", "d/b": noise(3000)})
LINK = f"svc://{SMALL.name}"


def talking(**options: object):
    """Yield a portal that has content, and a client of it."""
    return connected(FakePortal(), SMALL, **options)


async def content_of(body: bytes, content_type: str) -> FileContent:
    async with talking(verify="off") as (portal, client):
        reply = Reply(200, ((b"Content-Type", content_type.encode()),), body)
        portal.fault(lambda *_: reply)
        return await client.get_file_content(LINK)


# --- whole files


async def test_file_content(portal: PortalProcess):
    """A file is its bytes, with type, metadata and the link of the whole skylink."""
    async with PortalClient(portal.url) as client:
        result = await client.upload_directory({"a.txt": b"hi", "b": b""}, custom_dirname="d")
        found = await client.get_file_content(str(result), path="a.txt")
        assert (found.data, found.skylink) == (b"hi", str(result))
        assert found.content_type.partition(";")[0] == "text/plain"
        assert found.metadata is not None
        assert found.metadata["subfiles"]["a.txt"]["len"] == 2
        assert "hi" not in repr(found).replace("skylink", "")


@pytest.mark.parametrize(
    ("content_type", "is_one"),
    [
        ("application/json", True),
        ("Application/JSON ; charset=utf-8", True),
        ("application/ld+json", True),
        ("application/jsonp", False),
        ("text/json5", False),
        ("", False),
    ],
)
def test_types_that_are_json(content_type: str, is_one: bool):
    """JSON is known by its media type, with or without parameters, +json too."""
    assert is_json(content_type) is is_one


@pytest.mark.parametrize("size", [10, 100_000])
async def test_json(portal: PortalProcess, size: int):
    """JSON is parsed, small or large; large integers stay exact."""
    value = {"big": 2**53 + 1, "text": "é" * size}
    body = json.dumps(value).encode()
    async with PortalClient(portal.url) as client:
        result = await client.upload_file(body, custom_filename="x.json")
        assert (await client.get_file_content(result.skylink)).data == value
        text = await client.upload_file(body, custom_filename="x.txt")
        assert (await client.get_file_content(text.skylink)).data == body


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 10_000, b'{"a":1} x'], ids=lambda b: b[:5]
)
async def test_broken_json(body: bytes):
    """What only claims to be JSON stays bytes."""
    assert (await content_of(body, "application/json")).data == body


async def test_scalars_are_json_too():
    """null and numbers are values, not missing."""
    assert (await content_of(b"null", "application/json")).data is None
    assert (await content_of(b"5", "application/vnd.x+json")).data == 5


async def test_content_without_headers():
    """A portal that says nothing of metadata and skylink gives None and the link as asked."""
    found = await content_of(b"x", "")
    assert (found.metadata, found.content_type, found.skylink) == (None, "", LINK)


async def test_largest_content(portal: PortalProcess):
    """C14: beyond `max_size` it is an error; exactly that much is none."""
    async with PortalClient(portal.url) as client:
        result = await client.upload_file(b"12345", custom_filename="f")
        assert (await client.get_file_content(str(result), max_size=5)).data == b"12345"
        with pytest.raises(BadContentError, match="longer than 4 B"):
            await client.get_file_content(str(result), max_size=4)
        empty = await client.upload_file(b"", custom_filename="f")
        assert (await client.get_file_content(str(empty), max_size=0)).data == b""


async def test_headers_of_nonsense():
    """C5: metadata or a skylink that does not parse is an error of the portal, with its place."""
    for name, value in ((b"svc-metadata", b"[1]"), (b"svc-metadata", b"{"), (b"Svc-Skylink", b"x")):
        async with talking(verify="off") as (portal, client):
            portal.fault(fake.header(name, value))
            for method, ask in (("GET", client.get_file_content), ("HEAD", client.get_metadata)):
                with pytest.raises(BadContentError) as caught:
                    await ask(LINK)
                assert (caught.value.status, caught.value.method) == (200, method)
                assert caught.value.url == f"{portal.url}/{SMALL.name}"


# --- metadata


async def test_metadata_by_header(portal: PortalProcess):
    """Metadata of the whole, of a file, of a directory inside: what the portal's header says."""
    files = {"a.txt": b"hello", "d/b": b"bb", "d/c": b"c"}
    async with PortalClient(portal.url) as client:
        result = await client.upload_directory(files, custom_dirname="s")
        whole = await client.get_metadata(str(result))
        assert whole.skylink == str(result)
        assert whole.metadata["filename"] == "s"
        assert list(whole.metadata["subfiles"]) == ["a.txt", "d/b", "d/c"]
        for link, path in (
            (str(result), "a.txt"),
            (f"{result}/a.txt", ""),
            (f"{result}/", "a.txt"),
        ):
            inside = await client.get_metadata(link, path=path)
            assert inside.content_type.partition(";")[0] == "text/plain"
            assert list(inside.metadata["subfiles"]) == ["a.txt"]
        directory = await client.get_metadata(str(result), path="/d/")
        assert list(directory.metadata["subfiles"]) == ["d/b", "d/c"]
        with pytest.raises(NotFoundError):
            await client.get_metadata(str(result), path="none")


async def test_metadata_by_endpoint(portal: PortalProcess):
    """Where the header is missing the endpoint tells, and the same for paths inside."""
    files = {"a.txt": b"hello", "d/b": b"bb", "d/c": b"c"}
    async with PortalClient(portal.url) as client, talking() as (lacking, other):
        result = await client.upload_directory(files, custom_dirname="s")
        stored = await client.raw_metadata(result.skylink)
        lacking.fault(lambda *_: Reply(200, ((b"Content-Type", b"a/b"),)), "HEAD ")
        lacking.fault(lambda *_: Reply(200, (), stored), "/metadata/")
        for path in ("", "a.txt", "d"):
            there = await client.get_metadata(str(result), path=path)
            here = await other.get_metadata(str(result), path=path)
            assert here.metadata == there.metadata
            assert (here.skylink, here.content_type) == (str(result), "a/b")
        with pytest.raises(NotFoundError, match="/none"):
            await other.get_metadata(str(result), path="none")


async def test_metadata_too_long_for_a_header():
    """S11: Headers of more than 8 MiB are not read: the metadata endpoint is asked instead."""
    raw = b'{"filename":"%s"}' % (b"x" * (9 << 20))
    async with talking(verify="off") as (portal, client):
        portal.fault(fake.header(b"svc-metadata", raw), "HEAD ")
        portal.fault(fake.body_is(raw), "/metadata/")
        found = await client.get_metadata(LINK)
        assert len(found.metadata["filename"]) == 9 << 20
        assert found.skylink.endswith(SMALL.name)


async def test_endpoint_of_nonsense():
    """C5: a metadata endpoint that sends something else is an error of the portal."""
    async with talking(verify="off") as (portal, client):
        portal.fault(lambda *_: Reply(200), "HEAD ")
        portal.fault(fake.body_is(b"<html>"), "/metadata/")
        for path in ("", "a.txt"):
            with pytest.raises(BadContentError) as caught:
                await client.get_metadata(LINK, path=path)
            assert caught.value.url == f"{portal.url}/svc/metadata/{SMALL.name}"


async def test_portal_that_cannot_choose():
    """A portal that refuses HEAD of several files without a format is asked with one."""
    async with talking(verify="off") as (portal, client):
        portal.fault(fake.status(400), "HEAD [^?]*$")
        assert (await client.get_metadata(LINK)).metadata == json.loads(SMALL.metadata)
        asked = [each.query for each in portal.requests if each.method == "HEAD"]
        assert asked == [{}, {"format": "concat"}]


async def test_dialect_of_a_call():
    """C2: with another dialect the link and the header are its own."""
    async with talking() as (portal, client):
        portal.fault(
            lambda *_: Reply(200, ((b"Skynet-File-Metadata", b'{"filename":"x"}'),), b""), "HEAD "
        )
        found = await client.get_metadata(LINK, dialect=SKYNET)
        assert (found.metadata, found.skylink) == ({"filename": "x"}, f"sia://{SMALL.name}")


# --- addresses

URL = "https://portal.example/below"
NAME = SMALL.name


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, f"{URL}/{NAME}"),
        ({"path": "a b/ü?#%"}, f"{URL}/{NAME}/a%20b/%C3%BC%3F%23%25"),
        ({"path": "/a/"}, f"{URL}/{NAME}/a"),
        ({"download": True}, f"{URL}/{NAME}?attachment=true"),
        ({"path": "a", "download": True}, f"{URL}/{NAME}/a?attachment=true"),
        ({"subdomain": True}, f"https://{SMALL.skylink.base32}.portal.example/below/"),
        (
            {"subdomain": True, "path": "a", "download": True},
            f"https://{SMALL.skylink.base32}.portal.example/below/a?attachment=true",
        ),
        ({"api_key": "secret", "custom_user_agent": "x"}, f"{URL}/{NAME}"),
    ],
)
def test_skylink_url(options: dict[str, Any], url: str):
    """The URL of a link in any form: path encoded, download directive, skylink as a subdomain."""
    client = PortalClient(f"{URL}/")
    for link in (NAME, f"svc:{NAME}", LINK, f"https://other.example/{NAME}", SMALL.skylink):
        assert client.get_skylink_url(link, **options) == url


def test_path_of_the_link_comes_first():
    """A path behind the link goes before the one that is given, and is not encoded twice."""
    client = PortalClient(URL)
    assert client.get_skylink_url(f"{LINK}/a%20b/", path="c d") == f"{URL}/{NAME}/a%20b/c%20d"


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, f"{URL}/hns/doc.name"),
        ({"path": "/a b"}, f"{URL}/hns/doc.name/a%20b"),
        ({"download": True}, f"{URL}/hns/doc.name?attachment=true"),
        ({"subdomain": True}, "https://doc.name.hns.portal.example/below/"),
        (
            {"subdomain": True, "path": "a", "download": True},
            "https://doc.name.hns.portal.example/below/a?attachment=true",
        ),
    ],
)
def test_hns_url(options: dict[str, Any], url: str):
    """The URL of a name, in its canonical form."""
    assert PortalClient(URL).get_hns_url("hns://Doc.Name.", **options) == url


def test_hnsres_url():
    """The URL that tells what a name resolves to."""
    client = PortalClient(URL)
    assert client.get_hnsres_url("doc") == f"{URL}/hnsres/doc"
    assert client.get_hnsres_url("doc", download=True) == f"{URL}/hnsres/doc?attachment=true"
    assert client.get_hnsres_url("bücher") == f"{URL}/hnsres/xn--bcher-kva"
    for bad in ("", "a b", "a/b", "."):
        with pytest.raises(MalformedError):
            client.get_hnsres_url(bad)


async def test_addresses_lead_there(portal: PortalProcess):
    """The portal answers at those addresses as it does to the calls."""
    async with PortalClient(portal.url) as client:
        result = await client.upload_directory({"a b.txt": b"hi", "c": b""}, custom_dirname="d")
        zone_file.change(portal.data, lambda found: found.with_record("urls-test", str(result)))
        for url in (
            client.get_skylink_url(str(result), path="a b.txt", download=True),
            client.get_hns_url("urls-test", path="a b.txt", download=True),
        ):
            answer = await trio.to_thread.run_sync(httpx.get, url)
            assert answer.content == b"hi"
            assert answer.headers["content-disposition"].startswith("attachment")
        url = client.get_hnsres_url("urls-test")
        assert (await trio.to_thread.run_sync(httpx.get, url)).json() == {"skylink": str(result)}


# --- a browser


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import webbrowser

    script = tmp_path / "browser"
    script.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"open({str(tmp_path / 'shown')!r}, 'a').write('|'.join(sys.argv[1:]) + '\\n')\n"
        "sys.exit('broken' in sys.argv[1])\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(script))
    monkeypatch.setattr(webbrowser, "_tryorder", None)
    monkeypatch.setattr(webbrowser, "_browsers", {})
    return tmp_path / "shown"


async def test_open_file(browser: Path):
    """The system's browser gets the URL as one argument, which is also the result."""
    client = PortalClient(URL)
    urls = [
        await client.open_file(LINK, path="a b;c"),
        await client.open_file(LINK, download=True),
        await client.open_file_hns("doc", path="x", download=True),
    ]
    assert urls == [
        f"{URL}/{NAME}/a%20b%3Bc",
        f"{URL}/{NAME}?attachment=true",
        f"{URL}/hns/doc/x?attachment=true",
    ]
    assert browser.read_text().splitlines() == urls


async def test_no_browser(browser: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a browser that works the error tells the address."""
    import webbrowser

    monkeypatch.setattr(webbrowser, "register_standard_browsers", lambda: None)
    monkeypatch.setattr(webbrowser, "_tryorder", [])
    with pytest.raises(SkymountError, match=f"no browser.*{URL}/{NAME}") as caught:
        await PortalClient(URL).open_file(LINK)
    assert not isinstance(caught.value, PortalError)
