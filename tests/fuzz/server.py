"""What clients, web pages and uploaders send to the embedded portal, and what its user writes."""

import atexit
import re
import shutil
import socket
import tempfile
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import trio

from skymount.errors import MalformedError
from skymount.server.config import PortalConfig
from skymount.server.download.content import (
    DownloadQuery,
    SelectedContent,
    disposition,
    select_content,
    sniff,
    stored_or_guessed,
)
from skymount.server.download.endpoint import payload_ranges
from skymount.server.http.access import Access, AccessRules
from skymount.server.http.clients import RequestHost, page_origin, parse_name, parse_origin
from skymount.server.http.connection import Connection, Shared
from skymount.server.http.forms import FormReader, boolean, decode_path, number, parse_query
from skymount.server.http.messages import Selection, is_unchanged, select_ranges
from skymount.server.http.parsing import Headers
from skymount.server.http.passwords import parse_credentials
from skymount.server.http_error import HttpError
from skymount.server.routes import PortalApp
from skymount.server.storage.catalogue_reading import describe_metadata
from skymount.server.storage.entry_store import EntryStore
from skymount.server.storage.local_catalogue import LocalCatalogue
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.retention.pin_store import PinStore
from skymount.server.storage.retention.retention import Retention
from skymount.server.storage.skyfile_index import ParsedSkyfile
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.server.storage.stored_range import InMemory, StoredRange
from skymount.server.storage.stored_skyfile import StoredSkyfile
from skymount.server.storage.zone_file import RECORDS_LIMIT, Zone, ZoneFile, parse_value
from skymount.server.upload.rules import PartList, UploadQuery, describe_upload
from skymount.wire.base_sector import Layout
from skymount.wire.dialect import SKYNET, SVC
from skymount.wire.hns import parse_domain
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.http.host import is_loopback
from skymount.wire.http.multipart import PartHeader
from skymount.wire.http.responses import encode_error
from skymount.wire.metadata import parse_metadata
from tests.fuzz.engine import SHORT, attempt, pieces, target
from tests.fuzz.wire import (
    JSON,
    KEYS,
    LINK,
    LINKS,
    MEMBERS,
    METADATA,
    PAIR,
    TEXT,
    TWEAK,
    UPDATE,
    text_of,
)
from tests.server.http_client import BOUNDARY, FORM_TYPE, form

PORTAL = PortalConfig(data=Path("/nonexistent"), max_parts=100, metadata_limit=4 << 10)


def _refused(function: Any, *args: Any) -> Any:
    """Return what a decision is, or None for a refusal: an answer of a status of 4xx."""
    refused = None
    try:
        return function(*args)
    except MalformedError as error:
        encode_error(str(error))
    except HttpError as error:
        refused = error
    if refused is not None:
        assert 400 <= refused.status < 500
        encode_error(refused.message)
        assert not any(set(value) & set("\r\n\0") for _, value in refused.headers)
    return None


# --- forms and queries -----------------------------------------------------------

FORM = form(
    (PartHeader("file", "a/b.txt", "text/plain", 0o644), b"hello"),
    (PartHeader("files[]", "c"), b""),
)
_MARK = BOUNDARY.encode()


class _RecordedParts(PartList):
    """Keeps every header of a part with the place where its content begins, and refuses none."""

    def __init__(self) -> None:
        super().__init__(PORTAL)
        self.found: list[tuple[PartHeader, int]] = []

    def begin(self, part: PartHeader, offset: int) -> None:
        self.found.append((part, offset))


def _parts(stream: list[bytes]) -> list[tuple[PartHeader, bytes]] | str:
    """Return the parts of a form with their content; what is wrong with it if it is none."""
    parts, content = _RecordedParts(), b""
    try:
        reader = FormReader(FORM_TYPE.encode(), parts)
        for data in stream:
            content += b"".join(reader.content(data))
        reader.finish()
    except MalformedError as error:
        return re.sub(r"[0-9]+", "", str(error))
    offsets = [*(offset for _, offset in parts.found), len(content)]
    return [
        (part, content[start:end])
        for (part, _), (start, end) in zip(parts.found, pairwise(offsets), strict=True)
    ]


@target(
    b"\x02\x05" + FORM,
    b"\x01\x01" + FORM.replace(b"\r\n\r\n", b"\r\nMode: 7\r\n\r\n"),
    b"\x00\x00--" + _MARK + b"--\r\n",
    tokens=(
        *(b"\r\n", b"\n", b"\r", b"--", b"--" + _MARK, b"\r\n--" + _MARK, _MARK, b"--\r\n", b":"),
        *(b"Content-Disposition: form-data; ", b'name="file"', b'; filename="x"', b"Mode: 644\r\n"),
        *(b"\r\n\r\n", b"x" * 70_000, b"A: b\r\n" * 40, b"filename*=UTF-8''%41", b"\0", b"\xff"),
    ),
)
def form_body(data: bytes) -> None:
    """A form has the same parts however it comes, and their content is what was between them."""
    stream = data[2:]
    whole = _parts([stream])
    # what stands before the first boundary, python-multipart skips or refuses by where it is cut
    if stream.startswith(b"--") and whole != _parts(pieces(stream, data[:2])):
        assert isinstance(whole, str)
        assert isinstance(_parts(pieces(stream, data[:2])), str)
    if isinstance(whole, str):
        return
    assert sum(len(content) for _, content in whole) <= len(stream)
    assert all(content in stream for _, content in whole)
    listed, size = PartList(PORTAL), 0
    try:
        for part, content in whole:
            listed.begin(part, size)
            size += len(content)
    except MalformedError as error:
        encode_error(str(error))
        return
    form_type = FORM_TYPE.encode()
    query = UploadQuery.parse({"filename": "x"}, content_type=form_type, force_disabled=False)
    described = _refused(describe_upload, query, listed, size)
    if described is not None:
        metadata = parse_metadata(described.metadata)
        assert described[1:] == describe_metadata(described.metadata)
        assert not metadata.rejected
        assert metadata.length == size
        for path in metadata.subfiles:
            assert not path.startswith("/")
            assert not {"", ".", ".."} & set(path.split("/"))


@target(
    b"multipart/form-data; boundary=abc",
    b'multipart/form-data; boundary="a b"; x=y',
    b"Multipart/Form-Data;boundary*=UTF-8''abc",
    tokens=(b";", b"=", b'"', b"boundary", b"\\", b"\xff", b"*0=", b"''", b" ", b"a" * 300, b"\0"),
)
def form_type(data: bytes) -> None:
    """A Content-Type names a boundary, or is malformed."""
    attempt(FormReader, data, PartList(PORTAL))


_DOWNLOAD = b"format=zip&attachment=true&timeout=30&start=0&end=4&no-response-metadata=1"
_UPLOAD = (
    b"filename=a&mode=644&dryrun=true&tryfiles=%5B%22a%22%5D&errorpages=%7B%22404%22%3A%22%2Fa%22%7D"
    b"&skykeyname=x"
)


@target(
    _DOWNLOAD,
    _UPLOAD,
    b"defaultpath=/a&disabledefaultpath=f",
    b"a=b&a=c&=&%ff=%00",
    tokens=(
        *(
            b"&",
            b"=",
            b"%",
            b"%22",
            b"%5B",
            b"%ff",
            b"+",
            b";",
            b"true",
            b"T",
            b"-1",
            b"\xff",
            b"0x1",
        ),
        *(
            b"format=",
            b"timeout=",
            b"start=",
            b"end=",
            b"mode=",
            b"force=",
            b"errorpages=",
            b"&a" * 99,
        ),
        *(b"tryfiles=", b"skykeyid=", b"skykeyname=", b"basechunkredundancy=", b"convertpath="),
    ),
)
def query(data: bytes) -> None:
    """A query is what an endpoint takes, or it is refused with a reason."""
    params = _refused(parse_query, text_of(data))
    if params is None:
        return
    for name in params:
        _refused(boolean, params, name)
        for base in (8, 10):
            found = _refused(lambda n=name, b=base: number(params, n, base=b))
            assert found is None or 0 <= found < 10**18
    for has_range in (False, True):
        asked = _refused(lambda h=has_range: DownloadQuery.parse(params, has_range=h))
        if asked is not None and asked.range_header:
            assert not has_range
            assert asked.range_header.startswith("bytes=")
    for content_type in (b"text/plain", b"multipart/form-data"):
        upload = _refused(
            lambda c=content_type: UploadQuery.parse(params, content_type=c, force_disabled=True)
        )
        if upload is not None:
            assert 0 <= upload.mode < 1 << 32
            assert not (upload.defaultpath and upload.disabledefaultpath)
            assert not (upload.skykey_name and upload.skykey_id)


@target(b"a/b%20c+d", b"%ff", b"%2e%2e/%00", tokens=(b"%", b"+", b"%c3%a9", b"/"))
def url_path(data: bytes) -> None:
    """A path in a URL is text, or it is refused."""
    found = _refused(decode_path, data.decode("latin-1"))
    assert found is None or found.encode().decode() == found


# --- downloads -------------------------------------------------------------------

_TAG = '"' + "5" * 64 + '"'


@target(
    b"100\nbytes=0-4,10-19\n",
    b'100\nbytes=0-\n"x", ' + _TAG.encode(),
    b"0\nbytes=0-0\n*",
    b"100\nbytes=0-4\n\n" + _TAG.encode(),
    tokens=(b"bytes=", b"-", b",", b"\n", b"W/", _TAG.encode(), b"*", b" ", b'"', b"0-0,"),
)
def conditions(data: bytes) -> None:
    """An answer holds bytes of the content that there are, and not more of them than there are."""
    first, asked, none_match, if_range, *_ = [*data.split(b"\n", 3), b"", b"", b""]
    size = int(first[:12]) if first[:12].isdigit() else 100
    given = ((b"if-none-match", none_match), (b"if-range", if_range))
    headers = Headers([(name.decode(), value.decode("latin-1")) for name, value in given if value])
    assert is_unchanged(headers, _TAG) in (False, True)
    _refused(is_unchanged, Headers([("if-match", none_match.decode("latin-1"))]), _TAG)
    found = _refused(select_ranges, headers, text_of(asked), _TAG, "text/plain", size)
    if not isinstance(found, Selection):
        return
    ranges = [one for one in found.segments if isinstance(one, ByteRange)]
    assert found.status in (200, 206)
    assert all(0 <= one.start < one.stop <= size for one in ranges)
    assert sum(map(len, ranges)) <= size
    assert found.length == sum(map(len, found.segments))
    if found.status == 200:
        assert found.length == size
    extents = ((5, size // 2), (1000, size - size // 2))
    for one in ranges:
        assert sum(length for _, length in payload_ranges(extents, one)) == len(one)


def _stored(raw: bytes) -> ParsedSkyfile | None:
    metadata = attempt(parse_metadata, raw)
    if metadata is None:
        return None
    nothing = StoredRange(InMemory("nothing", b""), 0, 0)
    layout = Layout(metadata.payload_size or 0, len(raw))
    skyfile = StoredSkyfile(LINK, layout, Mock(), nothing, nothing, nothing, nothing)
    return ParsedSkyfile(skyfile, raw, metadata, None)


@target(
    *(b"\n" + raw for raw in METADATA),
    b"a\n" + METADATA[1],
    b"a/b?format=concat\n" + METADATA[1],
    b"x?format=tar\n" + METADATA[1],
    tokens=(b"\n", b"?format=zip", b"/", b"index.html", *JSON, *MEMBERS),
)
def selection(data: bytes) -> None:
    """What a path serves are files that the metadata have, whatever they are."""
    line, _, raw = data.partition(b"\n")
    path, _, asked = line.partition(b"?")
    stored = _stored(raw)
    params = _refused(parse_query, text_of(asked))
    if stored is None or params is None:
        return
    found = _refused(lambda: DownloadQuery.parse(params, has_range=False))
    if found is None:
        return
    choice = _refused(
        partial(select_content, may_redirect=True), stored, text_of(path), found.archive, 1 << 20
    )
    if isinstance(choice, SelectedContent):
        extents = {(sub.offset, sub.len) for sub in stored.metadata.subfiles.values()}
        whole = (0, stored.stored.layout.filesize)
        assert set(choice.extents) <= extents | {whole}
        assert {(sub.offset, sub.len) for _, sub in choice.members} <= extents | {whole}
        assert choice.status == 200 or choice.status >= 400
    else:
        assert choice is None


@target(
    b'a"b\n\xc3\xbc.html\n<!DOCTYPE html>',
    b"a\r\nX: y\ntext/plain\r\nX: y\n%PDF-",
    tokens=(
        b"\n",
        b'"',
        b"\\",
        b"\r",
        b"\0",
        b"\xff",
        b".tar.gz",
        b".png",
        b"RIFF....WEBPVP",
        b"<",
    ),
)
def type_and_name(data: bytes) -> None:
    """Whatever a file is called, headers can say it, and say nothing else."""
    name, stored, start = [*data.split(b"\n", 2), b"", b""][:3]
    try:
        texts = [name.decode(), stored.decode()]
    except UnicodeDecodeError:
        return
    for value in (
        disposition(texts[0], attachment=bool(stored)),
        stored_or_guessed(texts[1], texts[0]),
        sniff(start),
    ):
        assert not set(value) & set("\r\n\0")
    assert disposition(texts[0], attachment=False).isascii()


# --- who asks --------------------------------------------------------------------


@target(
    b"localhost:4280",
    b"[::1]:80",
    b"a.localhost.",
    LINK.base32.encode() + b".portal.example",
    b"blog.example.hns.portal.example:1",
    b"http://127.0.0.1:4280/",
    b"https://user@host",
    tokens=(b":", b".", b"[", b"]", b".hns.", b"://", b"null", b"*", b"\xff", b"/", b"@", b"127.1"),
)
def host_and_origin(data: bytes) -> None:
    """A host is read as it is written; a page that is not allowed is not."""
    text = data.decode("latin-1")
    host = attempt(RequestHost.parse, text)
    if host is not None:
        is_loopback(host.name)
        assert RequestHost.parse(host.authority, {host.name}) == RequestHost(host.name, host.port)
        assert host.content == "" or host.content.startswith("/")
        assert not set(host.name) & set("/@?#\\ ")
    name = attempt(parse_name, text) if text else None
    assert name is None or parse_name(name) == name
    origin = attempt(parse_origin, text)
    assert origin is None or parse_origin(origin) == origin
    page = page_origin(
        {"origin": text}, "http://localhost:4280", frozenset({"https://app.example"})
    )
    assert page is not None
    assert page.is_allowed == (text == "https://app.example")


@target(
    b"Basic OmEgcGFzc3dvcmQ=",
    b"basic  OmE=",
    tokens=(b"Basic ", b"=", b":", b"\xff", b" ", b"\n", b"OmEgcGFzc3dvcmQ="),
)
def credentials(data: bytes) -> None:
    """Nothing but the password is the password."""
    text = data.decode("latin-1")
    _, password = parse_credentials(text)
    assert password != b"another password that is not guessed"
    if password == b"a password":
        assert "OmEgcGFzc3dvcmQ=" in text or ":" not in text


# --- the zone --------------------------------------------------------------------

_ENTRY = f"skyns://ed25519%3A{PAIR.public_hex}/{TWEAK.hex()}".encode()
_ZONE = (
    b"# names\nexample  svc://" + TEXT + b"/docs # ours\r\nblog.example " + _ENTRY + b"\n\nx y\n"
)


@target(
    _ZONE,
    "\ufeffbücher.example ".encode() + TEXT,
    b"# caf\xe9\na \xff\xfe\n",
    b"a b\n" * 50,
    tokens=(b"#", b" #", b"\n", b"\r", b" ", b"\t", b"\xff", b"a ", b"example", _ENTRY, *LINKS),
)
def zone_file(data: bytes) -> None:
    """A zone is written as it was read; what is set in it is found, and the rest stays."""
    data = data[:SHORT]
    read = attempt(Zone.parse, data)
    if read is None:
        return
    expected = data.removeprefix("\ufeff".encode())
    assert read.encode() == expected.removesuffix(b"\n") + (b"\n" if expected else b"")
    assert len(read.domains) <= RECORDS_LIMIT
    problems = list(read.problems())
    assert all(problem.isprintable() and len(problem) < 600 for problem in problems)
    for domain in read.domains:
        assert parse_domain(domain) == domain
        assert isinstance(read.value(domain), str)
        assert attempt(read.find, domain) is not None or problems
    changed = Zone.parse(read.with_record("set.here", f"svc://{LINK}").encode())
    assert changed.value("set.here") == f"svc://{LINK}"
    assert set(read.domains) <= set(changed.domains)
    assert "set.here" not in changed.without("set.here").domains


@target(
    TEXT,
    b"sia://" + TEXT + b"/a b?c",
    PAIR.public_hex.encode() + b"/" + TWEAK.hex().encode(),
    _ENTRY,
    tokens=(*LINKS, b"skyns://", b"ed25519:", b"ed25519%3A", TWEAK.hex().encode()),
)
def zone_value(data: bytes) -> None:
    """What a user writes is a value that a zone keeps, or is refused."""
    for dialect in (SVC, SKYNET):
        value = attempt(parse_value, text_of(data), dialect)
        if value is not None:
            kept = Zone.parse(Zone().with_record("a", value).encode())
            assert kept.value("a") == value
            assert kept.find("a") is not None


# --- whole requests --------------------------------------------------------------


@lru_cache
def _portal() -> PortalApp:
    """Make a portal without a socket, which is there until the process ends."""
    data = Path(tempfile.mkdtemp(prefix="skymount-fuzz-"))
    atexit.register(shutil.rmtree, data, ignore_errors=True)
    config = PortalConfig(data=data, max_upload=1 << 20, max_parts=20)
    store, entries = SkyfileStore.open(data), EntryStore.open(data)
    atexit.register(store.close)
    atexit.register(entries.close)
    catalogue = LocalCatalogue.open(data, store)
    trio.run(catalogue.repair)
    atexit.register(catalogue.close)
    rules = AccessRules.of(config, on_loopback=True)
    skykeys = SkykeyStore(data / "skykeys.json", tuple(KEYS.values())[:1])
    (data / "hns.zone").write_bytes(_ZONE)
    retention = Retention(store, catalogue, PinStore.open(data))
    names = ZoneFile(data)
    storage = PortalStorage(
        *(store, entries, skykeys, names, catalogue, retention),
        *(store.check_reading, store.check_storing),
    )
    return PortalApp(config, storage, Access(rules))


async def _answered(portal: PortalApp, request: bytes) -> bytes:
    """Return what comes back for one request, after which the connection ends."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours:
        ours.sendall(request)
        ours.shutdown(socket.SHUT_WR)
        with trio.fail_after(20):
            await Connection(theirs, Shared(portal, 20, 20)).serve()
        return b"".join(iter(lambda: ours.recv(1 << 20), b""))


_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NAMED = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TYPE = b"content-type: " + FORM_TYPE.encode()
REQUESTS = (
    b"GET /" + TEXT + b"/a?format=zip\nrange: bytes=0-\n\n",
    b"POST /svc/skyfile?filename=x&dryrun=true\n" + _TYPE + b"\n\n" + FORM,
    b"POST /skynet/registry\ncontent-type: application/json\n\n" + UPDATE,
    b"GET /svc/registry?publickey=" + PAIR.public_hex.encode() + b"&datakey=" + b"0" * 64 + b"\n\n",
    b"GET /hns/example/x\naccept: */*\n\n",
    b"GET /hnsres/blog.example\n\n",
    b"HEAD /svc/metadata/" + TEXT + b"\norigin: https://a\n\n",
    b"OPTIONS /svc/skykeys\norigin: http://a\naccess-control-request-method: POST\n\n",
    b"GET /svc/root?root=" + b"0" * 64 + b"&offset=0&length=64\n\n",
    b"GET /svc/skykey?name=holidays\n\n",
    b"GET /svc/stats\nservice-worker: script\n\n",
)


@target(
    *REQUESTS,
    tokens=(
        *(
            b"\n",
            b"/",
            b"?",
            b"&",
            b"%2F",
            b"%",
            b"%ff",
            b"..",
            b"//",
            b": ",
            b"\xff",
            TEXT,
            b"/svc",
        ),
        *(b"/skynet", b"/skyfile", b"/file/", b"/hns/", b"host: a", b"origin: null", b"range: "),
        *(
            b"if-match: *\n",
            b"if-range: x\n",
            b"if-none-match: *\n",
            b"sec-fetch-site: cross-site\n",
        ),
        *(b"host: " + LINK.base32.encode() + b".localhost\n", b"authorization: Basic Og==\n"),
        *(
            b"content-length: 99999999999\n",
            b"/pin/",
            b"/resolve/",
            b"/basesector/",
            b"dryrun=true",
        ),
    ),
)
def portal_request(data: bytes) -> None:
    """Each request has one answer, never a fault of ours, and its headers can be sent."""
    head, _, body = data.partition(b"\n\n")
    line, *fields = head.split(b"\n")
    host = [] if any(text.lower().startswith(b"host:") for text in fields) else [b"host: localhost"]
    length = [b"content-length: %d" % len(body)] if body else []
    lines = [line + b" HTTP/1.1", *host, b"connection: close", *fields, *length]
    portal = _portal()
    found = trio.run(_answered, portal, b"\r\n".join(lines)[:60_000] + b"\r\n\r\n" + body[:60_000])
    if not found:  # the client went away within its body
        return
    start, _, content = found.removeprefix(_CONTINUE).partition(b"\r\n\r\n")
    status, *answer = start.split(b"\r\n")
    number = int(status[9:12])
    assert status.startswith(b"HTTP/1.1 ")
    assert number < 500 or b"skykey" in line or b"hns" in line, (found, line)
    for text in answer:
        assert re.fullmatch(_NAMED.pattern + rb": [^\x00\r\n]*", text), text
    known = dict(text.lower().split(b": ", 1) for text in answer)
    if line[:5] != b"HEAD " and b"content-length" in known and number != 304:
        assert int(known[b"content-length"]) == len(content)
