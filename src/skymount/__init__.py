"""skymount: a content portal mounted as a directory.

`open`, `listdir` and `Path` read content without a mount (docs/library.md). They are loaded on
first use: a mount needs none of them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as` exports a name to type checkers
    from skymount.file_api.functions import listdir as listdir
    from skymount.file_api.functions import open as open  # noqa: A004
    from skymount.file_api.path import Path as Path

__version__ = "0.1.0"

_HOMES = {"open": "functions", "listdir": "functions", "Path": "path"}


def __getattr__(name: str) -> Any:
    """Load a public name from the module that it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"skymount.file_api.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
