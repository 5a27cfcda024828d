"""The contract's HTTP endpoints: what our client sends, and what the embedded portal answers to the
requests as the contract writes them.
"""

import json

import httpx
import pytest

from skymount.portal import PortalClient, RegistryEntry, gen_key_pair_from_seed
from skymount.wire.registry_entry import Entry, SignedEntry, hash_data_key
from skymount.wire.skykey import Skykey
from tests.contract.conftest import API_KEY, FILES, Ready
from tests.contract.recording import LINK, Reply, parts_of, recording

KEYS = gen_key_pair_from_seed("contract")
PUBLIC, PRIVATE = KEYS.public_key, KEYS.private_key
KEY = "skykey:AT7-P751d_SEBhXvbOQTfswB62n2mqMe0Q89cQ911KGeuTIV2ci6GjG3Aj5CuVZUDS6hkG7pHXXZ"
RECORD = Skykey.parse(f"{KEY}?name=a%20key").encode_record()
AUTH = ("", API_KEY)


def update(data_key: str, data: bytes, revision: int) -> dict[str, object]:
    """Return the body of endpoint 6, written by the letter of the contract."""
    entry = Entry(hash_data_key(data_key), data, revision)
    return {
        "publickey": {"algorithm": "ed25519", "key": list(bytes.fromhex(PUBLIC))},
        "datakey": hash_data_key(data_key).hex(),
        "revision": revision,
        "data": list(data),
        "signature": list(entry.sign(bytes.fromhex(PRIVATE)).signature),
    }


async def test_1_client() -> None:
    """A file goes to /svc/skyfile/<file_path> as one part named file."""
    async with recording() as (requests, client):
        await client.upload_file(b"content", custom_filename="a b.txt")
    (request,) = requests
    assert request.method == "POST"
    assert request.target.startswith("/svc/skyfile/")
    assert "?" not in request.target
    (part,) = parts_of(request)
    assert part.get_param("name", header="content-disposition") == "file"
    assert part.get_filename() == "a b.txt"
    assert part.get_payload(decode=True) == b"content"


@pytest.mark.parametrize("prefix", ["svc", "skynet"])
def test_1_portal(ready: Ready, prefix: str) -> None:
    """Its answer is skylink, merkleroot and bitfield."""
    url = f"{ready.url}/{prefix}/skyfile/my/file"
    answer = httpx.post(url, files={"file": ("a.txt", b"content")}, auth=AUTH)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/json")
    result = answer.json()
    assert list(result) == ["skylink", "merkleroot", "bitfield"]
    assert len(result["skylink"]) == 46
    assert len(result["merkleroot"]) == 64
    assert isinstance(result["bitfield"], int)
    assert httpx.get(f"{ready.url}/{result['skylink']}").content == b"content"


async def test_2_client() -> None:
    """A directory's files are parts named files[], each with its relative path."""
    async with recording() as (requests, client):
        await client.upload_directory(FILES, custom_dirname="my site")
    (request,) = requests
    assert request.method == "POST"
    assert request.path.startswith("/svc/")
    assert request.query == {"filename": "my site"}
    parts = parts_of(request)
    names = {part.get_param("name", header="content-disposition") for part in parts}
    assert names == {"files[]"}
    assert {part.get_filename(): part.get_payload(decode=True) for part in parts} == FILES


@pytest.mark.parametrize("path", ["svc/any/path", "svc/skyfile", "skynet/skyfile"])
def test_2_portal(ready: Ready, path: str) -> None:
    """The files are then found by their relative paths."""
    parts = [("files[]", (name, content)) for name, content in FILES.items()]
    answer = httpx.post(f"{ready.url}/{path}?filename=site", files=parts, auth=AUTH)
    assert answer.status_code == 200
    skylink = answer.json()["skylink"]
    assert httpx.get(f"{ready.url}/{skylink}/a.txt").content == FILES["a.txt"]
    assert httpx.get(f"{ready.url}/{skylink}/dir/d.bin").content == FILES["dir/d.bin"]


async def test_3_client() -> None:
    """Content is asked for by GET /<skylink>/<path>."""
    async with recording(Reply(200, (), b"content")) as (requests, client):
        await client.get_file_content(LINK)
        await client.get_file_content(f"svc://{LINK}/dir/b c+%.json")
    assert [(request.method, request.target, request.body) for request in requests] == [
        ("GET", f"/{LINK}", b""),
        ("GET", f"/{LINK}/dir/b%20c%2B%25.json", b""),
    ]


def test_3_portal(ready: Ready) -> None:
    """The raw content comes back; what is not there is a 404."""
    for name, content in FILES.items():
        path = name.replace("%", "%25").replace("+", "%2B")
        assert httpx.get(f"{ready.url}/{ready.skylink}/{path}").content == content
    assert httpx.get(f"{ready.url}/{ready.skylink}/nothing").status_code == 404
    assert httpx.get(f"{ready.url}/{LINK}").status_code == 404


async def test_4_client() -> None:
    """Metadata is asked for by HEAD, and read from the header svc-metadata."""
    reply = Reply(200, ((b"svc-metadata", b'{"filename":"x"}'),), b"content")
    async with recording(reply) as (requests, client):
        assert (await client.get_metadata(f"{LINK}/a.txt")).metadata == {"filename": "x"}
    assert [(request.method, request.target) for request in requests] == [
        ("HEAD", f"/{LINK}/a.txt")
    ]


@pytest.mark.parametrize("path", ["", "/a.txt", "/dir", "/dir/d.bin", "/nothing"])
def test_4_portal(ready: Ready, path: str) -> None:
    """The headers of HEAD are those of GET, and svc-metadata is the metadata."""
    url = f"{ready.url}/{ready.skylink}{path}"
    head, get = httpx.head(url), httpx.get(url)
    ignored = {"date", "transfer-encoding"}
    assert head.status_code == get.status_code
    assert [item for item in head.headers.items() if item[0] not in ignored] == [
        item for item in get.headers.items() if item[0] not in ignored
    ]
    assert head.content == b""
    if head.status_code == 200:
        metadata = json.loads(head.headers["svc-metadata"])
        assert set(metadata["subfiles"]) <= set(FILES)
        for name, record in metadata["subfiles"].items():
            assert {"filename": name, "len": len(FILES[name])}.items() <= record.items()


async def test_5_client() -> None:
    """An entry is asked for by public key and hashed data key."""
    async with recording(Reply(404)) as (requests, client):
        await client.registry.get_entry(PUBLIC, "app")
    (request,) = requests
    hashed = "7c96a0537ab2aaac9cfe0eca217732f4e10791625b4ab4c17e4d91c8078713b9"
    query = f"publickey=ed25519%3A{PUBLIC}&datakey={hashed}"
    assert request.method == "GET"
    assert request.target.startswith(f"/svc/registry?{query}")


def test_5_portal(ready: Ready) -> None:
    """The signed entry comes back, a revision beyond 2**53 exactly; 404 when there is none."""
    body = update("five", b"data", 2**53 + 1)
    assert httpx.post(f"{ready.url}/svc/registry", json=body, auth=AUTH).status_code == 204
    tweak = hash_data_key("five")
    url = f"{ready.url}/svc/registry?publickey=ed25519%3A{PUBLIC}&datakey="
    answer = httpx.get(url + tweak.hex())
    assert answer.status_code == 200
    signed = SignedEntry.parse_answer(answer.content, bytes.fromhex(PUBLIC), tweak).verify()
    assert (signed.entry.data, signed.entry.revision) == (b"data", 2**53 + 1)
    assert httpx.get(url + hash_data_key("other").hex()).status_code == 404


async def test_6_client() -> None:
    """An entry is set by JSON whose key, data and signature are arrays of byte numbers."""
    async with recording(Reply(204)) as (requests, client):
        await client.registry.set_entry(PRIVATE, RegistryEntry("six", b"\x00\xffdata", 2**64 - 1))
    (request,) = requests
    assert (request.method, request.target) == ("POST", "/svc/registry")
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.body) == update("six", b"\x00\xffdata", 2**64 - 1)


def test_6_portal(ready: Ready) -> None:
    """It is stored if it is newer, and the answer is empty."""
    url = f"{ready.url}/svc/registry"
    answers = [
        httpx.post(url, json=update("six", b"data", revision), auth=AUTH) for revision in (0, 1, 0)
    ]
    assert [answer.status_code for answer in answers] == [204, 204, 400]
    assert answers[0].content == b""
    wrong = update("six", b"data", 2) | {"data": list(b"else")}
    assert httpx.post(url, json=wrong, auth=AUTH).status_code == 400


async def test_7_client() -> None:
    """A skykey is made by the form fields name and type, at the node."""
    reply = Reply(200, (), RECORD)
    async with (
        recording(reply) as (requests, node),
        PortalClient("http://portal.invalid", node_url=node.url) as client,
    ):
        await client.create_skykey("a key", "public-id")
    (request,) = requests
    assert (request.method, request.target) == ("POST", "/svc/createskykey")
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert request.body == b"name=a+key&type=public-id"


@pytest.mark.parametrize("kind", ["public-id", "private-id"])
def test_7_portal(ready: Ready, kind: str) -> None:
    """The answer is the record {skykey, name, id, type}."""
    fields = {"name": f"made {kind}", "type": kind}
    answer = httpx.post(f"{ready.url}/svc/createskykey", data=fields, auth=AUTH)
    assert answer.status_code == 200
    record = answer.json()
    assert list(record) == ["skykey", "name", "id", "type"]
    assert (record["name"], record["type"]) == (f"made {kind}", kind)
    assert record["skykey"].startswith("skykey:")


async def test_8_client() -> None:
    """A skykey is handed over in the form field skykey."""
    async with recording(Reply(204)) as (requests, client):
        assert await client.add_skykey(KEY) is None  # type: ignore[func-returns-value]
    (request,) = requests
    assert (request.method, request.target) == ("POST", "/svc/addskykey")
    assert request.body == b"skykey=skykey%3A" + KEY.partition(":")[2].encode()


def test_8_portal(ready: Ready) -> None:
    """The answer is empty, or an error."""
    url = f"{ready.url}/svc/addskykey"
    done = httpx.post(url, data={"skykey": f"{KEY}?name=added"}, auth=AUTH)
    assert (done.status_code, done.content) == (204, b"")
    assert httpx.post(url, data={"skykey": "nonsense"}, auth=AUTH).is_error


async def test_9_client() -> None:
    """A skykey is asked for by exactly one of name and id."""
    reply = Reply(200, (), RECORD)
    async with recording(reply) as (requests, client):
        found = await client.get_skykey_by_name("a key")
        await client.get_skykey_by_id(found.id)
    assert [(request.method, request.target) for request in requests] == [
        ("GET", "/svc/skykey?name=a%20key"),
        ("GET", f"/svc/skykey?id={found.id.replace('=', '%3D')}"),
    ]


def test_9_portal(ready: Ready) -> None:
    """The record comes back by name and by id, and not by both or neither."""
    made = {"name": "nine", "type": "private-id"}
    record = httpx.post(f"{ready.url}/svc/createskykey", data=made, auth=AUTH).json()
    url = f"{ready.url}/svc/skykey"
    by_name, by_id = {"name": "nine"}, {"id": record["id"]}
    assert httpx.get(url, params=by_name, auth=AUTH).json() == record
    assert httpx.get(url, params=by_id, auth=AUTH).json() == record
    assert httpx.get(url, params=by_name | by_id, auth=AUTH).is_error
    assert httpx.get(url, auth=AUTH).is_error


async def test_10_client() -> None:
    """All skykeys are asked for without a parameter."""
    reply = Reply(200, (), b'{"skykeys":[%s]}' % RECORD)
    async with recording(reply) as (requests, client):
        assert [key.text for key in await client.get_skykeys()] == [f"{KEY}?name=a%20key"]
    assert [(request.method, request.target) for request in requests] == [("GET", "/svc/skykeys")]


def test_10_portal(ready: Ready) -> None:
    """The answer is the list of records."""
    made = {"name": "ten", "type": "private-id"}
    record = httpx.post(f"{ready.url}/svc/createskykey", data=made, auth=AUTH).json()
    answer = httpx.get(f"{ready.url}/svc/skykeys", auth=AUTH)
    assert answer.status_code == 200
    assert record in answer.json()["skykeys"]


async def test_11_client(tmp_path) -> None:
    """What a name leads to is asked for by GET /hns/<domain>."""
    async with recording(Reply(200, (), b"content")) as (requests, client):
        await client.download_file_hns(tmp_path / "copy", "example")
    assert [(request.method, request.target) for request in requests] == [("GET", "/hns/example")]


def test_11_portal(ready: Ready) -> None:
    """The content that the name leads to comes back."""
    answer = httpx.get(f"{ready.url}/hns/{ready.domain}/a.txt")
    assert (answer.status_code, answer.content) == (200, FILES["a.txt"])
    assert httpx.get(f"{ready.url}/hns/nobody").status_code == 404


async def test_12_client() -> None:
    """A name's record is asked for by GET /hnsres/<domain>."""
    reply = Reply(200, (), b'{"skylink":"sia://%s"}' % LINK.encode())
    async with recording(reply) as (requests, client):
        await client.resolve_hns("hns://example")
    found = [(request.method, request.target) for request in requests]
    assert found == [("GET", "/hnsres/example")]


def test_12_portal(ready: Ready) -> None:
    """The record has a member skylink, <scheme>://<skylink>."""
    answer = httpx.get(f"{ready.url}/hnsres/{ready.domain}")
    assert answer.status_code == 200
    assert answer.json() == {"skylink": f"svc://{ready.skylink}"}
