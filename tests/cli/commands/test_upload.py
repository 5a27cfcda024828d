"""``skymount upload``: the skylink alone on stdout, all else on stderr, progress for people."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from skymount.wire.skylink import Skylink
from tests.cli.helpers import on_terminal, piped_well
from tests.skymount_process import LIMIT, SKYMOUNT, Sandbox, end


@pytest.fixture
def file(sandbox: Sandbox) -> Path:
    path = sandbox.root / "file.txt"
    path.write_text("content")
    return path


def test_stdout_has_the_bare_skylink(sandbox: Sandbox, file: Path, portal: str) -> None:
    out = sandbox.succeed("upload", "--portal", portal, file)
    assert out == f"{Skylink(out.rstrip())}\n"
    assert httpx.get(f"{portal}/{out.rstrip()}").content == b"content"


def test_json_has_the_whole_result(sandbox: Sandbox, file: Path, portal: str) -> None:
    out = sandbox.succeed("upload", "--json", "--portal", portal, file)
    found = json.loads(out)
    skylink = Skylink(found["skylink"])
    assert found == {
        "skylink": str(skylink),
        "merkleroot": skylink.root.hex(),
        "bitfield": skylink.bitfield,
    }
    assert out.count("\n") == 1


def test_a_directory(sandbox: Sandbox, portal: str) -> None:
    (sandbox.root / "site/a").mkdir(parents=True)
    (sandbox.root / "site/index.html").write_text("hello")
    (sandbox.root / "site/a/b.txt").write_text("below")
    skylink = sandbox.upload(sandbox.root / "site", portal)
    assert httpx.get(f"{portal}/{skylink}/a/b.txt").text == "below"
    assert httpx.get(f"{portal}/{skylink}/index.html").text == "hello"


def test_the_same_content_has_the_same_skylink(sandbox: Sandbox, portal: str) -> None:
    """Whatever the name of the directory that holds it, and with or without a slash."""
    skylinks = set()
    for name in ("site", "site2/site"):
        directory = sandbox.root / name
        directory.mkdir(parents=True)
        (directory / "index.html").write_text("hello")
        skylinks.add(sandbox.upload(directory, portal))
    skylinks.add(sandbox.succeed("upload", "--portal", portal, "site/").rstrip())
    done = sandbox.succeed("upload", "--portal", portal, ".", cwd=sandbox.root / "site")
    skylinks.add(done.rstrip())
    assert len(skylinks) == 1


@pytest.mark.parametrize("name", ["-dash.txt", "two words", "new\nline", "\U0001f600", 'quo"te\\'])
def test_a_file_of_an_odd_name(sandbox: Sandbox, portal: str, name: str) -> None:
    (sandbox.root / name).write_bytes(b"odd")
    out = sandbox.succeed("upload", "--portal", portal, "--", name)
    assert httpx.get(f"{portal}/{out.rstrip()}").content == b"odd"


def test_links_are_followed(sandbox: Sandbox, portal: str) -> None:
    site = sandbox.directory("site")
    (site / "sub").mkdir()
    (site / "sub/file").write_text("content")
    (site / "file").symlink_to("sub/file")
    (site / "dir").symlink_to("sub")
    skylink = sandbox.upload(site, portal)
    for path in ("file", "dir/file", "sub/file"):
        assert httpx.get(f"{portal}/{skylink}/{path}").content == b"content"


def test_standard_input(sandbox: Sandbox, portal: str) -> None:
    """A pipe and a file give the same skylink; the name is part of it."""
    line = ["upload", "--portal", portal, "-", "--name"]
    found = piped_well(sandbox, "content", *line, "a.txt").rstrip()
    assert httpx.get(f"{portal}/{found}").content == b"content"
    (sandbox.root / "a.txt").write_text("content")
    with (sandbox.root / "a.txt").open("rb") as file:
        done = subprocess.run(
            [*SKYMOUNT, *line, "a.txt"],
            env=sandbox.env,
            stdin=file,
            capture_output=True,
            check=True,
            timeout=LIMIT,
        )
    assert done.stdout.decode().rstrip() == found
    assert piped_well(sandbox, "content", *line, "b.txt").rstrip() != found


def test_standard_input_needs_a_name(sandbox: Sandbox, portal: str) -> None:
    said = sandbox.fail("upload", "--portal", portal, "-", code=2)
    assert said.startswith("standard input has no name: add --name NAME")


def test_an_interrupt_while_standard_input_keeps_us_waiting(sandbox: Sandbox, portal: str) -> None:
    process = subprocess.Popen(
        [*SKYMOUNT, "upload", "--portal", portal, "-", "--name", "x"],
        env=sandbox.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(bytes(3 << 20))  # more than the pipe holds: it is being read
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
        assert process.stderr is not None
        said = process.stderr.read().decode().strip()
        assert said == "skymount: interrupted: no portal has confirmed -: upload it again"
    finally:
        end(process)


def test_a_dry_run_only_tells_the_skylink(sandbox: Sandbox, portal: str) -> None:
    (sandbox.root / "unique").write_text("never uploaded")
    line = ["upload", "--portal", portal, "unique"]
    found = sandbox.succeed(*line, "--dry-run")
    assert httpx.get(f"{portal}/{found.rstrip()}").status_code == 404
    assert sandbox.succeed(*line) == found


def test_what_a_browser_is_shown(sandbox: Sandbox, portal: str) -> None:
    directory = sandbox.directory("site")
    for name in ("a.html", "b.html", "404.html"):
        (directory / name).write_text(name)
    line = ["upload", "--portal", portal, directory]
    first = sandbox.succeed(*line, "--default-path", "/b.html").rstrip()
    assert httpx.get(f"{portal}/{first}/").text == "b.html"
    pages = ["--try-file", "x.html", "--try-file", "a.html", "--error-page", "404=/404.html"]
    second = sandbox.succeed(*line, *pages).rstrip()
    assert httpx.get(f"{portal}/{second}/").text == "a.html"
    missing = httpx.get(f"{portal}/{second}/absent/")
    assert (missing.status_code, missing.text) == (404, "404.html")
    none = sandbox.succeed(*line, "--no-default-path").rstrip()
    assert httpx.get(f"{portal}/{none}").headers["content-type"] == "application/zip"


# Refusals


@pytest.mark.parametrize(
    "options",
    [
        ["--default-path", "/a", "--no-default-path"],
        ["--default-path", "/a", "--try-file", "a"],
        ["--error-page", "404"],
        ["--error-page", "404="],
        ["--error-page", "x=/404.html"],
        ["--error-page", "404=/a", "--error-page", "404=/b"],
        ["--skykey-name", "a", "--skykey-id", "b"],
    ],
)
def test_options_that_make_no_sense(
    sandbox: Sandbox, file: Path, portal: str, options: list[str]
) -> None:
    sandbox.fail("upload", "--portal", portal, file, *options, code=2)


def test_a_skykey_that_nobody_has(sandbox: Sandbox, file: Path, portal: str) -> None:
    said = sandbox.fail("upload", "--portal", portal, "--skykey-name", "absent", file)
    assert "No Skykey with that name" in said


def test_a_path_that_is_absent(sandbox: Sandbox, portal: str) -> None:
    said = sandbox.fail("upload", "--portal", portal, "absent", code=2)
    assert "'absent' does not exist" in said


def test_an_empty_directory(sandbox: Sandbox, portal: str) -> None:
    said = sandbox.fail("upload", "--portal", portal, sandbox.directory("empty"), code=2)
    assert "there is no file in it" in said


def test_what_is_not_a_regular_file(sandbox: Sandbox, portal: str) -> None:
    directory = sandbox.directory("site")
    os.mkfifo(directory / "pipe")
    said = sandbox.fail("upload", "--portal", portal, directory, code=2)
    assert f"{directory}/pipe: a FIFO" in said


def test_a_pipe_by_itself(sandbox: Sandbox, portal: str) -> None:
    """It does not wait for a writer."""
    os.mkfifo(sandbox.root / "pipe")
    said = sandbox.fail("upload", "--portal", portal, "pipe", code=2)
    assert "pipe" in said


def test_a_link_to_nothing(sandbox: Sandbox, portal: str) -> None:
    directory = sandbox.directory("site")
    (directory / "dangling").symlink_to("absent")
    said = sandbox.fail("upload", "--portal", portal, "site", code=2)
    assert f"{directory.name}/dangling: a link to nothing" in said


def test_empty_directories_inside_are_named(sandbox: Sandbox, portal: str) -> None:
    """A skylink has no place for them; the rest is uploaded."""
    directory = sandbox.directory("site")
    (directory / "file").write_text("x")
    (directory / "hollow").mkdir()
    done = sandbox.skymount("upload", "--portal", portal, "site")
    assert "site/hollow: empty, and not part of the upload" in done.stderr
    assert len(done.stdout.strip()) == 46


def test_a_name_that_is_not_utf8(sandbox: Sandbox, portal: str) -> None:
    directory = sandbox.directory("site")
    (directory / os.fsdecode(b"caf\xe9")).touch()
    said = sandbox.fail("upload", "--portal", portal, "site", code=2)
    assert "the name is not valid UTF-8" in said


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(sandbox: Sandbox, file: Path, portal: str) -> None:
    file.chmod(0)
    done = sandbox.skymount("upload", "--portal", portal, file)
    assert done.returncode == 2
    assert f"Path '{file}' is not readable" in done.stderr


def test_a_portal_that_is_away(sandbox: Sandbox, file: Path) -> None:
    with socket.socket() as taken:  # and does not listen
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = sandbox.fail("upload", "--portal", url, file)
    assert "cannot be reached" in said
    assert said.count(url[7:]) == 1


def test_a_bad_portal_url(sandbox: Sandbox, file: Path) -> None:
    said = sandbox.fail("upload", "--portal", "portal.example", file, code=2)
    assert said.endswith("write https://portal.example")


def test_the_portal_of_the_configuration_is_used(sandbox: Sandbox, file: Path, portal: str) -> None:
    sandbox.configure(f'portals = ["{portal}"]\n')
    assert sandbox.succeed("upload", file)


def test_the_portal_of_the_environment_is_used(sandbox: Sandbox, file: Path, portal: str) -> None:
    sandbox.configure('portals = ["http://127.0.0.1:9"]\n')
    assert sandbox.with_env(SKYMOUNT_PORTALS=portal).succeed("upload", file)


@pytest.mark.parametrize("dialect", ["svc", "skynet"])
def test_either_dialect(sandbox: Sandbox, file: Path, portal: str, dialect: str) -> None:
    assert sandbox.succeed("upload", "--portal", portal, "--dialect", dialect, file)


# Progress


def test_progress_is_shown_on_a_terminal_and_leaves_stdout_alone(
    sandbox: Sandbox, portal: str
) -> None:
    big = sandbox.root / "big.bin"
    big.write_bytes(bytes(6 << 20))
    out, shown = on_terminal(sandbox, "upload", "--portal", portal, big)
    assert str(Skylink(out.rstrip())) == out.rstrip()
    assert "6 MiB of 6 MiB" in shown  # in the units of all else
    assert " ?" not in shown
    assert out.rstrip() not in shown


def test_no_progress_without_a_terminal(sandbox: Sandbox, portal: str) -> None:
    """`succeed` checks that stderr is empty."""
    big = sandbox.root / "big.bin"
    big.write_bytes(bytes(6 << 20))
    assert sandbox.succeed("upload", "--portal", portal, big)


def test_a_file_that_is_not_as_long_as_it_says_is_no_wrong_use(box: Sandbox) -> None:
    """As one that changes while it is read."""
    said = box.fail("upload", "/proc/version", code=1)
    assert said == "/proc/version: holds more than its size of 0 bytes"
