"""Handshake names: domains, TXT records, JSON of a resolution (contract 12, docs/wire.md 8)."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

import msgspec

from skymount.errors import MalformedError
from skymount.wire.dialect import PRESETS
from skymount.wire.limited_json import decode_json
from skymount.wire.registry_entry import (
    ALGORITHM,
    UPDATE_LIMIT,
    entry_link,
    parse_public_key,
    parse_tweak,
)
from skymount.wire.skylink import BASE64_LENGTH, LINK_LIMIT, Skylink, split_plain_link

SKYHNS_SCHEME = "skyhns"
"""``skyhns://<domain>/<path>`` is a link whose path is taken as it stands."""

TXT_LIMIT = 4096  # characters of a TXT record that are looked at
_DOMAIN_LIMIT = 253  # characters in all and in a label: RFC 1035, 2.3.4
_LABEL_LIMIT = 63
_INPUT_LIMIT = 1024  # characters before anything is done with them
_ACE = "xn--"  # begins a label in punycode: RFC 3490, 5
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?")
_SCHEMES = "|".join(re.escape(dialect.scheme) for dialect in PRESETS.values())
_SKYLINK = re.compile(
    rf"(?:(?:{_SCHEMES}):(?://)?)?([A-Za-z0-9_-]{{{BASE64_LENGTH}}})(?![A-Za-z0-9_-])(.*)",
    re.DOTALL,
)
_ENTRY_SCHEMES = "|".join(re.escape(dialect.entry_scheme) for dialect in PRESETS.values())
_ENTRY = re.compile(rf"(?:{_ENTRY_SCHEMES})://([^/]+)/([^/]+)/?")


def parse_domain(text: str) -> str:
    """Return a domain as it is looked up: in lower case and punycode, without ``hns://``.

    Invisible characters are refused; punycode can still write them.
    """
    if len(text) > _INPUT_LIMIT:
        raise MalformedError(f"a domain has at most {_DOMAIN_LIMIT} characters")
    name = text.strip()
    if name[:6].lower() == "hns://":
        name = name[6:].removesuffix("/")
    name = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).lower())
    name = name.replace("。", ".").removesuffix(".")
    if len(name) > _DOMAIN_LIMIT:
        raise MalformedError(f"a domain has at most {_DOMAIN_LIMIT} characters")
    domain = ".".join(map(_label, name.split(".")))
    if len(domain) > _DOMAIN_LIMIT:
        raise MalformedError(f"a domain has at most {_DOMAIN_LIMIT} characters")
    return domain


def split_domain_link(text: str) -> tuple[str, str] | None:
    """Read the link of a name: ``hns:example/path``, ``hns://example/path``, ``skyhns://`` with a
    path that is not encoded, or the URL of a portal that has it as ``/hns/example/path`` or at the
    host ``example.hns.portal``.

    Return (domain in canonical form, path, which begins with ``/`` or is empty, and is
    percent-encoded); None for any other link. Query and fragment are dropped. MalformedError for
    a link of a name that is none.
    """
    if len(text) > LINK_LIMIT:
        return None
    plain = split_plain_link(text, SKYHNS_SCHEME)
    if plain is not None:
        return parse_domain(plain[0]), plain[1]
    if text[:4].lower() == "hns:":
        rest = re.split(r"[?#]", text[4:].removeprefix("//"), maxsplit=1)[0]
        domain, slash, path = rest.partition("/")
        return parse_domain(domain), slash + path
    if not text[:8].lower().startswith(("http://", "https://")):
        return None
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        return None
    if parts.path.startswith("/hns/"):
        domain, slash, path = parts.path.removeprefix("/hns/").partition("/")
        return parse_domain(unquote(domain, errors="replace")), slash + path
    domain, found, _ = host.partition(".hns.")
    return (parse_domain(domain), parts.path) if found else None


def _label(label: str) -> str:
    written = label
    if not label.isascii() and label.isprintable() and not label.startswith(_ACE):
        label = _ACE + label.encode("punycode").decode("ascii")
    if (
        len(label) > _LABEL_LIMIT
        or not _LABEL.fullmatch(label)
        or (label.startswith(_ACE) and not _is_punycode(label.removeprefix(_ACE)))
    ):
        raise MalformedError(f"not a domain's label: {written[:80]!a}")
    return label


def _is_punycode(text: str) -> bool:
    try:
        decoded = text.encode("ascii").decode("punycode")
        decoded.encode()
        return not decoded.isascii() and decoded.encode("punycode").decode("ascii") == text
    except (ValueError, OverflowError):
        return False


@dataclass(frozen=True, slots=True)
class SkylinkRecord:
    """A record that names content."""

    link: str  # the text of the record, such as ``<scheme>://<skylink>/<path>``
    skylink: Skylink
    path: str = ""  # empty, or begins with ``/``


@dataclass(frozen=True, slots=True)
class RegistryRecord:
    """A record that names a registry entry, whose data is a skylink."""

    public_key: bytes
    tweak: bytes

    @property
    def skylink(self) -> Skylink:
        return entry_link(self.public_key, self.tweak)

    def text(self, scheme: str) -> str:
        key = quote(f"{ALGORITHM}:{self.public_key.hex()}", safe="")
        return f"{scheme}://{key}/{self.tweak.hex()}"


DomainRecord = SkylinkRecord | RegistryRecord


def parse_txt(text: str) -> DomainRecord | None:
    """Read one TXT record; None when it is about something else."""
    if len(text) > TXT_LIMIT or not text.isprintable():
        return None
    try:
        match = _SKYLINK.fullmatch(text)
        if match is not None:
            rest = re.split(r"[?#]", match[2], maxsplit=1)[0]
            path = rest if rest.startswith("/") else ""
            return SkylinkRecord(text, Skylink(match[1]), path)
        entry = _ENTRY.fullmatch(text)
        if entry is not None:
            return RegistryRecord(
                parse_public_key(unquote(entry[1])), parse_tweak(unquote(entry[2]))
            )
    except MalformedError:
        pass
    return None


def pick_record(texts: Iterable[str]) -> DomainRecord | None:
    """Return the last one of a domain's TXT records that can be read."""
    found = [record for record in map(parse_txt, texts) if record is not None]
    return found[-1] if found else None


def encode_resolution(record: DomainRecord) -> bytes:
    """Write the JSON of endpoint 12."""
    if isinstance(record, SkylinkRecord):
        return msgspec.json.encode({"skylink": record.link})
    key = f"{ALGORITHM}:{record.public_key.hex()}"
    return msgspec.json.encode({"registry": {"publickey": key, "datakey": record.tweak.hex()}})


class _Pointer(msgspec.Struct):
    publickey: str
    datakey: str


class _Resolution(msgspec.Struct):
    skylink: str = ""
    registry: _Pointer | None = None


def parse_resolution(body: bytes) -> DomainRecord:
    """Read the JSON of endpoint 12; MalformedError when it names nothing."""
    answer = decode_json(body, _Resolution, "resolution", UPDATE_LIMIT)
    if answer.skylink:
        found = parse_txt(answer.skylink)
        if isinstance(found, SkylinkRecord):
            return found
        raise MalformedError(f"resolution: not a skylink: {answer.skylink[:80]!r}")
    if answer.registry is not None:
        key = parse_public_key(unquote(answer.registry.publickey))
        return RegistryRecord(key, parse_tweak(unquote(answer.registry.datakey)))
    raise MalformedError("resolution: neither a skylink nor a registry entry")
