"""The API password: files, pipes, and the Authorization header."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import ConfigError
from skymount.server.http.passwords import parse_credentials, read_password


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
