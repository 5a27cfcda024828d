"""A process: no core dumps and a strict umask, against leaks of secrets, and its terminal."""

import os
from contextlib import suppress


def disable_core_dumps() -> None:
    """Disable core dumps of this process and its children: their memory holds private keys."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def harden_service() -> None:
    """Set umask 077, so that new files are this user's alone, and disable core dumps."""
    os.umask(0o077)
    disable_core_dumps()


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, which was not closed."""
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        return True
    return False
