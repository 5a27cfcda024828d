"""Which names in ``skylinks/`` there are, and what they lead to."""

import os
from pathlib import Path

import pytest

from skymount.wire.skylink import Skylink
from tests.mount.proxy import Proxy
from tests.mount.site import Site
from tests.skymount_process import Sandbox, output, run, xattrs


def _forms(skylink: str) -> list[str]:
    base32 = Skylink(skylink).base32
    return [
        skylink,
        base32,
        base32.upper(),
        f"sia:{skylink}",
        f"svc:{skylink}",
        f"SIA:{skylink}",
        f"svc:{base32}",
    ]


@pytest.mark.parametrize("form", range(7))
def test_each_form_of_a_skylink_leads_to_the_same_tree(site: Site, form: int) -> None:
    """S2: lead to the same files."""
    name = _forms(site.skylink)[form]
    tree = site.mount.skylink(name)
    assert output(["diff", "-r", site.source, tree]) == b""
    assert xattrs(tree)["user.skymount.skylink"] == site.skylink


@pytest.mark.parametrize(
    "name", ["notes.tar.gz", "two words?.txt", "100%", "\U0001f600", "new\nline"]
)
def test_a_single_file_is_a_directory_with_that_file(
    site: Site, sandbox: Sandbox, name: str, portal: str
) -> None:
    """S1: A skylink of a single file is a directory with that one file in it."""
    file = sandbox.root / name
    file.write_bytes(b"all of it")
    file.chmod(0o755)
    tree = site.mount.skylink(sandbox.upload(file, portal))
    assert (
        os.fsdecode(output(["find", tree, "-mindepth", "1", "-printf", "%P %m"])) == f"{name} 555"
    )
    assert output(["cat", tree / name]) == b"all of it"


def test_a_single_file_without_content(site: Site, sandbox: Sandbox, portal: str) -> None:
    file = sandbox.root / "nothing"
    file.touch()
    tree = site.mount.skylink(sandbox.upload(file, portal))
    assert output(["find", tree, "-mindepth", "1", "-printf", "%P %s"]) == b"nothing 0"
    assert output(["cat", tree / "nothing"]) == b""


def test_a_single_large_file(site: Site, sandbox: Sandbox, portal: str) -> None:
    skylink = sandbox.upload(site.source / "big/random.bin", portal)
    found = site.mount.skylink(skylink) / "random.bin"
    assert output(["cmp", found, site.source / "big/random.bin"]) == b""


def test_one_file_in_a_directory_keeps_its_place(site: Site, sandbox: Sandbox, portal: str) -> None:
    (sandbox.root / "site/a").mkdir(parents=True)
    (sandbox.root / "site/a/b").write_bytes(b"deep")
    tree = site.mount.skylink(sandbox.upload(sandbox.root / "site", portal))
    assert output(["find", tree, "-type", "f", "-printf", "%P"]) == b"a/b"


MALFORMED: list[str | bytes] = [
    "hello",
    ".git",
    ".Trash-1000",
    "favicon.ico",
    "A" * 45,
    "A" * 47,
    "A" * 45 + "!",
    "A" * 45 + "=",
    "_" * 46,  # a bitfield of no meaning
    " " + "A" * 46,
    "A" * 46 + " ",
    "0" * 54,
    "w" * 55,  # w is not in the base32 alphabet
    "sia:",
    "sia:hello",
    "hns",
    "ftp:" + "A" * 46,
    "%41" * 46,
    "é" * 46,
    b"\xff\xfe" + b"A" * 44,
    "\n" + "A" * 46,
    "x" * 255,
]


def test_malformed_names_are_absent_and_cost_no_request(
    sandbox: Sandbox, site: Site, proxy: Proxy
) -> None:
    """S3: Anything else in `skylinks` is ENOENT, without any network traffic."""
    with sandbox.mounted("--portal", proxy.url) as mount:
        output(["cat", mount.skylink(site.skylink) / "text.txt"])
        asked = len(proxy.requests)
        assert asked
        for name in MALFORMED:
            path = os.path.join(os.fsencode(mount.skylink("")), os.fsencode(name))
            done = run(["stat", os.fsdecode(path)], env={**os.environ, "LC_ALL": "C"})
            assert done.returncode == 1
            assert "No such file or directory" in done.stderr, name
        assert len(proxy.requests) == asked


def test_a_name_over_255_bytes_is_too_long(site: Site) -> None:
    done = run(["stat", site.mount.skylink("x" * 256)], env={**os.environ, "LC_ALL": "C"})
    assert "File name too long" in done.stderr


def test_a_legal_skylink_that_no_portal_has_is_absent(sandbox: Sandbox, proxy: Proxy) -> None:
    unknown = str(Skylink.v1(bytes(range(32)), 100))
    with sandbox.mounted("--portal", proxy.url) as mount:
        done = run(["ls", mount.skylink(unknown)], env={**os.environ, "LC_ALL": "C"})
        assert "No such file or directory" in done.stderr
    assert proxy.requests


def test_what_is_not_in_the_tree_is_absent_and_costs_no_request(
    sandbox: Sandbox, site: Site, proxy: Proxy
) -> None:
    """L3: Inside a skylink no lookup and no listing causes network traffic."""
    with sandbox.mounted("--portal", proxy.url) as mount:
        tree = mount.skylink(site.skylink)
        output(["cat", tree / "text.txt"])
        asked = len(proxy.requests)
        for name in (
            "absent",
            "text.txt.bak",
            "many/absent/0001.dat",
            ".hidden",
            "names/TWO WORDS",
        ):
            assert run(["stat", tree / name]).returncode == 1
        done = run(["cat", tree / "text.txt/below"], env={**os.environ, "LC_ALL": "C"})
        assert "Not a directory" in done.stderr
        assert len(proxy.requests) == asked


def test_a_tree_is_fetched_once_whatever_is_looked_at(
    sandbox: Sandbox, site: Site, proxy: Proxy
) -> None:
    """S4: The tree is made once from the metadata.

    Listing, stat and reading small files again cost the portal nothing.
    """
    with sandbox.mounted("--portal", proxy.url) as mount:
        tree = mount.skylink(site.skylink)
        look = ["sh", "-c", 'ls -lR "$1" && cat "$1"/many/*/*.dat', "-", str(tree)]
        first = output(look)
        asked = len(proxy.requests)
        assert output(look) == first
        assert len(proxy.requests) == asked


def test_a_portal_that_is_a_directory_of_names_is_not_guessed(site: Site) -> None:
    """The tree's files are not reachable beside it: only a skylink is a name there."""
    assert run(["stat", site.mount.path / "skylinks/text.txt"]).returncode == 1
    assert run(["stat", site.mount.path / "text.txt"]).returncode == 1


def test_names_are_taken_as_bytes_not_folded(site: Site) -> None:
    names: Path = site.tree / "names"
    assert output(["cat", names / "composed \u00e9"]) != output(
        ["cat", names / "decomposed e\u0301"]
    )
