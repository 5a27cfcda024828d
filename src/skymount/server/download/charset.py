"""Whether text is UTF-8, so that a browser can be told. No IO.

Without a charset a browser takes text for windows-1252 (WHATWG Encoding). It is not part of a
stored type, as that would be another skylink.
"""

import codecs
import re

UTF8 = "; charset=utf-8"
"""What is added to a type."""

START_SIZE = 16 << 10
"""Bytes of content that are looked at."""

_TEXT = re.compile(
    r"(text/.*|application/(x-)?(java|ecma)script|application/xml|.*/.*\+xml)", re.IGNORECASE
)
_JSON = re.compile(r".*[/+]json", re.IGNORECASE)  # always UTF-8, without a charset (RFC 8259 8.1)
_DECLARING = re.compile(r"(text/(html|xml|css)|application/xml|.*/.*\+xml)", re.IGNORECASE)
_HAS_CHARSET = re.compile(r";\s*charset\s*=", re.IGNORECASE)

_DECLARATION_SIZE = 1024  # where a declaration counts (HTML 13.2.3.2)
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_DECLARED = re.compile(
    rb"<meta\s[^>]*charset\s*=\s*[\"']?\s*([\w.:-]+)"
    rb"|^(?:\xef\xbb\xbf)?\s*<\?xml\s[^>]*encoding\s*=\s*[\"']([\w.:-]+)"
    rb'|^@charset "([^"]*)";',
    re.IGNORECASE,
)
_UTF8 = frozenset((b"utf-8", b"utf8", b"unicode-1-1-utf-8"))


def takes_charset(content_type: str) -> bool:
    """Whether a type is one of text, and names no charset."""
    essence, _, parameters = content_type.partition(";")
    essence = essence.strip()
    is_text = _TEXT.fullmatch(essence) is not None and _JSON.fullmatch(essence) is None
    return is_text and _HAS_CHARSET.search(f";{parameters}") is None


def may_declare(content_type: str) -> bool:
    """Whether content of this type may declare its encoding: HTML, XML, SVG and CSS."""
    return _DECLARING.fullmatch(content_type.partition(";")[0].strip()) is not None


def is_utf8(start: bytes, *, is_whole: bool, may_declare: bool) -> bool:
    """Whether content that begins so, or is this, is UTF-8 and declares nothing else.

    A charset of HTTP would outrank what the content declares.
    """
    head = _COMMENT.sub(b"", start[:_DECLARATION_SIZE]) if may_declare else b""
    declared = _DECLARED.search(head)
    if declared and next(filter(None, declared.groups()), b"").lower() not in _UTF8:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start, final=is_whole)
    except UnicodeDecodeError:
        return False
    return True
