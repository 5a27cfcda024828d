"""The contract's options, one by one: what each changes in a request or in what comes back."""

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest

from skymount.errors import MalformedError, WrongTypeError
from skymount.portal import DEFAULT_SVC_PORTAL_URL, URI_SVC_PREFIX, PortalClient, parse_skylink
from tests.contract.conftest import API_KEY, FILES, Ready
from tests.contract.recording import LINK, Reply, parts_of, recording


def basic(password: str) -> str:
    """Return what HTTP Basic sends for an empty user name."""
    return "Basic " + base64.b64encode(f":{password}".encode()).decode()


# --- client conventions and constants


async def test_client_default_portal() -> None:
    """C1: No address and an empty one are the default portal, whose address is exported."""
    async with PortalClient() as client, PortalClient("") as other:
        assert client.url == other.url == DEFAULT_SVC_PORTAL_URL


async def test_option_precedence() -> None:
    """C2: An option of a call overrides the client's, for that call."""
    async with recording(Reply(200), custom_user_agent="one") as (requests, client):
        await client.get_file_content(LINK)
        await client.get_file_content(LINK, custom_user_agent="two")
        await client.get_file_content(LINK)
    assert [request.headers["user-agent"] for request in requests] == ["one", "two", "one"]


def test_constants() -> None:
    """The prefix of links is <scheme>://."""
    assert URI_SVC_PREFIX == "svc://"


@pytest.mark.parametrize(
    "text",
    [
        LINK,
        f"svc:{LINK}",
        f"svc://{LINK}",
        f"sia://{LINK}",
        f"https://portal.example/{LINK}",
        f"https://portal.example/{LINK}/",
        f"https://portal.example/below/a/path/{LINK}?attachment=true",
        f"http://localhost:4280/file/{LINK}",
    ],
)
def test_parse_skylink(text: str) -> None:
    """parseSkylink takes every input form."""
    assert parse_skylink(text) == LINK


# --- common options


async def test_api_key() -> None:
    """It is sent as the password of HTTP Basic, with an empty user name; empty: not at all."""
    async with recording(Reply(200), api_key="the key") as (requests, client):
        await client.get_file_content(LINK)
        await client.get_file_content(LINK, api_key="ключ")
        await client.get_file_content(LINK, api_key="")
    found = [request.headers.get("authorization") for request in requests]
    assert found == [basic("the key"), basic("ключ"), None]


async def test_custom_user_agent() -> None:
    """It replaces the User-Agent header; empty: the client's own, with the portal's token."""
    async with recording(Reply(200), custom_user_agent="Sia-Agent") as (requests, client):
        await client.get_file_content(LINK)
        await client.get_file_content(LINK, custom_user_agent="")
    first, second = (request.headers["user-agent"] for request in requests)
    assert first == "Sia-Agent"
    assert "svc-agent" in second


async def test_on_upload_progress(ready: Ready) -> None:
    """It is called with a fraction of 1 and {loaded, total}, and ends at 1."""
    calls: list[tuple[float, Any]] = []
    async with PortalClient(ready.url, api_key=API_KEY) as client:
        await client.upload_file(
            bytes(5 << 20),
            custom_filename="zeros",
            dry_run=True,
            on_upload_progress=lambda *call: calls.append(call),
        )
    assert len(calls) > 1
    assert calls == sorted(calls, key=lambda call: call[0])
    assert all(done == told["loaded"] / told["total"] for done, told in calls)
    assert calls[-1][0] == 1
    assert calls[-1][1]["total"] > 5 << 20


async def test_common_options_of_every_function(ready: Ready, tmp_path: Path) -> None:
    """Each function accepts the common options, those that make URLs too."""
    key = "0" * 64
    common: dict[str, Any] = {
        "api_key": API_KEY,
        "custom_user_agent": "svc-agent",
        "on_upload_progress": None,
    }
    async with PortalClient(ready.url) as client:
        made = await client.create_skykey("of every function", "private-id", **common)
        await client.get_skykey_by_name(made.name, **common)
        await client.get_skykey_by_id(made.id, **common)
        await client.get_skykeys(**common)
        await client.delete_skykey(name=made.name, **common)
        await client.add_skykey(made.text, **common)
        result = await client.upload_file(b"x", custom_filename="x", **common)
        await client.upload_directory(FILES, custom_dirname="x", **common)
        await client.download_file(tmp_path / "x", result.skylink, **common)
        await client.download_file_hns(tmp_path / "y", ready.domain, **common)
        await client.get_file_content(result.skylink, **common)
        await client.get_metadata(result.skylink, **common)
        await client.resolve_hns(ready.domain, **common)
        client.get_skylink_url(result.skylink, **common)
        client.get_hns_url("example", **common)
        client.get_hnsres_url("example", **common)
        client.registry.get_entry_url(key, "key", **common)
        client.registry.get_entry_link(key, "key", **common)
        await client.registry.get_entry(key, "key", **common)
        await client.db.get_json(key, "key", **common)


# --- upload options


async def test_portal_file_field_name() -> None:
    """portalFileFieldName is the field of a single file."""
    async with recording() as (requests, client):
        await client.upload_file(b"", custom_filename="x", portal_file_field_name="own")
    (part,) = parts_of(requests[0])
    assert part.get_param("name", header="content-disposition") == "own"


async def test_portal_directory_file_field_name() -> None:
    """portalDirectoryFileFieldName is the field of a directory's files."""
    async with recording() as (requests, client):
        await client.upload_directory(
            FILES, custom_dirname="x", portal_directory_file_field_name="own[]"
        )
    names = [part.get_param("name", header="content-disposition") for part in parts_of(requests[0])]
    assert names == ["own[]"] * len(FILES)


async def test_custom_filename(ready: Ready, tmp_path: Path) -> None:
    """customFilename is the name under which a browser saves the file; empty: its own name."""
    path = tmp_path / "own.txt"
    path.touch()
    async with PortalClient(ready.url, api_key=API_KEY) as client:
        for given, expected in (("", "own.txt"), ("other.txt", "other.txt")):
            link = await client.upload_file(path, custom_filename=given)
            answer = await client.get_metadata(str(link))
            assert answer.metadata["filename"] == expected


async def test_custom_dirname(ready: Ready, tmp_path: Path) -> None:
    """customDirname is the name of the directory; empty: its base name."""
    (tmp_path / "own dir").mkdir()
    (tmp_path / "own dir" / "file").touch()
    async with PortalClient(ready.url, api_key=API_KEY) as client:
        for given, expected in (("", "own dir"), ("other", "other")):
            link = await client.upload_directory(f"{tmp_path}/own dir/", custom_dirname=given)
            assert (await client.get_metadata(str(link))).metadata["filename"] == expected


@pytest.mark.parametrize("value", [None, "", 20, "20", 0.5])
async def test_upload_timeout_seconds(value: Any) -> None:
    """timeout_seconds is a number or its digits, or empty; anything else raises."""
    async with recording() as (_, client):
        await client.upload_file(b"", custom_filename="x", timeout_seconds=value)
        for wrong in ("soon", 0, -1):
            with pytest.raises(MalformedError):
                await client.upload_file(b"", custom_filename="x", timeout_seconds=wrong)
        with pytest.raises(WrongTypeError):
            await client.upload_file(b"", custom_filename="x", timeout_seconds=[])  # type: ignore[arg-type]


async def test_upload_skykey(ready: Ready) -> None:
    """With skykeyName or skykeyID the portal encrypts: the skylink is another each time."""
    async with PortalClient(ready.url, api_key=API_KEY) as client:
        key = await client.create_skykey("of uploads", "private-id")
        results = [
            await client.upload_file(b"secret", custom_filename="x", **options)
            for options in ({}, {"skykey_name": key.name}, {"skykey_id": key.id})
        ]
        assert len({result.skylink for result in results}) == 3
        for result in results:
            assert (await client.get_file_content(str(result))).data == b"secret"


# --- download options


async def test_path(ready: Ready) -> None:
    """Path is put behind the skylink, its special characters encoded."""
    async with recording(Reply(200)) as (requests, client):
        await client.get_file_content(LINK, path="dir/b c+%?#é")
    assert requests[0].target == f"/{LINK}/dir/b%20c%2B%25%3F%23%C3%A9"
    async with PortalClient(ready.url) as client:
        for name in FILES:
            found = await client.get_metadata(ready.skylink, path=name)
            assert set(found.metadata["subfiles"]) == {name}


async def test_download_timeout_seconds(tmp_path: Path) -> None:
    """timeout_seconds is how long the portal may look; empty: its own default."""
    async with recording(Reply(200)) as (requests, client):
        for value in (None, "", 20, "20"):
            await client.download_file(tmp_path / "x", LINK, timeout_seconds=value)
        with pytest.raises(MalformedError):
            await client.download_file(tmp_path / "x", LINK, timeout_seconds="soon")
    assert [request.query.get("timeout") for request in requests] == [None, None, "20", "20"]


async def test_download_skykey(tmp_path: Path) -> None:
    """skykeyName or skykeyID is sent along; not both."""
    async with recording(Reply(200)) as (requests, client):
        await client.download_file(tmp_path / "x", LINK, skykey_name="a key")
        await client.download_file(tmp_path / "x", LINK, skykey_id="an id")
        with pytest.raises(MalformedError):
            await client.download_file(tmp_path / "x", LINK, skykey_name="a", skykey_id="b")
    first, second = (request.query for request in requests)
    assert first.items() >= {("skykeyname", "a key")}
    assert second.items() >= {("skykeyid", "an id")}


async def test_download() -> None:
    """Download puts the directive that forces a download into a URL."""
    async with PortalClient("https://portal.example") as client:
        for url in (
            client.get_skylink_url(LINK, download=True),
            client.get_hns_url("example", download=True),
            client.get_hnsres_url("example", download=True),
        ):
            assert url.endswith("?attachment=true")
        assert "?" not in client.get_skylink_url(LINK, download=False)


async def test_download_directive_forces_a_download(ready: Ready) -> None:
    """The URL with the directive is answered as an attachment."""
    async with PortalClient(ready.url) as client:
        url = client.get_skylink_url(ready.skylink, path="a.txt", download=True)
    shown = httpx.head(url.partition("?")[0]).headers["content-disposition"]
    assert shown.startswith("inline")
    assert httpx.head(url).headers["content-disposition"].startswith("attachment")


# --- authentication


def test_password_endpoints(ready: Ready) -> None:
    """Basic with an empty user name opens what is closed; reading is open."""
    for path, auth, status in (
        (f"/{ready.skylink}/a.txt", None, 200),
        ("/svc/skykeys", None, 401),
        ("/svc/skykeys", ("", "wrong"), 401),
        ("/svc/skykeys", ("", API_KEY), 200),
    ):
        assert httpx.get(ready.url + path, auth=auth).status_code == status
