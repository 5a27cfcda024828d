"""What is shown of content, what lies on disk, what workers say, and what users write."""

import atexit
import json
import os
import shutil
import struct
import tempfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from skymount.cli.link_target import ParsedLink
from skymount.config import PREFIX, load
from skymount.content.cache import block_format
from skymount.content.cache.block_file import read as read_block
from skymount.content.cache.buffer_pool import BufferPool
from skymount.content.model import description_codec
from skymount.content.model.listing import DIRECTORY, Listing, unpack
from skymount.content.model.listing_builder import NAME_LIMIT, PATH_LIMIT, ROWS_LIMIT, tabulate
from skymount.content.model.skyfile import LoadedSkyfile, Skyfile, Verified
from skymount.content.replication.upload_plan import UploadPlan, plan_upload
from skymount.content.skydb.document_text import TEXT_LIMIT, as_text, as_upload, written
from skymount.errors import (
    ConfigError,
    KeyringError,
    MalformedError,
    StorageError,
)
from skymount.fs.registry.file_names import KeyFileNames, is_scratch
from skymount.fs.skylinks import name_parsing
from skymount.keyring import DamagedKey, Keyring, check_name
from skymount.server.config import PortalConfig
from skymount.server.http.forms import FormReader, parse_query
from skymount.server.http_error import HttpError
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.server.upload.rules import PartList, UploadQuery, describe_upload
from skymount.settings import Config
from skymount.values import parse_size
from skymount.wire.base_sector import Layout
from skymount.wire.metadata import Metadata, Subfile, encode_metadata, parse_metadata
from skymount.wire.skydb_document import encode_document
from skymount.wire.skykey import Kind
from tests.fuzz.engine import SHORT, attempt, target
from tests.fuzz.wire import JSON, KEYS, LINK, LINKS, MEMBERS, METADATA, PAIR, TEXT, text_of


@lru_cache
def _directory() -> Path:
    made = Path(tempfile.mkdtemp(prefix="skymount-fuzz-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _file(name: str, data: bytes) -> Path:
    path = _directory() / name
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    return path


# --- uploads of content that exists ---------------------------------------------------

_BOUNDARY = "b0undary"
_SENT = 1 << 16  # bytes of content that is made up for a form


@target(
    *METADATA,
    encode_metadata(Metadata("site", 3, subfiles={"a": Subfile(0o644, "a", "text/x", 0, 3)})),
    encode_metadata(Metadata("raw", 5, mode=0o600)),
    tokens=(*JSON, *MEMBERS),
)
def upload_plan(data: bytes) -> None:
    """A portal that takes the planned upload stores it with these metadata."""
    metadata = attempt(parse_metadata, data)
    size = (metadata and metadata.length) or 0
    made = attempt(lambda: b"".join(plan_upload(data, size, _BOUNDARY)))
    if made is None or size > _SENT:
        return
    plan = UploadPlan.read(lambda at, count: made[at : at + count], len(made))
    body = b"".join(text + bytes(count) for text, count in plan.parts())
    assert len(body) == plan.size
    stored = attempt(_stored, plan, body, size, errors=(MalformedError, HttpError))
    assert stored in (None, data)


def _stored(plan: UploadPlan, body: bytes, size: int) -> bytes:
    """Return the metadata that the embedded portal stores."""
    content_type = plan.media_type.encode()
    params = parse_query(urlencode(plan.query))
    query = UploadQuery.parse(params, content_type=content_type, force_disabled=False)
    parts = PartList(PortalConfig(_directory()))
    if query.is_form:
        form = FormReader(content_type, parts)
        assert b"".join(form.content(body)) == bytes(size)
        form.finish()
    return describe_upload(query, parts, size).metadata


# --- listings --------------------------------------------------------------------

_DEEP = encode_metadata(
    Metadata(
        "d",
        9,
        subfiles={
            "a": Subfile(len=1),
            "a/b/c": Subfile(0o755, "c", "text/html", 1, 4),
            "a/b-": Subfile(offset=2, len=7),
            "é/\n": Subfile(len=9),
        },
    )
)


@target(*METADATA, _DEEP, tokens=(*JSON, *MEMBERS))
def listing(data: bytes) -> None:
    """A tree has what can be shown, each file once and within the content; the rest has reasons."""
    packed = attempt(tabulate, data, None, 100)
    if packed is None:
        return
    found = unpack(packed)
    assert bytes(found.packed) == packed
    assert 1 <= len(found) <= ROWS_LIMIT
    _is_tree(found)
    records = json.loads(data.decode("utf-8", "surrogateescape"), parse_int=float).get("subfiles")
    files = [row for row in range(len(found)) if found.modes[row] != DIRECTORY]
    if isinstance(records, dict) and records:
        shown = {found.path(row).decode() for row in files}
        hidden = [path for path, _ in found.hidden]
        assert sorted([*shown, *hidden]) == sorted(records)
    for _, reason in found.hidden:
        assert reason.isprintable()
    position = 0
    for path, offset, size in found.extents_from(0):
        assert offset + size > position
        position = offset + size
        assert found.record(path) is not None


def _is_tree(found: Listing) -> None:
    reached = {0}
    for row in range(len(found)):
        name, parent = found.names[row], found.parents[row]
        if row:
            assert 0 < len(name) <= NAME_LIMIT
            assert name not in (b".", b"..")
            assert not set(name) & set(b"/\0")
            name.decode()
            assert len(found.path(row)) <= PATH_LIMIT
            assert parent < row < found.ends[parent]
            assert found.find(parent, name) == row
        assert row < found.ends[row] <= len(found)
        found.content_type(row)
        if found.modes[row] == DIRECTORY:
            children = list(found.children(row))
            assert [found.names[child] for child in children] == sorted(
                {found.names[child] for child in children}
            )
            reached.update(children)
        else:
            assert found.modes[row] <= 0o7777
            assert found.offsets[row] + found.sizes[row] <= found.size
    assert reached == set(range(len(found)))


_PACKED = tabulate(_DEEP)
_HEAD = struct.calcsize("=20sI")


def _resealed(data: bytes) -> bytes:
    """Make a listing's checksum and length right, whatever is in it."""
    if len(data) < _HEAD + 8:
        return data
    body = struct.pack("=Q", len(data)) + data[_HEAD + 8 :]
    return data[:20] + struct.pack("=I", zlib.crc32(body)) + body


@target(_PACKED, tabulate(METADATA[0]), tokens=(bytes(8), b"\xff" * 8, b"\1" + bytes(7)))
def packed_listing(data: bytes) -> None:
    """What is not a listing is none, also if its checksum is right; nothing else leaves."""
    found = attempt(unpack, data)
    assert found is None or bytes(found.packed) == data
    attempt(unpack, _resealed(data))


def _described(payload: bytes | None) -> bytes:
    size = 9 if payload is None else len(payload)
    layout = Layout(size, 5, 64, 1, 0)
    skyfile = Skyfile(
        *(LINK, unpack(_PACKED), size, "https://portal.example", Verified.YES),
        *(b"" if payload is not None else bytes(64), layout, payload is not None),
    )
    return b"".join(description_codec.parts(LoadedSkyfile(skyfile, payload)))


@target(_described(None), _described(b"content"), tokens=(bytes(8), b"\xff" * 8, b"\0" * 4))
def stored_description(data: bytes) -> None:
    """A description on disk is one, and is written as it was read; or it is not used."""
    found = attempt(description_codec.restore, LINK, memoryview(data))
    if found is None:
        return
    skyfile = found.skyfile
    assert (found.payload is not None) == skyfile.inline
    assert found.payload is None or len(found.payload) == skyfile.size
    again = attempt(
        description_codec.restore, LINK, memoryview(b"".join(description_codec.parts(found)))
    )
    assert again is not None
    assert (again.skyfile.size, again.skyfile.portal) == (skyfile.size, skyfile.portal)


# --- blocks on disk --------------------------------------------------------------

_KEY = block_format.BlockKey(str(LINK), 1 << 20, 100, 0)
_IDENTITY = _KEY.identity
_CONTENT = b"content of a block"
_BLOCK = _CONTENT + block_format.seal(_IDENTITY, _CONTENT)


@target(
    _BLOCK,
    block_format.seal(_IDENTITY, b""),
    b"x" + block_format.seal(bytes(32), b"x"),
    tokens=(b"skyblock", bytes(8), _IDENTITY, _BLOCK[-16:]),
)
def block_file(data: bytes) -> None:
    """A file is the block that was written, or it is damaged."""
    path = _file("block", data)
    found = attempt(
        lambda: read_block(str(path), _IDENTITY, 100, BufferPool(), touch=False), errors=OSError
    )
    if found is not None:
        assert data == bytes(found) + block_format.seal(_IDENTITY, found)


@target(_IDENTITY.hex().encode(), b"00" * 32, tokens=(b"A", b"/", b".", b"\xff", b".tmp"))
def block_name(data: bytes) -> None:
    """A file's names stand for the block that is called so, or for none."""
    name = text_of(data)
    found = block_format.identity_of(name[:2], name)
    assert found is None or block_format.file_name(found) == (name[:2], name)
    assert block_format.identity_of("zz", name) is None


# --- documents, and workers ----------------------------------------------

_DOCUMENT = encode_document({"a": [1, None, "é", {"b": 1.5}]})


@target(
    b'{"a": [1, 2], "b": {}}',
    _DOCUMENT,
    b"[1e5, -0.0]\n",
    b"[" * 900 + b"]" * 900,
    tokens=(*JSON, b'"_data":', b'"_v":', b"\n  ", b"\t"),
)
def document_text(data: bytes) -> None:
    """A text is stored as what it says, and shown as that; or it is no document."""
    upload = attempt(as_upload, data)
    if upload is not None:
        assert len(upload) <= TEXT_LIMIT
    text = attempt(as_text, data)
    if text is not None:
        assert len(text) <= TEXT_LIMIT
        assert text.endswith(b"\n")
        again = attempt(as_upload, text)
        if again is not None:
            assert attempt(as_text, again) == text
    both = attempt(written, data)
    if both is not None:
        assert both[0] == upload


# --- names in the tree -----------------------------------------------------------

_PLAIN, _SUFFIXED = KeyFileNames(), KeyFileNames(b".json")


@target(
    b"greeting",
    b"a%2Fb.json",
    b"%",
    b"0" * 64,
    b".a.swp",
    b"4913",
    tokens=(
        b"%",
        b"%2F",
        b"%00",
        b"%ff",
        b".json",
        b"~",
        b"#",
        b".",
        b"\xff",
        b"\0",
        b"sed",
        b".tmp",
    ),
)
def data_key_name(data: bytes) -> None:
    """A file name stands for a data key, whose own name stands for the same; or for none."""
    for names in (_PLAIN, _SUFFIXED):
        found = attempt(names.parse, data[:NAME_LIMIT])
        if found is not None:
            name = names.of(found.data_key, found.tweak)
            assert len(name) <= NAME_LIMIT
            assert not set(name) & set(b"/\0")
            assert not is_scratch(name)
            assert names.parse(name).tweak == found.tweak
    text = text_of(data)
    attempt(name_parsing.parse_skylink_name, text)
    domain = attempt(name_parsing.parse_domain_name, text)
    assert domain is None or domain[0] == domain[1]


@target(TEXT + b"/a%20b/", b"hns://Example/x?y#z", b"sia://" + TEXT, tokens=(*LINKS, b"hns://"))
def command_line_link(data: bytes) -> None:
    """A link on a command line is a place and a path in it, or is malformed."""
    found = attempt(ParsedLink.parse, text_of(data))
    if found is not None:
        assert not found.path.startswith(b"/")
        assert not found.path.endswith(b"/")
        assert b"//" not in found.path


# --- files of the user -----------------------------------------------------------

_CONFIG = (
    b'portals = ["https://portal.example"]\nmemory_cache = "256 MiB"\ntimeout = 5\n'
    b'[headers]\nCookie = "a=b"\n[mounts.home]\nmountpoint = "~/sky"\nverify = "require"\n'
)


@target(
    _CONFIG,
    b'disk_cache = "off"\nread_ahead = false\nhns_ttl = 0.5\nnode_url = "http://a"\napi_key = "x"',
    b"timeout = " + b"9" * 400,
    b"timeout = " + b"9" * 5000,
    tokens=(
        *(
            b" = ",
            b'"',
            b"'",
            b"[",
            b"]",
            b"{",
            b"}",
            b"\n",
            b"#",
            b'"""',
            b"\\u0000",
            b"\\U00110000",
        ),
        *(
            b"inf",
            b"nan",
            b"true",
            b"1979-05-27",
            b"0x10",
            b"1e400",
            b"-1",
            b"\xff",
            b"[mounts.home]",
        ),
        *(name.encode() + b" = " for name in Config.__dataclass_fields__),
        *(b"[" * 1500, b"a." * 500, b"\x1b[2J", b"\0", b"\r"),
    ),
)
def configuration(data: bytes) -> None:
    """A configuration is one, or what is wrong with it is said in one line."""
    file = str(_file("config.toml", data[:SHORT]))
    name = "home" if b"[mounts.home]" in data else ""
    found = attempt(lambda: load({}, environ={}, file=file, name=name), errors=ConfigError)
    if found is not None:
        assert found.memory_cache >= 0
        assert found.disk_cache >= 0
        seconds = (found.timeout, found.hns_ttl, found.registry_ttl, found.lookup_grace)
        assert all(0 < each <= 3600 for each in seconds)


@target(
    b"portals\nhttps://a.example http://b",
    b"memory_cache\n10 MiB",
    b"headers\nA: b\nC: d",
    b"timeout\n1e1",
    b"verify\nrequire",
    b"allow_other\nyes",
    b"timeout\n" + "\u0663".encode(),
    tokens=(
        b"\n",
        b" ",
        b":",
        b"nan",
        b"inf",
        b"1_0",
        "\u0663".encode(),
        b"\xff",
        b"TiB",
        b"9" * 400,
    ),
)
def environment(data: bytes) -> None:
    """So is the environment, and the command line."""
    key, _, value = data.partition(b"\n")
    name, text = text_of(key), text_of(value)
    if name in Config.__dataclass_fields__:
        empty = str(_file("empty.toml", b""))
        variables = {PREFIX + name.upper(): text}
        attempt(lambda: load({}, environ=variables, file=empty), errors=ConfigError)
        attempt(lambda: load({name: text}, environ={}, file=empty), errors=ConfigError)
    size = attempt(parse_size, text)
    assert size is None or size >= 0


def _key_file(**members: Any) -> bytes:
    found = {
        "version": 1,
        "public_key": PAIR.public_hex,
        "private_key": PAIR.private_hex,
        "created": "2025-01-01T12:00:00Z",
    }
    return json.dumps(found | members).encode()


@target(
    _key_file(),
    _key_file(version=2),
    _key_file(public_key="0" * 64),
    tokens=(*JSON, b'"version":', b'"created":', b'"private_key":', PAIR.private_hex.encode()),
)
def key_file(data: bytes) -> None:
    """A file is the key that was written, or is damaged; and why does not repeat the key."""
    directory = _directory() / "keys"
    directory.mkdir(mode=0o700, exist_ok=True)
    _file("keys/one", data)
    (found,) = Keyring(directory).read_all()
    if isinstance(found, DamagedKey):
        assert PAIR.private_hex[:32] not in found.reason
        assert len(found.reason) < 400
        assert found.reason.isprintable()
    else:
        assert found.pair == PAIR
    name = attempt(check_name, text_of(data[:80]), errors=(MalformedError, KeyringError))
    if name is not None:
        assert name == os.path.basename(name)
        assert name[0] not in ".-"


_TEXTS = [key.text for key in KEYS.values()]


@target(
    json.dumps({"version": 1, "skykeys": _TEXTS}).encode(),
    b'{"version":1,"skykeys":[]}',
    tokens=(*JSON, b'"version":', b'"skykeys":', json.dumps(_TEXTS[0]).encode()),
)
def skykey_file(data: bytes) -> None:
    """The portal's skykeys are those that were kept, or the portal does not start."""
    _file("skykeys.json", data)
    found = attempt(SkykeyStore.open, _directory(), errors=StorageError)
    assert found is None or isinstance(found, SkykeyStore)


assert set(KEYS) == set(Kind)
