"""SkyDB documents as they are uploaded: wrapped, unwrapped, and named."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skymount.errors import MalformedError, WrongTypeError
from skymount.wire.skydb_document import (
    DOCUMENT_LIMIT,
    decode_document,
    document_name,
    encode_document,
)
from tests.wire.vectors import VECTORS


def test_file_names():
    """A document's file is named by the hex of its data key, or by the hashed key as it is."""
    for case in VECTORS["skydb_v2_file_name"]:
        assert document_name(case["dataKey"], hashed=False) == case["filename"]
    assert document_name("ab" * 32, hashed=True) == "dk:" + "ab" * 32
    assert document_name("π", hashed=False) == "dk:cf80"


@pytest.mark.parametrize(
    ("body", "document"),
    [
        ({"_data": {"a": 1}, "_v": 1}, {"a": 1}),
        ({"_data": {}, "_v": 2}, {}),
        ({"_data": [], "_v": 2}, []),
        ({"_data": "text", "_v": True}, "text"),
        ({"_data": {"a": 1}, "_v": 2, "more": 3}, {"a": 1}),
        ({"_data": {"_data": {"a": 1}, "_v": 2}, "_v": 2}, {"_data": {"a": 1}, "_v": 2}),
        ({"_data": {"a": 1}}, {"_data": {"a": 1}}),
        ({"_data": {"a": 1}, "_v": 0}, {"_data": {"a": 1}, "_v": 0}),
        ({"_data": None, "_v": 2}, {"_data": None, "_v": 2}),
        ({"_data": "", "_v": 2}, {"_data": "", "_v": 2}),
        ({"_v": 2}, {"_v": 2}),
        ([{"_data": 1, "_v": 2}], [{"_data": 1, "_v": 2}]),
        ({"plain": 1}, {"plain": 1}),
    ],
)
def test_unwrapping(body: Any, document: Any):
    """What the SDKs wrapped is unwrapped, where JavaScript takes both members for true."""
    assert decode_document(json.dumps(body).encode()) == document


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(JSON) | st.dictionaries(st.text(st.characters(exclude_categories=())), JSON))
def test_any_document(document: Any):
    """Whatever JSON can hold is read as it was written, half surrogate pairs too."""
    body = encode_document(document)
    assert body.startswith(b'{"_data":')
    assert decode_document(body) == document


def test_what_json_cannot_hold():
    """C3: another type is a WrongTypeError, a number or a text of no JSON a MalformedError."""
    for document in ("text", 1, None, {"a": b"bytes"}, [{1, 2}], {(1, 2): 3}):
        with pytest.raises(WrongTypeError):
            encode_document(document)
    ring: list[Any] = []
    ring.append(ring)
    for number in (ring, [float("nan")], {"a": float("inf")}):
        with pytest.raises(MalformedError):
            encode_document(number)


def test_limit_of_a_document():
    """C14: it counts the bytes that are uploaded, with what is around the document."""
    around = len(encode_document([""]))
    assert len(encode_document(["x" * (DOCUMENT_LIMIT - around)])) == DOCUMENT_LIMIT
    with pytest.raises(MalformedError, match="it may have 64 MiB"):
        encode_document(["x" * (DOCUMENT_LIMIT - around + 1)])
