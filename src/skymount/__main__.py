"""The ``skymount`` command, and ``python -m skymount``; an interrupt is silent at once."""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from skymount import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
