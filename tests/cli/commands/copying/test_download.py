"""``skymount download``: what is there under its name is complete and checked, or not there."""

import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from skymount.wire.metadata import Metadata, Subfile, encode_metadata
from tests.cli.helpers import BIG, asking, on_terminal, stalled
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal
from tests.fakes.skyfiles import FakeSkyfile, describe, of_files, of_metadata
from tests.skymount_process import LIMIT, SKYMOUNT, Sandbox, end

FILES = {"index.html": b"hello", "a/b/two words": b"below", "a/c": b"", "empty": b""}


@pytest.fixture
def box(sandbox: Sandbox, fake: FakePortal) -> Sandbox:
    """Commands in it ask the fake portal, and run in an empty directory."""
    sandbox.directory("work")
    return asking(sandbox, fake)


@pytest.fixture
def work(box: Sandbox) -> Path:
    return box.root / "work"


@pytest.fixture
def site(fake: FakePortal) -> str:
    return added(fake, of_files(FILES))


def added(fake: FakePortal, skyfile: FakeSkyfile) -> str:
    fake.add(skyfile)
    return skyfile.name


def found(below: Path) -> dict[str, bytes]:
    """Return all files below a directory, hidden ones too."""
    return {
        str(path.relative_to(below)): path.read_bytes()
        for path in below.rglob("*")
        if not path.is_dir()
    }


# One file


def test_a_file_takes_its_own_name(box: Sandbox, work: Path, site: str) -> None:
    box.succeed("download", f"{site}/a/b/two%20words", cwd=work)
    assert found(work) == {"two words": b"below"}


def test_a_file_takes_another_name(box: Sandbox, work: Path, site: str) -> None:
    box.succeed("download", f"{site}/index.html", work / "copy")
    assert found(work) == {"copy": b"hello"}


def test_a_file_goes_into_a_directory(box: Sandbox, work: Path, site: str) -> None:
    (work / "d").mkdir()
    box.succeed("download", f"{site}/index.html", "d", cwd=work)
    box.succeed("download", f"{site}/empty", "d/", cwd=work)
    assert found(work) == {"d/index.html": b"hello", "d/empty": b""}


def test_a_file_goes_to_stdout(box: Sandbox, work: Path, site: str) -> None:
    assert box.succeed("download", f"{site}/index.html", "-", cwd=work) == "hello"
    assert found(work) == {}
    box.fail("download", "--json", f"{site}/index.html", "-", code=2)


def test_a_large_file(box: Sandbox, work: Path, fake: FakePortal) -> None:
    skylink = added(fake, of_metadata(encode_metadata(Metadata("big.bin", len(BIG), 0o600)), BIG))
    out = box.succeed("download", "--json", skylink, cwd=work)
    assert json.loads(out) == [{"path": "big.bin", "size": len(BIG), "verified": "yes"}]
    assert found(work) == {"big.bin": BIG}
    assert stat.S_IMODE((work / "big.bin").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "name",
    [
        *(".profile", "", "..", "a/b", "x" * 256, "\udc80", "-rf", "--help"),
        *("a\nb", "\x1b[2J", "\x7f", "\x85", "txt.\u202eexe", "\u2028"),
        *("\u200bx", "\xad", "\ufeff-rf", "a\u2060", "a\u2029b", "\U000e0041"),
    ],
)
def test_a_name_that_a_portal_must_not_choose(
    box: Sandbox, work: Path, fake: FakePortal, name: str
) -> None:
    """The skylink takes its place."""
    raw = json.dumps({"filename": name, "length": 1}).encode()
    skylink = added(fake, of_metadata(raw, b"x"))
    box.skymount("download", skylink, cwd=work)
    assert found(work) == {skylink: b"x"}


@pytest.mark.parametrize("name", ["-rf", "a\nb", "\x1b[2J", "\ufeff-rf"])
def test_a_name_in_the_link_that_no_tool_expects(
    box: Sandbox, work: Path, fake: FakePortal, name: str
) -> None:
    """The skylink takes its place too; a hidden file is what its user asked for."""
    skylink = added(fake, of_files({name: b"x", f"d/{name}/f": b"y", ".hidden": b"z"}))
    box.succeed("download", f"{skylink}/{quote(name)}", cwd=work)
    assert found(work) == {skylink: b"x"}
    (work / skylink).unlink()
    box.succeed("download", f"{skylink}/d/{quote(name)}", cwd=work)
    assert found(work) == {f"{skylink}/f": b"y"}
    box.succeed("download", f"{skylink}/.hidden", cwd=work)
    assert found(work) == {f"{skylink}/f": b"y", ".hidden": b"z"}


def test_a_file_that_the_upload_names_is_not_replaced(
    box: Sandbox, work: Path, fake: FakePortal
) -> None:
    """Not even with --force: that is for what the user names."""
    raw = encode_metadata(Metadata("notes", 1))
    skylink = added(fake, of_metadata(raw, b"x"))
    (work / "d").mkdir()
    for place in ("notes", "d/notes"):
        (work / place).write_text("mine")
    for more in ([], ["--force"]):
        for destination, shown in (([], "notes"), (["d"], "d/notes")):
            said = box.fail("download", *more, skylink, *destination, cwd=work)
            assert said == (
                f"{shown}: it exists already, and the upload chose that name; "
                "to replace it name it as DEST, with --force"
            )
    assert found(work) == {"notes": b"mine", "d/notes": b"mine"}
    box.fail("download", skylink, "notes", cwd=work)
    box.succeed("download", "--force", skylink, "notes", cwd=work)
    box.succeed("download", "--force", skylink, "d/notes", cwd=work)
    assert found(work) == {"notes": b"x", "d/notes": b"x"}


def test_a_directory_that_the_upload_names_is_not_added_to(
    box: Sandbox, work: Path, fake: FakePortal
) -> None:
    """Nor one that the link names: who wants that names it as DEST."""
    files = {"git": b"bad", "lib/ssh": b"worse"}
    skylink = added(fake, of_metadata(describe(files, "bin"), b"badworse", files=files))
    (work / "bin").mkdir()
    (work / "lib").symlink_to("bin")
    for more in ([], ["--force"]):
        for link, name in ((skylink, "bin"), (f"{skylink}/lib", "lib")):
            said = box.fail("download", *more, link, cwd=work)
            assert said == f"{name}: it exists already; to add to it name it as DEST"
    assert found(work) == {}
    assert len(fake.asked("^GET /(?!svc/)")) == 0
    box.succeed("download", skylink, "bin", cwd=work)
    assert found(work) == {"bin/git": b"bad", "bin/lib/ssh": b"worse"}


def test_archives(box: Sandbox, site: str) -> None:
    """An option that is gone is answered by what is instead."""
    said = box.fail("download", "--archive", "tar", site, code=2)
    assert "--archive was removed: save the directory, and pack it with tar or zip" in said


def test_what_exists_is_refused(box: Sandbox, work: Path, site: str) -> None:
    """And with --force replaced."""
    (work / "index.html").write_text("mine")
    said = box.fail("download", f"{site}/index.html", cwd=work)
    assert said == "index.html: it exists already; use --force to replace it"
    assert found(work) == {"index.html": b"mine"}
    box.succeed("download", "--force", f"{site}/index.html", cwd=work)
    assert found(work) == {"index.html": b"hello"}


def test_a_link_is_written_through(box: Sandbox, work: Path, site: str) -> None:
    """As by the shell, with --force; the link stays."""
    (work / "target").write_text("mine")
    (work / "link").symlink_to("target")
    (work / "dangling").symlink_to("nowhere")
    for name, target in (("link", "target"), ("dangling", "nowhere")):
        link = f"{site}/index.html"
        assert "exists already" in box.fail("download", link, name, cwd=work)
        assert (work / "target").read_text() == "mine" or name == "dangling"
        assert not (work / "nowhere").exists()
        box.skymount("download", "--force", link, name, cwd=work)
        assert (work / name).is_symlink()
        assert b"hello" in (work / target).read_bytes()


def test_a_link_with_the_name_in_the_link(box: Sandbox, work: Path, site: str) -> None:
    (work / "target").write_text("mine")
    (work / "index.html").symlink_to("target")
    box.succeed("download", "--force", f"{site}/index.html", cwd=work)
    assert (work / "index.html").is_symlink()
    assert (work / "target").read_text() == "hello"


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_standard_output_by_a_name(
    box: Sandbox, work: Path, site: str, name: str, force: list[str]
) -> None:
    """A file, which is added to where it is; /dev/stdout is a symbolic link, and stays one."""
    (work / "link").symlink_to("/dev/stdout")
    with (work / "out").open("ab") as out:
        out.write(b"before\n")
        out.flush()
        command = [*SKYMOUNT, "download", *force, f"{site}/index.html", name]
        done = subprocess.run(command, cwd=work, env=box.env, stdout=out, timeout=60, check=False)
    assert done.returncode == 0
    assert (work / "out").read_bytes() == b"before\nhello"
    assert os.path.islink("/dev/stdout")
    assert os.readlink("/dev/stdout") == "/proc/self/fd/1"


@pytest.mark.parametrize("more", [[], ["--force"]])
def test_a_device_or_a_pipe_is_written_to(
    box: Sandbox, work: Path, site: str, more: list[str]
) -> None:
    """It holds nothing that could be lost, so it needs no --force."""
    os.mkfifo(work / "pipe")
    link = f"{site}/index.html"
    out = box.skymount("download", "--json", *more, link, "/dev/null", cwd=work)
    (saved,) = json.loads(out.stdout)
    reading = subprocess.Popen(["cat", work / "pipe"], stdout=subprocess.PIPE)
    assert box.skymount("download", *more, link, "pipe", cwd=work).returncode == 0
    content, _ = reading.communicate(timeout=30)
    assert (saved["path"], saved["size"]) == ("/dev/null", len(content))
    assert content == b"hello"
    assert stat.S_ISFIFO((work / "pipe").stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_device_that_is_full_is_named(box: Sandbox, site: str) -> None:
    said = box.fail("download", f"{site}/index.html", "/dev/full")
    assert said == "/dev/full: No space left on device"


def test_a_pipe_that_nobody_named_is_not_replaced(box: Sandbox, work: Path, site: str) -> None:
    """Nor is --force proposed, which does not replace it either."""
    os.mkfifo(work / "index.html")
    for more in ([], ["--force"]):
        said = box.fail("download", *more, f"{site}/index.html", cwd=work)
        assert said == "index.html: it is not a regular file, and is not replaced"


def test_directories_above_a_file_must_be_there(box: Sandbox, work: Path, site: str) -> None:
    assert "no such directory" in box.fail("download", f"{site}/index.html", "absent/x", cwd=work)
    assert "no such directory" in box.fail("download", f"{site}/index.html", "absent/", cwd=work)
    box.fail("download", f"{site}/index.html", "", code=2, cwd=work)
    assert found(work) == {}


# A directory


def test_a_directory_takes_the_name_of_the_upload(box: Sandbox, work: Path, site: str) -> None:
    box.succeed("download", site, cwd=work)
    assert found(work) == {f"site/{path}": content for path, content in FILES.items()}


def test_a_directory_inside(box: Sandbox, work: Path, site: str) -> None:
    out = box.succeed("download", "--json", f"{site}/a", "copy", cwd=work)
    assert json.loads(out) == [
        {"path": "copy/b/two words", "size": 5, "verified": "yes"},
        {"path": "copy/c", "size": 0, "verified": "yes"},
    ]
    box.succeed("download", f"{site}/a/b", cwd=work)
    assert set(found(work)) == {"copy/b/two words", "copy/c", "b/two words"}


def test_a_directory_that_exists_is_added_to(box: Sandbox, work: Path, site: str) -> None:
    (work / "a").mkdir()
    (work / "a/own").write_text("mine")
    box.succeed("download", site, ".", cwd=work)
    assert found(work) == {**FILES, "a/own": b"mine"}
    assert sorted(os.listdir(work)) == ["a", "empty", "index.html"]


def test_files_that_exist_are_refused_before_any_is_written(
    box: Sandbox, work: Path, site: str
) -> None:
    (work / "empty").write_text("mine")
    said = box.fail("download", site, ".", cwd=work)
    assert said == "./empty: it exists already; use --force to replace it"
    assert found(work) == {"empty": b"mine"}
    box.succeed("download", "--force", site, ".", cwd=work)
    assert found(work) == FILES


def test_nothing_is_written_outside(box: Sandbox, work: Path, site: str) -> None:
    """A link in the place of a directory is not followed, not even with --force."""
    outside = box.directory("outside")
    (work / "a").symlink_to(outside)
    for more in ([], ["--force"]):
        said = box.fail("download", *more, site, ".", cwd=work)
        assert said == "./a: a file or a link is in the way"
    assert found(outside) == {}
    assert os.listdir(work) == ["a"]


def test_what_is_in_the_place_of_a_directory(box: Sandbox, work: Path, site: str) -> None:
    (work / "file").touch()
    (work / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        said = box.fail("download", "--force", site, name, cwd=work)
        assert said == f"{name}: it exists, and is not a directory"
    (work / "empty").mkdir()
    assert "not a regular file" in box.fail("download", "--force", site, ".", cwd=work)


def test_bad_names_are_left_out_and_said(box: Sandbox, work: Path, fake: FakePortal) -> None:
    """The rest is saved, but it is not all, so the exit code is 1."""
    skylink = added(fake, of_files({"../evil": b"x", "good": b"y", "/etc/evil": b"z"}))
    done = box.skymount("download", skylink, cwd=work)
    assert done.returncode == 1
    assert "2 files cannot be saved" in done.stderr
    assert found(work) == {"site/good": b"y"}
    assert not (box.root / "evil").exists()


def test_modes_are_those_of_the_metadata(box: Sandbox, work: Path, fake: FakePortal) -> None:
    """Without set-user-id and the like, and as far as the umask lets them."""
    modes = {"run": 0o755, "all": 0o777, "suid": 0o6755, "secret": 0o600, "none": 0, "deaf": 0o300}
    subfiles = {name: Subfile(mode, name) for name, mode in modes.items()}
    skylink = added(fake, of_metadata(encode_metadata(Metadata("site", 0, subfiles=subfiles))))
    box.run("bash", "-c", 'umask 027; exec "$@"', "-", *SKYMOUNT, "download", skylink, work / "d")
    got = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (work / "d").iterdir()}
    assert got == {
        "run": 0o750,
        "all": 0o750,
        "suid": 0o750,
        "secret": 0o600,
        "none": 0o640,
        "deaf": 0o700,
    }
    assert stat.S_IMODE((work / "d").stat().st_mode) == 0o750


def test_many_small_files_are_fetched_together(box: Sandbox, work: Path, fake: FakePortal) -> None:
    """They are read in the order of the payload, whatever the order of their names."""
    files = {f"{n * 7919 % 3000}": bytes([n % 256]) * 3000 for n in range(3000)}
    skylink = added(fake, of_files(files, fan_out=True))
    box.succeed("download", skylink, cwd=work)
    assert found(work / "site") == files
    assert len(fake.asked("^GET /[^/]*\\?")) <= 4


def test_files_that_overlap_are_refused(box: Sandbox, work: Path, fake: FakePortal) -> None:
    """A few bytes of metadata could otherwise fill a disk."""
    subfiles = {f"{n}": Subfile(0, f"{n}", "", 0, 1000) for n in range(1000)}
    raw = encode_metadata(Metadata("site", 1000, subfiles=subfiles))
    said = box.fail("download", added(fake, of_metadata(raw, bytes(1000))), cwd=work)
    assert "overlap" in said
    assert found(work) == {}


def test_a_tree_as_deep_as_paths_can_be(box: Sandbox, work: Path, fake: FakePortal) -> None:
    """One that fails is cleared away whatever its depth."""
    path = "/".join(["d"] * 1100)
    good = added(fake, of_files({f"{path}/good": BIG, "z": b"x"}, fan_out=True))
    fake.fault(faults.flips(5 << 20), "^GET /[^/]*\\?")
    assert "is not the content" in box.fail("download", good, cwd=work)
    assert os.listdir(work) == []
    fake.heal()
    box.succeed("download", good, cwd=work)
    box.run("rm", "-r", work / "site")


# Failures


@pytest.mark.parametrize("destination", ["new", "old"])
def test_content_that_is_wrong_leaves_nothing(
    box: Sandbox, work: Path, fake: FakePortal, destination: str
) -> None:
    (work / "old").mkdir()
    skylink = added(fake, of_files({"a": b"fine", "b": BIG}, fan_out=True))
    fake.fault(faults.flips((8 << 20) + 5), "^GET /[^/]*\\?")
    assert "is not the content" in box.fail("download", skylink, destination, cwd=work)
    assert "is not the content" in box.fail("download", f"{skylink}/b", destination, cwd=work)
    assert found(work) == {}
    assert os.listdir(work) == ["old"]


def test_a_portal_that_breaks_off_leaves_what_was_there(
    box: Sandbox, work: Path, fake: FakePortal
) -> None:
    skylink = added(fake, of_files({"b": BIG}, fan_out=True))
    (work / "b").write_text("mine")
    fake.fault(faults.closes_after(1000), "^GET /[^/]*\\?")
    box.fail("download", "--force", f"{skylink}/b", cwd=work)
    assert found(work) == {"b": b"mine"}


@pytest.mark.parametrize("path", ["", "/b"])
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGQUIT, 131),
    ],
)
def test_a_signal_leaves_nothing(
    box: Sandbox, work: Path, fake: FakePortal, path: str, number: int, code: int
) -> None:
    skylink = added(fake, of_files({"a": b"x", "b": BIG}, fan_out=True))
    waiting = stalled(fake)
    process = subprocess.Popen(
        [*SKYMOUNT, "download", skylink + path],
        env=box.env,
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert waiting.wait(LIMIT)
        process.send_signal(number)
        out, said = process.communicate(timeout=LIMIT)
    finally:
        end(process)
    assert (process.returncode, out) == (code, b"")
    assert said == b"skymount: interrupted: nothing was saved\n"
    assert os.listdir(work) == []


def test_the_working_directory_may_not_be_writable(box: Sandbox, site: str) -> None:
    said = box.fail("download", f"{site}/index.html", "/proc/x")
    assert said.startswith("/proc")


# For people


def test_progress_and_a_summary_on_a_terminal(box: Sandbox, fake: FakePortal) -> None:
    skylink = added(fake, of_metadata(describe({"big": BIG}), BIG))
    out, shown = on_terminal(box, "download", f"{skylink}/big", box.root / "copy")
    assert out == ""
    assert "9 MiB of 9 MiB" in shown
    assert "saved " in shown
    assert "copy, 9 MiB" in shown
