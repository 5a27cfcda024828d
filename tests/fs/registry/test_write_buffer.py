"""What is being written to an entry, before it is posted."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.fs.registry.write_buffer import WriteBuffer


def opened(content: bytes | None = b"old", *, limit: int = 10) -> WriteBuffer[str]:
    """Return the buffer of a file opened without truncation; None for one that is not there."""
    base = None if content is None else "base"
    return WriteBuffer(limit, bytearray(content or b""), base, content)


def truncated(content: bytes | None = b"old") -> WriteBuffer[str]:
    """Return the buffer of a file opened with O_TRUNC."""
    buffer = opened(content)
    buffer.resize(0)
    return buffer


def due(buffer: WriteBuffer[str]) -> str:
    """Return when the content has to be posted."""
    if buffer.is_due():
        return "now"
    return "at release" if buffer.is_due(at_release=True) else "nothing"


def refused(number: int, *call: object) -> None:
    """Expect an OSError of that number from calling the first with the others."""
    function, *args = call
    with pytest.raises(OSError) as caught:
        function(*args)  # type: ignore[operator]
    assert caught.value.errno == number


def test_nothing_is_due_of_what_was_only_opened():
    """G8: Nothing is posted when nothing has changed."""
    assert due(opened()) == "nothing"
    assert due(opened(None)) == "nothing"


def test_written_bytes_are_due_at_once():
    """Any close posts what differs from what is stored."""
    buffer = opened()
    assert buffer.write(1, b"LD") == 2
    assert (bytes(buffer.data), due(buffer), buffer.base) == (b"oLD", "now", "base")


def test_the_same_bytes_written_over_themselves():
    """They are due, as a change of what is there: something else may be pending (G12)."""
    buffer = opened()
    buffer.write(0, b"old")
    assert (due(buffer), buffer.base) == ("now", "base")


def test_truncation_waits_for_the_last_close():
    """A shell flushes a duplicate of `>` before anything is written."""
    buffer = truncated()
    assert (due(buffer), bytes(buffer.data)) == ("at release", b"")
    buffer.write(0, b"new")
    assert due(buffer) == "now"


def test_rewrite_is_based_on_nothing():
    """G10: a rewrite of the whole content wins: it is not made from what was there.

    It is due even with the same content, since somebody may have changed that meanwhile.
    """
    buffer = truncated()
    buffer.write(0, b"old")
    assert (due(buffer), buffer.base) == ("now", None)


def test_truncation_after_writing():
    """What was written and then cut away is not posted before the last close."""
    buffer = opened()
    buffer.write(0, b"new")
    buffer.resize(0)
    assert due(buffer) == "at release"


@pytest.mark.parametrize("size", [1, 5])
def test_other_sizes_are_changes(size: int):
    """Cutting and extending are partial edits; to the size that it has is none."""
    buffer = opened()
    buffer.resize(3)
    assert due(buffer) == "nothing"
    buffer.resize(size)
    assert (due(buffer), buffer.base) == ("now", "base")
    assert bytes(buffer.data) == b"old\0\0"[:size]


def test_hole_is_filled_with_zeros():
    """Writing behind the end leaves zeros between."""
    buffer = opened()
    buffer.write(5, b"x")
    assert bytes(buffer.data) == b"old\0\0x"


def test_limit():
    """G9: More than 113 bytes are EFBIG at write, and the entry stays as it is.

    What was written before is not posted either, until the file is emptied.
    """
    buffer = opened(limit=10)
    buffer.write(0, b"x" * 10)
    refused(errno.EFBIG, buffer.write, 10, b"y")
    assert (len(buffer.data), due(buffer)) == (10, "nothing")
    refused(errno.EFBIG, buffer.write, 0, b"y")
    buffer.resize(5)
    assert due(buffer) == "nothing"
    buffer.resize(0)
    buffer.write(0, b"y")
    assert (bytes(buffer.data), due(buffer)) == (b"y", "now")


def test_size_beyond_the_limit():
    """A truncation to too much changes nothing."""
    buffer = opened(limit=10)
    refused(errno.EFBIG, buffer.resize, 11)
    assert (bytes(buffer.data), due(buffer)) == (b"old", "nothing")
    buffer.write(3, b"x")
    assert due(buffer) == "now"


def test_posted():
    """What is written after a post is a change of what was posted."""
    buffer = truncated()
    buffer.write(0, b"new")
    buffer.posted("next", buffer.take())
    assert (due(buffer), buffer.base) == ("nothing", "next")
    buffer.write(3, b"er")
    assert (due(buffer), buffer.base) == ("now", "next")
    buffer.resize(3)
    assert (bytes(buffer.data), due(buffer), buffer.base) == (b"new", "now", "next")


def test_written_while_it_is_posted():
    """What comes while a post is under way is due after it, whether that fails or not."""
    for ends in ("posted", "failed"):
        buffer = opened()
        buffer.write(0, b"new")
        data = buffer.take()
        buffer.write(3, b"er")
        if ends == "posted":
            buffer.posted("next", data)
        else:
            buffer.failed(OSError(), b"")
        assert (data, due(buffer), buffer.error) == (b"new", "now", None)


def test_failed():
    """A failure is kept until something new is written; then all is due again."""
    error = OSError()
    for change in ("write", "resize"):
        buffer = opened()
        buffer.write(0, b"new")
        buffer.take()
        buffer.failed(error, b"")
        assert (buffer.error, due(buffer)) == (error, "nothing")
        if change == "write":
            buffer.write(0, b"more")
        else:
            buffer.resize(1)
        assert (buffer.error, due(buffer)) == (None, "now")


def test_cut_off():
    """Of a file that was removed or renamed nothing is posted, and writing says so."""
    buffer = opened()
    buffer.write(0, b"new")
    buffer.is_cut_off = True
    assert due(buffer) == "nothing"
    refused(errno.ESTALE, buffer.write, 0, b"x")
    refused(errno.ESTALE, buffer.resize, 0)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 12), st.binary(min_size=1, max_size=12)), st.integers(0, 12)
        )
    )
)
def test_behaves_as_a_file(steps: list[tuple[int, bytes] | int]):
    """Any writes and truncations leave the bytes that a file would have, or are EFBIG."""
    buffer = opened(b"", limit=10)
    model = b""
    overflowed = False
    for step in steps:
        try:
            if isinstance(step, int):
                buffer.resize(step)
                model = model[:step].ljust(step, b"\0")
                overflowed = overflowed and step > 0
            else:
                offset, data = step
                buffer.write(offset, data)
                model = model[:offset].ljust(offset, b"\0") + data + model[offset + len(data) :]
        except OSError:
            overflowed = overflowed or not isinstance(step, int)
        assert bytes(buffer.data) == model
        assert buffer.overflowed == overflowed


def test_what_was_lent_does_not_change():
    """What is written while content is posted goes into a copy."""
    buffer = opened(b"old")
    assert buffer.lend() == b"old"
    taken = buffer.take()
    buffer.write(0, b"new")
    assert (taken, buffer.data) == (b"old", b"new")
    taken = buffer.take()
    buffer.resize(5)
    assert (taken, buffer.data) == (b"new", b"new\0\0")
    taken = buffer.lend()
    buffer.resize(0)
    buffer.write(0, b"x")
    assert (taken, buffer.data) == (b"new\0\0", b"x")
