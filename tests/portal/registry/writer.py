"""A program that writes entries, and sends what is pending, until it is killed. `test_kills` runs
several of it on one ledger.
"""

import random
import sys
from contextlib import closing
from pathlib import Path

import trio

from skymount.errors import SkymountError, StaleEntryError
from skymount.portal.failover.portals import open_portals
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.registry.sender import Sender
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.settings import PortalOptions
from skymount.wire.key_pair import SigningKeyPair
from tests.portal.ledger.entries import PAIR
from tests.portal.registry.entries import ref

NAMES = "abcd"


async def pair_of(_: bytes) -> SigningKeyPair:
    return PAIR


def say(what: str, name: str, data: bytes, revision: int = -1) -> None:
    sys.stdout.write(f"{what} {name} {data.decode()} {revision}\n")
    sys.stdout.flush()


async def write_for_ever(entries: VerifiedRegistry, me: str) -> None:
    """Print what becomes of each write, as close(2) would say it."""
    for number in range(1 << 30):
        name, data = random.choice(NAMES), f"{me}-{number}".encode()
        try:
            base = await entries.ask(ref(name)) if random.random() < 0.3 else None
            say("begun", name, data)
            state = await entries.write(ref(name), PAIR, data, base)
        except StaleEntryError:
            say("stale", name, data)
        except SkymountError:
            say("failed", name, data)
        else:
            say("done", name, data, state.revision)


async def main(path: Path, me: str, urls: list[str], *, writes: bool) -> None:
    """Write, or end once nothing waits any more."""
    options = {url: PortalOptions.parse(url) for url in urls}
    with closing(Ledger.open(path)) as ledger:
        async with open_portals(options, 2.0) as portals, trio.open_nursery() as nursery:
            entries = VerifiedRegistry(portals, ledger, fresh=0.2)
            nursery.start_soon(Sender(entries, ledger, pair_of=pair_of).run)
            if writes:
                await write_for_ever(entries, me)
            while any(each.status.value == "waiting" for each in ledger.pending()):
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()


def run() -> None:
    """Run with the arguments of the command line."""
    path, me, *urls = sys.argv[1:]
    trio.run(lambda: main(Path(path), me, urls, writes=me != "last"))
