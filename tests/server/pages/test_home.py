"""The first page, and uploads by it."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from skymount.server.pages.home import ROWS
from skymount.server.pages.rendering import NAME_LIMIT
from skymount.wire.http.multipart import PartHeader
from tests.mount.namespaces import new_namespace, skip_without_root
from tests.portal_process import PortalProcess, portal_command, portal_environment, portal_process
from tests.server.http_client import FORM_TYPE, Client, form, message_of, portal_client
from tests.server.pages.page_client import ACCEPT, assert_page, listed_names, page, token_of

_HTML = {"Accept": ACCEPT}
_PASSWORD = "open sesame"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Client]:
    """A client of a portal that nobody else uses."""
    with portal_client(tmp_path) as client:
        yield client


def test_only_those_who_accept_html_get_a_page(client: Client) -> None:
    """B11: the same URL is a line of text for others, and says what it depends on."""
    java = {"Accept": "text/html, */*; q=.2", "User-Agent": "Java/17.0.12"}
    told = "Accept, Sec-Fetch-Mode"
    for headers, vary in (({"Accept": "*/*"}, told), (java, f"{told}, User-Agent")):
        answer = client.get("/", headers=headers)
        assert answer.status_code == 200
        assert answer.text.startswith("A skymount portal.")
        assert answer.headers["vary"] == vary
    assert page(client, "/").headers["vary"] == f"{told}, User-Agent"
    head = client.head("/", headers=_HTML)
    assert (head.status_code, head.content) == (200, b"")


def test_the_list_is_newest_first_in_pages_and_searched(alone: Client) -> None:
    """B2: by name in any case, or by skylink; what LIKE takes for a wildcard is none here."""
    links = [alone.upload_file(f"File {number}_%.txt", b"x") for number in range(ROWS + 3)]
    expected = [f"File {number}_%.txt" for number in reversed(range(ROWS + 3))]
    for query, names in (
        ("", expected[:ROWS]),
        ("?page=2", expected[ROWS:]),
        ("?page=99", []),
        ("?page=-1", expected[:ROWS]),
        ("?q=fILE+7_", ["File 7_%.txt"]),
        ("?q=_%25", expected[:ROWS]),
        ("?q=e_%25", []),
        (f"?q={links[5]}", ["File 5_%.txt"]),
    ):
        assert listed_names(page(alone, f"/{query}")) == names


def test_the_list_says_what_is_stored(alone: Client) -> None:
    """B2: of a directory the number of its files, of long names the beginning, and none of what is
    encrypted; what is uploaded twice comes first again.
    """
    long = "long" + "n" * 50_000
    alone.post("/svc/createskykey", params={"name": "key", "type": "public-id"})
    alone.upload_file("secret-name", b"x", skykeyname="key")
    tree = {"a": b"x" * 1500, "b/c": b"y" * 500}
    alone.upload(tree, filename="two")
    link = alone.upload_file(long, b"1")
    shown = page(alone, "/")
    for said in ("2 files", "2.0 KB", "1 byte"):
        assert said in shown.text
    alone.upload(tree, filename="two")
    names = ["two", long[: NAME_LIMIT - 1] + "…", "Encrypted"]
    assert listed_names(page(alone, "/")) == names
    found = page(alone, f"/?q=longnn&stored={link}")
    assert listed_names(found) == names[1:2]
    assert len(found.content) < 50_000


def test_stored_is_said_only_of_what_is_stored(client: Client) -> None:
    """B2: whatever the URL says."""

    def said(link: str) -> str:
        return page(client, f"/?stored={link}").text.partition("<main")[2].partition("Upload")[0]

    link = client.upload({"a": b"1", "b": b"2"}, filename="my things")
    for text in ("Stored", "my things", f"skymount download {link}"):
        assert text in said(link)
    for wrong in ("AABsdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg", "<script>alert(1)</script>"):
        assert "Stored" not in said(wrong)
        assert "Not here" in said(wrong)
        assert "<script>" not in said(wrong)


def test_the_first_page_is_small_and_loads_nothing_from_elsewhere(client: Client) -> None:
    """B7: less than 60 KB with all that it loads, which is below one path."""
    answer = page(client, "/")
    size = len(answer.content)
    urls = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    loaded = {url for url in urls if url.startswith("/-/assets/")}
    assert len(loaded) >= 3
    assert not [url for url in urls if not url.startswith(("/", "#"))]
    assert size + sum(len(client.get(url).content) for url in loaded) < 60_000


def test_other_pages_cannot_read_it(client: Client, portal: PortalProcess) -> None:
    """B7: content at a host of its own may read content, but not this."""
    link = client.upload_file("page.html", b"<p>")
    own = client.get(f"/{link}", headers=_HTML).headers["location"].split("/")[2]
    headers = {"Host": f"localhost:{urlsplit(portal.url).port}", "Origin": f"http://{own}"}
    for path in ("/", "/-/registry", "/-/assets/style.css"):
        answer = client.get(path, headers=headers | _HTML | {"Sec-Fetch-Site": "cross-site"})
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        asked = client.options(path, headers=headers | {"Access-Control-Request-Method": "GET"})
        assert asked.status_code == 403


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    secret = {"SKYMOUNT_PORTAL_PASSWORD": _PASSWORD}
    with portal_process(tmp_path_factory.mktemp("guarded"), environment=secret) as running:
        yield running


@pytest.fixture
def visitor(guarded: PortalProcess) -> Iterator[Client]:
    """A browser that has not signed in."""
    with Client(base_url=guarded.url) as client:
        yield client


def sign_in(client: Client, password: str = _PASSWORD, **headers: str) -> httpx.Response:
    form = {"token": token_of(page(client, "/")), "password": password}
    return client.post("/-/sign-in", data=form, headers=_HTML | headers)


def session_of(answer: httpx.Response) -> tuple[str, str]:
    """Return the cookie that an answer sets: its name and value."""
    name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    return name, value


def is_signed_in(url: str, cookie: str) -> bool:
    """Whether somebody else with that cookie is."""
    head = [(b"Accept", ACCEPT.encode()), (b"Cookie", cookie.encode("latin-1"))]
    return "Sign out" in httpx.get(url, headers=head).text


def test_a_password_is_asked_for(visitor: Client) -> None:
    """B9: by the lists and for an upload; content and listings are open."""
    file = {"files[]": ("secret list", b"x")}
    auth = ("", _PASSWORD)
    link = visitor.post("/svc/skyfile", files={"file": ("f", b"x")}, auth=auth).json()["skylink"]
    for url in ("/", "/-/registry", f"/?stored={link}"):
        shown = page(visitor, url).text
        assert "Password" in shown
        assert link not in shown.partition("<main")[2].replace(url, "")
    refused = visitor.post("/-/upload", files=file, headers=_HTML)
    assert refused.status_code == 401
    assert_page(refused)
    assert link in page(visitor, f"/-/view/{link}").text

    wrong = sign_in(visitor, "guess")
    assert wrong.status_code == 403
    assert "not the password" in wrong.text
    forged = visitor.post("/-/sign-in", data={"token": "0", "password": _PASSWORD})
    assert not {"set-cookie"} & {*wrong.headers, *forged.headers}

    done = sign_in(visitor)
    assert (done.status_code, done.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=Strict"} <= set(done.headers["set-cookie"].split("; "))
    answer = page(visitor, "/")
    assert link in answer.text
    assert page(visitor, "/-/registry").text.count("Sign out") == 1
    token = {"token": token_of(answer)}
    assert visitor.post("/-/upload", data=token, files=file, headers=_HTML).status_code == 303
    assert visitor.post("/svc/skyfile", files={"file": ("f", b"x")}).status_code == 401

    assert visitor.post("/-/sign-out", data={"token": "0"}).status_code == 403
    out = visitor.post("/-/sign-out", data=token)
    assert out.status_code == 303
    assert out.headers["clear-site-data"] == '"cache"'
    assert "Password" in page(visitor, "/").text


def test_which_cookies_are_a_session(visitor: Client, guarded: PortalProcess) -> None:
    """B9: one cannot be made up; cookies of other programs of the host do not hide it."""
    name, value = session_of(sign_in(visitor))
    ends, dot, rest = value.partition(".")
    later = str(int(ends) + 1) + dot + rest
    for made_up in (later, value[:-1], "", ".", "1.2.3", "9" * 5000, "x." + value):
        assert not is_signed_in(guarded.url, f"{name}={made_up}")
    for cookies in (
        "{0}={1}",
        'odd; a="; {0}={1}',
        "a={{b}};b[]=é,\\;{0}={1};",
        "{0}=stale; {0}={1}; {0}=",
        "x{0}={1}x;{0} = {1}",
        "a=" + "b" * 20_000 + "; {0}={1}",
    ):
        assert is_signed_in(guarded.url, cookies.format(name, value)), cookies


def test_a_copy_of_the_cookie_ends_with_the_session(
    visitor: Client, guarded: PortalProcess
) -> None:
    """B9: of the one that signs out, and no other. Behind a proxy with TLS the cookie is secure:
    the Origin says so.
    """
    netloc = urlsplit(guarded.url).netloc
    with Client(base_url=guarded.url) as client:
        secure = sign_in(client, Origin=f"https://{netloc}")
    answer = sign_in(visitor, Origin=f"http://{netloc}")
    for signed, is_secure in ((secure, True), (answer, False)):
        assert ("; Secure" in signed.headers["set-cookie"]) is is_secure
        assert is_signed_in(guarded.url, "=".join(session_of(signed)))
    visitor.post("/-/sign-out", data={"token": token_of(page(visitor, "/"))})
    assert not is_signed_in(guarded.url, "=".join(session_of(answer)))
    assert is_signed_in(guarded.url, "=".join(session_of(secure)))


Files = list[tuple[str, bytes]]


def send(client: Client, files: Files, token: str | None = None, **headers: str) -> httpx.Response:
    """Send the form of the first page."""
    token = token_of(page(client, "/")) if token is None else token
    parts = [(PartHeader("token", ""), token.encode())]
    parts += [(PartHeader("files[]", name), content) for name, content in files]
    head = {"Accept": ACCEPT, "Content-Type": FORM_TYPE, **headers}
    return client.post("/-/upload", content=form(*parts), headers=head)


def stored(client: Client, files: Files) -> str:
    """Upload; return the skylink."""
    answer = send(client, files)
    assert answer.status_code == 303, answer.text
    path, equals, link = answer.headers["location"].partition("=")
    assert (path, equals) == ("/?stored", "=")
    return link


def test_one_file_is_what_the_command_line_makes_of_it(client: Client) -> None:
    """B1: no directory; an input in which nothing was chosen is nothing."""
    link = stored(client, [("", b""), ("notes.txt", b"text"), ("", b"")])
    assert link == client.upload_file("notes.txt", b"text")
    assert client.get(f"/{link}").content == b"text"


@pytest.mark.parametrize(
    ("sent", "name", "files"),
    [
        (["site/index.html", "site/a/b.txt"], "site", ["a/b.txt", "index.html"]),
        (["folder/only.txt"], "folder", ["only.txt"]),
        (["a", "b"], "files", ["a", "b"]),
        (["x/a", "y/a", "c"], "files", ["c", "x/a", "y/a"]),
    ],
    ids=["folder", "folder of one file", "files", "folders"],
)
def test_folders_and_files(client: Client, sent: list[str], name: str, files: list[str]) -> None:
    """B1: a folder is a directory of its name, several things are one directory."""
    link = stored(client, [(path, path.encode()) for path in sent])
    found = client.get(f"/svc/metadata/{link}").json()
    assert (found["filename"], sorted(found["subfiles"])) == (name, files)
    if "index.html" in files:
        assert client.get(f"/{link}/").content == b"site/index.html"


def test_scripts_send_the_token_in_a_header(client: Client) -> None:
    """B8: and get JSON, errors as well."""
    head = {"Accept": "application/json", "Skymount-Token": token_of(page(client, "/"))}
    answer = client.post("/-/upload", files={"files[]": ("f", b"x")}, headers=head)
    assert answer.status_code == 200
    link = answer.json()["skylink"]
    assert answer.json()["page"] == f"/?stored={link}"
    assert client.get(f"/{link}").content == b"x"
    head["Skymount-Token"] = "0" * 64
    refused = client.post("/-/upload", files={"files[]": ("f", b"x")}, headers=head)
    assert refused.status_code == 403
    message_of(refused)


@pytest.mark.parametrize("token", ["", "0" * 64, "é"])
def test_without_the_token_nothing_is_stored(client: Client, token: str) -> None:
    """B8: the form of another page is refused, before its files are taken."""
    before = client.get("/svc/stats").json()["numfiles"]
    refused = send(client, [("f", token.encode() + b"forged")], token)
    assert refused.status_code == 403
    assert_page(refused)
    late = form(
        (PartHeader("files[]", "f"), b"late"),
        (PartHeader("token", ""), token_of(page(client, "/")).encode()),
    )
    head = {"Accept": ACCEPT, "Content-Type": FORM_TYPE}
    assert client.post("/-/upload", content=late, headers=head).status_code == 403
    assert client.get("/svc/stats").json()["numfiles"] == before


def test_only_the_page_itself_may(client: Client, portal: PortalProcess) -> None:
    """B8: also through a proxy that speaks TLS, where the origin has another scheme. Others are
    refused with the right token too.
    """
    authority = urlsplit(portal.url).netloc
    for headers, status in (
        ({"Origin": f"http://{authority}", "Sec-Fetch-Site": "same-origin"}, 303),
        ({"Origin": f"https://{authority}", "Sec-Fetch-Site": "same-origin"}, 303),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ):
        assert send(client, [("f", b"own")], **headers).status_code == status, headers


@pytest.mark.parametrize(
    ("content_type", "body", "said"),
    [
        ("", b"body", "has to be multipart/form-data"),
        ("application/x-www-form-urlencoded", b"body", "has to be multipart/form-data"),
        ("multipart/mixed", b"body", "has to be multipart/form-data"),
        (FORM_TYPE, b"--", "failed to upload"),
        (FORM_TYPE, form((PartHeader("files[]", ""), b"")), "no file was chosen"),
        (FORM_TYPE, form((PartHeader("token", ""), b"a" * 100_000)), "too long"),
    ],
    ids=range(6),
)
def test_what_is_wrong_is_said_on_a_page(
    client: Client, content_type: str, body: bytes, said: str
) -> None:
    """B8, B10: what is no form could carry no token; one that is cut off, has no file, has an
    endless token.
    """
    head = {"Skymount-Token": token_of(page(client, "/")), "Content-Type": content_type}
    answer = client.post("/-/upload", content=body, headers=_HTML | head)
    assert answer.status_code == 400
    assert_page(answer)
    assert said in answer.text


def test_a_full_disk_is_507_and_nothing_is_kept(tmp_path: Path) -> None:
    """B10: in the middle of an upload, for browsers and all others; the portal goes on."""
    skip_without_root()
    with new_namespace(network=False) as space:
        space.do("mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "none", tmp_path)
        command = portal_command("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"))
        process = space.start(*command, env=portal_environment())
        assert process.stdout is not None
        url = process.stdout.readline().decode().split()[-1]
        with Client(base_url=url, timeout=60) as client:
            small = stored(client, [("small", b"small")])
            full = send(client, [("big", bytes(20 << 20))])
            assert full.status_code == 507
            assert_page(full)
            assert "The disk is full" in full.text
            raw = client.post("/svc/skyfile", files={"file": ("big", bytes(20 << 20))})
            assert raw.status_code == 507
            assert "No space left on device" in message_of(raw)
            assert space.do("find", tmp_path / "d/v1/incoming", "-mindepth", "1") == ""
            assert client.get(f"/{small}").content == b"small"
            stored(client, [("fits", bytes(5 << 20))])
            space.do("sh", "-c", f"head -c 20M /dev/zero > {tmp_path}/filling 2>&1 || true")
            contents = (b"%d" % number * 5000 for number in range(1000, 2000))
            answers = (client.post("/svc/skyfile", files={"file": ("s", c)}) for c in contents)
            refused = next(answer for answer in answers if answer.status_code != 200)
            assert refused.status_code == 507
            assert "kept free" in message_of(refused)
            space.do("rm", tmp_path / "filling")
            stored(client, [("small", b"other")])
