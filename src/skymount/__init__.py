"""skymount: a content portal mounted as a directory."""

__version__ = "0.1.0"
