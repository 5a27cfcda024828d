"""``skymount pin``: content comes to another portal under its skylink (docs/semantics.md, W6)."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from skymount.wire.metadata import Metadata, encode_metadata
from skymount.wire.registry_entry import entry_link, hash_data_key
from skymount.wire.skylink import SECTOR_SIZE
from tests.cli.helpers import on_terminal, piped_well
from tests.cli.terminal import at_terminal
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal, Reply, Request, in_thread
from tests.fakes.skyfiles import FakeSkyfile, encrypted, noise, of_files, of_metadata, packed
from tests.mount.keys import until
from tests.portal_process import PortalProcess, portal_process, running_portal
from tests.skymount_process import SKYMOUNT, Sandbox, end

UPLOAD = "^POST .*skyfile(?!.*dryrun)"
BIG = 3 * SECTOR_SIZE + 1000


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real portal that lacks the content."""
    with running_portal(tmp_path_factory.mktemp("target")) as url:
        yield url


@pytest.fixture
def box(sandbox: Sandbox) -> Sandbox:
    """Commands in it know no portal."""
    return sandbox


@pytest.fixture
def at_source(sandbox: Sandbox, names: PortalProcess) -> Sandbox:
    return sandbox.with_env(SKYMOUNT_PORTALS=names.url)


def spool(box: Sandbox) -> Path:
    """Return where it is kept what was fetched."""
    return box.root / "cache/skymount/pin"


def blocks(box: Sandbox, content: FakeSkyfile) -> list[Path]:
    below = spool(box) / content.name / "content/v1"
    return [path for path in below.glob("??/*") if not path.name.endswith(".tmp")]


def pinned(box: Sandbox, *args: str) -> dict[str, Any]:
    """Bring one content; return what is said of it."""
    (line,) = box.succeed("pin", "--json", *args).splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def one_file(size: int, seed: int = 3) -> FakeSkyfile:
    return of_metadata(encode_metadata(Metadata("film.mkv", size)), noise(size, seed))


# What is brought


def test_a_small_file(
    box: Sandbox, at_source: Sandbox, names: PortalProcess, target: str, tmp_path: Path
) -> None:
    """W6: it is at the target under the same skylink, and is not sent again."""
    file = tmp_path / "notes.txt"
    file.write_bytes(noise(1000, 1))
    skylink = at_source.upload(file, names.url)
    args = (skylink, "--from", names.url, "--to", target)
    assert box.succeed("pin", *args) == f"{skylink}\n"
    assert httpx.get(f"{target}/{skylink}").content == file.read_bytes()
    assert pinned(box, f"sia://{skylink}/notes.txt", *args[1:]) == {
        "link": f"sia://{skylink}/notes.txt",
        "skylink": skylink,
        "size": 1000,
        "portal": target,
        "sent": False,
        "pinned": True,
        "verified": "yes",
    }
    again = box.skymount("pin", *args)
    assert again.returncode == 0
    assert again.stderr == f"everything was at {target} already; nothing was sent\n"


def test_directories_and_large_files(
    box: Sandbox, at_source: Sandbox, names: PortalProcess, target: str, tmp_path: Path
) -> None:
    """W6: several links at once; nothing stays in the cache, as the target has it."""
    site, film = tmp_path / "site", tmp_path / "film.mkv"
    for n in range(300):
        (site / f"d{n % 7}").mkdir(parents=True, exist_ok=True)
        (site / f"d{n % 7}" / str(n)).write_bytes(noise(n, n))
    film.write_bytes(noise(BIG, 2))
    skylinks = [at_source.upload(path, names.url) for path in (site, film)]
    said = box.succeed("pin", *skylinks, "--from", names.url, "--to", target)
    assert said.split() == skylinks
    assert httpx.get(f"{target}/{skylinks[0]}/d5/5").content == noise(5, 5)
    assert httpx.get(f"{target}/{skylinks[1]}").content == film.read_bytes()
    assert list(spool(box).iterdir()) == []


def test_metadata_of_several_sectors(box: Sandbox, fake: FakePortal, target: str) -> None:
    """W6: metadata that do not fit the base sector come along."""
    name = "/".join(("x" * 250,) * 7)
    content = of_files({f"{name}{n:05}": b"%d" % n for n in range(1200)})
    assert len(content.metadata) > SECTOR_SIZE
    fake.add(content)
    assert box.succeed("pin", content.name, "--from", fake.url, "--to", target)
    assert httpx.get(f"{target}/svc/metadata/{content.name}").content == content.metadata


def test_a_source_without_base_sectors(box: Sandbox, fake: FakePortal, target: str) -> None:
    """W6: small content is rebuilt; of large content nothing proves what it is."""
    small, large = of_files({"a": b"small", "b": noise(5, 5)}), one_file(BIG, 5)
    fake.base_sectors = False
    fake.add(small, large)
    assert pinned(box, small.name, "--from", fake.url, "--to", target)["sent"]
    said = box.fail("pin", large.name, "--from", fake.url, "--to", target)
    assert said.endswith("cannot be uploaded again: no portal proves that it is the content")


def test_what_is_damaged_at_the_target_is_replaced(
    box: Sandbox, fake: FakePortal, tmp_path: Path
) -> None:
    """W6: small content is found damaged, of large content that is not looked for."""
    small, large = of_files({"a": b"small", "b": noise(100_000, 6)}), one_file(BIG, 6)
    fake.add(small, large)
    with portal_process(tmp_path / "damaged") as portal:
        way = ("--from", fake.url, "--to", portal.url)
        for content, part in ((small, "base"), (large, "base"), (large, "payload")):
            pinned(box, content.name, *way)
            (file,) = portal.data.glob(f"v1/skyfiles/*/{content.name}/{part}")
            whole = file.read_bytes()
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            sent = pinned(box, content.name, *way)["sent"]
            assert sent == (part == "base")
            if not sent:
                assert pinned(box, "--again", content.name, *way)["sent"]
            assert file.read_bytes() == whole
            assert (
                httpx.get(f"{portal.url}/{content.name}?format=concat").content == content.payload
            )


def test_a_mirror_keeps_what_is_pinned(box: Sandbox, fake: FakePortal, tmp_path: Path) -> None:
    """W6: it can show the content already, and now has it."""
    content = one_file(BIG, 7)
    fake.add(content)
    with portal_process(tmp_path / "mirror", "--upstream", fake.url) as mirror:
        found = pinned(box, content.name, "--from", fake.url, "--to", mirror.url)
        assert (found["sent"], found["pinned"]) == (False, True)
        assert list(mirror.data.glob(f"v1/skyfiles/*/{content.name}/payload"))


def test_the_target_is_the_portal_that_uploads_go_to(
    box: Sandbox, fake: FakePortal, target: str
) -> None:
    """W6: without --to it is the first portal that is not read-only."""
    content = of_files({"a": b"default target"})
    fake.add(content)
    first = '[[portals]]\nurl = "http://127.0.0.1:1"\nread_only = true\n'
    box.configure(f'{first}[[portals]]\nurl = "{target}"\n')
    assert pinned(box, content.name, "--from", fake.url)["portal"] == target


def test_progress(box: Sandbox, fake: FakePortal, target: str) -> None:
    content = one_file(BIG, 6)
    fake.add(content)
    out, shown = on_terminal(box, "pin", content.name, "--from", fake.url, "--to", target)
    assert out == f"{content.name}\n"
    assert "12 MiB of 12 MiB" in shown


# What a link leads to


def test_links_that_can_change(
    box: Sandbox, at_source: Sandbox, names: PortalProcess, target: str, tmp_path: Path
) -> None:
    """W6: a v2 skylink leads to content by a verified entry; of a domain there is a warning."""
    owner = at_source.succeed("key", "generate", "home").rstrip()
    page = tmp_path / "page.html"
    page.write_text("moves")
    skylink = at_source.upload(page, names.url)
    at_source.succeed("registry", "set", "home", "site", "--skylink", skylink)
    link = str(entry_link(bytes.fromhex(owner), hash_data_key("site")))
    args = ("--from", names.url, "--to", target)
    assert pinned(box, link, *args) == {
        "link": link,
        "skylink": skylink,
        "size": 5,
        "portal": target,
        "sent": True,
        "pinned": True,
        "verified": "yes",
    }
    at_source.succeed("portal", "hns", "set", "--data", names.data, "pinned", skylink)
    done = box.skymount("pin", "--json", "hns://pinned", *args)
    found = json.loads(done.stdout)
    assert (found["skylink"], found["sent"], found["verified"]) == (skylink, False, "no")
    assert done.stderr.startswith("skymount: warning: hns://pinned: not verified: what a domain")
    said = box.fail("pin", "hns://pinned", "--verify", "require", *args)
    assert "verify is require" in said


def test_a_document_without_what_it_links_to(
    at_source: Sandbox, names: PortalProcess, target: str, tmp_path: Path
) -> None:
    """W6: what a document leads to is brought, and no link inside it is followed."""
    at_source.succeed("key", "generate", "home")
    photo = tmp_path / "photo"
    photo.write_bytes(noise(2000, 8))
    skylink = at_source.upload(photo, names.url)
    piped_well(at_source, json.dumps([skylink]), "db", "set", "home", "album")
    args = ("skydb/home/album.json", "--from", names.url, "--to", target)
    (found,) = at_source.succeed("pin", "--json", *args).splitlines()
    assert json.loads(found)["link"] == "skydb/home/album.json"
    assert httpx.head(f"{target}/{json.loads(found)['skylink']}").status_code == 200
    assert httpx.head(f"{target}/{skylink}").status_code == 404
    said = at_source.fail("pin", "--recursive", *args, code=2)
    assert "--recursive was removed: " in said
    assert "skymount pin LINK..." in said


def test_one_link_of_several_leads_nowhere(box: Sandbox, fake: FakePortal, target: str) -> None:
    """W6: the others are brought; the missing one is named, and the exit status is 1."""
    absent, there = of_files({"a": b"absent"}), of_files({"a": b"there"})
    fake.add(there)
    done = box.skymount("pin", absent.name, there.name, "--from", fake.url, "--to", target)
    assert (done.returncode, done.stdout.split()) == (1, [there.name])
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"skymount: warning: {absent.name}: {absent.name}: no portal has it")
    assert lines[1:] == ["skymount: 1 of 2 were not brought, see above"]


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("skydb/home", 2, "a document is skydb/KEY/DATAKEY.json"),
        ("skydb/home/x", 2, "a name must end in .json"),
        ("skydb/nobody/x.json", 3, "there is no key called nobody"),
        (f"skydb/{'ab' * 32}/x.json", 3, "there is no such document"),
    ],
)
def test_paths_of_no_document(
    box: Sandbox, names: PortalProcess, target: str, path: str, code: int, words: str
) -> None:
    assert words in box.fail("pin", path, "--from", names.url, "--to", target, code=code)


# What cannot be brought


def test_what_a_portal_encrypted(
    box: Sandbox, at_source: Sandbox, names: PortalProcess, target: str, tmp_path: Path
) -> None:
    """W6: it is refused; the skykey is the source's."""
    file = tmp_path / "secret"
    file.write_bytes(b"secret")
    at_source.succeed("skykey", "create", "mine")
    skylink = at_source.succeed("upload", file, "--skykey-name", "mine").rstrip()
    said = box.fail("pin", skylink, "--from", names.url, "--to", target)
    assert said.endswith("a portal encrypted it, which gives it another skylink each time")
    assert httpx.head(f"{target}/{skylink}").status_code == 404


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (of_files({"f": noise(9 << 20, 6)}, pieces=10), "spread over 10 data pieces"),
        (packed({"a": b"x"}), "it lies in a packed sector"),
        (of_metadata(b'{"filename":"sia.pdf"}', b"x"), "not as portals write them now"),
        (encrypted({"a": b"secret"}), "a portal encrypted it"),
    ],
    ids=["ten pieces", "packed", "old", "encrypted"],
)
def test_content_that_cannot_keep_its_skylink(
    box: Sandbox, fake: FakePortal, content: FakeSkyfile, reason: str
) -> None:
    """W6: nothing of it is sent."""
    fake.add(content)
    with faults.in_thread(FakePortal()) as target:
        said = box.fail("pin", content.name, "--from", fake.url, "--to", target.url)
        assert reason in said
        assert target.asked(UPLOAD) == []


def test_content_that_nobody_has(box: Sandbox, fake: FakePortal, target: str) -> None:
    """W6: exit code 3, in JSON too."""
    name = of_files({"a": b"nowhere"}).name
    args = ("pin", name, "--from", fake.url, "--to", target)
    assert box.fail(*args, code=3) == f"{name}: no portal has it"
    assert box.fail(*args, "--json", code=3) == f"{name}: no portal has it"


@pytest.mark.parametrize("size", [1000, BIG])
def test_a_lying_source(box: Sandbox, fake: FakePortal, target: str, size: int) -> None:
    """W6: what it sends wrongly is an error, and the target stores nothing."""
    content = one_file(size, 9)
    fake.add(content)
    fake.fault(faults.flips(500), "basesector" if size < SECTOR_SIZE else "^GET /[^/]*\\?")
    said = box.fail("pin", content.name, "--from", fake.url, "--to", target)
    assert "is not the content" in said
    assert httpx.head(f"{target}/{content.name}").status_code == 404


def test_a_target_that_shows_something_else(box: Sandbox, fake: FakePortal) -> None:
    """W6: what it cannot prove has to be what the source proves."""
    content, other = one_file(BIG, 10), one_file(BIG + 1, 11)
    fake.add(content)
    with faults.in_thread(FakePortal(base_sectors=False)) as target:
        args = ("pin", "--json", content.name, "--from", fake.url, "--to", target.url)
        target.resolve(content.skylink, other)
        assert "shows something under this skylink" in box.fail(*args)
        target.resolve(content.skylink, content)
        assert not json.loads(box.succeed(*args))["sent"]
        assert target.asked(UPLOAD) == []


def test_a_target_that_is_read_only(box: Sandbox, fake: FakePortal, target: str) -> None:
    """W2, W6: it is said before anything is asked."""
    box.configure(f'[[portals]]\nurl = "{target}"\nread_only = true\n')
    said = box.fail("pin", of_files({"a": b"x"}).name, "--from", fake.url)
    assert said == f"{target}: nothing is sent there, the configuration says read_only"
    assert fake.requests == []


@pytest.mark.parametrize("code", [507, 401])
def test_a_target_that_takes_nothing(box: Sandbox, fake: FakePortal, code: int) -> None:
    """W6: a full disk or a missing password is shown, and no further link is tried."""
    contents = [of_files({"a": b"%d" % n}) for n in range(3)]
    fake.add(*contents)
    with faults.in_thread(FakePortal()) as target:
        target.fault(faults.status(code, "no more"), UPLOAD)
        names = [content.name for content in contents]
        said = box.fail("pin", *names, "--from", fake.url, "--to", target.url)
        assert "no more" in said
        assert len(target.asked(UPLOAD)) == 1


@pytest.mark.parametrize("code", [451, 413, 400])
def test_a_target_that_refuses_one_content(box: Sandbox, fake: FakePortal, code: int) -> None:
    """W6: the others are tried."""
    contents = [of_files({"a": b"%d" % n}) for n in range(3)]
    fake.add(*contents)
    with faults.in_thread(FakePortal()) as target:
        target.fault(faults.status(code, "not that"), UPLOAD)
        names = [content.name for content in contents]
        done = box.skymount("pin", *names, "--from", fake.url, "--to", target.url)
        assert done.returncode == 1
        assert done.stderr.count("not that") == 3
        assert "3 of 3 were not brought" in done.stderr
        assert len(target.asked(UPLOAD)) == 3


def test_a_target_that_takes_no_large_uploads(
    box: Sandbox, fake: FakePortal, tmp_path: Path
) -> None:
    content = one_file(BIG, 12)
    fake.add(content)
    with running_portal(tmp_path, "--max-upload", "1000000") as target:
        said = box.fail("pin", content.name, "--from", fake.url, "--to", target)
    assert "over the limit of 976.6 KiB" in said


@pytest.mark.parametrize("is_named", [False, True])
def test_credentials_of_the_environment(box: Sandbox, fake: FakePortal, is_named: bool) -> None:
    """W6: the target gets them, or the portals that the environment names; nobody else."""
    content = of_files({"a": b"x"})
    fake.add(content)
    variables = {"SKYMOUNT_API_KEY": "hunter2", "SKYMOUNT_HEADERS": "Cookie: mine"}
    if is_named:
        variables["SKYMOUNT_PORTALS"] = fake.url
    with faults.in_thread(FakePortal()) as target:
        target.fault(faults.status(507, "no space left"), UPLOAD)
        args = ("pin", content.name, "--from", fake.url, "--to", target.url)
        box.with_env(**variables).fail(*args)
        for portal, is_given in ((fake, is_named), (target, not is_named)):
            assert portal.requests
            for request in portal.requests:
                assert ("authorization" in request.headers) == is_given
                assert ("cookie" in request.headers) == is_given


@pytest.mark.parametrize("is_source", [True, False])
def test_a_silent_portal(box: Sandbox, fake: FakePortal, target: str, is_source: bool) -> None:
    """R14: nothing is asked twice, and who is waited for is said at a terminal."""
    content = of_files({"a": b"from or to a silent portal"})
    with in_thread(FakePortal()) as silent:
        fake.add(content)
        silent.fault(faults.stalls_after(-1))
        way = ("--from", silent.url, "--to", target)
        if not is_source:
            way = ("--from", fake.url, "--to", silent.url)
        with at_terminal(box, "pin", content.name, *way, "--timeout", "4") as terminal:
            assert terminal.end()[0] == 1
        assert f"waiting for {silent.url}, which sends nothing, for " in terminal.shown
        assert "silent for 4 s" in terminal.shown
        targets = [f"{each.method} {each.target}" for each in silent.requests]
        assert len(targets) == len(set(targets))


def test_one_portal_is_not_both(box: Sandbox, target: str) -> None:
    name = of_files({"a": b"x"}).name
    said = box.fail("pin", name, "--from", target, "--to", f"{target}/", code=2)
    assert "is both source and target" in said
    said = box.with_env(SKYMOUNT_PORTALS=target).fail("pin", name, "--from", target, code=2)
    assert "is both source and target" in said


# Going on


def from_byte(request: Request) -> int:
    return int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])


def stalls_behind(offset: int) -> faults.Fault:
    """Send what begins before an offset of the content; stall afterwards."""

    def stall(request: Request, reply: Reply) -> Reply:
        left = offset - from_byte(request)
        if len(reply.body) <= left:
            return reply
        return replace(reply, length=len(reply.body), sent=max(0, left), then="stall")

    return stall


CONTENT = "^GET /[^/]*\\?"


def test_a_run_that_was_killed_goes_on(box: Sandbox, fake: FakePortal, target: str) -> None:
    """W6: what had been fetched is not fetched again."""
    content = one_file(BIG, 13)
    fake.add(content)
    fake.fault(stalls_behind(2 * SECTOR_SIZE), CONTENT)
    args = ["pin", content.name, "--from", fake.url, "--to", target]
    process = subprocess.Popen(
        [*SKYMOUNT, *args], env=box.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        until(lambda: len(blocks(box, content)) == 2)
    finally:
        end(process)
    fake.heal()
    fake.requests.clear()
    assert box.succeed(*args) == f"{content.name}\n"
    assert min(map(from_byte, fake.asked(CONTENT))) == 2 * SECTOR_SIZE
    assert httpx.get(f"{target}/{content.name}").content == content.payload
    assert list(spool(box).iterdir()) == []


def test_a_source_that_ends_midway(box: Sandbox, fake: FakePortal, target: str) -> None:
    """W6: the error names it, nothing is stored, and the next run goes on."""
    content = one_file(BIG, 14)
    fake.add(content)

    def breaks(request: Request, reply: Reply) -> Reply:
        if from_byte(request) + len(reply.body) <= SECTOR_SIZE:
            return reply
        left = max(0, SECTOR_SIZE - from_byte(request))
        return replace(reply, length=len(reply.body), sent=left, then="close")

    fake.fault(breaks, CONTENT)
    args = ["pin", content.name, "--from", fake.url, "--to", target]
    said = box.fail(*args)
    assert said.startswith(f"{content.name} cannot be read: ")
    assert httpx.head(f"{target}/{content.name}").status_code == 404
    assert len(blocks(box, content)) >= 1
    fake.heal()
    fake.requests.clear()
    assert box.succeed(*args) == f"{content.name}\n"
    assert min(map(from_byte, fake.asked(CONTENT))) == SECTOR_SIZE


def test_what_is_kept_can_be_cleared(box: Sandbox, fake: FakePortal) -> None:
    """W6: with the rest of the cache."""
    content = one_file(BIG, 15)
    fake.add(content)
    with faults.in_thread(FakePortal()) as target:
        target.fault(faults.status(503), UPLOAD)
        box.fail("pin", content.name, "--from", fake.url, "--to", target.url)
    assert spool(box).exists()
    box.succeed("cache", "clear")
    assert not spool(box).exists()


def test_a_cache_that_cannot_be_used(box: Sandbox, fake: FakePortal, target: str) -> None:
    """W6: there is a warning, and the content is brought all the same."""
    content = one_file(BIG, 16)
    fake.add(content)
    spool(box).parent.mkdir(exist_ok=True)
    spool(box).write_text("in the way")
    done = box.skymount("pin", content.name, "--from", fake.url, "--to", target)
    assert (done.returncode, done.stdout) == (0, f"{content.name}\n")
    assert "nothing is kept for another attempt" in done.stderr
