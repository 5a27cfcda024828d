"""Leaving a portal that has fallen silent (docs/semantics.md, W3)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
import trio

from skymount.errors import PortalTimeoutError, UnavailableError
from skymount.portal.client.base import PortalReader
from skymount.portal.uploads.silence import send_unless_silent
from skymount.wire.http.responses import UploadResult
from tests.portal.uploads.several import FILE

RESULT = UploadResult(FILE.skylink)


@dataclass
class Client:
    """A portal that is only asked for signs of life; it gives them until a time."""

    alive_until: float
    url: str = "http://p.invalid"
    asked: list[float] = field(default_factory=list)

    @property
    def http(self) -> "Client":
        return self

    async def is_alive(self) -> bool:
        self.asked.append(trio.current_time())
        if trio.current_time() >= self.alive_until:
            await trio.sleep_forever()
        await trio.sleep(0.1)
        return True


async def send(
    client: Client, *pieces: float, has_other: Callable[[], bool] = lambda: True
) -> UploadResult:
    """Send pieces, each of which takes so many seconds."""

    async def upload(note: Callable[[], None]) -> UploadResult:
        for seconds in pieces:
            await trio.sleep(seconds)
            note()
        return RESULT

    return await send_unless_silent(cast(PortalReader, client), upload, has_other)


async def test_silent_portal_is_left(autojump_clock: object):
    client, begun = Client(alive_until=0), trio.current_time()
    with pytest.raises(PortalTimeoutError, match=r"took nothing, for 4 s \(POST http://p"):
        await send(client, 1.0, 100.0)
    assert 5 <= trio.current_time() - begun < 5.5
    assert len(client.asked) == 1


async def test_portal_that_takes_something_is_not_even_asked(autojump_clock: object):
    client = Client(alive_until=0)
    assert await send(client, *[2.9] * 10) is RESULT
    assert client.asked == []


async def test_piece_that_comes_while_it_is_asked(autojump_clock: object):
    assert await send(Client(alive_until=0), 3.5, 1.0) is RESULT


async def test_sign_of_life_gives_it_time(autojump_clock: object):
    """Until it gives none."""
    begun = trio.current_time()
    assert await send(Client(alive_until=begun + 100), 60.0) is RESULT
    begun = trio.current_time()
    with pytest.raises(PortalTimeoutError):
        await send(Client(alive_until=begun + 10), 60.0)
    assert 10 < trio.current_time() - begun < 18


async def test_only_one_is_waited_for(autojump_clock: object):
    """And left as soon as there is another one."""
    begun = trio.current_time()
    client = Client(alive_until=0)
    assert await send(client, 60.0, has_other=lambda: False) is RESULT
    assert client.asked == []
    begun = trio.current_time()
    with pytest.raises(PortalTimeoutError):
        await send(client, 60.0, has_other=lambda: trio.current_time() > begun + 20)
    assert 20 < trio.current_time() - begun < 22


async def test_errors_are_those_of_the_upload(autojump_clock: object):
    async def upload(_: Callable[[], None]) -> UploadResult:
        await trio.sleep(1)
        raise UnavailableError("down")

    client = cast(PortalReader, Client(alive_until=0))
    with pytest.raises(UnavailableError, match="down"):
        await send_unless_silent(client, upload, lambda: True)
