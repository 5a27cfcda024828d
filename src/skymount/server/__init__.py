"""The embedded portal: an HTTP server for the contract, with its data on this disk.

`serve` is imported on its first use, and starlette and hypercorn with it: start-up needs neither.
"""

from typing import TYPE_CHECKING, Any

from skymount.server.config import PortalConfig

if TYPE_CHECKING:
    from skymount.server.hypercorn_server import serve

__all__ = ["PortalConfig", "serve"]


def __getattr__(name: str) -> Any:
    if name == "serve":
        from skymount.server.hypercorn_server import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
