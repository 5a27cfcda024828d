"""What is being fetched: the bytes of a job, and what its units say to those that wait."""

import pytest

from skymount.content.cache.room import Room
from skymount.content.fetch.fetch_job import FetchJob, Pending
from skymount.content.model.skyfile import Skyfile, Verified
from skymount.errors import PortalError
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import listing_of

UNIT = 100


def job_of(*indexes: int, size: int) -> FetchJob:
    """Return a job for some units of a payload."""
    link = Skylink.v1(bytes(32), 1)
    skyfile = Skyfile(link, listing_of(b"{}"), size, "", Verified.NO)
    keys = [(skyfile.identity, UNIT, index) for index in indexes]
    return FetchJob(skyfile, keys, set(), False, 0.0, Room(1000))


def test_bytes():
    """The last unit of a payload may be shorter; what has arrived no longer counts."""
    job = job_of(1, 2, 3, size=350)
    assert (job.first, job.size) == (1, UNIT)
    assert [job.bytes_at(number) for number in range(3)] == [100, 100, 50]
    assert job.bytes_left == 250
    job.arrived = 2
    assert job.bytes_left == 50
    job.arrived = 3
    assert job.bytes_left == 0


def test_units_that_need_a_portal():
    """Only those that have not arrived do."""
    job = job_of(0, 1, size=200)
    job.arrived = 1
    job.need_portal()
    assert [unit.needs_portal for unit in job.units] == [False, True]


def test_wanted():
    """A job is wanted while a read needs one of its units."""
    job = job_of(0, 1, size=200)
    assert not job.is_wanted
    job.units[1].waiting += 1
    assert job.is_wanted


async def test_end_of_a_unit():
    """Who waits gets the data or the error, and an error if there is neither."""
    arrived, failed, stopped = Pending(), Pending(), Pending()
    arrived.settle(b"data")
    assert await arrived.wait() == b"data"
    failed.settle(None, PortalError("why"))
    with pytest.raises(PortalError, match="why"):
        await failed.wait()
    stopped.settle(None)
    with pytest.raises(PortalError, match="stopped"):
        await stopped.wait()
