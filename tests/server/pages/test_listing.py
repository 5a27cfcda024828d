"""Listings, previews, and content at hosts of its own."""

from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from skymount.server.pages.directory import PARENTS_LIMIT, ROWS_LIMIT
from skymount.server.pages.rendering import NAME_LIMIT
from skymount.wire.http.multipart import PartHeader
from skymount.wire.skylink import Skylink
from tests.portal_process import PortalProcess, portal_process
from tests.server.http_client import Client, message_of, portal_client, skylink_of
from tests.server.pages.page_client import ACCEPT, assert_page, elsewhere, page
from tests.server.registry_entries import link_of, put, signed

_HTML = {"Accept": ACCEPT}
_TREE = {"b.txt": b"text", "a dir/c+d.png": b"\x89PNG\r\n\x1a\n", "a dir/e/f?.txt": b"f"}


def own_host(portal: PortalProcess, link: str) -> str:
    """Return the host of a skylink's own."""
    return f"{Skylink(link).base32}.localhost:{urlsplit(portal.url).port}"


def is_sandboxed(answer: httpx.Response) -> bool:
    """Whether a browser keeps an answer apart from the portal's origin."""
    policy = answer.headers.get("content-security-policy", "")
    return policy.startswith("sandbox ") and "allow-same-origin" not in policy


def test_a_directory_is_a_listing(client: Client) -> None:
    """B4: others get the zip; each link on it leads somewhere, the way up too."""
    link = client.upload(_TREE, filename="tree")
    assert client.get(f"/{link}").headers["content-type"] == "application/zip"
    for url in (f"/{link}", f"/{link}/", f"/-/view/{link}", f"/svc/skylink/{link}"):
        text = page(client, url).text
        assert text.index(">a dir<") < text.index(">b.txt<")  # directories first
        assert link in text
    inside = page(client, f"/{link}/a%20dir/").text
    assert f'href="/{link}/"' in inside
    assert f'href="/{link}/a%20dir/e/"' in inside
    assert f'href="/-/view/{link}/a%20dir/c%2Bd.png"' in inside
    deeper = page(client, f"/{link}/a%20dir/e/?page=7").text
    assert f'href="/{link}/a%20dir/"' in deeper
    assert f"/-/view/{link}/a%20dir/e/f%3F.txt" in deeper
    assert "f?.txt" in page(client, f"/-/view/{link}/a%20dir/e/f%3F.txt").text
    one = client.upload({"only.txt": b"text"}, filename="tree")  # is another thing than a file
    assert page(client, f"/-/view/{one}").text.count("<tr>") == 1 + 1


def test_a_listing_shows_a_bounded_number_of_rows(client: Client) -> None:
    """B4: the next ones are on the next page; they can be searched and sorted."""
    files = {f"{number:05}.txt": bytes(number % 7) for number in range(2 * ROWS_LIMIT + 3)}
    link = client.upload({**files, "sub/x": b""})
    first = page(client, f"/{link}/").text
    assert first.count("<tr>") == ROWS_LIMIT + 1  # and the head
    assert ">sub<" in first
    assert "Page 1 of 3" in first
    last = page(client, f"/{link}/?page=3").text
    assert last.count("<tr>") == 4 + 1
    assert ">01002.txt<" in last
    found = page(client, f"/{link}/?q=0100").text
    assert found.count('class="file"') == 4  # 00100, 01000, 01001, 01002
    by_size = page(client, f"/{link}/?sort=-size&q=0000").text
    assert by_size.index(">00006.txt<") < by_size.index(">00005.txt<") < by_size.index(">00000.")
    page(client, f"/{link}/?sort=nothing&page=x")


def test_a_path_of_many_directories(client: Client) -> None:
    """B4: the first and the last are shown, so the page stays small."""
    path = "a/" * 30_000 + "last"
    link = client.upload({path: b"deep", "b": b""})
    for url in (f"/-/view/{link}/{path}", f"/{link}/{path.removesuffix('last')}"):
        answer = page(client, url)
        assert answer.text.count('aria-hidden="true">/<') <= PARENTS_LIMIT + 2
        assert len(answer.content) < 4 << 20


def test_long_names_and_types_are_shown_in_part(client: Client) -> None:
    """B4: links have all of a name; no page is larger than some megabytes."""
    names = [f"{number:03}" + "n" * 30_000 for number in range(100)]
    kind = "text/" + "k" * 30_000
    parts = [(PartHeader("files[]", name, kind), b"text") for name in names]
    link = skylink_of(client.post_form(parts, {"filename": "f" * 10_000}))
    first = page(client, f"/{link}/")
    assert len(first.content) < 2 << 20
    assert (
        f'href="/-/view/{link}/{names[0]}"><bdi>{names[0][: NAME_LIMIT - 1]}…</bdi>' in first.text
    )
    assert "f" * NAME_LIMIT not in first.text
    assert "k" * NAME_LIMIT not in first.text
    preview = page(client, f"/-/view/{link}/{names[1]}").text
    assert f"<h1><bdi>{names[1][: NAME_LIMIT - 1]}…</bdi></h1>" in preview
    assert len(preview) < 1 << 20


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n", "<img src="),
        ("a.mp3", b"x", "<audio controls"),
        ("a.mp4", b"x", "<video controls"),
        ("a.html", b"<script>x</script>", "&lt;script&gt;"),
        ("a", b"sniffed text", "sniffed text"),
        ("a.bin", b"\x00\x01", "no preview"),
        ("a.pdf", b"%PDF-1.4", "<iframe src="),
        ("a.txt", b"", "<pre"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_previews(client: Client, name: str, content: bytes, shown: str) -> None:
    """B4: by the type that a download has; of a single file too."""
    link = client.upload_file(name, content)
    text = page(client, f"/-/view/{link}").text
    assert shown in text
    assert f"/file/{link}" in text


def test_a_long_text_is_shown_in_part(client: Client) -> None:
    """B4: its first 256 KiB, in any encoding."""
    link = client.upload({"long.txt": b"\xff" + b"0123456789" * 40_000, "b": b"\xe4"})
    text = page(client, f"/-/view/{link}/long.txt").text
    assert 262_143 // 10 <= text.count("0123456789") <= 262_144 // 10
    assert "its beginning" in text
    assert f'href="/-/view/{link}/b"' in text  # the file before it


def test_a_site_opens_at_its_own_host(client: Client, portal: PortalProcess) -> None:
    """B5: with the same path and query; others get it where they ask."""
    link = client.upload({"index.html": b"<p>home", "docs/index.html": b"<p>docs", "a.js": b"1"})
    host = own_host(portal, link)
    for path, target in (
        ("", "/"),
        ("/", "/"),
        ("/docs/?a=b", "/docs/?a=b"),
        ("/index.html", "/index.html"),
    ):
        answer = client.get(f"/{link}{path}", headers=_HTML)
        assert answer.status_code == 307
        assert answer.headers["location"] == f"//{host}{target}"
    assert elsewhere(client, f"//{host}/").content == b"<p>home"
    assert "content-security-policy" not in elsewhere(client, f"//{host}/").headers
    slash = client.get(f"/{link}/docs", headers=_HTML).headers["location"]
    assert elsewhere(client, slash).headers["location"] == "docs/"
    assert client.get(f"/{link}/").content == b"<p>home"
    assert "Open the site" in page(client, f"/-/view/{link}").text


def test_a_version_2_link_keeps_its_name(client: Client, portal: PortalProcess) -> None:
    """B5: at its own host it is still followed."""
    site = client.upload({"index.html": b"<p>v2"})
    put(client, signed("site-of-v2", bytes(Skylink(site))))
    link = str(link_of("site-of-v2"))
    target = client.get(f"/{link}/", headers=_HTML).headers["location"]
    assert target == f"//{own_host(portal, link)}/"
    assert elsewhere(client, target).content == b"<p>v2"


def test_a_name_opens_at_its_own_host(tmp_path: Path) -> None:
    """B5: `<domain>.hns`; its listings are at the portal."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        port = urlsplit(portal.url).port
        site = client.upload({"index.html": b"<p>named", "files/a.txt": b"a", "files/b": b"b"})
        (tmp_path / "hns.zone").write_text(f"blog.example svc://{site}\n")
        target = client.get("/hns/Blog.example/", headers=_HTML).headers["location"]
        assert target == f"//blog.example.hns.localhost:{port}/"
        assert elsewhere(client, target).content == b"<p>named"
        listing = page(client, "/hns/blog.example/files/").text
        assert 'href="/hns/blog.example/"' in listing
        back = elsewhere(client, f"//blog.example.hns.localhost:{port}/files/")
        assert back.headers["location"] == f"//localhost:{port}/hns/blog.example/files/"


@pytest.mark.parametrize("contenttype", ["", "text/plain;a=b, text/html", "nonsense"])
def test_what_could_run_opens_at_its_own_host(
    client: Client, portal: PortalProcess, contenttype: str
) -> None:
    """B5: also as one of several files, and joined by `format`."""
    link = client.upload_file("a.html", b"<p>", contenttype)
    for query in ("", "?format=concat"):
        answer = client.get(f"/{link}{query}", headers=_HTML)
        assert answer.headers["location"] == f"//{own_host(portal, link)}/{query}"


@pytest.mark.parametrize(("name", "contenttype"), [("a.png", ""), ("a", "text/plain; charset=x")])
def test_what_cannot_run_stays_and_is_sandboxed(
    client: Client, name: str, contenttype: str
) -> None:
    """B6: browsers are told to sandbox it; others get no header more."""
    link = client.upload_file(name, b"\x00", contenttype)
    answer = client.get(f"/{link}", headers=_HTML)
    assert answer.status_code == 200
    assert is_sandboxed(answer)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" not in client.get(f"/{link}").headers
    assert client.get(f"/{link}", headers={**_HTML, "Range": "bytes=0-0"}).status_code == 206


def test_several_parts_are_sandboxed(client: Client) -> None:
    """B6: whatever is in them, as a browser could take their type for one that runs."""
    link = client.upload_file("a.txt", b"0123456789")
    answer = client.get(f"/{link}", headers={"Range": "bytes=0-1,4-5"})
    assert answer.headers["content-type"].startswith("multipart/byteranges;")
    assert is_sandboxed(answer)


def test_a_configured_name_is_for_content(tmp_path: Path) -> None:
    """B5: below it each skylink has its host; a browser on this machine uses localhost.

    B6: content of a portal whose own origin is allowed is neither moved nor sandboxed.
    """
    options = ["--allow-host", "portal.example", "--content-host", "content.example"]
    with portal_client(tmp_path, *options, "--allow-origin", "http://localhost:1") as client:
        link = client.upload_file("a.html", b"<p>")
        label = Skylink(link).base32
        for host, target in (
            ("portal.example", f"//{label}.content.example/"),
            ("portal.example:81", f"//{label}.content.example:81/"),
            ("[::1]:81", f"//{label}.localhost:81/"),
        ):
            answer = client.get(f"/{link}", headers={**_HTML, "Host": host})
            assert answer.headers["location"] == target
            assert elsewhere(client, target).content == b"<p>"
        trusted = client.get(f"/{link}", headers={**_HTML, "Host": "localhost:1"})
        assert trusted.content == b"<p>"
        assert "content-security-policy" not in trusted.headers


def test_without_a_host_for_content_it_is_sandboxed(tmp_path: Path) -> None:
    """B6: pages in a sandbox; a PDF, which browsers show in none, is saved."""
    with (
        portal_client(tmp_path, "--allow-host", "portal.example") as client,
    ):
        head = {**_HTML, "Host": "portal.example"}
        link = client.upload({"index.html": b"<p>", "a.pdf": b"%PDF-", "d/index.html": b"<p>d"})
        for path in ("/", "/index.html", "/d/"):
            answer = client.get(f"/{link}{path}", headers=head)
            assert answer.status_code == 200
            assert is_sandboxed(answer)
        pdf = client.get(f"/{link}/a.pdf", headers=head)
        assert pdf.headers["content-disposition"].startswith("attachment")
        assert "<iframe" not in client.get(f"/-/view/{link}/a.pdf", headers=head).text


def test_error_pages_of_a_site_are_its_own(client: Client, portal: PortalProcess) -> None:
    """B10: shown at the site's host; a site without one gets a page of the portal."""
    pages = {"errorpages": '{"404": "/lost.html"}', "tryfiles": '["index.html"]'}
    link = client.upload({"index.html": b"<p>", "lost.html": b"<p>lost"}, **pages)
    target = client.get(f"/{link}/nothing", headers=_HTML).headers["location"]
    lost = elsewhere(client, target)
    assert (lost.status_code, lost.content) == (404, b"<p>lost")
    plain = client.upload({"index.html": b"<p>", "a": b""})
    missing = elsewhere(client, f"//{own_host(portal, plain)}/nothing")
    assert missing.status_code == 404
    assert_page(missing)
    port = urlsplit(portal.url).port
    assert f'href="//localhost:{port}/-/assets/style.css' in missing.text


def test_error_pages_never_have_the_origin_of_the_portal(
    client: Client, portal: PortalProcess
) -> None:
    """B6: an error page instead of an archive is a page, not an archive."""
    link = client.upload({"e.html": b"<script>", "b": b""}, errorpages='{"404": "/e.html"}')
    (portal.data / "hns.zone").write_text(f"lost.example svc://{link}\n")
    for where in (f"/{link}", f"/file/{link}", f"/svc/skylink/{link}", "/hns/lost.example"):
        for wanted in ("zip", "concat", ""):
            url, query = f"{where}/nothing", {"format": wanted}
            answer = client.get(url, params=query, headers=_HTML)
            assert answer.status_code == 307 or is_sandboxed(answer), answer.headers


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Dest": "object"}, {"User-Agent": "curl/8.5.0"}])
def test_a_document_is_sandboxed_whoever_asks(
    client: Client, portal: PortalProcess, headers: dict[str, str]
) -> None:
    """B6: under the portal's own host, also if a cache gives the answer to somebody else."""
    link = client.upload({"a.html": b"<script>", "a.png": b"\x89PNG\r\n\x1a\n", "b": b""})
    plain = client.get(f"/{link}/a.html")
    assert is_sandboxed(plain)
    for prefix in ("/", "/file/", "/svc/skylink/"):
        answer = client.get(f"{prefix}{link}/a.html", headers={"Accept": "*/*", **headers})
        assert is_sandboxed(answer)
        assert answer.headers["vary"] == plain.headers["vary"]
        assert answer.content == plain.content
    changed = {"If-None-Match": plain.headers["etag"], **headers}
    assert is_sandboxed(client.get(f"/{link}/a.html", headers=changed))
    picture = client.get(f"/{link}/a.png", headers=headers)
    assert not is_sandboxed(picture)
    own = client.get("/a.html", headers={**headers, "Host": own_host(portal, link)})
    assert (own.content, is_sandboxed(own)) == (plain.content, False)


def test_a_portal_that_requires_an_agent_has_no_pages(tmp_path: Path) -> None:
    """B6, B11: it answers browsers as all others; what could run is sandboxed all the same."""
    with portal_client(tmp_path, "--require-agent") as client:
        client.headers["User-Agent"] = "x Sia-Agent"
        link = client.upload({"a.html": b"<script>", "b": b"b"}, disabledefaultpath="true")
        assert client.get(f"/svc/metadata/{link}").headers["vary"] == "Origin, User-Agent"
        client.headers["User-Agent"] = "Mozilla/5.0"
        assert client.get(f"/{link}", headers=_HTML).headers["content-type"] == "application/zip"
        shown = client.get(f"/{link}/a.html", headers=_HTML)
        assert (shown.status_code, shown.content) == (200, b"<script>")
        assert is_sandboxed(shown)
        missing = client.get(f"/{link}/nothing", headers=_HTML)
        assert missing.status_code == 404
        message_of(missing)
        for path in ("/-/registry", f"/-/view/{link}"):
            assert message_of(client.get(path, headers=_HTML)).startswith("Browser access")
            agent = client.get(path, headers=_HTML | {"User-Agent": "Sia-Agent"})
            assert agent.status_code == 404
        # what asks whether it runs names no agent
        assert client.get("/", headers=_HTML).text.startswith("A skymount portal.")


def test_views_are_for_browsers(client: Client) -> None:
    """B11: others get the 404 that they always got; so does a path that is not there."""
    link = client.upload({"a": b"1", "b": b"2"})
    single = client.upload_file("f", b"x")
    assert client.get(f"/-/view/{link}").status_code == 404
    for path in (f"{link}/c", f"{link}/a/b", f"{single}/x", "A" * 46, "nonsense"):
        answer = client.get(f"/-/view/{path}", headers=_HTML)
        assert answer.status_code in (400, 404)
        assert_page(answer)
    assert page(client, f"/-/view/{link}/a?format=zip&start=0&end=0").status_code == 200
