"""Commands that read content say what could not be verified, in words, in JSON, and refuse it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from skymount.cli.key_argument import EntryArgument
from skymount.cli.link_target import ParsedLink, parse_skydb_path
from skymount.errors import MalformedError
from skymount.wire.metadata import Metadata, encode_metadata
from tests.cli.helpers import asking
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import encrypted, noise, of_files, resolver, unverifiable
from tests.portal_process import PortalProcess
from tests.server.http_client import Client
from tests.skymount_process import Sandbox

PROVEN = of_files({"f": b"content"})
WORD = unverifiable(encode_metadata(Metadata("f", 7)), b"content")
"""What a portal alone says."""
SECRET = encrypted({"f": b"content"})
HUGE = of_files({"f": noise(9 << 20, 6)}, pieces=17)
"""In chunks that are too large to be checked."""

KEY = "ab" * 32

READING = ("cat", "ls", "download", "metadata")


@pytest.fixture
def fake() -> Iterator[FakePortal]:
    with in_thread(FakePortal()) as portal:
        portal.add(PROVEN, WORD, SECRET, HUGE)
        yield portal


@pytest.fixture
def box(sandbox: Sandbox, fake: FakePortal) -> Sandbox:
    """Commands in it ask the fake portal, and run in an empty directory."""
    sandbox.directory("work")
    return asking(sandbox, fake)


@pytest.fixture
def work(box: Sandbox) -> Path:
    return box.root / "work"


def warned(box: Sandbox, *command: str | Path) -> tuple[str, str]:
    """Run a command that succeeds; return what it printed, and its only warning."""
    done = box.skymount(*command, cwd=box.root / "work")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("skymount: warning: ")
    return done.stdout, line.removeprefix("skymount: warning: ")


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("skyfile", [WORD, SECRET], ids=["word", "secret"])
def test_what_is_not_verified_is_said(box: Sandbox, work: Path, command: str, skyfile) -> None:
    """One line names the link, what it means, and how to refuse it; so does JSON."""
    out, said = warned(box, command, skyfile.name)
    assert said.startswith(f"{skyfile.name}: not verified: ")
    assert said.endswith("--verify require refuses it")
    assert out or command == "download"
    if command != "cat":
        rest = ["x"] if command == "download" else []
        found = json.loads(warned(box, command, "--json", skyfile.name, *rest)[0])
        assert (found[0] if command == "download" else found)["verified"] == "no"
    said = box.fail(command, "--verify", "require", skyfile.name, cwd=work)
    assert "verified" in said


@pytest.mark.parametrize("command", READING)
def test_what_is_verified_is_not_mentioned(box: Sandbox, work: Path, command: str) -> None:
    """And stands in JSON."""
    assert box.skymount(command, PROVEN.name, cwd=work).stderr == ""
    if command != "cat":
        destination = ["x"] if command == "download" else []
        arguments = ("--json", "--verify", "require", PROVEN.name, *destination)
        found = json.loads(box.succeed(command, *arguments, cwd=work))
        assert (found[0] if command == "download" else found)["verified"] == "yes"


@pytest.mark.parametrize("command", READING)
def test_who_wants_no_verification_is_not_warned(box: Sandbox, work: Path, command: str) -> None:
    done = box.skymount(command, "--verify", "off", WORD.name, cwd=work)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_and_sizes_alone_are_verified(box: Sandbox, work: Path) -> None:
    """Of chunks that are too large; a listing is complete then."""
    for command in ("cat", "download"):
        _, said = warned(box, command, f"{HUGE.name}/f")
        assert said.startswith(f"{HUGE.name}/f: only names and sizes are verified")
    out, _ = warned(box, "download", "--json", f"{HUGE.name}/f", "x")
    assert json.loads(out)[0]["verified"] == "partly"
    listing = box.skymount("ls", "--json", HUGE.name)
    assert (listing.stderr, json.loads(listing.stdout)["verified"]) == ("", "partly")
    assert "verif" in box.fail("cat", "--verify", "require", f"{HUGE.name}/f")


def test_each_link_of_several(box: Sandbox) -> None:
    done = box.skymount("cat", WORD.name, f"{PROVEN.name}/f", SECRET.name)
    assert done.stdout == 3 * "content"
    assert [line.split()[2] for line in done.stderr.splitlines()] == [
        f"{WORD.name}:",
        f"{SECRET.name}:",
    ]


def test_a_download_to_stdout(box: Sandbox) -> None:
    out, said = warned(box, "download", WORD.name, "-")
    assert (out, said.partition(":")[0]) == ("content", WORD.name)


@pytest.mark.parametrize("command", READING)
def test_a_v2_link_that_nobody_proves(
    box: Sandbox, fake: FakePortal, work: Path, command: str
) -> None:
    fake.resolve(resolver(), PROVEN)
    _, said = warned(box, command, str(resolver()))
    assert said.startswith(f"{resolver()}: not verified: ")
    assert "verified" in box.fail(command, "--verify", "require", str(resolver()), cwd=work)


def test_a_directory_is_one_line(box: Sandbox, fake: FakePortal, work: Path) -> None:
    site = of_files({"a": noise(5 << 20, 8), "b/c": b"x"})
    fake.add(site)
    fake.base_sectors = False
    warned(box, "download", site.name)
    assert (work / "site/b/c").read_bytes() == b"x"


def test_metadata_that_another_portal_proves(sandbox: Sandbox, fake: FakePortal) -> None:
    """A mere word counts only when no portal has a proof, and a lie never."""
    large = of_files({"f": noise(5 << 20, 8)})
    fake.add(large)
    with in_thread(FakePortal()) as liar:
        liar.add(large)
        liar.base_sectors = False
        lie = large.metadata.replace(b'"f"', b'"g"')
        liar.fault(faults.header(b"svc-metadata", lie), "HEAD")
        box = asking(sandbox, liar, fake)
        found = json.loads(box.succeed("metadata", "--json", large.name))
        assert found["verified"] == "yes"
        assert list(found["metadata"]["subfiles"]) == ["f"]
        assert box.succeed("metadata", "--verify", "require", large.name)
        fake.base_sectors = False
        said = box.fail("metadata", "--verify", "require", large.name)
        assert "cannot be verified" in said


def test_a_document(sandbox: Sandbox, fake: FakePortal, portal: str) -> None:
    """The content behind an entry, which itself is always verified."""
    box = sandbox.with_env(SKYMOUNT_PORTALS=f"{portal} {fake.url}")
    box.directory("work")
    word = unverifiable(encode_metadata(Metadata("f", 7)), b'{"a":1}')
    proven = of_files({"f": b'{"a":2}'})
    fake.add(word, proven)
    box.succeed("key", "generate", "home")
    for name, skyfile in (("word", word), ("proven", proven)):
        box.succeed("registry", "set", "--skylink", "home", name, skyfile.name)
    out, said = warned(box, "db", "get", "--json", "home", "word")
    assert (json.loads(out)["data"], json.loads(out)["verified"]) == ({"a": 1}, "no")
    assert said.startswith(f"svc://{word.name}: not verified: ")
    assert "verified" in box.fail("db", "get", "--verify", "require", "home", "word")
    out = box.succeed("db", "get", "--verify", "require", "--json", "home", "proven")
    assert json.loads(out)["verified"] == "yes"


# Names


@pytest.fixture
def named(sandbox: Sandbox, names: PortalProcess) -> Sandbox:
    box = sandbox.with_env(SKYMOUNT_PORTALS=names.url)
    directory = box.directory("site")
    (directory / "f").write_text("content")
    box.succeed(
        "portal", "hns", "set", "--data", names.data, "example", box.upload(directory, names.url)
    )
    box.directory("work")
    return box


@pytest.mark.parametrize("command", READING)
def test_a_domain(named: Sandbox, command: str) -> None:
    """What a domain leads to is a portal's word (H1)."""
    link = "hns://example/f"
    _, said = warned(named, command, link)
    assert said.startswith(f"{link}: not verified: ")
    if command != "cat":
        rest = ["x"] if command == "download" else []
        found = json.loads(warned(named, command, "--json", link, *rest)[0])
        assert (found[0] if command == "download" else found)["verified"] == "no"
    assert "not verified" in named.fail(command, "--verify", "require", link)


def test_a_link_that_would_write_to_the_terminal(named: Sandbox) -> None:
    """A warning has the link with control characters escaped."""
    done = named.skymount("ls", "hns://example/?\x1b[2J")
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("example.org/a", "did you mean the domain hns://example.org/a?"),
        ("A" * 45, "a skylink has 46 characters, this one 45"),
        ("example", "a skylink has 46 characters, a domain begins with hns://"),
        (__file__, "it is a file on this machine, which `skymount upload` uploads"),
    ],
)
def test_what_is_no_link_gets_advice(text: str, advice: str) -> None:
    with pytest.raises(MalformedError) as caught:
        ParsedLink.parse(text)
    assert str(caught.value).endswith(f"; {advice}")


@pytest.mark.mount
@pytest.mark.parametrize("path", [".", "skylinks", ".skymount/version", "registry"])
def test_what_is_no_link_inside_a_mount(sandbox: Sandbox, portal: str, path: str) -> None:
    """Nothing is to be uploaded there."""
    with sandbox.mounted("--portal", portal) as mount:
        said = sandbox.fail("ls", mount.path / path, "--portal", portal, code=2)
    assert said.endswith(f"; in the mount {mount.path} a LINK is below skylinks or hns")


@pytest.mark.parametrize("text", ["hns:example/a", "https://portal/hns/example/a"])
def test_other_links_of_a_domain(text: str) -> None:
    found = ParsedLink.parse(text)
    assert (found.root, found.path, found.text) == ("example", b"a", "hns://example/a")


def test_what_is_missing_is_named_as_it_was_looked_for(sandbox: Sandbox, portal: str) -> None:
    """What follows a question mark is no part of the path."""
    with Client(base_url=portal) as client:
        link = client.upload({"a?b.txt": b"text", "c": b""})
    assert sandbox.succeed("cat", f"{link}/a%3Fb.txt", "--portal", portal) == "text"
    said = sandbox.fail("cat", f"{link}/a?b.txt", "--portal", portal, code=3)
    assert f"{link}/a: there is no such file" in said
    assert "it is written %3F" in said


def test_a_domain_as_a_mount_spells_it() -> None:
    found = ParsedLink.parse("hns/Example/a%20b")
    assert (found.root, found.path) == ("example", b"a b")


# Documents


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("skydb/home/doc.json", EntryArgument("home", "doc", hashed=False)),
        (f"skydb/{KEY}/a%2Fb.json", EntryArgument(KEY, "a/b", hashed=False)),
        (f"skydb/home/{KEY}.json", EntryArgument("home", KEY, hashed=True)),
        ("skydb/home/%.json", EntryArgument("home", "", hashed=False)),
    ],
    ids=["plain", "escaped", "hashed", "empty"],
)
def test_names_as_in_a_mount(text: str, entry: EntryArgument) -> None:
    assert parse_skydb_path(text) == entry


@pytest.mark.parametrize(
    "text", ["A" * 46, "hns://example", "registry/home/doc", "skydb", "/tmp/x"]
)
def test_what_is_no_such_path(text: str) -> None:
    assert parse_skydb_path(text) is None


@pytest.mark.parametrize("text", ["skydb/", "skydb/home", "skydb/home/", "skydb/home/a/b.json"])
def test_paths_that_name_no_document(text: str) -> None:
    with pytest.raises(MalformedError, match="a document is skydb/KEY/DATAKEY"):
        parse_skydb_path(text)


@pytest.mark.mount
def test_a_path_inside_a_mount(sandbox: Sandbox, portal: str) -> None:
    """W6: `skymount pin` takes it too."""
    with sandbox.mounted("--portal", portal) as mount:
        path = mount.path / "skydb" / KEY / "absent.json"
        said = sandbox.fail("pin", path, "--from", portal, "--to", "http://127.0.0.1:1", code=3)
        assert said == "'absent': there is no such document"
