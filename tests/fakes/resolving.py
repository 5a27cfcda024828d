"""The registry and the zone of a fake portal, and how it resolves v2 skylinks and domains."""

import json
from dataclasses import replace

from skymount.wire.http.responses import encode_resolved
from skymount.wire.registry_entry import SignedEntry
from skymount.wire.registry_proof import encode_proof
from skymount.wire.skylink import Skylink
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, Reply, Request

_LINK = b"Svc-Skylink"


class FakeRegistry:
    """What a fake portal has in its registry and its zone; it believes whatever it is told."""

    def __init__(self, portal: FakePortal) -> None:
        self.portal = portal
        portal.fault(self.answer)
        self.entries: dict[Skylink, SignedEntry] = {}
        self.domains: dict[str, bytes] = {}
        self.proves = True
        """Whether it proves where a v2 skylink leads."""
        self.has_registry = True
        """Whether it hands out entries."""

    def set(self, *entries: SignedEntry) -> None:
        """Take entries, of whatever revision."""
        self.entries |= {entry.link: entry for entry in entries}

    def lead(self, domain: str, skylink: Skylink) -> None:
        self.domains[domain] = json.dumps({"skylink": f"sia://{skylink}/some/path"}).encode()

    def answer(self, request: Request, honest: Reply) -> Reply:
        """Answer what a fake portal cannot."""
        first, _, rest = request.path.lstrip("/").partition("/")
        if first == "hnsres":
            body = self.domains.get(rest)
            return fake.error(404, "No records found") if body is None else Reply(200, (), body)
        if first == "svc" and rest == "registry" and request.method == "GET":
            return self._entry(request)
        if first == "svc" and rest.startswith("resolve/"):
            link = Skylink(rest.removeprefix("resolve/"))
            told = self._resolved(request, link)
            headers = dict(told.headers)
            if told.status == 200:
                told = replace(told, body=encode_resolved(Skylink(headers[_LINK].decode())))
            return told
        if first != "svc" and Skylink(first).version == 2:
            return self._resolved(request, Skylink(first))
        return honest

    def _entry(self, request: Request) -> Reply:
        tweak, key = request.query["datakey"], request.query["publickey"]
        for entry in self.entries.values() if self.has_registry else ():
            if (entry.entry.tweak.hex(), f"ed25519:{entry.public_key.hex()}") == (tweak, key):
                return Reply(200, (), entry.encode_answer())
        return fake.error(404, "not here")

    def _resolved(self, request: Request, link: Skylink) -> Reply:
        hops = []
        while link.version == 2:
            if link not in self.entries or self.entries[link].entry.is_deleted:
                return fake.error(404, "failed to resolve skylink")
            hops.append(self.entries[link])
            link = Skylink.from_bytes(hops[-1].entry.data)
        headers = ((_LINK, str(link).encode()),)
        if self.proves:
            headers += ((b"Svc-Proof", encode_proof(hops)),)
        return Reply(200, headers)
