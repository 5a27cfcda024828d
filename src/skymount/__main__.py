"""The ``skymount`` command, and ``python -m skymount``. An interrupt is silent from the start."""

import gc
import sys

GC_THRESHOLD = 100_000
"""New objects after which garbage is collected. A start makes up to 80,000 that all stay; with
Python's default threshold, collections take a sixth of its time.
"""


def main() -> None:
    """Load the command line and run it."""
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
