"""A portal that writes down what it is asked, and answers what a test wants."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message

from skymount.portal import PortalClient
from tests.fakes.portal import FakePortal, Reply, Request, running

LINK = "AAA9s0sR9i8NGy19EadRGcpUt0HdvDMHJilKGmW545-k1g"
"""A skylink of docs/wire.md 2.6."""


_UPLOADED = Reply(200, (), b'{"skylink":"%s"}' % LINK.encode())


@dataclass
class _Recorder(FakePortal):
    reply: Reply = _UPLOADED

    def answer(self, request: Request) -> Reply:
        return self.reply


@asynccontextmanager
async def recording(
    reply: Reply = _UPLOADED, **options: object
) -> AsyncIterator[tuple[list[Request], PortalClient]]:
    """Yield the requests so far, and a client of a portal that always answers `reply`.

    By default it answers as to an upload. It can prove nothing, so it is not asked to.
    """
    async with running(_Recorder(reply=reply)) as portal:
        settings = {"retries": 0, "verify": "off", **options}
        async with PortalClient(portal.url, **settings) as client:  # type: ignore[arg-type]
            yield portal.requests, client


def parts_of(request: Request) -> list[Message]:
    """Return the parts of a multipart body, read with the standard library."""
    head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
    whole = message_from_bytes(head + request.body)
    assert whole.get_content_type() == "multipart/form-data"
    parts = whole.get_payload()
    assert isinstance(parts, list)
    return parts  # type: ignore[return-value]
