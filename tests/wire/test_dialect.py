"""The names of the protocol, as the contract (svc) and deployed portals (skynet) spell them."""

import pytest

from skymount.errors import MalformedError
from skymount.wire.dialect import PRESETS, SKYNET, SVC, dialect_named

SKYLINK = "AACogzrAimYPG42tDOKhS3lXZD8YvlF8Q8R17afe95iV2Q"


@pytest.mark.parametrize(
    ("dialect", "endpoint", "link", "agent", "metadata"),
    [
        (SVC, "/svc/registry", f"svc://{SKYLINK}", "svc-agent", "svc-metadata"),
        (SKYNET, "/skynet/registry", f"sia://{SKYLINK}", "Sia-Agent", "Skynet-File-Metadata"),
    ],
    ids=["contract", "deployed portals"],
)
def test_spelling(dialect, endpoint, link, agent, metadata):
    """Path prefix, scheme, agent token and metadata header are those of the sources."""
    assert dialect.path("registry") == endpoint
    assert dialect.link(SKYLINK) == link
    assert (dialect.agent, dialect.metadata_header) == (agent, metadata)


def test_headers_of_deployed_portals():
    """The other headers are spelled as in docs/wire.md 3.2 and 4.4."""
    assert SKYNET.skylink_header == "Skynet-Skylink"
    assert SKYNET.layout_header == "Skynet-File-Layout"
    assert SKYNET.disable_force_header == "Skynet-Disable-Force"


def test_path_takes_segments_as_they_are():
    """Segments are joined below the prefix, and none gives the prefix itself."""
    assert SVC.path("skyfile", "a%20b") == "/svc/skyfile/a%20b"
    assert SVC.path() == "/svc"


@pytest.mark.parametrize("name", ["svc", "skynet"])
def test_presets_are_found_by_name(name):
    """A preset's name leads to it."""
    assert dialect_named(name) is PRESETS[name]
    assert dialect_named(name).name == name


@pytest.mark.parametrize("name", ["", "SVC", "sia", "\ud800"])
def test_unknown_name_is_malformed(name):
    """Another name is refused, with the known ones listed."""
    with pytest.raises(MalformedError, match="skynet, svc"):
        dialect_named(name)


def test_dialects_differ_where_a_server_tells_them_apart():
    """No two presets share a path prefix, a scheme or a metadata header."""
    for member in ("prefix", "scheme", "metadata_header", "header_prefix"):
        assert len({getattr(dialect, member) for dialect in PRESETS.values()}) == len(PRESETS)
