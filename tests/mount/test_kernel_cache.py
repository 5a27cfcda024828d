"""What the kernel was told of immutable content it does not ask the daemon for again."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mount.namespaces import Namespace
from tests.mount.site import BIG, Site
from tests.skymount_process import Mount, Sandbox, output

READ_AHEAD = (
    "import os, sys; device = os.stat(sys.argv[1]).st_dev;"
    "print(open(f'/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb').read())"
)

READ_AND_DROP = """
import os, sys
for path in sys.argv[1:]:
    file = os.open(path, os.O_RDONLY)
    size = os.fstat(file).st_size
    assert len(os.read(file, size + 1)) == size == os.fstat(file).st_size
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
"""

SHARED = """
import mmap, os, random, sys
source, tree, *names, seed = sys.argv[1:]
choice = random.Random(seed)
expected = {name: open(f"{source}/{name}", "rb").read() for name in names}
for _ in range(1500):
    name = choice.choice(names)
    file = os.open(f"{tree}/{name}", os.O_RDONLY)
    size = len(expected[name])
    if choice.random() < 0.5:
        with mmap.mmap(file, size, prot=mmap.PROT_READ) as pages:
            found = bytes(pages)
    else:
        found = os.read(file, size + 1)
    assert found == expected[name], name
    if choice.random() < 0.5:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
"""

MISSING = """
import os, sys
for name in ("nothing", "no such file", "a" * 255):
    assert not os.path.lexists(os.path.join(sys.argv[1], name))
"""


def requests(mount: Mount, work: Callable[[], object], *unwanted: str) -> Counter[str]:
    """Return the requests that some work caused; what asking for the numbers costs is taken off.

    Tried a few times while there are unwanted ones: anybody on the machine may make the kernel drop
    what it keeps.
    """
    found = Counter[str]()
    for _ in range(5):
        first = Counter(mount.status()["operations"])
        before = Counter(mount.status()["operations"])
        work()
        after = Counter(mount.status()["operations"])
        found = after - before - (before - first)
        if not set(unwanted) & set(found):
            break
    return found


def read_all(tree: Path) -> None:
    """Look at and read every file of a tree."""
    output(["find", tree, "-type", "f", "-exec", "cat", "{}", "+"])
    output(["ls", "-lR", tree])


def test_second_look(site: Site, tmp_path: Path) -> None:
    """S4: The kernel may keep names, attributes and pages for ever: a second look asks for none."""
    place = tmp_path / "mnt"
    place.mkdir()
    with site.sandbox.mounted("--portal", site.portal, at=place) as mount:
        tree = mount.skylink(site.skylink)
        read_all(tree)
        again = requests(mount, lambda: read_all(tree), "lookup", "read")
        assert not {"lookup", "read"} & set(again), again
        # each listing makes the kernel doubt its directory's access time, and nothing else
        assert again["getattr"] <= again["opendir"], again
        assert again["getxattr"] <= 2, again  # one for labels, one for ACLs, not for each file
        assert again["open"] >= len(site.files)  # the kernel has no way not to ask


def test_missing_names(site: Site) -> None:
    """L3: A name that is not in a tree is asked for once."""
    command = [sys.executable, "-IS", "-c", MISSING, site.tree / "big"]
    output(command)
    assert not requests(site.mount, lambda: output(command), "lookup")["lookup"]


def test_second_reading(site: Site) -> None:
    """A file that is read again is read from memory by the kernel, whoever opens it."""
    output(["cat", site.tree / BIG])
    again = requests(site.mount, lambda: output(["cat", site.tree / BIG]), "read")
    assert (again["open"], again["read"]) == (1, 0)


def test_small_files_from_memory(site: Site) -> None:
    """R9: Of a small file whose content is in the mount's memory nothing is read, and the kernel
    does not doubt its attributes, though it has dropped its pages.
    """
    files = [str(path) for path in sorted((site.tree / "many").rglob("*.dat"))]
    output([sys.executable, "-IS", "-c", READ_AND_DROP, *files])
    again = requests(
        site.mount,
        lambda: output([sys.executable, "-IS", "-c", READ_AND_DROP, *files]),
        *("read", "getattr", "lookup"),
    )
    assert again["open"] == len(files)
    assert not {"read", "getattr"} & set(again), again


def test_small_files_by_many_readers(site: Site) -> None:
    """R9: Readers that open the same small files at once, while their pages are dropped, all read
    what is in them.
    """
    names = [f"many/{number % 10}/{number:04}.dat" for number in range(500, 520)]
    command = [sys.executable, "-IS", "-c", SHARED, site.source, site.tree, *names]
    with ExitStack() as stack:
        readers = [
            stack.enter_context(subprocess.Popen([*command, str(seed)], stderr=subprocess.PIPE))
            for seed in range(6)
        ]
        for reader in readers:
            _, said = reader.communicate(timeout=60)
            assert reader.returncode == 0, said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set it")
@pytest.mark.parametrize(("flags", "expected"), [([], 1024), (["--no-read-ahead"], 128)])
def test_read_ahead(site: Site, tmp_path: Path, flags: list[str], expected: int) -> None:
    """R8: As root the mount raises the kernel's read-ahead to 1 MiB, unless told not to."""
    place = tmp_path / "mnt"
    place.mkdir()
    with site.sandbox.mounted("--portal", site.portal, *flags, at=place) as mount:
        assert int(output([sys.executable, "-IS", "-c", READ_AHEAD, mount.path])) == expected


KNOBS = Path("/sys/fs/fuse/connections")


def test_reads_at_once(sandbox: Sandbox, portal: str, mount_namespace: Namespace) -> None:
    """R8: Where the kernel lets it, the mount allows 256 background reads at once."""
    if mount_namespace.run("mount", "-t", "fusectl", "none", KNOBS).returncode:
        pytest.skip("the kernel's settings cannot be seen here")
    with sandbox.within(mount_namespace.prefix).mounted("--portal", portal) as mount:
        device = mount_namespace.do("stat", "-c", "%Ld", mount.path).strip()
        assert mount_namespace.do("cat", KNOBS / device / "max_background") == "256\n"
        assert mount_namespace.do("cat", KNOBS / device / "congestion_threshold") == "48\n"
        assert "background reads" not in sandbox.log.read_text()


def test_reads_at_once_that_stay_few(
    sandbox: Sandbox, portal: str, mount_namespace: Namespace
) -> None:
    """R8: Where the limit cannot be raised, the log says so at info level."""
    mount_namespace.do("mount", "-t", "tmpfs", "-o", "size=4k", "none", KNOBS)
    with sandbox.within(mount_namespace.prefix).mounted("--portal", portal):
        pass
    [line] = [each for each in sandbox.log.read_text().splitlines() if "background reads" in each]
    assert " INFO " in line
    assert str(KNOBS) in line
