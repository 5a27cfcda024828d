"""Several fake portals to upload to, and things to upload."""

import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import trio

from skymount.errors import PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import UploadBody
from skymount.portal.client.upload_source import UploadSource
from skymount.portal.failover.portals import Portals
from skymount.portal.uploads.upload import upload_copies
from skymount.wire.http.responses import UploadResult
from tests.fakes.portal import FakePortal, running
from tests.fakes.skyfiles import FakeSkyfile, of_files

FILE = of_files({"a.txt": b"hello"})
PIPED = of_files({"a.txt": b"piped"})
LARGE = of_files({"a.txt": bytes(24 << 20)})
OTHER = of_files({"b.txt": b"something else"})


def result_of(held: FakeSkyfile) -> bytes:
    """Return the answer to an upload of that."""
    return UploadResult(held.skylink).encode()


OTHER_RESULT = result_of(OTHER)
UPLOAD = "^POST "


@dataclass
class Several:
    """Fake portals, and what was said of those that failed."""

    fakes: list[FakePortal]
    portals: Portals
    said: list[tuple[str, str]] = field(default_factory=list)

    def note(self, error: PortalError, then: PortalReader) -> None:
        self.said.append((error.message, then.url))

    @property
    def takers(self) -> list[int]:
        """The number of uploads that each portal was sent."""
        return [len(fake.asked(UPLOAD)) for fake in self.fakes]

    async def upload(self, body: UploadBody) -> PortalReader:
        """Upload to the first portal that takes it, which is returned."""
        copies = await upload_copies(self.portals, body, 1, self.note)
        copies.agreed()
        [taker] = copies.results
        return taker


@asynccontextmanager
async def several(count: int, *read_only: int, timeout: float = 60) -> AsyncIterator[Several]:
    """Run so many portals, of which some are read-only."""
    async with AsyncExitStack() as stack:
        fakes, clients = [], []
        for number in range(count):
            fake = await stack.enter_async_context(running(FakePortal()))
            fake.add(FILE, PIPED, LARGE)
            client = PortalReader(
                fake.url, retries=0, timeout=timeout, read_only=number in read_only
            )
            fakes.append(fake)
            clients.append(await stack.enter_async_context(client))
        background = await stack.enter_async_context(trio.open_nursery())
        yield Several(fakes, Portals(clients, background=background))
        background.cancel_scope.cancel()


def body(query: list[tuple[str, str]] | None = None) -> UploadBody:
    return UploadBody([UploadSource.of_bytes(b"hello", "a.txt")], query=query or [])


def piped() -> UploadBody:
    return UploadBody([UploadSource.of_pipe(io.BytesIO(b"piped"), "a.txt")])


def large() -> UploadBody:
    """Return more than sockets hold."""
    return UploadBody([UploadSource.of_bytes(bytes(24 << 20), "a.txt")])
