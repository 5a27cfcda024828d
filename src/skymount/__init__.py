"""skymount: a content portal mounted as a directory.

`open`, `listdir` and `Path` read content without a mount (docs/library.md). They are loaded on
first use: a mount needs none of them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as` exports a name to type checkers
    from skymount.file_api.path import Path as Path
    from skymount.file_api.path import listdir as listdir
    from skymount.file_api.path import open as open  # noqa: A004

__version__ = "0.1.0"

__all__ = ["Path", "listdir", "open"]


def __getattr__(name: str) -> Any:
    """Load a public name on its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skymount.file_api import path

    return getattr(path, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
