"""Version 2 skylinks over HTTP: where they lead, what the answers prove, what they refuse."""

import io
import zipfile

import httpx
import pytest

from skymount.wire.registry_entry import DELETED, SignedEntry
from skymount.wire.registry_proof import check_proof
from skymount.wire.skylink import Skylink
from tests.server.http_client import Client, assert_same_headers, message_of
from tests.server.registry_entries import link_of, put, signed

_HEADERS = [("svc", "svc-metadata"), ("skynet", "skynet-file-metadata")]


def _point(client: Client, key: str, target: Skylink | str, revision: int = 0) -> Skylink:
    """Let an entry lead to a skylink; return the entry's own."""
    skylink = target if isinstance(target, Skylink) else Skylink(target)
    put(client, signed(key, bytes(skylink), revision))
    return link_of(key)


def _check_headers(answer: httpx.Response, requested: Skylink, resolved: str) -> int:
    """Check the headers of an answer in every dialect; return how many hops they prove."""
    hops = 0
    for prefix, _ in _HEADERS:
        assert answer.headers[f"{prefix}-skylink"] == resolved
        assert answer.headers[f"{prefix}-requested-skylink"] == str(requested)
        proof = SignedEntry.parse_hops(answer.headers[f"{prefix}-proof"].encode())
        check_proof(requested, Skylink(resolved), proof)
        hops = len(proof)
    return hops


@pytest.fixture(scope="module")
def content(client: Client) -> str:
    """The v1 skylink of a single file."""
    return client.upload_file("hello.txt", b"hello")


@pytest.fixture(scope="module")
def site(client: Client) -> str:
    """The v1 skylink of a directory with a page."""
    return client.upload({"index.html": b"<p>", "sub/index.html": b"<b>", "sub/a": b"a"})


def test_one_hop(client: Client, content: str) -> None:
    """GET and HEAD answer as for the v1 skylink, and prove the way; that has nothing to prove."""
    link = _point(client, "one", content)
    direct, answer = client.get(f"/{content}"), client.get(f"/{link}")
    assert (answer.status_code, answer.content) == (200, b"hello")
    assert _check_headers(answer, link, content) == 1
    assert_same_headers(client.head(f"/{link}"), answer)
    for name in ("etag", "svc-metadata", "skynet-file-metadata", "content-type"):
        assert answer.headers[name] == direct.headers[name]
    names = set(direct.headers)
    assert not {name for name in names if name.endswith(("-proof", "-requested-skylink"))}


def test_two_hops_and_no_more(client: Client, content: str) -> None:
    """Two are followed in their order, the third is too many."""
    first = _point(client, "chain 1", content)
    second = _point(client, "chain 2", first)
    third = _point(client, "chain 3", second)
    answer = client.get(f"/{second}")
    assert answer.content == b"hello"
    assert _check_headers(answer, second, content) == 2
    refused = client.get(f"/{third}")
    assert refused.status_code == 500
    assert message_of(refused) == (
        "failed to resolve skylink: skylink is nested more times than is supported"
    )


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (None, 404, "registry entry not found"),
        (DELETED, 404, "root not found"),
        (b"", 500, "the registry entry is empty"),
        (b"\1", 400, "malformed skylink"),
    ],
)
def test_entries_that_lead_nowhere(
    client: Client, data: bytes | None, status: int, message: str
) -> None:
    """The status says why, at the first hop as at the second, on every path."""
    key = f"nowhere {data!r}"
    if data is not None:
        put(client, signed(key, data))
    link = link_of(key)
    outer = _point(client, f"to {key}", link)
    for path in (f"/{link}", f"/{outer}", f"/svc/metadata/{link}", f"/svc/resolve/{link}"):
        answer = client.get(path)
        assert answer.status_code == status
        assert message_of(answer).startswith("failed to resolve skylink: ")
        assert message in message_of(answer)


def test_an_entry_of_the_second_type_is_not_followed(client: Client) -> None:
    """No client would take its proof."""
    put(client, signed("kind", b"\1\0" + b"x" * 32, kind=2))
    answer = client.get(f"/{link_of('kind')}")
    assert answer.status_code == 400
    assert "unsupported registry type 2" in message_of(answer)


def test_the_older_text_form_in_an_entry(client: Client, content: str) -> None:
    """46 characters in place of 34 bytes."""
    put(client, signed("older", content.encode()))
    answer = client.get(f"/{link_of('older')}")
    assert answer.content == b"hello"
    assert _check_headers(answer, link_of("older"), content) == 1


def test_an_update_is_followed_at_once(client: Client, content: str, site: str) -> None:
    """The next download has the new content and another entity tag; deleting ends it."""
    link = _point(client, "moving", content)
    before = client.get(f"/{link}")
    unchanged = client.get(f"/{link}", headers={"If-None-Match": before.headers["etag"]})
    assert unchanged.status_code == 304
    assert _check_headers(unchanged, link, content) == 1
    _point(client, "moving", site, revision=1)
    after = client.get(f"/{link}/", headers={"If-None-Match": before.headers["etag"]})
    assert (after.status_code, after.content) == (200, b"<p>")
    assert _check_headers(after, link, site) == 1
    put(client, signed("moving", DELETED, 2))
    assert client.get(f"/{link}").status_code == 404


def test_every_form_of_a_download(client: Client, content: str, site: str) -> None:
    """Base32, the service's own path, an attachment, a range, a file inside, an archive."""
    file, directory = _point(client, "forms", content), _point(client, "forms of a site", site)
    for path in (f"/{file.base32}", f"/svc/skylink/{file}", f"/skynet/skylink/{file}"):
        answer = client.get(path)
        assert answer.content == b"hello"
        assert _check_headers(answer, file, content) == 1
    assert "attachment" in client.get(f"/file/{file}").headers["content-disposition"]
    part = client.get(f"/{file}", headers={"Range": "bytes=1-2"})
    assert (part.status_code, part.content) == (206, b"el")
    assert _check_headers(part, file, content) == 1
    impossible = client.get(f"/{file}", headers={"Range": "bytes=9-"})
    assert impossible.status_code == 416
    assert _check_headers(impossible, file, content) == 1
    inside = client.get(f"/{directory}/sub/a")
    assert inside.content == b"a"
    assert inside.headers["svc-metadata"] == client.get(f"/{site}/sub/a").headers["svc-metadata"]
    archive = client.get(f"/{directory}?format=zip")
    assert _check_headers(archive, directory, site) == 1
    with zipfile.ZipFile(io.BytesIO(archive.content)) as found:
        assert found.read("sub/a") == b"a"


def test_a_redirect_keeps_what_was_asked(client: Client, site: str) -> None:
    """It leads to the v2 skylink with a slash, not to where that leads today."""
    link = _point(client, "redirected", site)
    for path in (f"/{link}", f"/{link}/sub"):
        answer = client.get(path, follow_redirects=False)
        assert answer.status_code == 308
        assert str(answer.url.join(answer.headers["location"]).path) == f"{path}/"


@pytest.mark.parametrize("prefix", ["svc", "skynet"])
def test_how_it_is_stored(client: Client, content: str, prefix: str) -> None:
    """Metadata and base sector are those of the v1 skylink, with the proof."""
    link = _point(client, "stored", content, {"svc": 0, "skynet": 1}[prefix])
    for name in ("metadata", "basesector", "trustless/basesector"):
        answer = client.get(f"/{prefix}/{name}/{link}")
        assert answer.content == client.get(f"/{prefix}/{name}/{content}").content
        assert _check_headers(answer, link, content) == 1


@pytest.mark.parametrize("prefix", ["svc", "skynet"])
def test_resolving_without_a_download(client: Client, prefix: str) -> None:
    """The content need not be here; a v1 skylink has nothing to resolve."""
    absent = Skylink.v1(b"\7" * 32, 4096)
    link = _point(client, f"resolve {prefix}", absent)
    assert client.get(f"/{link}").status_code == 404
    answer = client.get(f"/{prefix}/resolve/{link}")
    assert (answer.status_code, answer.json()) == (200, {"skylink": str(absent)})
    assert _check_headers(answer, link, str(absent)) == 1
    refused = client.get(f"/{prefix}/resolve/{absent}")
    assert refused.status_code == 400
    assert "wrong version" in message_of(refused)
    refused = client.get(f"/{prefix}/resolve/nonsense")
    assert refused.status_code == 400
    assert message_of(refused).startswith("error parsing skylink: ")
