"""Which content a browser may show under the portal's own host, and how it is previewed. No IO."""

import re

_INERT_KINDS = ("audio/", "video/")
_INERT = frozenset(
    {
        *(f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp", "avif", "bmp", "x-icon")),
        *(f"text/{kind}" for kind in ("plain", "css", "csv", "markdown", "javascript")),
        *(f"application/{kind}" for kind in ("octet-stream", "json", "javascript", "wasm")),
        *(f"application/{kind}" for kind in ("zip", "gzip", "x-gzip", "x-tar", "x-bzip2")),
        "image/vnd.microsoft.icon",
        "application/ogg",
    }
)
_TEXT = frozenset(
    {
        *(f"application/{kind}" for kind in ("json", "javascript", "xml", "x-sh", "sql", "toml")),
        *(f"application/{kind}" for kind in ("x-yaml", "yaml", "x-python", "x-ndjson")),
        "image/svg+xml",
    }
)
_ESSENCE = re.compile(r"([a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+)[\t ]*(?:;[^,]*)?", re.IGNORECASE)


def essence(content_type: str) -> str:
    """Return a type without its parameters; empty for what browsers could read otherwise."""
    match = _ESSENCE.fullmatch(content_type.strip())
    return match[1].lower() if match else ""


def is_inert(content_type: str) -> bool:
    """Whether nothing of such content can run in a browser that is sent to it."""
    found = essence(content_type)
    return found in _INERT or found.startswith(_INERT_KINDS)


def preview_kind(content_type: str) -> str:
    """Return how content is previewed: image, audio, video, pdf, text, or empty for not at all."""
    found = essence(content_type)
    if found == "application/ogg":
        return "audio"
    for kind in ("image", "audio", "video"):
        if found.startswith(f"{kind}/") and (kind != "image" or found in _INERT):
            return kind
    if found == "image/svg+xml":
        return "image"
    if found == "application/pdf":
        return "pdf"
    is_text = found.startswith("text/") or found in _TEXT or found.endswith(("+json", "+xml"))
    return "text" if is_text else ""
