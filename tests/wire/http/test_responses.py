"""Bodies of responses: uploads, errors, resolved skylinks; and entity tags."""

import json
from hashlib import blake2b

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.wire.http.responses import (
    RESPONSE_LIMIT,
    UploadResult,
    encode_error,
    encode_resolved,
    etag,
    parse_error,
    parse_resolved,
)
from skymount.wire.skylink import Skylink
from tests.wire.vectors import VECTORS

TEXT = "CABAB_1Dt0FJsxqsu_J4TodNCbCGvtFf1Uys_3EgzOlTcg"
LINK = Skylink(TEXT)
ENTRY = Skylink.v2(bytes(32))
ROOT = LINK.root.hex()


def test_upload_answer():
    """The answer is written as portals write it, line feed included, and reads back."""
    body = UploadResult(LINK).encode()
    assert body == b'{"skylink":"%s","merkleroot":"%s","bitfield":8}\n' % (
        TEXT.encode(),
        ROOT.encode(),
    )
    assert UploadResult.parse(body).skylink == LINK


@pytest.mark.parametrize(
    "answer",
    [
        {"skylink": TEXT},
        {"skylink": LINK.base32},
        {"skylink": TEXT, "merkleroot": ROOT.upper()},
        {"skylink": TEXT, "bitfield": 8, "new": [1]},
        {"skylink": TEXT, "merkleroot": ROOT, "bitfield": 8},
    ],
)
def test_upload_answer_may_lack_or_add_members(answer):
    """The skylink alone is enough, since it holds the other two."""
    assert UploadResult.parse(json.dumps(answer).encode()).skylink == LINK


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"skylink": ""},
        {"skylink": None},
        {"skylink": TEXT[:-1]},
        {"skylink": TEXT, "merkleroot": "00" * 32},
        {"skylink": TEXT, "merkleroot": ROOT[:-1], "bitfield": 8},
        {"skylink": TEXT, "bitfield": 0},
        {"skylink": TEXT, "merkleroot": ROOT, "bitfield": 4},
        {"skylink": TEXT, "bitfield": "8"},
        [TEXT],
        {"skylink": TEXT, "pad": "x" * RESPONSE_LIMIT},
    ],
    ids=lambda answer: str(answer)[:60],
)
def test_upload_answer_that_contradicts_itself(answer):
    """An answer without a skylink, or whose members do not fit each other, is malformed."""
    with pytest.raises(MalformedError):
        UploadResult.parse(json.dumps(answer).encode())


@given(st.text())
@example("skylink is blocked")
def test_error_body_round_trip(message):
    """An error's message reads back from its body, which is one line of JSON."""
    body = encode_error(message)
    assert parse_error(body) == message
    assert json.loads(body) == {"message": message}
    assert body.index(b"\n") == len(body) - 1


def test_error_body_of_text_that_is_no_utf8():
    """A message with a lone surrogate is still sent, escaped."""
    assert parse_error(encode_error("no \udcff")) == "no \\udcff"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>429</html>",
        b"null",
        b'"text"',
        b"{}",
        b'{"message":null}',
        b'{"message":["a"]}',
        b'{"message":"\xff"}',
        b'{"message":"\\ud800"}',
        b"[" * 100_000,
        b'{"x":' * 10_000,
        b'{"message":"' + b"x" * RESPONSE_LIMIT + b'"}',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_error_body_of_another_form(body):
    """What is no error of a portal gives no message."""
    assert parse_error(body) == ""


# --- resolved skylinks


@pytest.mark.parametrize("link", [LINK, ENTRY])
def test_resolved_reads_back(link):
    """The answer holds the skylink (docs/wire.md 4.7)."""
    assert encode_resolved(link) == f'{{"skylink":"{link}"}}\n'.encode()
    assert parse_resolved(encode_resolved(link)) == link
    assert parse_resolved(f'{{"x":[1],"skylink":"{link.base32}"}}'.encode()) == link


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b'{"skylink":null}',
        b'{"skylink":7}',
        b'{"skylink":""}',
        b'{"skylink":"\xff"}',
        b'{"skylink":"\\ud800"}',
        json.dumps({"skylink": f"sia://{LINK}"}).encode(),
        json.dumps({"skylink": f"{LINK}\n"}).encode(),
        json.dumps({"skylink": f"{LINK}/a"}).encode(),
        json.dumps({"skylink": "x" * 10_000}).encode(),
        encode_resolved(LINK)[:-2],
        encode_resolved(LINK) + b"x",
        b" " * RESPONSE_LIMIT + encode_resolved(LINK),
        b'{"x":' + b"[" * 50_000,
    ],
    ids=lambda body: repr(body[:60]),
)
def test_bad_resolved(body):
    """An answer of another form, or beyond the limit, is refused."""
    with pytest.raises(MalformedError) as caught:
        parse_resolved(body)
    assert len(str(caught.value)) < 300


# --- entity tags


def documented_etag(*texts: str) -> str:
    """The later rule of docs/wire.md 4.4: the hash of Sia-encoded strings."""
    encoded = [text.encode() for text in texts]
    joined = b"".join(len(text).to_bytes(8, "little") + text for text in encoded)
    return blake2b(joined, digest_size=32).hexdigest()


@pytest.mark.parametrize("case", VECTORS["etag_siad"], ids=lambda case: case["source"])
def test_etag_follows_the_later_rule(case):
    """The reference reproduces siad's quoted tag; the tag in use puts "1" for the method, last."""
    asked = (case["skylink"], case["path"], case["format"])
    early = documented_etag(asked[0], case["method"], *asked[1:])
    assert early == case["etag"]
    assert etag(Skylink(asked[0]), *asked[1:]) == f'"{documented_etag(*asked, "1")}"'


def test_etag_tells_everything_apart():
    """Skylink, path and format each change the tag, and none flows into the next."""
    tags = [
        etag(LINK, path, archive)
        for path, archive in [("/", ""), ("/a", ""), ("/", "a"), ("", "/"), ("/\udcff", "")]
    ]
    assert len({*tags, etag(Skylink.v2(LINK.root), "/", "")}) == 6
