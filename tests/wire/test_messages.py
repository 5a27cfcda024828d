"""Requests, answers, multipart headers and entity tags of the content endpoints."""

import json
from email.parser import BytesHeaderParser
from functools import partial
from hashlib import blake2b
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.wire import messages
from skymount.wire.dialect import SKYNET, SVC
from skymount.wire.messages import (
    ANSWER_LIMIT,
    PART_HEADER_LIMIT,
    Part,
    Request,
    UploadResult,
    basic_credentials,
    encode_error,
    etag,
    parse_error,
    quote_path,
)
from skymount.wire.skylink import Skylink

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())
TEXT = "CABAB_1Dt0FJsxqsu_J4TodNCbCGvtFf1Uys_3EgzOlTcg"
LINK = Skylink.parse(TEXT)
ROOT = LINK.root.hex()

of_content = partial(Request, may_tell_metadata=True)

# --- requests


@pytest.mark.parametrize(
    ("request_made", "expected"),
    [
        (messages.download(LINK), of_content("GET", f"/{TEXT}")),
        (messages.download(LINK, method="HEAD"), of_content("HEAD", f"/{TEXT}")),
        (
            messages.download(LINK, "a b/c+ü?.txt"),
            of_content("GET", f"/{TEXT}/a%20b/c%2B%C3%BC%3F.txt"),
        ),
        (
            messages.download(LINK, "d", archive="tar", attachment=True, timeout=0),
            of_content("GET", f"/{TEXT}/d?format=tar&attachment=true&timeout=0"),
        ),
        (messages.metadata(SVC, LINK), Request("GET", f"/svc/metadata/{TEXT}")),
        (messages.base_sector(SKYNET, LINK), Request("GET", f"/skynet/basesector/{TEXT}")),
        (
            messages.sector(SVC, b"\1" * 32, 64, 128),
            Request("GET", f"/svc/root?root={'01' * 32}&offset=64&length=128"),
        ),
        (messages.upload(SKYNET), Request("POST", "/skynet/skyfile", is_answered=True)),
        (
            messages.upload(SVC, filename="a/b &c", query=[("dryrun", "true")]),
            Request("POST", "/svc/skyfile?filename=a%2Fb%20%26c&dryrun=true", is_answered=True),
        ),
    ],
)
def test_request(request_made, expected):
    """Each call is the request of the contract and of wire notes 3.1, 4.1, 4.2 and 4.7."""
    assert request_made == expected


@given(st.text(max_size=20))
def test_quoted_path_reads_back(path):
    """A path decodes to itself by the rules of a path and by those of a query (wire notes 4.1)."""
    quoted = quote_path(path)
    assert unquote(quoted) == path
    assert dict(parse_qsl(f"p={quoted}", keep_blank_values=True)) == {"p": path}
    assert quoted.isascii()
    assert quoted.count("/") == path.count("/")
    assert not set(quoted) & set(" ?#\n\r\0")


@given(st.text(min_size=1, max_size=20))
def test_upload_names_any_file(filename):
    """The filename parameter carries any name."""
    query = urlsplit(messages.upload(SVC, filename=filename).target).query
    assert parse_qsl(query) == [("filename", filename)]


def test_credentials():
    """Basic authentication with an empty user name and the API key as password (contract)."""
    assert basic_credentials("pä:ss") == "Basic OnDDpDpzcw=="


# --- answers


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
        {"skylink": TEXT, "pad": "x" * ANSWER_LIMIT},
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
        b'{"message":"' + b"x" * ANSWER_LIMIT + b'"}',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_error_body_of_another_form(body):
    """What is no error of a portal gives no message."""
    assert parse_error(body) == ""


json_values = st.sampled_from(
    [TEXT, LINK.base32, ROOT, 8, 0, 8.0, None, True, 1e300, 1 << 70, -1, "", "\ud800", "\0", [], {}]
)
json_near = st.builds(
    lambda first, rest, last: json.dumps({"skylink": first} | rest | last).encode(),
    st.just(TEXT) | json_values,
    st.dictionaries(st.sampled_from(["merkleroot", "bitfield", "message", "x"]), json_values),
    st.just({}) | st.just({"bitfield": 8, "merkleroot": ROOT}),
)
mutated = st.builds(
    lambda body, at, junk: body[:at] + junk + body[at + len(junk) :],
    st.sampled_from([UploadResult(LINK).encode(), encode_error("failed: é")]),
    st.integers(0, 160),
    st.binary(max_size=3),
)


@given(st.binary() | json_near | mutated)
@example(b'{"skylink":' + b"[" * 60_000)
def test_any_body_parses_or_is_malformed(body):
    """No body makes the readers fail in another way."""
    assert isinstance(parse_error(body), str)
    try:
        result = UploadResult.parse(body)
    except MalformedError:
        return
    assert UploadResult.parse(result.encode()) == result


# --- parts


def headers_of(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Take a part's header lines apart as a multipart reader does."""
    assert raw.endswith(b"\r\n")
    lines = raw[:-2].split(b"\r\n")
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


names = st.text(max_size=15) | st.text(
    st.sampled_from("\"\\;=%'\r\n\t\0\x7f /é😀\u2028\x85"), max_size=15
)


@given(st.sampled_from(["file", "files[]", 'a"b\\']), names, st.integers(0, 0o7777))
@example("file", "a\r\nX-Evil: 1", 0)
@example("file", "UTF-8''%41", 0)
@example("file", ' "', 0)
def test_part_round_trip(field, filename, mode):
    """Any file name comes back as it was, in exactly the header lines that were meant."""
    part = Part(field, filename, "text/plain; charset=utf-8", mode)
    headers = headers_of(part.encode())
    expected = [b"Content-Disposition", b"Content-Type", b"Mode"]
    assert [name for name, _ in headers] == expected[: 2 + bool(mode)]
    assert Part.parse(headers) == part


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=15))
def test_part_name_reads_back_with_another_parser(filename):
    """The standard library's mail parser, which strips names, finds the same printable ASCII."""
    header = BytesHeaderParser().parsebytes(Part("file", filename).encode())
    assert header.get_filename() == filename.strip()


@pytest.mark.parametrize("part", [Part("f\r\nX: 1", "a"), Part("f", "a", "text/plain\r\nX: 1")])
def test_control_characters_add_no_header(part):
    """A field name or type with line ends stays in its line."""
    names = [name for name, _ in headers_of(part.encode())]
    assert b"X" not in names


@pytest.mark.parametrize(
    ("disposition", "field", "filename"),
    [
        (b'form-data; name="file"; filename="a/b.txt"', "file", "a/b.txt"),
        (b"form-data; name=files[]; filename=a.txt", "files[]", "a.txt"),
        (b"Form-Data ;NAME=file ; FileName = a b ", "file", "a b"),
        (rb'form-data; name="file"; filename="C:\dir\x.txt"', "file", r"C:\dir\x.txt"),
        (rb'form-data; name="file"; filename="a\"b\\c"', "file", 'a"b\\c'),
        (b'form-data; name="file"; filename="a%22;=b"', "file", "a%22;=b"),
        ('form-data; name="file"; filename="ü"'.encode(), "file", "ü"),
        (b"form-data; name=f; filename=x; filename*=utf-8''%C3%BC", "f", "ü"),
        (b"form-data; name=f; filename*=UTF-8'de'%C3%BC; filename=x", "f", "ü"),
        (b'form-data; name=a; name=b; filename=""', "a", ""),
        (b"form-data", "", ""),
    ],
)
def test_dispositions_of_clients(disposition, field, filename):
    """Field and file name as curl, browsers and SDKs write them, the name with its directories."""
    part = Part.parse([(b"Content-Disposition", disposition), (b"content-TYPE", b" text/css ")])
    assert (part.field, part.filename, part.contenttype, part.mode) == (
        field,
        filename,
        "text/css",
        0,
    )


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"Content-Disposition", b"attachment; filename=a")],
        [(b"Content-Disposition", b'form-data; filename="a')],
        [(b"Content-Disposition", b'form-data; filename="a\\"')],
        [(b"Content-Disposition", b"form-data; filename")],
        [(b"Content-Disposition", b'form-data; filename="a"b')],
        [(b"Content-Disposition", b'form-data; filename="\xff"')],
        [(b"Content-Disposition", b"form-data; filename*=UTF-8''%FF")],
        [(b"Content-Disposition", b"form-data; filename*=latin1''%FC")],
        [(b"Content-Disposition", b"form-data; filename*=x")],
        [(b"Content-Disposition", b"form-data"), (b"Mode", b"888")],
        [(b"Content-Disposition", b"form-data"), (b"Mode", b"0o644")],
        [(b"Content-Disposition", b"form-data"), (b"Mode", b"-644")],
        [(b"Content-Disposition", b"form-data"), (b"Mode", b"7" * 5000)],
        [(b"Content-Disposition", b"form-data"), (b"X", b"x" * PART_HEADER_LIMIT)],
    ],
)
def test_bad_part_is_malformed(headers):
    """A part that is no form data, or whose name or mode cannot be read, is refused."""
    with pytest.raises(MalformedError):
        Part.parse(headers)


@pytest.mark.parametrize(("text", "mode"), [(b"644", 0o644), (b" 0755 ", 0o755), (b"", 0)])
def test_mode_is_octal(text, mode):
    """The Mode header of a part is octal text (wire notes 3.3)."""
    assert Part.parse([(b"Content-Disposition", b"form-data"), (b"Mode", text)]).mode == mode


chunks = st.lists(
    st.sampled_from([*b"\"\\;=*' %\0\n\xff\xc3aF0"]).map(lambda byte: bytes([byte]))
    | st.sampled_from([b"UTF-8''%C3", b'"a"', b"%C3%BC", "ü".encode()]),
    max_size=4,
).map(b"".join)
parameters = st.builds(
    lambda name, value, form: b"; " + name + form % value,
    st.sampled_from([b"name", b"filename", b"filename*", b"x"]),
    chunks,
    st.sampled_from([b'="%b"', b"=%b", b" = %b ", b"=UTF-8''%b", b"%b"]),
)
dispositions = st.lists(parameters, max_size=3).map(lambda found: b"form-data" + b"".join(found))
values = st.binary(max_size=40) | dispositions | st.sampled_from([b"644", b"8", b"7" * 40])
header_names = st.sampled_from([b"Content-Disposition", b"content-type", b"Mode", b"x", b"\xff"])


@given(
    st.builds(
        lambda first, rest: [(b"Content-Disposition", first), *rest],
        dispositions,
        st.lists(st.tuples(header_names, values), max_size=2),
    )
)
@example([(b"Content-Disposition", b'form-data; filename="' + b"\\" * 30_000)])
@example([(b"Content-Disposition", b"form-data;" + b" " * 30_000 + b"x")])
@example([(b"Content-Disposition", b"form-data" + b"; a=b" * 10_000)])
def test_any_part_parses_or_is_malformed(headers):
    """No header of a part makes the parser fail in another way, or take long."""
    try:
        part = Part.parse(headers)
    except MalformedError:
        return
    assert part.mode >= 0
    part.filename.encode()


# --- entity tags


def documented_etag(*texts: str) -> str:
    """The later rule of wire notes 4.4: the hash of Sia-encoded strings."""
    encoded = [text.encode() for text in texts]
    joined = b"".join(len(text).to_bytes(8, "little") + text for text in encoded)
    return blake2b(joined, digest_size=32).hexdigest()


@pytest.mark.parametrize("case", VECTORS["etag_siad"], ids=lambda case: case["source"])
def test_etag_follows_the_later_rule(case):
    """The reference reproduces siad's quoted tag; the tag in use puts "1" for the method, last."""
    asked = (case["skylink"], case["path"], case["format"])
    early = documented_etag(asked[0], case["method"], *asked[1:])
    assert early == case["etag"]
    assert etag(Skylink.parse(asked[0]), *asked[1:]) == f'"{documented_etag(*asked, "1")}"'


def test_etag_tells_everything_apart():
    """Skylink, path and format each change the tag, and none flows into the next."""
    tags = [
        etag(LINK, path, archive)
        for path, archive in [("/", ""), ("/a", ""), ("/", "a"), ("", "/"), ("/\udcff", "")]
    ]
    assert len({*tags, etag(Skylink.v2(LINK.root), "/", "")}) == 6
