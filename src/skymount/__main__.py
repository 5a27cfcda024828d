"""The ``skymount`` command, and ``python -m skymount``. An interrupt is silent from the start."""

import gc
import os
import sys

GC_THRESHOLD = 100_000
"""New objects after which garbage is collected. A start makes up to 80,000 that all stay; with
Python's default threshold, collections take a sixth of its time.
"""


def _use_utf8() -> None:
    """Start again with names of files in UTF-8, if the locale has another encoding: they would be
    published under other names than the disk has.
    """
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode and sys.executable:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def main() -> None:
    """Load the command line and run it."""
    _use_utf8()
    gc.set_threshold(GC_THRESHOLD)
    try:
        from skymount import cli
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        cli.main()
    finally:
        gc.freeze()  # saves the last collection at exit


if __name__ == "__main__":
    main()
