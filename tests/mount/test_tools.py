"""Everyday tools on a mounted skylink see what is in the source tree, byte for byte."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.mount.site import BIG, BIG_SIZE, DATABASE, DEEP, EXECUTABLE, MODES, ODD_NAMES, Site
from tests.skymount_process import Sandbox, output, run

ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": "/nonexistent"}


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def both(site: Site, *command: str) -> bytes:
    """Run a command in the source and in the mounted tree; what it prints must be the same."""
    expected = output(command, env=ENV, cwd=site.source)
    found = output(command, env=ENV, cwd=site.tree)
    assert found == expected
    assert expected
    return found


def test_find_lists_each_file_with_size_and_type(site: Site) -> None:
    listed = "find . -printf %P\\0%y\\0"
    for command in ("find . -type f -printf %P\\0%s\\0%y\\0", listed):
        expected = output(command.split(" "), env=ENV, cwd=site.source)
        found = output(command.split(" "), env=ENV, cwd=site.tree)
        assert sorted(found.split(b"\0")) == sorted(expected.split(b"\0"))


def test_find_selects_by_name_size_and_emptiness(site: Site) -> None:
    for test in (["-name", "*.dat"], ["-size", "+4096k"], ["-type", "f", "-empty"]):
        command = ["find", ".", *test, "-print0"]
        expected = output(command, env=ENV, cwd=site.source)
        found = output(command, env=ENV, cwd=site.tree)
        assert sorted(found.split(b"\0")) == sorted(expected.split(b"\0"))
        assert len(found) > 1


def test_ls_lists_the_same_names_in_the_same_order(site: Site) -> None:
    both(site, "ls", "-AR1", "--quoting-style=escape")


def test_ls_lists_the_directory_itself_and_the_one_above(site: Site) -> None:
    """With the inode numbers that stat has, in each kind of directory."""
    mount = site.mount.path
    below = [site.tree, site.tree / "names", mount, mount / "skylinks", mount / "hns"]
    for directory in (*below, mount / "registry", mount / "skydb", mount / ".skymount"):
        assert {b".", b".."} <= set(output(["ls", "-a", directory]).split(b"\n"))
        listed = output(["ls", "-fi", directory]).splitlines()
        inodes = {name: int(number) for number, name in map(bytes.split, listed[:2])}
        assert inodes[b"."] == os.stat(directory).st_ino
        if directory != mount:
            assert inodes[b".."] == os.stat(directory / "..").st_ino


def test_ls_long_lists_everything_without_complaint(site: Site) -> None:
    command = ["ls", "-lAR", "--quoting-style=escape"]
    lines = output(command, env=ENV, cwd=site.tree).splitlines()
    assert sum(line.startswith(b"-") for line in lines) == len(site.files)


@pytest.mark.parametrize("options", ["-U1", "-f1", "-i1", "-s1"])
def test_ls_of_a_directory_of_many_names(site: Site, options: str) -> None:
    command = ["ls", options, "names"]
    found = output(command, env=ENV, cwd=site.tree)
    assert b"plus+plus" in found


def test_cat_of_every_file(site: Site) -> None:
    """Also with each odd name given as an argument, not found by listing."""
    for path in site.files:
        if not path.startswith("many/"):
            found = output(["cat", "--", path], cwd=site.tree)
            assert found == (site.source / path).read_bytes(), path


def test_an_odd_name_is_listed_once_and_nothing_else(site: Site) -> None:
    code = "import os; print(ascii(sorted(os.listdir(b'.'))))"
    found = output([sys.executable, "-c", code], cwd=site.tree / "names").decode()
    assert found.strip() == ascii(sorted(os.fsencode(name) for name in ODD_NAMES))


def test_the_empty_file_is_a_file_of_no_bytes(site: Site) -> None:
    assert output(["stat", "-c", "%s %F", "empty"], env=ENV, cwd=site.tree) == (
        b"0 regular empty file\n"
    )
    assert output(["cat", "empty", "empty files/also empty.txt"], cwd=site.tree) == b""


def test_stat_shows_size_and_kind(site: Site) -> None:
    both(site, "stat", "-c", "%n %s %F", "text.txt", BIG, "empty", "one byte")
    assert output(["stat", "-c", "%F %a", "names"], env=ENV, cwd=site.tree) == b"directory 555\n"


def test_modes_are_the_uploaded_ones_without_write_bits(site: Site) -> None:
    """S6: Modes are those of the metadata less every write bit."""
    for name, mode in MODES.items():
        shown = output(["stat", "-c", "%a", f"modes/{name}"], cwd=site.tree)
        assert int(shown, 8) == mode & ~0o222, name


def test_an_executable_runs(site: Site) -> None:
    assert output([site.tree / EXECUTABLE], env=ENV) == b"it runs\n"


def test_what_is_not_executable_does_not_run(site: Site) -> None:
    done = run(["sh", "-c", "exec ./text.txt"], env=ENV, cwd=site.tree)
    assert done.returncode == 126
    assert "Permission denied" in done.stderr


def test_md5sum_of_everything(site: Site) -> None:
    sums = output(
        ["sh", "-c", "find . -type f -print0 | xargs -0 md5sum"], env=ENV, cwd=site.source
    )
    done = run(["md5sum", "--check", "--quiet", "-"], env=ENV, cwd=site.tree, stdin=sums)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_diff_finds_no_difference(site: Site) -> None:
    assert output(["diff", "-r", site.source, site.tree], env=ENV) == b""


def test_cp_copies_the_whole_tree(site: Site, tmp_path: Path) -> None:
    output(["cp", "-r", site.tree, tmp_path / "copy"], env=ENV)
    assert output(["diff", "-r", site.source, tmp_path / "copy"], env=ENV) == b""
    output(["chmod", "-R", "u+w", tmp_path / "copy"])


def test_cp_keeps_modes(site: Site, tmp_path: Path) -> None:
    output(["cp", "-a", site.tree / "modes", tmp_path / "copy"], env=ENV)
    for name, mode in MODES.items():
        assert (tmp_path / "copy" / name).stat().st_mode & 0o777 == mode & ~0o222
    output(["chmod", "-R", "u+w", tmp_path / "copy"])


def test_tar_packs_the_whole_tree(site: Site, tmp_path: Path) -> None:
    archive = tmp_path / "all.tar"
    output(["tar", "-C", site.tree, "-cf", archive, "."], env=ENV)
    done = run(["tar", "-C", site.source, "--compare", "-f", archive], env=ENV)
    differences = {line.rpartition(": ")[2] for line in done.stdout.splitlines()}
    assert differences <= {"Mode differs", "Mod time differs"}, done.stdout
    (tmp_path / "out").mkdir()
    output(["tar", "-C", tmp_path / "out", "--no-same-permissions", "-xf", archive], env=ENV)
    assert output(["diff", "-r", site.source, tmp_path / "out"], env=ENV) == b""
    output(["chmod", "-R", "u+w", tmp_path / "out"])


def test_grep_finds_the_same_lines(site: Site) -> None:
    command = ["grep", "-rcZ", "needle", "."]
    expected = output(command, env=ENV, cwd=site.source)
    found = output(command, env=ENV, cwd=site.tree)
    assert sorted(found.splitlines()) == sorted(expected.splitlines())
    assert found.count(b"\0") == len(site.files)


@needs("less")
def test_less_shows_a_file(site: Site) -> None:
    for name in ("long text.txt", "text.txt"):
        assert both(site, "less", name) == (site.source / name).read_bytes()


@needs("rsync")
def test_rsync_sees_no_difference_in_content(site: Site) -> None:
    compare = ["rsync", "-a", "--checksum", "--dry-run", "--delete", "--itemize-changes"]
    there = output([*compare, f"{site.tree}/", f"{site.source}/"], env=ENV).decode()
    back = output([*compare, f"{site.source}/", f"{site.tree}/"], env=ENV).decode()
    for line in (there + back).splitlines():
        # «.f..tp»: not transferred; «>f», «*deleting» and «+++» would be a difference
        assert line[0] == ".", line
        assert line[2] == ".", line


@needs("rsync")
def test_rsync_copies_the_tree(site: Site, tmp_path: Path) -> None:
    output(["rsync", "-a", f"{site.tree}/", tmp_path / "copy"], env=ENV)
    assert output(["diff", "-r", site.source, tmp_path / "copy"], env=ENV) == b""
    output(["chmod", "-R", "u+w", tmp_path / "copy"])


def test_the_bottom_of_a_deep_tree(site: Site) -> None:
    found = output(["cat", f"deep/{DEEP}/bottom"], cwd=site.tree)
    assert found == b"needle at the bottom"
    up = f"deep/{DEEP}" + "/.." * 31 + "/text.txt"
    assert output(["cat", up], cwd=site.tree) == (site.source / "text.txt").read_bytes()


def test_du_counts_the_bytes(site: Site) -> None:
    size = sum((site.source / path).stat().st_size for path in site.files)
    exact = output(["du", "-s", "--apparent-size", "-B1", "."], env=ENV, cwd=site.tree)
    assert int(exact.split()[0]) == size
    blocks = output(["du", "-s", "-B1", "."], env=ENV, cwd=site.tree)
    assert size <= int(blocks.split()[0]) < size + 512 * len(site.files)


def test_wc_sort_and_file_size_tests(site: Site) -> None:
    both(site, "wc", "-c", BIG, "text.txt", "long text.txt")
    both(site, "sort", "-r", "long text.txt")


@needs("sqlite3")
@pytest.mark.parametrize("suffix", ["", "?mode=ro", "?immutable=1"])
def test_sqlite_reads_a_database(site: Site, suffix: str) -> None:
    query = "pragma integrity_check; select count(*), sum(half) from rows where name > 'row 3';"
    name = f"file:{DATABASE}{suffix}" if suffix else DATABASE
    expected = output(["sqlite3", "-readonly", DATABASE, query], env=ENV, cwd=site.source)
    assert output(["sqlite3", "-readonly", name, query], env=ENV, cwd=site.tree) == expected
    assert expected.startswith(b"ok\n")


@needs("sqlite3")
def test_sqlite_reads_through_a_memory_map(site: Site) -> None:
    query = "pragma mmap_size=1000000; select count(*) from rows where name like '%99';"
    both(site, "sqlite3", "-readonly", DATABASE, query)


@pytest.mark.parametrize("count", [1, 4096, 100_000, 5 << 20, BIG_SIZE, BIG_SIZE + 1])
def test_tail_reads_the_end(site: Site, count: int) -> None:
    both(site, "tail", "-c", str(count), BIG)


@pytest.mark.parametrize(
    ("block", "skip"),
    [(1, 4_194_303), (512, 8191), (4096, 1023), (1 << 20, 3), (1 << 20, 4), (1 << 20, 9), (7, 3)],
)
def test_dd_reads_from_the_middle(site: Site, block: int, skip: int) -> None:
    command = ["dd", f"if={BIG}", f"bs={block}", f"skip={skip}", "count=3", "status=none"]
    both(site, *command)


def test_dd_beyond_the_end_reads_nothing(site: Site) -> None:
    done = run(["dd", f"if={BIG}", "bs=1M", "skip=50", "status=none"], cwd=site.tree)
    assert (done.returncode, done.stdout) == (0, "")


def test_dd_past_the_page_cache(site: Site) -> None:
    """O_DIRECT reads, aligned or not."""
    for block in ("1M", "4096", "100000"):
        command = ["dd", f"if={BIG}", f"bs={block}", "iflag=direct", "status=none"]
        assert output(command, cwd=site.tree) == (site.source / BIG).read_bytes()


def test_head_stops_early_without_harm(site: Site) -> None:
    found = output(["head", "-c", "10", BIG], cwd=site.tree)
    assert found == (site.source / BIG).read_bytes()[:10]
    both(site, "md5sum", BIG)


def test_the_list_of_skylinks_shows_what_was_used(site: Site) -> None:
    """S9: `ls skylinks` lists the skylinks that were used in this mount."""
    assert site.skylink.encode() in output(["ls", site.mount.path / "skylinks"]).split()


def test_the_root_lists_the_name_spaces_and_help(site: Site) -> None:
    listed = output(["ls", "-A", site.mount.path], env=ENV).split()
    assert listed == [b".skymount", b"hns", b"registry", b"skydb", b"skylinks"]
    text = output(["cat", site.mount.path / ".skymount/help.txt"])
    assert b"skymount upload" in text


def test_status_names_version_and_portal(site: Site) -> None:
    status = site.mount.status()
    assert status["pid"] == site.mount.daemon.pid
    assert status["mountpoint"] == str(site.mount.path)
    assert status["portals"] == [site.portal]
    assert status["own_portal"] is False


_NODE = """
const fs = require("fs"), path = process.argv[1];
const names = fs.readdirSync(path);
console.log(names.length, new Set(names.map((name) => fs.statSync(`${path}/${name}`).ino)).size);
"""


@needs("node")
def test_inode_numbers_in_node(sandbox: Sandbox, portal: str) -> None:
    """S5: JavaScript has 53 bits for them."""
    source = sandbox.root / "many"
    source.mkdir()
    for number in range(1000):
        (source / f"{number}").write_bytes(b"%d" % number)
    link = sandbox.upload(source, portal)
    with sandbox.mounted("--portal", portal) as mount:
        assert output(["node", "-e", _NODE, mount.skylink(link)]).split() == [b"1000", b"1000"]
        places = [".", "skylinks", "registry", "skydb", ".skymount", ".skymount/status.json"]
        found = [os.stat(mount.path / each).st_ino for each in (*places, f"skylinks/{link}")]
        assert max(found) < 1 << 53
        assert len(set(found)) == len(found)
