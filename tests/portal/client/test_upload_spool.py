"""What can be read only once is kept up to a bound, so that it can be read again."""

import io

import pytest

from skymount.portal.client.upload_spool import UploadSpool
from tests.fakes.skyfiles import noise

CONTENT = noise(9 << 20, 3)  # more than is kept in memory


class Full(io.BytesIO):
    """A stream that counts how often it is read to its end."""

    ends = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.ends += not data
        return data


@pytest.fixture
def source() -> Full:
    return Full(CONTENT)


def test_read_again_and_again(source: Full):
    spool = UploadSpool(source, 10 << 20)
    for _ in range(3):
        assert b"".join(spool.read()) == CONTENT
    assert spool.unrepeatable == ""
    assert source.ends == 3
    spool.close()


@pytest.mark.parametrize("pieces", [0, 1, 5])
def test_a_reader_that_stopped_early_is_followed_by_one_that_gets_all(source: Full, pieces: int):
    spool = UploadSpool(source, 10 << 20)
    first = spool.read()
    assert b"".join(next(first) for _ in range(pieces)) == CONTENT[: pieces << 20]
    assert b"".join(spool.read()) == CONTENT
    spool.close()


def test_beyond_the_bound_it_cannot_be_read_again(source: Full):
    """The reader gets all of it, and the reason says how much would be kept."""
    spool = UploadSpool(source, 2 << 20)
    assert b"".join(spool.read()) == CONTENT
    assert spool.unrepeatable == ("it cannot be sent again: only its first 2 MiB would be kept")
    spool.close()


def test_exactly_the_bound_is_kept(source: Full):
    spool = UploadSpool(source, len(CONTENT))
    assert b"".join(spool.read()) == CONTENT
    assert b"".join(spool.read()) == CONTENT
    spool.close()


def test_without_room_it_cannot_be_read_again(source: Full, monkeypatch: pytest.MonkeyPatch):
    """The first reader gets all of it all the same."""
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    spool = UploadSpool(source, 10 << 20)
    assert b"".join(spool.read()) == CONTENT
    assert spool.unrepeatable.startswith("it cannot be sent again: what was read could not be kept")
    spool.close()
