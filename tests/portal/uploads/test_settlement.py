"""Portals that give the same upload different skylinks (docs/semantics.md, W4)."""

import logging

import pytest

from skymount.errors import BadContentError, DisprovedError
from skymount.portal.client.upload import UploadBody
from skymount.portal.client.upload_source import UploadSource
from skymount.portal.failover.health import Rank
from skymount.portal.uploads.copies import Copies
from skymount.portal.uploads.settlement import settle
from skymount.wire.http.responses import UploadResult
from tests.fakes.skyfiles import FakeSkyfile, of_files
from tests.portal.uploads.several import FILE, Several, body, piped, several

OTHER = of_files({"b.txt": b"something else"})


def copies_of(found: Several, *claims: FakeSkyfile) -> Copies:
    clients = found.portals.clients
    results = {
        each: UploadResult(claim.skylink) for each, claim in zip(clients, claims, strict=True)
    }
    return Copies(results)


async def test_portals_that_agree_are_asked_nothing():
    async with several(2) as found:
        await settle(found.portals, body(), copies_of(found, FILE, FILE))
        assert [fake.requests for fake in found.fakes] == [[], []]


@pytest.mark.parametrize("has_other", [False, True])
async def test_the_proven_skylink_counts(has_other: bool, caplog: pytest.LogCaptureFixture):
    """W4: who has nothing, or something else, under its own skylink, has lied."""
    async with several(3) as found:
        if has_other:
            found.fakes[0].add(OTHER)
            found.fakes[1].add(OTHER)
        copies = copies_of(found, OTHER, OTHER, FILE)
        with caplog.at_level(logging.WARNING):
            await settle(found.portals, body(), copies)
        liars, honest = found.portals.clients[:2], found.portals.clients[2]
        assert copies.agreed(1) == FILE.skylink
        assert list(copies.failures) == liars
        assert all(isinstance(each, DisprovedError) for each in copies.failures.values())
        ranks = [found.portals.health(each).rank(0, is_probed=True) for each in liars]
        assert ranks == [Rank.LYING, Rank.LYING]
        assert found.portals.health(honest).error is None
        said = "has other content there" if has_other else "has nothing there"
        assert [record.message for record in caplog.records] == [
            f"it says that it stored the upload as {OTHER.skylink}, and {said} ({each.url})"
            for each in liars
        ]


async def test_nobody_proves_anything():
    """W4: more than half decide; else it fails, and says what each portal said."""
    async with several(3) as found:
        for fake in found.fakes:
            fake.base_sectors = fake.metadata_header = fake.metadata_endpoint = False
            fake.add(OTHER)
        copies = copies_of(found, OTHER, FILE, FILE)
        await settle(found.portals, body(), copies)
        assert copies.proven == set()
        assert copies.failures == {}
        assert copies.agreed(1) == FILE.skylink
        del copies.results[found.portals.clients[2]]
        one, two = found.fakes[:2]
        said = f"{one.url} has {OTHER.skylink}, {two.url} has {FILE.skylink}"
        with pytest.raises(BadContentError) as failure:
            copies.agreed(1)
        assert failure.value.message == (
            "the portals gave it different skylinks, and none of them proved it: "
            f"{said}; leave out the portal that is wrong (--portal, `portals` in the configuration)"
        )


async def test_what_cannot_be_compared_is_not_asked_for():
    """What a portal encrypts differs each time; a pipe is gone."""
    async with several(2) as found:
        copies = copies_of(found, OTHER, FILE)
        await settle(found.portals, body([("skykeyname", "x")]), copies)
        with piped(4) as prepared:
            assert b"".join(prepared.payload()) == b"piped"
            await settle(found.portals, prepared, copies)
        assert [fake.requests for fake in found.fakes] == [[], []]


async def test_a_pipe_that_was_kept():
    """W3: it is read once for each portal, one after the other."""
    held = of_files({"a.txt": b"piped"})
    async with several(2) as found:
        found.fakes[1].add(held)
        copies = copies_of(found, FILE, held)
        with piped(5) as prepared:
            assert b"".join(prepared.payload()) == b"piped"
            await settle(found.portals, prepared, copies)
        assert copies.agreed(1) == held.skylink


async def test_a_file_that_is_gone():
    """It is nobody's fault, and an error."""
    from pathlib import Path

    source = UploadSource(Path("/nonexistent"), "a.txt", 5)
    async with several(2) as found:
        with pytest.raises(FileNotFoundError):
            await settle(found.portals, UploadBody([source]), copies_of(found, OTHER, FILE))
