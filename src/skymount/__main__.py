"""``python -m skymount`` is the ``skymount`` command."""

from skymount.cli import main

if __name__ == "__main__":
    main()
