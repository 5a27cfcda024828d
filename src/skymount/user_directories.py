"""Where the files of a user are: in $XDG_CONFIG_HOME and the like, or below the home directory."""

from pathlib import Path
from typing import Literal, get_args

import platformdirs

from skymount.errors import SkymountError

Kind = Literal["config", "data", "state", "cache"]

KINDS: tuple[Kind, ...] = get_args(Kind)


def user_directory(kind: Kind, error: type[SkymountError], program: str = "skymount") -> Path:
    """Return the directory of a program; `error` if this user has no home directory.

    A home is missing if HOME is not set, or no absolute path, and the system does not know the
    user, as in containers that run under any user id.
    """
    try:
        found: Path = getattr(platformdirs, f"user_{kind}_path")(program)
    except RuntimeError:
        found = Path()
    if not found.is_absolute():
        raise error(
            f"there is no home directory: set HOME, or XDG_{kind.upper()}_HOME, to an absolute path"
        )
    return found
