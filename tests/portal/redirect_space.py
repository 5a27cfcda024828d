"""Redirects between addresses of every kind, tried in a network name space of its own: a program
that takes cases as JSON and prints what became of each.
"""

import fcntl
import json
import os
import socket
import ssl
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import trio
import trustme

from skymount.errors import PortalError
from skymount.portal.client.client import PortalClient
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, running

CONTENT = skyfiles.of_files({"f": b"content"})

ADDRESSES = (
    *("8.8.8.8", "9.9.9.9", "10.1.1.1", "192.168.1.1", "100.64.0.1", "169.254.1.1"),
    *("2606:4700::1", "fd00::1", "fec0::1", "64:ff9b::a01:101", "2002:a01:101::1"),
)
"""What the loopback interface is given, beside its own."""

_SET_ADDRESS = 0x8916  # SIOCSIFADDR


@dataclass(frozen=True)
class Case:
    """A portal that redirects, and to where: hosts as they stand in a URL."""

    portal: str
    target: str
    method: str = "GET"
    names: dict[str, list[str]] = field(default_factory=dict)
    """The addresses of names: the first one for the first question, and so on."""


class Names(trio.abc.HostnameResolver):
    """Answers differently each time, as a hostile name server would."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self._left: dict[str, Iterator[str]] = {name: iter(each) for name, each in names.items()}

    async def getaddrinfo(self, host: Any, *more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name in self._left:
            host = next(self._left[name])
        return socket.getaddrinfo(host, *more)

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        return socket.getnameinfo(sockaddr, flags)


def _add_addresses() -> None:
    index = socket.if_nametoindex("lo")
    for number, address in enumerate(map(ip_address, ADDRESSES)):
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        if address.version == 4:
            name = f"lo:{number}".encode()
            asked = struct.pack("16sH2x4s8x", name, socket.AF_INET, address.packed)
        else:
            asked = struct.pack("16sIi", address.packed, 128, index)
        with socket.socket(family, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SET_ADDRESS, asked)


async def _outcome(case: Case) -> tuple[str, int]:
    """Return what a client says, "" for success, and how many connections the target got."""
    portal, target = FakePortal(host=None, port=9001), FakePortal(host=None, port=9002)
    async with running(portal), running(target):
        trio.socket.set_custom_hostname_resolver(Names(case.names))
        target.add(CONTENT)
        portal.fault(fake.redirects(f"http://{case.target}:{target.port}/{CONTENT.name}", 307))
        target.fault(lambda _, __: fake.Reply(200, (), CONTENT.metadata))
        try:
            async with PortalClient(f"http://{case.portal}:{portal.port}", retries=0) as client:
                if case.method == "GET":
                    await client.raw_metadata(CONTENT.skylink)
                else:
                    await client.delete_skykey(name="name")
            return "", target.accepted
        except PortalError as error:
            return error.message, target.accepted


async def _upgrade(port: int) -> tuple[str, list[str | None]]:
    """Redirect an upload from http to https on that port of the same host; return what the client
    says, and the Authorization headers that came there.
    """
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("10.1.1.1").configure_cert(context)
    with tempfile.NamedTemporaryFile() as file:
        authority.cert_pem.write_to_path(file.name)
        os.environ["SSL_CERT_FILE"] = file.name
        plain = FakePortal(host="10.1.1.1", port=80)
        secure = FakePortal(host="10.1.1.1", port=port, tls=context)
        async with running(plain), running(secure):
            secure.add(CONTENT)
            plain.fault(fake.redirects(f"{secure.url}/svc/skyfile", 308))
            said = ""
            try:
                async with PortalClient("http://10.1.1.1", api_key="key", retries=0) as client:
                    await client.upload_file(b"body", custom_filename="f")
            except PortalError as error:
                said = error.message
            assert all(b"body" in request.body for request in secure.requests)
            return said, [request.headers.get("authorization") for request in secure.requests]


def main() -> None:
    """Try the cases of the first argument."""
    _add_addresses()
    cases = [Case(**each) for each in json.loads(sys.argv[1])]
    found = [trio.run(_outcome, case) for case in cases]
    upgrades = [trio.run(_upgrade, port) for port in (443, 8443)]
    json.dump({"cases": found, "upgrades": upgrades}, sys.stdout)
