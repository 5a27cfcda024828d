"""The options of commands that upload a directory."""

from pathlib import Path

from tests.skymount_process import Sandbox


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return root


def test_one_line_says_what_was_left_out(box: Sandbox) -> None:
    """Of each command that uploads a directory."""
    site = make(box.root / "site", "index.html", ".env", ".git/HEAD", *(f"{n}~" for n in range(5)))
    done = box.skymount("upload", site, site / "index.html")
    assert done.returncode == 0
    assert done.stderr == (
        "skymount: left out: .env, .git, 0~, 1~, 2~ and 2 more; --all takes them along\n"
    )
    directory, file = done.stdout.split()
    assert box.succeed("ls", directory) == "index.html\n"
    assert box.succeed("cat", file) == "x"
    everything = box.succeed("upload", "--all", "--exclude", "*~", site).strip()
    assert box.succeed("ls", everything) == ".env\n.git/\nindex.html\n"


def test_several_paths_have_no_name_in_common(box: Sandbox) -> None:
    make(box.root, "a", "b")
    for args in (("--name", "c", "a", "b"), ("a", "-")):
        said = box.fail("upload", *args, code=2)
        assert said.startswith("--name and standard input go with a single PATH")
