"""Which sessions are current."""

import time

from skymount.server.http.passwords import Passwords, Sessions, SignedOut
from tests.server.http_client import request_of

_PASSWORDS = Passwords(b"password")


async def test_a_long_header_has_no_session() -> None:
    """B9: quotes and backslashes without an end mean nothing, and neither do empty cookies."""
    sessions = Sessions(_PASSWORDS)
    for cookies in ("skymount-1=" + '"' + "\\" * 60_000, ";" * 60_000, "skymount-1=;" * 5000):
        request = request_of(headers={"cookie": cookies})
        assert await sessions.find(request) is None


async def test_processes_with_a_secret_share_sessions() -> None:
    """SP6: who signed in at one is signed in at all that have the same password."""
    request = request_of(headers={})
    first = Sessions.of(_PASSWORDS, b"password", b"secret")
    cookie = (await first.sign_in(request, b"password")).partition(";")[0]
    signed_in = request_of(headers={"cookie": cookie})
    session = await first.find(signed_in)
    assert session
    second = Sessions.of(_PASSWORDS, b"password", b"secret")
    assert await second.find(signed_in) == session
    assert second.token(session) == first.token(session)
    for password, secret in ((b"changed", b"secret"), (b"password", b"other"), (b"password", b"")):
        assert await Sessions.of(_PASSWORDS, password, secret).find(signed_in) is None


def test_few_sessions_are_kept_after_they_ended() -> None:
    """B9: none that was signed out is valid again, however many follow."""
    now = int(time.time())
    ended = SignedOut(limit=3)
    for number in range(1, 6):
        ended.add(f"s{number}", now + 1000 * number)
    assert all(ended.has(f"s{number}", now + 1000 * number) for number in range(1, 6))
    assert ended.has("one that would end before them", now + 1500)
    assert not ended.has("another", now + 5000)
    ended.add("past", now - 1)
    ended.add("s6", now + 6000)
    assert not ended.has("another", now + 5000)
