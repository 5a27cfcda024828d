"""The skylinks in a JSON document (docs/semantics.md, W6)."""

import pytest

from skymount.content.replication.document_links import links_in
from skymount.wire.skydb_document import decode_document
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import noise, resolver

A, B, C = (Skylink.v1(noise(32, seed), 4096) for seed in (1, 2, 3))


@pytest.mark.parametrize(
    ("document", "links"),
    [
        ([], []),
        ({"a": 1, "b": [None, True, 2.5, "text", ""]}, []),
        ([str(A), {"b": [f"sia://{B}"], f"{C.base32}": 0}], [A, B, C]),
        ([str(A), {str(A): f"https://portal.example/{A}/x?y"}], [A]),
        ({"_data": str(resolver()), "x": str(A)}, [resolver(), A]),
        (["see " + str(A), str(A)[1:], str(A) + "A", "!" * 46], []),
        (["sia://" + "_" * 46], []),
    ],
    ids=["empty", "none", "forms", "once", "v2", "no links", "illegal"],
)
def test_links_of_a_document(document: object, links: list[Skylink]) -> None:
    """W6: texts and members' names that are a link as a whole, each once, in order."""
    assert links_in(document, 10) == links


def test_more_links_than_wanted() -> None:
    document = [str(Skylink.v1(noise(32, seed), 4096)) for seed in range(20)]
    assert [str(link) for link in links_in(document, 7)] == document[:7]


def test_a_deep_document() -> None:
    """It takes no recursion."""
    document: object = str(A)
    for _ in range(100_000):
        document = [document]
    assert links_in(document, 1) == [A]


def test_a_document_as_it_is_stored() -> None:
    stored = b'{"_data":{"x":"%s"},"_v":2}' % str(B).encode()
    assert links_in(decode_document(stored), 10) == [B]
