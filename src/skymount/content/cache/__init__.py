"""The memory cache and the disk cache of content."""
