"""Semantics: write to what is read-only is EROFS, whoever tries and in whatever way."""

import ast
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mount.namespaces import NOBODY, Namespace
from tests.mount.site import BIG, Site
from tests.skymount_process import Sandbox, output, run

ATTEMPTS = """
import errno, os, sys
tree = sys.argv[1]
file, directory, new = f"{tree}/text.txt", f"{tree}/names", f"{tree}/new"
attempts = {
    "open for write": lambda: os.open(file, os.O_WRONLY),
    "open for read and write": lambda: os.open(file, os.O_RDWR),
    "open to append": lambda: os.open(file, os.O_WRONLY | os.O_APPEND),
    "open and truncate": lambda: os.open(file, os.O_WRONLY | os.O_TRUNC),
    "open for read and truncate": lambda: os.open(file, os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda: os.truncate(file, 0),
    "extend": lambda: os.truncate(file, 1000),
    "create": lambda: os.open(new, os.O_WRONLY | os.O_CREAT),
    "create exclusively": lambda: os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "create for reading": lambda: os.open(new, os.O_RDONLY | os.O_CREAT),
    "create over": lambda: os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    "mkdir": lambda: os.mkdir(new),
    "rmdir": lambda: os.rmdir(directory),
    "unlink": lambda: os.unlink(file),
    "rename": lambda: os.rename(file, new),
    "rename over": lambda: os.rename(file, f"{tree}/empty"),
    "rename into hns": lambda: os.rename(file, f"{tree}/../../hns/new"),
    "rename into the registry": lambda: os.rename(file, f"{tree}/../../registry/new"),
    "rename out of .skymount": lambda: os.rename(f"{tree}/../../.skymount/help.txt", new),
    "rename a directory": lambda: os.rename(directory, new),
    "rename into another directory": lambda: os.rename(file, f"{directory}/new"),
    "link": lambda: os.link(file, new),
    "symlink": lambda: os.symlink("elsewhere", new),
    "mkfifo": lambda: os.mkfifo(new),
    "chmod": lambda: os.chmod(file, 0o777),
    "chmod a directory": lambda: os.chmod(directory, 0o777),
    "chmod of an open file": lambda: os.fchmod(os.open(file, os.O_RDONLY), 0o777),
    "chown": lambda: os.chown(file, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(file, (0, 0)),
    "touch": lambda: os.utime(file),
    "setxattr": lambda: os.setxattr(file, "user.mine", b"x"),
    "setxattr of ours": lambda: os.setxattr(file, "user.skymount.skylink", b"x"),
    "removexattr": lambda: os.removexattr(file, "user.skymount.skylink"),
    "removexattr of none": lambda: os.removexattr(file, "user.absent"),
    "create beside the skylinks": lambda: os.open(f"{tree}/../new", os.O_WRONLY | os.O_CREAT),
    "mkdir beside the skylinks": lambda: os.mkdir(f"{tree}/../new"),
    "rmdir of the skylink": lambda: os.rmdir(tree),
    "rename of the skylink": lambda: os.rename(tree, f"{tree}/../new"),
    "create in the root": lambda: os.open(f"{tree}/../../new", os.O_WRONLY | os.O_CREAT),
    "mkdir in the root": lambda: os.mkdir(f"{tree}/../../new"),
    "symlink in the root": lambda: os.symlink("elsewhere", f"{tree}/../../new"),
    "rmdir of skylinks": lambda: os.rmdir(f"{tree}/../../skylinks"),
    "write of help": lambda: os.open(f"{tree}/../../.skymount/help.txt", os.O_WRONLY),
    "write of status": lambda: os.open(f"{tree}/../../.skymount/status.json", os.O_RDWR),
    "unlink of help": lambda: os.unlink(f"{tree}/../../.skymount/help.txt"),
    "create beside help": lambda: os.open(f"{tree}/../../.skymount/new", os.O_RDWR | os.O_CREAT),
}
if os.getuid() == 0:
    attempts["mknod of a device"] = lambda: os.mknod(new, 0o20666, os.makedev(1, 3))

def outcome(attempt):
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "it was done"

found = {name: outcome(attempt) for name, attempt in attempts.items()}
found["access"] = "it is allowed" if os.access(file, os.W_OK) else "EROFS"
print(found)
"""

ACCESS = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for path in sys.argv[1:]:
    result = libc.access(os.fsencode(path), os.W_OK)
    print(result, errno.errorcode[ctypes.get_errno()])
"""


def attempts_on(tree: Path, prefix: Sequence[str] = ()) -> dict[str, str]:
    """Try everything on a tree; return what came of each attempt that was not EROFS."""
    said = output([*prefix, sys.executable, "-IS", "-c", ATTEMPTS, tree])
    found = ast.literal_eval(said.decode())
    assert len(found) > 40
    return {name: outcome for name, outcome in found.items() if outcome != "EROFS"}


def test_every_attempt_to_write_is_erofs(site: Site) -> None:
    """W1: Every attempt to change anything is EROFS, for every user.

    For whoever runs the tests, root or not.
    """
    assert attempts_on(site.tree) == {}
    assert output(["diff", "-r", site.source, site.tree]) == b""


def test_access_for_writing_is_erofs(site: Site) -> None:
    """W1: and asking `access(2)` for W_OK."""
    paths = [site.tree / "text.txt", site.tree, site.mount.path]
    said = output([sys.executable, "-IS", "-c", ACCESS, *paths])
    assert said == b"-1 EROFS\n" * 3


def test_access_for_reading_and_running_follows_the_mode(site: Site) -> None:
    for options, path, code in (
        ("-r", "text.txt", 0),
        ("-x", "text.txt", 1),
        ("-x", "bin/run.sh", 0),
        ("-x", "names", 0),
        ("-w", "text.txt", 1),
    ):
        assert run(["test", options, site.tree / path]).returncode == code, (options, path)


def test_tools_say_that_it_is_read_only(site: Site) -> None:
    for command in (
        ["sh", "-c", "echo x > text.txt"],
        ["sh", "-c", "echo x >> new"],
        ["touch", "text.txt"],
        ["rm", "-f", "text.txt"],
        ["rm", "-rf", "many/1"],
        ["mv", "text.txt", "new"],
        ["cp", "text.txt", "new"],
        ["ln", "-s", "text.txt", "new"],
        ["sed", "-i", "s/needle/x/", "text.txt"],
        ["dd", "if=/dev/zero", "of=text.txt", "count=1"],
        ["truncate", "-s", "1", "text.txt"],
        ["mkdir", "-p", "new/below"],
        ["chmod", "u+w", "text.txt"],
    ):
        done = run(command, env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, cwd=site.tree)
        assert done.returncode, command
        assert "Read-only file system" in done.stderr, command


def test_a_user_without_rights_mounts_reads_and_cannot_write(
    site: Site, sandbox: Sandbox, mount_namespace: Namespace
) -> None:
    """The mount is made, used and taken away by that user; others are kept out, even root."""
    if os.getuid() != 0:
        pytest.skip("all other tests are that already")
    prefix = mount_namespace.as_nobody(sandbox.root)
    sandbox.directory_of(NOBODY)
    with sandbox.within(prefix).mounted("--portal", site.portal) as mount:
        tree = mount.skylink(site.skylink)
        owner = output([*prefix, "stat", "-c", "%u %g", tree / "text.txt"])
        assert owner.decode().split() == [str(NOBODY), str(NOBODY)]
        found = output([*prefix, "cat", tree / BIG, tree / "text.txt"])
        assert found == (site.source / BIG).read_bytes() + (site.source / "text.txt").read_bytes()
        assert attempts_on(tree, prefix) == {}
        assert "Permission denied" in mount_namespace.run("ls", tree).stderr
        sandbox.within(prefix).succeed("umount", mount.path)
        mount.daemon.wait()
