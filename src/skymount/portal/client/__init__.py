"""The contract's calls, as a client library."""
