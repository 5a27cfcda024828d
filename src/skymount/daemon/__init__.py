"""A mount as a process: builds it, reports when it is ready, serves it, and ends it."""
