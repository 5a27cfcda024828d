"""Extended attributes, times, modes, inode numbers and the size of the whole."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.mount.site import BIG, EXECUTABLE, Site
from tests.skymount_process import Sandbox, output, run, xattrs

ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C"}

MTIME = 1577836800

GET = """
import errno, os, sys
for name in sys.argv[2:]:
    try:
        print(os.getxattr(sys.argv[1], name))
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def getxattr(path: Path, *names: str) -> list[str]:
    return output([sys.executable, "-IS", "-c", GET, path, *names]).decode().splitlines()


@pytest.fixture(scope="session")
def result(site: Site) -> dict[str, str]:
    """What the upload of the shared site answered."""
    found = json.loads(
        site.sandbox.succeed("upload", "--all", "--json", "--portal", site.portal, site.source)
    )
    assert isinstance(found, dict)
    return found


def test_a_file_tells_where_it_came_from(site: Site, result: dict[str, str]) -> None:
    """A1: On everything inside a skylink: `user.skymount.skylink`, `.merkle_root`, `.portal`."""
    assert xattrs(site.tree / "text.txt") == {
        "user.skymount.skylink": site.skylink,
        "user.skymount.merkle_root": result["merkleroot"],
        "user.skymount.content_type": "text/plain",
        "user.skymount.portal": site.portal,
        "user.skymount.verified": "yes",
        "user.mime_type": "text/plain",
        "user.xdg.origin.url": f"{site.portal}/{site.skylink}/text.txt",
    }


def test_a_directory_of_a_skylink_tells_what_is_hidden(site: Site) -> None:
    found = xattrs(site.tree)
    assert found["user.skymount.hidden"] == "0"
    assert found["user.skymount.verified"] == "yes"
    assert found["user.xdg.origin.url"] == f"{site.portal}/{site.skylink}"
    assert "user.mime_type" not in found
    assert "user.skymount.hidden" not in xattrs(site.tree / "names")


def test_the_origin_url_leads_to_the_file(site: Site, tmp_path: Path) -> None:
    """Whatever is in its name."""
    code = "import sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(sys.argv[1]).read())"
    for name in ("names/100%", "names/#", "names/new\nline", "names/日本語", "names/%2F", BIG):
        url = xattrs(site.tree / name)["user.xdg.origin.url"]
        assert url.isascii()
        found = output([sys.executable, "-IS", "-c", code, url])
        assert found == (site.source / name).read_bytes()


def test_each_file_has_its_own_type(site: Site) -> None:
    for name, kind in (
        ("page.html", "text/html"),
        ("picture.png", "image/png"),
        (BIG, "application/octet-stream"),
    ):
        assert xattrs(site.tree / name)["user.mime_type"] == kind


def test_an_absent_attribute_is_enodata(site: Site) -> None:
    """A2: unknown ones inside are ENODATA."""
    names = ["user.absent", "user.skymount.absent", "user."]
    assert getxattr(site.tree / "text.txt", *names) == ["ENODATA"] * 3
    assert getxattr(site.mount.path, "user.mime_type") == ["ENODATA"]


def test_other_name_spaces_are_not_supported(site: Site) -> None:
    """A2: Attributes outside `user.` are not supported (EOPNOTSUPP).

    So that ls does not ask again for each file.
    """
    names = ["security.selinux", "security.capability", "system.posix_acl_access", "trusted.x"]
    found = getxattr(site.tree / "text.txt", *names)
    assert set(found[:3]) == {"ENOTSUP"}
    assert found[3] in ("ENOTSUP", "EPERM", "ENODATA")  # not shown to all users


def test_a_buffer_that_is_too_small_is_erange(site: Site) -> None:
    code = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
path, name = os.fsencode(sys.argv[1]), b"user.skymount.skylink"
small = ctypes.create_string_buffer(10)
print(libc.getxattr(path, name, None, 0), libc.getxattr(path, name, small, 10),
      errno.errorcode[ctypes.get_errno()], libc.listxattr(path, small, 10) )
"""
    said = output([sys.executable, "-IS", "-c", code, site.tree / "text.txt"])
    assert said == b"46 -1 ERANGE -1\n"


def test_the_root_knows_its_daemon(site: Site) -> None:
    """A1: On the mount point `user.skymount.pid`."""
    assert xattrs(site.mount.path) == {"user.skymount.pid": str(site.mount.daemon.pid)}
    assert xattrs(site.mount.path / "skylinks") == {}
    assert xattrs(site.mount.path / ".skymount/help.txt") == {}


@pytest.mark.skipif(shutil.which("getfattr") is None, reason="getfattr is not installed")
def test_getfattr_dumps_a_whole_tree(site: Site) -> None:
    dumped = output(["getfattr", "-R", "-d", "-m", "-", "modes"], cwd=site.tree)
    assert dumped.count(b"user.xdg.origin.url=") == 6
    assert b"user.skymount" not in dumped


def test_times_are_the_same_for_everything(site: Site) -> None:
    """S7: In the trees of v1 skylinks atime, mtime and ctime are 2020-01-01 00:00 UTC."""
    shown = output(["find", site.tree, "-printf", "%T@ %C@ %A@\n"]).split()
    assert {value.split(b".")[0] for value in shown} == {str(MTIME).encode()}


def test_directories_can_be_read_and_passed_but_not_written(site: Site) -> None:
    """S6: Directories are `r-xr-xr-x`."""
    modes = output(["find", site.mount.path, "-type", "d", "-printf", "%m\n"]).split()
    assert set(modes) == {b"555"}
    assert output(["find", site.mount.path, "-perm", "/222"]) == b""


def test_everything_belongs_to_who_mounted(site: Site) -> None:
    """S6: Owner and group are those of the daemon."""
    owners = output(["find", site.mount.path, "-printf", "%U %G\n"]).splitlines()
    assert set(owners) == {f"{os.getuid()} {os.getgid()}".encode()}


def test_no_two_files_share_an_inode_number(site: Site) -> None:
    output(["ls", site.tree])  # only what was used is listed
    numbers = output(["find", site.mount.path, "-printf", "%i\n"]).split()
    assert len(numbers) > 600
    assert len(set(numbers)) == len(numbers)


def test_the_number_in_a_listing_is_that_of_the_file(site: Site) -> None:
    code = """
import os, sys
for entry in os.scandir(sys.argv[1]):
    assert entry.inode() == entry.stat(follow_symlinks=False).st_ino, entry.name
    assert entry.is_file() == os.path.isfile(entry.path), entry.name
    print(entry.name)
"""
    for directory in (
        site.tree,
        site.tree / "names",
        site.mount.path,
        site.mount.path / "skylinks",
    ):
        seen = output([sys.executable, "-IS", "-c", code, directory])
        assert seen


def test_find_by_inode_number(site: Site) -> None:
    number = output(["stat", "-c", "%i", site.tree / EXECUTABLE]).strip().decode()
    assert output(["find", ".", "-inum", number], cwd=site.tree) == f"./{EXECUTABLE}\n".encode()


def test_two_names_of_a_skylink_are_two_trees(site: Site) -> None:
    """S2: Each spelling is a directory of its own, with inode numbers of its own.

    Each is a directory of its own, so that a walk does not take one for a loop.
    """
    numbers = output(
        ["stat", "-c", "%i", site.tree, site.mount.skylink(f"sia:{site.skylink}")]
    ).split()
    assert len(set(numbers)) == 2


def test_inode_numbers_and_times_outlive_the_mount(site: Site, sandbox: Sandbox) -> None:
    """S5: Inode numbers are the same after a remount.

    Whether they were listed first or looked up by name.
    """
    show = ["-printf", "%P %i %s %m %T@ %u\\0"]
    expected = set(output(["find", ".", *show], cwd=site.tree).split(b"\0"))
    with sandbox.mounted("--portal", site.portal) as mount:
        tree = mount.skylink(site.skylink)
        number = output(["stat", "-c", "%i", EXECUTABLE], cwd=tree).strip()
        assert any(line.split(b" ")[1:2] == [number] for line in expected)
        assert set(output(["find", ".", *show], cwd=tree).split(b"\0")) == expected


def test_links_are_counted_as_one(site: Site) -> None:
    """A directory's 1 tells find that the count means nothing."""
    counts = output(["find", site.tree, "-printf", "%n\n"]).split()
    assert set(counts) == {b"1"}


def test_df_shows_what_is_known(site: Site) -> None:
    """A3: `statfs` reports the sizes and numbers of files of the skylinks in use as used."""
    output(["cat", site.tree / "text.txt"])
    shown = output(
        ["df", "-B1", "--output=size,used,avail,itotal,fstype", site.mount.path], env=ENV
    )
    size, used, available, files, kind = shown.splitlines()[1].split()
    content = sum((site.source / path).stat().st_size for path in site.files)
    assert content <= int(used) == int(size)
    assert int(available) == 0
    assert int(files) >= len(site.files)
    assert kind == b"fuse.skymount"


def test_df_of_an_empty_mount(sandbox: Sandbox, portal: str) -> None:
    with sandbox.mounted("--portal", portal) as mount:
        assert b"skymount" in output(["df", mount.path], env=ENV)
        assert b"skymount" in output(["df", "-i", mount.path], env=ENV)


def test_statfs_of_a_file(site: Site) -> None:
    shown = output(["stat", "-f", "-c", "%s %S %l", site.tree / "text.txt"]).split()
    assert shown == [b"4096", b"4096", b"255"]


def test_the_kernel_says_what_is_mounted(site: Site) -> None:
    shown = output(["findmnt", "-n", "-o", "FSTYPE,SOURCE,OPTIONS", site.mount.path]).decode()
    kind, source, options = shown.split()
    assert (kind, source) == ("fuse.skymount", "skymount")
    assert {"nosuid", "nodev", "noatime"} <= set(options.split(","))


def test_seeking_for_holes_finds_none(site: Site) -> None:
    code = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
print(*(os.lseek(file, 0, whence) for whence in (os.SEEK_DATA, os.SEEK_HOLE, os.SEEK_END)))
"""
    said = output([sys.executable, "-IS", "-c", code, site.tree / "text.txt"]).split()
    assert said == [b"0", b"37", b"37"]


def test_advisory_locks_can_be_taken(site: Site) -> None:
    code = """
import fcntl, sys
with open(sys.argv[1], "rb") as file:
    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    print("locked")
"""
    assert output([sys.executable, "-IS", "-c", code, site.tree / "text.txt"]) == b"locked\n"


def test_a_directory_is_no_file_and_a_file_no_directory(site: Site) -> None:
    assert "Is a directory" in run(["cat", site.tree / "names"], env=ENV).stderr
    assert "Not a directory" in run(["ls", f"{site.tree}/text.txt/"], env=ENV).stderr


HANDLES = """
import ctypes, errno, os, sys

class Handle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]

libc = ctypes.CDLL(None, use_errno=True)
handle, number = Handle(128), ctypes.c_int()
path = os.fsencode(sys.argv[1])
assert libc.name_to_handle_at(-100, path, ctypes.byref(handle), ctypes.byref(number), 0) == 0
with open("/proc/sys/vm/drop_caches", "w") as caches:
    caches.write("2")
mount = os.open(os.path.dirname(path), os.O_RDONLY)
opened = libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
print("open" if opened >= 0 else errno.errorcode[ctypes.get_errno()])
"""


@pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/proc/sys/vm/drop_caches", os.W_OK),
    reason="only root opens handles and drops caches",
)
def test_handles_go_stale(site: Site) -> None:
    """File handles are ESTALE once the kernel has forgotten the file."""
    assert output([sys.executable, "-c", HANDLES, site.tree / "text.txt"]) == b"ESTALE\n"


MAPPED = """
import errno, mmap, sys
with open(sys.argv[1], "rb") as file:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as private:
        assert len(private) > 5
    try:
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).close()
    except OSError as error:
        print(errno.errorcode[error.errno])
    else:
        print("mapped")
"""


def test_shared_mappings(site: Site) -> None:
    """G5: a shared mapping of `status.json` is refused with ENODEV, a private one is allowed. What
    never changes can be mapped.
    """
    control = site.mount.path / ".skymount"
    for path, said in (
        (control / "status.json", b"ENODEV\n"),
        (control / "help.txt", b"mapped\n"),
        (site.tree / "text.txt", b"mapped\n"),
    ):
        assert output([sys.executable, "-IS", "-c", MAPPED, path]) == said
