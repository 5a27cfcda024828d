"""Many executions of the targets: ``scripts/fuzz [--executions N] [--seed N] [TARGET ...]``."""

import argparse
import logging
import math
import multiprocessing
import random
import re
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path

from tests.fuzz import engine
from tests.fuzz.all import TARGETS
from tests.fuzz.engine import Target

EXECUTIONS = 1_000_000
MEMORY = 4 << 30  # bytes of address space: what takes more is a fault
CORPUS = 2000  # inputs that further ones are made of
_NOT_NEW = re.compile(r"'.*'|\".*\"|[0-9]+")


def run(
    found: Target, executions: int, seed: int, seconds: float = math.inf
) -> tuple[int, bytes | None]:
    """Execute a target on made-up inputs; return how many there were, and at which it failed.

    An input that is refused for a new reason is made use of: it took another way.
    """
    end = time.monotonic() + seconds
    luck = random.Random(f"{seed} {found.name}")
    corpus, seen = list(found.seeds), set[str]()
    for number in range(1, executions + 1):
        data = engine.mutate(luck, corpus, found.tokens)
        engine.said.clear()
        try:
            engine.execute(found, data)
        except Exception:  # this is what is looked for
            return number, data
        reasons = _NOT_NEW.sub("", " / ".join(engine.said))
        if reasons not in seen and len(corpus) < CORPUS:
            seen.add(reasons)
            corpus.append(data[: engine.LENGTH])
        if time.monotonic() > end:
            return number, None
    return executions, None


def shortest(found: Target, data: bytes) -> bytes:
    """Return the least that is left of an input when nothing more can be left out."""
    size = len(data)
    while size:
        at = 0
        while at < len(data):
            shorter = data[:at] + data[at + size :]
            if _fails(found, shorter):
                data = shorter
            else:
                at += size
        size //= 2
    return data


def _fails(found: Target, data: bytes) -> bool:
    try:
        engine.execute(found, data)
    except Exception:
        return True
    return False


def _fuzz(name: str, executions: int, seed: int, seconds: float) -> tuple[str, bool]:
    """Fuzz one target; return what to print, and whether it held."""
    found, began = TARGETS[name], time.monotonic()
    done, data = run(found, executions, seed, seconds)
    if data is None:
        took = time.monotonic() - began
        return f"{name}: {done} executions in {took:.0f} s, nothing found", True
    data = shortest(found, data)
    return f"{name}: fails at {data!r}\n{_trace(found, data)}", False


def _trace(found: Target, data: bytes) -> str:
    try:
        engine.execute(found, data)
    except Exception:
        return traceback.format_exc()
    return "not again"


def main() -> int:
    """Fuzz the targets that are named, or all; the exit status is 1 if one fails."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all, if none is named")
    parser.add_argument("--executions", type=int, default=EXECUTIONS, help="of each target")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for each at most")
    parser.add_argument("--seed", type=int, default=None, help="the same one, the same inputs")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--list", action="store_true", help="name the targets")
    parser.add_argument("--input", type=Path, help="execute the targets on this file, once")
    given = parser.parse_args()
    if given.list:
        print("\n".join(TARGETS))
        return 0
    names = given.targets or list(TARGETS)
    if unknown := sorted(set(names) - set(TARGETS)):
        parser.error(f"no target {unknown[0]}; --list names them")
    warnings.simplefilter("error")
    logging.disable()
    if given.input is not None:
        for name in names:
            engine.execute(TARGETS[name], given.input.read_bytes())
        return 0
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    held = True
    with multiprocessing.Pool(given.jobs, maxtasksperchild=1) as pool:
        tasks = [
            pool.apply_async(_fuzz, (name, given.executions, seed, given.seconds)) for name in names
        ]
        for task in tasks:
            text, good = task.get()
            print(text, flush=True)
            held = held and good
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
