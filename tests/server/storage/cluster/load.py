"""Clients that upload, post and make skykeys without a pause, and remember what was acknowledged.

Portals may be killed meanwhile, and what they need may be away. `check` then says what was lost.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from skymount.wire.registry_entry import SignedEntry
from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise
from tests.server.http_client import Client
from tests.server.raw_connection import eventually
from tests.server.registry_entries import get, post, signed

SHARED_KEY = "all"
_NOISE = noise(2 * SECTOR_SIZE + 70_000)
_MOST_SKYKEYS = 900  # a portal has 1000 at most
_TIME_LIMIT = 120.0  # seconds for one request; none is to take as long


@dataclass(frozen=True)
class File:
    """What was uploaded, or was to be."""

    number: int
    size: int

    @property
    def content(self) -> bytes:
        # Further sectors are those of others.
        return b"%d %d." % (self.number, self.size) + _NOISE[: self.size]


@dataclass
class Load:
    """Clients of some portals; `urls` returns where these are now, `steady` where one is that
    nobody kills.
    """

    urls: Callable[[], list[str]]
    steady: str
    failures: frozenset[int] = frozenset()
    """Statuses that are no fault, because something is away at times."""
    may_break: bool = False
    """Whether a download from `steady` may be cut off."""
    seed: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    posted: int = 0
    lost: int = 0
    """Requests without an answer."""
    attempted: dict[str, File] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    revisions: dict[str, int] = field(default_factory=dict)
    skykeys: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    _watched: dict[str, File] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all clients until the end of the block."""
        steps = [self._upload_small, self._upload_small, self._upload_large, self._upload_large]
        steps += [self._post, self._post, self._post_shared, self._make_skykey, self._watch]
        threads = [
            threading.Thread(target=self._repeat, args=(step, number))
            for number, step in enumerate(steps)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _repeat(self, step: "Callable[[_Client], None]", worker: int) -> None:
        client = _Client(self, worker)
        try:
            while not self._stop.is_set():
                try:
                    step(client)
                except httpx.TransportError:
                    self.lost += 1
                    client.forget()
                    time.sleep(0.02)
        except Exception as error:  # shown at the end
            self.wrong.append(f"{step.__name__}: {error!r}")
        finally:
            client.close()

    def _is(self, answer: httpx.Response, *expected: int) -> bool:
        """Whether a request did what was asked; anything but the foreseen failures is noted."""
        self.statuses[answer.status_code] += 1
        if answer.status_code in expected:
            return True
        if answer.status_code not in self.failures:
            request = answer.request
            self.wrong.append(f"{request.method} {request.url}: {answer.status_code} {answer.text}")
        elif "message" not in answer.json():
            self.wrong.append(f"{answer.status_code} without a message: {answer.text}")
        else:
            time.sleep(0.02)
        return False

    def _upload_small(self, client: "_Client") -> None:
        self._upload(client, 1000)

    def _upload_large(self, client: "_Client") -> None:
        self._upload(client, random.Random(client.number).choice([SECTOR_SIZE, len(_NOISE)]))
        time.sleep(0.1)

    def _upload(self, client: "_Client", size: int) -> None:
        file = File(client.next_number(), size)
        target, headers = "/svc/skyfile?filename=x", {"Content-Type": "text/plain"}
        content, dry = file.content, f"{target}&dryrun=true"
        try:
            planned = client.steady.post(dry, content=content, headers=headers)
        except httpx.TransportError as error:
            self.wrong.append(f"dry run: {error!r}")
            return
        if not self._is(planned, 200):
            return
        link = planned.json()["skylink"]
        self.attempted[link] = self._watched[link] = file
        try:
            answer = client.any().post(target, content=content, headers=headers)
            if self._is(answer, 200):
                if answer.json()["skylink"] != link:
                    self.wrong.append(f"the upload of {link} has another skylink")
                self.stored.add(link)
        finally:
            self._watched.pop(link, None)

    def _post(self, client: "_Client") -> None:
        key, revision = f"key{client.worker}", client.next_number()
        if self._is(post(client.any(), _entry(key, revision)), 204):
            self.revisions[key] = revision
            self.posted += 1
        self._read(client, key)

    def _post_shared(self, client: "_Client") -> None:
        revision = max(self.revisions.get(SHARED_KEY, 0) + random.randrange(-2, 4), 0)
        answer = post(client.any(), _entry(SHARED_KEY, revision))
        if self._is(answer, 204, 400) and answer.status_code == 204:
            self.revisions[SHARED_KEY] = max(self.revisions.get(SHARED_KEY, 0), revision)
            self.posted += 1
        self._read(client, SHARED_KEY)

    def _read(self, client: "_Client", key: str) -> None:
        """Read an entry from any portal: its revision is not before the last acknowledged one."""
        least = self.revisions.get(key, -1)
        try:
            found = get(client.any(), key)
        except AssertionError:  # neither an entry nor 404
            if not self.failures:
                raise
            return
        self._compare(key, least, found)

    def _compare(self, key: str, least: int, found: SignedEntry | None) -> None:
        revision = -1 if found is None else found.entry.revision
        if revision < least:
            self.wrong.append(f"{key} went back from {least} to {revision}")
        if found is not None and found.entry.data != b"%d" % revision:
            self.wrong.append(f"{key} has other data at revision {revision}")

    def _make_skykey(self, client: "_Client") -> None:
        name = f"skykey{client.next_number()}"
        if client.number > _MOST_SKYKEYS:
            self._stop.wait()
            return
        asked = {"name": name, "type": "private-id"}
        answer = client.any().post("/svc/createskykey", params=asked)
        if self._is(answer, 200):
            self.skykeys[name] = answer.json()["skykey"]
        time.sleep(0.3)

    def _watch(self, client: "_Client") -> None:
        """Ask for what is being uploaded: it is whole, or not there."""
        for link, file in [*self._watched.items()]:
            try:
                self._look(client.steady, link, file, may_be_absent=True)
            except httpx.TransportError as error:
                if not self.may_break:
                    self.wrong.append(f"{link} was cut off: {error!r}")
        time.sleep(0.005)

    def _look(self, client: Client, link: str, file: File, *, may_be_absent: bool) -> None:
        answer = client.get(f"/{link}")
        if answer.status_code == 404:
            if not may_be_absent:
                self.wrong.append(f"{link} is lost")
        elif self._is(answer, 200) and answer.content != file.content:
            self.wrong.append(f"{link} has other content")

    def assert_recovers(self, outage: Callable[[], None], url: str) -> None:
        """Run the clients through an outage: what fails fails with 503, afterwards all works
        again, and nothing was lost.
        """
        with self.running():
            eventually(lambda: len(self.stored) > 5 and len(self.revisions) == 3)
            outage()
            stored, revisions = len(self.stored), dict(self.revisions)
            eventually(lambda: len(self.stored) > stored + 5)
            eventually(lambda: all(self.revisions[key] > revisions[key] for key in revisions))
        assert self.statuses[503]
        assert self.lost == 0
        self.check(url)

    def check(self, url: str) -> None:
        """Read all that was acknowledged from a portal; what was not is whole or absent."""
        self.failures, self.may_break = frozenset(), False
        with Client(base_url=url, timeout=_TIME_LIMIT) as client:
            for link, file in self.attempted.items():
                self._look(client, link, file, may_be_absent=link not in self.stored)
            for key, least in self.revisions.items():
                self._compare(key, least, get(client, key))
            held = {
                each["name"]: each["skykey"]
                for each in client.get("/svc/skykeys").json()["skykeys"]
            }
            for name, skykey in self.skykeys.items():
                if held.get(name) != skykey:
                    self.wrong.append(f"skykey {name} is lost")
        assert not self.wrong, "\n".join(self.wrong[:20])

    def summary(self) -> str:
        return (
            f"{len(self.stored)} of {len(self.attempted)} uploads, "
            f"{self.posted} updates and {len(self.skykeys)} skykeys "
            f"acknowledged; {self.lost} requests without an answer; {dict(self.statuses)}"
        )


def _entry(key: str, revision: int) -> SignedEntry:
    return signed(key, b"%d" % revision, revision)


class _Client:
    """The connections of one worker, and its numbers."""

    def __init__(self, load: Load, worker: int) -> None:
        self.worker = worker
        self.number = 0
        self.steady = Client(base_url=load.steady, timeout=_TIME_LIMIT)
        self._load = load
        self._random = random.Random(f"{load.seed} {worker}")
        self._clients: dict[str, Client] = {}

    def next_number(self) -> int:
        """Return a number that grows, and that no other worker has."""
        self.number += 1
        return self.number * 16 + self.worker

    def any(self) -> Client:
        """Return a connection to one of the portals."""
        url = self._random.choice(self._load.urls())
        if url not in self._clients:
            self.forget()
            self._clients[url] = Client(base_url=url, timeout=_TIME_LIMIT)
        return self._clients[url]

    def forget(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def close(self) -> None:
        self.forget()
        self.steady.close()
