"""The password of a portal, and who guesses it."""

import os
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from skymount.errors import ConfigError
from skymount.server.http import passwords as module
from skymount.server.http.passwords import Passwords, parse_credentials, read_password, site_of
from skymount.server.http_error import HttpError

_HERE, _THERE = "203.0.113.7", "198.51.100.1"


@pytest.fixture
def passwords() -> Passwords:
    return Passwords(b"right")


async def seconds_of(passwords: Passwords, password: bytes, address: str = _HERE) -> float:
    began = trio.current_time()
    assert await passwords.check(address, password) is (password == b"right")
    return round(trio.current_time() - began, 3)


async def test_pauses_grow(passwords: Passwords, autojump_clock: MockClock) -> None:
    """PW1: up to 5 s; a right password waits as well, and ends nothing."""
    wrong = list[int]()
    passwords.on_wrong = partial(wrong.append, 1)
    taken = [await seconds_of(passwords, b"wrong") for _ in range(8)]
    assert taken == [0, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert await seconds_of(passwords, b"right") == 5
    assert await seconds_of(passwords, b"wrong") == 5
    assert len(wrong) == 9


async def test_an_address_that_stopped_starts_anew(
    passwords: Passwords, autojump_clock: MockClock
) -> None:
    """PW1: after an hour."""
    for _ in range(8):
        await seconds_of(passwords, b"wrong")
    await trio.sleep(3500)
    assert await seconds_of(passwords, b"wrong") == 5
    await trio.sleep(3601)
    assert await seconds_of(passwords, b"wrong") == 0


async def test_one_at_a_time_and_few_wait(passwords: Passwords, autojump_clock: MockClock) -> None:
    """PW1: the others are refused without a look at their password."""
    ended, wrong = list[float](), list[int]()
    passwords.on_wrong = partial(wrong.append, 1)

    async def attempt(password: bytes) -> None:
        await passwords.check(_HERE, password)
        ended.append(round(trio.current_time() - began, 3))

    await passwords.check(_HERE, b"wrong")
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(attempt, b"wrong")
        await trio.sleep(0.1)
        for password in (b"wrong", b"right"):
            with pytest.raises(HttpError) as refused:
                await passwords.check(_HERE, password)
            assert refused.value.status == 429
            assert dict(refused.value.headers) == {"Retry-After": "2"}
        assert await seconds_of(passwords, b"right", _THERE) == 0
        assert ended == []
    assert ended == [0.2, 0.6, 1.4, 3, 6.2, 11.2, 16.2, 21.2, 26.2, 31.2]
    assert len(wrong) == 11


async def test_who_gives_up_leaves_room(passwords: Passwords, autojump_clock: MockClock) -> None:
    """PW1: what was cancelled does not wait."""
    await passwords.check(_HERE, b"wrong")
    for _ in range(20):
        with trio.move_on_after(0.1) as scope:
            await passwords.check(_HERE, b"wrong")
        assert scope.cancelled_caught
    assert await seconds_of(passwords, b"right") == 0.2


async def test_what_was_right_lately_is_not_delayed(
    passwords: Passwords, autojump_clock: MockClock
) -> None:
    """PW2: for an hour after it was used last, at the address where it was right."""
    assert await seconds_of(passwords, b"right") == 0
    for _ in range(8):
        await seconds_of(passwords, b"wrong")
    for _ in range(3):
        assert await seconds_of(passwords, b"right") == 0
        await trio.sleep(3000)
        assert await seconds_of(passwords, b"wrong") == 5
    await trio.sleep(601)
    assert await seconds_of(passwords, b"right") == 5
    for address in (_HERE, _THERE):
        await passwords.check(address, b"wrong")
    assert await seconds_of(passwords, b"right", _THERE) == 0.2


async def test_a_user_name_is_part_of_credentials(
    passwords: Passwords, autojump_clock: MockClock
) -> None:
    """PW2: all go with the password, but only the one that was right is not delayed."""
    assert await passwords.check(_HERE, b"right", b"owner")
    await passwords.check(_HERE, b"wrong")
    began = trio.current_time()
    assert await passwords.check(_HERE, b"right", b"owner")
    assert trio.current_time() == began
    assert await passwords.check(_HERE, b"right", b"guest")
    assert trio.current_time() > began


@pytest.mark.parametrize(
    ("address", "site"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/48"),
        ("2001:db8:1::", "2001:db8:1::/48"),
        ("2001:db8:2::", "2001:db8:2::/48"),
        ("fe80::1%eth0", "fe80::/48"),
        ("", ""),
        ("nonsense", "nonsense"),
    ],
)
def test_what_counts_as_one_address(address: str, site: str) -> None:
    """PW3: all addresses of one client."""
    assert site_of(address) == site


async def test_few_addresses_are_remembered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PW3: those that failed last."""
    monkeypatch.setattr(module, "_ADDRESSES", 100)
    passwords = Passwords(b"right")
    for number in range(101):
        assert await seconds_of(passwords, b"wrong", f"192.0.2.{number}") == 0
    assert await seconds_of(passwords, b"right", "192.0.2.0") == 0
    assert await seconds_of(passwords, b"right", "192.0.2.1") == 0.2
    assert await seconds_of(passwords, b"right", "192.0.2.100") == 0.2


async def test_nothing_is_no_password(passwords: Passwords, autojump_clock: MockClock) -> None:
    """It is never right, and nobody guesses it."""
    wrong = list[int]()
    passwords.on_wrong = partial(wrong.append, 1)
    for _ in range(3):
        assert await seconds_of(passwords, b"") == 0
    assert not await Passwords(b"").check(_HERE, b"")
    assert not await Passwords(b"").check(_HERE, b"any")
    assert wrong == []


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
        (b"x" * 4097, 0o600, "more than 4 KiB"),
        (b"x" * 9999 + b"\n", 0o600, "more than 4 KiB"),
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
    assert parse_credentials(credentials)[1] != b"a password that is not guessed"
