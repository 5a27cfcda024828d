"""Files and folders that are hardly meant to be public: known by their names, or by their form."""

import re
import tomllib
from collections.abc import Iterable
from fnmatch import translate
from typing import Any

OWN_STATE = "skymount's own state"
SECRETS = "secrets, by its name"

HEAD_LIMIT = 16 << 10
"""Bytes at the beginning of a file in which a form is looked for."""

_VERSION_CONTROL = (".git", ".hg", ".svn", ".bzr", ".jj", "_darcs", "CVS")
_LITTER = (".DS_Store", "*.swp", "*.swo", "*~", ".#*", "#*#")

# In lower case; they hold in any case of letters.
_SECRET_NAMES = (
    *(".env*", ".ssh", ".gnupg", ".password-store", ".aws", ".azure", ".kube", "*.kdbx"),
    *("*.p12", "*.pfx", "*.ppk", "*.jks", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".s3cfg"),
    *(".git-credentials", ".vault-token", ".*_history"),
)
_SECRET_PATHS = (
    *("/.docker/config.json", "/.config/gcloud", "/.config/gh", "/.config/rclone"),
    *("/.cargo/credentials", "/.cargo/credentials.toml", "/.gem/credentials"),
)
_OWN_PATHS = tuple(
    f"/{each}/skymount" for each in (".config", ".local/share", ".local/state", ".cache")
)
_LONGEST = max(map(len, (*_SECRET_PATHS, *_OWN_PATHS)))

# Files that are common, and secret if they hold this.
_TOKENS = {
    ".npmrc": re.compile(rb"(?im)^[^;#\n]*(?:_authtoken|_auth|_password)\s*=\s*[^\s$]"),
    ".pypirc": re.compile(rb"(?im)^\s*password\s*[=:]\s*\S"),
    ".yarnrc.yml": re.compile(rb"(?im)^\s*npmauth(?:token|ident)\s*:\s*[\"']?[^\s\"'$]"),
}

_PRIVATE_KEY = "a private key"
_OWN_KEY = "a private key of skymount"
_HEX = "128 hex digits, as a private key or a seed of skymount has"
_SKYKEY = "a skykey"
_CONFIGURATION = "a configuration of skymount"
_LEDGER = "a ledger of skymount"
_ARCHIVE = "an archive of a portal, which may hold skykeys"

_KEY_HEADER = rb"----[- ]BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?[- ]----"
_KEY_BODY = (  # on the next line; or in a text of a program or of JSON
    rb"(?:[\s,;+()>|*#]|b?[\"']|\\[nrt])*+(?:[A-Za-z0-9+/=]{16}|Proc-Type:|Version:|Comment:)"
)
_AGENT_KEY = (  # as GnuPG's agent keeps it
    rb"\((?:\d\d:)?(?:protected-)?private-key ?\((?:3:)?(?:rsa|ecc|dsa|elg)[ (]"
)
_mark = re.compile(b"KEY")  # quickly looked for, as K is rare
_key = re.compile(b"%b%b|AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{16}" % (_KEY_HEADER, _KEY_BODY))
_wireguard = re.compile(rb"PrivateKey\s*=\s*[A-Za-z0-9+/]{43}=")
_small_mark = re.compile(b'key[:"]')
_IN_SMALL_FILES = (  # and in JSON
    (re.compile(rb"skykey:[A-Za-z0-9_-]{76}(?![A-Za-z0-9_-])"), _SKYKEY),
    (re.compile(rb'"(?:private_key|seed)"\s*:\s*"[0-9A-Fa-f]{128}"'), _OWN_KEY),
)
_SMALL = 4 << 10  # bytes; a file with a key of ours is no larger
_BEGINNINGS = (
    (rb"\s*(?:" + _KEY_HEADER + rb"|AGE-SECRET-KEY-1)", _PRIVATE_KEY),
    (rb"(?:[A-Z][\w-]*:[^\n]*\n)*?(?:Key:\s*)?" + _AGENT_KEY, _PRIVATE_KEY),
    (rb"PuTTY-User-Key-File-|SSH PRIVATE KEY FILE FORMAT", _PRIVATE_KEY),
    (rb"untrusted comment: [^\n]*secret key", _PRIVATE_KEY),
    (rb"\s*[0-9A-Fa-f]{128}\s*\Z", _HEX),
    (rb"SQLite format 3\0.{52}skyl", _LEDGER),
    (rb"portal\.json\0.{245}ustar", _ARCHIVE),
    (rb"\xfe\xed\xfe\xed|\xce\xce\xce\xce\0\0\0", "a store of keys of Java"),
    (rb"\x03\xd9\xa2\x9a", "a store of passwords"),
)
_beginning = re.compile(b"|".join(b"(%b)" % each for each, _ in _BEGINNINGS), re.DOTALL)
_PGP_ALGORITHMS = frozenset((1, 2, 3, 16, 17, 18, 19, 20, 22, 25, 26, 27, 28))

_names = re.compile("|".join(map(translate, _SECRET_NAMES)))
_litter = re.compile("|".join(map(translate, _LITTER)))


def reason_of_name(path: str) -> str:
    """Return why a file or folder is left out for its name; "" if it is not.

    Only the last name of the path is judged; some are secret in certain folders only.
    """
    name = path[path.rfind("/") + 1 :]
    if name in _VERSION_CONTROL:
        return "version control"
    if _litter.match(name):
        return "a file of an editor or of the desktop"
    if _names.match(name.casefold()):
        return SECRETS
    end = path[-_LONGEST:]
    if "/." not in end:
        return ""
    end = end.casefold()
    if end.endswith(_SECRET_PATHS):
        return SECRETS
    return OWN_STATE if end.endswith(_OWN_PATHS) else ""


def reason_of_form(head: bytes, size: int, names: Iterable[str] = ()) -> str:
    """Return why a file is left out for what it holds; "" if it is not.

    `head` is its beginning of up to HEAD_LIMIT bytes.
    """
    for name in names:
        pattern = _TOKENS.get(name.casefold())
        if pattern and pattern.search(head):
            return "a token or a password"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        head = head.decode("utf-16", "replace").encode("utf-8", "replace")
    head = head.removeprefix(b"\xef\xbb\xbf")
    if found := _beginning.match(head):
        return _BEGINNINGS[(found.lastindex or 1) - 1][1]
    if _mark.search(head) and _key.search(head):
        return _PRIVATE_KEY
    if head.startswith((b"{", b"[")) or (size <= _SMALL and _small_mark.search(head)):
        for form, reason in _IN_SMALL_FILES:
            if form.search(head):
                return reason
    if _is_der_key(head, size) or _is_pgp_key(head):
        return _PRIVATE_KEY
    return _reason_of_settings(head, size) if _settings.match(head) else ""


_settings = re.compile(  # the first line of TOML, or of the like
    rb"(?:\s|#[^\n]*\n)*+(?:\[|[A-Za-z_\"'][\w.\"'-]*\s*=)"
)


def _reason_of_settings(head: bytes, size: int) -> str:
    """It is a configuration if it is TOML that names portals as we do, or a key for one."""
    if _wireguard.search(head):
        return _PRIVATE_KEY
    if size > HEAD_LIMIT:
        head = head[: head.rfind(b"\n") + 1]  # whole lines
    try:
        found = tomllib.loads(head.decode())
    except (ValueError, RecursionError):
        return ""
    mounts = found.get("mounts")
    tables = [found, *(mounts.values() if isinstance(mounts, dict) else ())]
    is_ours = any(isinstance(table, dict) and _names_a_portal(table) for table in tables)
    return _CONFIGURATION if is_ours else ""


def _names_a_portal(table: dict[str, Any]) -> bool:
    portals, headers = table.get("portals"), table.get("headers")
    names = {str(name).casefold() for name in headers} if isinstance(headers, dict) else set()
    if isinstance(table.get("api_key"), str) or names & {"cookie", "authorization"}:
        return True
    return isinstance(portals, list) and any(
        (isinstance(each, dict) and "url" in each) or (isinstance(each, str) and "://" in each)
        for each in portals
    )


# DER


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Return (tag, begin, end) of the element of DER there; tag 0 if there is none."""
    if at + 2 > len(data) or at < 0:
        return 0, 0, 0
    tag, length, begin = data[at], data[at + 1], at + 2
    if length >= 0x80:
        count = length & 0x7F
        if not 1 <= count <= 4:
            return 0, 0, 0
        length, begin = int.from_bytes(data[begin : begin + count]), begin + count
    return tag, begin, begin + length


_SEQUENCE, _INTEGER, _OCTETS, _OID = 0x30, 0x02, 0x04, 0x06
_ENCRYPTIONS = (b"\x2a\x86\x48\x86\xf7\x0d\x01\x05", b"\x2a\x86\x48\x86\xf7\x0d\x01\x0c\x01")
_BER_STORE = re.compile(rb"\x30\x80\x02\x01\x03\x30\x80\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07")


def _is_der_key(head: bytes, size: int) -> bool:
    """Whether it is a private key of PKCS #1, PKCS #8 or SEC 1, or a store of PKCS #12."""
    if not head.startswith(b"0"):
        return False
    if _BER_STORE.match(head):
        return True
    _, begin, end = _element(head, 0)
    if not begin or not end <= size <= end + 2:  # a line feed may have come to it
        return False
    tag, start, stop = _element(head, begin)
    second, second_start, second_stop = _element(head, stop)
    if tag == _SEQUENCE and second == _OCTETS:  # encrypted
        kind, name, name_end = _element(head, start)
        return kind == _OID and head[name:name_end].startswith(_ENCRYPTIONS)
    if tag != _INTEGER or stop - start != 1:
        return False
    version = head[start]
    if second == _SEQUENCE:
        inner, _, _ = _element(head, second_start)
        third, _, _ = _element(head, second_stop)
        return inner == _OID and (version == 3 or (version < 2 and third == _OCTETS))
    if second == _OCTETS:
        return version == 1 and 16 <= second_stop - second_start <= 72
    numbers = 0
    while second == _INTEGER and stop < end:
        numbers += 1
        stop = second_stop
        second, _, second_stop = _element(head, stop)
    return version < 2 and numbers >= 5


def _is_pgp_key(head: bytes) -> bool:
    """Whether it begins with a packet of a secret key, as `gpg --export-secret-keys` writes it."""
    if len(head) < 16:
        return False
    if 0x94 <= head[0] <= 0x96:
        at = 1 + (1 << (head[0] & 3))
    elif head[0] == 0xC5:
        at = 2 if head[1] < 192 else 3 if head[1] < 224 else 6
    else:
        return False
    return head[at] in (4, 5, 6) and head[at + 5] in _PGP_ALGORITHMS
