"""The options of commands that upload a directory."""

import os
from pathlib import Path

from tests.skymount_process import Sandbox


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return root


def test_each_thing_that_is_left_out_is_named(box: Sandbox) -> None:
    """By each command that uploads a directory, with its reason and what takes it along."""
    site = make(box.root / "site", "index.html", ".env", ".git/HEAD", "x.pem")
    (site / "x.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    (site / "settings").symlink_to(".env")
    (site / "passwd").symlink_to("/etc/passwd")
    box.succeed("key", "generate", "home")
    for command in (("upload",), ("publish", "--key", "home", "--as", "x")):
        done = box.skymount(*command, "site")
        assert done.returncode == 0
        assert done.stderr == (
            "skymount: left out: site/.env: secrets, by its name\n"
            "skymount: left out: site/.git: version control\n"
            "skymount: left out: site/passwd: it leads to /etc/passwd, which is outside\n"
            "skymount: left out: site/settings: it leads to .env: secrets, by its name\n"
            "skymount: left out: site/x.pem: a private key\n"
            "skymount: --all takes along secrets and the like; --follow-outside takes along what "
            "links lead to outside\n"
        )
        assert box.succeed("ls", done.stdout.strip()) == "index.html\n"
    options = ("--all", "--follow-outside", "--exclude", "*.pem")
    everything = box.succeed("upload", *options, "site").strip()
    assert box.succeed("ls", everything) == ".env\n.git/\nindex.html\npasswd\nsettings\n"


def test_all_that_cannot_be_uploaded_is_named_before_anything_is_sent(box: Sandbox) -> None:
    """Of all PATHs together."""
    make(box.root / "one", "a")
    make(box.root / "two", "b")
    os.mkfifo(box.root / "one/pipe")
    (box.root / "two/gone").symlink_to("absent")
    done = box.skymount("upload", "one", "two")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "skymount: one/pipe: a FIFO\n"
        "skymount: two/gone: a link to nothing\n"
        "skymount: nothing is uploaded, as 2 files or directories cannot be; --skip-special goes "
        "on without them\n"
    )
    done = box.skymount("upload", "--skip-special", "one", "two")
    assert [box.succeed("ls", link) for link in done.stdout.split()] == ["a\n", "b\n"]
    assert done.stderr == (
        "skymount: left out: one/pipe: a FIFO\nskymount: left out: two/gone: a link to nothing\n"
    )


def test_our_own_state_and_secrets_that_are_named_are_refused(box: Sandbox) -> None:
    box.succeed("key", "generate", "home")
    keys = Path(box.env["XDG_DATA_HOME"]) / "skymount/keys"
    (box.root / "link").symlink_to(keys / "home")
    (box.root / "copy").write_bytes((keys / "home").read_bytes())
    for path, reason in (
        (keys, "skymount's own state"),
        (keys / "home", "skymount's own state"),
        (box.root / "link", "skymount's own state"),
        (box.root / "copy", "a private key of skymount"),
        (make(box.root / ".aws", "credentials"), "secrets, by its name"),
    ):
        said = box.fail("upload", path, code=2)
        assert said == f"{path}: {reason}; it is uploaded with --all only\n".rstrip()
    assert box.succeed("upload", "--all", keys)


def test_several_paths_have_no_name_in_common(box: Sandbox) -> None:
    make(box.root, "a", "b")
    for args in (("--name", "c", "a", "b"), ("a", "-")):
        said = box.fail("upload", *args, code=2)
        assert said.startswith("--name and standard input go with a single PATH")
