"""Remote portals over HTTP, and the client library of the contract (docs/library.md).

The names below are the public interface. They are loaded on first use, because a mount needs few.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from skymount.wire.dialect import SVC

if TYPE_CHECKING:
    from skymount.portal.client.client import PortalClient
    from skymount.portal.client.download import DownloadResult
    from skymount.portal.client.hns import HnsResult
    from skymount.portal.client.metadata import FileContent, MetadataResult
    from skymount.portal.client.offline import (
        KeyPair,
        KeyPairAndSeed,
        derive_child_seed,
        gen_key_pair_and_seed,
        gen_key_pair_from_seed,
        parse_skylink,
    )
    from skymount.portal.client.registry import EntryResult, RegistryEntry
    from skymount.portal.client.skydb import JSONResult
    from skymount.portal.client.sync import SyncPortalClient
    from skymount.portal.options import DEFAULT_SVC_PORTAL_URL
    from skymount.portal.registry.ledger import Ledger
    from skymount.wire.responses import UploadResult
    from skymount.wire.skykey import Skykey
    from skymount.wire.skylink import Skylink

# With click and rich installed, httpx loads a command line of its own at import: 80 ms and 6 MB.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

URI_SVC_PREFIX = f"{SVC.scheme}://"
"""What content links of the default dialect begin with."""

_HOMES = {
    "DEFAULT_SVC_PORTAL_URL": "portal.options",
    "PortalClient": "portal.client.client",
    "DownloadResult": "portal.client.download",
    "FileContent": "portal.client.metadata",
    "MetadataResult": "portal.client.metadata",
    "HnsResult": "portal.client.hns",
    "Ledger": "portal.registry.ledger",
    "EntryResult": "portal.client.registry",
    "RegistryEntry": "portal.client.registry",
    "KeyPair": "portal.client.offline",
    "KeyPairAndSeed": "portal.client.offline",
    "derive_child_seed": "portal.client.offline",
    "gen_key_pair_and_seed": "portal.client.offline",
    "gen_key_pair_from_seed": "portal.client.offline",
    "parse_skylink": "portal.client.offline",
    "JSONResult": "portal.client.skydb",
    "SyncPortalClient": "portal.client.sync",
    "UploadResult": "wire.responses",
    "Skykey": "wire.skykey",
    "Skylink": "wire.skylink",
}

__all__ = [
    "DEFAULT_SVC_PORTAL_URL",
    "URI_SVC_PREFIX",
    "DownloadResult",
    "EntryResult",
    "FileContent",
    "HnsResult",
    "JSONResult",
    "KeyPair",
    "KeyPairAndSeed",
    "Ledger",
    "MetadataResult",
    "PortalClient",
    "RegistryEntry",
    "Skykey",
    "Skylink",
    "SyncPortalClient",
    "UploadResult",
    "derive_child_seed",
    "gen_key_pair_and_seed",
    "gen_key_pair_from_seed",
    "parse_skylink",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"skymount.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
