"""Uploads: skylinks, names, metadata, parameters."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from skymount.errors import MalformedError
from skymount.server.config import PortalConfig
from skymount.server.storage.cluster.choice import open_reader
from skymount.server.upload.rules import PartList, UploadQuery
from skymount.wire.http.multipart import PartHeader
from skymount.wire.skylink import parse_skylink
from tests.fakes.skyfiles import inline_skylink
from tests.portal_process import PortalProcess
from tests.server.http_client import FORM_TYPE, Client, message_of, skylink_of, stored_files

_VECTORS = Path(__file__).parents[2] / "data" / "vectors.json"


_CASES = [
    vector
    for vector in json.loads(_VECTORS.read_text())["content_to_skylink"]
    if "sia.pdf" not in vector["metadata"]  # its content is not at hand, its form is gone
]


def _content(vector: dict[str, Any]) -> bytes:
    if vector["content_base64"] is not None:
        return base64.b64decode(vector["content_base64"])
    assert vector["content_rule"] == "33792 times the byte 0x61"
    return b"a" * 33792


@pytest.mark.parametrize("prefix", ["svc", "skynet"])
@pytest.mark.parametrize("vector", _CASES, ids=[vector["skylink"][:12] for vector in _CASES])
def test_known_content_gets_the_skylink_of_the_network(
    client: Client, vector: dict[str, Any], prefix: str
) -> None:
    """Each vector, uploaded for real, gives the quoted skylink and the quoted metadata bytes."""
    metadata, content = json.loads(vector["metadata"]), _content(vector)
    subfiles = sorted(metadata.get("subfiles", {}).values(), key=lambda sub: sub.get("offset", 0))
    params = {"mode": f"{metadata['mode']:o}"} if "mode" in metadata else {}
    url = f"/{prefix}/skyfile"
    if not subfiles:
        answer = client.post(
            url,
            params={"filename": metadata["filename"], **params},
            content=content,
            headers={"Content-Type": "application/octet-stream"},
        )
    else:
        field = "files[]" if len(subfiles) > 1 else "file"
        parts = []
        for sub in subfiles:
            start = sub.get("offset", 0)
            part = PartHeader(
                field, sub["filename"], sub.get("contenttype", ""), sub.get("mode", 0)
            )
            parts.append((part, content[start : start + sub.get("len", 0)]))
        if len(subfiles) > 1:
            params["filename"] = metadata["filename"]
            if "tryfiles" not in metadata:
                params["tryfiles"] = ""
        answer = client.post_form(parts, params, path=url)
    assert skylink_of(answer) == vector["skylink"]
    assert answer.headers["Svc-Skylink"] == vector["skylink"]
    assert answer.headers["Skynet-Skylink"] == vector["skylink"]
    stored = client.get(f"/{prefix}/metadata/{vector['skylink']}")
    assert stored.text == vector["metadata"]
    assert client.get(f"/{vector['skylink']}?format=concat").content == content


def test_the_answer_holds_root_and_bitfield(client: Client) -> None:
    """The JSON is that of the contract, with a line feed."""
    answer = client.post_form([(PartHeader("file", "a"), b"x" * 5000)])
    body = answer.json()
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert list(body) == ["skylink", "merkleroot", "bitfield"]
    assert body["bitfield"] == 8
    assert len(body["merkleroot"]) == 64
    assert answer.content.endswith(b"}\n")


@pytest.mark.parametrize(
    "path",
    [
        "/svc/skyfile",
        "/svc/skyfile/",
        "/svc/skyfile/some/where",
        "/svc/any/file.txt",
        "/svc/file.txt",
        "/skynet/skyfile",
        "/skynet/skyfile/x",
        "/skynet/x",
    ],
)
def test_every_upload_path_is_taken(client: Client, path: str) -> None:
    """Contract endpoints 1 and 2, in both dialects; the path itself means nothing."""
    expected = inline_skylink(
        b'{"filename":"a","length":2,"subfiles":{"a":{"filename":"a","len":2}}}', b"hi"
    )
    answer = client.post_form([(PartHeader("file", "a"), b"hi")], path=path)
    assert skylink_of(answer) == str(expected)


def test_a_directory_keeps_names_types_modes_and_order(client: Client) -> None:
    """Parts become subfiles in upload order, named as sent."""
    link = skylink_of(
        client.post_form(
            [
                (PartHeader("files[]", "z/last.txt", "text/plain", 0o600), b"first"),
                (PartHeader("files[]", "a.bin"), b""),
                (PartHeader("files[]", "b/c/d", "x/y"), b"abc"),
            ],
            {"filename": "dir", "tryfiles": ""},
        )
    )
    assert client.get(f"/svc/metadata/{link}").json() == {
        "filename": "dir",
        "length": 8,
        "subfiles": {
            "a.bin": {"filename": "a.bin", "offset": 5},
            "b/c/d": {"filename": "b/c/d", "contenttype": "x/y", "offset": 5, "len": 3},
            "z/last.txt": {
                "mode": 0o600,
                "filename": "z/last.txt",
                "contenttype": "text/plain",
                "len": 5,
            },
        },
    }
    assert client.get(f"/{link}/z/last.txt").content == b"first"
    assert client.get(f"/{link}/a.bin").content == b""
    assert client.get(f"/{link}/b/c/d").content == b"abc"


@pytest.mark.parametrize("between", [[], [(PartHeader("files[]", "b"), b"b")]])
def test_two_parts_of_one_name_are_refused(
    client: Client, portal: PortalProcess, between: list[tuple[PartHeader, bytes]]
) -> None:
    """One of them would be lost. The error names them, and nothing is kept."""
    before = stored_files(portal.data)
    part = PartHeader("files[]", "in/a")
    answer = client.post_form([(part, b"old"), *between, (part, b"newer")], {"filename": "d"})
    assert answer.status_code == 400
    assert message_of(answer).endswith("two files of the form have the name 'in/a'")
    assert stored_files(portal.data) == before


def test_the_list_has_the_name_of_the_metadata(client: Client, portal: PortalProcess) -> None:
    """B2: also of a directory of one file, and of one whose first file has another name."""
    named = {
        "d": client.upload({"one": b"1"}, filename="d"),
        "e": client.upload({"x/a": b"2", "b": b"3"}, filename="e"),
        "own": client.upload_file("part", b"4", filename="own"),
        "f": client.upload_file("f", b"5"),
        "raw": skylink_of(
            client.post("/svc/skyfile", params={"filename": "raw"}, headers={"Content-Type": "a/b"})
        ),
    }
    files = {"d": 1, "e": 2, "own": 1, "f": 0, "raw": 0}
    with open_reader(PortalConfig(portal.data)) as reader:
        for name, link in named.items():
            row = reader.row(parse_skylink(link))
            assert row is not None
            assert (row.name, row.files) == (name, files[name])
            assert client.get(f"/svc/metadata/{link}").json()["filename"] == name


def test_a_dry_run_stores_nothing(client: Client, portal: PortalProcess) -> None:
    """It gives the true skylink, small or large, and leaves no file."""
    before = stored_files(portal.data)
    small = client.upload_file("dry", b"small", dryrun="true")
    large = client.upload_file("dry", b"large" * 1_000_000, dryrun="1")
    assert stored_files(portal.data) == before
    for link in (small, large):
        assert client.get(f"/{link}").status_code == 404
    assert client.upload_file("dry", b"small") == small
    assert client.upload_file("dry", b"large" * 1_000_000) == large


def test_the_same_content_is_stored_once(client: Client, portal: PortalProcess) -> None:
    """A second upload changes nothing on disk."""
    first = client.upload_file("twice", b"twice" * 1_000_000)
    before = stored_files(portal.data)
    assert client.upload_file("twice", b"twice" * 1_000_000) == first
    assert stored_files(portal.data) == before


_ODD_NAMES = [
    'quo"te',
    "back\\slash",
    "line\nfeed",
    "\U0001f600 smile",
    "100%",
    "a#b?c&d=e",
    "plus + space",
    "%41",
    "semi;colon=x",
    "tab\tname",
    " leading",
    "ünï/cödé",
    "a" * 300,
    "<&>\u2028",
    "\x7f",
]


@pytest.mark.parametrize("name", _ODD_NAMES)
def test_odd_names_survive(client: Client, name: str) -> None:
    """A name goes in and comes out as it is: metadata, URL, archive, headers."""
    from urllib.parse import quote

    link = client.upload({name: b"content", "other": b"x"})
    assert name in client.get(f"/svc/metadata/{link}").json()["subfiles"]
    answer = client.get(f"/{link}/{quote(name)}")
    assert answer.content == b"content"
    disposition = answer.headers["Content-Disposition"]
    assert disposition.isascii()
    assert disposition.isprintable()
    assert client.head(f"/{link}/{quote(name)}").status_code == 200


def test_a_hostile_content_type_is_kept_and_not_sent(client: Client) -> None:
    """Control characters cannot leave the header."""
    head = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
        b"Content-Type: text/\x01html\r\n\r\nhi\r\n--x--\r\n"
    )
    answer = client.post(
        "/svc/skyfile",
        content=head,
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )
    served = client.get(f"/{skylink_of(answer)}")
    assert served.content == b"hi"
    assert served.headers["Content-Type"] == "text/plain; charset=utf-8"


_BAD_PATHS = ["/rooted", "a//b", ".", "..", "./a", "../a", "a/..", "a/./b", "a/", "x/../../y"]


@pytest.mark.parametrize("name", _BAD_PATHS)
def test_names_that_could_leave_the_tree_are_refused(client: Client, name: str) -> None:
    """Subfile names and the filename parameter follow the path rules."""
    expected = f"metadata is invalid; invalid filename provided '{name}'; "
    parts = [(PartHeader("files[]", name), b"x"), (PartHeader("files[]", "ok"), b"x")]
    answer = client.post_form(parts, {"filename": "d"})
    assert answer.status_code == 400
    assert expected in message_of(answer)
    answer = client.post_form([(PartHeader("file", "ok"), b"x")], {"filename": name})
    assert answer.status_code == 400
    assert expected in message_of(answer)
    answer = client.post(
        "/svc/skyfile",
        params={"filename": name},
        content=b"x",
        headers={"Content-Type": "text/plain"},
    )
    assert answer.status_code == 400
    assert expected in message_of(answer)


_TWO = [(PartHeader("files[]", "a"), b"x"), (PartHeader("files[]", "index.html"), b"y")]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dryrun": "maybe"}, "unable to parse 'dryrun' parameter"),
        ({"force": "yes"}, "unable to parse 'force' parameter"),
        ({"root": "2"}, "unable to parse 'root' parameter"),
        ({"mode": "888"}, "unable to parse 'mode' parameter"),
        ({"mode": "-1"}, "unable to parse 'mode' parameter"),
        ({"mode": "7" * 18}, "unable to parse 'mode' parameter"),
        ({"basechunkredundancy": "256"}, "unable to parse 'basechunkredundancy' parameter"),
        ({"dryrun": "1", "force": "1"}, "'dryRun' and 'force' can not be combined"),
        (
            {"defaultpath": "a", "disabledefaultpath": "true"},
            "DefaultPath and DisableDefaultPath are mutually exclusive and cannot be set together",
        ),
        (
            {"defaultpath": "a", "tryfiles": '["a"]'},
            "defaultpath and disabledefaultpath are not compatible with tryfiles",
        ),
        ({"convertpath": "p"}, "cannot set both a 'convertpath' and a 'filename'"),
        ({"skykeyname": "n", "skykeyid": "i"}, "cannot set both a 'skykeyname' and 'skykeyid'"),
        ({"skykeyname": "n"}, "unable to get skykey: No Skykey with that name"),
        ({"defaultpath": "nope"}, "invalid default path provided; no such path: /nope"),
        ({"tryfiles": "index.html"}, "unable to parse 'tryfiles' parameter: invalid tryfiles"),
        ({"tryfiles": "[" * 5000}, "unable to parse 'tryfiles' parameter: invalid tryfiles"),
        ({"tryfiles": '[""]'}, "cannot be an empty string"),
        ({"tryfiles": '["/nope"]'}, "any absolute path tryfile must exist"),
        ({"errorpages": "[]"}, "invalid 'errorpages' parameter: invalid errorpages value"),
        ({"errorpages": '{"x":"/a"}'}, "invalid 'errorpages' parameter"),
        ({"errorpages": '{"399":"/a"}'}, "overriding status codes under 400 is not supported"),
        ({"errorpages": '{"600":"/a"}'}, "overriding status codes over 599 is not supported"),
        ({"errorpages": '{"99999999999":"/a"}'}, "overriding status codes over 599"),
        ({"errorpages": '{"404":"a"}'}, "all errorpages need to have absolute paths"),
        ({"errorpages": '{"404":"/nope"}'}, "all errorpage files must exist"),
        ({f"p{n}": "" for n in range(200)}, "failed to parse query params"),
    ],
)
def test_bad_parameters_are_refused(client: Client, params: dict[str, str], message: str) -> None:
    """With status 400 and the message that portals give."""
    answer = client.post_form(_TWO, {"filename": "d", **params})
    assert answer.status_code == 400
    assert message in message_of(answer)


def test_a_default_path_lies_in_the_root(client: Client) -> None:
    """One inside a directory is refused."""
    parts = [(PartHeader("files[]", "d/index.html"), b"x"), *_TWO]
    answer = client.post_form(parts, {"filename": "d", "defaultpath": "d/index.html"})
    assert answer.status_code == 400
    assert "must point to a file in the root directory of the skyfile" in message_of(answer)


@pytest.mark.parametrize("name", ["Skynet-Disable-Force", "Svc-Disable-Force"])
def test_force_can_be_disabled(client: Client, name: str) -> None:
    """By a header, in every dialect; without it force is taken."""
    answer = client.post_form(_TWO, {"filename": "d", "force": "true"}, headers={name: "true"})
    assert answer.status_code == 400
    assert message_of(answer) == "'force' has been disabled on this node"
    skylink_of(client.post_form(_TWO, {"filename": "d", "force": "true"}))


@pytest.mark.parametrize(
    ("parts", "params", "message"),
    [
        ([], {}, "could not find multipart file"),
        (
            [(PartHeader("upload", "a"), b"x")],
            {},
            "illegal form name, allowed values are 'files[]' and",
        ),
        ([(PartHeader("file", ""), b"x")], {}, "no filename provided"),
        (_TWO, {}, "metadata is invalid; invalid filename provided ''"),
    ],
)
def test_bad_forms_are_refused(
    client: Client, parts: list[tuple[PartHeader, bytes]], params: dict[str, str], message: str
) -> None:
    """Illegal field, nameless part, no part, no name for several parts."""
    answer = client.post_form(parts, params)
    assert answer.status_code == 400
    assert message in message_of(answer)


def test_raw_uploads_need_a_type_and_a_name(client: Client) -> None:
    """And default paths are for forms only."""
    answer = client.post("/svc/skyfile?filename=a", content=b"x")
    assert (answer.status_code, message_of(answer)) == (
        400,
        "failed parsing 'Content-Type' header",
    )
    typed = {"Content-Type": "application/octet-stream"}
    answer = client.post("/svc/skyfile", content=b"x", headers=typed)
    assert answer.status_code == 400
    assert "metadata is invalid" in message_of(answer)
    answer = client.post(
        "/svc/skyfile?filename=a&disabledefaultpath=true", content=b"x", headers=typed
    )
    assert answer.status_code == 400
    assert "can only be set on multipart uploads" in message_of(answer)


def test_the_body_may_come_in_chunks(client: Client) -> None:
    """A length known only at the end is as good."""
    answer = client.post(
        "/svc/skyfile?filename=a.txt",
        content=iter([b"h", b"i"]),
        headers={"Content-Type": "application/octet-stream"},
    )
    assert skylink_of(answer) == "AACNRykDz0h8490crIjBRU1YbpRMkaDAh2MlM7Dcm5u6Ew"


def test_parts_are_limited() -> None:
    """In number and in what their names weigh."""
    config = PortalConfig(data=None, max_parts=2, metadata_limit=1000)  # type: ignore[arg-type]
    parts = PartList(config)
    parts.begin(PartHeader("files[]", "a"), 0)
    parts.begin(PartHeader("files[]", "b"), 0)
    with pytest.raises(MalformedError, match="at most 2 files"):
        parts.begin(PartHeader("files[]", "c"), 0)
    parts = PartList(config)
    with pytest.raises(MalformedError, match="too large"):
        parts.begin(PartHeader("files[]", "a" * 500), 0)


def test_empty_parameters_are_absent() -> None:
    """But an empty tryfiles means none, where an absent one means the default."""
    query = UploadQuery.parse(
        {"tryfiles": ""}, content_type=FORM_TYPE.encode(), force_disabled=False
    )
    assert query.tryfiles == ()
    query = UploadQuery.parse(
        {"mode": "", "dryrun": ""}, content_type=FORM_TYPE.encode(), force_disabled=False
    )
    assert (query.tryfiles, query.mode, query.dryrun) == (None, 0, False)
