"""Fetching ranges of content from portals, verified, with read-ahead."""
