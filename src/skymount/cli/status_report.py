"""How ``skymount status`` shows what a mount says of itself. No IO."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from skymount.cli.mount_probe import MountAnswer, MountState
from skymount.errors import MalformedError
from skymount.wire.limited_json import decode_json
from skymount.wording import readable_size

_LIMIT = 2 << 20  # bytes; the probe has a lower limit
_SHOWN_FAILURES = 3
_FRESH = 600.0  # seconds for which the last error of a portal that works is shown

_STATES = {
    ("closed", "healthy"): "works",
    ("half_open", "healthy"): "is tried again",
    ("half_open", "failing"): "is tried again",
    ("open", "failing"): "pauses after a failure",
}


class _Portal(Struct):
    url: str = ""
    state: str = ""
    rank: str = ""
    latency: float | None = None
    failure_rate: float = 0.0
    body_rate: float | None = None
    requests: int = 0
    last_error: str = ""
    last_error_age: float | None = None


class _Cache(Struct):
    """The figures of any of the caches."""

    size: int = 0
    used: int = 0
    loaded: int = 0
    hits: int = 0
    misses: int = 0
    stored: int = 0
    damaged: int = 0


class _Oldest(Struct):
    operation: str = ""
    seconds: float = 0.0


class _Requests(Struct):
    under_way: int = 0
    oldest: _Oldest | None = None


class _Failure(Struct):
    time: str = ""
    operation: str = ""
    path: str = ""
    errno: str = ""
    reason: str = ""


class _Owed(Struct):
    url: str = ""
    count: int = 0
    oldest_seconds: float = 0.0
    reason: str = ""


class _Fetched(Struct):
    bytes: int = 0


class MountFigures(Struct):
    """The part of ``status.json`` that is shown. A mount of another version may lack any of it."""

    version: str = "?"
    pid: int = 0
    uptime_seconds: float = 0.0
    portals: list[str] = field(default_factory=list)
    portal_health: list[_Portal] = field(default_factory=list)
    own_portal: bool = False
    verify: str = ""
    memory_cache: _Cache = field(default_factory=_Cache)
    disk_cache: _Cache = field(default_factory=_Cache)
    tree_cache: _Cache = field(default_factory=_Cache)
    fetched: _Fetched = field(default_factory=_Fetched)
    skylinks: int = 0
    domains: int = 0
    open_files: int = 0
    open_directories: int = 0
    requests: _Requests = field(default_factory=_Requests)
    failed_operations: list[_Failure] = field(default_factory=list)
    owed_entries: list[_Owed] = field(default_factory=list)


def facts(answer: MountAnswer) -> Mapping[str, object]:
    """Return what --json shows of a mount."""
    found: dict[str, object] = {"mountpoint": answer.path, "state": answer.state.value}
    if answer.reason:
        found["reason"] = answer.reason
    if answer.state is MountState.RUNNING:
        found["status"] = decode_json(answer.text, dict[str, Any], "status.json", _LIMIT)
    return found


def checked(answer: MountAnswer) -> MountAnswer:
    """Return the answer, or that it cannot be read."""
    if answer.state is MountState.RUNNING:
        try:
            decode_json(answer.text, MountFigures, "its status.json", _LIMIT)
        except MalformedError as error:
            return MountAnswer(answer.path, MountState.UNREADABLE, reason=str(error))
    return answer


def report(answers: Sequence[MountAnswer]) -> list[str]:
    """Return the lines for all mounts."""
    if not answers:
        return ["nothing is mounted; `skymount mount DIRECTORY` does that"]
    found: list[str] = []
    for each in answers:
        found += ["", *_lines(each)] if found else _lines(each)
    return found


def _lines(answer: MountAnswer) -> Iterator[str]:
    if answer.state is not MountState.RUNNING:
        yield f"{answer.path}  {answer.state.value}: {answer.reason}"
        return
    found = decode_json(answer.text, MountFigures, "status.json", _LIMIT)
    up = readable_time(found.uptime_seconds)
    yield f"{answer.path}  running for {up}, pid {found.pid}, skymount {found.version}"
    yield from _rows(
        [
            *_portal_rows(found),
            *_cache_rows(found),
            ("in use", _in_use(found)),
            *_owed_rows(found),
            *_failure_rows(found.failed_operations),
        ]
    )


def _rows(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    before = ""
    for name, text in rows:
        yield f"  {'' if name == before else name:<14}{text}"
        before = name


def _portal_rows(found: MountFigures) -> Iterator[tuple[str, str]]:
    own = ", runs with this mount" if found.own_portal else ""
    width = max((len(each.url) for each in found.portal_health), default=0)
    for each in found.portal_health:
        yield "portals", f"{each.url:<{width}}  {_health(each)}{own}"
        is_fresh = each.last_error_age is not None and each.last_error_age < _FRESH
        if each.last_error and (is_fresh or each.state != "closed"):
            age = readable_time(each.last_error_age or 0.0)
            yield "portals", f"  last error {age} ago: {each.last_error}"


def _health(portal: _Portal) -> str:
    known = _STATES.get((portal.state, portal.rank))
    text = known or ("sent wrong content" if portal.rank == "lying" else portal.state)
    if text == "works" and portal.latency is None and not portal.last_error:
        text = "not asked yet"
    if portal.latency is not None:
        text += f", answers in {portal.latency * 1000:.0f} ms"
    if portal.body_rate:
        text += f", {readable_size(int(portal.body_rate))}/s"
    if portal.failure_rate >= 0.01:
        text += f", {portal.failure_rate:.0%} failures lately"
    return text + (f", {counted(portal.requests, 'request')} under way" if portal.requests else "")


def _cache_rows(found: MountFigures) -> Iterator[tuple[str, str]]:
    memory, disk, trees = found.memory_cache, found.disk_cache, found.tree_cache
    used = f"{readable_size(memory.used)} of {readable_size(memory.size)}"
    yield "memory cache", f"{used}, {_hits(memory, 'read')}"
    if disk.size:
        damaged = f", {disk.damaged} damaged" if disk.damaged else ""
        bound = f"at most {readable_size(disk.size)} (all mounts)"
        yield "disk cache", f"{bound}, {_hits(disk, 'block')}, {disk.stored} stored{damaged}"
    else:
        yield "disk cache", "off"
    used = f"{readable_size(trees.used)} of {readable_size(trees.size)}"
    yield "tree cache", f"{used}, {counted(trees.loaded, 'tree')}"
    yield "fetched", readable_size(found.fetched.bytes)


def _hits(cache: _Cache, what: str) -> str:
    asked = cache.hits + cache.misses
    return f"{cache.hits / asked:.0%} hits in {counted(asked, what)}" if asked else "not used"


def _in_use(found: MountFigures) -> str:
    number, oldest = found.requests.under_way, found.requests.oldest
    text = ", ".join(
        (
            counted(found.skylinks, "skylink"),
            counted(found.domains, "domain"),
            f"{counted(found.open_files, 'file')} open",
            f"{counted(number, 'request')} under way",
        )
    )
    return text + (f" (a {oldest.operation} for {oldest.seconds:.1f} s)" if oldest else "")


def _owed_rows(found: MountFigures) -> Iterator[tuple[str, str]]:
    """Yield how many entries each portal has not got yet."""
    for each in found.owed_entries:
        age = readable_time(each.oldest_seconds)
        text = f"{each.url}  {counted(each.count, 'entry')}, the oldest for {age}"
        yield "owed", f"{text}: {each.reason}" if each.reason else text


def _failure_rows(failures: Sequence[_Failure]) -> Iterator[tuple[str, str]]:
    for each in reversed(failures[-_SHOWN_FAILURES:]):
        text = f"{each.time}  {each.operation} {each.path}: {each.errno}, {each.reason}"
        yield "last errors", text


def counted(number: int, what: str) -> str:
    """Return a number with its noun: ``1 file``, ``2 files``."""
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what[:-1]}ies" if what.endswith("y") else f"{number:,} {what}s"


def readable_time(seconds: float) -> str:
    """Return a time for people, in its two largest units: ``3 h 20 min``."""
    left = int(seconds)
    found: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, length)
        if number or found or unit == "s":
            found.append(f"{number} {unit}")
    return " ".join(found[:2])
