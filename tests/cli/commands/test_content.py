"""``skymount ls``, ``cat`` and ``metadata``: the tree and the bytes of a mount, without one."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skymount.wire.metadata import Metadata, Subfile, encode_metadata
from skymount.wire.skylink import Skylink
from tests.cli.helpers import BIG, asking, stalled
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import describe, of_files, of_metadata, resolver
from tests.portal_process import portal_command, portal_environment, running_portal
from tests.skymount_process import LIMIT, SKYMOUNT, Sandbox, end


@pytest.fixture
def site(box: Sandbox) -> str:
    """The skylink of a directory."""
    root = box.root / "site"
    (root / "a/b").mkdir(parents=True)
    (root / "index.html").write_text("hello")
    (root / "a/b/two words.txt").write_text("below")
    (root / "a/run.sh").write_text("#!")
    (root / "a/run.sh").chmod(0o755)
    (root / "empty").touch()
    return box.succeed("upload", "site").rstrip("\n")


# ls


def test_names_one_a_line_and_directories_with_a_slash(box: Sandbox, site: str) -> None:
    assert box.succeed("ls", site) == "a/\nempty\nindex.html\n"
    assert box.succeed("ls", f"svc://{site}/a/") == "b/\nrun.sh\n"


def test_all_that_is_below_by_path(box: Sandbox, site: str) -> None:
    out = box.succeed("ls", "-R", site)
    assert out == "a/\na/b/\na/b/two words.txt\na/run.sh\nempty\nindex.html\n"


def test_a_file_is_listed_by_its_name(box: Sandbox, site: str) -> None:
    assert box.succeed("ls", f"{site}/a/b/two%20words.txt") == "two words.txt\n"


def test_the_long_form(box: Sandbox, site: str) -> None:
    lines = box.succeed("ls", "-l", site).splitlines()
    assert [line.split() for line in lines] == [
        ["dr-xr-xr-x", "-", "-", "a/"],
        ["-r--r--r--", "0", "-", "empty"],
        ["-r--r--r--", "5", "text/html", "index.html"],
    ]


def test_a_listing_as_json(box: Sandbox, site: str) -> None:
    found = json.loads(box.succeed("ls", "--json", f"{site}/a"))
    assert found == {
        "skylink": site,
        "path": "a",
        "verified": "yes",
        "entries": [
            {"path": "b", "mode": 0o555, "type": "directory"},
            {
                "path": "run.sh",
                "mode": 0o555,
                "type": "file",
                "size": 2,
                "content_type": "application/x-sh",
            },
        ],
        "hidden": [],
    }


@pytest.mark.parametrize("command", ["ls", "cat", "download"])
def test_what_is_not_there_is_exit_code_3(box: Sandbox, site: str, command: str) -> None:
    """A path that the tree lacks, one that leads through a file, content that nobody has."""
    for path in ("absent", "index.html/absent", "a/../index.html", "%ff"):
        assert "no such file" in box.fail(command, f"{site}/{path}", code=3)
    absent = "A" * 46
    assert box.fail(command, absent, code=3) == f"{absent}: no portal has it"


@pytest.mark.parametrize("command", ["ls", "cat", "download", "metadata"])
def test_what_is_no_link_is_wrong_use(box: Sandbox, command: str) -> None:
    for link in ("bogus", "", "hns://", "hns://a b"):
        box.fail(command, link, code=2)


def test_what_no_tree_can_show_is_named_on_stderr(sandbox: Sandbox, fake: FakePortal) -> None:
    skyfile = of_files({"../evil": b"x", "good": b"y", "d/..": b"z"})
    fake.add(skyfile)
    box = asking(sandbox, fake)
    done = box.skymount("ls", skyfile.name)
    assert (done.returncode, done.stdout) == (0, "good\n")
    assert done.stderr.count("cannot be shown") == 2
    assert "'../evil'" in done.stderr
    hidden = json.loads(box.skymount("ls", "--json", skyfile.name).stdout)["hidden"]
    assert {each["path"] for each in hidden} == {"../evil", "d/.."}
    assert "it cannot be shown" in box.fail("cat", f"{skyfile.name}/../evil", code=3)


def test_names_cannot_write_to_the_terminal(sandbox: Sandbox, fake: FakePortal) -> None:
    skyfile = of_files({"a\x1b[2Jb\nc": b"x"})
    fake.add(skyfile)
    assert asking(sandbox, fake).succeed("ls", "-l", skyfile.name).endswith("a\\x1b[2Jb\\nc\n")


# cat


def test_files_one_after_another(box: Sandbox, site: str, portal: str) -> None:
    links = [f"{site}/a/b/two%20words.txt", f"{portal}/{site}/index.html", f"{site}/empty"]
    assert box.succeed("cat", *links, links[0]) == "belowhellobelow"


def test_a_large_file_comes_complete(box: Sandbox) -> None:
    (box.root / "big").write_bytes(BIG)
    skylink = box.succeed("upload", "big").rstrip()
    done = subprocess.run(
        [*SKYMOUNT, "cat", skylink], env=box.env, capture_output=True, check=True, timeout=LIMIT
    )
    assert done.stdout == BIG


def test_a_skylink_of_one_file_is_that_file(sandbox: Sandbox, fake: FakePortal) -> None:
    """Also one whose name no tree can show."""
    for name in ("file", "", "..", "a/b"):
        raw = of_metadata(encode_metadata(Metadata(name, 3)), b"raw")
        sub = {name: Subfile(0o644, name, "text/plain", 0, 3)}
        form = of_metadata(encode_metadata(Metadata(name, 3, subfiles=sub)), b"one")
        fake.add(raw, form)
        assert asking(sandbox, fake).skymount("cat", raw.name, form.name).stdout == "rawone"


def test_a_directory_needs_the_name_of_a_file(box: Sandbox, site: str) -> None:
    """Unless there is only one in it."""
    assert "name a file in it" in box.fail("cat", site)
    assert box.succeed("cat", f"{site}/a/b") == "below"


def test_content_that_is_wrong_is_not_written(sandbox: Sandbox, fake: FakePortal) -> None:
    """What stands before it was checked, and may be."""
    skyfile = of_files({"file": BIG}, fan_out=True)
    fake.add(skyfile)
    fake.fault(faults.flips((8 << 20) + 5), "^GET /[^/]*\\?")
    done = subprocess.run(
        [*SKYMOUNT, "cat", f"{skyfile.name}/file"],
        env=asking(sandbox, fake).env,
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 1
    assert b"is not the content" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert BIG.startswith(done.stdout)
    assert len(done.stdout) <= 8 << 20


def test_the_next_portal_takes_over(sandbox: Sandbox, fake: FakePortal) -> None:
    skyfile = of_files({"file": b"content"})
    fake.add(skyfile)
    with in_thread(FakePortal()) as liar:
        liar.add(skyfile)
        liar.fault(faults.flips(200))
        assert asking(sandbox, liar, fake).succeed("cat", f"{skyfile.name}/file") == "content"


def test_verification_can_be_required(sandbox: Sandbox, fake: FakePortal) -> None:
    skyfile = of_files({"file": b"content"})
    fake.resolve(resolver(), skyfile)
    box = asking(sandbox, fake)
    assert box.succeed("cat", "--verify", "require", f"{skyfile.name}/file") == "content"
    assert "not verified" in box.fail("cat", "--verify", "require", f"{resolver()}/file")
    assert "not verified" in box.fail("cat", "--verify", "require", "hns://example/file")


def test_a_resolver_skylink(sandbox: Sandbox, fake: FakePortal) -> None:
    skyfile = of_files({"file": b"content"})
    fake.resolve(resolver(), skyfile)
    assert asking(sandbox, fake).skymount("cat", f"{resolver()}/file").stdout == "content"


def test_a_name(sandbox: Sandbox, tmp_path: Path) -> None:
    """The path of its record counts only where the link has none."""
    with running_portal(tmp_path) as url:
        box = sandbox.with_env(SKYMOUNT_PORTALS=url, SKYMOUNT_VERIFY="off")
        (box.root / "site/a").mkdir(parents=True)
        (box.root / "site/a/file").write_text("content")
        skylink = box.succeed("upload", "site").rstrip()
        for name, value in (("example", skylink), ("deep.example", f"{skylink}/a")):
            subprocess.run(
                portal_command("hns", "set", name, value, "--data", str(tmp_path / "portal-data")),
                env=portal_environment(),
                check=True,
                timeout=LIMIT,
            )
        assert box.succeed("cat", "hns://example/a/file") == "content"
        assert box.succeed("cat", "HNS://Deep.Example/a/file?x=1") == "content"
        assert box.succeed("ls", "hns://example") == "a/\n"
        assert box.succeed("ls", "hns://deep.example/") == "file\n"
        box.succeed("download", "hns://deep.example")
        assert (box.root / "a/file").read_text() == "content"
        box.fail("cat", "hns://deep.example/file", code=3)
        for command in ("ls", "cat", "download", "metadata"):
            said = box.fail(command, "hns://Absent/x", code=3)
            assert said == "absent: there is no such name"


def test_a_reader_that_goes_away_is_no_error_message(box: Sandbox) -> None:
    (box.root / "big").write_bytes(BIG)
    skylink = box.succeed("upload", "big").rstrip()
    script = '"$@" | head -c 3; echo " ${PIPESTATUS[0]}"'
    done = box.run("bash", "-c", script, "-", *SKYMOUNT, "cat", skylink)
    assert (done.stdout[3:], done.stderr) == (" 141\n", "")


def test_a_pipe_that_somebody_made_non_blocking(box: Sandbox) -> None:
    (box.root / "big").write_bytes(BIG)
    skylink = box.succeed("upload", "big").rstrip()
    code = (
        "import os, subprocess, sys\n"
        "r, w = os.pipe(); os.set_blocking(w, False)\n"
        "child = subprocess.Popen(sys.argv[1:], stdout=w); os.close(w)\n"
        "size = len(open(r, 'rb').read()); sys.exit(child.wait() or size != 9 << 20)"
    )
    done = box.run(sys.executable, "-c", code, *SKYMOUNT, "cat", skylink)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_is_exit_code_130_without_a_traceback(
    sandbox: Sandbox, fake: FakePortal
) -> None:
    skyfile = of_files({"file": BIG}, fan_out=True)
    fake.add(skyfile)
    waiting = stalled(fake)
    process = subprocess.Popen(
        [*SKYMOUNT, "cat", f"{skyfile.name}/file"],
        env=asking(sandbox, fake).env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert waiting.wait(LIMIT)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT)
    finally:
        end(process)
    assert process.returncode == 130
    assert said.strip() == b""


def test_an_interrupt_while_nobody_reads(box: Sandbox) -> None:
    (box.root / "big").write_bytes(BIG)
    skylink = box.succeed("upload", "big").rstrip()
    process = subprocess.Popen(
        [*SKYMOUNT, "cat", skylink], env=box.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(1) == BIG[:1]  # the pipe is full from here on
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
    finally:
        end(process)


# metadata


def test_metadata_is_the_object_as_stored(sandbox: Sandbox, fake: FakePortal) -> None:
    skyfile = of_files({"b": b"1", "a": b"2"})
    fake.add(skyfile)
    out = asking(sandbox, fake).succeed("metadata", skyfile.name)
    assert out.encode() == describe({"b": b"1", "a": b"2"}) + b"\n"


def test_metadata_with_what_else_the_portal_says(box: Sandbox, site: str) -> None:
    found = json.loads(box.succeed("metadata", "--json", f"{site}/index.html"))
    assert set(found) == {"metadata", "content_type", "skylink", "verified"}
    assert found["content_type"] == "text/html"
    assert Skylink(found["skylink"].removeprefix("svc://")) == Skylink(site)


def test_metadata_on_many_lines(box: Sandbox, site: str) -> None:
    out = box.succeed("metadata", "--pretty", site)
    assert json.loads(out) == json.loads(box.succeed("metadata", site))
    assert out.count("\n") > 20


def test_metadata_that_nobody_has(box: Sandbox) -> None:
    absent = "A" * 46
    assert box.fail("metadata", absent, code=3) == f"{absent}: no portal has it"


def test_metadata_that_another_portal_has(
    box: Sandbox, site: str, portal: str, fake: FakePortal
) -> None:
    box = box.with_env(SKYMOUNT_PORTALS=f"{fake.url} {portal}")
    assert json.loads(box.succeed("metadata", site))["subfiles"]


def test_a_portal_that_is_away(sandbox: Sandbox) -> None:
    box = sandbox.with_env(SKYMOUNT_PORTALS="http://127.0.0.1:9")
    for command in ("ls", "cat", "download", "metadata"):
        assert "cannot be reached" in box.fail(command, "A" * 46)


def test_sizes_for_people(box: Sandbox) -> None:
    (box.root / "big").write_bytes(bytes(1536 << 10))
    (box.root / "site").mkdir()
    (box.root / "big").rename(box.root / "site/big")
    skylink = box.succeed("upload", "site").strip()
    assert " 1.5 MiB " in box.succeed("ls", "-lh", skylink)
    assert " 1572864 " in box.succeed("ls", "-l", skylink)


def test_binary_data_and_a_terminal(box: Sandbox) -> None:
    """It would garble the terminal; a pipe gets it, and with --force a terminal does."""
    (box.root / "binary").write_bytes(b"\0\x1b[2J")
    skylink = box.succeed("upload", "binary").strip()
    assert box.succeed("cat", skylink) == "\0\x1b[2J"
    for args, code in ((["cat", skylink], 1), (["cat", "--force", skylink], 0)):
        command = " ".join([*SKYMOUNT, *args])
        done = box.run("script", "-qec", command, "/dev/null")
        assert done.returncode == code, done.stdout
        assert ("it is binary" in done.stdout) == (code == 1)
