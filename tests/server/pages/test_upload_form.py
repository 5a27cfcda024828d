"""Uploads of pages: the form as a browser sends it, and its token."""

from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from skymount.server.config import PortalConfig
from skymount.server.http_error import HttpError
from skymount.server.pages.home import PageParts
from skymount.wire.http.multipart import PartHeader
from tests.mount.namespaces import new_namespace, skip_without_root
from tests.portal_process import PortalProcess, portal_command, portal_environment
from tests.server.http_client import FORM_TYPE, Client, form, message_of
from tests.server.pages.page_client import ACCEPT, assert_page, page, token_of

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
