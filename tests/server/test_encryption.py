"""Encrypted content: stored with a skykey, served without being told which."""

import io
import zipfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skymount.wire.base_sector import LAYOUT_SIZE, Layout
from skymount.wire.http.multipart import PartHeader
from skymount.wire.merkle import sector_root
from skymount.wire.skyfile_encryption import CIPHER_XCHACHA20, is_encrypted
from skymount.wire.skykey import Skykey
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.portal_process import PortalProcess, portal_process
from tests.server.http_client import Client, message_of

SMALL = b"a secret of some length " * 50
LARGE = array("I", range((2 * SECTOR_SIZE + 4000) // 4)).tobytes()
KINDS = ["public-id", "private-id"]
_UNKNOWN = "unable to decrypt skyfile base sector"


def made(client: Client, name: str, kind: str) -> Skykey:
    answer = client.post("/svc/createskykey", data={"name": name, "type": kind})
    assert answer.status_code == 200, answer.text
    return Skykey.parse_record(answer.content)


@pytest.fixture(scope="module")
def keyed(client: Client) -> dict[str, Skykey]:
    """A key of each kind on the shared portal, and others before and after them."""
    for n in range(3):
        made(client, f"encryption-before-{n}", KINDS[n % 2])
    keys = {kind: made(client, f"encryption-{kind}", kind) for kind in KINDS}
    for n in range(3):
        made(client, f"encryption-after-{n}", KINDS[n % 2])
    return keys


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[PortalProcess, Client]]:
    """A portal of the test's own."""
    with (
        portal_process(tmp_path / "data") as portal,
        Client(base_url=portal.url, timeout=60) as client,
    ):
        yield portal, client


def base_sector(client: Client, link: str) -> bytes:
    return client.get(f"/svc/basesector/{link}").content


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["name", "id"])
@pytest.mark.parametrize("content", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
def test_round_trip(client: Client, keyed: dict[str, Skykey], kind: str, by: str, content: bytes):
    """What is uploaded with a key of either kind, by name or id, comes back as it was."""
    key = keyed[kind]
    params = {"skykeyname": key.name} if by == "name" else {"skykeyid": key.id}
    link = client.upload_file("dir/secret.bin", content, "text/x-secret", **params)
    served = client.get(f"/{link}")
    assert served.content == content
    assert served.headers["Content-Type"] == "text/x-secret"
    assert '"filename":"dir/secret.bin"' in served.headers["svc-metadata"]
    assert client.get(f"/{link}/dir/secret.bin").content == content
    assert client.head(f"/{link}").headers["Content-Length"] == str(len(content))
    assert client.get(f"/svc/metadata/{link}").text == served.headers["svc-metadata"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_nothing_is_kept_or_handed_out_in_the_clear(
    client: Client, portal: PortalProcess, keyed: dict[str, Skykey], kind: str, content: bytes
):
    """Sectors are handed out encrypted, hash to the skylink, and lie so on the disk."""
    link = client.upload_file("secret.bin", content, skykeyname=keyed[kind].name)
    skylink, base = Skylink(link), base_sector(client, link)
    assert len(base) == skylink.fetch_size
    layout = Layout.parse(base)
    assert is_encrypted(layout)
    assert base[27:35] == CIPHER_XCHACHA20
    params: dict[str, Any] = {"root": skylink.root.hex(), "offset": 0, "length": SECTOR_SIZE}
    whole = client.get("/svc/root", params=params).content
    assert sector_root(whole) == skylink.root
    assert whole.startswith(base)
    shown = Layout.parse(
        bytes.fromhex(client.get(f"/{link}?include-layout=true").headers["svc-file-layout"])
    )
    assert (shown.filesize, shown.key_data) == (len(content), layout.key_data)
    directory = portal.data / "v1" / "skyfiles" / f"{skylink.root[0]:02x}" / link
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert files["base"] == whole
    for stored in files.values():
        assert content[: 2 * LAYOUT_SIZE] not in stored
        assert b"secret.bin" not in stored
    if content is LARGE:
        roots = [files["roots"][at : at + 32] for at in range(0, len(files["roots"]), 32)]
        assert len(roots) == 3
        for index, root in enumerate(roots):
            sector = client.get("/svc/root", params=params | {"root": root.hex()}).content
            assert sector_root(sector) == root
            assert sector == files["payload"][index * SECTOR_SIZE :][:SECTOR_SIZE]


def test_each_upload_has_its_own_skylink(client: Client, keyed: dict[str, Skykey]):
    """The same content twice gives two skylinks, and dry runs store nothing."""
    name = keyed["private-id"].name
    links = {client.upload_file("f", SMALL, skykeyname=name) for _ in range(2)}
    assert len(links) == 2
    dry = client.upload_file("f", SMALL, skykeyname=name, dryrun="true")
    assert client.get(f"/{dry}").status_code == 404


@pytest.mark.parametrize(
    "asked",
    ["0-0", "63-64", "-1", "4194303-4194304", "4194200-8388700", "8388608-", "0-4194303"],
)
def test_ranges(client: Client, keyed: dict[str, Skykey], asked: str):
    """Any range of large encrypted content is that of the content."""
    link = _large(client, keyed)
    served = client.get(f"/{link}", headers={"Range": f"bytes={asked}"})
    assert served.status_code == 206
    first, _, last = asked.partition("-")
    start = int(first) if first else len(LARGE) - int(last)
    stop = int(last) + 1 if first and last else len(LARGE)
    assert served.content == LARGE[start:stop]


_links: list[str] = []


def _large(client: Client, keyed: dict[str, Skykey]) -> str:
    if not _links:
        _links.append(client.upload_file("l", LARGE, skykeyname=keyed["private-id"].name))
    return _links[0]


def test_ranges_of_small_content(client: Client, keyed: dict[str, Skykey]):
    """Several ranges of small encrypted content come as a multipart answer."""
    link = client.upload_file("s", SMALL, skykeyname=keyed["public-id"].name)
    one = client.get(f"/{link}", headers={"Range": "bytes=70-90"})
    assert one.content == SMALL[70:91]
    many = client.get(f"/{link}", headers={"Range": "bytes=1-2,100-130"})
    assert SMALL[100:131] in many.content


def test_directories_and_archives(client: Client, keyed: dict[str, Skykey]):
    """A directory is served file by file, as an archive, and by its index, like any other."""
    files = {"index.html": b"<p>", "a/one": SMALL, "a/two": LARGE}
    link = client.upload(files, skykeyname=keyed["private-id"].name)
    for name, content in files.items():
        assert client.get(f"/{link}/{name}").content == content
    archive = zipfile.ZipFile(io.BytesIO(client.get(f"/{link}?format=zip").content))
    assert {name: archive.read(name) for name in archive.namelist()} == files
    assert client.get(f"/{link}/").content == b"<p>"


# --- keys that are not there


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_is_gone(own: tuple[PortalProcess, Client], kind: str):
    """Without its key content is a 500, at once and not after a restart; with it, it is back."""
    _, client = own
    key = made(client, "mine", kind)
    made(client, "other", kind)
    links = [client.upload_file("f", content, skykeyname="mine") for content in (SMALL, LARGE)]
    plain = client.upload_file("f", SMALL)
    for link, content in zip(links, (SMALL, LARGE), strict=True):
        assert client.get(f"/{link}").content == content
    assert client.post("/svc/deleteskykey", data={"name": "mine"}).status_code == 204
    for link in links:
        for url in (f"/{link}", f"/{link}/f", f"/svc/metadata/{link}"):
            answer = client.get(url)
            assert answer.status_code == 500
            assert _UNKNOWN in message_of(answer)
        assert len(base_sector(client, link)) == Skylink(link).fetch_size
    assert client.get(f"/{plain}").content == SMALL
    assert client.post("/svc/addskykey", data={"skykey": key.text}).status_code == 204
    for link, content in zip(links, (SMALL, LARGE), strict=True):
        assert client.get(f"/{link}").content == content


def test_content_outlives_the_process(tmp_path: Path):
    """A portal started anew serves what was encrypted, and its sectors before any download."""
    with (
        portal_process(tmp_path) as portal,
        Client(base_url=portal.url, timeout=60) as client,
    ):
        links = []
        for kind in KINDS:
            made(client, kind, kind)
            links.append(client.upload_file("f", LARGE, skykeyname=kind))
    with (
        portal_process(tmp_path) as portal,
        Client(base_url=portal.url, timeout=60) as client,
    ):
        for roots in portal.data.rglob("roots"):
            root = roots.read_bytes()[32:64]
            params: dict[str, Any] = {"root": root.hex(), "offset": 0, "length": SECTOR_SIZE}
            assert sector_root(client.get("/svc/root", params=params).content) == root
        for link in links:
            assert client.get(f"/{link}").content == LARGE


# --- what is refused


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"skykeyname": "a", "skykeyid": "b"},
            "cannot set both a 'skykeyname' and 'skykeyid'",
        ),
        ({"skykeyname": "nobody's"}, "unable to get skykey: No Skykey with that name"),
        (
            {"skykeyid": "AAAAAAAAAAAAAAAAAAAAAA=="},
            "unable to get skykey: No Skykey is associated with that ID",
        ),
        ({"skykeyid": "short"}, "unable to parse 'skykeyid' parameter"),
    ],
)
def test_keys_that_do_not_exist(client: Client, params: dict[str, str], message: str):
    """An upload that names no key of the portal, or two, is a 400."""
    answer = client.post_form([(PartHeader("file", "f"), b"x")], params)
    assert answer.status_code == 400
    assert message in message_of(answer)


def test_empty_names_mean_no_encryption(client: Client):
    """Empty parameters are as good as none."""
    link = client.upload_file("f", SMALL, skykeyname="", skykeyid="")
    assert Layout.parse(base_sector(client, link)).is_plain


def test_metadata_that_do_not_fit(client: Client, keyed: dict[str, Skykey]):
    """Metadata that would be spilled are refused: what is spilled is not encrypted."""
    parts = [(PartHeader("files[]", f"{n:05}{'x' * 400}"), b"") for n in range(5500)]
    params = {"filename": "site", "skykeyname": keyed["private-id"].name}
    answer = client.post_form(parts, params)
    assert answer.status_code == 400
    assert "too large to be encrypted" in message_of(answer)
