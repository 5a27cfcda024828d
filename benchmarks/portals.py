"""Measures how late a mount is while one of two portals fails, and what an outage of the only one
costs. What passes is the portals' own, but for what `tests.chaos.fault_proxy` does to it.
"""

import math
import os
import pty
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine, mounts, proxy
from benchmarks.figures import Figure, Group, Round
from benchmarks.mounts import Mounted
from benchmarks.plan import QUICK, Plan
from skymount.errors import SkymountError
from skymount.keyring import Keyring
from skymount.portal import SyncPortalClient
from skymount.portal.client.registry import RegistryEntry
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import entry_link, hash_data_key
from skymount.wire.skylink import Skylink
from tests.chaos.fault_proxy import FaultProxies, ProxyConfig, fault_proxies
from tests.chaos.faults import STEADY
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import noise
from tests.portal_process import PortalProcess, portal_process

_FILES = 80
_SIZE = 256 << 10
_CHUNK = 4 << 20
_LATER = 12  # operations after the first one
_PAUSE = 0.3  # seconds between two: a portal that failed is tried again meanwhile
_FIRST_LATE, _LATER_LATE = 2.0, 0.3  # seconds: what semantics.md promises (R11, R12)
_KEY = "home"
_OWNER = SigningKeyPair.from_seed("insecure: entries of the benchmarks")
_OF_UPLOADS = ("wrong skylink",)

_CROWD = 60
_HANGING = replace(
    skyfiles.of_files({f"{n:02}": noise(_SIZE, n) for n in range(_CROWD)}), base=None
)
_LATER_LOOK = 1.0  # seconds after which the portals are asked for entries again
_REPAIRED = 30.0  # seconds in which a portal that was behind is to have the newest entry
_TIMEOUT = 10.0  # seconds: `timeout` where an operation is to wait for all of it
_AWAY = 2.0  # seconds of a restart
_WRITES, _SHARE = 200, 0.3
_BACK = 60.0  # seconds in which a portal that works again is to be used


@dataclass
class Pair:
    """Two portals with the same content, each behind a proxy."""

    portals: Sequence[PortalProcess]
    proxies: FaultProxies
    small: Sequence[Skylink]
    large: Skylink

    @property
    def names(self) -> Sequence[Skylink]:
        """v2 skylinks that lead to a small file."""
        return [entry_link(_OWNER.public_key, hash_data_key(f"{n}")) for n in range(_LATER + 1)]

    def put(self, pair: SigningKeyPair, name: str, data: bytes) -> None:
        for portal in self.portals:
            with SyncPortalClient(portal.url) as client:
                client.registry.set_entry(pair.private_hex, RegistryEntry(name, data, 0))


@contextmanager
def _pair(home: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        portals = [stack.enter_context(portal_process(home / f"portal-{n}")) for n in "ab"]
        configs = [ProxyConfig(_port(each.url)) for each in portals]
        proxies = stack.enter_context(fault_proxies(configs, lambda _: None))
        stored = [_filled(portal.url) for portal in portals]
        found = Pair(portals, proxies, *stored[0])
        for number in range(_LATER + 1):
            found.put(_OWNER, f"{number}", bytes(found.small[0]))
        yield found


def _filled(url: str) -> tuple[list[Skylink], Skylink]:
    """Upload all content to a portal."""
    with SyncPortalClient(url) as client:

        def upload(content: bytes) -> Skylink:
            return client.upload_file(content, custom_filename="f").skylink

        return [upload(noise(_SIZE, n)) for n in range(_FILES)], upload(_large())


@cache
def _large() -> bytes:
    return noise(_CHUNK * (_LATER + 1), 77)


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


@contextmanager
def _mount(plan: Plan, *portals: str, env: dict[str, str]) -> Iterator[Mounted]:
    words = [word for portal in portals for word in ("--portal", portal)]
    command = (*machine.SKYMOUNT, "mount", "--foreground", "MOUNTPOINT", *words)
    with mounts.mounted(plan.work, *command, env=env) as found:
        yield found


@contextmanager
def _new_home(plan: Plan, **settings: str) -> Iterator[dict[str, str]]:
    with TemporaryDirectory(prefix="home-", dir=plan.work) as home:
        yield mounts.environment(Path(home), **settings)


def _add_key(env: dict[str, str]) -> SigningKeyPair:
    pair = SigningKeyPair.from_seed(f"insecure {os.urandom(8).hex()}")
    Keyring(Path(env["XDG_DATA_HOME"]) / "skymount/keys").add(_KEY, pair)
    return pair


def _expect(is_so: bool, what: str) -> None:
    if not is_so:
        raise machine.BenchmarkError(what)


# --- one of two portals fails: what is done


def _read(pair: Pair, place: Path, number: int) -> None:
    found = (place / "skylinks" / pair.small[number] / "f").read_bytes()
    _expect(found == noise(_SIZE, number), "a wrong byte was read")


def _read_chunk(pair: Pair, place: Path, number: int) -> None:
    with (place / "skylinks" / pair.large / "f").open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        found = os.pread(file.fileno(), 4096, number * _CHUNK)
    start = number * _CHUNK
    _expect(found == _large()[start : start + 4096], "a wrong byte was read")


def _look_up(pair: Pair, place: Path, number: int) -> None:
    size = (place / "skylinks" / pair.names[number] / "f").stat().st_size
    _expect(size == _SIZE, "a name leads elsewhere")


def _read_entry(pair: Pair, place: Path, number: int) -> None:
    found = (place / "registry" / _OWNER.public_hex / f"{number}").read_bytes()
    _expect(found == bytes(pair.small[0]), "a wrong entry was read")


def _write_entry(column: str, _: Pair, place: Path, number: int) -> None:
    name, data = _WRITTEN[column](number)
    (place / "registry" / _KEY / name).write_bytes(data)


def _write_document(_: Pair, place: Path, number: int) -> None:
    (place / "skydb" / _KEY / f"{number}.json").write_text(f'{{"number": {number}}}')


_OPERATIONS: dict[str, Callable[[Pair, Path, int], None]] = {
    "small file": _read,
    "chunk of a file": _read_chunk,
    "v2 skylink": _look_up,
    "entry, read": _read_entry,
    "entry, new": partial(_write_entry, "entry, new"),
    "entry, again": partial(_write_entry, "entry, again"),
    "document": _write_document,
}
_WRITTEN: dict[str, Callable[[int], tuple[str, bytes]]] = {
    "entry, new": lambda number: (f"new-{number}", b"x"),
    "entry, again": lambda number: ("again", b"%d" % number),
}
_UPLOAD = "`upload`"
_COLUMNS = (*_OPERATIONS, _UPLOAD)


# --- and how late that is


@contextmanager
def prepare_portals(plan: Plan) -> Iterator[Round]:
    with TemporaryDirectory(prefix="portals-", dir=plan.work) as home, _pair(Path(home)) as pair:
        yield partial(_portals, plan, pair)


def _portals(plan: Plan, pair: Pair) -> Iterator[Figure]:
    good = _measured(plan, pair, _COLUMNS)
    for column, took in good.items():
        for what, seconds in zip(("first", "median", "worst"), _told(took), strict=True):
            yield Figure(f"both are good: seconds | {column} | {what}", (seconds,), "s")
    usual = {column: (took[0], statistics.median(took[1:])) for column, took in good.items()}
    for fault in STEADY:
        columns = ("document", _UPLOAD) if fault in _OF_UPLOADS else _COLUMNS
        pair.proxies.set_mode(0, fault)
        try:
            found = _measured(plan, pair, columns)
        finally:
            pair.proxies.set_mode(0, "")
        for column, took in found.items():
            first, later = usual[column]
            is_new = column == _UPLOAD  # each command meets it for the first time
            aim = _FIRST_LATE if is_new else _LATER_LATE
            late = [took[0] - first, *(each - later for each in took[1:])]
            for what, seconds, at_most in zip(
                ("first", "median", "worst"), _told(late), (_FIRST_LATE, aim, aim), strict=True
            ):
                yield Figure(f"{fault} | {column} | {what}", (seconds,), "s", at_most=at_most)


def _told(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return the first one, the median and the most of the others; hundredths."""
    later = seconds[1:]
    found = seconds[0], statistics.median(later), max(later)
    first, median, worst = (each if math.isinf(each) else round(max(each, 0), 2) for each in found)
    return first, median, worst


def _measured(plan: Plan, pair: Pair, columns: Sequence[str]) -> dict[str, list[float]]:
    """Do everything with new mounts, beside each other; return the seconds of each operation."""
    ready = threading.Barrier(len(columns), timeout=120)
    with ThreadPoolExecutor(len(columns)) as threads:
        futures = {
            column: threads.submit(_series, plan, pair, column, ready.wait) for column in columns
        }
        return {column: future.result() for column, future in futures.items()}


def _series(plan: Plan, pair: Pair, column: str, wait: Callable[[], object]) -> list[float]:
    count = 2 if plan.sizes is QUICK else _LATER
    with _new_home(plan) as env:
        if column == _UPLOAD:
            wait()
            return [_uploaded(pair, env, number) for number in range(2 + count // 4)]
        key = _add_key(env)
        pair.put(key, "again", b"before")
        with _mount(plan, *pair.proxies.urls, env=env) as mounted:
            wait()
            found = []
            for number in range(count + 1):
                found.append(_try(partial(_OPERATIONS[column], pair, mounted.place, number)))
                time.sleep(_PAUSE)
        check = partial(_check_written, pair, column, key.public_hex, count)
        return [*found[:-1], max(found[-1], 0.0 if _try(check) < math.inf else math.inf)]


def _check_written(pair: Pair, column: str, key: str, number: int) -> None:
    """BenchmarkError unless the portal that is good has what was written last."""
    with SyncPortalClient(pair.portals[1].url) as client:
        if column == "document":
            found = client.db.get_json(key, f"{number}").data
            _expect(found == {"number": number}, "a document was not written")
        elif column in _WRITTEN:
            name, data = _WRITTEN[column](number)
            entry = client.registry.get_entry(key, name).entry
            _expect(entry is not None and entry.data == data, "an entry was not written")


def _uploaded(pair: Pair, env: dict[str, str], number: int) -> float:
    """Return the seconds of an upload; without end if its skylink is a wrong one."""
    file = Path(env["XDG_CACHE_HOME"]) / "file"
    file.write_bytes(noise(_SIZE, 1000 + number))
    words = [word for url in pair.proxies.urls for word in ("--portal", url)]
    told: list[str] = []
    took = _try(
        lambda: told.append(machine.run(*machine.SKYMOUNT, "upload", file, *words, env=env))
    )
    with SyncPortalClient(pair.portals[1].url) as client:
        right = client.upload_file(file).skylink
    return took if told and right in told[0] else math.inf


def _try(work: Callable[[], object]) -> float:
    """Return the seconds that something takes; without end if it fails."""
    begun = time.perf_counter()
    try:
        work()
    except (OSError, SkymountError, machine.BenchmarkError) as error:
        took = time.perf_counter() - begun
        print(f"  failed after {took:.1f} s: {error}", file=sys.stderr)
        return math.inf
    return time.perf_counter() - begun


# --- the only portal fails


@contextmanager
def prepare_outages(plan: Plan) -> Iterator[Round]:
    with TemporaryDirectory(prefix="portals-", dir=plan.work) as home, _pair(Path(home)) as pair:
        yield partial(_outages, plan, pair)


def _outages(plan: Plan, pair: Pair) -> Iterator[Figure]:
    yield from _silent(plan, pair)
    yield from _restart(plan, pair)
    yield from _slow(plan, pair)
    yield from _command(plan, pair)
    yield from _hanging(plan)
    yield from _back(plan, pair)
    yield from _at_random(plan, pair)
    yield from _newest(plan, pair.portals)
    yield from _stopped(plan, pair.portals)


def _seconds(name: str, took: float, aim: float | None = None) -> Figure:
    return Figure(name, (took,), "s", at_most=aim)


def _silent(plan: Plan, pair: Pair) -> Iterator[Figure]:
    """The only portal is silent, and then works again."""
    title = f"the only portal silent, timeout {_TIMEOUT:g} s"
    with (
        _new_home(plan, SKYMOUNT_TIMEOUT=f"{_TIMEOUT:g}") as env,
        _mount(plan, pair.proxies.urls[0], env=env) as mounted,
    ):
        place = mounted.place
        _read(pair, place, 0)
        pair.proxies.set_mode(0, "silent")
        try:
            with ThreadPoolExecutor() as threads:
                firsts = [
                    threads.submit(_ended, partial(work, pair, place, 1))
                    for work in (_read, _read_chunk, _look_up, _read_entry)
                ]
                cached = []
                while not all(each.done() for each in firsts):
                    _drop_pages(place / "skylinks" / pair.small[0] / "f")
                    cached.append(machine.timed(_read, pair, place, 0))
                    time.sleep(_PAUSE)
            took = max(each.result() for each in firsts)
            later = [
                _ended(partial(work, pair, place, number))
                for number in (2, 3)
                for work in (_read, _look_up, _read_entry)
            ]
        finally:
            pair.proxies.set_mode(0, "")
        yield _seconds(f"{title}: a file in memory, slowest", max(cached), 0.3)
        yield _seconds(f"{title}: first operations end", took, _TIMEOUT + 1)
        yield _seconds(f"{title}: slowest of {len(later)} later ones ends", max(later), 0.3)
        yield _seconds(f"{title}: until a read works again", _until_read(pair, place, 4), 5.0)


def _ended(work: Callable[[], None]) -> float:
    """Return the seconds until something ends, well or not."""
    begun = time.perf_counter()
    with suppress(OSError):
        work()
    return time.perf_counter() - begun


def _drop_pages(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _until_read(pair: Pair, place: Path, number: int) -> float:
    begun = time.perf_counter()

    def is_read() -> bool:
        with suppress(OSError):
            _read(pair, place, number)
            return True
        return False

    machine.wait_until(is_read, "the mount works again", _BACK)
    return time.perf_counter() - begun


def _restart(plan: Plan, pair: Pair) -> Iterator[Figure]:
    """A program reads one file after the other while the only portal restarts, twice."""
    failed = 0
    outages = (5, _FILES // 2)  # before these files
    with _new_home(plan) as env, _mount(plan, pair.proxies.urls[0], env=env) as mounted:
        begun = time.perf_counter()
        back = threading.Timer(_AWAY, pair.proxies.set_mode, (0, ""))
        for number in range(_FILES):
            if number in outages:
                pair.proxies.set_mode(0, "refuse")
                back = threading.Timer(_AWAY, pair.proxies.set_mode, (0, ""))
                back.start()
            try:
                _read(pair, mounted.place, number)
            except OSError:
                failed += 1
            if number + 1 in (outages[1], _FILES):
                back.join()
        took = time.perf_counter() - begun
    title = f"{_FILES} new files, the only portal away twice for {_AWAY:g} s"
    yield Figure(f"{title}: files that fail", (float(failed),), at_most=0)
    yield _seconds(f"{title}: until all were tried", took)


def _slow(plan: Plan, pair: Pair) -> Iterator[Figure]:
    """One read takes longer than the time-out."""
    with (
        proxy.distance(_port(pair.portals[0].url), plan.work / "proxy.log", rate=300e3) as slow,
        _new_home(plan, SKYMOUNT_TIMEOUT=f"{_TIMEOUT:g}") as env,
        _mount(plan, slow.url, env=env) as mounted,
    ):
        path = mounted.place / "skylinks" / pair.large / "f"

        def read() -> None:
            with path.open("rb", buffering=0) as file:
                os.pread(file.fileno(), 1 << 20, 0)

        path.stat()
        title = f"a portal at 300 KB/s, timeout {_TIMEOUT:g} s: one pread of 1 MiB ends"
        yield _seconds(title, _ended(read), _TIMEOUT + 1)


def _command(plan: Plan, pair: Pair) -> Iterator[Figure]:
    """A command of which the only portal is silent."""
    pair.proxies.set_mode(0, "silent")
    with _new_home(plan, SKYMOUNT_TIMEOUT=f"{_TIMEOUT:g}") as env:
        command = (*machine.SKYMOUNT, "ls", pair.small[0], "--portal", pair.proxies.urls[0])
        log = plan.work / "command.log"
        master, slave = pty.openpty()
        begun = time.perf_counter()
        with (
            open(master, "rb", buffering=0) as terminal,
            open(slave, "wb", buffering=0) as at,
            machine.process(*command, log=log, env=env, stdout=at, stderr=at) as ls,
        ):
            terminal.read(1)
            said = time.perf_counter() - begun
            ls.wait()
            took = time.perf_counter() - begun
    pair.proxies.set_mode(0, "")
    title = f"`skymount ls`, the only portal silent, timeout {_TIMEOUT:g} s"
    yield _seconds(f"{title}: until it says anything", said, 3.0)
    yield _seconds(f"{title}: until it ends", took, _TIMEOUT + 2)


def _hanging(plan: Plan) -> Iterator[Figure]:
    """Read a file that is on disk while many reads wait for a portal that falls silent."""
    small = skyfiles.of_files({"f": noise(_SIZE, 1)})
    with in_thread(FakePortal()) as portal, _new_home(plan, SKYMOUNT_TIMEOUT="60") as env:
        portal.add(small, _HANGING)
        cached = f"skylinks/{small.name}/f"
        with _mount(plan, portal.url, env=env) as mounted:
            (mounted.place / cached).read_bytes()
        with _mount(plan, portal.url, env=env) as mounted:
            directory = mounted.place / "skylinks" / _HANGING.name
            machine.run("stat", mounted.place / cached, directory / "00")
            portal.fault(fake.stalls_after(-1))
            crowd = [
                subprocess.Popen(
                    ("cat", directory / f"{number:02}"),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                for number in range(_CROWD)
            ]
            try:
                time.sleep(_LATER_LOOK)
                took = machine.timed((mounted.place / cached).read_bytes)
            finally:
                for each in crowd:
                    machine.end(each)
    is_raised = machine.IS_ROOT and any(Path("/sys/fs/fuse/connections").iterdir())
    limit, aim = (256, 1.0) if is_raised else (12, 6.0)
    title = f"a file on disk, while {_CROWD} reads hang, of {limit} that the kernel sends"
    yield _seconds(title, took, aim)


def _back(plan: Plan, pair: Pair) -> Iterator[Figure]:
    """The first of two portals failed for a while: when it is used again."""
    numbers = iter(range(_FILES))
    with _new_home(plan) as env:
        key = _add_key(env).public_hex
        with _mount(plan, *pair.proxies.urls, env=env) as mounted:
            place = mounted.place

            def describer() -> str:
                """Read a new file; return the portal that described it."""
                number = next(numbers)
                _read(pair, place, number)
                name = place / "skylinks" / pair.small[number]
                return os.getxattr(name, "user.skymount.portal").decode()

            pair.proxies.set_mode(0, "503")
            for number in range(int(_TIMEOUT)):
                describer()
                (place / "registry" / _KEY / "x").write_bytes(b"%d" % number)
                time.sleep(_LATER_LOOK)
            pair.proxies.set_mode(0, "")
            begun = time.perf_counter()
            with SyncPortalClient(pair.portals[0].url) as client:

                def has_last() -> bool:
                    entry = client.registry.get_entry(key, "x").entry
                    return entry is not None and entry.data == b"%d" % number

                machine.wait_until(has_last, "the entry reaches the first portal", _BACK)
                owed = time.perf_counter() - begun
            while describer() != pair.proxies.urls[0]:
                time.sleep(_LATER_LOOK)
            used = time.perf_counter() - begun
    title = f"the first of two portals works again after {_TIMEOUT:g} s of 503"
    yield _seconds(f"{title}: until it has what was written", owed)
    yield _seconds(f"{title}: until it is used", used, _BACK)


def _at_random(plan: Plan, pair: Pair) -> Iterator[Figure]:
    """Entries are written while a share of all requests to the first of two portals fails."""
    with _new_home(plan) as env:
        _add_key(env)
        with _mount(plan, *pair.proxies.urls, env=env) as mounted:
            place = mounted.place / "registry" / _KEY
            pair.proxies.set_mode(0, "mixed", share=_SHARE, seed=7)
            try:
                took = [
                    _try(partial((place / f"{number % 20}").write_bytes, b"%d" % number))
                    for number in range(_WRITES)
                ]
            finally:
                pair.proxies.set_mode(0, "")
    title = f"{_WRITES} writes, the first of two portals fails {_SHARE:.0%} of requests"
    yield _seconds(f"{title}: median", statistics.median(took), 0.2)
    yield _seconds(f"{title}: 99 of 100 within", sorted(took)[_WRITES * 99 // 100 - 1], 3.0)


def _newest(plan: Plan, portals: Sequence[PortalProcess]) -> Iterator[Figure]:
    """The first portal has an older revision of an entry than the second one."""
    first, second = (portal.url for portal in portals)
    with _new_home(plan) as env:
        key = _add_key(env).public_hex
        for portal, texts in ((first, ["0"]), (second, ["1", "2", "3", "4"])):
            with _mount(plan, portal, env=env) as mounted:
                for text in texts:
                    (mounted.place / "registry" / _KEY / "behind").write_text(text)
        with _mount(plan, first, second, env=env) as mounted:
            begun = time.perf_counter()
            found = (mounted.place / "registry" / _KEY / "behind").read_text()
            _expect(found == "4", "an old revision was read")
            title = "an entry of which the first portal has an old revision: read"
            yield _seconds(title, time.perf_counter() - begun)
            with SyncPortalClient(first) as client:
                machine.wait_until(
                    lambda: (
                        (entry := client.registry.get_entry(key, "behind").entry) is not None
                        and entry.data == b"4"
                    ),
                    "the first portal has the newest entry",
                    _REPAIRED,
                )
            took = time.perf_counter() - begun
            yield _seconds("until the first portal has the newest one", took)


def _stopped(plan: Plan, portals: Sequence[PortalProcess]) -> Iterator[Figure]:
    """Entries of a portal that is stopped by a signal, with a second portal that lacks them."""
    first, second = portals
    for count, others, aims in ((3, [second.url], (3.0, 0.3)), (5, [], (31.0, 0.3))):
        with _new_home(plan) as env:
            _add_key(env)
            with _mount(plan, first.url, env=env) as mounted:
                for number in range(count):
                    (mounted.place / "registry" / _KEY / f"{number}").write_text("x")
            with _mount(plan, first.url, *others, env=env) as mounted:
                first.process.send_signal(signal.SIGSTOP)
                try:
                    title = f"`ls -l` of {count} entries, " + (
                        "first portal stopped, second says 404" if others else "one stopped portal"
                    )
                    for when, aim in zip(("", ", again"), aims, strict=True):
                        took = machine.timed(_list, f"{mounted.place}/registry/{_KEY}/")
                        yield _seconds(f"{title}{when}", took, aim)
                        time.sleep(_LATER_LOOK)
                finally:
                    first.process.send_signal(signal.SIGCONT)


def _list(directory: str) -> None:
    subprocess.run(("ls", "-l", directory), capture_output=True, check=False)


GROUPS = [
    Group(
        "portals",
        "Several portals, of which one fails",
        "Two embedded portals with the same content; the first one misbehaves in one way, from "
        "before the mount on. Each cell is a mount of its own: how many seconds later than with "
        "two good portals the first operation ends, then the median and the worst of "
        f"{_LATER} more, {_PAUSE:g} s apart (of {1 + _LATER // 4} more commands for `upload`, each "
        "of which meets the portal for the first time). `inf`: failed, or wrong. Aims: at most "
        f"{_FIRST_LATE:g} s, later ones {_LATER_LATE:g} s; bold ones are missed. Read are files of "
        f"{_SIZE >> 10} KiB, chunks of 4 MiB of one file, names and entries that were never read; "
        "written are entries and documents of an own key.",
        prepare_portals,
        (),
        _COLUMNS,
    ),
    Group(
        "outages",
        "The only portal is away, silent or slow",
        "Embedded portals; entries of two portals that differ.",
        prepare_outages,
        (),
    ),
]
