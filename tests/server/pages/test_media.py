"""Which content may stay at the portal's own host, and how it is previewed."""

import pytest

from skymount.server.pages.isolation import essence, is_inert, preview_kind


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
