"""Sessions: one thread for each set of options, which comes and goes unnoticed."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import skymount
from skymount.file_api.location import Location
from skymount.file_api.options import ChosenOptions, Settings
from skymount.file_api.session import Session
from skymount.file_api.sessions import SESSIONS, Sessions
from skymount.settings import Config
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import FakeSkyfile, noise, of_files
from tests.file_api.conftest import FILES

_END = 30.0  # seconds in which something must have happened


def threads() -> int:
    return sum(thread.name == "skymount-session" for thread in threading.enumerate())


def until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _END
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def look(sessions: Sessions, site: FakeSkyfile, options: ChosenOptions) -> int:
    settings = options.settings()
    location = Location(site.skylink)

    async def count(session: Session) -> int:
        return len((await session.find(location.root)).tree)

    return sessions.run(settings, count, location)


def test_a_session_ends_when_it_is_idle(site: FakeSkyfile) -> None:
    """P7: it ends after some time without use, and opens again."""
    sessions = Sessions(idle=0.2)
    rows = look(sessions, site, ChosenOptions())
    assert (len(sessions), threads()) == (1, 1)
    until(lambda: threads() == 0)
    assert len(sessions) == 0
    assert look(sessions, site, ChosenOptions()) == rows
    sessions.close()
    assert threads() == 0


def test_no_more_than_some_stay_open(site: FakeSkyfile) -> None:
    """P7: each set of options has a thread; at most so many stay open."""
    sessions = Sessions(most=2)
    sets = [ChosenOptions.parse(disk_cache=size << 20) for size in range(100, 106)]
    for options in sets:
        look(sessions, site, options)
        look(sessions, site, sets[0])
        assert threads() <= 2
    assert list(sessions._slots) == [sets[-1].settings(), sets[0].settings()]
    sessions.close()
    assert threads() == 0


def test_those_in_use_stay_open(site: FakeSkyfile, fake: FakePortal) -> None:
    """P7: unless more are in use."""
    sessions = Sessions(most=1)
    slow = of_files({"slow": b"x"})
    fake.add(slow)
    fake.fault(faults.waits(1.0), slow.name)
    sets = [ChosenOptions.parse(disk_cache=size << 20) for size in range(100, 103)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda options: look(sessions, slow, options), sets))
    assert found == [2, 2, 2]
    look(sessions, site, sets[0])
    assert len(sessions) == threads() == 1
    sessions.close()


def test_an_open_file_does_not_notice(fake: FakePortal) -> None:
    """P7: its next read opens what it needs."""
    large = of_files({"f": noise(3 << 20)})
    fake.add(large)
    with skymount.open(f"{large.name}/f") as file:
        assert file.read(1000) == large.payload[:1000]
        SESSIONS.close()
        assert threads() == 0
        assert file.read() == large.payload[1000:]


def test_a_changed_environment_counts_at_once(fake: FakePortal, home: Path) -> None:
    """P6: for what is opened or looked up from then on; what is open stays with its portal."""
    old, new = of_files({"f": noise(9 << 20)}), of_files({"f": b"new"})
    fake.add(old)
    file = home / "config/skymount/config.toml"
    file.parent.mkdir(parents=True)
    with in_thread(FakePortal()) as other, pytest.MonkeyPatch.context() as patch:
        other.add(new)
        with skymount.open(f"{old.name}/f") as opened:
            assert opened.read(1000) == old.payload[:1000]
            patch.setenv("SKYMOUNT_PORTALS", other.url)
            assert skymount.open(f"{new.name}/f").read() == b"new"
            assert opened.read() == old.payload[1000:]
        patch.delenv("SKYMOUNT_PORTALS")
        for portal, found in ((fake, old), (other, new)):
            file.write_text(f'portals = ["{portal.url}"]\ndisk_cache = "off"\n')
            assert skymount.listdir(found.name) == ["f"]
        with pytest.raises(FileNotFoundError):
            skymount.listdir(old.name)


def test_a_configuration_that_became_wrong_is_said_at_once(site: FakeSkyfile, home: Path) -> None:
    """P3, P6: also when a session is in use; it counts again once it is right."""
    assert skymount.listdir(site.name)
    file = home / "config/skymount/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('verify = "perhaps"\n')
    for _ in range(2):
        with pytest.raises(ValueError, match="verify must be one of"):
            skymount.listdir(site.name)
    file.unlink()
    assert skymount.listdir(site.name)


@pytest.mark.parametrize("name", ["https_proxy", "NO_PROXY", "SSL_CERT_FILE", "XDG_CACHE_HOME"])
def test_a_changed_variable_needs_a_new_session(name: str, tmp_path: Path) -> None:
    """P6: also one that is not of the configuration."""
    before = ChosenOptions().settings()
    assert ChosenOptions().settings() is before
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, str(tmp_path))
        assert ChosenOptions().settings() != before
    assert ChosenOptions().settings() == before


def test_settings_of_portals_with_tables(home: Path) -> None:
    """P6: they can be told apart by what a table says."""
    file = home / "config/skymount/config.toml"
    file.parent.mkdir(parents=True)
    found = set()
    for key in ("a", "b"):
        file.write_text(f'[[portals]]\nurl = "http://portal.example"\napi_key = "{key}"\n')
        file.chmod(0o600)
        found.add(ChosenOptions().settings())
    assert len(found) == 2
    assert '"' not in repr(found)


def test_a_session_that_cannot_open() -> None:
    """It is not kept, and what is wrong is said each time."""
    sessions = Sessions()
    wrong = Settings(Config(portals=("nonsense",)))

    async def never(session: Session) -> None:
        raise AssertionError

    for _ in range(2):
        with pytest.raises(ValueError, match="nonsense"):
            sessions.run(wrong, never, "link")
    assert (len(sessions), threads()) == (0, 0)


def test_a_session_whose_thread_has_ended(site: FakeSkyfile) -> None:
    """It is replaced, whatever ended the thread."""
    sessions = Sessions()
    rows = look(sessions, site, ChosenOptions())
    (slot,) = sessions._slots.values()
    assert slot.thread is not None
    slot.thread.stop()
    assert look(sessions, site, ChosenOptions()) == rows
    sessions.close()


def test_dropped_files_are_closed(site: FakeSkyfile) -> None:
    """What nobody closes is closed when it is collected; nothing piles up."""
    for _ in range(3):
        skymount.open(f"{site.name}/d/b.txt", buffering=0).read(1)
    gc.collect()
    (slot,) = SESSIONS._slots.values()
    assert slot.thread is not None
    files = slot.thread.opened._files
    until(lambda: not files)


def test_many_threads(site: FakeSkyfile) -> None:
    """P8: everything can be used by many threads at once."""
    names = [name for name in FILES for _ in range(20)]
    with ThreadPoolExecutor(16) as pool:
        found = pool.map(lambda name: skymount.Path(site.name).joinpath(name).read_bytes(), names)
    assert list(found) == [FILES[name] for name in names]
    assert threads() == 1


def test_a_running_asyncio_loop(site: FakeSkyfile) -> None:
    """P8: as in a notebook."""

    async def cell() -> tuple[bytes, list[str]]:
        direct = skymount.open(f"{site.name}/a.csv").read()
        return direct, await asyncio.to_thread(skymount.listdir, site.name)

    assert asyncio.run(cell()) == (FILES["a.csv"], ["a.csv", "d", "space and %20.txt"])


FORK = """
import os, sys, threading, warnings
import skymount
warnings.simplefilter("ignore")
link = sys.argv[1]
early = skymount.open(link + "/f")
assert early.read(3) == b"abc"
busy = threading.Thread(target=lambda: [skymount.Path(link).exists() for _ in range(300)])
busy.start()
for number in range(3):
    pid = os.fork()
    if not pid:
        assert early.read(3) == b"def"
        assert skymount.open(link + "/f").read() == b"abcdefghi"
        early.close()
        if number:
            os._exit(7)
        sys.exit(7)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
busy.join()
assert early.read() == b"defghi"
print("well")
"""


def test_fork(fake: FakePortal) -> None:
    """P8: a forked process starts afresh: also with files that were opened before the fork."""
    files = of_files({"f": b"abcdefghi", "g": b""})
    fake.add(files)
    done = subprocess.run(
        [sys.executable, "-c", FORK, files.name],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("well\n", 0), done.stderr


def test_the_end_of_a_process(site: FakeSkyfile) -> None:
    """Files that are open, and a thread that reads, hold up nothing and are not complained of."""
    code = (
        "import sys, threading, skymount; f = skymount.open(sys.argv[1] + '/a.csv'); f.read(1)\n"
        "t = threading.Thread(target=lambda: [f.seek(0) for _ in range(10)], daemon=True)\n"
        "t.start()\n"
    )
    command = [sys.executable, "-c", code, site.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_key_is_never_shown() -> None:
    """P6: the `api_key` is in no `repr` and no error."""
    options = ChosenOptions.parse(portals="http://127.0.0.1:9", api_key="hunter2")
    assert "hunter2" not in repr(options)
    assert "hunter2" not in repr(skymount.Path("A" * 46, api_key="hunter2")._files)
    with pytest.raises(ValueError, match="single portal") as caught:
        ChosenOptions.parse(portals=["http://a.example", "http://b.example"], api_key="hunter2")
    assert "hunter2" not in str(caught.value)
