"""Whether the portal works, for load balancers and monitors."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount.errors import StorageError
from skymount.server.http import responses
from skymount.server.http.query_params import parse_query
from skymount.server.storage.disk_errors import DiskFullError
from skymount.server.storage.portal_storage import PortalStorage

_PATIENCE = 0.5  # seconds that an answer may take
_SILENCE = 5.0  # seconds that a check may take, as on a busy machine
_LATE = StorageError(f"no answer in {_SILENCE:.0f} s")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Round:
    began: float
    ended: trio.Event = field(default_factory=trio.Event)
    problem: StorageError | None = None


class SharedCheck:
    """A check that blocks. It runs once at a time, and all who ask meanwhile share what it finds.

    Until it has ended, what the one before has found counts for a while.
    """

    def __init__(self, name: str, check: Callable[[], None]) -> None:
        """`check` raises StorageError."""
        self._name = name
        self._check = check
        self._round: _Round | None = None
        self._known: StorageError | None = None  # the storage was opened just now
        self._is_told = False

    async def problem(self) -> StorageError | None:
        """Return what is the matter, soon."""
        asked = self._round
        if asked is None:
            asked = self._round = _Round(trio.current_time())
            trio.lowlevel.spawn_system_task(self._run, asked)  # it may outlive who asks
        with trio.move_on_at(asked.began + _PATIENCE):
            await asked.ended.wait()
        if asked.ended.is_set():
            found = asked.problem
        else:
            found = self._known if trio.current_time() < asked.began + _SILENCE else _LATE
        if self._is_told != (found is not None):
            self._is_told = found is not None
            _log.warning("%s: %s", self._name, found or "all is well again")
        return found

    async def _run(self, asked: _Round) -> None:
        try:
            # In a thread of its own: it says nothing about the disk that all others are busy.
            await trio.to_thread.run_sync(
                self._check, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
        except StorageError as error:
            asked.problem = error
        except Exception as error:  # noqa: BLE001  # a bug in it must not end the portal
            _log.exception("the check of the health failed")
            asked.problem = StorageError(str(error))
        finally:
            self._round, self._known = None, asked.problem
            asked.ended.set()


class HealthEndpoint:
    """The health of one portal."""

    def __init__(self, storage: PortalStorage, check_quota: Callable[[], None]) -> None:
        def check_storing() -> None:
            storage.check_reading()
            check_quota()
            storage.check_storing()

        self._reading = SharedCheck("what is stored cannot be read", storage.check_reading)
        self._storing = SharedCheck("nothing can be stored", check_storing)

    async def get(self, request: Request) -> Response:
        """Answer with one line. It names no place and no reason: strangers read it."""
        if "ready" not in parse_query(request.scope["query_string"]):
            is_bad = await self._reading.problem() is not None
            return _line(503, "what is stored cannot be read") if is_bad else _line(200, "ok")
        problem = await self._storing.problem()
        if problem is None:
            return _line(200, "ready")
        is_full = isinstance(problem, DiskFullError)
        return _line(503, "there is no room" if is_full else "nothing can be stored")


def _line(status: int, text: str) -> Response:
    headers: responses.HeaderList = [("Content-Type", "text/plain; charset=utf-8")]
    return responses.BytesResponse(status, headers, f"{text}\n".encode())
