"""The text of SkyDB documents: as stored, as shown, and between mount and worker."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.content.skydb.document_text import TEXT_LIMIT, as_text, as_upload, written
from skymount.errors import MalformedError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(JSON) | st.dictionaries(st.text(), JSON))
def test_any_document(document: object):
    """D1: as stored: what is shown says what was written."""
    text = as_text(as_upload(json.dumps(document).encode()))
    assert json.loads(text) == document
    assert text.endswith(b"\n")
    assert as_text(as_upload(text)) == text


def test_deeply_nested():
    """D1: What would be little else than its indentation has one line."""
    document: list[object] = [1] * 2000
    for _ in range(300):
        document = [document]
    text = as_text(json.dumps(document).encode())
    assert text.count(b"\n") == 1
    assert len(text) < 10_000
    assert json.loads(text) == document


def test_text_that_grows():
    """D1: A text is no longer than a document may be, whatever it was made of."""
    body = b"[" + b",".join([b"1e15"] * 100_000) + b"]"
    with pytest.raises(MalformedError, match="too long"):
        as_text(body, limit=1 << 20)


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (b'["\\ud800", "\\u00e9\\u0007"]', b'[\n  "\\ud800",\n  "\xc3\xa9\\u0007"\n]\n'),
        (b'{"b":1e2,"a":{},"c":[]}', b'{\n  "b": 100.0,\n  "a": {},\n  "c": []\n}\n'),
        (b"[1e400,-0.0]", b"[\n  Infinity,\n  -0.0\n]\n"),
        (b"{}", b"{}\n"),
    ],
)
def test_text_of_a_document(stored: bytes, shown: bytes):
    """D1: over several lines; numbers and escapes are written as JSON readers take them."""
    assert as_text(stored) == shown


def test_upload_that_grows():
    """D1: What is stored is no longer than a document may be either."""
    text = b"[" + b",".join([b"1e15"] * 500_000) + b"]"
    assert len(text) < TEXT_LIMIT
    with pytest.raises(MalformedError, match="too long to be stored"):
        written(text)
