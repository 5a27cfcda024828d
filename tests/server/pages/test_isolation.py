"""Where content may be shown."""

import pytest

from skymount.server.pages.listing import ContentHosts, essence, is_inert, preview_kind
from tests.server.http_client import request_of


@pytest.mark.parametrize(
    ("content_type", "found"),
    [
        ("image/png", "image/png"),
        (" Text/Plain ; charset=utf-8", "text/plain"),
        ("image/png, text/html", ""),
        ("image/png; a=b, text/html", ""),
        ('text/plain; a="x,y"', ""),
        ("text", ""),
        ("", ""),
        ("image/png\ttext/html", ""),
    ],
)
def test_essence(content_type: str, found: str) -> None:
    """A list of types, of which browsers take the last, has none."""
    assert essence(content_type) == found


@pytest.mark.parametrize(
    "content_type",
    [
        *("text/html", "image/svg+xml", "application/xhtml+xml", "text/xml", "application/pdf"),
        *("text/xsl", "application/mathml+xml", "message/rfc822", "multipart/related", "x", ""),
    ],
)
def test_what_could_run(content_type: str) -> None:
    """B5: and all that is not known to be harmless."""
    assert not is_inert(content_type)


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("image/png", "image"),
        ("image/svg+xml", "image"),
        ("image/tiff", ""),
        ("application/ogg", "audio"),
        ("video/mp4", "video"),
        ("text/html; charset=utf-8", "text"),
        ("application/ld+json", "text"),
        ("application/pdf", "pdf"),
        ("application/zip", ""),
    ],
)
def test_preview_kinds(content_type: str, kind: str) -> None:
    """B4: by the type."""
    assert preview_kind(content_type) == kind


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
