"""What is done at the mount while things go wrong: a stream of operations for each worker, and
how each result is judged.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.arena import DOMAIN, HOME, SITE, Arena, Content
from tests.chaos.oracle import History, Value

ENTRIES = tuple(f"e{n}" for n in range(4))
DOCUMENTS = tuple(f"d{n}" for n in range(2))

Judge = Callable[[dict[str, Any]], str]
"""Takes what a worker said; returns what is wrong with it, or nothing."""


@dataclass
class Operation:
    """One thing to do, and how to judge the result."""

    name: str
    told: dict[str, Any]
    judge: Judge = lambda found: found.get("wrong", "")
    entry: str = ""
    """The data key that it is about."""
    begin: Callable[[], None] = lambda: None
    """Called right before it is done."""
    is_certain: bool = True
    """Whether it must succeed while a portal that has the entry is healthy."""
    command: tuple[str | Path, ...] = ()
    """A command to run in place of an operation of a worker."""
    skylink: str = ""


@dataclass
class Memory:
    """What the work remembers from one schedule to the next."""

    histories: dict[str, History] = field(default_factory=dict)
    published: list[str] = field(default_factory=list)
    counter: int = 0
    fresh: int = 0

    def history(self, entry: str) -> History:
        return self.histories.setdefault(entry, History())

    def next(self) -> int:
        self.counter += 1
        return self.counter


def document(value: str) -> str:
    """Return a JSON text for a value, of a size that the value decides."""
    random = Random(value)
    noise = random.randbytes(random.choice([10, 300, 8_000, 90_000])).hex()
    return json.dumps({"value": value, "noise": noise})


def value_of(text: str) -> Value:
    """Return the value of such a document; ValueError unless it is whole."""
    value = json.loads(text)["value"]
    if json.loads(text) != json.loads(document(value)):
        raise ValueError("the document is not as it was written")
    return str(value)


def page(value: str) -> str:
    """Return the content of a published page."""
    random = Random(value)
    return f"{value}\n{random.randbytes(random.choice([50, 3000, 60_000])).hex()}"


def right_page(memory: Memory, found: dict[str, Any]) -> str:
    """A page must be one that was published, from start to end."""
    if "error" in found:
        return ""
    value = found["value"].partition("\n")[0]
    if value not in memory.published or found["value"] != page(value):
        return f"a page that nobody published: {found['value'][:60]!r}"
    return ""


class Work:
    """Makes the operations of one schedule."""

    def __init__(self, arena: Arena, memory: Memory, seed: int) -> None:
        self._arena = arena
        self._memory = memory
        self._seed = seed

    def streams(self) -> dict[str, Iterator[Operation]]:
        """Return a stream of operations for each worker."""
        made = {"sequential": self._sequential, "random": self._random}
        if self._arena.setting.writes:
            made |= {"registry": self._registry, "documents": self._documents}
            made |= {"names": self._names, "commands": self._commands}
        return {name: make(Random(f"work {self._seed} {name}")) for name, make in made.items()}

    # --- content

    def _file(self, content: Content) -> str:
        return str(self._arena.path / "skylinks" / content.skylink / "f")

    def _read(self, name: str, content: Content, ranges: list[tuple[int, int]]) -> Operation:
        told = {"do": "read", "path": self._file(content), "source": str(content.source)}
        return Operation(name, {**told, "ranges": ranges}, skylink=content.skylink)

    def _sequential(self, random: Random) -> Iterator[Operation]:
        pool = self._arena.pool
        while True:
            kind = random.random()
            if kind < 0.5:
                chosen = random.choice(pool.large)
                begin = random.choice([0, 0, random.randrange(chosen.size)])
                length = random.choice([1 << 20, 3 << 20, chosen.size])
                length = min(length, chosen.size - begin)
                yield self._read("sequential", chosen, [(begin, length)])
            else:
                yield self._fresh(random)

    def _fresh(self, random: Random) -> Operation:
        """Read a small file, mostly one that was not read before."""
        small = self._arena.pool.small
        if random.random() < 0.7:
            self._memory.fresh += 1
            chosen = small[self._memory.fresh % len(small)]
        else:
            chosen = random.choice(small)
        return self._read("small", chosen, [(0, chosen.size)])

    def _random(self, random: Random) -> Iterator[Operation]:
        pool = self._arena.pool
        skylinks = self._arena.path / "skylinks"
        while True:
            kind = random.random()
            if kind < 0.4:
                chosen = random.choice(pool.large)
                ranges = [
                    (random.randrange(chosen.size - (1 << 16)), random.randrange(1, 1 << 16))
                    for _ in range(random.randint(1, 6))
                ]
                yield self._read("random", chosen, ranges)
            elif kind < 0.6:
                tree = random.choice(pool.trees)
                names = {each.name: each.stat().st_size for each in tree.source.iterdir()}
                told = {"do": "list", "path": str(skylinks / tree.skylink), "names": names}
                yield Operation("listing", told, skylink=tree.skylink)
            elif kind < 0.75:
                tree = random.choice(pool.trees)
                file = random.choice(sorted(tree.source.iterdir()))
                told = {"do": "read", "path": str(skylinks / tree.skylink / file.name)}
                told |= {"source": str(file), "ranges": [(0, file.stat().st_size)]}
                yield Operation("tree", told, skylink=tree.skylink)
            elif kind < 0.8:
                told = {"do": "absent", "path": str(skylinks / "notaskylink")}
                yield Operation("absent", told)
            else:
                yield self._fresh(random)

    # --- entries and documents

    def _registry(self, random: Random) -> Iterator[Operation]:
        directory = self._arena.path / "registry" / HOME
        while True:
            entry, kind = random.choice(ENTRIES), random.random()
            path = str(directory / entry)
            if kind < 0.35:
                value = f"{entry}-{self._memory.next()}-{random.randrange(10**6)}"
                yield self._written("put", entry, path, value, value)
            elif kind < 0.45:
                yield self._appended(entry, path, f"+{self._memory.next()}")
            elif kind < 0.55:
                yield self._removed(entry, path)
            elif kind < 0.65:
                yield Operation("names", {"do": "names", "path": str(directory)}, is_certain=False)
            else:
                yield self._found(entry, path, str)

    def _documents(self, random: Random) -> Iterator[Operation]:
        directory = self._arena.path / "skydb" / HOME
        while True:
            entry, kind = random.choice(DOCUMENTS), random.random()
            path = str(directory / f"{entry}.json")
            if kind < 0.4:
                value = f"{entry}-{self._memory.next()}"
                yield self._written("put document", entry, path, document(value), value)
            else:
                yield self._found(entry, path, value_of)

    def _written(self, name: str, entry: str, path: str, text: str, value: Value) -> Operation:
        history = self._memory.history(entry)
        attempts: list[int] = []

        def judge(found: dict[str, Any]) -> str:
            if found.get("attempted") and "error" not in found:
                history.acknowledge(attempts[0])
            return ""

        def begin() -> None:
            attempts.append(history.begin(value))

        told = {"do": "put", "path": path, "value": text}
        return Operation(name, told, judge, entry, begin)

    def _appended(self, entry: str, path: str, more: str) -> Operation:
        """A partial edit: its base must be right, and is read in the same open file."""
        history = self._memory.history(entry)

        def judge(found: dict[str, Any]) -> str:
            if "base" not in found:
                return _absent(history, found)
            wrong = "" if history.find(found["base"]) else f"edits {found['base']!r}"
            if len(found["base"]) + len(more) <= 113:
                attempt = history.begin(found["base"] + more)
                if "error" not in found:
                    history.acknowledge(attempt)
            return wrong

        told = {"do": "append", "path": path, "value": more}
        return Operation("append", told, judge, entry, is_certain=history.is_certain)

    def _removed(self, entry: str, path: str) -> Operation:
        history = self._memory.history(entry)
        attempts: list[int] = []

        def judge(found: dict[str, Any]) -> str:
            if "error" not in found:
                history.acknowledge(attempts[0])
            return ""

        def begin() -> None:
            attempts.append(history.begin(None))

        return Operation("remove", {"do": "remove", "path": path}, judge, entry, begin)

    def _found(self, entry: str, path: str, parse: Callable[[str], Value]) -> Operation:
        history = self._memory.history(entry)

        def judge(found: dict[str, Any]) -> str:
            if "value" not in found:
                return _absent(history, found)
            try:
                value = parse(found["value"])
            except (ValueError, KeyError, TypeError) as error:
                return f"is not whole: {error}: {found['value'][:60]!r}"
            allowed = history.allowed
            return "" if history.find(value) else f"reads {value!r} in place of {allowed}"

        told = {"do": "get", "path": path}
        return Operation("get", told, judge, entry, is_certain=history.is_certain)

    # --- names that move, and commands

    def _names(self, random: Random) -> Iterator[Operation]:
        skylinks = self._arena.path / "skylinks" / self._arena.link
        paths = [skylinks]
        if self._arena.setting.verify != "require":  # H1
            paths.append(self._arena.path / "hns" / DOMAIN)
        while True:
            told = {"do": "get", "path": str(random.choice(paths) / "page.txt")}
            yield Operation(
                "moving name", told, lambda found: right_page(self._memory, found), SITE
            )
            yield self._fresh(random)

    def _commands(self, random: Random) -> Iterator[Operation]:
        source = self._arena.root / "published"
        while True:
            yield Operation("pause", {}, command=("pause", f"{random.uniform(0.2, 0.8)}"))
            value = f"page-{self._memory.next()}"
            source.mkdir(exist_ok=True)
            file = source / "page.txt"
            file.write_text(page(value))
            if random.random() < 0.6:
                self._memory.published.append(value)
                words = ("publish", file, "--key", HOME, "--as", SITE)
                yield Operation("publish", {}, entry=SITE, command=words)
            else:
                yield Operation("upload", {}, command=("upload", file))


def _absent(history: History, found: dict[str, Any]) -> str:
    """Judge a failure: only ENOENT says something about the entry."""
    if found.get("error") != "ENOENT" or None in history.allowed:
        return ""
    return f"is not found, in place of {history.allowed}"


def expected_entry(arena: Arena, entry: str, begin: float, end: float) -> bool:
    """Whether portals that were healthy all that time had the newest of an entry before."""
    if arena.setting.is_shared:
        return True
    held = partial(arena.posts.held, arena.pair, entry, at=begin)
    if entry == SITE:  # a name may lead to the version before for a while (H2)
        held = partial(arena.posts.held, arena.pair, entry, at=begin - 3, versions=2)
    healthy = arena.healthy(begin, end)
    if healthy:
        return held(healthy)
    return all(held([portal]) for portal in range(arena.setting.portals))


def pause(words: tuple[str | Path, ...]) -> dict[str, Any]:
    """Do nothing for a while."""
    begun = time.monotonic()
    time.sleep(float(str(words[1])))
    return {"begun": begun, "ended": time.monotonic(), "slowest": ("pause", 0.0)}
