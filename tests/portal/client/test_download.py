"""Downloads into files: complete or not there at all, and going on where a transfer broke."""

import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from skymount.errors import (
    BadContentError,
    MalformedError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    UnavailableError,
    WrongTypeError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.http.retry import RetryPolicy
from skymount.server.storage import zone_file
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, Reply, Request
from tests.fakes.skyfiles import noise, of_files
from tests.portal.connected import connected
from tests.portal_process import PortalProcess

DATA = noise(3_000_000, 3)
LARGE = of_files({"f": DATA})
TAG = b'"one"'
REST = "bytes=1000000-"


DOWNLOADS = "^GET /(?!svc/)"


class Downloads(FakePortal):
    """Misbehaves where content is downloaded, and proves honestly what it is."""

    def fault(self, fault: fake.Fault, pattern: str = DOWNLOADS, times: int | None = None):
        super().fault(fault, pattern, times)


def talking(**options: object):
    """Yield a portal that has content, and a client of it."""
    return connected(Downloads(), LARGE, **options)


def tagged(request: Request, reply: Reply, tag: bytes = TAG) -> Reply:
    """Add an ETag, and honour If-Range."""
    if request.headers.get("if-range", tag.decode()) != tag.decode():
        reply = fake.ignores_range(request, reply)
    return reply.with_header(b"ETag", tag)


content_range = partial(fake.header, b"Content-Range")


def breaking(count: int, tag: bytes = TAG) -> fake.Fault:
    """Add an ETag, and break off after so many bytes."""

    def broken(request: Request, reply: Reply) -> Reply:
        reply = tagged(request, reply, tag)
        return replace(reply, length=len(reply.body), sent=count, then="close")

    return broken


def downloads(portal: FakePortal) -> list[Request]:
    return portal.asked(DOWNLOADS)


def ranges(portal: FakePortal) -> list[str]:
    """Return what has been asked for."""
    return [request.headers.get("range", "all") for request in downloads(portal)]


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A destination with old content, in a directory where nothing else may remain."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/target").write_bytes(b"old")
    yield tmp_path / "d/target"
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["target"]


# --- at a real portal


async def test_file(portal: PortalProcess, tmp_path: Path):
    """A file is downloaded whole, also over an older one, with its progress."""
    seen: list[tuple[int, int | None]] = []
    async with PortalClient(portal.url) as client:
        result = await client.upload_file(DATA, custom_filename="f")
        for destination in (tmp_path / "f", str(tmp_path / "f")):
            await client.download_file(
                destination, str(result), on_progress=lambda *now: seen.append(now)
            )
            assert (tmp_path / "f").read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA))
    assert os.listdir(tmp_path) == ["f"]


async def test_paths_with_special_characters(portal: PortalProcess, tmp_path: Path):
    """A path inside is encoded, whether it comes with the link or by itself."""
    name = "d é/50% off?#&+;=\n\"'\\.txt"
    async with PortalClient(portal.url) as client:
        result = await client.upload_directory({name: b"odd", "x": b""}, custom_dirname="s")
        await client.download_file(tmp_path / "a", str(result), path=name)
        await client.download_file(tmp_path / "b", str(result), path=f"/{name}")
        await client.download_file(tmp_path / "c", client.get_skylink_url(str(result), path=name))
        for copy in "abc":
            assert (tmp_path / copy).read_bytes() == b"odd"
        with pytest.raises(NotFoundError):
            await client.download_file(tmp_path / "none", str(result), path="none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("archive", "start"),
    [("", b"PK"), ("zip", b"PK"), ("tar", b"a.txt\0"), ("targz", b"\x1f\x8b"), ("concat", b"AB")],
)
async def test_archives(portal: PortalProcess, tmp_path: Path, archive: str, start: bytes):
    """A directory comes as a zip, or as what is asked for."""
    async with PortalClient(portal.url) as client:
        result = await client.upload_directory({"a.txt": b"A", "b": b"B"}, custom_dirname="s")
        await client.download_file(tmp_path / "x", str(result), archive=archive)
        assert (tmp_path / "x").read_bytes().startswith(start)
        with pytest.raises(RequestRefusedError):
            await client.download_file(tmp_path / "y", str(result), archive="rar")


async def test_name(portal: PortalProcess, tmp_path: Path):
    """What a domain resolves to is downloaded too, with a path."""
    async with PortalClient(portal.url) as client:
        result = await client.upload_directory({"a/b": b"named", "c": b""}, custom_dirname="s")
        zone_file.change(portal.data, lambda found: found.with_record("dl-test", str(result)))
        await client.download_file_hns(tmp_path / "x", "DL-test.", path="/a/b", timeout_seconds=5)
        assert (tmp_path / "x").read_bytes() == b"named"
        with pytest.raises(NotFoundError):
            await client.download_file_hns(tmp_path / "y", "nobody-has-this")


async def test_mode(portal: PortalProcess, tmp_path: Path):
    """A new file has the mode that the umask leaves."""
    async with PortalClient(portal.url) as client:
        result = await client.upload_file(b"x", custom_filename="f")
        before = os.umask(0o027)
        try:
            await client.download_file(tmp_path / "f", str(result))
        finally:
            os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


async def test_parameters(tmp_path: Path):
    """Time-out, archive and skykey go to the portal; metadata is not asked for."""
    async with talking() as (portal, client):
        await client.download_file(
            tmp_path / "f", LARGE.name, timeout_seconds="2", archive="tar", skykey_name="k&y"
        )
        assert downloads(portal)[0].query == {
            "timeout": "2",
            "format": "tar",
            "skykeyname": "k&y",
            "no-response-metadata": "true",
        }
        for wrong in ("0", "901", 901, -1, "soon"):
            with pytest.raises(MalformedError, match="timeout_seconds"):
                await client.download_file(tmp_path / "f", LARGE.name, timeout_seconds=wrong)
        assert len(downloads(portal)) == 1


# --- destinations


async def test_link_as_a_destination(target: Path, tmp_path: Path):
    """A symbolic link stays one; what it leads to is replaced."""
    (tmp_path / "link").symlink_to(target)
    async with talking() as (_, client):
        await client.download_file(tmp_path / "link", LARGE.name)
    assert (tmp_path / "link").is_symlink()
    assert target.read_bytes() == DATA


async def test_long_name(tmp_path: Path):
    """A name of the greatest legal length will do, whatever its characters take."""
    for name in ("x" * 255, "é" * 127, "😀" * 63):
        async with talking() as (_, client):
            await client.download_file(tmp_path / name, LARGE.name)
        assert (tmp_path / name).read_bytes() == DATA


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (".", IsADirectoryError),
        ("sub", IsADirectoryError),
        ("sub/..", IsADirectoryError),
        ("none/x", FileNotFoundError),
        ("file/x", NotADirectoryError),
        ("/", IsADirectoryError),
        ("/proc/nothing", OSError),
        ("/dev/null", FileExistsError),
        ("pipe", FileExistsError),
        ("x" * 256, OSError),
    ],
)
async def test_destination_that_cannot_be(tmp_path: Path, name: str, error: type[OSError]):
    """A destination that cannot become a file is an OSError, before any request."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    async with talking() as (portal, client):
        with pytest.raises(error) as caught:
            await client.download_file(tmp_path / name, LARGE.name)
        assert caught.value.filename == str(tmp_path / name)
        assert portal.accepted == 0
    assert sorted(os.listdir(tmp_path)) == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: an error of the kind that a full disk is."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


async def test_disk_that_is_full(target: Path):
    """C12: no room is an OSError at once, not another attempt; the old content stays."""
    async with talking() as (portal, client):
        with pytest.raises(OSError, match="large"), at_most(100_000):
            await client.download_file(target, LARGE.name)
        assert len(downloads(portal)) == 1
    assert target.read_bytes() == b"old"


@pytest.mark.parametrize("wrong", [{"on_progress": 5}, {"archive": None}, {"path": b"x"}])
async def test_wrong_types(target: Path, wrong: dict[str, object]):
    """C3: an argument of a wrong type is noticed before any request."""
    async with talking() as (portal, client):
        with pytest.raises(WrongTypeError):
            await client.download_file(target, LARGE.name, **wrong)  # type: ignore[arg-type]
        with pytest.raises(WrongTypeError):
            await client.download_file(b"bytes", LARGE.name)  # type: ignore[arg-type]
        for name in ("", "a\0b", "\ud800"):
            with pytest.raises(MalformedError):
                await client.download_file(name, LARGE.name)
        assert portal.accepted == 0


# --- transfers that break


async def test_old_content_stays_until_the_end(target: Path):
    """C12: what was there stays until the new content is complete."""
    seen = []
    async with talking() as (_, client):
        await client.download_file(
            target, LARGE.name, on_progress=lambda *_: seen.append(target.read_bytes())
        )
    assert set(seen) == {b"old"}
    assert target.read_bytes() == DATA


async def test_goes_on_where_it_broke(target: Path):
    """C12: a transfer that breaks goes on by Range and If-Range, as often as it gets further."""
    seen: list[tuple[int, int | None]] = []
    async with talking(retries=1) as (portal, client):
        portal.fault(breaking(400_000), times=7)
        portal.fault(tagged)
        await client.download_file(target, LARGE.name, on_progress=lambda *n: seen.append(n))
        assert ranges(portal) == ["all", *(f"bytes={n * 400_000}-" for n in range(1, 8))]
        assert {request.headers["if-range"] for request in downloads(portal)[1:]} == {'"one"'}
    assert target.read_bytes() == DATA
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {len(DATA)}


@pytest.mark.parametrize("how", ["reset", "stall"])
async def test_other_ways_to_break(target: Path, how: str):
    """C12: so does one that is reset or falls silent."""
    async with talking(timeout=0.3) as (portal, client):
        portal.fault(
            lambda request, reply: replace(breaking(1000)(request, reply), then=how), times=1
        )
        portal.fault(tagged)
        await client.download_file(target, LARGE.name)
        assert len(downloads(portal)) == 2
    assert target.read_bytes() == DATA


async def test_content_that_changed(target: Path):
    """C12: what has another ETag by now is downloaded from its start."""
    async with talking(verify="off") as (portal, client):
        portal.fault(
            lambda request, reply: breaking(1_000_000, b'"old"')(
                request, replace(reply, body=b"!" * len(reply.body))
            ),
            times=1,
        )
        portal.fault(tagged)
        await client.download_file(target, LARGE.name)
        assert ranges(portal) == ["all", "bytes=1000000-"]
    assert target.read_bytes() == DATA


@pytest.mark.parametrize(
    ("tag", "fault", "asked"),
    [
        (b'"old"', fake.header(b"ETag", TAG), ["all", REST, "all"]),  # and If-Range is ignored
        (b"", tagged, ["all", "all"]),
        (b'W/"weak"', tagged, ["all", "all"]),
        (TAG, fake.ignores_range, ["all", REST]),
        (TAG, fake.status(416), ["all", REST, "all"]),
        (TAG, content_range(b"bytes 5-2999999/3000000"), ["all", REST, "all"]),
        (TAG, content_range(b"bytes 1000000-1999999/3000000"), ["all", REST, "all"]),
        (TAG, fake.without_header(b"Content-Range"), ["all", REST, "all"]),
        (TAG, content_range(b"nonsense"), ["all", REST, "all"]),
    ],
)
async def test_rest_that_cannot_be_had(
    target: Path, tag: bytes, fault: fake.Fault, asked: list[str]
):
    """C12: everything is downloaded again if the rest is another part or of other content, cannot
    be had, or is not asked for since no strong ETag says that it is the same content.
    """
    async with talking() as (portal, client):
        portal.fault(breaking(1_000_000, tag), times=1)
        portal.fault(fault, times=1)
        portal.fault(tagged)
        await client.download_file(target, LARGE.name)
        assert ranges(portal) == asked
    assert target.read_bytes() == DATA


async def test_gives_up(target: Path):
    """C12: transfers that bring nothing new end in the last error; nothing is left behind."""
    async with talking(retries=2) as (portal, client):
        portal.fault(breaking(1000), times=1)
        portal.fault(breaking(0))
        with pytest.raises(BadContentError, match=r"closed|incomplete") as caught:
            await client.download_file(target, LARGE.name)
        assert ranges(portal) == ["all", *3 * ["bytes=1000-"]]
        assert caught.value.method == "GET"
    assert target.read_bytes() == b"old"


async def test_ups_and_downs(target: Path):
    """C12: a portal that begins again and again with a little more or less is given up."""
    turns = iter(range(1000))
    async with talking(retries=2) as (portal, client):

        def seesaw(request: Request, reply: Reply) -> Reply:
            return breaking(1000 + next(turns) % 2, b"")(request, reply)

        portal.fault(seesaw)
        with pytest.raises(BadContentError):
            await client.download_file(target, LARGE.name)
        assert len(downloads(portal)) == 5
    assert target.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("fault", "error", "requests"),
    [
        (fake.status(404), NotFoundError, 1),
        (fake.status(400), RequestRefusedError, 1),
        (fake.status(416), RequestRefusedError, 1),
        (fake.status(500), UnavailableError, 1),
        (fake.status(503), UnavailableError, 3),
        (fake.closes_after(-1), BadContentError, 3),
        (fake.stalls_after(-1), PortalTimeoutError, 3),
    ],
)
async def test_nothing_came(
    target: Path, fault: fake.Fault, error: type[PortalError], requests: int
):
    """A download that never begins fails as any other request, repeated no more often."""
    async with talking(retries=2, timeout=0.2) as (portal, client):
        portal.fault(fault)
        with pytest.raises(error):
            await client.download_file(target, LARGE.name)
        assert len(downloads(portal)) == requests
    assert target.read_bytes() == b"old"


async def test_not_found_in_the_middle(target: Path):
    """C12: content that is gone in the middle is an error at once."""
    async with talking() as (portal, client):
        portal.fault(breaking(1000), times=1)
        portal.fault(fake.status(410))
        with pytest.raises(NotFoundError):
            await client.download_file(target, LARGE.name)
        assert len(downloads(portal)) == 2
    assert target.read_bytes() == b"old"


async def test_portal_that_sends_too_much(target: Path):
    """C14: more than the rest is an error."""
    async with talking(retries=0) as (portal, client):
        portal.fault(breaking(1000), times=1)
        portal.fault(fake.excess(b"!"))
        with pytest.raises(BadContentError, match="more bytes than asked for"):
            await client.download_file(target, LARGE.name)
    assert target.read_bytes() == b"old"


# --- ends that come from here


async def test_callback_that_raises(target: Path):
    """C12: what a callback raises ends the download and reaches the caller."""

    def fail(now: int, total: int | None) -> None:
        raise ZeroDivisionError

    async with talking(connections=1) as (_, client):
        with pytest.raises(ZeroDivisionError):
            await client.download_file(target, LARGE.name, on_progress=fail)
        assert target.read_bytes() == b"old"
        await client.download_file(target, LARGE.name)
    assert target.read_bytes() == DATA


async def test_two_at_once(target: Path):
    """Downloads into the same file do not mix."""
    async with talking() as (portal, client):
        other = of_files({"g": noise(2_000_000, 4)})
        portal.add(other)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.download_file, target, LARGE.name)
            nursery.start_soon(client.download_file, target, other.name)
    assert target.read_bytes() in (DATA, other.payload)


@pytest.mark.parametrize("content_range", [b"bytes 0-999/*", b"bytes 0-999/1000"])
async def test_part_that_nobody_asked_for(target: Path, content_range: bytes):
    """C12: a part is not taken for the whole."""
    async with talking(retries=0) as (portal, client):
        headers = ((b"Content-Range", content_range),)
        portal.fault(lambda *_: Reply(206, headers, DATA[:1000]))
        with pytest.raises(BadContentError):
            await client.download_file(target, LARGE.name)
    assert target.read_bytes() == b"old"


async def test_portal_that_breaks_after_every_byte(target: Path):
    """A portal cannot keep a client at connecting: a byte at a time is not progress enough."""
    async with talking() as (portal, client):
        client.http.retry = RetryPolicy(backoff=0)
        portal.fault(breaking(1))
        with pytest.raises(BadContentError):
            await client.download_file(target, LARGE.name)
        assert len(downloads(portal)) == 21
    assert target.read_bytes() == b"old"


async def test_permissions_stay(target: Path):
    """A file that only its owner may read is not replaced by one that others may read."""
    target.chmod(0o600)
    async with talking() as (_, client):
        await client.download_file(target, LARGE.name)
    assert target.read_bytes() == DATA
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


async def test_skykey_of_a_download(target: Path):
    """A skykey's name or id goes along with every kind of download."""
    async with talking() as (portal, client):
        await client.get_file_content(LARGE.name, skykey_name="k")
        portal.fault(lambda *_: Reply(200, (), b"x"))
        await client.download_file_hns(target, "example", skykey_id="i")
        assert [request.target.partition("?")[2] for request in downloads(portal)] == [
            "skykeyname=k",
            "skykeyid=i",
        ]
        with pytest.raises(MalformedError):
            await client.get_file_content(LARGE.name, skykey_name="k", skykey_id="i")
