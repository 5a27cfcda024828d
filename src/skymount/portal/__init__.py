"""Remote portals over HTTP, and the client library of the contract (docs/library.md).

The names below are the public interface. They are loaded on first use, because a mount needs few.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from skymount.wire.dialect import SVC

if TYPE_CHECKING:  # `as` exports a name to type checkers
    from skymount.portal.client.client import PortalClient as PortalClient
    from skymount.portal.client.download import DownloadResult as DownloadResult
    from skymount.portal.client.hns import HnsResult as HnsResult
    from skymount.portal.client.metadata import FileContent as FileContent
    from skymount.portal.client.metadata import MetadataResult as MetadataResult
    from skymount.portal.client.offline import KeyPair as KeyPair
    from skymount.portal.client.offline import KeyPairAndSeed as KeyPairAndSeed
    from skymount.portal.client.offline import derive_child_seed as derive_child_seed
    from skymount.portal.client.offline import gen_key_pair_and_seed as gen_key_pair_and_seed
    from skymount.portal.client.offline import gen_key_pair_from_seed as gen_key_pair_from_seed
    from skymount.portal.client.offline import parse_skylink as parse_skylink
    from skymount.portal.client.registry import EntryResult as EntryResult
    from skymount.portal.client.registry import RegistryEntry as RegistryEntry
    from skymount.portal.client.skydb import JSONResult as JSONResult
    from skymount.portal.client.sync import SyncPortalClient as SyncPortalClient
    from skymount.portal.ledger.ledger import Ledger as Ledger
    from skymount.settings import DEFAULT_SVC_PORTAL_URL as DEFAULT_SVC_PORTAL_URL
    from skymount.wire.http.responses import UploadResult as UploadResult
    from skymount.wire.skykey import Skykey as Skykey
    from skymount.wire.skylink import Skylink as Skylink

# With click and rich installed, httpx loads a command line of its own at import: 80 ms and 6 MB.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

URI_SVC_PREFIX = f"{SVC.scheme}://"
"""What content links of the default dialect begin with."""

_MODULES = {
    "portal.client.client": ("PortalClient",),
    "portal.client.download": ("DownloadResult",),
    "portal.client.hns": ("HnsResult",),
    "portal.client.metadata": ("FileContent", "MetadataResult"),
    "portal.client.offline": (
        *("KeyPair", "KeyPairAndSeed", "derive_child_seed", "gen_key_pair_and_seed"),
        *("gen_key_pair_from_seed", "parse_skylink"),
    ),
    "portal.client.registry": ("EntryResult", "RegistryEntry"),
    "portal.client.skydb": ("JSONResult",),
    "portal.client.sync": ("SyncPortalClient",),
    "settings": ("DEFAULT_SVC_PORTAL_URL",),
    "portal.ledger.ledger": ("Ledger",),
    "wire.http.responses": ("UploadResult",),
    "wire.skykey": ("Skykey",),
    "wire.skylink": ("Skylink",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["URI_SVC_PREFIX", *_HOMES]  # noqa: PLE0604 - they are strings


def __getattr__(name: str) -> Any:
    """Load a public name from the module that it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"skymount.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
