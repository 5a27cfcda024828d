"""The synchronous client: the same calls, from any thread, and no thread that outlives its use."""

import asyncio
import gc
import inspect
import os
import pickle
import pydoc
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio

from skymount.errors import MalformedError, NotFoundError, PortalError, WrongTypeError
from skymount.portal.client.client import PortalClient
from skymount.portal.client.offline import gen_key_pair_and_seed
from skymount.portal.client.registry import Registry, RegistryEntry
from skymount.portal.client.skydb import SkyDB
from skymount.portal.client.sync import SyncPortalClient, SyncRegistry, SyncSkyDB
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import noise, of_files
from tests.portal_process import PortalProcess, portal_environment

SMALL = of_files({"a.txt": b"hello"})
CONTENT = "^GET /(?!svc/)"
CALLS = "^(GET|POST) /(?!svc/basesector/)"

_END = 20  # seconds until a process or thread that was asked to end counts as hanging


@pytest.fixture
def fakes() -> Iterator[FakePortal]:
    """A portal that misbehaves on demand."""
    with in_thread(FakePortal()) as running:
        running.add(SMALL)
        yield running


def threads() -> int:
    """Count the threads of clients."""
    return sum(thread.name == "skymount-client" for thread in threading.enumerate())


def public(owner: type) -> set[str]:
    """Return the names of what a class offers."""
    return {name for name in dir(owner) if not name.startswith("_")}


# --- the same calls


@pytest.mark.parametrize(
    ("waiting", "owner"),
    [(SyncPortalClient, PortalClient), (SyncRegistry, Registry), (SyncSkyDB, SkyDB)],
)
def test_every_call_is_there(waiting: type, owner: type):
    """Each public coroutine has a counterpart that is none, with its signature and its words."""
    found = 0
    for name in public(owner) - {"aclose"}:  # `close` here
        member = getattr(owner, name)
        if inspect.iscoroutinefunction(member):
            counterpart = getattr(waiting, name)
            assert not inspect.iscoroutinefunction(counterpart)
            assert inspect.signature(counterpart) == inspect.signature(member)
            assert counterpart.__doc__ == member.__doc__
            found += 1
    assert found >= 3


def test_types(tmp_path: Path):
    """A type checker knows the arguments and the results, and finds misspelt names."""
    file = tmp_path / "uses.py"
    file.write_text(
        "from skymount.portal import SyncPortalClient\n"
        "client = SyncPortalClient()\n"
        "reveal_type(client.upload_file(b'', custom_filename='f', timeout=1).skylink)\n"
        "reveal_type(client.registry.get_entry('k', 'd'))\n"
        "reveal_type(client.get_skylink_url('l'))\n"
        "client.nosuch()\n"
        "client.upload_file(b'', custom_filenam='f')\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", file]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines()[:-1]]
    assert lines[:3] == [
        'note: Revealed type is "skymount.wire.skylink.Skylink"',
        'note: Revealed type is "skymount.portal.client.registry.EntryResult"',
        'note: Revealed type is "str"',
    ]
    assert [line.partition("[")[2] for line in lines[3:]] == ["attr-defined]", "call-arg]"]


def test_everything_else_is_there():
    """So has everything else but what makes sense in a trio program only."""
    missing = public(PortalClient) - public(SyncPortalClient)
    assert missing == {"aclose", "node", "of", "open_range"}
    assert public(Registry) == public(SyncRegistry)
    assert public(SkyDB) == public(SyncSkyDB)


def test_help():
    """help() shows the calls with their arguments."""
    text = pydoc.plain(pydoc.render_doc(SyncPortalClient))
    assert "upload_file(self,file:" in re.sub(r"[\s|]", "", text)  # Python 3.13 breaks the line
    assert "Upload a file: a path, a binary file object" in text


def test_calls(portal: PortalProcess, tmp_path: Path):
    """Uploads, downloads, URLs, registry and documents work without async."""
    pair = gen_key_pair_and_seed()
    with SyncPortalClient(portal.url) as client:
        result = client.upload_file(b'{"a": 1}', custom_filename="x.json")
        assert client.get_file_content(result.skylink).data == {"a": 1}
        client.download_file(tmp_path / "x", str(result))
        assert (tmp_path / "x").read_bytes() == b'{"a": 1}'
        assert client.get_skylink_url(str(result)) == f"{portal.url}/{result.skylink}"
        client.registry.set_entry(pair.private_key, RegistryEntry("k", b"data", 3))
        entry = client.registry.get_entry(pair.public_key, "k").entry
        assert entry == RegistryEntry("k", b"data", 3)
        assert client.registry.get_entry_url(pair.public_key, "k").startswith(portal.url)
        client.db.set_json(pair.private_key, "doc", {"b": 2})
        assert client.db.get_json(pair.public_key, "doc").data == {"b": 2}
        assert (client.url, client.options.url) == (portal.url, portal.url)
        assert repr(client) == f"SyncPortalClient({portal.url!r})"


def test_errors():
    """Errors are those of the asynchronous client, also when it is made."""
    with pytest.raises(MalformedError):
        SyncPortalClient("nonsense")
    with pytest.raises(WrongTypeError):
        SyncPortalClient(5)  # type: ignore[arg-type]
    assert threads() == 0
    with SyncPortalClient("http://127.0.0.1:1", retries=0) as client:
        with pytest.raises(PortalError, match="cannot be reached"):
            client.get_metadata(SMALL.name)
        with pytest.raises(WrongTypeError):
            client.upload_file(5)
        with pytest.raises(AttributeError):
            client.nothing  # noqa: B018 - it is the access that fails
        with pytest.raises(TypeError):
            client.get_metadata()


def test_default_portal():
    """C1: without an address the default portal is used."""
    with SyncPortalClient() as client, SyncPortalClient("") as other:
        assert client.url == other.url == "http://127.0.0.1:4280"


# --- threads and loops


def test_many_threads(portal: PortalProcess):
    """Several threads share one client; each gets its own answer."""
    with SyncPortalClient(portal.url) as client, ThreadPoolExecutor(8) as pool:

        def there_and_back(number: int) -> bool:
            data = noise(10_000, number)
            result = client.upload_file(data, custom_filename="f")
            return client.get_file_content(result.skylink).data == data

        assert all(pool.map(there_and_back, range(40)))
        assert threads() == 1


def test_the_asynchronous_client_inside_asyncio():
    """It says at once what to use instead."""

    async def cell() -> None:
        async with PortalClient("http://portal.example"):
            pass

    with pytest.raises(RuntimeError, match=r"with asyncio use skymount\.portal\.SyncPortalClient"):
        asyncio.run(cell())


def test_inside_asyncio(fakes: FakePortal):
    """It works in the thread of a running asyncio loop, as in a notebook."""

    async def cell() -> str:
        with SyncPortalClient(fakes.url) as client:
            return client.get_metadata(SMALL.name).skylink

    assert asyncio.run(cell()) == f"svc://{SMALL.name}"


async def test_inside_trio(fakes: FakePortal):
    """And in a task of trio, which waits as any blocking call makes it wait."""
    with SyncPortalClient(fakes.url) as client:
        assert client.get_metadata(SMALL.name).skylink == f"svc://{SMALL.name}"
        found = await trio.to_thread.run_sync(client.get_metadata, SMALL.name)
        assert found.skylink == f"svc://{SMALL.name}"


def test_callbacks(portal: PortalProcess, tmp_path: Path):
    """Callbacks run in the client's thread; they can raise, but neither call nor hang."""
    ran: set[str] = set()
    with SyncPortalClient(portal.url) as client:
        result = client.upload_file(
            b"x",
            custom_filename="f",
            on_upload_progress=lambda *_: ran.add(threading.current_thread().name),
        )
        assert ran == {"skymount-client"}
        with pytest.raises(RuntimeError, match="callback"):
            client.download_file(
                tmp_path / "f", str(result), on_progress=lambda *_: client.get_skykeys()
            )
        for error in (KeyboardInterrupt, SystemExit):

            def fail(*_: object, error: type[BaseException] = error) -> None:
                raise error

            with pytest.raises(error):
                client.download_file(tmp_path / "f", str(result), on_progress=fail)
        assert client.get_file_content(str(result)).data == b"x"
    assert os.listdir(tmp_path) == []


# --- ends


def test_use_after_close(fakes: FakePortal):
    """A closed client says so; closing it again is nothing."""
    with SyncPortalClient(fakes.url) as client:
        db = client.db
    client.close()
    assert threads() == 0
    for call in (lambda: client.get_metadata(SMALL.name), lambda: db.get_json("0" * 64, "k")):
        with pytest.raises(RuntimeError, match="this client is closed"):
            call()
    assert client.get_skylink_url(SMALL.name) == f"{fakes.url}/{SMALL.name}"


def test_closed_during_calls(fakes: FakePortal, tmp_path: Path):
    """Calls that wait when the client is closed raise RuntimeError, and leave nothing behind."""
    fakes.fault(lambda _, reply: fake.Reply(200, (), b"h", length=20, then="stall"), CALLS)
    pair = gen_key_pair_and_seed()
    client = SyncPortalClient(fakes.url)
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(client.get_file_content, SMALL.name),
            pool.submit(client.get_file_content, SMALL.name),
            pool.submit(client.download_file, tmp_path / "f", SMALL.name),
            pool.submit(client.db.set_json, pair.private_key, "k", {}),
        ]
        while len(fakes.asked(CALLS)) < 5:  # one asks for two things at once
            time.sleep(0.001)
        client.close()
        for call in calls:
            with pytest.raises(RuntimeError, match="closed during this call"):
                call.result(_END)
    assert threads() == 0
    assert os.listdir(tmp_path) == []


def test_closed_by_a_callback(portal: PortalProcess):
    """A callback may close the client: its own call ends, and the thread."""
    client = SyncPortalClient(portal.url)
    with pytest.raises(RuntimeError, match="closed during this call"):
        client.upload_file(b"x", custom_filename="f", on_upload_progress=lambda *_: client.close())
    client.close()
    assert threads() == 0


def script(code: str, url: str) -> subprocess.Popen[str]:
    """Run a script in a process of its own; it begins with a client."""
    begin = (
        "import os, signal, sys, threading\n"
        "from skymount.portal.client.sync import SyncPortalClient\n"
        f"client = SyncPortalClient({url!r}, timeout=60)\n"
    )
    return subprocess.Popen(
        # httpx's own generators are left to the collector, as in pyproject.toml
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", begin + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=portal_environment(),
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end of a script; return status, output and errors."""
    try:
        output, errors = process.communicate(timeout=_END)
    finally:
        process.kill()
        process.wait()
    return process.returncode, output, errors


@pytest.mark.parametrize("under_way", [False, True])
def test_exit_without_close(fakes: FakePortal, under_way: bool):
    """A program that ends without closing the client ends, in silence."""
    code = f"print(client.get_metadata({SMALL.name!r}).skylink)\n"
    if under_way:
        fakes.fault(fake.stalls_after(-1), CONTENT)
        code += (
            f"ask = lambda: client.get_file_content({SMALL.name!r})\n"
            "threading.Thread(target=ask, daemon=True).start()\n"
            "sys.stdin.readline()\n"
        )
    process = script(code, fakes.url)
    while under_way and not fakes.asked(CONTENT):
        assert process.poll() is None
        time.sleep(0.001)
    assert outcome(process) == (0, f"svc://{SMALL.name}\n", "")


def test_interrupt(fakes: FakePortal, tmp_path: Path):
    """C13: Ctrl-C ends the call that waits, leaves no file behind, and the client is usable."""
    fakes.fault(fake.stalls_after(1), CONTENT, times=1)
    code = (
        "try:\n"
        f"    client.download_file({str(tmp_path / 'f')!r}, {SMALL.name!r})\n"
        "except KeyboardInterrupt:\n"
        f"    print('interrupted', os.listdir({str(tmp_path)!r}))\n"
        f"print(client.get_metadata({SMALL.name!r}).skylink)\n"
        "client.close()\n"
        "print([t.name for t in threading.enumerate() if 'skymount' in t.name])\n"
    )
    process = script(code, fakes.url)
    while not any(tmp_path.iterdir()) or not fakes.asked(CONTENT):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    assert outcome(process) == (0, f"interrupted []\nsvc://{SMALL.name}\n[]\n", "")


def test_interrupt_that_nobody_catches(fakes: FakePortal, tmp_path: Path):
    """Ctrl-C that is not caught ends the program as it does any other."""
    fakes.fault(fake.stalls_after(1), CONTENT)
    code = f"client.download_file({str(tmp_path / 'f')!r}, {SMALL.name!r})\n"
    process = script(code, fakes.url)
    while not any(tmp_path.iterdir()) or not fakes.asked(CONTENT):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    status, _, errors = outcome(process)
    assert status == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert os.listdir(tmp_path) == []


def test_fork(fakes: FakePortal):
    """A client does not work in a forked child, and says so; the parent's goes on."""
    code = (
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        f"        client.get_metadata({SMALL.name!r})\n"
        "    except RuntimeError as error:\n"
        "        print(error, flush=True)\n"
        "    client.close()\n"
        f"    with SyncPortalClient({fakes.url!r}) as own:\n"
        f"        print(own.get_metadata({SMALL.name!r}).skylink, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        f"print(client.get_metadata({SMALL.name!r}).skylink)\n"
    )
    link = f"svc://{SMALL.name}\n"
    words = "this client was made before a fork: make one in this process\n"
    assert outcome(script(code, fakes.url)) == (0, words + link + link, "")


def test_client_that_is_dropped(fakes: FakePortal):
    """A client that nobody refers to any more ends its thread; its parts keep it."""
    db = SyncPortalClient(fakes.url).db
    client = SyncPortalClient(fakes.url)
    client.get_metadata(SMALL.name)
    assert threads() == 2
    assert db.get_json(gen_key_pair_and_seed().public_key, "k").data is None
    running = [thread for thread in threading.enumerate() if thread.name == "skymount-client"]
    del db, client
    gc.collect()
    for thread in running:
        thread.join(_END)
    assert threads() == 0


def test_many_clients_one_after_another(fakes: FakePortal):
    """No thread and no descriptor stays behind a client."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        with SyncPortalClient(fakes.url) as client, pytest.raises(NotFoundError):
            client.get_metadata(of_files({"no": b""}).name)
    assert threads() == 0
    deadline = time.monotonic() + _END
    while len(os.listdir("/proc/self/fd")) > before:  # the portal's ends are in this process too
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_pickling_says_what_to_do() -> None:
    with (
        SyncPortalClient("http://127.0.0.1:9") as client,
        pytest.raises(TypeError, match="pass its address and options on"),
    ):
        pickle.dumps(client)


def test_help_of_the_package_lists_what_is_public() -> None:
    import skymount

    text = pydoc.plain(pydoc.render_doc(skymount))
    for name in ("class Path", "listdir(", "open("):
        assert name in text


GEVENT = """
import sys
from gevent import monkey
monkey.patch_all(**eval(sys.argv[1]))
from skymount.portal import SyncPortalClient
try:
    with SyncPortalClient(sys.argv[2]) as client:
        print(client.get_metadata(sys.argv[3]).skylink)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("patches", "patched"),
    [
        ("{}", "select and threading"),
        ("{'select': False}", "threading"),
        ("{'thread': False}", "select"),
        ("{'select': False, 'thread': False}", ""),
    ],
)
def test_gevent(fakes: FakePortal, patches: str, patched: str) -> None:
    """Its patches that keep trio from running are refused, in place of a hang."""
    done = subprocess.run(
        [sys.executable, "-c", GEVENT, patches, fakes.url, SMALL.name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout.strip()
    if not patched:
        assert said.endswith(SMALL.name), done.stderr
        return
    assert "a client needs the real modules select and threading" in said, done.stderr
    assert said.endswith("use monkey.patch_all(select=False, thread=False)")
    assert f"has patched {patched}: " in said
