"""The embedded portal: the contract's content endpoints over content kept on this disk.

Nothing here is imported by the rest of skymount at start-up; the HTTP libraries are loaded with
the first use of `serve`.
"""

from typing import TYPE_CHECKING, Any

from skymount.server.config import PortalConfig

if TYPE_CHECKING:
    from skymount.server.hypercorn_server import serve

__all__ = ["PortalConfig", "serve"]


def __getattr__(name: str) -> Any:
    """Load `serve`, and with it starlette and hypercorn, when it is first asked for."""
    if name == "serve":
        from skymount.server.hypercorn_server import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
