"""Leaves a portal that has fallen silent during an upload, while there is another one."""

from collections.abc import Awaitable, Callable

import trio

from skymount.concurrency import run_all
from skymount.errors import PortalTimeoutError
from skymount.portal.client.base import PortalReader
from skymount.wire.http.responses import UploadResult

QUIET = 3.0
"""Seconds in which a portal takes and sends nothing, after which it is asked for a sign of life."""

SIGN_TIME = 1.0
"""Seconds that it has to give one."""

_CHECK_TIME = 0.25
"""Seconds between two looks at whether there is another portal."""

Send = Callable[[Callable[[], None]], Awaitable[UploadResult]]
"""Sends an upload; it calls back whenever the portal took some more."""


async def send_unless_silent(
    client: PortalReader, send: Send, has_other: Callable[[], bool]
) -> UploadResult:
    """Upload; PortalTimeoutError once the portal is silent and `has_other` says that there is
    another one. A portal that gives a sign of life has time.
    """
    quiet_since = trio.current_time()
    result: list[UploadResult] = []

    def note() -> None:
        nonlocal quiet_since
        quiet_since = trio.current_time()

    async def post() -> None:
        result.append(await send(note))
        over.cancel()

    async def fail_when_silent() -> None:
        while True:
            await trio.sleep_until(max(quiet_since + QUIET, trio.current_time() + _CHECK_TIME))
            since = quiet_since
            if trio.current_time() < since + QUIET or not has_other():
                continue
            with trio.move_on_after(SIGN_TIME):
                if await client.http.is_alive():
                    note()
            if quiet_since == since and has_other() and not result:
                text = f"nothing came from it, and it took nothing, for {QUIET + SIGN_TIME:g} s"
                raise PortalTimeoutError(text, method="POST", url=client.url)

    with trio.CancelScope() as over:
        await run_all(post, fail_when_silent)
    return result[0]
