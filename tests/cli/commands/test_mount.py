"""``skymount mount`` and ``skymount umount``: what they refuse before anything is mounted."""

import pytest

from tests.skymount_process import Sandbox, clear_mounts, mounts_at


def test_no_mount_point(sandbox: Sandbox) -> None:
    assert "no mount point: name a directory" in sandbox.fail("mount", code=2)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("portal.example", "write https://portal.example"),
        ("ftp://portal.example", "as https://portal.example does"),
        ("http://me:secret@portal.example", "it must not hold credentials"),
    ],
)
def test_a_bad_portal_url(sandbox: Sandbox, url: str, words: str) -> None:
    said = sandbox.fail("mount", sandbox.directory(), "--portal", url, code=2)
    assert words in said
    assert "secret" not in said


def test_bad_flags(sandbox: Sandbox) -> None:
    sandbox.directory()
    for flags, word in (
        (["--memory-cache", "much"], "not a size"),
        (["--verify", "perhaps"], "verify"),
        (["--config", "absent.toml"], "no such file"),
        (["--name", ""], "--name: it is empty"),
        (["and", "another"], "another"),
    ):
        assert word in sandbox.fail("mount", "mnt", *flags, code=2), flags


def test_an_unknown_key_in_the_configuration(sandbox: Sandbox) -> None:
    file = sandbox.configure('portal = "http://127.0.0.1:9"\n')
    said = sandbox.fail("mount", sandbox.directory(), code=2)
    assert said.startswith(f"{file}: line 1: unknown key 'portal'; did you mean portals?")


def test_umount_of_what_is_not_mounted(sandbox: Sandbox) -> None:
    path = sandbox.directory()
    assert sandbox.fail("umount", path) == f"{path}: nothing is mounted there"
    assert "nothing is mounted there" in sandbox.fail("umount", sandbox.root / "absent")
    assert "name a mount point" in sandbox.fail("umount", code=2)


def test_umount_by_name_and_of_several(sandbox: Sandbox, portal: str) -> None:
    one, two = sandbox.directory("one"), sandbox.directory("two")
    sandbox.configure(f'portals = ["{portal}"]\n[mounts.home]\nmountpoint = "{one}"\n')
    try:
        for args in (("--name", "home"), (two,)):
            sandbox.succeed("mount", *args)
        assert sandbox.succeed("umount", two, "--name", "home") == ""
        assert mounts_at(one) == mounts_at(two) == []
        sandbox.succeed("mount", "--name", "home")
        inside = f"{one}/skylinks/{'A' * 46}/x"
        assert "no portal has it" in sandbox.fail("cat", inside, code=3)
    finally:
        clear_mounts(sandbox.root)
