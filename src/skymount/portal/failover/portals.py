"""The portals of a mount or command: one face for all that is asked of several.

``race`` says who is asked and when, ``health`` who may be asked.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import trio

from skymount.errors import (
    NotFoundError,
    PortalTimeoutError,
    RequestRefusedError,
    StorageError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.contestants import Ask, Contestants, FailoverConfig, Outages
from skymount.portal.failover.health import Rank, State
from skymount.portal.failover.race import ALL, PROOF, Race, Want
from skymount.settings import PortalOptions

T = TypeVar("T")

PROOF_TIMEOUT = 10.0
"""Seconds that all other portals together have to prove an answer that came without a proof."""

log = logging.getLogger(__name__)


class Portals(Contestants):
    """The configured portals, in the order of preference."""

    async def first(
        self,
        ask: Ask[T],
        *,
        hedged: bool = True,
        urgent: Callable[[], bool] = lambda: True,
        probe: Ask[object] | None = None,
    ) -> T:
        """Return the first good answer.

        A portal that fails or sends wrong content is asked again; its health may allow one attempt
        only, or none. A refusal or «not found» is final for that portal. If no portal has a good
        answer, the error is that of wrong content, else the last failure, else a refusal, else
        «not found».

        If `hedged`, the next portal is asked as well while a portal is late: `ask` may then run
        for several portals at once, and is cancelled where it is not needed. `urgent` returns
        whether somebody waits for the answer. `probe` is what is asked of a portal whose pause is
        over, in the background; it may outlast the call.
        """
        if probe is not None and not self.is_alone:
            self.start_trials(probe)
        race = await Race(self, ask, Want(is_hedged=hedged), urgent=urgent).run()
        for answer in race.answers.values():
            return answer
        raise race.error

    async def poll(self, ask: Ask[T], *, insists: Callable[[], bool] = lambda: False) -> list[T]:
        """Return the good answers of all portals that work and are not late; at least one.

        All of them are asked at once. The others, those that fail, are asked only if there is no
        good answer yet; then the rules of `first` hold, and `insists` says whether it matters so
        much that refusals do not end it while a portal was spared. `ask` may run on in the
        background at portals that are late, and at portals whose pause is over.
        """
        if self.is_alone:
            return [await self.first(ask)]
        self.start_trials(ask)
        race = await Race(self, ask, ALL, insists=insists).run()
        if not race.answers:
            raise race.error
        return list(race.answers.values())

    async def best(
        self, ask: Ask[T], is_proven: Callable[[T], bool], *, probe: Ask[object] | None = None
    ) -> tuple[T, Collection[PortalReader]]:
        """Return the first proven answer, or without one the first good answer and the portals
        that failed: they might have had a proof.

        All portals but the one that gave the first good answer are asked for a proof at once, for
        `PROOF_TIMEOUT` seconds at most. One that pauses because it was late or silent is not.
        """

        async def first(client: PortalReader) -> tuple[PortalReader, T]:
            return client, await ask(client)

        async def prove(client: PortalReader) -> T:
            try:
                return await ask(client)
            except StorageError as error:  # which is no reason to ask no other one
                raise RequestRefusedError(str(error), url=client.url) from error

        answered, found = await self.first(first, probe=probe)
        if is_proven(found):
            return found, ()
        now = trio.current_time()
        undecided = {each for each in self.clients if each is not answered}
        asked = [
            each
            for each in self.clients
            if each in undecided and not self.health(each).pauses_for_lateness(now)
        ]
        config = replace(self.config, longest_wait=0.0)
        race = Race(
            replace(self, clients=asked, config=config, is_part=True),
            prove,
            PROOF,
            is_good=is_proven,
        )
        with trio.move_on_after(PROOF_TIMEOUT) as scope:
            await race.run()
        for answer in race.answers.values():
            return answer, ()
        if scope.cancelled_caught:
            for client in asked:
                self._note_no_proof(client)
        absent = {each for each, error in race.errors.items() if isinstance(error, NotFoundError)}
        return found, undecided - race.doubtful.keys() - absent

    def _note_no_proof(self, client: PortalReader) -> None:
        health, now = self.health(client), trio.current_time()
        if not health.showed_signs(now - PROOF_TIMEOUT):
            error = PortalTimeoutError(f"no answer in {PROOF_TIMEOUT:g} s", url=client.url)
            health.failed(error, now, waited=PROOF_TIMEOUT)

    # --- trials

    def start_trials(self, ask: Ask[object]) -> None:
        """Ask the portals whose pause is over, if another one does the work. Each is a hedge."""
        if self.background is None:
            return
        if not any(self.rank(each) is Rank.HEALTHY for each in self.clients):
            return
        now = trio.current_time()
        for client in self.clients:
            health = self.health(client)
            is_due = health.state(now) is State.HALF_OPEN and not health.is_tried
            if is_due and self.hedges.take():
                health.is_tried = True
                self.background.start_soon(self._try, client, ask)

    async def _try(self, client: PortalReader, ask: Ask[object]) -> None:
        once = replace(self.config, rounds=1)
        alone = replace(self, clients=[client], config=once, background=None)
        try:
            race = await Race(alone, ask, Want(gives_up=True)).run()
            if not race.answers:
                log.info("%s: still fails: %s", client.url, race.error)
        except StorageError as error:
            log.info("%s: still fails: %s", client.url, error)
        except Exception:  # a bug must not end everybody else's tasks
            log.exception("%s: the trial failed", client.url)
        finally:
            self.health(client).is_tried = False


@asynccontextmanager
async def open_portals(
    portals: Mapping[str, PortalOptions],
    timeout: float,
    wait: float = 0.0,
    *,
    after_silence: bool = True,
) -> AsyncIterator[Portals]:
    """Open a client for each URL, with its options and seconds of silence. `wait` is
    `wait_for_portal` in seconds.

    They retry nothing: `Portals` asks the next portal instead.
    """
    async with AsyncExitStack() as stack:
        clients = []
        for options in portals.values():
            made = PortalReader.of(replace(options, idle_timeout=timeout, retries=0))
            clients.append(await stack.enter_async_context(made))
        async with trio.open_nursery() as background:
            config = FailoverConfig(after_silence=after_silence)
            outages = Outages(wait)
            yield Portals(clients, config, background=background, outages=outages)
            background.cancel_scope.cancel()
