"""Content that is brought to a further portal, where it keeps its skylink."""
