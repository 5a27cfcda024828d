"""Which portals take what commands upload, and what is said of those that do not (W3)."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.cli.helpers import piped
from tests.fakes.portal import (
    FakePortal,
    Fault,
    asks_for_a_pause,
    html,
    in_thread,
    stalls_after,
    status,
)
from tests.fakes.skyfiles import of_files, unverifiable
from tests.portal_process import running_portal
from tests.skymount_process import LIMIT, SKYMOUNT, Sandbox, end

UPLOAD = "^POST "
SOON = ("--timeout", "4")
CLOSED = "http://127.0.0.1:9"


@pytest.fixture
def file(sandbox: Sandbox) -> Path:
    path = sandbox.root / "file.bin"
    path.write_bytes(bytes(3 << 20))  # more than sockets hold
    return path


@dataclass(frozen=True)
class Pair:
    """Two portals of which the first one fails, and commands that use them."""

    box: Sandbox
    fake: FakePortal
    second: str


@pytest.fixture
def pair(sandbox: Sandbox, fake: FakePortal, portal: str) -> Pair:
    return Pair(sandbox.with_env(SKYMOUNT_PORTALS=f"{fake.url} {portal}"), fake, portal)


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of another real portal."""
    with running_portal(tmp_path_factory.mktemp("third")) as url:
        yield url


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (status(503, "maintenance"), "maintenance"),
        (status(401, "no"), "no"),
        (status(413, "too large"), "too large"),
        (html, "not"),
        (stalls_after(-1), ""),
    ],
    ids=["503", "401", "413", "html", "silent"],
)
def test_a_portal_that_answers_wrongly(pair: Pair, file: Path, fault: Fault, said: str) -> None:
    """W3: the next one has it, under the skylink that it has by itself; stderr says so."""
    expected = pair.box.upload(file, pair.second)
    pair.fake.fault(fault, UPLOAD)
    done = pair.box.skymount("upload", *SOON, file)
    assert (done.returncode, done.stdout) == (0, f"{expected}\n")
    first, last = done.stderr.splitlines()
    assert said in first
    assert first.endswith(f"; now trying {pair.second}")
    assert last == f"skymount: warning: it was uploaded to {pair.second}"


@pytest.mark.parametrize("then", ["reset", "hang"])
def test_a_portal_that_fails_in_the_middle(pair: Pair, file: Path, then: str) -> None:
    expected = pair.box.upload(file, pair.second)
    pair.fake.breaks_upload = 1 << 20, then
    done = pair.box.skymount("upload", *SOON, file)
    assert (done.returncode, done.stdout) == (0, f"{expected}\n")
    assert len(pair.fake.asked(UPLOAD)) == 1


def test_a_portal_that_cannot_be_reached(sandbox: Sandbox, file: Path, portal: str) -> None:
    done = sandbox.skymount("upload", "--portal", CLOSED, "--portal", portal, file)
    assert (done.returncode, len(done.stdout)) == (0, 47)
    assert "cannot be reached" in done.stderr


def test_a_directory(pair: Pair) -> None:
    site = pair.box.directory("site")
    (site / "a.html").write_text("a")
    pair.fake.fault(status(503), UPLOAD)
    done = pair.box.skymount("upload", site)
    assert httpx.get(f"{pair.second}/{done.stdout.rstrip()}/a.html").text == "a"


def test_all_portals_fail(sandbox: Sandbox, file: Path, fake: FakePortal) -> None:
    """Each is named: the first in a warning, the last in the error."""
    fake.fault(status(503, "maintenance"), UPLOAD)
    done = sandbox.skymount("upload", "--portal", CLOSED, "--portal", fake.url, file)
    assert (done.returncode, done.stdout) == (1, "")
    warning, error = done.stderr.splitlines()
    assert CLOSED[7:] in warning
    assert error == f"skymount: maintenance (POST {fake.url}/svc/skyfile/{_path(fake)})"


def _path(fake: FakePortal) -> str:
    return fake.asked(UPLOAD)[0].path.removeprefix("/svc/skyfile/")


def test_a_read_only_portal_gets_nothing(
    sandbox: Sandbox, file: Path, fake: FakePortal, portal: str
) -> None:
    """W2: it is no reason for a warning either."""
    sandbox.configure(
        f'[[portals]]\nurl = "{fake.url}"\nread_only = true\n[[portals]]\nurl = "{portal}"\n'
    )
    assert sandbox.succeed("upload", file)
    assert fake.requests == []


# Standard input


def test_a_pipe_goes_to_the_first_portal_that_begins_to_take_it(
    sandbox: Sandbox, portal: str
) -> None:
    both = ("--portal", CLOSED, "--portal", portal)
    done = piped(sandbox, b"from a pipe", *_from_pipe(*both))
    assert done.returncode == 0
    assert httpx.get(f"{portal}/{done.stdout.rstrip()}").content == b"from a pipe"


@pytest.mark.parametrize("then", ["reset", "hang"])
def test_a_pipe_is_sent_to_no_other_portal(pair: Pair, then: str) -> None:
    """W3: what fails once it is read is an error, which says so."""
    pair.fake.breaks_upload = 1 << 19, then
    done = piped(pair.box, b"from a pipe" * 100_000, *_from_pipe(*SOON))
    assert (done.returncode, done.stdout) == (1, "")
    assert "; a pipe cannot be sent again (POST " in done.stderr


def test_nothing_is_kept_of_a_pipe(sandbox: Sandbox) -> None:
    said = sandbox.fail("upload", "-", "--name", "x", "--spool", "1 GiB", code=2)
    assert "--spool was removed: a pipe is sent to one portal" in said


def test_standard_input_that_is_a_file_is_read_again(pair: Pair, file: Path) -> None:
    pair.fake.fault(status(503), UPLOAD)
    with file.open("rb") as stdin:
        done = subprocess.run(
            [*SKYMOUNT, *_from_pipe()],
            env=pair.box.env,
            stdin=stdin,
            capture_output=True,
            check=True,
            timeout=LIMIT,
        )
    assert len(done.stdout) == 47


def test_memory_stays_flat(sandbox: Sandbox, portal: str) -> None:
    size = 96 << 20
    process = subprocess.Popen(
        [*SKYMOUNT, *_from_pipe("--portal", portal)],
        env=sandbox.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        for _ in range(size >> 20):
            process.stdin.write(bytes(1 << 20))
        status = Path(f"/proc/{process.pid}/status").read_text()
        out, said = process.communicate(timeout=LIMIT)
    finally:
        end(process)
    assert (process.returncode, len(out)) == (0, 47), said
    assert httpx.head(f"{portal}/{out.decode().rstrip()}").headers["content-length"] == f"{size}"
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    assert int(line.split()[1]) << 10 < 80 << 20


def _from_pipe(*options: str) -> tuple[str, ...]:
    return ("upload", *options, "-", "--name", "x")


# Replicas


def test_replicas(sandbox: Sandbox, file: Path, portal: str, third: str) -> None:
    both = ("--portal", portal, "--portal", third)
    skylink = sandbox.succeed("upload", *both, "--replicas", "2", file).rstrip()
    for url in (portal, third):
        assert httpx.head(f"{url}/{skylink}").status_code == 200


def test_replicas_of_standard_input(sandbox: Sandbox, portal: str, third: str) -> None:
    line = _from_pipe("--portal", portal, "--portal", third, "--replicas", "2")
    done = piped(sandbox, b"from a pipe", *line)
    assert (done.returncode, done.stderr) == (0, "")
    for url in (portal, third):
        assert httpx.get(f"{url}/{done.stdout.rstrip()}").content == b"from a pipe"


def test_too_few_replicas_of_standard_input(pair: Pair) -> None:
    """W3: one portal has it, and the other one does not take it from there."""
    pair.fake.fault(status(403, "no"), UPLOAD)
    both = ("--portal", pair.second, "--portal", pair.fake.url)
    done = piped(pair.box, b"from a pipe", *_from_pipe(*both, "--replicas", "2"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"skymount: 1 of 2 portals have it: {pair.second} has ")
    assert f"; no (POST {pair.fake.url}/" in done.stderr


def test_too_few_replicas(pair: Pair, file: Path) -> None:
    """The message says which portals have it, and why others do not."""
    skylink = pair.box.upload(file, pair.second)
    pair.fake.fault(status(503, "maintenance"), UPLOAD)
    said = pair.box.fail("upload", "--replicas", "2", file)
    assert said.startswith(
        f"1 of 2 portals have it: {pair.second} has {skylink}; maintenance (POST {pair.fake.url}/"
    )


def test_a_replica_takes_the_place_of_another(pair: Pair, file: Path, third: str) -> None:
    pair.fake.fault(status(503), UPLOAD)
    three = [f"--portal={url}" for url in (pair.fake.url, pair.second, third)]
    done = pair.box.skymount("upload", *three, "--replicas", "2", file)
    assert (done.returncode, len(done.stdout)) == (0, 47)
    assert done.stderr.endswith(f"now trying {third}\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replicas", "3"], "--replicas 3: only 2 portals can be uploaded to"),
        (["--replicas", "2", "--dry-run"], "neither --dry-run nor a skykey"),
        (["--replicas", "2", "--skykey-name", "x"], "neither --dry-run nor a skykey"),
    ],
)
def test_replicas_that_make_no_sense(pair: Pair, file: Path, options: list[str], said: str) -> None:
    assert said in pair.box.fail("upload", *options, file, code=2)
    assert pair.fake.requests == []


def test_a_portal_that_gives_a_wrong_skylink(pair: Pair, file: Path) -> None:
    """W3, W4: it has no copy; the next portal is asked, and its skylink counts."""
    other = of_files({"other": b"content"})
    pair.fake.add(other)
    skylink = pair.box.upload(file, pair.second)
    lie = f"it gave the upload the skylink {other.skylink}, and has something else there"
    named = f"{lie} ({pair.fake.url})"
    done = pair.box.skymount("upload", file)
    assert (done.returncode, done.stdout) == (0, f"{skylink}\n")
    assert done.stderr.splitlines() == [
        f"skymount: warning: {named}; now trying {pair.second}",
        f"skymount: warning: it was uploaded to {pair.second}",
    ]
    assert pair.box.fail("upload", "--portal", pair.fake.url, file) == named
    said = pair.box.fail("upload", "--replicas", "2", file)
    assert said == f"1 of 2 portals have it: {pair.second} has {skylink}; {named}"
    pair.box.succeed("key", "generate", "home")
    done = pair.box.skymount("publish", "--json", file, "--key", "home", "--as", "x")
    assert json.loads(done.stdout)["skylink"] == skylink
    warning = done.stderr.splitlines()[0]
    assert warning == (
        f"skymount: warning: {named}; it gets content and entry later, "
        "from a mount or with `skymount registry retry`"
    )


def test_a_pipe_gets_a_wrong_skylink(pair: Pair) -> None:
    """W3, W4."""
    pair.fake.add(of_files({"other": b"content"}))
    done = piped(pair.box, b"from a pipe", *_from_pipe())
    assert (done.returncode, done.stdout) == (1, "")
    assert ", and has something else there; a pipe cannot be sent again" in done.stderr


def test_a_portal_that_shows_nothing(sandbox: Sandbox, file: Path, fake: FakePortal) -> None:
    """W4: what it says is printed, with a warning."""
    claim = of_files({"other": b"content"})
    fake.add(claim)
    fake.fault(status(403, "no"), "^(GET|HEAD) ")
    done = sandbox.skymount("upload", "--portal", fake.url, file)
    assert (done.returncode, done.stdout) == (0, f"{claim.skylink}\n")
    said = f"nothing proves that the skylink is right: {fake.url} has {claim.skylink}"
    assert done.stderr == f"skymount: warning: {said}\n"


def test_portals_that_prove_nothing(sandbox: Sandbox, file: Path, fake: FakePortal) -> None:
    """W4: nothing is signed; the message has what is known, and what to do."""
    sandbox.succeed("key", "generate", "home")
    with in_thread(FakePortal()) as second:
        claims = []
        for number, each in enumerate((fake, second)):
            claim = unverifiable(b"{}", seed=number)
            each.add(claim)
            each.fault(status(403, "no"), "^(GET|HEAD) ")
            claims.append(f"{each.url} has {claim.skylink}")
        both = ("--portal", fake.url, "--portal", second.url)
        said = sandbox.fail("publish", *both, file, "--key", "home", "--as", "x")
        assert fake.asked("^POST /svc/registry") == second.asked("^POST /svc/registry") == []
    assert said == (
        "the portals gave it different skylinks, and none of them proved it: "
        f"{', '.join(claims)}; leave out the portal that is wrong "
        "(--portal, `portals` in the configuration)"
    )


def test_a_portal_that_asks_for_a_pause(pair: Pair, file: Path) -> None:
    """W3: a short one is waited for, and stderr says so."""
    pair.fake.fault(asks_for_a_pause(1), UPLOAD, times=1)
    skylink = pair.box.upload(file, pair.second)
    pair.fake.add(of_files({file.name: file.read_bytes()}))
    done = pair.box.skymount("upload", "--portal", pair.fake.url, file)
    assert (done.returncode, len(done.stdout)) == (0, len(skylink) + 1)
    assert done.stderr.startswith("skymount: warning: slow down (POST ")
    assert done.stderr.endswith(f"; now trying {pair.fake.url} again\n")


# Publishing


def test_what_is_published_goes_to_all_portals(
    sandbox: Sandbox, file: Path, portal: str, third: str
) -> None:
    """W4: content and entry."""
    sandbox.succeed("key", "generate", "home")
    both = ("--portal", portal, "--portal", third)
    link = sandbox.succeed("publish", *both, file, "--key", "home", "--as", "x").rstrip()
    (sandbox.root / "doc.json").write_text('{"a": 1}')
    sandbox.succeed("db", "set", *both, "home", "doc", "doc.json")
    for url in (portal, third):
        listed = sandbox.succeed("ls", "--portal", url, link)
        assert listed.rstrip() == file.name
        assert sandbox.succeed("db", "get", "--portal", url, "home", "doc") == '{"a": 1}\n'


def test_a_portal_that_lacks_what_is_published(pair: Pair, file: Path) -> None:
    """W4: it is owed both, and a warning says so."""
    pair.box.succeed("key", "generate", "home")
    pair.fake.fault(status(503, "full"))
    done = pair.box.skymount("publish", file, "--key", "home", "--as", "x")
    assert (done.returncode, len(done.stdout)) == (0, 47)
    warning = done.stderr.splitlines()[0]
    assert warning.startswith("skymount: warning: full (POST ")
    assert warning.endswith(
        "; it gets content and entry later, from a mount or with `skymount registry retry`"
    )
    assert pair.fake.asked("^POST /svc/registry") == []


def test_all_portals_must_have_what_is_published(pair: Pair, file: Path) -> None:
    pair.box.succeed("key", "generate", "home")
    pair.box.configure('registry_writes = "all"\n')
    pair.fake.fault(status(503, "full"))
    said = pair.box.fail("publish", file, "--key", "home", "--as", "x")
    assert said.startswith("1 of 2 portals took it, 2 have to: full (POST ")
    assert json.loads(pair.box.succeed("registry", "pending", "--json")) == []
