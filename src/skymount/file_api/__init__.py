"""Content as files for Python programs, without a mount (docs/library.md)."""
