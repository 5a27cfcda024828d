"""Real portals with fault proxies before them, and a real mount of all of them."""

import math
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import httpx
import trustme

from skymount.keyring import Keyring
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import SignedEntry, entry_link, hash_data_key
from tests.chaos.fault_proxy import FaultProxies, ProxyConfig, fault_proxies
from tests.chaos.faults import PROCESS
from tests.chaos.oracle import Posts
from tests.chaos.schedule import Setting, Step
from tests.mount.keys import held
from tests.portal_process import portal_command, portal_environment
from tests.ports import unused_port
from tests.skymount_process import Sandbox, Watched, clear_mounts, read_status

HOME = "home"
DOMAIN = "chaos"
SITE = "site"
_AGENT = {"User-Agent": "skymount chaos", "Content-Type": "application/octet-stream"}


class Backend:
    """A portal's process, always at the same port."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = unused_port()
        self._process = self._started()
        self._wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _started(self) -> "subprocess.Popen[str]":
        address = ("--listen", f"127.0.0.1:{self.port}", "--data", str(self.data))
        return subprocess.Popen(
            portal_command("serve", *address),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=portal_environment(),
        )

    def _wait(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening on http://"), f"the portal did not start: {line!r}"
        self._process.stdout.close()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def heal(self, mode: str) -> None:
        """Let it go on, or start it again."""
        if mode == "stopped":
            self._process.send_signal(signal.SIGCONT)
        else:
            self._process = self._started()
            self._wait()


@dataclass(frozen=True)
class Content:
    """Something at all portals, and where its bytes are."""

    skylink: str
    source: Path
    size: int


@dataclass(frozen=True)
class Pool:
    """What can be read."""

    large: Sequence[Content]
    small: Sequence[Content]
    trees: Sequence[Content]


def make_pool(root: Path, portal: str, sandbox: Sandbox, *, small: int, large: int) -> Pool:
    """Upload content to a portal."""
    root.mkdir()
    with httpx.Client(base_url=portal, headers=_AGENT, timeout=60) as client:

        def uploaded(name: str, size: int) -> Content:
            data = Random(f"content {name}").randbytes(size)
            (root / name).write_bytes(data)
            answer = client.post("/svc/skyfile", params={"filename": "f"}, content=data)
            return Content(answer.raise_for_status().json()["skylink"], root / name, size)

        found_large = [uploaded(f"large-{n}", (9 << 20) + 1000 * n) for n in range(large)]
        found_small = [uploaded(f"small-{n}", 100 + 37 * n) for n in range(small)]
    trees = []
    for number in range(2):
        tree = root / f"tree-{number}"
        tree.mkdir()
        for n in range(12):
            (tree / f"{n}.bin").write_bytes(Random(f"{number} {n}").randbytes(700 * n))
        trees.append(Content(sandbox.upload(tree, portal), tree, 12))
    return Pool(found_large, found_small, trees)


class Arena:
    """Portals, proxies and a mount."""

    def __init__(self, root: Path, setting: Setting, stack: ExitStack, **pool: int) -> None:
        self.root = root
        self.setting = setting
        self.posts = Posts()
        self.sandbox = Sandbox.make(root / "sandbox")
        self.pair = SigningKeyPair.from_seed(f"insecure chaos {os.urandom(8).hex()}")
        Keyring(root / "sandbox/data/skymount/keys").add(HOME, self.pair)
        self._lock = threading.Lock()
        self._broken: list[list[tuple[float, float]]] = [[] for _ in range(setting.portals)]
        self._modes = [""] * setting.portals
        self.killed: list[tuple[float, float]] = []
        """When there was no daemon."""
        self.mounted = threading.Event()
        self._make_backends(stack, pool)
        self._make_proxies(stack)
        self.path = self.sandbox.directory()
        stack.callback(clear_mounts, self.path)
        stack.callback(self._end_daemon)
        self.sandbox.configure(self._configuration())
        self._mount()
        self.mounted.set()

    # --- making it

    def _make_backends(self, stack: ExitStack, pool: dict[str, int]) -> None:
        first = self.root / "portal-0"
        self.backends = [Backend(first)]
        stack.callback(lambda: [each.kill() for each in self.backends])
        self.pool = make_pool(self.root / "sources", self.backends[0].url, self.sandbox, **pool)
        self._write_zone(first)
        for number in range(1, 1 if self.setting.is_shared else self.setting.portals):
            other = self.root / f"portal-{number}"
            other.mkdir(mode=0o700)
            shutil.copytree(first / "v1", other / "v1")
            shutil.copy(first / "hns.zone", other / "hns.zone")
            self.backends.append(Backend(other))

    def _write_zone(self, data: Path) -> None:
        key, tweak = self.pair.public_hex, hash_data_key(SITE).hex()
        path = data / "hns.zone"
        path.write_text(f"{DOMAIN} skyns://ed25519%3A{key}/{tweak}\n")
        path.chmod(0o600)

    def _make_proxies(self, stack: ExitStack) -> None:
        good = expired = ""
        self.authority: Path | None = None
        if self.setting.tls:
            self.authority, good, expired = certificates(self.root)
        configs = [
            ProxyConfig(self.backends[n % len(self.backends)].port, good, expired)
            for n in range(self.setting.portals)
        ]
        self.proxies: FaultProxies = stack.enter_context(fault_proxies(configs, self._heard))

    def _heard(self, event: Any) -> None:
        if event["event"] == "post":
            self.posts.add(event["portal"], event["body"], event["status"], event["at"])
        else:
            self.posts.uploaded(event["portal"], event["body"], event["at"])

    def _configuration(self) -> str:
        setting = self.setting
        lines = [
            f"portals = {self.proxies.urls}",
            f'verify = "{setting.verify}"',
            f"timeout = {setting.timeout:g}",
            'memory_cache = "16 MiB"',
            f'disk_cache = "{setting.disk_cache}"',
            "registry_ttl = 0.2",
            "hns_ttl = 1",
        ]
        if self.authority is not None:
            lines.append(f'ca_file = "{self.authority}"')
        return "\n".join(lines) + "\n"

    def _mount(self) -> None:
        done = self.sandbox.skymount("mount", "--", self.path)
        assert done.returncode == 0, done.stderr
        self.daemon = Watched(read_status(self.path)["pid"])

    def _end_daemon(self) -> None:
        self.daemon.end()  # of several daemons the last one

    # --- what a schedule does to it

    def take(self, step: Step) -> None:
        if step.what == "break":
            self._break(step)
        elif step.what == "heal":
            self.heal(step.portal)
        elif step.what == "kill daemon":
            self._kill_daemon()
        else:
            time.sleep(step.seconds)

    def _break(self, step: Step) -> None:
        with self._lock:
            self._broken[step.portal].append((time.monotonic(), math.inf))
        self._modes[step.portal] = step.mode
        if step.mode == "stopped":
            self.backends[step.portal].stop()
        elif step.mode == "killed":
            self.backends[step.portal].kill()
        else:
            self.proxies.set_mode(step.portal, step.mode, step.share, step.seed)

    def heal(self, portal: int) -> None:
        """Let a portal be healthy again."""
        mode, self._modes[portal] = self._modes[portal], ""
        if not mode:
            return
        if mode in PROCESS:
            self.backends[portal].heal(mode)
        else:
            self.proxies.set_mode(portal, "")
        with self._lock:
            begin, _ = self._broken[portal][-1]
            self._broken[portal][-1] = (begin, time.monotonic())

    def _kill_daemon(self) -> None:
        begun = time.monotonic()
        self.mounted.clear()
        with self._lock:
            self.killed.append((begun, math.inf))
        self.daemon.signal(signal.SIGKILL)
        self.daemon.wait()
        self.daemon.end()
        self._mount()
        with self._lock:
            self.killed[-1] = (begun, time.monotonic())
        self.mounted.set()

    # --- how it was

    def healthy(self, begin: float, end: float) -> list[int]:
        """Return the portals that were healthy all that time."""
        with self._lock:
            return [
                portal
                for portal, broken in enumerate(self._broken)
                if not any(b < end and begin < e for b, e in broken)
            ]

    def was_killed(self, begin: float, end: float) -> bool:
        """Whether there was no daemon at some moment of that time."""
        with self._lock:
            return any(b < end and begin < e for b, e in self.killed)

    def all_broken(self, begin: float, end: float) -> bool:
        """Whether at some moment of that time no portal was healthy."""
        with self._lock:
            edges = {begin, *(b for each in self._broken for b, _ in each if begin <= b < end)}
            return any(
                all(any(b <= edge < e for b, e in each) for each in self._broken) for edge in edges
            )

    def log_text(self) -> str:
        """Return all that daemons of this mount have logged."""
        logs = (self.root / "sandbox/state/skymount/log").glob("*.log*")
        return "".join(log.read_text(errors="replace") for log in sorted(logs, reverse=True))

    def held(self, backend: Backend, data_key: str) -> SignedEntry | None:
        """Return the entry that a portal has, asked directly."""
        return held(backend.url, self.pair, data_key)

    def has_content(self, backend: Backend, skylink: str) -> bool:
        """Whether a portal has such content, asked directly."""
        url = f"{backend.url}/svc/metadata/{skylink}"
        return httpx.get(url, headers=_AGENT, timeout=30).status_code == 200

    @property
    def link(self) -> str:
        """The v2 skylink of what is published."""
        return str(entry_link(self.pair.public_key, hash_data_key(SITE)))


def certificates(root: Path) -> tuple[Path, str, str]:
    """Make an authority, a certificate of 127.0.0.1 and an expired one."""
    authority = trustme.CA()
    path = root / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    found = []
    for name, until in (("good", None), ("expired", datetime.now(UTC) - timedelta(days=2))):
        made = authority.issue_cert("127.0.0.1", "localhost", not_after=until)
        place = root / f"{name}.pem"
        made.private_key_and_cert_chain_pem.write_to_path(str(place))
        found.append(str(place))
    assert ssl.create_default_context(cafile=str(path))
    return path, found[0], found[1]


@contextmanager
def arena(root: Path, setting: Setting, *, small: int = 60, large: int = 3) -> Iterator[Arena]:
    """Set everything up, and take it down whatever happened."""
    with ExitStack() as stack:
        yield Arena(root, setting, stack, small=small, large=large)
