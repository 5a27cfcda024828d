"""The same address for browsers, scripts, agents and other programs (docs/portal.md, Who asks)."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from skymount.wire.skylink import Skylink
from tests.nginx import needs_nginx, nginx_before
from tests.portal_process import PortalProcess
from tests.server.http_client import Client, assert_same_headers
from tests.server.pages.page_client import ACCEPT, page
from tests.skymount_process import output

_PAGE = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Accept": ACCEPT}
_OLD_PAGE = {"Accept": ACCEPT}
_PART = {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
_SCRIPT = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty", "Origin": "http://a.example"}
_AGENT = {"User-Agent": "sdk svc-agent"}
_PROGRAM = {"User-Agent": "curl/8.5.0", "Accept": "*/*"}
_ALL = {
    "page": _PAGE,
    "old page": _OLD_PAGE,
    "part": _PART,
    "script": _SCRIPT,
    "agent": _AGENT,
    "program": _PROGRAM,
}
_POLISH = "Zażółć gęślą jaźń\n"


@pytest.mark.parametrize("who", _ALL)
def test_metadata_and_charset(client: Client, who: str) -> None:
    """A charset is only for browsers, and metadata headers are not; HEAD is like GET."""
    link = client.upload_file("t.txt", _POLISH.encode(), "text/plain")
    answer = client.get(f"/{link}", headers=_ALL[who])
    assert answer.status_code == 200
    assert_same_headers(client.head(f"/{link}", headers=_ALL[who]), answer)
    is_browser = who in ("page", "old page", "part")
    kind = "text/plain; charset=utf-8" if is_browser else "text/plain"
    assert answer.headers["content-type"] == kind
    ranged = client.get(f"/{link}", headers={**_ALL[who], "Range": "bytes=3-5"})
    assert (ranged.status_code, ranged.headers["content-type"]) == (206, kind)
    names = [name for name in answer.headers if name.endswith("metadata")]
    expected = ["svc-metadata"] if who == "agent" else ["svc-metadata", "skynet-file-metadata"]
    assert names == ([] if is_browser else expected)


@pytest.mark.parametrize(
    ("name", "kind", "content", "expected"),
    [
        ("a.html", "text/html", _POLISH.encode(), "text/html; charset=utf-8"),
        ("a.html", "text/html", _POLISH.encode("iso-8859-2"), "text/html"),
        ("a.html", "text/html", b"<meta charset=koi8-r>", "text/html"),
        ("a.svg", "image/svg+xml", b"<svg/>", "image/svg+xml; charset=utf-8"),
        ("a.html", "", b"<meta charset=koi8-r>", "text/html"),
        ("a.md", "text/markdown", b"<meta charset=koi8-r>", "text/markdown; charset=utf-8"),
        ("a.txt", "", _POLISH.encode("iso-8859-2"), "text/plain"),
        ("a.txt", "", _POLISH.encode(), "text/plain; charset=utf-8"),
        ("a.json", "application/json", '"ż"'.encode(), "application/json"),
        ("a.png", "image/png", b"\x89PNG", "image/png"),
        ("a.txt", "text/plain; charset=x", b"a", "text/plain; charset=x"),
        ("large.txt", "text/plain", _POLISH.encode() * 300_000, "text/plain; charset=utf-8"),
        ("empty.txt", "text/plain", b"", "text/plain"),
    ],
)
def test_the_charset_of_a_part(
    client: Client, name: str, kind: str, content: bytes, expected: str
) -> None:
    """By the content, small in memory or large on disk; the type as stored is in the metadata."""
    link = client.upload_file(name, content, kind)
    for _ in range(2):
        assert client.head(f"/{link}", headers=_PART).headers["content-type"] == expected
        if kind:
            assert client.head(f"/{link}", headers=_AGENT).headers["content-type"] == kind


@pytest.mark.parametrize("who", _ALL)
def test_directories(client: Client, who: str) -> None:
    """B4: a listing, links, or an archive."""
    link = client.upload({"d/a?.txt": b"1", "d/e/b": b"2", "d/x:y": b"3", "other": b""})
    without = client.get(f"/{link}/d", headers=_ALL[who])
    slash = client.get(f"/{link}/d/", headers=_ALL[who])
    assert_same_headers(client.head(f"/{link}/d/", headers=_ALL[who]), slash)
    if who in ("page", "old page"):
        assert "Download as zip" in without.text
        assert "Download as zip" in slash.text
    else:
        assert without.headers["content-type"] == "application/zip"
        if who in ("script", "agent"):
            assert slash.content == without.content
        else:
            links = ["../", "a%3F.txt", "e/", "./x%3Ay"]
            assert [each.split('"')[0] for each in slash.text.split('href="')[1:]] == links
    for query in ("format=zip", "attachment=true"):
        answer = client.get(f"/{link}/d/?{query}", headers=_ALL[who])
        assert answer.headers["content-type"] == "application/zip"
    assert "Sec-Fetch-Mode" in slash.headers["vary"]


def test_names_in_a_list_of_links_are_text(client: Client) -> None:
    """B6: and the list may run nothing."""
    link = client.upload({'"><img src=x>': b"x", "b": b""}, disabledefaultpath="true")
    answer = client.get(f"/{link}/")
    assert "<img" not in answer.text
    assert answer.headers["content-security-policy"].startswith("sandbox;")


def test_the_archive_at_a_host_of_one_skylink(portal: PortalProcess, client: Client) -> None:
    """There a slash is at the end of each address of the whole."""
    link = client.upload({"a": b"1", "b": b"2"}, disabledefaultpath="true")
    text = page(client, f"/-/view/{link}").text
    assert link in text
    host = f"{Skylink(link).base32}.localhost"
    answer = client.get("/", headers={**_PROGRAM, "Host": host})
    assert answer.headers["content-type"] == "application/zip"


def _wheel(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w") as wheel:
        info = "foo-1.0+cu118.dist-info"
        wheel.writestr("foo.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: foo\nVersion: 1.0+cu118\n")
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


def test_pip(client: Client, tmp_path: Path) -> None:
    """Its `Accept` has HTML with a small q value; file names have a plus."""
    name = "foo-1.0+cu118-py3-none-any.whl"
    index = f'<!DOCTYPE html><a href="{name}">{name}</a>'.encode()
    link = client.upload({"foo/index.html": index, f"foo/{name}": _wheel(tmp_path / name)})
    into = tmp_path / "into"
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "-q"]
    options = ["--no-deps", "--no-cache-dir", "-d", into]
    url = f"{client.base_url}/{link}/"
    output([*pip, "download", *options, "-i", url, "foo==1.0+cu118"], cwd=tmp_path)
    assert [found.name for found in into.iterdir()] == [name]


_TREE = {"a+b.txt": b"plus", "sub/é ü.txt": b"name", "sub/deep/x?y": b"x", "sub/deep/50%": b"%"}


def _files(root: Path) -> dict[str, bytes]:
    """Return what was copied, without the listings that wget keeps under other names."""
    found = (path for path in root.rglob("*") if path.is_file())
    names = {str(path.relative_to(root)): path.read_bytes() for path in found}
    return {name: data for name, data in names.items() if "index.html" not in name}


@pytest.mark.parametrize(
    "command",
    [
        "wget -q -r -np -nH --cut-dirs=1 --restrict-file-names=nocontrol -R index.html* -P into {}",
        "rclone --config=/dev/null --quiet --http-url {} copy :http: into",
    ],
    ids=["wget", "rclone"],
)
def test_programs_copy_a_directory(client: Client, tmp_path: Path, command: str) -> None:
    """B4: by the links of listings, each file with its own name; rclone has the sizes from HEAD."""
    words = command.format(f"{client.base_url}/{client.upload(_TREE)}/").split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(tmp_path)}
    output(words, env=env, cwd=tmp_path)
    assert _files(tmp_path / "into") == _TREE


@needs_nginx
def test_a_site_behind_an_nginx_with_small_buffers(
    portal: PortalProcess, client: Client, tmp_path: Path
) -> None:
    """By default it passes on 4 or 8 KiB of headers; the metadata is sent under two names."""
    files = {f"{number:02}-{'n' * 100}.txt": b"x" for number in range(40)}
    link = client.upload({"index.html": b"<p>Hello</p>", **files})
    with (
        nginx_before(portal.url, tmp_path / "nginx", "proxy_buffer_size 4k;") as url,
        Client(base_url=url) as behind,
    ):
        for headers in (_PAGE, _OLD_PAGE, _PART):
            found = behind.get(f"/{link}/", headers=headers, follow_redirects=False)
            assert found.status_code in (200, 307), found
        assert behind.get(f"/{link}/", headers=_PROGRAM).status_code == 502


@needs_nginx
def test_an_agent_behind_nginx_as_the_documentation_has_it(
    portal: PortalProcess, client: Client, tmp_path: Path
) -> None:
    files = {f"{number:04}-{'n' * 100}.txt": b"x" for number in range(500)}
    link = client.upload({"index.html": b"<p>Hello</p>", **files})
    text = (Path(__file__).parents[2] / "docs/portal.md").read_text()
    lines = text.partition("    proxy_buffer_size")[2].partition("}")[0]
    with (
        nginx_before(portal.url, tmp_path / "nginx", "proxy_buffer_size" + lines) as url,
        Client(base_url=url) as behind,
    ):
        answer = behind.get(f"/{link}/", headers=_AGENT)
        assert answer.status_code == 200
        assert len(answer.headers["svc-metadata"]) > 64_000
