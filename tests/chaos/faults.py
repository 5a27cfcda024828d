"""What a fault proxy does to a request, in each of its modes. Decisions only; `fault_proxy` does
what they say.
"""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

Headers = tuple[tuple[bytes, bytes], ...]

SILENT = ("stall", "drip", "slow")
BROKEN_OFF = ("refuse", "reset", "lost", "cut")
REFUSALS = ("missing", "busy", "busy, retry later", "failing", "redirect", "page")
LIES = ("flip", "overlong", "short", "wrong range", "ignored range", "metadata")
TLS = ("tls garbage", "tls expired")
PROCESS = ("stopped", "killed")
"""Faults of the portal's process, not of the proxy."""

OF_REQUESTS = (*SILENT, "reset", "lost", "cut", *REFUSALS, *LIES)
"""What "mixed" chooses from, for each request anew."""

STRIPPED = {b"connection", b"transfer-encoding", b"content-length", b"keep-alive"}


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    method: str
    target: str
    headers: Headers
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def without(self, name: bytes) -> "Request":
        return replace(self, headers=tuple(h for h in self.headers if h[0].lower() != name))

    @property
    def is_registry_post(self) -> bool:
        return self.method == "POST" and self.path.endswith("/registry")


@dataclass(frozen=True)
class Answer:
    """An answer, with its body as it would be sent."""

    status: int
    headers: Headers = ()
    body: bytes = b""
    length: int | None = None
    """What Content-Length says, if not the truth."""

    def encoded(self, request: Request) -> bytes:
        """Return head and body."""
        lines = [b"HTTP/1.1 %d Told" % self.status]
        lines += [b"%s: %s" % each for each in self.headers if each[0].lower() not in STRIPPED]
        has_body = self.status not in (204, 304)
        if has_body:
            length = len(self.body) if self.length is None else self.length
            lines.append(b"Content-Length: %d" % length)
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        return head + self.body if has_body and request.method != "HEAD" else head


@dataclass(frozen=True)
class Treatment:
    """What becomes of one request."""

    reply: Answer | None = None
    """Sent in place of the portal's answer."""
    is_forwarded: bool = True
    change: Callable[[Request], Request] = lambda request: request
    alter: Callable[[Request, Answer], Answer] = lambda _, answer: answer
    stalls_first: bool = False
    """Whether nothing happens until the fault ends."""
    delay: float = 0.0
    keeps: float = 1.0
    """Share of the encoded answer that is sent before `then` happens."""
    then: str = ""
    """How it ends early: "close", "reset" or "stall"; empty if it does not."""
    drip: tuple[int, float] | None = None
    """Bytes at a time, seconds of pause after each."""
    drips_head: bool = False
    """Whether only the head comes so."""


HONEST = Treatment()


def treatment(mode: str, request: Request, random: Random, elsewhere: str) -> Treatment:
    """Return what a mode does to a request; `elsewhere` is the address of another portal."""
    if mode == "mixed":
        mode = random.choice(OF_REQUESTS)
    if mode in LIES and "/hnsres/" in request.target:
        return HONEST  # nobody can prove where a domain leads (H1)
    if mode in LIES and request.method == "POST":
        return HONEST
    return _MAKERS[mode](request, random, elsewhere) if mode in _MAKERS else HONEST


def _error(status: int, *headers: tuple[bytes, bytes]) -> Answer:
    body = json.dumps({"message": "made up by a test"}).encode()
    return Answer(status, ((b"Content-Type", b"application/json"), *headers), body)


Maker = Callable[[Request, Random, str], Treatment]


def _refused(*answers: Answer) -> Maker:
    return lambda _, random, __: Treatment(random.choice(answers), is_forwarded=False)


def _reset(_: Request, random: Random, __: str) -> Treatment:
    """Before anything is done, or somewhere in the answer."""
    forwarded = random.random() < 0.5
    return Treatment(is_forwarded=forwarded, keeps=random.random() * forwarded, then="reset")


def _lost(_: Request, random: Random, __: str) -> Treatment:
    return Treatment(keeps=0.0, then=random.choice(["reset", "close"]))


def _stall(_: Request, random: Random, __: str) -> Treatment:
    if random.random() < 0.4:
        return Treatment(stalls_first=True)
    return Treatment(keeps=random.choice([0.0, random.random()]), then="stall")


def _drip(_: Request, random: Random, __: str) -> Treatment:
    return Treatment(drip=random.choice([(1, 0.05), (40, 0.1), (1000, 0.1), (20_000, 0.3)]))


def _slow(_: Request, random: Random, __: str) -> Treatment:
    return Treatment(delay=random.choice([0.2, 0.7, 1.5, 3.0]))


def _cut(_: Request, random: Random, __: str) -> Treatment:
    return Treatment(keeps=random.random(), then="close")


def _redirect(request: Request, random: Random, elsewhere: str) -> Treatment:
    places = [elsewhere + request.target, request.target, "http://localhost:9" + request.target]
    location = (b"Location", random.choice([*places, "gopher://x", ""]).encode())
    status = random.choice([301, 302, 307, 308])
    return Treatment(_error(status, location), is_forwarded=False)


def _altering(alter: Callable[[Request, Answer, Random], Answer]) -> Maker:
    def make(_: Request, random: Random, __: str) -> Treatment:
        return Treatment(alter=lambda request, answer: alter(request, answer, random))

    return make


def _flip(_: Request, answer: Answer, random: Random) -> Answer:
    if not answer.body:
        return answer
    body = bytearray(answer.body)
    for _ in range(random.choice([1, 1, 5])):
        # The first bytes of a base sector count; the rest is mostly padding.
        end = random.choice([len(body), min(len(body), 400)])
        body[random.randrange(end)] ^= 1 << random.randrange(8)
    return replace(answer, body=bytes(body))


def _overlong(_: Request, answer: Answer, random: Random) -> Answer:
    more = random.randbytes(random.choice([1, 7, 5000]))
    says_so = random.random() < 0.6
    return replace(answer, body=answer.body + more, length=None if says_so else len(answer.body))


def _short(_: Request, answer: Answer, random: Random) -> Answer:
    return replace(answer, body=answer.body[: random.randrange(len(answer.body) + 1)])


_RANGE = re.compile(rb"bytes=(\d+)-(\d+)$")


def _wrong_range(request: Request, random: Random, _: str) -> Treatment:
    """Send another range than was asked for; say the truth about it or not."""
    asked = next((v for n, v in request.headers if n.lower() == b"range"), b"")
    found = _RANGE.match(asked)
    if not found:
        return Treatment(alter=lambda request, answer: _short(request, answer, random))
    first, last = int(found[1]), int(found[2])
    by = random.choice([1, 64, 4096])
    sent = b"bytes=%d-%d" % (first + by, last + by)
    lies = random.random() < 0.7

    def change(request: Request) -> Request:
        less = request.without(b"range")
        return replace(less, headers=(*less.headers, (b"Range", sent)))

    def alter(_: Request, answer: Answer) -> Answer:
        if answer.status != 206 or not lies:
            return answer
        kept = [h for h in answer.headers if h[0].lower() != b"content-range"]
        total = next(v for n, v in answer.headers if n.lower() == b"content-range")
        claimed = b"bytes %d-%d/" % (first, first + len(answer.body) - 1)
        kept.append((b"Content-Range", claimed + total.rpartition(b"/")[2]))
        return replace(answer, headers=tuple(kept))

    return Treatment(change=change, alter=alter)


def _ignored_range(_: Request, __: Random, ___: str) -> Treatment:
    return Treatment(change=lambda request: request.without(b"range"))


def _wrong_metadata(request: Request, answer: Answer, random: Random) -> Answer:
    """Other names, lengths and numbers wherever the answer has metadata."""
    headers = tuple(
        (name, _other(value, random)) if name.lower().endswith(b"metadata") else (name, value)
        for name, value in answer.headers
    )
    if "/basesector/" in request.path:
        return replace(answer, headers=headers, body=_other(answer.body[:4096], random))
    is_json = answer.body[:1] == b"{"
    return replace(
        answer, headers=headers, body=_other(answer.body, random) if is_json else answer.body
    )


def _other(text: bytes, random: Random) -> bytes:
    """Change a digit or a name in a JSON text."""
    places = [found.start() for found in re.finditer(rb"[0-9a-z]", text)]
    if not places:
        return text
    at = random.choice(places)
    return text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]


def _steady(**what: Any) -> Maker:
    return lambda _, __, ___: Treatment(**what)


def _one_bit(request: Request, answer: Answer) -> Answer:
    """Change a bit in the middle of what was asked for."""
    if request.method != "GET" or not answer.body:
        return answer
    body = bytearray(answer.body)
    body[len(body) // 2] ^= 1
    return replace(answer, body=bytes(body))


def _other_skylink(request: Request, answer: Answer) -> Answer:
    """Give an upload the skylink of something else."""
    if request.method != "POST" or request.is_registry_post or answer.status != 200:
        return answer
    told = json.loads(answer.body)
    told["skylink"] = told["skylink"][:20] + "other" + told["skylink"][25:]
    root = base64.urlsafe_b64decode(told["skylink"] + "==")[2:]
    return replace(answer, body=json.dumps(told | {"merkleroot": root.hex()}).encode())


_NOTHING = Answer(200)

STEADY: dict[str, Maker] = {
    "silent": _steady(stalls_first=True),
    "stalls in a body": _steady(keeps=0.9, then="stall"),
    "10 KB/s": _steady(drip=(1000, 0.1)),
    "heads byte by byte": _steady(drip=(1, 0.2), drips_head=True),
    "resets": _steady(keeps=0.5, then="reset"),
    "closes at once": _steady(reply=_NOTHING, is_forwarded=False, keeps=0.0, then="close"),
    "503": _refused(_error(503)),
    "404": _refused(_error(404)),
    "429": _refused(_error(429)),
    "wrong bytes": _steady(alter=_one_bit),
    "wrong skylink": _steady(alter=_other_skylink),
}
"""What does the same to each request, for benchmarks/portals.py."""

_MAKERS: dict[str, Maker] = {
    **STEADY,
    "reset": _reset,
    "lost": _lost,
    "stall": _stall,
    "drip": _drip,
    "slow": _slow,
    "cut": _cut,
    "missing": _refused(_error(404)),
    "busy": _refused(_error(429)),
    "busy, retry later": _refused(
        _error(429, (b"Retry-After", b"1")), _error(503, (b"Retry-After", b"3"))
    ),
    "failing": _refused(_error(500), _error(502), _error(503), _error(504)),
    "redirect": _redirect,
    "page": _refused(Answer(200, ((b"Content-Type", b"text/html"),), b"<html>Welcome</html>")),
    "flip": _altering(_flip),
    "overlong": _altering(_overlong),
    "short": _altering(_short),
    "wrong range": _wrong_range,
    "ignored range": _ignored_range,
    "metadata": _altering(_wrong_metadata),
}
