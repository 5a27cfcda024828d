"""Parameters of queries and forms, and the parts of a form."""

import json
import subprocess
from pathlib import Path

import pytest

from skymount.server.http.forms import boolean, decode_path, form_params, number, parse_query
from skymount.server.http_error import HttpError
from skymount.wire.http.multipart import PartHeader
from tests.server.http_client import FORM_TYPE, Client, form, message_of, portal_client, request_of


def test_form_parameters() -> None:
    """Query and urlencoded body are merged, and the body wins."""
    form = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    request = request_of(headers=form, query="a=1&b=2")
    assert form_params(request, b"b=3&c=%C3%A4&c=5\r\n") == {"a": "1", "b": "3", "c": "ä"}
    assert form_params(request_of(), b"a=1") == {"a": "1"}
    other = request_of(headers={"content-type": "application/json"}, query="a=1")
    assert form_params(other, b"a=2") == {"a": "1"}
    for body in (b"\xff", b"a=%ff", b"&".join([b"a=1"] * 101)):
        with pytest.raises(HttpError) as refused:
            form_params(request_of(), body)
        assert refused.value.status == 400


def test_parameters_follow_go() -> None:
    """The first of a name counts; booleans and numbers parse strictly."""
    assert parse_query("a=1&a=2&b=%20+") == {"a": "1", "b": "  "}
    assert boolean({"x": "T"}, "x")
    assert not boolean({"x": "FALSE"}, "x")
    assert not boolean({}, "x")
    assert number({"x": "0777"}, "x", base=8) == 0o777
    assert number({}, "x") is None
    for text in ("yes", "tRUE", " true"):
        with pytest.raises(HttpError):
            boolean({"x": text}, "x")
    for text in ("1.5", "-1", "+1", "1_000", "٣", "9" * 19):
        with pytest.raises(HttpError):
            number({"x": text}, "x")
    assert decode_path("a%2Fb+c%2B%20") == "a/b+c+ "


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=", b""),
        (f"multipart/form-data; boundary={'b' * 300}", b""),
        ("multipart/form-data; boundary=b", b"no boundary at all"),
        ("multipart/form-data; boundary=b", b"--b\r\n" + b"a: b\r\n" * 100 + b"\r\n--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\nA: " + b"x" * 200_000 + b"\r\n\r\n--b--"),
        (
            "multipart/form-data; boundary=b",
            b"--b\r\n" + (b"A: " + b"x" * 30_000 + b"\r\n") * 3 + b"\r\n\r\n--b--",
        ),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--\r\n"),
        (
            "multipart/form-data; boundary=b",
            (
                b'--b\r\nContent-Disposition: form-data; name="file"; filename="\xff"\r\n\r\nx\r\n'
                b"--b--\r\n"
            ),
        ),
        (
            "multipart/form-data; boundary=b",
            (
                b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
                b"Mode: 9\r\n\r\nx\r\n--b--\r\n"
            ),
        ),
    ],
)
def test_hostile_forms_are_refused(client: Client, content_type: str, body: bytes) -> None:
    """400 each, and the portal goes on."""
    answer = client.post("/svc/skyfile", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 400
    assert message_of(answer).startswith("failed to upload file: ")


def test_malformed_forms_leave_no_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Who has sent one is told; anybody could fill the log otherwise."""
    bodies = (b"no boundary at all", b"--b\r\nA \0: b\r\n\r\n--b--", b"--b--\r\nmore", b"--b\r\n")
    with portal_client(tmp_path) as client:
        for body in bodies:
            headers = {"Content-Type": "multipart/form-data; boundary=b"}
            assert client.post("/svc/skyfile", content=body, headers=headers).status_code == 400
    assert capfd.readouterr().err == ""


def test_forms_may_be_cut_anywhere(client: Client) -> None:
    """A body that arrives byte by byte is the same body."""
    parts = [
        (PartHeader("files[]", "ä\r\nb"), b"\r\n--almost"),
        (PartHeader("files[]", "c"), b"-" * 50),
    ]
    body = form(*parts)
    expected = client.post_form(parts, {"filename": "d", "dryrun": "1"}).json()
    answer = client.post(
        "/svc/skyfile?filename=d&dryrun=1",
        content=(body[at : at + 1] for at in range(len(body))),
        headers={"Content-Type": FORM_TYPE},
    )
    assert answer.json() == expected


@pytest.mark.parametrize(
    ("agent", "filename"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64)", 'a"b.txt'),
        ("curl/8.0", 'a"b.txt'),
        ("python-requests/2", "a%22b.txt"),
    ],
)
def test_a_quote_in_a_name(client: Client, agent: str, filename: str) -> None:
    """Browsers and curl write it as %22, which for others is a part of the name."""
    disposition = b'Content-Disposition: form-data; name="file"; filename="a%22b.txt";'
    body = b"--b\r\n%s\r\n\r\nx\r\n--b--\r\n" % disposition
    headers = {"Content-Type": "multipart/form-data; boundary=b", "User-Agent": agent}
    answer = client.post("/skynet/skyfile", content=body, headers=headers)
    link = answer.json()["skylink"]
    assert client.get(f"/skynet/metadata/{link}").json()["filename"] == filename


def test_curl_sends_any_name(client: Client, tmp_path: Path) -> None:
    for name in ('q"x.txt', "back\\slash", "line\nend", "é ü"):
        file = tmp_path / name
        file.write_text("x")
        shown = str(file).replace("\\", "\\\\").replace('"', '\\"')  # as curl reads an argument
        sent = subprocess.run(
            ["curl", "-sS", "-F", f'file=@"{shown}"', f"{client.base_url}/skynet/skyfile"],
            capture_output=True,
            check=True,
        )
        link = json.loads(sent.stdout)["skylink"]
        assert client.get(f"/skynet/metadata/{link}").json()["filename"] == name
