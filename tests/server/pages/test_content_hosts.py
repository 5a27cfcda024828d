"""The hosts of content."""

import pytest

from skymount.server.pages.isolation import ContentHosts
from tests.server.http_client import request_of

_LABEL = "0006otnm6gpj6fbuot3laprahc6l33s2l7qa06e1gddhprt4m30kf4g"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/hns/a.b/x", "//a.b.hns.localhost:81/x?a=b"),
        ("/hns/A.b", "//a.b.hns.localhost:81/?a=b"),
        ("/hns/a.hns.b/x", ""),
        ("/hns/hns/x", "//hns.hns.localhost:81/x?a=b"),
        ("/hns/hns.hns/x", ""),
        ("/hns/a.hns/x", ""),
        (f"/hns/{_LABEL}.b/x", ""),
        (f"/hns/{_LABEL}/x", ""),
        (f"/{_LABEL}/x", f"//{_LABEL}.localhost:81/x?a=b"),
        (f"/svc/skylink/{_LABEL}/x", f"//{_LABEL}.localhost:81/x?a=b"),
    ],
)
def test_a_host_selects_what_was_asked_for(path: str, found: str) -> None:
    """B5: content that no host would select has none."""
    request = request_of(query="a=b", path=path, host="localhost:81")
    assert ContentHosts("").url(request) == found
