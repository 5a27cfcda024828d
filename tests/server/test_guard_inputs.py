"""What the rules read: hosts, origins, the password file; and small bodies."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from skymount.errors import ConfigError, MalformedError
from skymount.server.http.basic_auth import has_password, read_password
from skymount.server.http.cors import parse_origin
from skymount.server.http.host_header import RequestHost, parse_name
from skymount.server.http.query_params import form_params
from skymount.server.http.request_body import read_body
from skymount.server.http_error import HttpError
from skymount.wire.host import is_loopback

_BASE32 = "0123456789abcdefghijklmnopqrstuv" + "a" * 23


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", RequestHost("localhost", "")),
        ("Example.ORG.:80", RequestHost("example.org", "80")),
        ("example.org:", RequestHost("example.org", "")),
        ("[::1]:4280", RequestHost("[::1]", "4280")),
        (f"{_BASE32.upper()}.a.b:1", RequestHost("a.b", "1", f"/{_BASE32}")),
        (f"{_BASE32}x.a", RequestHost(f"{_BASE32}x.a", "")),
        (_BASE32, RequestHost(_BASE32, "")),
        ("name.hns.localhost:1", RequestHost("localhost", "1", "/hns/name")),
        ("sub.name.hns.a.b", RequestHost("a.b", "", "/hns/sub.name")),
        ("hns.localhost", RequestHost("hns.localhost", "")),
        ("my.hns.example", RequestHost("my.hns.example", "")),
        ("a.hns.my.hns.example", RequestHost("my.hns.example", "", "/hns/a")),
    ],
)
def test_hosts(text: str, expected: RequestHost) -> None:
    """Case and last dot do not count; a name of our own selects nothing."""
    assert RequestHost.parse(text, {"my.hns.example"}) == expected


@given(st.text(max_size=80) | st.from_regex(r"[\[\]a-z0-9.:_-]{0,80}", fullmatch=True))
def test_any_text_is_a_host_or_malformed(text: str) -> None:
    """And a host can be written and read again."""
    try:
        host = RequestHost.parse(text)
    except MalformedError:
        return
    is_loopback(host.name)
    assert RequestHost.parse(host.authority, {host.name}) == RequestHost(host.name, host.port)


def test_names() -> None:
    """A name has no port; IPv6 may go without brackets."""
    assert parse_name("Example.org.") == "example.org"
    assert parse_name("::1") == parse_name("[::1]") == "[::1]"
    for text in ("", "a:1", "a/b", "ä", "[::1]:1", "http://a"):
        with pytest.raises(MalformedError):
            parse_name(text)


def test_origins() -> None:
    """As browsers write them: lower case, no default port."""
    assert parse_origin("HTTPS://Example.org:443/") == "https://example.org"
    assert parse_origin("http://example.org:80") == "http://example.org"
    assert parse_origin("http://example.org:443") == "http://example.org:443"
    assert parse_origin("chrome-extension://abc") == "chrome-extension://abc"
    assert parse_origin("*") == "*"
    assert parse_origin("null") == "null"
    for text in ("", "example.org", "http://", "http://a/b", "http://a@b", "http://a b", "*.a"):
        with pytest.raises(MalformedError):
            parse_origin(text)
    for text in ("x://:", "http://:80", "http://a:", "http://a:80:80", "http://a:x", "http://[a"):
        with pytest.raises(MalformedError):  # no browser says so: they would allow nothing
            parse_origin(text)
    assert parse_origin("https://[::1]:8080") == "https://[::1]:8080"


def _secret(directory: Path, content: bytes, mode: int = 0o600) -> Path:
    file = directory / "secret"
    file.write_bytes(content)
    file.chmod(mode)
    return file


def test_the_password_file(tmp_path: Path) -> None:
    """One line feed at the end does not count; the file goes before the environment."""
    variable = {b"SKYMOUNT_PORTAL_PASSWORD": b"other"}
    for content, expected in (
        (b"pass", b"pass"),
        (b"pass\n", b"pass"),
        (b" p\n\n", b" p\n"),
        (b"\xff" * 4096 + b"\n", b"\xff" * 4096),
    ):
        assert read_password(_secret(tmp_path, content), variable) == expected
    assert read_password(_secret(tmp_path, b"pass", 0o400), {}) == b"pass"
    assert read_password(None, variable) == b"other"
    assert read_password(None, {}) == b""


def test_the_password_may_come_through_a_pipe() -> None:
    """As a shell's ``<(command)`` gives it."""
    reading, writing = os.pipe()
    os.write(writing, b"pass\n")
    os.close(writing)
    assert read_password(Path(f"/dev/fd/{reading}"), {}) == b"pass"
    os.close(reading)


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [
        (b"pass", 0o640, "chmod 600"),
        (b"pass", 0o604, "chmod 600"),
        (b"", 0o600, "is empty"),
        (b"\n", 0o600, "is empty"),
        (b"x" * 4097, 0o600, "more than 4096"),
        (b"x" * 9999 + b"\n", 0o600, "more than 4096"),
    ],
)
def test_an_unusable_password_file(
    tmp_path: Path, content: bytes, mode: int, expected: str
) -> None:
    """ConfigError says what is wrong with it."""
    with pytest.raises(ConfigError, match=expected):
        read_password(_secret(tmp_path, content, mode), {})


def test_no_password_file(tmp_path: Path) -> None:
    """Absent, or a directory, or no path at all."""
    for file in (tmp_path / "none", tmp_path, Path("a\0b")):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_password(file, {})
    with pytest.raises(ConfigError, match="SKYMOUNT_PORTAL_PASSWORD holds more"):
        read_password(None, {b"SKYMOUNT_PORTAL_PASSWORD": b"x" * 4097})


@given(st.text(max_size=60) | st.text("Basic =:dXg6", max_size=30))
def test_no_text_is_a_long_password(credentials: str) -> None:
    """Whatever the header says."""
    assert not has_password(credentials, b"a password that is not guessed")


def _request(*pieces: bytes, headers: Mapping[str, str] | None = None, query: str = "") -> Request:
    """Return a request whose body comes in these pieces, and then no more."""
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": at < len(pieces) - 1}
        for at, piece in enumerate(pieces)
    ]

    async def receive() -> Message:
        if not messages:
            await trio.sleep_forever()
        return messages.pop(0)

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "headers": raw, "query_string": query.encode()}
    return Request(scope, receive)


async def test_a_body_is_read_whole() -> None:
    """Up to the limit."""
    assert await read_body(_request(b"ab", b"", b"c"), 3, 1) == b"abc"
    assert await read_body(_request(b""), 0, 1) == b""


async def test_a_long_body_is_refused() -> None:
    """413, as soon as it is known."""
    for request in (
        _request(b"ab", b"cd"),
        _request(headers={"content-length": "4"}),
        _request(headers={"content-length": "9" * 5000}),
    ):
        with pytest.raises(HttpError) as refused:
            await read_body(request, 3, 1)
        assert refused.value.status == 413


async def test_a_late_body_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """408 when the whole is not there in time."""
    request = _request(b"a", b"b")
    await request.receive()
    await request.receive()
    with pytest.raises(HttpError) as refused:
        await read_body(request, 3, 5)
    assert refused.value.status == 408
    assert trio.current_time() == 5


async def test_a_body_that_breaks_off() -> None:
    """The client has gone: nobody to answer."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnect):
        await read_body(Request({"type": "http", "headers": []}, receive), 3, 1)


def test_form_parameters() -> None:
    """Query and urlencoded body are merged, and the body wins."""
    form = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    request = _request(headers=form, query="a=1&b=2")
    assert form_params(request, b"b=3&c=%C3%A4&c=5\r\n") == {"a": "1", "b": "3", "c": "ä"}
    assert form_params(_request(), b"a=1") == {"a": "1"}
    other = _request(headers={"content-type": "application/json"}, query="a=1")
    assert form_params(other, b"a=2") == {"a": "1"}
    for body in (b"\xff", b"a=%ff", b"&".join([b"a=1"] * 101)):
        with pytest.raises(HttpError) as refused:
            form_params(_request(), body)
        assert refused.value.status == 400
