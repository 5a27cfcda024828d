"""The page of names and registry entries."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from skymount.server.pages.home import ROWS
from skymount.wire.registry_entry import DELETED
from skymount.wire.skylink import Skylink
from tests.server.http_client import Client, portal_client
from tests.server.pages.page_client import ACCEPT, assert_page, page
from tests.server.registry_entries import OWNER, link_of, put, signed

_KEY = OWNER.public_key.hex()


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = tmp_path_factory.mktemp("named")
    with portal_client(path) as client:
        link = client.upload_file("target", b"x")
        tree = client.upload({"a dir/c d.txt": b"spaced", "b": b""})
        put(client, signed("site", bytes(Skylink(link)), 7))
        put(client, signed("text", "größe <b>".encode(), 3))
        put(client, signed("gone", DELETED, 4))
        put(client, signed("empty", b"", 1))
        lines = [
            f"fixed svc://{link}/a/b",
            f"moving {link_of('site')}",
            f"registry svcns://ed25519%3A{_KEY}/{signed('site').entry.tweak.hex()}",
            "bad value",
            f"spaced svc://{tree}/a%20dir/c%20d.txt",
            f"nobody svcns://ed25519%3A{_KEY}/{'77' * 32}",
            *(f"many{number:03} svc://{link}" for number in range(ROWS)),
        ]
        (path / "hns.zone").write_text("\n".join(lines))
        yield client


def test_names_and_what_they_lead_to(named: Client) -> None:
    """B3: with the revision of an entry; bad lines say what is wrong."""
    text = page(named, "/-/registry").text
    assert 'href="/hns/fixed/"' in text
    assert "/a/b" in text
    assert ">7<" in text.replace("\n", "")
    assert "neither" in text or "not of a known form" in text
    assert "no entry here yet" in text
    assert "many049" not in text
    assert "many049" in page(named, "/-/registry?page=2").text
    found = page(named, "/-/registry?q=MANY04").text
    assert "many049" in found
    assert "fixed/" not in found
    row = page(named, "/-/registry?q=spaced").text.partition(">spaced<")[2].partition("</tr>")[0]
    assert re.findall('href="([^"]*)"', row) == ["/hns/spaced/"]
    assert "/a%20dir/c%20d.txt" in row


def test_the_entries_of_a_key(named: Client) -> None:
    """B3: the skylink that each leads to, or its data, as text."""
    assert f"ed25519:{_KEY}" in page(named, "/-/registry").text
    for key in (_KEY, f"ed25519%3A{_KEY}"):
        text = page(named, f"/-/registry?key={key}").text
        for shown in (str(link_of("site")), "größe &lt;b&gt;", "deleted", "empty"):
            assert shown in text
    nobody = page(named, f"/-/registry?key={'00' * 32}").text
    assert "no entries of this key" in nobody


def test_many_entries_come_in_pages(tmp_path: Path) -> None:
    """B3: each page leads to the next one, and none is missing."""
    with portal_client(tmp_path) as client:
        for number in range(ROWS + 5):
            put(client, signed(f"entry {number}"))
        links = {str(link_of(f"entry {number}")) for number in range(ROWS + 5)}
        first = page(client, f"/-/registry?key={_KEY}").text
        following = first.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0]
        second = page(client, following.replace("&amp;", "&")).text
        assert {link for link in links if link in first or link in second} == links
        assert sum(link in second for link in links) == 5
        assert 'rel="next"' not in second


def test_wrong_keys(client: Client) -> None:
    """B10: said on a page; others than browsers get the 404 that they always got."""
    for query in ("key=x", f"key={_KEY}&after=x", "after=x"):
        answer = client.get(f"/-/registry?{query}", headers={"Accept": ACCEPT})
        assert answer.status_code == 400
        assert_page(answer)
    assert client.get("/-/registry").status_code == 404


def test_a_zone_that_cannot_be_used(tmp_path: Path) -> None:
    """B10: the page says so; entries are there all the same."""
    (tmp_path / "hns.zone").write_bytes(b"a" * (2 << 20))
    with portal_client(tmp_path) as client:
        put(client, signed("site"))
        text = page(client, "/-/registry").text
        assert "cannot be used" in text
        assert _KEY in text
