"""What is known of something that moves ends once this mount knows better.

The times to live are an hour here, and none of these tests takes that long.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from skymount.wire.registry_entry import entry_link, hash_data_key
from tests.mount.keys import HOME, Owner, program, until
from tests.mount.test_hns import Reader, lead, publish
from tests.portal_process import PortalProcess, portal_process
from tests.skymount_process import Mount, Sandbox, output, run, xattrs

HOUR = "3600"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    """A portal whose zone the tests of this module write."""
    with portal_process(tmp_path_factory.mktemp("names") / "data") as running:
        yield running


@dataclass(frozen=True)
class Site:
    """Two versions of a site, an entry that leads to the first one, and who owns that."""

    owner: Owner
    links: list[str]

    @property
    def link(self) -> str:
        """The v2 skylink of the entry."""
        return str(entry_link(self.owner.pair.public_key, hash_data_key("site")))

    @contextmanager
    def mounted(self) -> Iterator[Mount]:
        """Mount with long times to live."""
        with self.owner.sandbox.mounted("--portal", self.owner.portal) as mount:
            yield mount


@pytest.fixture
def site(sandbox: Sandbox, names: PortalProcess) -> Site:
    links = [publish(sandbox, names, f"v{n}", {"d/f": str(n), f"only{n}": ""}) for n in (1, 2)]
    owner = Owner.make(sandbox, names.url)
    long = sandbox.with_env(SKYMOUNT_HNS_TTL=HOUR, SKYMOUNT_REGISTRY_TTL=HOUR)
    owner.put("site", links[0].encode())
    return Site(replace(owner, sandbox=long), links)


def shows(tree: Path, content: str) -> bool:
    """Whether a path leads to this version of the site, and to nothing of the other one."""
    done = run(["cat", tree / "d/f"])
    names = run(["ls", tree]).stdout.split()
    return (done.stdout, names) == (content, ["d", f"only{content}"])


def test_write_through_the_mount(site: Site, names: PortalProcess) -> None:
    """H5: when a registry entry is changed through the mount.

    Under every name and spelling that leads through the entry, while what is open, and who stands
    in the old tree, stays there.
    """
    public = site.owner.pair.public_hex
    lead(site.owner.sandbox, names, "bücher.example", f"{public}/{hash_data_key('site').hex()}")
    lead(site.owner.sandbox, names, "by-link.example", site.link)
    lead(site.owner.sandbox, names, "fixed.example", site.links[0])
    with site.mounted() as mount:
        domains = ("bücher.example", "BÜCHER.example.", "by-link.example", "By-Link.example")
        trees = [mount.path / "hns" / name for name in domains]
        trees += [mount.skylink(site.link), mount.skylink(f"sia:{site.link}")]
        fixed = mount.path / "hns/fixed.example"
        for tree in [*trees, fixed]:
            assert shows(tree, "1")
        inode = output(["stat", "-c", "%i", fixed])
        with Reader(trees[0] / "d/f") as reader, program(trees[1]) as standing:
            entry = mount.path / "registry" / HOME / "site"
            output(["sh", "-c", 'printf %s "$1" > "$0"', entry, site.links[1]])
            for tree in trees:
                until(lambda tree=tree: shows(tree, "2"))  # type: ignore[misc]
            assert standing.do("open('d/f').read(), os.listdir()") == "('1', ['d', 'only1'])"
            assert reader.finish() == b"1"
        assert shows(fixed, "1")
        assert output(["stat", "-c", "%i", fixed]) == inode
        output(["rm", entry])
        for tree in trees:
            until(lambda tree=tree: "No such file" in run(["ls", tree]).stderr)  # type: ignore[misc]
        output(["sh", "-c", 'printf %s "$1" > "$0"', entry, site.links[0]])
        for tree in trees:
            until(lambda tree=tree: shows(tree, "1"))  # type: ignore[misc]


def test_entry_that_is_read(site: Site) -> None:
    """H5: or found changed by reading it: by whatever program here."""
    with site.mounted() as mount:
        tree = mount.skylink(site.link)
        assert shows(tree, "1")
        entry = mount.path / "registry" / HOME / "site"
        assert output(["cat", entry]) == site.links[0].encode()
        site.owner.put("site", site.links[1].encode())
        assert shows(tree, "1")
        assert output(["cat", entry]) == site.links[1].encode()
        until(lambda: shows(tree, "2"))


def test_another_name_by_the_same_entry(site: Site, names: PortalProcess) -> None:
    """H5: or by resolving another name."""
    lead(site.owner.sandbox, names, "late.example", site.link)
    with site.mounted() as mount:
        tree = mount.skylink(site.link)
        assert shows(tree, "1")
        site.owner.put("site", site.links[1].encode())
        assert shows(tree, "1")
        assert shows(mount.path / "hns/late.example", "2")
        until(lambda: shows(tree, "2"))


def test_entry_that_leads_where_it_did(site: Site) -> None:
    """H5: the v2 skylinks and domains that it now leads elsewhere. Others are left alone."""
    with site.mounted() as mount:
        tree = mount.skylink(site.link)
        assert shows(tree, "1")
        with program(tree / "d") as standing:
            entry = mount.path / "registry" / HOME / "site"
            site.owner.put("site", site.links[0].encode())
            assert output(["cat", entry]) == site.links[0].encode()
            assert xattrs(entry)["user.skymount.revision"] == "1"
            assert shows(tree, "1")
            assert standing.do("os.getcwd()") == repr(str(tree / "d"))


@pytest.mark.parametrize("kind", ["registry", "skydb"])
def test_size_of_an_open_file(site: Site, tmp_path: Path, kind: str) -> None:
    """G5: what this mount learns earlier, also by another name of the entry, counts for stat of an
    open file within a second.

    A program has it open; another one opens it, and gets what somebody else has stored meanwhile.
    """
    other = Owner.make(Sandbox.make(tmp_path / "other"), site.owner.portal, site.owner.pair)
    name = f"{kind}/{HOME}/doc.json"
    with site.mounted() as mount, other.sandbox.mounted("--portal", other.portal) as elsewhere:

        def change(content: str) -> None:
            output(["sh", "-c", 'printf %s "$1" > "$0"', elsewhere.path / name, content])

        def size() -> int:
            return int(tool.do("os.fstat(f).st_size"))

        change('{"a": 1}')
        with program(mount.path) as tool:
            assert tool.do(f"(f := os.open({name!r}, os.O_RDONLY)) and None") == "None"
            before = size()
            change('{"a": 1, "b": 2}')
            assert size() == before
            other_spelling = name.replace("doc", "%64oc")  # another inode of the same entry
            longer = len(output(["cat", mount.path / other_spelling]))
            assert longer > before
            until(lambda: size() == longer)
