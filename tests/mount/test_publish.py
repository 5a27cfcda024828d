"""``skymount publish`` as other mounts see it."""

from pathlib import Path

import pytest

from skymount.wire.skylink import Skylink
from tests.mount.test_hns import Reader, mounting, read, until
from tests.skymount_process import Sandbox, output, xattrs


@pytest.fixture
def publisher(tmp_path: Path) -> Sandbox:
    """Another home directory: its keys and its ledger are not those of the mount."""
    made = Sandbox.make(tmp_path / "publisher")
    made.succeed("key", "generate", "home")
    return made


def publish(publisher: Sandbox, portal: str, **files: str) -> str:
    """Publish files under the link of one entry; return it."""
    source = publisher.root / "site"
    source.mkdir(exist_ok=True)
    for name, content in files.items():
        (source / name).write_text(content)
    arguments = ("publish", source, "--key", "home", "--as", "site", "--portal", portal)
    return publisher.succeed(*arguments).rstrip("\n")


def test_another_mount_shows_the_new_tree(
    sandbox: Sandbox, publisher: Sandbox, portal: str
) -> None:
    """S8: What is open stays on the version that it was opened on.

    H4: A v2 skylink is resolved in the same way.

    Without remounting the published tree is there once the time of the old one is over.
    """
    link = publish(publisher, portal, page="one")
    with mounting(sandbox, 0.2).mounted("--portal", portal, "--verify", "require") as mount:
        tree = mount.skylink(link)
        assert read(tree / "page") == "one"
        with Reader(tree / "page") as reader:
            assert publish(publisher, portal, page="two", more="new") == link
            until(lambda: output(["ls", tree]) == b"more\npage\n")
            assert read(tree / "page") == "two"
            assert reader.finish() == b"one"
        assert xattrs(tree)["user.skymount.verified"] == "yes"


def test_published_entry_in_a_mount(publisher: Sandbox, portal: str) -> None:
    """G5: An open sees what the portal has at that time: what was published, in its 34 bytes."""
    publish(publisher, portal, page="one")
    with publisher.mounted("--portal", portal) as mount:
        entry = mount.path / "registry/home/site"
        for content in ("two", "three"):
            publish(publisher, portal, page=content)
            skylink = publisher.upload(publisher.root / "site", portal)
            assert output(["cat", entry]) == bytes(Skylink(skylink))
