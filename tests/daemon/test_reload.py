"""What a configuration that is read again changes."""

from dataclasses import replace

import pytest

from skymount.daemon.reload import compare
from skymount.settings import Config, LogLevel
from skymount.values import portal_identity
from skymount.wire.dialect import SKYNET

A, B = "http://a.example", "http://b.example"
CONFIG = Config(portals=(A, B))


def with_table(**options: object) -> Config:
    return replace(CONFIG, portal_tables={portal_identity(A): options})


def test_nothing() -> None:
    """M9: A table that says the same as no table is no change."""
    assert compare(CONFIG, Config(portals=(A, B))) == ([], [])
    assert compare(CONFIG, with_table(read_only=False)) == ([], [])


@pytest.mark.parametrize(
    ("new", "keys"),
    [
        (replace(CONFIG, memory_cache=1, timeout=5.0), ["memory_cache", "timeout"]),
        (replace(CONFIG, hns_ttl=5.0, log_level=LogLevel.DEBUG), ["hns_ttl"]),
        (replace(CONFIG, portals=(A,)), ["portals"]),
        (replace(CONFIG, ca_file="/ca.pem"), ["ca_file"]),
        (replace(CONFIG, user_agent="me"), ["user_agent"]),
        (with_table(read_only=True), ["read_only"]),
        (with_table(dialect=SKYNET), ["dialect"]),
    ],
)
def test_keys_that_need_a_new_mount(new: Config, keys: list[str]) -> None:
    assert compare(CONFIG, new) == ([], keys)


def test_credentials() -> None:
    """M9: They are those of one portal."""
    assert compare(CONFIG, with_table(api_key="new")) == ([A], [])
    assert compare(with_table(api_key="old"), with_table(headers=(("X", "y"),))) == ([A], [])
    alone = replace(CONFIG, portals=(A,))
    assert compare(alone, replace(alone, api_key="new")) == ([A], [])
