"""What keeps other users out: modes, owners, and what a process leaves."""

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from skymount import file_permissions
from skymount.portal.ledger.ledger import Ledger
from tests.careless_user import WIDE, portal_of_careless_user
from tests.portal_process import portal_command, portal_environment

_NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _too_wide(below: Path) -> list[Path]:
    return [path for path in (below, *below.rglob("*")) if _mode(path) & 0o077]


@pytest.mark.usefixtures("no_umask")
def test_directories_are_made_private(tmp_path: Path) -> None:
    """Those above as well; what is there stays as it is."""
    tmp_path.chmod(0o755)
    file_permissions.make_directory(tmp_path / "a/b/c")
    assert [_mode(tmp_path / each) for each in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert _mode(tmp_path) == 0o755
    file_permissions.make_directory(tmp_path)
    assert _mode(tmp_path) == 0o755
    file_permissions.restrict_directory(tmp_path)
    assert _mode(tmp_path) == 0o700


@pytest.mark.usefixtures("no_umask")
def test_files_are_made_private(tmp_path: Path) -> None:
    """And only where nothing is, no link either."""
    os.close(file_permissions.create_file(tmp_path / "file"))
    assert _mode(tmp_path / "file") == 0o600
    (tmp_path / "link").symlink_to("elsewhere")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            file_permissions.create_file(tmp_path / name)
    for name in ("file", "other"):
        os.close(file_permissions.open_or_create_file(tmp_path / name))
        assert _mode(tmp_path / name) == 0o600
    with pytest.raises(OSError):
        file_permissions.open_or_create_file(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.usefixtures("no_umask")
def test_the_directories_of_a_ledger(tmp_path: Path) -> None:
    """M8: those above that were missing as well, and one that was made too wide is closed."""
    wide = tmp_path / "wide"
    wide.mkdir()
    for above in (tmp_path / "new", wide):
        with closing(Ledger.open(above / "state/skymount/ledger.sqlite3")):
            assert _too_wide(above / "state") == []
    assert _mode(tmp_path / "new") == 0o700
    (wide / "state/skymount").chmod(0o777)
    with closing(Ledger.open(wide / "state/skymount/ledger.sqlite3")):
        assert _too_wide(wide / "state") == []


def test_objections(tmp_path: Path) -> None:
    """To what others may read, or only to what they may change; with the command that helps."""
    path = tmp_path / "a file"
    path.touch()
    for mode, others, expected in (
        (0o600, file_permissions.ANY_ACCESS, ""),
        (0o700, file_permissions.ANY_ACCESS, ""),
        (
            0o640,
            file_permissions.ANY_ACCESS,
            f"its mode 640 gives access to other users; run: chmod 600 '{path}'",
        ),
        (
            0o701,
            file_permissions.ANY_ACCESS,
            f"its mode 701 gives access to other users; run: chmod 600 '{path}'",
        ),
        (0o755, file_permissions.WRITE_ACCESS, ""),
        (
            0o720,
            file_permissions.WRITE_ACCESS,
            f"other users can write to it; run: chmod go-w '{path}'",
        ),
        (
            0o702,
            file_permissions.WRITE_ACCESS,
            f"other users can write to it; run: chmod go-w '{path}'",
        ),
    ):
        path.chmod(mode)
        assert file_permissions.permission_problem(path, path.stat(), others) == expected


@as_root
def test_what_belongs_to_somebody_else(tmp_path: Path) -> None:
    os.chown(tmp_path, _NOBODY, _NOBODY)
    tmp_path.chmod(0o755)
    expected = "it belongs to another user (uid 65534)"
    assert (
        file_permissions.permission_problem(
            tmp_path, tmp_path.stat(), file_permissions.WRITE_ACCESS
        )
        == expected
    )
    file_permissions.restrict_directory(tmp_path)
    assert _mode(tmp_path) == 0o755


def test_what_a_portal_keeps(tmp_path: Path) -> None:
    """Data, registry, skykeys and names, and the directories above that were missing."""
    above = tmp_path / "new"
    data = above / "portal/data"
    with portal_of_careless_user(data) as (url, _):
        headers = {"Content-Type": "a/b"}
        for size in (10, 5 << 20):
            posted = httpx.post(
                f"{url}/svc/skyfile?filename=a", content=bytes(size), headers=headers
            )
            assert posted.status_code == 200
        made = httpx.post(f"{url}/svc/createskykey?name=n&type=private-id")
        assert made.status_code == 200
        link = posted.json()["skylink"]
        command = [*WIDE, *portal_command("hns", "set", "a", link, "--data", str(data))]
        subprocess.run(command, env=portal_environment(), check=True, timeout=60)
        assert _too_wide(above) == []
    assert _too_wide(above) == []
    names = {path.name for path in data.rglob("*")}
    assert {"base", "payload", "entries.sqlite3", "skykeys.json", "hns.zone", "lock"} <= names


def test_names_may_be_the_first_that_is_kept(tmp_path: Path) -> None:
    """The command that sets one makes the directories as the portal does."""
    link = "AABsdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg"
    data = tmp_path / "new/portal"
    command = [*WIDE, *portal_command("hns", "set", "a", link, "--data", str(data))]
    subprocess.run(command, env=portal_environment(), check=True, timeout=60)
    assert _too_wide(tmp_path / "new") == []


def _refused(*flags: str | Path) -> str:
    """Run a portal that must not start; return its one line."""
    command = portal_command("serve", "--listen", "127.0.0.1:0", *map(str, flags))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=portal_environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize(
    ("inside", "mode"),
    [
        ("", 0o770),
        ("", 0o702),
        ("", 0o1777),
        ("v1", 0o777),
        ("v1/skyfiles", 0o720),
        ("v1/incoming", 0o702),
    ],
)
def test_a_data_directory_that_others_can_write_to(tmp_path: Path, inside: str, mode: int) -> None:
    """It is refused: what is in it may be anybody's."""
    place = tmp_path / "data" / inside
    place.mkdir(parents=True)
    place.chmod(mode)
    said = _refused("--data", tmp_path / "data")
    assert f"{place} cannot be used: other users can write to it; run: chmod go-w {place}" in said
    assert _mode(place) == mode


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
@pytest.mark.parametrize("linked", [False, True])
def test_a_data_directory_that_others_can_replace(tmp_path: Path, mode: int, linked: bool) -> None:
    """It is refused, unless only its owner can rename it, as in /tmp."""
    above, data = tmp_path / "above", tmp_path / "above/below/data"
    if linked:  # only the way is open to others, not the place that it leads to
        above.mkdir()
        (tmp_path / "closed/data").mkdir(parents=True)
        (above / "below").symlink_to("../closed")
    else:
        data.mkdir(parents=True)
    above.chmod(mode)
    said = _refused("--data", data)
    assert f"{data} cannot be used: other users can write to {above} and replace what is" in said
    assert f"run: chmod go-w {above}" in said
    above.chmod(mode | 0o1000)
    with portal_of_careless_user(data):
        pass


@as_root
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_data_directory_below_that_of_somebody_else(tmp_path: Path, mode: int) -> None:
    """It is refused: the owner of a directory can rename what is in it, with any mode."""
    above, data = tmp_path / "above", tmp_path / "above/below/data"
    data.mkdir(parents=True)
    above.chmod(mode)
    os.chown(above, _NOBODY, _NOBODY)
    said = _refused("--data", data)
    owner = f"{above} belongs to another user (uid {_NOBODY})"
    assert f"{data} cannot be used: {owner}, who can replace it" in said
    assert list(data.iterdir()) == []


@as_root
def test_a_data_directory_by_a_link_of_somebody_else(tmp_path: Path) -> None:
    """It is refused wherever on the way the link is; one of root is not."""
    (tmp_path / "own/data").mkdir(parents=True)
    tmp_path.chmod(0o1777)
    link = tmp_path / "link"
    link.symlink_to("own")
    os.chown(link, _NOBODY, _NOBODY, follow_symlinks=False)
    assert f"{link} belongs to another user" in _refused("--data", link / "data")
    os.chown(link, 0, 0, follow_symlinks=False)
    with portal_of_careless_user(link / "data"):
        pass


def test_a_data_directory_that_others_can_read(tmp_path: Path) -> None:
    """It stays as it is; what is in it is closed."""
    (tmp_path / "data/v1").mkdir(parents=True)
    for path in (tmp_path / "data", tmp_path / "data/v1"):
        path.chmod(0o755)
    with portal_of_careless_user(tmp_path / "data"):
        pass
    assert _too_wide(tmp_path / "data") == [tmp_path / "data"]


@as_root
def test_a_data_directory_of_somebody_else(tmp_path: Path) -> None:
    """It is refused, and so is one by way of somebody's link."""
    foreign, own, link = (tmp_path / name for name in ("foreign", "own", "link"))
    for path in (foreign, own):
        path.mkdir(0o700)
    os.chown(foreign, _NOBODY, _NOBODY)
    said = _refused("--data", foreign)
    assert f"{foreign} cannot be used: it belongs to another user (uid 65534)" in said
    link.symlink_to(own)
    with portal_of_careless_user(link):
        pass
    os.chown(link, _NOBODY, _NOBODY, follow_symlinks=False)
    assert f"{link} belongs to another user (uid 65534)" in _refused("--data", link)
    assert list(foreign.iterdir()) == []


def test_a_lock_that_leads_elsewhere(tmp_path: Path) -> None:
    """A link in the place of a file is not followed."""
    data = tmp_path / "data"
    data.mkdir(0o700)
    (data / "lock").symlink_to(tmp_path / "elsewhere")
    assert "data directory" in _refused("--data", data)
    assert not (tmp_path / "elsewhere").exists()


@as_root
def test_files_of_somebody_else(tmp_path: Path) -> None:
    """Neither a password nor skykeys are taken from them."""
    data = tmp_path / "data"
    data.mkdir(0o700)
    secret, keys = tmp_path / "secret", data / "skykeys.json"
    secret.write_text("password")
    keys.write_text('{"version":1,"skykeys":[]}')
    for path in (secret, keys):
        path.chmod(0o600)
        os.chown(path, _NOBODY, _NOBODY)
    expected = "cannot be used: it belongs to another user (uid 65534)"
    assert f"password file {secret} {expected}" in _refused("--password-file", secret)
    assert expected in _refused("--data", data)
