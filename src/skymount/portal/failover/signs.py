"""Asks silent portals for a sign of life: one question at a time for each, shared by all who wait.

A portal is known to be silent if it let a whole attempt pass without a sign of life. It is asked
for one whenever an operation needs it, and is used again as soon as it gives one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import trio

from skymount.concurrency import run_all
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import Health


@dataclass(slots=True)
class _Question:
    """A question for a sign of life."""

    awaited_until: float
    ended: trio.Event = field(default_factory=trio.Event)


class SignsOfLife:
    """The questions under way."""

    def __init__(self) -> None:
        self._questions: dict[PortalReader, _Question] = {}

    async def awake(
        self,
        portals: Mapping[PortalReader, Health],
        background: trio.Nursery | None,
        limit: float,
    ) -> list[PortalReader]:
        """Return those of some silent portals that are first to give a sign of life within a
        moment; without a `background` for the questions, none. A question lasts `limit` seconds at
        most: others may wait to ask the same.
        """
        found: list[PortalReader] = []

        async def check(client: PortalReader, health: Health, nursery: trio.Nursery) -> None:
            if health.is_known_silent:
                question = self._questions.get(client)
                if question is None:
                    now = trio.current_time()
                    question = _Question(now + health.sign_patience(now))
                    self._questions[client] = question
                    nursery.start_soon(self._ask, client, health, question, limit)
                with trio.move_on_at(question.awaited_until) as scope:
                    await question.ended.wait()
                if scope.cancelled_caught:
                    return
            found.append(client)
            first.cancel()

        with trio.CancelScope() as first:
            if background is not None:
                await run_all(*(partial(check, *each, background) for each in portals.items()))
        return found

    async def _ask(
        self, client: PortalReader, health: Health, question: _Question, limit: float
    ) -> None:
        is_alive = False
        try:
            with trio.move_on_after(limit):
                is_alive = await client.http.is_alive()
        finally:
            del self._questions[client]
            question.ended.set()
        note = health.gave_sign if is_alive else health.gave_no_sign
        note(trio.current_time())
