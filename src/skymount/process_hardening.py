"""What keeps a process from leaking secrets: no core dumps, and a strict umask for services."""

import os


def disable_core_dumps() -> None:
    """Disable core dumps of this process and its children: their memory holds private keys."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def harden_service() -> None:
    """Set umask 077, so that new files are this user's alone, and disable core dumps."""
    os.umask(0o077)
    disable_core_dumps()
