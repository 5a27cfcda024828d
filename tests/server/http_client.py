"""The tools to talk to a portal: forms written by the codec, answers checked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from skymount.wire.multipart import PartHeader

BOUNDARY = "----a-boundary-of-tests"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def form(*parts: tuple[PartHeader, bytes]) -> bytes:
    """Return the body of a form."""
    pieces = [
        f"--{BOUNDARY}\r\n".encode() + part.encode() + b"\r\n" + content + b"\r\n"
        for part, content in parts
    ]
    return b"".join([*pieces, f"--{BOUNDARY}--\r\n".encode()])


class Client(httpx.Client):
    """An HTTP client that knows how to upload."""

    def post_form(
        self,
        parts: Sequence[tuple[PartHeader, bytes]],
        params: dict[str, str] | None = None,
        path: str = "/svc/skyfile",
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Post a form of these parts."""
        return self.post(
            path,
            params=params,
            content=form(*parts),
            headers={"Content-Type": FORM_TYPE, **(headers or {})},
        )

    def upload(self, files: dict[str, bytes], **params: str) -> str:
        """Upload a directory of these files; return its skylink."""
        parts = [(PartHeader("files[]", name), content) for name, content in files.items()]
        return skylink_of(self.post_form(parts, {"filename": "site", **params}))

    def upload_file(self, name: str, content: bytes, contenttype: str = "", **params: str) -> str:
        """Upload a single file; return its skylink."""
        return skylink_of(
            self.post_form([(PartHeader("file", name, contenttype), content)], params)
        )


def skylink_of(response: httpx.Response) -> str:
    """Return the skylink that an upload gave."""
    assert response.status_code == 200, response.text
    found = response.json()["skylink"]
    assert isinstance(found, str)
    return found


def message_of(response: httpx.Response) -> str:
    """Return the message of an error, whose form is checked."""
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert response.content.endswith(b"\n")
    body: dict[str, Any] = response.json()
    assert list(body) == ["message"]
    return str(body["message"])


def stored_files(data: Path) -> set[Path]:
    """Return every file below the data directory of a portal, relative to it."""
    return {path.relative_to(data) for path in data.rglob("*") if path.is_file()}
