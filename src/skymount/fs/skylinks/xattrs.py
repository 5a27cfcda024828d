"""Extended attributes: where a file came from, and how far it is verified. No IO."""

import json
from collections.abc import Mapping

from skymount.content.model.skyfile import Verified
from skymount.fs.skylinks.tree import Tree
from skymount.wire.http.requests import quote_path
from skymount.wire.registry_entry import SignedEntry, linked_skylink

_VALUE_LIMIT = 60 << 10  # bytes; the kernel passes on 64 KiB at most (XATTR_SIZE_MAX)
_TYPE_LIMIT = 1000  # characters
_NO_TYPE = "application/octet-stream"


def attributes(
    tree: Tree, index: int, *, verified: bool = True, stale: bool | None = None
) -> Mapping[bytes, bytes]:
    """Return the attributes of a node of a tree by their full names.

    `stale` says whether the name may lead elsewhere by now (None: never).
    """
    skyfile, path = tree.skyfile, tree.listing.path(index).decode()
    target = f"{skyfile.skylink}/{quote_path(path)}" if path else str(skyfile.skylink)
    found = {
        "user.skymount.skylink": str(skyfile.skylink),
        "user.skymount.merkle_root": skyfile.skylink.root.hex(),
        "user.skymount.portal": skyfile.portal,
        "user.skymount.verified": (skyfile.verified if verified else Verified.NO).value,
        "user.xdg.origin.url": f"{skyfile.portal}/{target}",
    }
    if stale is not None:
        found["user.skymount.stale"] = "yes" if stale else "no"
    if not tree.is_directory(index):
        content_type = tree.listing.content_type(index)[:_TYPE_LIMIT] or _NO_TYPE
        found["user.skymount.content_type"] = content_type
        found["user.mime_type"] = content_type
    elif not path:
        found["user.skymount.hidden"] = str(len(tree.listing.hidden))
        if tree.listing.hidden:
            found["user.skymount.hidden_names"] = _hidden_names(tree)
    return {
        name.encode(): value.encode("utf-8", "backslashreplace") for name, value in found.items()
    }


def entry_attributes(signed: SignedEntry) -> Mapping[str, str]:
    """Return the attributes of a registry entry by their names below ``user.skymount``."""
    entry = signed.entry
    found = {
        "public_key": signed.public_key.hex(),
        "data_key_hash": entry.tweak.hex(),
        "revision": str(entry.revision),
        "signature": signed.signature.hex(),
        "link": str(signed.link),
        "verified": Verified.YES.value,
    }
    skylink = linked_skylink(entry.data)
    return found if skylink is None else found | {"points_to": str(skylink)}


def _hidden_names(tree: Tree) -> str:
    """Return a line for each hidden file: its path as a JSON string, and the reason."""
    lines: list[str] = []
    size = 0
    for path, reason in tree.listing.hidden:
        line = f"{json.dumps(path[:500])}: {reason}"
        size += len(line) + 1
        if size > _VALUE_LIMIT:
            lines.append("...")
            break
        lines.append(line)
    return "\n".join(lines)
