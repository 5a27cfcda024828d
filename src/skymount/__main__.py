"""The ``skymount`` command, and ``python -m skymount``; an interrupt is silent at once."""

import gc
import sys

GARBAGE = 100_000
"""Objects after which garbage is looked for. A start makes up to 80,000, which all stay: looking
through them as often as Python does by itself takes a sixth of it.
"""


def main() -> None:
    """Load the command line and run it."""
    gc.set_threshold(GARBAGE)
    try:
        from skymount import cli
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        cli.main()
    finally:
        gc.freeze()  # or Python would look through everything once more before it ends


if __name__ == "__main__":
    main()
