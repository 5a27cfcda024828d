"""Forms, well made and hostile."""

from pathlib import Path

import pytest

from skymount.wire.http.multipart import PartHeader
from tests.portal_process import (
    portal_process,
)
from tests.server.http_client import FORM_TYPE, Client, form, message_of


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
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
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
