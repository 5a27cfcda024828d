"""Untrusted input parsed in a worker process, and the memory shared with it."""
