"""The codec: every parser of what portals, links and uploads say."""

import json

import msgspec

from skymount.errors import BadSignatureError, MalformedError
from skymount.server.http.query_params import decode_path
from skymount.wire import merkle
from skymount.wire.base_sector import (
    LAYOUT_SIZE,
    Layout,
    build_fanned_out,
    build_inline,
    check_fanout,
    hash_part,
    is_authentic,
    parse_base_sector,
    spill_sizes,
    split_body,
)
from skymount.wire.dialect import PRESETS, dialect_named
from skymount.wire.hns import encode_resolution, parse_domain, parse_resolution, parse_txt
from skymount.wire.http.byte_range import RANGES_LIMIT, ByteRange, parse_range
from skymount.wire.http.multipart import PartHeader
from skymount.wire.http.requests import quote_path
from skymount.wire.http.responses import (
    UploadResult,
    encode_error,
    encode_resolved,
    parse_error,
    parse_resolved,
)
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.metadata import (
    Metadata,
    Subfile,
    check_path,
    encode_metadata,
    fits_header,
    outline_metadata,
    parse_metadata,
    select,
    subpath_metadata,
)
from skymount.wire.registry_entry import (
    DATA_LIMIT,
    MAX_REVISION,
    Entry,
    SignedEntry,
    check_update,
    hash_data_key,
    linked_skylink,
    parse_public_key,
    parse_tweak,
)
from skymount.wire.registry_proof import HOPS, check_proof, encode_proof
from skymount.wire.skydb_document import DOCUMENT_LIMIT, decode_document, encode_document
from skymount.wire.skyfile_encryption import CIPHER_XCHACHA20, SkyfileKey, pick_key
from skymount.wire.skykey import Kind, Skykey, check_id, check_name, encode_list, parse_list
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink, split_link
from tests.fuzz.engine import attempt, refusal_of, target

LINK = Skylink("CABAB_1Dt0FJsxqsu_J4TodNCbCGvtFf1Uys_3EgzOlTcg")
TEXT = str(LINK).encode()
BASE32 = LINK.base32.encode()
PAIR = SigningKeyPair.from_seed("insecure test seed")
TWEAK = hash_data_key("app")
SIGNED = Entry(TWEAK, bytes(LINK), 7).sign(PAIR.private_key)
V2 = SIGNED.link
KEYS = {kind: Skykey(kind, bytes(32), bytes(range(24)), "holidays") for kind in Kind}
NONCE = bytes(range(24))

JSON = (
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"true", b"-1", b"7", b"1.0", b"1e400"),
    *(b'"\\ud800"', b'"\\u0000"', b"\\", b"\xff", b"\xed\xa0\x80", b"NaN", b"\xef\xbb\xbf", b" "),
    *(b"[" * 1500, b'{"a":' * 400, b"9" * 5000, b'"a"', b'""', b"{}", b"[]", b"\n"),
)


def text_of(data: bytes) -> str:
    """Return any text, also one that is no valid Unicode."""
    return data.decode("utf-8", "surrogateescape")


# --- links and names -------------------------------------------------------------

LINKS = (
    *(TEXT, BASE32, b"sia:", b"sia://", b"svc:", b"svc://", b"https://", b"http://", b"HTTP://["),
    *(b"/", b"?", b"#", b".", b"@", b"%", b":", b"]", b"\xff", b"\0", b"\n", b" ", "／".encode()),
    *(b"=", b"/file/", "\u0663".encode(), "é".encode(), b"//", b"/" * 300),
)


@target(
    TEXT,
    BASE32,
    BASE32.upper(),
    str(V2).encode(),
    b"sia://" + TEXT + b"/a/b?c#d",
    b"https://" + BASE32 + b".p.example:8/x",
    b"https://portal.example/file/" + TEXT + b"/",
    b"http://[::1]:1/" + TEXT,
    tokens=LINKS,
)
def skylink_text(data: bytes) -> None:
    """A link is a skylink that is written back, and a path; or it is malformed."""
    text = text_of(data)
    parsed = attempt(Skylink, text)
    if parsed is not None:
        assert split_link(text) == (parsed, "")
    found = attempt(split_link, text)
    if found is None:
        return
    link, path = found
    assert path == "" or path.startswith("/")
    assert Skylink(str(link)) == Skylink(link.base32) == link
    assert Skylink.from_bytes(bytes(link)) == link
    assert link.version in (1, 2)
    if link.version == 1:
        assert 0 <= link.offset < link.offset + link.fetch_size <= SECTOR_SIZE
        assert not link.offset % 4096


@target(bytes(LINK), bytes(V2), bytes(34), TEXT, b"\x01\x00" + bytes(32))
def skylink_bytes(data: bytes) -> None:
    """Raw bytes are the skylink that gives them back; an entry's data is one, or none."""
    link = attempt(Skylink.from_bytes, data)
    assert link is None or bytes(link) == data
    found = linked_skylink(data)
    if found is not None and len(data) == len(bytes(found)):
        assert found == link
        assert any(data)


@target(
    b"example",
    b"HNS://Example./",
    "bücher.example".encode(),
    b"xn--bcher-kva.a_b",
    "İ.ẞ.ſ.ﬃ".encode(),
    "\u1e9e".encode() * 62,
    b"xn--" + b"z" * 59,
    tokens=(
        *(b"xn--", b".", b"-", b"_", b"hns://", b"/", b" ", "。".encode(), "ü".encode(), b"%2f"),
        *("\u200d".encode(), "\u0130".encode(), b"\xff", b"\0", b"a" * 63, b"xn--a-", b"A", b"9"),
    ),
)
def domain(data: bytes) -> None:
    """A domain is in the one form that it is looked up by, or it is malformed."""
    found = attempt(parse_domain, text_of(data))
    if found is None:
        return
    assert parse_domain(found) == found == found.lower()
    assert found.isascii()
    assert quote_path(found) == found
    assert len(found) <= 253
    assert all(0 < len(label) <= 63 for label in found.split("."))


_ENTRY = f"skyns://ed25519%3A{PAIR.public_hex}/{TWEAK.hex()}".encode()


@target(
    TEXT,
    b"sia://" + TEXT + b"/docs?a#b",
    _ENTRY,
    b"sia:" * 1000,
    b"skyns://" + b"/" * 4000,
    tokens=(*LINKS, b"skyns://", b"svcns://", b"ed25519%3A", b"ed25519:", _ENTRY[20:84], _ENTRY),
)
def txt_record(data: bytes) -> None:
    """A TXT record is read or is about something else; what is read is answered and read back."""
    record = parse_txt(text_of(data))
    if record is not None:
        assert parse_resolution(encode_resolution(record)) == record


_SKYLINK_ANSWER = b'{"skylink":"sia://' + TEXT + b'/a"}'
_ENTRY_ANSWER = (
    f'{{"registry":{{"publickey":"ed25519:{PAIR.public_hex}","datakey":"{TWEAK.hex()}"}}}}'
).encode()


@target(
    _SKYLINK_ANSWER,
    _ENTRY_ANSWER,
    tokens=(*JSON, *LINKS, b'"skylink":', b'"registry":', b'"publickey":', b'"datakey":'),
)
def resolution(data: bytes) -> None:
    """What a portal says of a domain names something, or is malformed."""
    record = attempt(parse_resolution, data)
    if record is not None:
        assert parse_resolution(encode_resolution(record)) == record


@target(b"svc", b"skynet", b"")
def dialect_name(data: bytes) -> None:
    found = attempt(dialect_named, text_of(data[:80]))
    assert found is None or found in PRESETS.values()


# --- base sectors ----------------------------------------------------------------

_SMALL = build_inline(b'{"filename":"a"}', b"content")
_SEALED = SkyfileKey.of(KEYS[Kind.PRIVATE], NONCE).build_inline(b"{}", b"content")[:300]


@target(
    _SMALL,
    build_fanned_out(5 << 20, bytes(64), b"{}")[0],
    bytes(Layout(1, 5 << 20, 32, 1)) + bytes(64),
    bytes(Layout(3, 4, cipher=CIPHER_XCHACHA20)) + b"encrypted",
    bytes(Layout(90 << 20, 4, 960, 10, 20)) + bytes(964),
    b"\1" + b"\xff" * 200,
    _SEALED,
    tokens=(bytes(8), b"\xff" * 8, b"\1" + bytes(7), b"\x63" + bytes(7), b"\0\0@" + bytes(5)),
)
def base_sector(data: bytes) -> None:
    """A base sector has the parts that its layout says, and judges any chunk; or is malformed."""
    layout = attempt(Layout.parse, data)
    if layout is None:
        assert attempt(parse_base_sector, data) is None
        return
    assert bytes(layout) == data[:LAYOUT_SIZE]
    body = attempt(split_body, layout, data[LAYOUT_SIZE:])
    assert body is None or sum(map(len, body)) == layout.body_size
    fits = attempt(check_fanout, layout, data[LAYOUT_SIZE:])
    if layout.data_pieces < 30:
        chunk = data[:100]
        parts = [hash_part(layout, chunk)] if layout.data_pieces else []
        for index in (0, 1, 1 << 60):
            is_authentic(layout, data[LAYOUT_SIZE:], index, parts)
    parsed = attempt(parse_base_sector, data)
    if parsed is None:
        return
    assert parsed.layout == layout
    if layout.is_extended:
        sizes = spill_sizes(layout.body_size)
        assert len(parsed.roots) == sizes[0] <= SECTOR_SIZE - LAYOUT_SIZE
        assert sizes[-1] == layout.body_size
        assert len(sizes) < 10
    else:
        assert fits is None or layout.data_pieces
        assert (len(parsed.fanout), len(parsed.metadata)) == (
            layout.fanout_size,
            layout.metadata_size,
        )
    assert parsed.payload is None or len(parsed.payload) == layout.filesize


@target(_SEALED, _SMALL, b"\1" + bytes(98), bytes(Layout(1, 2, cipher=CIPHER_XCHACHA20)))
def encrypted_layout(data: bytes) -> None:
    """An encrypted layout opens, or is malformed, with whatever key."""
    stored = attempt(Layout.parse, data)
    if stored is None:
        return
    key = pick_key(stored, KEYS.values()) or SkyfileKey.of(KEYS[Kind.PUBLIC], NONCE)
    layout = attempt(key.open_layout, data)
    if layout is not None:
        assert not layout.is_extended
        assert layout.is_inline or layout.data_pieces == 1
        assert (layout.cipher, layout.key_data) == (stored.cipher, stored.key_data)


@target(b"\x00content", b"\x03" + bytes(200), b"\x09" + b"\0x" * 700, b"\x01" + b"a" * 640)
def merkle_roots(data: bytes) -> None:
    """The compiled form of the tree says what the plain one says."""
    pieces = 1 + data[0] % 12 if data else 1
    piece = data[0] // 12 % pieces if data else 0
    chunk = data[1 : 1 + LAYOUT_SIZE * 20]
    groups = merkle.piece_groups(chunk, piece, pieces)
    assert groups == merkle.plain_groups(chunk, piece * 64, pieces * 64)
    assert merkle.joined_root([groups]) == merkle.plain_join(groups)


# --- metadata --------------------------------------------------------------------

METADATA = (
    encode_metadata(Metadata("a.txt", 5, 0o644)),
    encode_metadata(
        Metadata(
            "site",
            10,
            0,
            {
                "index.html": Subfile(0o644, "index.html", "text/html", 0, 5),
                "a/b": Subfile(0, "a/b", "", 5, 5),
            },
            tryfiles=("index.html",),
            errorpages={"404": "/index.html"},
        )
    ),
    b'{"filename":"s","length":3,"subfiles":{"a":{"len":1},"..":{"offset":1,"len":-1}}}',
    b'{"subfiles":{"a":{"len":1},"a":{"len":-1}}}',
    b'{"filename":"a","filename":7}',
    b'{"subfiles":{"a":{"filename":7,"len":1},"b":{"len":1,"len":"x"}}}',
    b'{"filename":"old","subfiles":{"a/b":{"len":4},"a":{"len":2,"offset":4}},"x":NaN}',
    b'{"filename":"\\ud800","length":1}',
)
MEMBERS = (
    *(b'"filename":', b'"length":', b'"mode":', b'"subfiles":', b'"defaultpath":', b'"tryfiles":'),
    *(b'"disabledefaultpath":', b'"errorpages":', b'"contenttype":', b'"offset":', b'"len":'),
    *(b'"a/b":{"len":1}', b'"../a":{}', b'"/a":{}', b'"a//b":{}', b'"a\\u0000":{}', b'"":{}'),
    *(b'"a":{"offset":9223372036854775807,"len":1}', b'"a":{"mode":4294967295}', b',"x":NaN'),
    b'"' + b"n" * 256 + b'":{}',
    b'"' + b"n/" * 2100 + b'":{}',
)


def _all_of(metadata: Metadata) -> tuple[object, ...]:
    return tuple(getattr(metadata, name) for name in Metadata.__struct_fields__)


@target(*METADATA, tokens=(*JSON, *MEMBERS))
def metadata(data: bytes) -> None:
    """Metadata are safe to use, nothing of them is dropped in silence, and their outline says the
    same; or they are malformed.
    """
    found = attempt(parse_metadata, data)
    if found is None:
        return
    limit = (1 << 63) - 1
    for path, sub in found.subfiles.items():
        assert isinstance(path, str)
        assert 0 <= sub.offset <= sub.offset + sub.len <= limit
        assert 0 <= sub.mode <= 0o7777
    assert 0 <= found.mode <= 0o7777
    assert found.payload_size is None or 0 <= found.payload_size <= limit
    rejected = {path for path, _ in found.rejected}
    assert not set(found.subfiles) & rejected - {""}
    listed = json.loads(data.decode("utf-8", "surrogateescape"), parse_int=float).get("subfiles")
    if isinstance(listed, dict):
        assert set(found.subfiles) | rejected == set(listed)
    outline = outline_metadata(memoryview(data))
    for name in ("filename", "length", "mode"):
        assert getattr(outline, name) == getattr(found, name)
    assert _without_names(dict(outline.files)) == _without_names(
        found.subfiles | dict(found.rejected)
    )
    try:
        raw = encode_metadata(found)
    except UnicodeEncodeError:
        return
    again = parse_metadata(raw)
    assert _all_of(again)[2:-1] == _all_of(found)[2:-1]
    assert (again.filename, again.length) == (found.filename, found.length or 0)
    assert encode_metadata(again) == raw
    fits_header(raw, 100)


def _without_names(files: dict[str, Subfile | str]) -> dict[str, Subfile | str]:
    """Return files without what a listing does not look at."""
    return {
        path: sub if isinstance(sub, str) else msgspec.structs.replace(sub, filename="")
        for path, sub in files.items()
    }


@target(*METADATA, tokens=(*JSON, *MEMBERS))
def metadata_with_a_fault(data: bytes) -> None:
    """A member of a wrong type counts as absent, and changes nothing of the others."""
    found = attempt(parse_metadata, data)
    if found is None or not data.rstrip(b" \t\r\n").endswith(b"}"):
        return
    comma = b"" if _is_empty(data) else b","
    spoilt = parse_metadata(data.rstrip(b" \t\r\n")[:-1] + comma + b'"defaultpath":7}')
    assert spoilt.defaultpath == ""
    others = [
        name for name in Metadata.__struct_fields__ if name not in ("defaultpath", "rejected")
    ]
    assert [getattr(spoilt, name) for name in others] == [getattr(found, name) for name in others]
    assert {path for path, _ in spoilt.rejected} == {path for path, _ in found.rejected}


def _is_empty(data: bytes) -> bool:
    return not json.loads(data.decode("utf-8", "surrogateescape"), parse_int=float)


@target(
    *(b"a/b\n" + raw for raw in METADATA),
    b"\n" + METADATA[1],
    tokens=(b"/", b"a/", b"..", b"\n", *MEMBERS),
)
def selected_files(data: bytes) -> None:
    """What is below a path is a part of the whole, and its metadata can be read."""
    path, _, raw = data.partition(b"\n")
    found = attempt(parse_metadata, raw)
    attempt(check_path, text_of(path))
    if found is None:
        return
    below = text_of(path)
    selected = select(found, below)
    assert selected.items() <= found.subfiles.items()
    if selected and below:
        part = subpath_metadata(below, selected)
        assert all(sub.offset >= 0 for sub in part.subfiles.values())
        assert set(part.subfiles) == set(selected)


# --- registry --------------------------------------------------------------------

_HOP = encode_proof([SIGNED])
ENTRY_TOKENS = (
    *JSON,
    *(b'"data":', b'"revision":', b'"signature":', b'"datakey":', b'"publickey":', b'"type":'),
    *(b'"algorithm":', b'"key":', b'"ed25519"', b'"ed25519:', SIGNED.signature.hex().encode()),
    *(
        PAIR.public_hex.encode(),
        TWEAK.hex().encode(),
        b"256",
        b'"AAAA"',
        str(MAX_REVISION).encode(),
    ),
)
UPDATE = SIGNED.encode_update()
ANSWER = SIGNED.encode_answer()


def _is_whole(signed: SignedEntry) -> None:
    """What was read keeps its bounds, is written and read back, and its signature is judged."""
    assert len(signed.entry.data) <= DATA_LIMIT
    assert 0 <= signed.entry.revision <= MAX_REVISION
    assert SignedEntry.parse_update(signed.encode_update()) == signed
    answered = SignedEntry.parse_answer(
        signed.encode_answer(), signed.public_key, signed.entry.tweak
    )
    assert answered == signed
    if attempt(signed.verify, errors=(BadSignatureError, MalformedError)) is not None:
        assert signed == SIGNED or signed.entry.hash() == SIGNED.entry.hash()
    older = refusal_of(check_update, SIGNED.entry, signed.entry)
    assert older or refusal_of(check_update, signed.entry, SIGNED.entry)


@target(
    UPDATE,
    json.dumps(json.loads(UPDATE) | {"publickey": f"ed25519:{PAIR.public_hex}"}).encode(),
    json.dumps(json.loads(UPDATE) | {"data": "AAAA", "type": 2}).encode(),
    b"9" * 5000,
    b'"' + b"\\u0000" * 2000 + b'"',
    tokens=ENTRY_TOKENS,
)
def registry_update(data: bytes) -> None:
    """An update is an entry, or is malformed; nothing passes with another's signature."""
    signed = attempt(SignedEntry.parse_update, data)
    if signed is not None:
        _is_whole(signed)


@target(ANSWER, b'{"data":"","revision":0,"signature":"' + b"00" * 64 + b'"}', tokens=ENTRY_TOKENS)
def registry_answer(data: bytes) -> None:
    signed = attempt(SignedEntry.parse_answer, data, PAIR.public_key, TWEAK)
    if signed is not None:
        assert (signed.public_key, signed.entry.tweak) == (PAIR.public_key, TWEAK)
        _is_whole(signed)


_SECOND = Entry(hash_data_key("b"), bytes(V2), 1).sign(PAIR.private_key)


@target(_HOP, encode_proof([_SECOND, SIGNED]), b"null", b"[]", tokens=(*ENTRY_TOKENS, _HOP[1:-1]))
def registry_proof(data: bytes) -> None:
    """A proof shows nothing but what its entries' owners signed, in that order."""
    hops = attempt(SignedEntry.parse_hops, data)
    if hops is None:
        return
    assert SignedEntry.parse_hops(encode_proof(hops)) == hops
    for requested in (V2, _SECOND.link):
        if refusal_of(check_proof, requested, LINK, hops) is None:
            assert len(hops) <= HOPS
            assert [hop.entry.hash() for hop in hops] in (
                [SIGNED.entry.hash()],
                [_SECOND.entry.hash(), SIGNED.entry.hash()],
            )


@target(
    PAIR.public_hex.encode(),
    b"ed25519:" + PAIR.public_hex.encode(),
    PAIR.private_hex.encode(),
    TWEAK.hex().encode(),
    b"a data key/with a path",
    tokens=(b":", b"ed25519:", b"/", "\u0660".encode(), b"\xff", b"\n", b"0" * 64, b"aF"),
)
def key_texts(data: bytes) -> None:
    """Keys are of 32 and 64 bytes; no error repeats what was given, which may be a secret."""
    text = text_of(data)
    for parse in (parse_public_key, parse_tweak, SigningKeyPair.from_private_hex):
        reason = refusal_of(parse, text)
        if reason is not None:
            assert len(text) < 20 or text not in reason
            assert len(text) < 40 or text[-40:] not in reason
        elif parse == SigningKeyPair.from_private_hex:
            assert SigningKeyPair.from_private_hex(text).private_hex == text.lower()
        else:
            assert len(parse(text)) == 32
    tweak = attempt(hash_data_key, text)
    assert tweak is None or len(tweak) == 32


# --- skykeys ---------------------------------------------------------------------

_KEY = KEYS[Kind.PRIVATE]


@target(
    _KEY.text.encode(),
    KEYS[Kind.PUBLIC].text.encode(),
    _KEY.text[7:].encode(),
    _KEY.id.encode(),
    b"holidays",
    tokens=(b"skykey:", b"SKYKEY:", b"?name=", b"%", b"%C3%A9", b"%ff", b"+", b"&", b"=", b"\n"),
)
def skykey_text(data: bytes) -> None:
    """A skykey is written back, or is malformed, and then its text is not repeated."""
    text = text_of(data)
    reason = refusal_of(Skykey.parse, text)
    if reason is not None:
        assert len(text) < 20 or text not in reason
        assert reason.isprintable()
        assert len(reason) < 200
    else:
        key = Skykey.parse(text)
        assert Skykey.parse(key.text) == key
        assert check_id(key.id) == key.id
    found = attempt(check_id, text)
    assert found is None or check_id(found) == found
    name = attempt(check_name, text)
    assert name is None or Skykey.parse(_KEY.named(name).text).name == name


@target(
    _KEY.encode_record(),
    encode_list(KEYS.values()),
    b'{"skykeys":null}',
    tokens=(
        *JSON,
        b'"skykeys":',
        b'"skykey":',
        b'"name":',
        b'"id":',
        b'"type":',
        _KEY.text.encode(),
    ),
)
def skykey_answers(data: bytes) -> None:
    """Records and lists of skykeys are written back, or are malformed."""
    key = attempt(Skykey.parse_record, data)
    assert key is None or Skykey.parse_record(key.encode_record()) == key
    keys = attempt(parse_list, data)
    assert keys is None or parse_list(encode_list(keys)) == keys


# --- ranges, documents, answers --------------------------------------------------


@target(
    b"10\nbytes=0-3,5-,-2",
    b"10\nbytes=0-",
    b"0\nbytes=0-0",
    b"9223372036854775807\nbytes=9-,0-1",
    b"10\nbytes=" + b"0-0," * (RANGES_LIMIT + 2),
    tokens=(b"bytes=", b"-", b",", b" ", b"\t", b"\n", b"=", b"bytes ", "\u0663".encode(), b"+1"),
)
def range_header(data: bytes) -> None:
    """A Range header selects bytes that are there, and no more than there are; or is malformed."""
    number, _, header = data.partition(b"\n")
    size = int(number[:18]) if number[:18].isdigit() else 10
    found = attempt(parse_range, text_of(header), size)
    if found:
        assert len(found) <= RANGES_LIMIT
        assert all(0 <= one.start < one.stop <= size for one in found)
        assert sum(map(len, found)) <= size
        if len(found) == 1:
            assert parse_range(found[0].header(), size) == found


@target(
    b"bytes 0-4/10",
    b"bytes 5-9/*",
    b"bytes 0-" + b"9" * 19 + b"/*",
    tokens=(b"bytes ", b"-", b"/", b"*", b" ", b"\n", "\u0663".encode(), b"items "),
)
def content_range(data: bytes) -> None:
    """A Content-Range header says which bytes of how many, or is malformed."""
    found = attempt(ByteRange.parse_content_range, text_of(data))
    if found is None:
        return
    part, total = found
    assert 0 <= part.start < part.stop <= (1 << 63) - 1
    assert total is None or part.stop <= total
    if total is not None:
        assert ByteRange.parse_content_range(part.content_range(total)) == found
        assert parse_range(part.header(), total) == [part]


@target(
    b'{"_data":{"a":[1,null,"x"]},"_v":2}',
    b'{"_data":0,"_v":2}',
    b'[1,2,{"a":1e5}]',
    b'{"a":"\\ud800"}',
    b'\xff\xfe{\0"\0a\0"\0:\x001\0}\0',
    tokens=(*JSON, b'"_data":', b'"_v":', b"Infinity", b"-NaN", b"[]", b"false"),
)
def document(data: bytes) -> None:
    """A document is stored and read back as it was, or is malformed."""
    found = attempt(decode_document, data)
    if isinstance(found, dict | list):
        stored = attempt(encode_document, found)
        if stored is not None:
            assert len(stored) <= DOCUMENT_LIMIT
            assert decode_document(stored) == found


@target(
    UploadResult(LINK).encode(),
    encode_error("failed: é"),
    encode_resolved(LINK),
    b'{"skylink":"' + TEXT + b'","merkleroot":"' + LINK.root.hex().encode() + b'"}',
    b'{"skylink":' + b"[" * 4000,
    tokens=(*JSON, b'"skylink":', b'"merkleroot":', b'"bitfield":', b'"message":', TEXT, BASE32),
)
def answers(data: bytes) -> None:
    """Answers of success agree with themselves, or are malformed; any body has a message."""
    message = parse_error(data)
    assert isinstance(message, str)
    assert parse_error(encode_error(message)) == message
    result = attempt(UploadResult.parse, data)
    assert result is None or UploadResult.parse(result.encode()) == result
    link = attempt(parse_resolved, data)
    assert link is None or parse_resolved(encode_resolved(link)) == link


@target(
    b'form-data; name="file"; filename="a/b.txt"\ntext/plain\n644',
    b"form-data; name=files[]; filename*=UTF-8''a%20b\n\n",
    b'Form-Data ;NAME="f\\"" ; FileName = a b \n\n7777',
    tokens=(
        *(b"form-data", b"; ", b"=", b'"', b"\\", b"name", b"filename", b"filename*=", b"UTF-8''"),
        *(b"%41", b"%ff", b"\n", b"\xff", b"\0", b"\r", b" ", b"\t", b";", b'"\\', b"0", b"8"),
    ),
)
def part_header(data: bytes) -> None:
    """A part of a form comes back as it was, in the lines that were meant; or is malformed."""
    lines = [*data.split(b"\n", 2), b"", b""]
    names = (b"Content-Disposition", b"Content-Type", b"Mode")
    part = attempt(PartHeader.parse, list(zip(names, lines, strict=False)))
    if part is None or part.contenttype != part.contenttype.strip():
        return
    written = part.encode()
    assert written.endswith(b"\r\n")
    headers = [line.split(b": ", 1) for line in written[:-2].split(b"\r\n")]
    assert [name for name, _ in headers] == [
        name
        for name, is_there in zip(names, (True, part.contenttype, part.mode), strict=True)
        if is_there
    ]
    again = PartHeader.parse([(name, value) for name, value in headers])
    assert (again.filename, again.mode) == (part.filename, part.mode)


@target(b"a/b c+d", "é/\ud800".encode("utf-8", "surrogatepass"), b"%2F?#", b"\xff", b"../\0")
def path_in_a_url(data: bytes) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    quoted = quote_path(text)
    assert decode_path(quoted) == text
    assert quoted.isascii()
    assert not set(quoted) & set(" ?#+\r\n\0")
    assert quoted.count("/") == text.count("/")


assert ROOT_SIZE == len(TWEAK)
