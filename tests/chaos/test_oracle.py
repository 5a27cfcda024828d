"""The oracle of the chaos tests sees what is wrong, and allows what is right."""

import json

import pytest

from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, hash_data_key
from tests.chaos.oracle import History, Posts, Tally
from tests.fakes import skyfiles

PAIR = SigningKeyPair.from_seed("insecure oracle")


def test_an_acknowledged_write_is_found() -> None:
    """What is older than it is lost; a later attempt may be there."""
    history = History()
    history.acknowledge(history.begin("a"))
    attempt = history.begin("b")
    assert history.allowed == ["a", "b"]
    assert not history.find(None)
    assert history.find("a")
    assert history.find("b")
    assert not history.find("a")
    history.acknowledge(attempt)
    assert history.is_certain


def test_a_deletion_is_a_write() -> None:
    """An acknowledged deletion leaves nothing to be found."""
    history = History()
    history.acknowledge(history.begin("a"))
    history.acknowledge(history.begin(None))
    assert history.find(None)
    assert not history.find("a")


@pytest.fixture
def posts() -> Posts:
    return Posts()


def body(data: bytes, revision: int) -> str:
    entry = Entry(hash_data_key("x"), data, revision)
    return entry.sign(PAIR.private_key).encode_update().decode()


def test_a_revision_signed_twice_is_seen(posts: Posts) -> None:
    """The same bytes again are right, others are not."""
    posts.add(0, body(b"a", 1), None, 0.0)
    posts.add(1, body(b"a", 1), 204, 0.0)
    assert posts.twice == []
    posts.add(1, body(b"b", 1), None, 0.0)
    assert len(posts.twice) == 1


def test_who_has_the_newest_entry(posts: Posts) -> None:
    """A portal has it from the time on at which it took it."""
    assert posts.held(PAIR, "x", [0], 0.0)
    posts.add(0, body(b"a", 1), 204, 1.0)
    assert posts.held(PAIR, "x", [0, 1], 1.0)
    assert not posts.held(PAIR, "x", [1], 2.0)
    posts.add(1, body(b"a", 1), 204, 3.0)
    assert posts.held(PAIR, "x", [1], 3.0)
    assert not posts.held(PAIR, "x", [1], 2.0)


def test_who_has_the_content_of_an_entry(posts: Posts) -> None:
    """An entry that leads to content is of use where the content is."""
    skylink = skyfiles.of_files({"f": b"x"}).skylink
    posts.add(0, body(bytes(skylink), 1), 204, 1.0)
    assert not posts.held(PAIR, "x", [0], 2.0)
    posts.uploaded(1, json.dumps({"skylink": str(skylink)}), 1.0)
    assert not posts.held(PAIR, "x", [0], 2.0)
    posts.uploaded(0, json.dumps({"skylink": str(skylink)}), 1.0)
    assert posts.held(PAIR, "x", [0], 2.0)


def test_the_share_that_is_right() -> None:
    """Excused operations do not count."""
    tally = Tally()
    assert tally.share == 1.0
    tally.right["read"] += 3
    tally.wrong["read"] += 1
    tally.excused["no daemon"] += 9
    assert tally.share == 0.75
