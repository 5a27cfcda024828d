"""The first page, and uploads by it."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from skymount.server.config import PortalConfig
from skymount.server.http_error import HttpError
from skymount.server.pages.home import ROWS, PageParts
from skymount.server.pages.rendering import NAME_LIMIT
from skymount.wire.http.multipart import PartHeader
from tests.mount.namespaces import new_namespace, skip_without_root
from tests.portal_process import PortalProcess, portal_command, portal_environment, portal_process
from tests.server.http_client import FORM_TYPE, Client, form, message_of
from tests.server.pages.page_client import ACCEPT, assert_page, listed_names, page, token_of

_PASSWORD = "open sesame"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Client]:
    """A client of a portal that nobody else uses."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        yield client


def test_only_those_who_accept_html_get_a_page(client: Client) -> None:
    """B11: the same URL is a line of text for others, and says what it depends on."""
    for accept in ("*/*", "application/json", "text/*", "text/html;q=0", "text/htmlx"):
        answer = client.get("/", headers={"Accept": accept})
        assert answer.status_code == 200
        assert answer.text.startswith("A skymount portal.")
        assert answer.headers["vary"] == "Accept, Sec-Fetch-Mode"
    assert page(client, "/").headers["vary"] == "Accept, Sec-Fetch-Mode, User-Agent"
    java = "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"
    answer = client.get("/", headers={"Accept": java, "User-Agent": "Java/17.0.12"})
    assert answer.text.startswith("A skymount portal.")
    assert answer.headers["vary"] == "Accept, Sec-Fetch-Mode, User-Agent"
    head = client.head("/", headers={"Accept": ACCEPT})
    assert head.status_code == 200
    assert head.content == b""


def test_the_list_is_newest_first_in_pages_and_searched(alone: Client) -> None:
    """B2: by name in any case, or by skylink; what LIKE takes for a wildcard is none here."""
    links = [alone.upload_file(f"File {number}_%.txt", b"x") for number in range(ROWS + 3)]
    expected = [f"File {number}_%.txt" for number in reversed(range(ROWS + 3))]
    assert listed_names(page(alone, "/")) == expected[:ROWS]
    assert listed_names(page(alone, "/?page=2")) == expected[ROWS:]
    assert listed_names(page(alone, "/?q=fILE+7_")) == ["File 7_%.txt"]
    assert listed_names(page(alone, "/?q=_%25")) == expected[:ROWS]
    assert listed_names(page(alone, "/?q=e_%25")) == []
    assert listed_names(page(alone, f"/?q={links[5]}")) == ["File 5_%.txt"]
    assert listed_names(page(alone, "/?page=99")) == []
    assert listed_names(page(alone, "/?page=-1")) == expected[:ROWS]


def test_the_list_says_size_and_number_of_files(alone: Client) -> None:
    """B2: of a directory the number of its files; what is uploaded twice comes first again."""
    alone.upload({"a": b"x" * 1500, "b/c": b"y" * 500}, filename="two")
    alone.upload_file("one", b"1")
    text = page(alone, "/").text
    assert "2 files" in text
    assert "2.0 KB" in text
    assert "1 byte" in text
    alone.upload({"a": b"x" * 1500, "b/c": b"y" * 500}, filename="two")
    assert listed_names(page(alone, "/")) == ["two", "one"]


def test_of_long_names_the_beginning_is_shown(alone: Client) -> None:
    """B2: it can be searched by more of it."""
    name = "long" + "n" * 50_000
    links = [alone.upload_file(name + str(number), b"") for number in range(20)]
    shown = page(alone, f"/?q=longnn&stored={links[0]}")
    assert listed_names(shown) == [name[: NAME_LIMIT - 1] + "…"] * len(links)
    assert len(shown.content) < 100_000
    assert links[0] in shown.text


def test_names_of_encrypted_content_are_not_listed(alone: Client) -> None:
    """B2: nor are they in the index on disk."""
    alone.post("/svc/createskykey", params={"name": "key", "type": "public-id"})
    alone.upload_file("secret-name", b"x", skykeyname="key")
    assert listed_names(page(alone, "/")) == ["Encrypted"]


def test_stored_is_said_only_of_what_is_stored(client: Client) -> None:
    """B2: whatever the URL says."""
    link = client.upload({"a": b"1", "b": b"2"}, filename="my things")
    said = page(client, f"/?stored={link}").text
    assert "Stored" in said.partition("<main")[2].partition("Upload")[0]
    assert "my things" in said
    assert f"skymount download {link}" in said
    for wrong in ("AABsdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg", "<script>alert(1)</script>"):
        said = page(client, "/?stored=" + wrong).text.partition("<main")[2].partition("Upload")[0]
        assert "Stored" not in said
        assert "Not here" in said
        assert "<script>" not in said


def test_the_first_page_is_small_and_loads_nothing_from_elsewhere(client: Client) -> None:
    """B7: less than 60 KB with all that it loads, which is below one path."""
    answer = page(client, "/")
    size = len(answer.content)
    urls = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    loaded = {url for url in urls if url.startswith("/-/assets/")}
    assert len(loaded) >= 3
    assert not [url for url in urls if not url.startswith(("/", "#"))]
    for url in loaded:
        size += len(client.get(url).content)
    assert size < 60_000


def test_other_pages_cannot_read_it(client: Client, portal: PortalProcess) -> None:
    """B7: content at a host of its own may read content, but not this."""
    link = client.upload_file("page.html", b"<p>")
    skylink = client.get(f"/{link}", headers={"Accept": ACCEPT}).headers["location"]
    host = skylink.removeprefix("//").partition("/")[0]
    port = portal.url.rpartition(":")[2]
    for path in ("/", "/-/registry", "/-/assets/style.css"):
        answer = client.get(
            path,
            headers={
                "Accept": ACCEPT,
                "Host": f"localhost:{port}",
                "Origin": f"http://{host}",
                "Sec-Fetch-Site": "cross-site",
            },
        )
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        asked = client.options(
            path,
            headers={
                "Host": f"localhost:{port}",
                "Origin": f"http://{host}",
                "Access-Control-Request-Method": "GET",
            },
        )
        assert asked.status_code == 403


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    path = tmp_path_factory.mktemp("guarded")
    file = path / "password"
    file.write_text(_PASSWORD)
    file.chmod(0o600)
    with portal_process(path / "data", "--password-file", str(file)) as running:
        yield running


def sign_in(client: Client, password: str = _PASSWORD) -> httpx.Response:
    form = {"token": token_of(page(client, "/")), "password": password}
    return client.post("/-/sign-in", data=form, headers={"Accept": ACCEPT})


def test_a_password_is_asked_for(guarded: PortalProcess) -> None:
    """B9: by the lists and for an upload; content and listings are open."""
    with Client(base_url=guarded.url) as client:
        auth = ("", _PASSWORD)
        form = {"files": ("secret list", b"x")}
        link = client.post("/svc/skyfile", files={"file": ("f", b"x")}, auth=auth).json()["skylink"]
        for url in ("/", "/-/registry", f"/?stored={link}"):
            assert "Password" in page(client, url).text
            assert link not in page(client, url).text.partition("<main")[2].replace(url, "")
        refused = client.post("/-/upload", files=form, headers={"Accept": ACCEPT})
        assert refused.status_code == 401
        assert_page(refused)
        assert link in page(client, f"/-/view/{link}").text

        wrong = sign_in(client, "guess")
        assert wrong.status_code == 403
        assert "not the password" in wrong.text
        assert "set-cookie" not in wrong.headers

        done = sign_in(client)
        assert (done.status_code, done.headers["location"]) == (303, "/")
        cookie = done.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        answer = page(client, "/")
        assert link in answer.text
        assert page(client, "/-/registry").text.count("Sign out") == 1
        stored = client.post(
            "/-/upload",
            data={"token": token_of(answer)},
            files={"files[]": ("a", b"a")},
            headers={"Accept": ACCEPT},
        )
        assert stored.status_code == 303
        assert client.post("/svc/skyfile", files={"file": ("f", b"x")}).status_code == 401

        out = client.post("/-/sign-out", data={"token": token_of(answer)})
        assert out.status_code == 303
        assert out.headers["clear-site-data"] == '"cache"'
        assert "Password" in page(client, "/").text


def test_a_session_cannot_be_made_up(guarded: PortalProcess) -> None:
    """B9: nor is one valid with other numbers in it."""
    with Client(base_url=guarded.url) as client:
        name, _, value = sign_in(client).headers["set-cookie"].partition(";")[0].partition("=")
    later = str(int(value.partition(".")[0]) + 1) + "." + value.partition(".")[2]
    for made_up in (later, value[:-1], "", ".", "1.2.3", "9" * 5000, "x." + value):
        with Client(base_url=guarded.url) as client:
            text = page(client, "/", {"Cookie": f"{name}={made_up}"})
            assert "Sign out" not in text.text
    with Client(base_url=guarded.url) as client:
        assert "Sign out" in page(client, "/", {"Cookie": f"{name}={value}"}).text


def session_of(answer: httpx.Response) -> tuple[str, str]:
    """Return the cookie that an answer sets: its name and value."""
    name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    return name, value


@pytest.mark.parametrize(
    "cookies",
    [
        "odd; {0}={1}",
        'a="; {0}={1}',
        "a={{b}};b[]=é,\\;{0}={1};",
        "{0}=stale; {0}={1}; {0}=",
        "x{0}={1}x;{0} = {1}",
        "a=" + "b" * 20_000 + "; {0}={1}",
    ],
    ids=["no value", "quote", "characters", "duplicates", "blanks", "long"],
)
def test_cookies_of_others_do_not_hide_the_session(guarded: PortalProcess, cookies: str) -> None:
    """B9: other programs of the host set cookies too, of any form."""
    with Client(base_url=guarded.url) as client:
        cookie = cookies.format(*session_of(sign_in(client))).encode("latin-1")
    head = [(b"Accept", ACCEPT.encode()), (b"Cookie", cookie)]
    assert "Sign out" in httpx.get(guarded.url, headers=head).text


def test_a_copy_of_the_cookie_ends_with_the_session(guarded: PortalProcess) -> None:
    """B9: of the one that signs out, and no other."""
    with Client(base_url=guarded.url) as client, Client(base_url=guarded.url) as other:
        name, value = session_of(sign_in(client))
        sign_in(other)
        copy = {"Cookie": f"{name}={value}"}
        client.post("/-/sign-out", data={"token": token_of(page(client, "/"))})
        assert "Sign out" not in page(client, "/", copy).text
        assert "Sign out" in page(other, "/").text


def test_the_cookie_of_a_proxy_with_tls_is_secure(guarded: PortalProcess) -> None:
    """B9: its Origin says so."""
    for scheme, is_secure in (("https", True), ("http", False)):
        with Client(base_url=guarded.url) as client:
            origin = f"{scheme}://{guarded.url.partition('://')[2].rstrip('/')}"
            form = {"token": token_of(page(client, "/")), "password": _PASSWORD}
            answer = client.post("/-/sign-in", data=form, headers={"Origin": origin})
            assert answer.status_code == 303
            assert ("; Secure" in answer.headers["set-cookie"]) is is_secure


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


def described(client: Client, link: str) -> tuple[str, list[str]]:
    """Return the name of a skyfile, and its files."""
    found = client.get(f"/svc/metadata/{link}").json()
    return found["filename"], sorted(found["subfiles"])


def test_one_file_is_what_the_command_line_makes_of_it(client: Client) -> None:
    """B1: no directory; an input in which nothing was chosen is nothing."""
    link = stored(client, [("", b""), ("notes.txt", b"text"), ("", b"")])
    assert link == client.upload_file("notes.txt", b"text")
    assert client.get(f"/{link}").content == b"text"


def test_a_folder_is_a_directory_of_its_name(client: Client) -> None:
    """B1: paths are those below it, also if it holds one file; an index page makes it a site."""
    link = stored(client, [("site/index.html", b"<p>"), ("site/a/b.txt", b"b")])
    assert described(client, link) == ("site", ["a/b.txt", "index.html"])
    assert client.get(f"/{link}/").content == b"<p>"
    alone = stored(client, [("folder/only.txt", b"only")])
    assert described(client, alone) == ("folder", ["only.txt"])


def test_several_files_are_one_directory(client: Client) -> None:
    """B1: and so are several folders, with their names."""
    link = stored(client, [("a", b"1"), ("b", b"2")])
    assert described(client, link) == ("files", ["a", "b"])
    link = stored(client, [("x/a", b"1"), ("y/a", b"2"), ("c", b"3")])
    assert described(client, link) == ("files", ["c", "x/a", "y/a"])


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
    assert client.get("/svc/stats").json()["numfiles"] == before
    late = form(
        (PartHeader("files[]", "f"), b"late"),
        (PartHeader("token", ""), token_of(page(client, "/")).encode()),
    )
    head = {"Accept": ACCEPT, "Content-Type": FORM_TYPE}
    assert client.post("/-/upload", content=late, headers=head).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_other_origins_are_refused_with_the_right_token(
    client: Client, headers: dict[str, str]
) -> None:
    """B8: the token alone is not enough."""
    assert send(client, [("f", b"x")], **headers).status_code == 403


def test_the_page_itself_may(client: Client, portal: PortalProcess) -> None:
    """B8: also through a proxy that speaks TLS, where the origin has another scheme."""
    authority = urlsplit(portal.url).netloc
    for scheme in ("http", "https"):
        own = {"Origin": f"{scheme}://{authority}", "Sec-Fetch-Site": "same-origin"}
        assert send(client, [("f", b"own")], **own).status_code == 303


def test_what_is_wrong_is_said_on_a_page(client: Client) -> None:
    """B10: a form without a file, one that is no form, one that is cut off."""
    empty = send(client, [("", b"")])
    assert empty.status_code == 400
    assert "no file was chosen" in empty.text
    token = token_of(page(client, "/"))
    head = {"Accept": ACCEPT, "Skymount-Token": token}
    for content_type, body in (("text/plain", b"x"), (FORM_TYPE, b"--")):
        answer = client.post(
            "/-/upload", content=body, headers={**head, "Content-Type": content_type}
        )
        assert answer.status_code == 400
        assert_page(answer)


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/mixed"]
)
def test_only_forms_with_files_are_taken(client: Client, content_type: str) -> None:
    """B8: any other body could carry no token."""
    before = client.get("/svc/stats").json()["numfiles"]
    head = {"Accept": ACCEPT, "Content-Type": content_type}
    answer = client.post("/-/upload", content=b"body", headers=head)
    assert answer.status_code == 400
    assert "has to be multipart/form-data" in answer.text
    assert client.get("/svc/stats").json()["numfiles"] == before


def test_a_field_has_a_bound() -> None:
    """What comes before the token is checked as no file, and no field can fill the memory."""
    calls: list[str] = []

    def check(token: str) -> None:
        calls.append(token)
        raise HttpError(403, "no")

    parts = PageParts(PortalConfig(data=Path("/nonexistent")), check)
    field = parts.begin(PartHeader("token", ""), 0)
    assert field == bytearray()
    assert field is not None
    field += b"secret"
    with pytest.raises(HttpError):
        parts.begin(PartHeader("files[]", "f"), 0)
    assert calls == ["secret"]


def test_a_long_field_is_refused(client: Client) -> None:
    """A form whose token is endless ends early."""
    assert send(client, [("f", b"x")], "a" * 100_000).status_code == 400


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
