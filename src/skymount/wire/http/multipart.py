"""Headers of the parts of a multipart upload, as both sides use them (docs/wire.md 3)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, unquote_to_bytes

from skymount.errors import MalformedError

PART_HEADER_LIMIT = 64 << 10  # bytes of the header of one part
_HTML_ESCAPE = re.compile("%(22|0D|0A)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PARAMETER = re.compile(
    r';[ \t]*([A-Za-z0-9*_-]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))[ \t]*', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class PartHeader:
    """The header of one part: the form's field, and the file's path, type and mode."""

    field: str
    filename: str
    contenttype: str = ""
    mode: int = 0  # permission bits, 0 when not given

    def encode(self) -> bytes:
        """Write the header lines; control characters need the extended form of RFC 8187."""
        field = _backslashed(_CONTROL.sub("", self.field))
        if _CONTROL.search(self.filename):
            name = f"filename*=UTF-8''{quote(self.filename, safe='')}"
        else:
            name = f'filename="{_backslashed(self.filename)}"'
        lines = [f'Content-Disposition: form-data; name="{field}"; {name}']
        if self.contenttype:
            lines.append(f"Content-Type: {_CONTROL.sub('', self.contenttype)}")
        if self.mode:
            lines.append(f"Mode: {self.mode:o}")
        return "".join(f"{line}\r\n" for line in lines).encode()

    @classmethod
    def parse(cls, headers: Iterable[tuple[bytes, bytes]], *, by_html: bool = False) -> Self:
        """Read (name, value) headers; the file name keeps its directories (docs/wire.md 3.3).

        With `by_html`, ``%22``, ``%0D`` and ``%0A`` in a name stand for a quote, CR and LF, as HTML
        has it (4.10.22.8, multipart form data).
        """
        found = {name.lower(): value for name, value in headers}
        if sum(len(name) + len(value) for name, value in found.items()) > PART_HEADER_LIMIT:
            raise MalformedError("multipart: the header of a part is too long")
        try:
            disposition = found.get(b"content-disposition", b"").decode()
            contenttype = found.get(b"content-type", b"").decode().strip()
            mode_text = found.get(b"mode", b"").decode().strip()
        except UnicodeDecodeError:
            raise MalformedError("multipart: a part's header is not valid UTF-8") from None
        params = _parameters(disposition)
        if not re.fullmatch(r"[0-7]{0,12}", mode_text):
            raise MalformedError(f"multipart: failed to parse file mode {mode_text[:40]!r}")
        filename = params.get("filename", "")
        if by_html:
            filename = _HTML_ESCAPE.sub(lambda match: chr(int(match[1], 16)), filename)
        return cls(
            field=params.get("name", ""),
            filename=params.get("filename*", filename),
            contenttype=contenttype,
            mode=int(mode_text or "0", 8),
        )


def _backslashed(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _parameters(disposition: str) -> dict[str, str]:
    kind, at = re.match(r"[^;]*", disposition), 0
    if kind is None or kind[0].strip().lower() != "form-data":
        raise MalformedError("multipart: a part is not form-data")
    at = kind.end()
    found: dict[str, str] = {}
    end = len(disposition.rstrip(" \t;"))  # some clients end the header with a semicolon
    while at < end:
        match = _PARAMETER.match(disposition, at)
        if match is None:
            raise MalformedError("multipart: bad Content-Disposition")
        name, quoted, plain = match[1].lower(), match[2], match[3]
        value = re.sub(r'\\(["\\])', r"\1", quoted) if quoted is not None else plain.strip()
        if name.endswith("*"):
            value = _extended_value(value)
        found.setdefault(name, value)
        at = match.end()
    return found


def _extended_value(text: str) -> str:
    """Decode ``UTF-8''percent-encoded`` (RFC 8187)."""
    charset, _, rest = text.partition("'")
    encoded = rest.partition("'")[2]
    if charset.lower() != "utf-8":
        raise MalformedError("multipart: extended parameter is not in UTF-8")
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise MalformedError("multipart: file name is not valid UTF-8") from None
